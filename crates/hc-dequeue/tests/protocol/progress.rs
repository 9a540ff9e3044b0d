//! What is left to do, as a measure that every step makes smaller.
//!
//! It is why the model has no infinite run, so that everything that must happen at last can be asked
//! of the states in which no step is left.

use crate::database::{ABSENT, ALIVE, DEAD, ITEMS, Key, SESSIONS, Staged, TURN};
use crate::state::{Process, State};

/// Returns what is left to do. Of two measures the first number that differs decides: a step may
/// make work of a kind that comes after one of which it leaves less.
pub(crate) fn work_left(state: &State) -> [usize; 10] {
    let sum = |of_session: fn(&State, usize) -> usize| -> usize {
        (0..SESSIONS)
            .map(|session| of_session(state, session))
            .sum()
    };
    [
        state.budget.sum(),
        usize::from(state.db.has(Key::Pause)),
        sum(life),
        state.adrift.len(),
        sum(returns),
        sum_of_items(state),
        sum(registration),
        sum(untold),
        sum(tells),
        sum(memory),
    ]
}

/// How far a session is from its burial, and its process from its end. Only the budget lets a
/// process fall silent.
fn life(state: &State, session: usize) -> usize {
    let process = match state.sessions[session].process {
        Process::Late => 2,
        Process::Timely => 1,
        Process::Gone => 0,
    };
    let in_database = match state.db.get(Key::Session(session)) {
        ALIVE => 2,
        DEAD => 1,
        _ => 0,
    };
    process + in_database
}

/// Items that a session must return. More come to be only by a death, by the budget, or by a commit
/// that was adrift.
fn returns(state: &State, session: usize) -> usize {
    let is_dead = state.db.get(Key::Session(session)) == DEAD;
    (0..ITEMS)
        .filter(|item| {
            let is_held = state.db.has(Key::Held(session, *item));
            is_held && is_dead || state.is_stray(session, *item)
        })
        .count()
}

/// How far the items are from their completion. Only a return takes one a step back.
fn sum_of_items(state: &State) -> usize {
    let queued = (0..ITEMS).filter(|item| state.db.has(Key::Item(*item)));
    let held = (0..SESSIONS).flat_map(|session| (0..ITEMS).map(move |item| (session, item)));
    let held = held.filter(|(session, item)| state.db.has(Key::Held(*session, *item)));
    2 * queued.count() + held.count()
}

/// How far a session is from having a request answered. It can begin anew when it was given an item,
/// or by the budget.
fn registration(state: &State, session: usize) -> usize {
    let may_register = state.db.get(Key::Session(session)) == ALIVE;
    let request = match state.db.get(Key::Request(session)) {
        ABSENT if may_register => 2,
        ABSENT => 0,
        _ => 1,
    };
    let grant = 3 * usize::from(state.is_answered(session));
    request + grant
}

/// Whether a session has a request that was not told that it is the first.
fn untold(state: &State, session: usize) -> usize {
    let is_registered = state.db.has(Key::Request(session));
    usize::from(is_registered && state.db.get(Key::Grant(session)) == ABSENT)
}

/// How far a process is from having told the first request: several may be about to.
fn tells(state: &State, session: usize) -> usize {
    let Some(first) = (0..SESSIONS).find(|other| state.is_first(*other)) else {
        return 0;
    };
    let turn = |staged: &Staged| staged.written(Key::Grant(first)) == Some(TURN);
    match &state.sessions[session].in_flight {
        Some(staged) if turn(staged) => 1,
        _ => 2 * untold(state, first),
    }
}

/// What a process has in mind. All of it may change when something is committed; but every commit
/// leaves less of another kind.
fn memory(state: &State, session: usize) -> usize {
    let memory = &state.sessions[session];
    let numbers = memory.deliveries.iter().chain(&memory.lapsed);
    numbers.filter(|number| **number != ABSENT).count()
        + 3 * usize::from(memory.in_flight.is_none())
        + usize::from(memory.leads.is_some())
        + match memory.watches {
            None => 1,
            Some(_) if waits_in_vain(state, session) => 2,
            Some(_) => 0,
        }
}

/// Whether a session has no request any more and no answer to it.
fn waits_in_vain(state: &State, session: usize) -> bool {
    !state.db.has(Key::Request(session)) && !state.is_answered(session)
}

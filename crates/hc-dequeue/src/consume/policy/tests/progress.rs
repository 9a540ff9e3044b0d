//! The remaining work, as a measure that every step makes smaller.
//!
//! Because of it the model has no infinite run. Everything that must eventually happen can therefore be checked in
//! the states in which no step is left.

use std::cmp::Ordering;

use super::database::{ABSENT, ALIVE, DEAD, ITEMS, Key, SESSIONS, SIGNAL, Staged};
use super::state::{ModelState, Process};
use super::steps::Protocol;
use crate::consume::policy::request::{OwnRequest, Stage};
use crate::consume::policy::{Phase, Reason};

/// A kind of work, and how much of it is left.
type Measure = fn(&Protocol, &ModelState) -> usize;

/// All kinds of work. When two states are compared, the first kind that differs decides: a step may create work of a
/// later kind if it reduces work of an earlier kind.
const MEASURES: [Measure; 12] = [
    |protocol, state| {
        let reserves = sum(state, |state, session| reserve(protocol, state, session));
        state.budget.sum() + sum(state, haste) + reserves
    },
    |_, state| usize::from(state.db.has(Key::Pause)),
    |_, state| notice(state),
    |_, state| sum(state, life),
    |_, state| doubtful(state),
    |_, state| sum(state, returns),
    |_, state| sum_of_items(state),
    |_, state| sum(state, registration),
    |_, state| sum(state, unnotified),
    |_, state| sum(state, signals),
    |protocol, state| sum(state, |state, session| memory(protocol, state, session)),
    |_, state| sum(state, unremoved),
];

/// Returns whether less work is left in `next` than in `last`.
pub(super) fn is_less(protocol: &Protocol, next: &ModelState, last: &ModelState) -> bool {
    let mut orders = MEASURES
        .iter()
        .map(|measure| measure(protocol, next).cmp(&measure(protocol, last)));
    orders.find(|order| order.is_ne()) == Some(Ordering::Less)
}

fn sum(state: &ModelState, of_session: impl Fn(&ModelState, usize) -> usize) -> usize {
    (0..SESSIONS)
        .map(|session| of_session(state, session))
        .sum()
}

/// The distance of a notice without anything to grant from its removal and, after that, the takes that would remove it,
/// too.
fn notice(state: &ModelState) -> usize {
    if state.db.has(Key::Notice) {
        return SESSIONS + 1;
    }
    let in_flight = state.sessions.iter().filter_map(|memory| memory.in_flight);
    let removes = |staged: &Staged| staged.written(Key::Notice).is_some();
    in_flight.filter(removes).count()
}

/// Whether the time of a consumer is over.
fn haste(state: &ModelState, session: usize) -> usize {
    usize::from(state.sessions[session].is_hasty)
}

/// The steps of a session's reserve that are left: items come in, leave it, and go back if they were not handed out.
/// Items come by a take, or by a request and its answer.
fn reserve(protocol: &Protocol, state: &ModelState, session: usize) -> usize {
    if !protocol.has_reserve() {
        return 0;
    }
    let memory = &state.sessions[session];
    let takes = memory.in_flight.is_some() && memory.demand.reserve;
    let requests = state.db.has(Key::Ahead(session));
    let granted = match state.db.get(Key::Grant(session)) {
        grant if grant != SIGNAL => grant.count_ones() as usize,
        _ => 0,
    };
    let coming = usize::from(takes) + usize::from(requests) + granted.saturating_sub(1);
    2 * (coming + count(&memory.reserve)) + count(&memory.unused)
}

fn count(numbers: &[u8; ITEMS]) -> usize {
    let known = numbers.iter().filter(|number| **number != ABSENT);
    known.count()
}

/// The distance of a session from its removal, and of its process from its end. Only the budget lets a process fall
/// silent. Only a removal gives a powerless process something to do.
fn life(state: &ModelState, session: usize) -> usize {
    let process = match state.sessions[session].process {
        Process::Late if !state.is_powerless(session) => 2,
        Process::Late | Process::Timely => 1,
        Process::Gone => 0,
    };
    let in_database = match state.db.get(Key::Session(session)) {
        ALIVE => 2,
        DEAD => 1,
        _ => 0,
    };
    process + 2 * in_database
}

/// The commits of which no process will learn the outcome, except for those that remove a session.
fn doubtful(state: &ModelState) -> usize {
    let removed = (0..SESSIONS).filter(|session| state.is_being_removed(*session));
    state.adrift.len() - removed.count()
}

/// Whether a dead session has no transaction adrift that removes it. A commit makes such a transaction fail, and
/// reduces another kind of work.
fn unremoved(state: &ModelState, session: usize) -> usize {
    let is_dead = state.db.get(Key::Session(session)) == DEAD;
    usize::from(is_dead && !state.is_being_removed(session))
}

/// The items that a session must return. More are added only by a death, by the budget, or by a commit that was
/// adrift.
fn returns(state: &ModelState, session: usize) -> usize {
    let is_dead = state.db.get(Key::Session(session)) == DEAD;
    (0..ITEMS)
        .filter(|item| {
            let is_held = state.db.has(Key::Held(session, *item));
            is_held && is_dead || state.is_stray(session, *item)
        })
        .count()
}

/// The distance of the items from their completion. Only a return moves one a step back.
fn sum_of_items(state: &ModelState) -> usize {
    let queued = (0..ITEMS).filter(|item| state.db.has(Key::Item(*item)));
    let held = (0..SESSIONS)
        .flat_map(|session| (0..ITEMS).map(move |item| (session, item)))
        .filter(|(session, item)| state.db.has(Key::Held(*session, *item)));
    2 * queued.count() + held.count()
}

/// The distance of a session from the answer to its request. It can start again after it was given an item, or by the
/// budget.
fn registration(state: &ModelState, session: usize) -> usize {
    let may_register = state.db.get(Key::Session(session)) == ALIVE;
    let request = match state.db.get(Key::Request(session)) {
        ABSENT if may_register => 2,
        ABSENT => 0,
        _ => 1,
    };
    let grant = 3 * usize::from(state.is_answered(session));
    request + grant
}

/// Whether a session has a request that was not notified that it is the first.
fn unnotified(state: &ModelState, session: usize) -> usize {
    let is_registered = state.db.has(Key::Request(session));
    usize::from(is_registered && state.db.get(Key::Grant(session)) == ABSENT)
}

/// The distance of a process from having notified the first requests. Several processes may be about to do so.
fn signals(state: &ModelState, session: usize) -> usize {
    let is_signal = |staged: &Staged, to| staged.written(Key::Grant(to)) == Some(SIGNAL);
    let firsts = (0..SESSIONS).filter(|other| state.is_first(*other));
    let distances = firsts.map(|first| match &state.sessions[session].in_flight {
        Some(staged) if is_signal(staged, first) => 1,
        _ => 2 * unnotified(state, first),
    });
    distances.sum()
}

/// The steps that a process plans. All of them may change at a commit, but every commit reduces another kind of work.
fn memory(protocol: &Protocol, state: &ModelState, session: usize) -> usize {
    let memory = &state.sessions[session];
    let deliveries = count(&memory.deliveries) + count(&memory.lapsed);
    let phase = phase(protocol, state, session);
    let policy = match memory.policy.lead {
        None => phase,
        Some(lead) => {
            let has_request = memory.policy.request().is_some();
            let fulfill = protocol.fulfillment(state, session, lead, has_request, false);
            // If there is something to change, a commit follows, which reduces other work.
            if protocol.changes(state, session, fulfill) {
                0
            } else {
                phase + 100
            }
        }
    };
    deliveries + policy + usize::from(memory.in_flight.is_none())
}

/// The largest number of consecutive steps without a commit from a phase of the policy, as a relative number.
fn phase(protocol: &Protocol, state: &ModelState, session: usize) -> usize {
    let is_paused = state.db.has(Key::Pause);
    match state.sessions[session].policy.phase {
        Phase::Paused if is_paused => 0,
        Phase::Lost | Phase::Paused => 10,
        Phase::Registering => 18,
        Phase::Pausing if is_paused => 18,
        // The session may look for more items to take ahead, once.
        Phase::Idle if state.sessions[session].policy.has_more => 20,
        Phase::Idle => 19,
        Phase::Pausing => 20,
        Phase::Waiting(request) => 30 + stage(protocol, state, session, request),
    }
}

/// The same for a request.
fn stage(
    protocol: &Protocol,
    state: &ModelState,
    session: usize,
    request: OwnRequest<()>,
) -> usize {
    let is_over = request.patience.is_some_and(|patience| patience.is_over);
    let must_know = state.sessions[session].is_hasty && request.patience.is_none();
    match request.stage {
        Stage::Expecting => 13,
        Stage::Checking(Reason::Granted) => 12,
        Stage::Checking(Reason::Changed) if !request.may_lead => 11,
        Stage::Sleeping if !request.may_lead => 10,
        Stage::Checking(Reason::Changed) => 9,
        Stage::Sleeping if must_know => 9,
        Stage::Sleeping if protocol.polls_in_vain(state, session) => 8,
        Stage::Sleeping if !protocol.loses_patience(state, session) => 0,
        Stage::Sleeping if request.patience.is_none() => 7,
        Stage::Checking(Reason::Overdue) if !is_over => 6,
        Stage::Sleeping => 5,
        Stage::Checking(Reason::Overdue) => 4,
        Stage::Answered => 1,
    }
}

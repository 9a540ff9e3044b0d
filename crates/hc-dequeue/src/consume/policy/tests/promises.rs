//! Properties that must hold in every state.

use stateright::Property;

use super::database::{ABSENT, ALIVE, Database, ITEMS, Key, SESSIONS, SIGNAL};
use super::state::{ModelState, Process};
use super::steps::{ModelStep, Protocol};

pub(super) const ONE_PLACE: &str = "an item is queued, held or completed, and only one of these";
pub(super) const OWNED: &str = "a held or granted item belongs to a session that is not removed";
pub(super) const NOTHING_STALE: &str = "a signal to a session is removed with its request";
pub(super) const ONCE: &str = "an item takes effect at most once";
pub(super) const LATE_REFUSED: &str = "an acknowledgement by the number of an old grant is refused";
pub(super) const LIVING_SPARED: &str = "no session is dead whose heartbeats arrive";
pub(super) const IN_ORDER: &str = "the first items in the queue are granted first";
pub(super) const FINISHES: &str =
    "when nothing more happens, all is done and dead sessions are removed";
pub(super) const LONG_ALONE: &str =
    "when nothing more happens, all is done except the item of a handler that never ends";
pub(super) const NONE_IDLE: &str =
    "no item is in a reserve while the handler of its session is idle";
pub(super) const NOT_KEPT: &str =
    "a session that has seen a pause, is ending or is lost has no reserve";
pub(super) const PROGRESSES: &str = "every step leaves less work";

/// Returns all properties.
pub(super) fn all() -> Vec<Property<Protocol>> {
    vec![
        Property::always(ONE_PLACE, |protocol: &Protocol, state: &ModelState| {
            let mut enqueued = protocol.enqueued(state);
            enqueued.all(|item| place_count(&state.db, item) == 1)
        }),
        Property::always(OWNED, |_, state: &ModelState| {
            (0..SESSIONS).all(|session| {
                state.db.has(Key::Session(session)) || has_nothing(&state.db, session)
            })
        }),
        Property::always(NOTHING_STALE, |_, state: &ModelState| {
            let mut sessions = 0..SESSIONS;
            sessions.all(|session| {
                let is_over = !state.db.has(Key::Request(session));
                let is_alive = state.db.get(Key::Session(session)) == ALIVE;
                let is_notified = state.db.get(Key::Grant(session)) == SIGNAL;
                !(is_notified && is_over && is_alive)
            })
        }),
        Property::always(ONCE, |_, state: &ModelState| {
            (0..ITEMS).all(|item| state.db.get(Key::Effect(item)) <= 1)
        }),
        Property::always(LATE_REFUSED, |_, state: &ModelState| {
            !state.acknowledged_late
        }),
        Property::always(LIVING_SPARED, |_, state: &ModelState| {
            (0..SESSIONS).all(|session| {
                let is_timely = state.sessions[session].process == Process::Timely;
                !is_timely || state.db.get(Key::Session(session)) == ALIVE
            })
        }),
        Property::always(IN_ORDER, |_, state: &ModelState| {
            !state.granted_out_of_order
        }),
        Property::always(PROGRESSES, |_, state: &ModelState| !state.made_no_progress),
        Property::always(NONE_IDLE, |_, state: &ModelState| {
            state.sessions.iter().all(|memory| {
                memory.reserve == [ABSENT; ITEMS] || memory.deliveries != [ABSENT; ITEMS]
            })
        }),
        Property::always(NOT_KEPT, |_, state: &ModelState| !state.kept_reserve),
        Property::always(FINISHES, |protocol: &Protocol, state: &ModelState| {
            has_long(state) || is_finished(protocol, state) || can_go_on(protocol, state)
        }),
        Property::always(LONG_ALONE, |protocol: &Protocol, state: &ModelState| {
            !has_long(state) || is_finished(protocol, state) || can_go_on(protocol, state)
        }),
    ]
}

/// Returns the number of places in which an item is.
fn place_count(db: &Database, item: usize) -> usize {
    let held = (0..SESSIONS).map(|session| Key::Held(session, item));
    let places = held.chain([Key::Item(item), Key::Effect(item)]);
    places.filter(|key| db.has(*key)).count()
}

/// Returns whether a session neither holds an item nor was granted one.
fn has_nothing(db: &Database, session: usize) -> bool {
    let held = (0..ITEMS).map(|item| Key::Held(session, item));
    !held.chain([Key::Grant(session)]).any(|key| db.has(key))
}

/// Returns whether a handler never ends.
fn has_long(state: &ModelState) -> bool {
    state.sessions.iter().any(|memory| memory.is_stuck)
}

/// Returns whether an item has taken effect, or is held by a handler that never ends.
fn is_done(state: &ModelState, item: usize) -> bool {
    let is_stuck = |session: usize| {
        let memory = &state.sessions[session];
        let held = state.db.get(Key::Held(session, item));
        memory.is_stuck && held != ABSENT && held == memory.deliveries[item]
    };
    state.db.has(Key::Effect(item)) || (0..SESSIONS).any(is_stuck)
}

/// Returns whether every enqueued item is done, and every session whose heartbeats have stopped is removed.
fn is_finished(protocol: &Protocol, state: &ModelState) -> bool {
    let mut gone =
        (0..SESSIONS).filter(|session| state.sessions[*session].process != Process::Timely);
    let mut enqueued = protocol.enqueued(state);
    enqueued.all(|item| is_done(state, item))
        && gone.all(|session| !state.db.has(Key::Session(session)))
}

/// Returns whether there is a step that must happen: it uses nothing of the budget, it is not a step of a process that
/// has fallen silent, and not a commit that may be lost. Without doubts, the commits adrift are those of transactions
/// that remove a session, which any other session repeats.
fn can_go_on(protocol: &Protocol, state: &ModelState) -> bool {
    let is_late = |me: usize| state.sessions[me].process != Process::Timely;
    let mut steps = protocol.steps(state);
    steps.retain(|step| match step {
        ModelStep::Land(_) => protocol.budget.doubts == 0,
        ModelStep::Dispatch(me, _) | ModelStep::Handle(me, ..) | ModelStep::Live(me, _) => {
            !is_late(*me)
        }
        _ => true,
    });
    let mut next = steps
        .into_iter()
        .filter_map(|step| protocol.after(state, step));
    next.any(|next| next.budget == state.budget)
}

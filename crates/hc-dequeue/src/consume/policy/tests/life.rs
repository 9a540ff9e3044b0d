//! The life and death of a session, and the steps of other sessions after its death.

use super::database::{ABSENT, ALIVE, DEAD, Database, ITEMS, Key, SESSIONS, Staged};
use super::dispatcher::{Measured, pace};
use super::protocol::Action;
use super::state::{Memory, ModelState, Process};
use super::steps::{self, Protocol};
use crate::consume::policy::{Event, Facts, Step, Wants};

/// A step in the life of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Live {
    /// The heartbeats of the process stop arriving.
    FallSilent,
    /// `session::beat`, by a process that comes back late.
    Beat,
    /// A process begins to shut down while it has a reserve. Its handler may still end.
    Close,
    /// `session::end`, by a process that shuts down properly.
    End,
}

/// A step of another session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reclaim {
    /// `reclaim::declare_dead`.
    DeclareDead,
    /// `reclaim::reclaim_items`.
    ReturnItems,
    /// `reclaim::remove_requests` and `reclaim::remove_session`, by a session that leads afterwards if it has removed a
    /// request.
    RemoveSession(usize),
}

impl Protocol {
    /// Adds the steps in the life of a session. The heartbeats of at least one process always arrive, and its handler
    /// ends: otherwise no session could finish the work.
    pub(super) fn steps_of_life(
        &self,
        state: &ModelState,
        me: usize,
        steps: &mut Vec<steps::ModelStep>,
    ) {
        let mut add = |step| steps.push(steps::ModelStep::Live(me, step));
        let memory = &state.sessions[me];
        let serves = |session: &usize| state.sessions[*session].serves();
        let has_other = (0..SESSIONS).filter(serves).any(|other| other != me);
        match memory.process {
            Process::Timely if has_other => {
                if state.budget.deaths > 0 {
                    add(Live::FallSilent);
                }
                // A session that ends during a transaction is like one that falls silent.
                let is_draining = memory.policy.is_draining;
                let has_reserve = memory.reserve != [ABSENT; ITEMS];
                let is_chosen = is_draining || state.budget.endings > 0;
                if is_chosen && memory.in_flight.is_none() && self.may_end(state, me) {
                    add(if has_reserve && !is_draining {
                        Live::Close
                    } else {
                        Live::End
                    });
                }
            }
            Process::Late if state.db.get(Key::Session(me)) == ALIVE => add(Live::Beat),
            Process::Timely | Process::Late | Process::Gone => {}
        }
    }

    /// Returns whether a session that is to end has nothing left to do.
    fn may_end(&self, state: &ModelState, me: usize) -> bool {
        let mut policy = state.sessions[me].policy;
        policy.on(Event::Closing, pace(false));
        let facts = Facts {
            wants: Wants::Nothing,
            ..self.facts(state, me, Measured::default())
        };
        policy.next(facts) == Step::Rest
    }

    /// Performs a step in the life of a session. Returns `None` if it finds nothing to do.
    pub(super) fn live(
        &self,
        db: &Database,
        next: &mut ModelState,
        me: usize,
        step: Live,
    ) -> Option<()> {
        match step {
            Live::FallSilent => {
                next.sessions[me].process = Process::Late;
                next.budget.deaths -= 1;
            }
            Live::Beat => {
                next.sessions[me].process = Process::Timely;
                next.commit(&self.functions.stage(db, me, Action::Beat)?);
            }
            Live::Close => {
                next.budget.endings -= 1;
                next.report(me, Event::Draining, false);
            }
            Live::End => {
                if !next.sessions[me].policy.is_draining {
                    next.budget.endings -= 1;
                }
                next.commit(&self.functions.stage(db, me, Action::End)?);
                next.sessions[me] = Memory::gone();
            }
        }
        Some(())
    }

    /// Adds the steps that reclaim a session. Only a session that removes a request remembers it. For all other
    /// steps, it does not matter which of the other sessions performs them.
    pub(super) fn steps_of_reclaim(
        &self,
        state: &ModelState,
        session: usize,
        steps: &mut Vec<steps::ModelStep>,
    ) {
        let mut add = |step| steps.push(steps::ModelStep::Reclaim(session, step));
        let is_other = |other: &usize| *other != session && state.sessions[*other].runs();
        let mut others: Vec<_> = (0..self.session_count).filter(is_other).collect();
        if others.is_empty() {
            return;
        }
        match state.db.get(Key::Session(session)) {
            ALIVE if state.sessions[session].process != Process::Timely => {
                add(Reclaim::DeclareDead);
            }
            DEAD => {
                add(Reclaim::ReturnItems);
                if !state.is_first(session) && !state.budget.stranger {
                    others.truncate(1);
                }
                others
                    .into_iter()
                    .for_each(|other| add(Reclaim::RemoveSession(other)));
            }
            _ => {}
        }
    }

    /// Performs a step that reclaims a session. Returns `None` if it finds nothing to do.
    pub(super) fn reclaim(
        &self,
        db: &Database,
        next: &mut ModelState,
        session: usize,
        step: Reclaim,
    ) -> Option<()> {
        let stage = |action| self.functions.stage(db, session, action);
        let staged = match step {
            Reclaim::DeclareDead => stage(Action::DeclareDead),
            Reclaim::ReturnItems => stage(Action::ReturnItems),
            Reclaim::RemoveSession(by) => {
                let from_afar = next.is_stranger(by) != next.is_stranger(session);
                let staged = stage(Action::Remove { from_afar })?;
                if from_afar {
                    let is_first = !next.is_being_removed(session);
                    return is_first.then(|| run_unobserved(next, staged))?;
                }
                let has_removed = staged.written(Key::Request(session)).is_some();
                if has_removed && next.sessions[by].in_flight.is_some() {
                    return None;
                }
                run_unobserved(next, staged)?;
                if has_removed {
                    next.report(by, Event::Reclaimed, false);
                }
                return Some(());
            }
        };
        run_unobserved(next, staged?)
    }
}

/// Runs a transaction whose outcome is not needed. If it is not serializable, it may land at any later time. Returns
/// `None` if the same transaction is already in flight.
fn run_unobserved(next: &mut ModelState, staged: Staged) -> Option<()> {
    if staged.is_serializable() {
        next.commit(&staged);
    } else if let Err(place) = next.adrift.binary_search(&staged) {
        next.adrift.insert(place, staged);
    } else {
        return None;
    }
    Some(())
}

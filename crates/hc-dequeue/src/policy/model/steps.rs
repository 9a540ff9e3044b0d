//! The model: which step can happen when, and what it does.

use std::ops::Range;

use stateright::{Model, Property};

use super::database::Key;
use super::dispatcher::Dispatch;
use super::handler::Handle;
use super::life::{Live, Reclaim};
use super::progress::work_left;
use super::promises;
use super::protocol::{self, Rules};
use super::state::{Budget, State};
use crate::policy::Fault;

/// The model: the rules of the protocol, and how much happens.
#[derive(Debug, Clone)]
pub(super) struct Protocol {
    pub(super) rules: Rules,
    pub(super) session_count: usize,
    pub(super) budget: Budget,
    /// The rule of the policy that is broken.
    pub(super) fault: Option<Fault>,
}

/// A step: a transaction that begins, a commit, or something that happens to a process. A transaction
/// that is serializable commits as it begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// `enqueue`, of the next item.
    Enqueue,
    /// `pause`.
    Pause,
    /// `resume`.
    Resume,
    /// A session's dispatcher does something.
    Dispatch(usize, Dispatch),
    /// A session's handler of an item does something.
    Handle(usize, usize, Handle),
    /// Something happens between life and death of a session.
    Live(usize, Live),
    /// Somebody does something about a session that seems dead.
    Reclaim(usize, Reclaim),
    /// One of the commits lands of which nobody will learn.
    Land(usize),
    /// One of them is lost.
    Lose(usize),
}

impl Model for Protocol {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![State::new(self.session_count, self.budget, self.fault)]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        if state.budget.arrivals > 0 {
            steps.push(Step::Enqueue);
        }
        if state.db.has(Key::Pause) {
            steps.push(Step::Resume);
        } else if state.budget.pauses > 0 {
            steps.push(Step::Pause);
        }
        for (place, _) in state.adrift.iter().enumerate() {
            steps.extend([Step::Land(place), Step::Lose(place)]);
        }
        for session in 0..self.session_count {
            if state.sessions[session].runs() {
                self.steps_of_dispatcher(state, session, steps);
                self.steps_of_handlers(state, session, steps);
                self.steps_of_life(state, session, steps);
            }
            self.steps_of_reclaim(state, session, steps);
        }
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let next = self.after(last, step)?;
        assert!(
            self.is_broken() || work_left(self, &next) < work_left(self, last),
            "{step:?} makes no progress: {last:#?}"
        );
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        promises::all()
    }
}

impl Protocol {
    /// Returns whether a rule is broken.
    fn is_broken(&self) -> bool {
        self.fault.is_some() || self.rules.mistake.is_some()
    }

    /// Returns the state after a step; `None` if it finds nothing to do.
    pub(super) fn after(&self, last: &State, step: Step) -> Option<State> {
        let (db, mut next) = (&last.db, last.clone());
        match step {
            Step::Enqueue => {
                let item = self.enqueued(last).end;
                next.budget.arrivals -= 1;
                next.commit(&protocol::enqueue(db, self.rules, item)?);
            }
            Step::Pause => {
                next.budget.pauses -= 1;
                next.commit(&protocol::pause(db)?);
            }
            Step::Resume => next.commit(&protocol::resume(db)?),
            Step::Dispatch(me, step) => self.dispatch(db, &mut next, me, step)?,
            Step::Handle(me, item, step) => self.handle(db, &mut next, me, item, step),
            Step::Live(me, step) => self.live(db, &mut next, me, step)?,
            Step::Reclaim(session, step) => self.reclaim(db, &mut next, session, step)?,
            Step::Land(place) => {
                let staged = next.adrift.remove(place);
                next.commit(&staged);
            }
            Step::Lose(place) => {
                next.adrift.remove(place);
            }
        }
        Some(next)
    }

    /// Returns the items that were enqueued.
    pub(super) fn enqueued(&self, state: &State) -> Range<usize> {
        0..self.budget.arrivals - state.budget.arrivals
    }
}

//! The model: when each step can happen, and its effect.

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

/// The model: the rules of the protocol, and the budget.
#[derive(Debug, Clone)]
pub(super) struct Protocol {
    pub(super) rules: Rules,
    pub(super) session_count: usize,
    pub(super) budget: Budget,
    /// The rule of the policy that is broken, if any.
    pub(super) fault: Option<Fault>,
}

/// A step: the begin of a transaction, a commit, or an event in a process. A serializable transaction commits in the
/// step in which it begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// `enqueue`, of the next item.
    Enqueue,
    /// `pause`.
    Pause,
    /// `resume`.
    Resume,
    /// The dispatcher of a session takes a step.
    Dispatch(usize, Dispatch),
    /// The handler of an item takes a step in a session.
    Handle(usize, usize, Handle),
    /// An event in the life of a session.
    Live(usize, Live),
    /// Another session takes a step to reclaim a session that seems dead.
    Reclaim(usize, Reclaim),
    /// A commit whose outcome no process will learn succeeds.
    Land(usize),
    /// Such a commit is lost.
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

    /// Returns the state after a step, or `None` if the step finds nothing to do.
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

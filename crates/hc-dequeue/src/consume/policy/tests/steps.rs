//! The model: when each step can happen, and its effect.

use std::ops::Range;
use std::sync::Arc;

use stateright::{Model, Property};

use super::database::Key;
use super::dispatcher::Dispatch;
use super::handler::HandlerStep;
use super::life::{Live, Reclaim};
use super::policy_bug::PolicyBug;
use super::progress;
use super::promises;
use super::protocol::{Action, Functions};
use super::state::{Budget, ModelState};

/// The model: the functions of the protocol, and the budget.
#[derive(Clone)]
pub(super) struct Protocol {
    pub(super) functions: Arc<Functions>,
    pub(super) session_count: usize,
    pub(super) budget: Budget,
    /// The rule of the policy that is broken, if any.
    pub(super) policy_bug: Option<PolicyBug>,
    /// Whether the timers of a healthy queue run out at once.
    pub(super) is_hurried: bool,
}

/// A step: the begin of a transaction, a commit, or an event in a process. A serializable transaction commits in the
/// step in which it begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ModelStep {
    /// `enqueue`, of the next item.
    Enqueue,
    /// `pause`.
    Pause,
    /// `resume`.
    Resume,
    /// A notice is written of a lane without anything to grant.
    Notice,
    /// The dispatcher of a session takes a step.
    Dispatch(usize, Dispatch),
    /// The handler of an item takes a step in a session.
    Handle(usize, usize, HandlerStep),
    /// An event in the life of a session.
    Live(usize, Live),
    /// Another session takes a step to reclaim a session that seems dead.
    Reclaim(usize, Reclaim),
    /// A commit whose outcome no process will learn succeeds. It need not ever do so.
    Land(usize),
}

/// A step, and the sessions whose transactions begin right before it.
///
/// A transaction that does not commit in the step in which it begins, begins right before the first step that makes a
/// difference to it: with which it fails, or after which it would stage something else. If it began earlier, it would
/// stage the same, and other processes would not see that it has begun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Move {
    /// With each session, whether its transaction also takes an item for the reserve.
    begins: Vec<(usize, bool)>,
    pub(super) step: ModelStep,
}

impl Model for Protocol {
    type State = ModelState;
    type Action = Move;

    fn init_states(&self) -> Vec<ModelState> {
        vec![ModelState::new(
            &self.functions,
            self.session_count,
            self.budget,
            self.policy_bug,
        )]
    }

    fn actions(&self, state: &ModelState, moves: &mut Vec<Move>) {
        let may_begin = |(me, is_low): &(usize, bool)| {
            state.sessions[*me].in_flight.is_none() && self.begins(state, *me, *is_low).is_some()
        };
        let all = (0..self.session_count).flat_map(|me| [(me, false), (me, true)]);
        let transactions: Vec<_> = all.filter(may_begin).collect();
        for step in self.steps(state) {
            for chosen in 0..1 << transactions.len() {
                let is_chosen = |place: &usize| chosen & (1 << place) != 0;
                let places = (0..transactions.len()).filter(is_chosen);
                let begins: Vec<_> = places.map(|place| transactions[place]).collect();
                if begins.is_sorted_by(|(one, _), (next, _)| one < next) {
                    moves.push(Move { begins, step });
                }
            }
        }
    }

    fn next_state(&self, last: &ModelState, action: Move) -> Option<ModelState> {
        let mut next = self.after_move(last, &action)?;
        next.made_no_progress |= !progress::is_less(self, &next, last);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        promises::all()
    }
}

impl Protocol {
    /// Returns all steps.
    pub(super) fn steps(&self, state: &ModelState) -> Vec<ModelStep> {
        let mut steps = Vec::new();
        if state.budget.arrivals > 0 {
            steps.push(ModelStep::Enqueue);
        }
        if state.db.has(Key::Pause) {
            steps.push(ModelStep::Resume);
        } else if state.budget.pauses > 0 {
            steps.push(ModelStep::Pause);
        }
        if state.budget.notices > 0 {
            steps.push(ModelStep::Notice);
        }
        steps.extend((0..state.adrift.len()).map(ModelStep::Land));
        for session in 0..self.session_count {
            if state.sessions[session].runs() && !state.is_powerless(session) {
                self.steps_of_dispatcher(state, session, &mut steps);
                self.steps_of_handlers(state, session, &mut steps);
                self.steps_of_life(state, session, &mut steps);
            }
            self.steps_of_reclaim(state, session, &mut steps);
        }
        steps
    }

    /// Returns the state after a move, or `None` if its step finds nothing to do, or if a transaction begins before it
    /// without need.
    fn after_move(&self, last: &ModelState, action: &Move) -> Option<ModelState> {
        let mut begun = last.clone();
        for (me, is_low) in &action.begins {
            let step_of_dispatcher = match action.step {
                ModelStep::Dispatch(by, _) | ModelStep::Live(by, Live::Close | Live::End) => {
                    Some(by)
                }
                _ => None,
            };
            let has_room = !is_low || begun.budget.ahead > 0;
            if step_of_dispatcher == Some(*me) || !has_room {
                return None;
            }
            let (staged, demand) = self.stages(last, *me, *is_low)?;
            begun.begin(*me, staged, demand);
        }
        let next = self.after(&begun, action.step)?;
        let is_needed = |(me, is_low): &(usize, bool)| {
            let in_flight = next.sessions[*me].in_flight;
            let stages = self.stages(&next, *me, *is_low);
            in_flight.is_none() || in_flight != stages.map(|(staged, _)| staged)
        };
        action.begins.iter().all(is_needed).then_some(next)
    }

    /// Returns the state after a step, or `None` if the step finds nothing to do.
    pub(super) fn after(&self, last: &ModelState, step: ModelStep) -> Option<ModelState> {
        let db = &last.db;
        let mut next = last.clone();
        match step {
            ModelStep::Enqueue => {
                next.budget.arrivals -= 1;
                next.commit(&self.functions.stage(db, 0, Action::Enqueue)?);
            }
            ModelStep::Pause => {
                next.budget.pauses -= 1;
                next.commit(&self.functions.stage(db, 0, Action::Pause)?);
            }
            ModelStep::Notice => {
                next.budget.notices -= 1;
                next.commit(&self.functions.stage(db, 0, Action::Notice)?);
            }
            ModelStep::Resume => next.commit(&self.functions.stage(db, 0, Action::Resume)?),
            ModelStep::Dispatch(me, step) => self.dispatch(db, &mut next, me, step)?,
            ModelStep::Handle(me, item, step) => self.handle(db, &mut next, me, item, step),
            ModelStep::Live(me, step) => self.live(db, &mut next, me, step)?,
            ModelStep::Reclaim(session, step) => self.reclaim(db, &mut next, session, step)?,
            ModelStep::Land(place) => {
                let staged = next.adrift.remove(place);
                next.commit(&staged);
            }
        }
        self.normalize(&mut next);
        Some(next)
    }

    /// Returns the items that were enqueued.
    pub(super) fn enqueued(&self, state: &ModelState) -> Range<usize> {
        0..self.budget.arrivals - state.budget.arrivals
    }
}

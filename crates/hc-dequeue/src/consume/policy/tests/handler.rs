//! The handlers of deliveries, which run concurrently with the dispatcher.

use super::database::{ABSENT, Database, ITEMS, Key, SESSIONS};
use super::policy_bug::PolicyBug;
use super::protocol::Action;
use super::state::ModelState;
use super::steps::{ModelStep, Protocol};

/// A step of the handler of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HandlerStep {
    /// `delivery::ack`, of a delivery that the process considers its own.
    Acknowledge,
    /// It turns out that the handler never ends.
    Stick,
    /// The delivery lapses while the handler continues: it is leaked, or its time limit passes.
    Lapse,
    /// `delivery::ack`, after the delivery has lapsed.
    AcknowledgeLapsed,
    /// After the delivery has lapsed, the handler ends without an acknowledgement, or with one that fails.
    Abandon,
}

impl Protocol {
    /// Adds the steps that handlers of a session can take.
    pub(super) fn steps_of_handlers(
        &self,
        state: &ModelState,
        me: usize,
        steps: &mut Vec<ModelStep>,
    ) {
        let memory = &state.sessions[me];
        let mut others = (0..SESSIONS).filter(|other| *other != me);
        let may_stick = state.budget.long > 0
            && !memory.is_stuck
            && others.any(|other| state.sessions[other].serves());
        for item in 0..ITEMS {
            let mut add = |step| steps.push(ModelStep::Handle(me, item, step));
            if memory.deliveries[item] != ABSENT {
                if !memory.is_stuck {
                    add(HandlerStep::Acknowledge);
                }
                if may_stick {
                    add(HandlerStep::Stick);
                }
                if state.budget.lapses > 0 {
                    add(HandlerStep::Lapse);
                }
            }
            if memory.lapsed[item] != ABSENT {
                add(HandlerStep::AcknowledgeLapsed);
                add(HandlerStep::Abandon);
            }
        }
    }

    /// Performs a step of a handler.
    pub(super) fn handle(
        &self,
        db: &Database,
        next: &mut ModelState,
        me: usize,
        item: usize,
        step: HandlerStep,
    ) {
        let memory = &mut next.sessions[me];
        match step {
            HandlerStep::Acknowledge => {
                let number = std::mem::take(&mut memory.deliveries[item]);
                self.acknowledge(db, next, me, item, number);
                self.look_into_reserve(next, me);
            }
            HandlerStep::Stick => {
                memory.is_stuck = true;
                next.budget.long -= 1;
            }
            HandlerStep::Lapse => {
                memory.lapsed[item] = std::mem::take(&mut memory.deliveries[item]);
                memory.is_stuck = false;
                next.budget.lapses -= 1;
                self.look_into_reserve(next, me);
            }
            HandlerStep::AcknowledgeLapsed => {
                let number = std::mem::take(&mut memory.lapsed[item]);
                self.acknowledge(db, next, me, item, number);
            }
            HandlerStep::Abandon => memory.lapsed[item] = ABSENT,
        }
    }

    /// Has the handler of a session that has become free take the next item from the reserve.
    fn look_into_reserve(&self, next: &mut ModelState, me: usize) {
        if self.policy_bug != Some(PolicyBug::ReserveUnseen) {
            next.sessions[me].take_from_reserve();
        }
    }

    /// Acknowledges an item under the number of a grant, unless it is refused.
    fn acknowledge(
        &self,
        db: &Database,
        next: &mut ModelState,
        me: usize,
        item: usize,
        number: u8,
    ) {
        let acknowledge = Action::Acknowledge { item, number };
        if let Some(staged) = self.functions.stage(db, me, acknowledge) {
            next.acknowledged_late |= db.get(Key::Held(me, item)) != number;
            next.commit(&staged);
        }
    }
}

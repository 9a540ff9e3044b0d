//! The handlers of deliveries, which run concurrently with the dispatcher.

use super::database::{ABSENT, Database, ITEMS, Key};
use super::protocol::Action;
use super::state::State;
use super::steps::{Protocol, Step};

/// A step of the handler of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Handle {
    /// `delivery::ack`, of a delivery that the process considers its own.
    Acknowledge,
    /// The delivery lapses while the handler continues: it is leaked, or its time limit passes.
    Lapse,
    /// `delivery::ack`, after the delivery has lapsed.
    AcknowledgeLapsed,
    /// After the delivery has lapsed, the handler ends without an acknowledgement, or with one that fails.
    Abandon,
}

impl Protocol {
    /// Adds the steps that handlers of a session can take.
    pub(super) fn steps_of_handlers(&self, state: &State, me: usize, steps: &mut Vec<Step>) {
        let memory = &state.sessions[me];
        for item in 0..ITEMS {
            let mut add = |step| steps.push(Step::Handle(me, item, step));
            if memory.deliveries[item] != ABSENT {
                add(Handle::Acknowledge);
                if state.budget.lapses > 0 {
                    add(Handle::Lapse);
                }
            }
            if memory.lapsed[item] != ABSENT {
                add(Handle::AcknowledgeLapsed);
                add(Handle::Abandon);
            }
        }
    }

    /// Performs a step of a handler.
    pub(super) fn handle(
        &self,
        db: &Database,
        next: &mut State,
        me: usize,
        item: usize,
        step: Handle,
    ) {
        let memory = &mut next.sessions[me];
        match step {
            Handle::Acknowledge => {
                let number = std::mem::take(&mut memory.deliveries[item]);
                self.acknowledge(db, next, me, item, number);
            }
            Handle::Lapse => {
                memory.lapsed[item] = std::mem::take(&mut memory.deliveries[item]);
                next.budget.lapses -= 1;
            }
            Handle::AcknowledgeLapsed => {
                let number = std::mem::take(&mut memory.lapsed[item]);
                self.acknowledge(db, next, me, item, number);
            }
            Handle::Abandon => memory.lapsed[item] = ABSENT,
        }
    }

    /// Acknowledges an item under the number of a grant, unless it is refused.
    fn acknowledge(&self, db: &Database, next: &mut State, me: usize, item: usize, number: u8) {
        let acknowledge = Action::Acknowledge { item, number };
        if let Some(staged) = self.functions.stage(db, me, acknowledge) {
            next.acknowledged_late |= db.get(Key::Held(me, item)) != number;
            next.commit(&staged);
        }
    }
}

//! States that cannot be distinguished by what follows, and the one that represents them.

use stateright::Representative;

use super::database::{ABSENT, ALIVE, ITEMS, Key, Names, SESSIONS};
use super::dispatcher::Measured;
use super::protocol::OwnDemand;
use super::state::{Memory, ModelState, Process};
use super::steps::Protocol;
use crate::consume::policy::request::{OwnRequest, Stage};
use crate::consume::policy::{Event, Phase, Reason, Step, Timer, Wants};

impl Protocol {
    /// Replaces the memory of processes that makes no difference any more. The representative also renames sessions;
    /// unlike that, this is done to the states themselves, so that their steps show it.
    pub(super) fn normalize(&self, state: &mut ModelState) {
        for me in 0..self.session_count {
            if self.is_hurried {
                state.report(me, Event::Elapsed(Timer::Answer), false);
                state.report(me, Event::Elapsed(Timer::Grace), false);
            }
            state.review(me);
            self.rest(state, me);
            state.forget_reason(me);
            state.forget_deliveries(me);
            state.end_hurry(me);
            if state.is_powerless(me) {
                let bug = state.sessions[me].policy.bug;
                state.sessions[me] = Memory {
                    process: Process::Late,
                    ..Memory::new(bug)
                };
            }
        }
    }

    /// Has the policy of a session that wants nothing find this out, as it does at the next turn of its dispatcher.
    fn rest(&self, state: &mut ModelState, me: usize) {
        let mut policy = state.sessions[me].policy;
        let may_rest = matches!(policy.phase, Phase::Registering | Phase::Pausing);
        if !may_rest || state.sessions[me].in_flight.is_some() {
            return;
        }
        let facts = self.facts(state, me, Measured::default());
        if facts.wants == Wants::Nothing && policy.next(facts) == Step::Rest {
            state.sessions[me].policy = policy;
        }
    }
}

impl ModelState {
    /// Has the dispatcher review its reserve, as it does at every turn. Forgets whether there may be more items if none
    /// can be taken ahead any more, whether the handler that never ends was there, and for whom the last transaction
    /// took items.
    fn review(&mut self, session: usize) {
        let memory = &mut self.sessions[session];
        if memory.in_flight.is_none() {
            memory.review_reserve(false);
            memory.demand = OwnDemand::default();
            let has_reserve = memory.reserve != [ABSENT; ITEMS];
            self.kept_reserve |= has_reserve && memory.must_have_no_reserve();
        }
        memory.policy.real.has_more &= self.budget.ahead > 0;
        memory.is_stuck &= memory.deliveries != [ABSENT; ITEMS];
    }

    /// Forgets why a session checks its request, once this is answered: the check takes over the answer in any case,
    /// and the session then starts anew.
    fn forget_reason(&mut self, session: usize) {
        let is_answered = self.is_answered(session);
        let Phase::Waiting(request) = &mut self.sessions[session].policy.real.phase else {
            return;
        };
        if is_answered && matches!(request.stage, Stage::Checking(_)) {
            *request = OwnRequest {
                stage: Stage::Checking(Reason::Granted),
                ..OwnRequest::new(())
            };
        }
    }

    /// Forgets deliveries of a dead session that were returned to the queue. Nothing is granted to a dead session, so
    /// that it never holds these items again, and an acknowledgement never finds them. A handler that handles such an
    /// item is still busy, which matters while there are others in the reserve.
    fn forget_deliveries(&mut self, session: usize) {
        if self.db.get(Key::Session(session)) == ALIVE {
            return;
        }
        let is_returned = |item: &usize| !self.db.has(Key::Held(session, *item));
        let memory = &mut self.sessions[session];
        for item in (0..ITEMS).filter(is_returned) {
            memory.reserve[item] = ABSENT;
            memory.unused[item] = ABSENT;
            memory.lapsed[item] = ABSENT;
        }
        if memory.reserve == [ABSENT; ITEMS] {
            for item in (0..ITEMS).filter(is_returned) {
                memory.deliveries[item] = ABSENT;
            }
        }
    }

    /// Forgets that the time of a consumer is over, once it has an item.
    fn end_hurry(&mut self, session: usize) {
        let memory = &mut self.sessions[session];
        memory.is_hasty &= memory.deliveries == [ABSENT; ITEMS];
    }

    /// Returns whether a process can change nothing in the database any more, unless it reclaims another session. Its
    /// own session is dead and has neither a request nor an answer nor an item, and cannot get any. The process would
    /// only find this out.
    pub(super) fn is_powerless(&self, session: usize) -> bool {
        let memory = &self.sessions[session];
        memory.process == Process::Late
            && self.db.get(Key::Session(session)) != ALIVE
            && !self.db.has(Key::Request(session))
            && !self.is_answered(session)
            && !memory.policy.leads()
            && memory.in_flight.is_none()
            && memory.deliveries == [ABSENT; ITEMS]
            && memory.reserve == [ABSENT; ITEMS]
            && memory.unused == [ABSENT; ITEMS]
            && memory.lapsed == [ABSENT; ITEMS]
    }

    /// Returns a value that distinguishes sessions without their names.
    fn signature(&self, session: usize) -> impl Ord {
        let memory = self.sessions[session];
        let own = [
            Key::Session(session),
            Key::Request(session),
            Key::Ahead(session),
            Key::Grant(session),
        ];
        let held: [u8; ITEMS] = std::array::from_fn(|item| self.db.get(Key::Held(session, item)));
        let is_in_flight = memory.in_flight.is_some();
        let memory = Memory {
            in_flight: None,
            ..memory
        };
        (memory, own.map(|key| self.db.get(key)), held, is_in_flight)
    }
}

/// Sessions differ only by their names: of the states that differ only in these, one is enough. In the
/// representative, they are in the order of their signatures. If two signatures are equal, a state may have more than
/// one representative, which only costs time.
impl Representative for ModelState {
    fn representative(&self) -> Self {
        let mut order: [usize; SESSIONS] = std::array::from_fn(|session| session);
        let alike = usize::from(self.budget.stranger)..;
        order[alike].sort_by_key(|session| self.signature(*session));
        let mut names: Names = [0; SESSIONS];
        for (name, session) in order.into_iter().enumerate() {
            names[session] = name;
        }
        let mut adrift: Vec<_> = self.adrift.iter().map(|tr| tr.renamed(&names)).collect();
        adrift.sort_unstable();
        ModelState {
            db: self.db.renamed(&names),
            sessions: order.map(|session| {
                let memory = self.sessions[session];
                let in_flight = memory.in_flight.map(|staged| staged.renamed(&names));
                Memory {
                    in_flight,
                    ..memory
                }
            }),
            adrift,
            ..*self
        }
    }
}

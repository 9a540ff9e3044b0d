//! A state of the model: committed data, transactions in flight, and the memory of each process.

use super::database::{ABSENT, Database, ITEMS, Key, SESSIONS, SIGNAL, STRANGER, Staged};
use super::dispatcher::pace;
use super::policy_bug::{BuggyPolicy, PolicyBug};
use super::protocol::{Action, Functions, OwnDemand};
use crate::consume::policy::{Event, Phase};
use crate::protocol::request::Woken;

/// How often each optional event may still happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Budget {
    /// Items that may still be enqueued.
    pub(super) arrivals: usize,
    /// Processes that may still miss their heartbeats: they crash, or pause and come back late.
    pub(super) deaths: usize,
    /// Takes and fulfillments whose outcome a living process may still stop waiting for.
    pub(super) doubts: usize,
    /// Deliveries that a process may still lose while a handler continues: the time limit passes, or the delivery is
    /// leaked.
    pub(super) lapses: usize,
    /// Requests that may still be withdrawn.
    pub(super) withdrawals: usize,
    /// Sessions that may still end properly, with no commit in doubt.
    pub(super) endings: usize,
    /// How often the queue may still be paused.
    pub(super) pauses: usize,
    /// Requests that may still be registered in the transaction that collects an answer.
    pub(super) asks: usize,
    /// Consumers whose time may still be over before they have an item.
    pub(super) hurries: usize,
    /// Transactions that may still take one item more than the consumer wants, for the reserve.
    pub(super) ahead: usize,
    /// Handlers that may still turn out never to end.
    pub(super) long: usize,
    /// Notices that may still be written of lanes without anything to grant, one at most: its value is not modeled.
    pub(super) notices: usize,
    /// Whether an item of a kind that no session takes is the first in the queue, from the beginning to the end.
    pub(super) unknown: bool,
    /// Whether the session [`STRANGER`] takes items of a kind of which none comes. Its registry is its own.
    pub(super) stranger: bool,
}

impl Budget {
    /// Returns the total that is left. A hurry counts twice: when it begins, and when it ends. An item for the reserve
    /// counts for all the steps until it has left the reserve.
    pub(super) fn sum(&self) -> usize {
        self.arrivals
            + self.deaths
            + self.doubts
            + self.lapses
            + self.withdrawals
            + self.endings
            + self.pauses
            + self.asks
            + 2 * self.hurries
            + 3 * self.ahead
            + self.long
            + self.notices
    }
}

/// Whether a process runs, and whether other sessions can see that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Process {
    /// Its heartbeats arrive.
    Timely,
    /// Its last heartbeat is old. Its steps may happen at any later time. A process that takes none has crashed.
    Late,
    /// It has ended.
    Gone,
}

/// The event that wakes a session that sleeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum ModelWatch {
    /// Its grant.
    Grant,
    /// Its grant, or a write of the wake stamp.
    GrantOrWake,
    /// The end of the pause.
    Resumed,
}

/// A process, and its memory of its session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Memory {
    pub(super) process: Process,
    /// The deliveries that the process considers its own, by the numbers of their grants.
    pub(super) deliveries: [u8; ITEMS],
    /// The items in its reserve, by the numbers of their grants.
    pub(super) reserve: [u8; ITEMS],
    /// The items that it is about to give back because they have left the reserve unused, by the numbers of their
    /// grants.
    pub(super) unused: [u8; ITEMS],
    /// Whether its handler never ends.
    pub(super) is_stuck: bool,
    /// Deliveries that only a handler still knows, which may acknowledge them.
    pub(super) lapsed: [u8; ITEMS],
    /// Its next step, decided by the policy of the crate.
    pub(super) policy: BuggyPolicy,
    /// Its consumer has gone, and comes back when the session does not lead.
    pub(super) has_left: bool,
    /// The time of its consumer is over: the consumer leaves as soon as a check has found no item.
    pub(super) is_hasty: bool,
    /// The watch that wakes it while it sleeps.
    pub(super) watches: Option<ModelWatch>,
    /// The transaction that the process is about to commit. It may not have sent it yet, or may not know the outcome.
    pub(super) in_flight: Option<Staged>,
    /// For whom the transaction in flight takes items.
    pub(super) demand: OwnDemand,
}

impl Memory {
    /// Returns the memory of a process that has just started, whose policy may have a planted bug.
    pub(super) fn new(policy_bug: Option<PolicyBug>) -> Self {
        let mut policy = BuggyPolicy::new(policy_bug);
        policy.on(Event::SessionOpened, pace(false));
        Memory {
            process: Process::Timely,
            deliveries: [ABSENT; ITEMS],
            reserve: [ABSENT; ITEMS],
            unused: [ABSENT; ITEMS],
            is_stuck: false,
            lapsed: [ABSENT; ITEMS],
            policy,
            has_left: false,
            is_hasty: false,
            watches: None,
            in_flight: None,
            demand: OwnDemand::default(),
        }
    }

    /// Returns the memory of a process that does not run.
    pub(super) fn gone() -> Self {
        Memory {
            process: Process::Gone,
            ..Memory::new(None)
        }
    }

    /// Returns whether the process runs.
    pub(super) fn runs(&self) -> bool {
        self.process != Process::Gone
    }

    /// Returns whether the process goes on taking and handling items, and others can see that.
    pub(super) fn serves(&self) -> bool {
        self.process == Process::Timely && !self.is_stuck && !self.policy.is_draining
    }

    /// Returns whether the dispatcher has seen something because of which it must have no reserve.
    pub(super) fn must_have_no_reserve(&self) -> bool {
        let phase = self.policy.phase;
        self.policy.is_draining || matches!(phase, Phase::Lost | Phase::Pausing | Phase::Paused)
    }

    /// Turns the reserve into items to give back, unless the policy keeps it. A session that is lost holds nothing that
    /// it could give back.
    pub(super) fn review_reserve(&mut self, is_overdue: bool) {
        let has_reserve = self.reserve != [ABSENT; ITEMS];
        if has_reserve && !self.policy.keeps_reserve(is_overdue) {
            for item in (0..ITEMS).filter(|item| self.reserve[*item] != ABSENT) {
                self.unused[item] = self.reserve[item];
            }
            self.reserve = [ABSENT; ITEMS];
        }
        if self.policy.phase == Phase::Lost {
            self.unused = [ABSENT; ITEMS];
        }
    }

    /// Has the handler take the next item from the reserve, if it has none.
    pub(super) fn take_from_reserve(&mut self) {
        let ready = (0..ITEMS).find(|item| self.reserve[*item] != ABSENT);
        if self.deliveries == [ABSENT; ITEMS]
            && let Some(item) = ready
        {
            self.deliveries[item] = std::mem::take(&mut self.reserve[item]);
        }
    }
}

/// A state of the model.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct ModelState {
    pub(super) db: Database,
    pub(super) sessions: [Memory; SESSIONS],
    /// Commits in flight whose outcome no process will learn.
    pub(super) adrift: Vec<Staged>,
    pub(super) budget: Budget,
    /// A delivery was acknowledged under a number that was not that of the grant.
    pub(super) acknowledged_late: bool,
    /// An item was granted before an earlier queued item.
    pub(super) granted_out_of_order: bool,
    /// A dispatcher kept its reserve although it had seen something because of which it must have none.
    pub(super) kept_reserve: bool,
    /// A step left as much work as there was before it.
    pub(super) made_no_progress: bool,
}

impl ModelState {
    /// Returns the state in which `session_count` sessions are open and nothing else has happened.
    ///
    /// A session that is not open yet does not affect the steps of others. A process that is killed while it opens
    /// its session leaves the same state as one that is killed right after it.
    pub(super) fn new(
        functions: &Functions,
        session_count: usize,
        budget: Budget,
        policy_bug: Option<PolicyBug>,
    ) -> Self {
        let mut state = ModelState {
            db: Database::new(),
            sessions: std::array::from_fn(|_| Memory::gone()),
            adrift: Vec::new(),
            budget,
            acknowledged_late: false,
            granted_out_of_order: false,
            kept_reserve: false,
            made_no_progress: false,
        };
        for session in 0..session_count {
            let opened = functions.stage(&state.db, session, Action::Open);
            state.commit(&opened.expect("opening a session writes"));
            state.sessions[session] = Memory::new(policy_bug);
        }
        state
    }

    /// Commits a transaction, dooms those that it makes fail, and wakes sessions that watch its writes.
    pub(super) fn commit(&mut self, staged: &Staged) {
        let before = self.db;
        self.db.apply(staged);
        let is_woken = staged.written(Key::Wake);
        let is_resumed = staged.written(Key::Pause);
        for session in 0..SESSIONS {
            let grant = Key::Grant(session);
            let is_granted = self.db.has(grant) && self.db.get(grant) != before.get(grant);
            let memory = &mut self.sessions[session];
            let woken = match memory.watches {
                Some(ModelWatch::Grant | ModelWatch::GrantOrWake) if is_granted => {
                    Some(Woken::Granted)
                }
                Some(ModelWatch::GrantOrWake) if is_woken.is_some() => Some(Woken::Changed),
                Some(ModelWatch::Resumed) if is_resumed.is_some() => Some(Woken::Changed),
                _ => None,
            };
            let doomed = memory.in_flight.take_if(|other| staged.dooms(other));
            if let Some(woken) = woken {
                self.report(session, Event::Woken(woken), false);
            }
            if doomed.is_some() {
                let event = if self.sessions[session].policy.leads() {
                    Event::FulfillConflicted
                } else {
                    Event::Contended
                };
                self.report(session, event, true);
            }
        }
        self.adrift.retain(|other| !staged.dooms(other));
    }

    /// Reports an event to a session's policy.
    pub(super) fn report(&mut self, session: usize, event: Event<()>, is_contended: bool) {
        let memory = &mut self.sessions[session];
        memory.policy.on(event, pace(is_contended));
        if !memory.policy.is_asleep() {
            memory.watches = None;
        }
        memory.has_left &= memory.policy.leads();
    }

    /// Notes the items that a committed transaction has given to a session's process. If it `has_reserve`, only the
    /// first one is for its handler, if that has none. Returns how many items there are.
    pub(super) fn deliver(&mut self, session: usize, staged: &Staged, has_reserve: bool) -> usize {
        let grant = match staged.written(Key::Grant(session)) {
            Some(SIGNAL) | None => ABSENT,
            Some(grant) => grant,
        };
        let mut count = 0;
        for item in (0..ITEMS).filter(|item| grant & (1 << item) == 0) {
            if let Some(number) = staged.written(Key::Held(session, item)) {
                let memory = &mut self.sessions[session];
                let is_busy = memory.deliveries != [ABSENT; ITEMS];
                let place = if !has_reserve || !is_busy {
                    &mut memory.deliveries
                } else if memory.policy.keeps_reserve(false) {
                    &mut memory.reserve
                } else {
                    &mut memory.unused
                };
                place[item] = number;
                count += 1;
            }
        }
        count
    }

    /// Sets the commit in flight of a session adrift.
    pub(super) fn set_adrift(&mut self, session: usize) {
        self.adrift.extend(self.sessions[session].in_flight.take());
        self.adrift.sort_unstable();
    }

    /// Begins a transaction of a session, which has staged this for this demand.
    pub(super) fn begin(&mut self, session: usize, staged: Staged, demand: OwnDemand) {
        self.granted_out_of_order |= self.db.skips_an_item(&staged);
        self.budget.ahead -= usize::from(demand.reserve);
        self.sessions[session].in_flight = Some(staged);
        self.sessions[session].demand = demand;
    }

    /// Returns whether the session's request is the first in its registry.
    pub(super) fn is_first(&self, session: usize) -> bool {
        let rank = |session| self.db.get(Key::Request(session));
        let mut others = (0..SESSIONS).filter(|other| {
            self.is_stranger(*other) == self.is_stranger(session)
                && self.db.has(Key::Request(*other))
        });
        self.db.has(Key::Request(session)) && others.all(|other| rank(session) <= rank(other))
    }

    /// Returns whether the session takes items of another kind than the others.
    pub(super) fn is_stranger(&self, session: usize) -> bool {
        self.budget.stranger && session == STRANGER
    }

    /// Returns whether a transaction that removes the session is adrift.
    pub(super) fn is_being_removed(&self, session: usize) -> bool {
        let removes = |staged: &Staged| staged.written(Key::Session(session)) == Some(ABSENT);
        self.adrift.iter().any(removes)
    }

    /// Returns whether the session has no request, no answer and no delivery.
    pub(super) fn is_idle(&self, session: usize) -> bool {
        !self.db.has(Key::Request(session))
            && !self.is_answered(session)
            && self.sessions[session].deliveries == [ABSENT; ITEMS]
    }

    /// Returns whether the session's request was answered.
    pub(super) fn is_answered(&self, session: usize) -> bool {
        !matches!(self.db.get(Key::Grant(session)), ABSENT | SIGNAL)
    }

    /// Returns whether the session holds an item in the database of which its process does not know.
    pub(super) fn is_stray(&self, session: usize, item: usize) -> bool {
        let held = self.db.get(Key::Held(session, item));
        let memory = &self.sessions[session];
        held != ABSENT
            && held != memory.deliveries[item]
            && held != memory.reserve[item]
            && held != memory.unused[item]
            && self.db.get(Key::Grant(session)) & (1 << item) == 0
    }
}

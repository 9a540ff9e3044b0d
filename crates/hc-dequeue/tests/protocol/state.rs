//! A state of the model: what is committed, what is in flight, and what each process remembers.

use stateright::Representative;

use crate::database::{ABSENT, Database, FIRST, ITEMS, Key, Names, SESSIONS, Staged, TURN};
use crate::protocol;

/// How often what need not happen may still happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Budget {
    /// Items that may still be enqueued.
    pub(crate) arrivals: usize,
    /// Processes that still may miss their heartbeats: they crash, or pause and come back late.
    pub(crate) deaths: usize,
    /// Takes and fulfilments whose outcome a living process may still give up to learn.
    pub(crate) doubts: usize,
    /// Deliveries that may still be lost to their process while a handler goes on: the time limit
    /// passes, or the delivery is leaked.
    pub(crate) lapses: usize,
    /// Requests that may still be withdrawn.
    pub(crate) withdrawals: usize,
    /// Sessions that may still end as they should, with no commit in doubt.
    pub(crate) endings: usize,
    /// How often the queue may still be paused.
    pub(crate) pauses: usize,
    /// Requests that may still be registered in the transaction that collects an answer.
    pub(crate) asks: usize,
}

impl Budget {
    /// Returns how much is left in all.
    pub(crate) fn sum(&self) -> usize {
        self.arrivals
            + self.deaths
            + self.doubts
            + self.lapses
            + self.withdrawals
            + self.endings
            + self.pauses
            + self.asks
    }
}

/// Whether a process runs, and whether others can see that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Process {
    /// Its heartbeats arrive.
    Timely,
    /// Its last heartbeat is old. What it does may come at any later time.
    Late,
    /// It will do nothing any more.
    Gone,
}

/// For whom a session that leads takes items.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Lead {
    /// For whoever has a request, and then for itself.
    Everybody,
    /// For whoever has a request.
    OthersOnly,
    /// For nobody: it tells whoever is the first.
    HandOver,
}

/// What wakes the owner of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Watch {
    /// Its grant.
    Grant,
    /// Its grant, or a write of the wake stamp.
    GrantOrWake,
}

/// A process and what it remembers of its session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Memory {
    pub(crate) process: Process,
    /// The deliveries that the process counts as its own, by the numbers of their grants.
    pub(crate) deliveries: [u8; ITEMS],
    /// Deliveries that only a handler knows any more, which may still acknowledge them.
    pub(crate) lapsed: [u8; ITEMS],
    /// It has begun to change the registry, and has not found since that there is nothing to change.
    pub(crate) leads: Option<Lead>,
    /// It has found nothing to do for its request, and sleeps until this wakes it.
    pub(crate) watches: Option<Watch>,
    /// What the process is about to commit. It may not have sent it yet, or not know the outcome.
    pub(crate) in_flight: Option<Staged>,
}

impl Memory {
    /// Returns the memory of a process that has just begun.
    fn new() -> Self {
        Memory {
            process: Process::Timely,
            deliveries: [ABSENT; ITEMS],
            lapsed: [ABSENT; ITEMS],
            leads: None,
            watches: None,
            in_flight: None,
        }
    }

    /// Returns what is left of a process that does not run.
    pub(crate) fn gone() -> Self {
        Memory {
            process: Process::Gone,
            ..Memory::new()
        }
    }

    /// Returns whether the process runs.
    pub(crate) fn runs(&self) -> bool {
        self.process != Process::Gone
    }
}

/// A state of the model.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(crate) db: Database,
    pub(crate) sessions: [Memory; SESSIONS],
    /// Commits in flight whose outcome nobody will learn.
    pub(crate) adrift: Vec<Staged>,
    pub(crate) budget: Budget,
    /// A delivery was acknowledged under a number that was not that of the grant.
    pub(crate) acknowledged_late: bool,
    /// An item was granted before one that was queued before it.
    pub(crate) granted_out_of_order: bool,
}

impl State {
    /// Returns the state in which so many sessions are open and nothing else has happened.
    ///
    /// A session that is not yet open has nothing to do with anybody else's steps, and whoever is
    /// killed at its opening leaves what one leaves that is killed right after it.
    pub(crate) fn new(session_count: usize, budget: Budget) -> Self {
        let mut state = State {
            db: Database::new(),
            sessions: std::array::from_fn(|_| Memory::gone()),
            adrift: Vec::new(),
            budget,
            acknowledged_late: false,
            granted_out_of_order: false,
        };
        for session in 0..session_count {
            let opened = protocol::open(&state.db, session);
            state.commit(&opened.expect("opening a session writes"));
            state.sessions[session] = Memory::new();
        }
        state
    }

    /// Commits, dooms what this makes fail, and wakes those who watch.
    pub(crate) fn commit(&mut self, staged: &Staged) {
        let before = self.db;
        self.db.apply(staged);
        let is_woken = staged.written(Key::Wake).is_some();
        for (session, memory) in self.sessions.iter_mut().enumerate() {
            let (grant, watches) = (Key::Grant(session), &mut memory.watches);
            let is_granted = self.db.has(grant) && self.db.get(grant) != before.get(grant);
            watches.take_if(|watch| is_granted || is_woken && *watch == Watch::GrantOrWake);
            let doomed = memory.in_flight.take_if(|other| staged.dooms(other));
            if doomed.is_some() && memory.leads.is_some() {
                memory.leads = Some(Lead::HandOver);
            }
        }
        self.adrift.retain(|other| !staged.dooms(other));
    }

    /// Sets a commit in flight adrift.
    pub(crate) fn set_adrift(&mut self, session: usize) {
        self.adrift.extend(self.sessions[session].in_flight.take());
        self.adrift.sort_unstable();
    }

    /// Ends a process. Its commit in flight may still land.
    pub(crate) fn end(&mut self, session: usize) {
        self.set_adrift(session);
        self.sessions[session] = Memory::gone();
    }

    /// Returns whether the session's request is the first.
    pub(crate) fn is_first(&self, session: usize) -> bool {
        self.db.get(Key::Request(session)) == FIRST
    }

    /// Returns whether the session has no request, no answer and no delivery.
    pub(crate) fn is_idle(&self, session: usize) -> bool {
        !self.db.has(Key::Request(session))
            && !self.is_answered(session)
            && self.sessions[session].deliveries == [ABSENT; ITEMS]
    }

    /// Returns whether the session's request was answered.
    pub(crate) fn is_answered(&self, session: usize) -> bool {
        !matches!(self.db.get(Key::Grant(session)), ABSENT | TURN)
    }

    /// Returns whether the database says that the session holds an item of which its process does
    /// not know.
    pub(crate) fn is_stray(&self, session: usize, item: usize) -> bool {
        let held = self.db.get(Key::Held(session, item));
        held != ABSENT
            && held != self.sessions[session].deliveries[item]
            && self.db.get(Key::Grant(session)) & (1 << item) == 0
    }

    /// Returns what tells one session from another and holds no name of a session.
    fn signature(&self, session: usize) -> impl Ord {
        let memory = self.sessions[session];
        let own = [
            Key::Session(session),
            Key::Request(session),
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

/// Sessions differ only by their names: of states that differ only in these one is enough. The
/// representative has them in the order of their signatures. Where two are alike, a state may have
/// more than one representative, which costs time and nothing else.
impl Representative for State {
    fn representative(&self) -> Self {
        let mut order: [usize; SESSIONS] = std::array::from_fn(|session| session);
        order.sort_by_key(|session| self.signature(*session));
        let mut names: Names = [0; SESSIONS];
        for (name, session) in order.into_iter().enumerate() {
            names[session] = name;
        }
        let mut adrift: Vec<_> = self.adrift.iter().map(|tr| tr.renamed(&names)).collect();
        adrift.sort_unstable();
        State {
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

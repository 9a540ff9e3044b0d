//! What the processes can do, and what comes of it.

use crate::stores::embedded::link::election::{self, Candidacy, Next, Outcome, Step};

/// A rule that is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bug {
    /// An owner that closes the store unlocks it before its engine has ended.
    UnlocksFirst,
    /// A candidate that has waited takes the lock away.
    TakesLock,
    /// An owner that closes the store removes the socket after it has unlocked the store.
    RemovesSocketLate,
    /// A client sends a commit to another owner than that of the read version.
    ChangesOwner,
    /// An owner takes read versions from before its opening.
    TakesOldVersions,
    /// A transaction uses the answer to an earlier request for a read version.
    SharesVersions,
    /// A viewer takes a store over that an application has open.
    ViewsAlone,
    /// A viewer that owns the store keeps it when an application comes.
    KeepsStore,
    /// A viewer opens the store only if no other one waits for it.
    GivesWayToViewers,
    /// An owner whose socket is gone, or could not be made, makes no other one.
    KeepsNoSocket,
    /// An owner that has left the store to others does not look whether they are still there.
    LooksOnce,
    /// A client that closes has answered a commit that waits, and sends it as it is welcomed.
    AnswersFirst,
}

#[derive(Clone)]
pub(super) struct ElectionModel {
    /// What each process may become.
    pub(super) candidacies: Vec<Candidacy>,
    /// The number of transactions that each process begins.
    pub(super) attempts: u8,
    pub(super) budget: Budget,
    /// Whether commits wait for owners.
    pub(super) has_ends: bool,
    pub(super) bug: Option<Bug>,
}

/// How often an event may still happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Budget {
    pub(super) kills: u8,
    pub(super) closes: u8,
    pub(super) stops: u8,
    /// How often a client may close the store.
    pub(super) leaves: u8,
    /// How often a socket may be lost, or not be made.
    pub(super) losses: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct State {
    pub(super) processes: Vec<Process>,
    /// The process that holds the lock of the store's file.
    pub(super) lock: Option<usize>,
    /// The process to whose listener the socket leads.
    pub(super) socket: Option<usize>,
    pub(super) log: Vec<Commit>,
    /// The newest version.
    pub(super) clock: u8,
    /// The versions of the commits that were acknowledged.
    pub(super) acknowledged: Vec<u8>,
    pub(super) budget: Budget,
    /// Whether an owner has judged a transaction that has the read version of another one.
    pub(super) has_mixed: bool,
    /// Whether a transaction has got a read version that is too old.
    pub(super) has_stale: bool,
    /// Whether the socket of the owner is gone.
    pub(super) has_lost_socket: bool,
    /// Whether nothing is left of the store but its file.
    pub(super) is_closed: bool,
    /// Whether a process was killed.
    pub(super) has_killed: bool,
    /// The commits that were answered as not committed: their processes and attempts.
    pub(super) refused: Vec<(usize, u8)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Commit {
    pub(super) process: usize,
    pub(super) attempt: u8,
    pub(super) read: u8,
    pub(super) version: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Process {
    pub(super) seat: Seat,
    pub(super) is_stopped: bool,
    /// The version at which it has opened the store.
    pub(super) opened_at: u8,
    /// The number of transactions that it has begun.
    pub(super) attempts: u8,
    pub(super) call: Call,
    /// The last read version that it has got.
    pub(super) known: Option<u8>,
    /// Whether it has its part of the lock that keeps viewers from owning the store.
    pub(super) has_hold: bool,
    /// Whether an application has asked this viewer for the store.
    pub(super) is_wanted: bool,
    /// Whether the owner sees that it has the store open.
    pub(super) is_present: bool,
    /// Whether it closes the store as the last process.
    pub(super) is_last: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Seat {
    Seeking(Step),
    Owner(Phase),
    Client(Line),
    Gone,
}

/// What an owner does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    /// It has the lock, and no socket yet.
    Opening,
    Serving,
    /// It has told its clients that it closes the store.
    Leaving,
    /// Its engine has ended.
    Ended,
    /// It has unlocked the store.
    Unlocked,
}

/// The connection of a client.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Line {
    pub(super) owner: usize,
    pub(super) requests: Vec<Request>,
    pub(super) replies: Vec<Reply>,
    /// Whether the owner has ended it.
    pub(super) is_over: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Request {
    Version {
        attempt: u8,
    },
    /// A commit that has read nothing.
    Blind {
        attempt: u8,
    },
    Commit {
        attempt: u8,
        read: u8,
        from: Option<usize>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Reply {
    Version { attempt: u8, version: u8 },
    Verdict { attempt: u8, version: Option<u8> },
}

/// The transaction of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Call {
    Idle,
    /// Waits for a read version. `begun` is the newest version that was acknowledged when it began.
    Asked {
        begun: u8,
    },
    /// Has a read version, of the owner `from` if it is not one that was set.
    Has {
        read: u8,
        from: Option<usize>,
    },
    Sent,
    /// A commit that has read nothing waits for an owner.
    Queued,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    /// A process takes the next step of the election.
    Seek(usize),
    /// An owner takes the next step of its opening or its closing.
    Proceed(usize),
    Close(usize),
    Kill(usize),
    Stop(usize),
    Continue(usize),
    /// A transaction begins, at a read version that the process has got before, or with a request for one.
    Begin(usize, IsSet),
    /// A transaction that waits for its read version is dropped.
    Drop(usize),
    Commit(usize),
    /// The owner takes the first request of a client.
    Request(usize),
    /// A client takes the first reply.
    Reply(usize),
    /// A client finds the end of its connection.
    Lose(usize),
    /// A process without an owner begins a commit that has read nothing.
    Queue(usize),
    /// A client closes the store.
    Leave(usize),
    /// The socket of an owner is removed, or was not made.
    LoseSocket(usize),
}

pub(super) type IsSet = bool;

impl ElectionModel {
    /// Returns whether the engine of a process takes commits.
    pub(super) fn is_serving(&self, seat: &Seat) -> bool {
        match seat {
            Seat::Owner(Phase::Serving | Phase::Leaving) => true,
            Seat::Owner(Phase::Unlocked) => self.bug == Some(Bug::UnlocksFirst),
            _ => false,
        }
    }

    /// Returns the next state, `None` if the action is not possible.
    pub(super) fn take(&self, last: &State, action: Action) -> Option<State> {
        let mut next = last.clone();
        match action {
            Action::Seek(me) => self.seek(&mut next, me)?,
            Action::Proceed(me) => self.proceed(&mut next, me)?,
            Action::Close(me) => {
                next.budget.closes = next.budget.closes.checked_sub(1)?;
                let is_last = next.is_last(me);
                let process = next.running(me)?;
                (process.seat == Seat::Owner(Phase::Serving)).then_some(())?;
                process.seat = Seat::Owner(Phase::Leaving);
                process.is_wanted = false;
                process.is_last = is_last;
                if is_last {
                    next.socket = None;
                }
            }
            Action::Kill(me) => {
                next.budget.kills = next.budget.kills.checked_sub(1)?;
                (next.processes[me].seat != Seat::Gone).then_some(())?;
                next.has_killed = true;
                next.processes[me].end();
                next.lock = next.lock.filter(|owner| *owner != me);
            }
            Action::Stop(me) => {
                next.budget.stops = next.budget.stops.checked_sub(1)?;
                (next.processes[me].seat != Seat::Gone).then_some(())?;
                next.running(me)?.is_stopped = true;
            }
            Action::Continue(me) => {
                next.processes[me].is_stopped.then_some(())?;
                next.processes[me].is_stopped = false;
            }
            Action::Begin(me, is_set) => self.begin(&mut next, me, is_set)?,
            Action::Drop(me) => {
                let process = next.running(me)?;
                matches!(process.call, Call::Asked { .. }).then_some(())?;
                process.call = Call::Idle;
            }
            Action::Commit(me) => self.commit(&mut next, me)?,
            Action::Request(me) => self.answer(&mut next, me)?,
            Action::Reply(me) => self.receive(&mut next, me)?,
            Action::Lose(me) => self.lose(&mut next, me)?,
            Action::Queue(me) => self.queue(&mut next, me)?,
            Action::Leave(me) => self.leave(&mut next, me)?,
            Action::LoseSocket(me) => next.lose_socket(me)?,
        }
        Some(next)
    }

    fn seek(&self, next: &mut State, me: usize) -> Option<()> {
        let Seat::Seeking(step) = next.running(me)?.seat else {
            return None;
        };
        let candidacy = self.candidacies[me];
        let outcome = match step {
            Step::Open if !self.may_open(next, me) => Outcome::Held,
            Step::Open if next.lock.is_none() => Outcome::Opened(()),
            Step::Open if self.bug == Some(Bug::TakesLock) => Outcome::Opened(()),
            Step::Open => Outcome::Held,
            Step::Connect => self.connect(next, me)?,
            Step::Pause if candidacy == Candidacy::Viewer && self.is_sought(next) => return None,
            Step::Pause => Outcome::Paused,
        };
        next.processes[me].seat = match election::next(candidacy, outcome) {
            Next::Step(step) => Seat::Seeking(step),
            Next::Own(()) => {
                next.lock = Some(me);
                next.clock += 1;
                next.is_closed = false;
                next.processes[me].is_present = true;
                next.processes[me].opened_at = next.clock;
                next.processes[me].has_hold = candidacy != Candidacy::Viewer;
                Seat::Owner(Phase::Opening)
            }
            Next::Follow(owner) => Seat::Client(next.processes[me].follow(owner)),
            Next::Fail(()) => Seat::Gone,
        };
        Some(())
    }

    fn proceed(&self, next: &mut State, me: usize) -> Option<()> {
        let Seat::Owner(phase) = next.running(me)?.seat else {
            return None;
        };
        let unlocks_first = self.bug == Some(Bug::UnlocksFirst);
        let phase = match phase {
            Phase::Opening => {
                next.socket = Some(me);
                next.has_lost_socket = false;
                self.serve_queued(next, me);
                Phase::Serving
            }
            Phase::Serving if next.socket != Some(me) && self.bug != Some(Bug::KeepsNoSocket) => {
                next.socket = Some(me);
                next.has_lost_socket = false;
                Phase::Serving
            }
            Phase::Serving if !next.processes[me].is_wanted => return None,
            Phase::Serving if self.bug == Some(Bug::KeepsStore) => return None,
            Phase::Serving => Phase::Leaving,
            Phase::Leaving if unlocks_first => {
                next.lock = None;
                Phase::Unlocked
            }
            Phase::Leaving => Phase::Ended,
            Phase::Ended if unlocks_first => {
                next.processes[me].end();
                return Some(());
            }
            Phase::Ended => {
                next.lock = None;
                Phase::Unlocked
            }
            Phase::Unlocked if unlocks_first => Phase::Ended,
            Phase::Unlocked => {
                if self.bug == Some(Bug::RemovesSocketLate) {
                    next.socket = None;
                }
                next.end_lines(me);
                self.look_again(next, me);
                let process = &mut next.processes[me];
                if process.is_wanted {
                    process.is_wanted = false;
                    process.seek_next(Candidacy::Viewer);
                } else {
                    process.end();
                }
                return Some(());
            }
        };
        next.processes[me].seat = Seat::Owner(phase);
        Some(())
    }

    fn begin(&self, next: &mut State, me: usize, is_set: bool) -> Option<()> {
        let begun = next.acknowledged.iter().max().copied().unwrap_or(0);
        let version = next.clock;
        let process = next.running(me)?;
        (process.call == Call::Idle && process.attempts < self.attempts).then_some(())?;
        process.attempts += 1;
        let attempt = process.attempts;
        let shares = self.bug == Some(Bug::SharesVersions);
        if is_set {
            let read = process.known?;
            process.call = Call::Has { read, from: None };
            return Some(());
        }
        match &mut process.seat {
            Seat::Client(line) => {
                if !(shares && line.awaits_version()) {
                    line.requests.push(Request::Version { attempt });
                }
                process.call = Call::Asked { begun };
            }
            Seat::Owner(Phase::Serving) => {
                process.call = Call::Has {
                    read: version,
                    from: Some(me),
                };
                process.known = Some(version);
            }
            _ => return None,
        }
        Some(())
    }

    fn commit(&self, next: &mut State, me: usize) -> Option<()> {
        let process = next.running(me)?;
        let Call::Has { read, from } = process.call else {
            return None;
        };
        let attempt = process.attempts;
        let owner = match &process.seat {
            Seat::Client(line) => line.owner,
            seat if self.is_serving(seat) => me,
            _ => return None,
        };
        let is_bound = from.is_none_or(|from| from == owner);
        process.call = Call::Idle;
        if !is_bound && self.bug != Some(Bug::ChangesOwner) {
            // It fails with `transaction_too_old`.
            return Some(());
        }
        if let Seat::Client(line) = &mut process.seat {
            let commit = Request::Commit {
                attempt,
                read,
                from,
            };
            line.requests.push(commit);
            process.call = Call::Sent;
        } else {
            let verdict = self.judge(next, me, (me, attempt), read, from);
            next.acknowledged.extend(verdict);
        }
        Some(())
    }

    /// Judges a commit in the engine of `owner`. Returns its version if it was committed.
    pub(super) fn judge(
        &self,
        next: &mut State,
        owner: usize,
        (process, attempt): (usize, u8),
        read: u8,
        from: Option<usize>,
    ) -> Option<u8> {
        next.has_mixed |= from.is_some_and(|from| from != owner);
        let opened_at = next.processes[owner].opened_at;
        if read < opened_at && self.bug != Some(Bug::TakesOldVersions) {
            return None;
        }
        // It knows what was committed since its opening.
        let newer = |commit: &Commit| commit.version > opened_at && commit.version > read;
        if next.log.iter().any(newer) {
            return None;
        }
        next.clock += 1;
        next.log.push(Commit {
            process,
            attempt,
            read,
            version: next.clock,
        });
        Some(next.clock)
    }

    fn answer(&self, next: &mut State, me: usize) -> Option<()> {
        let Seat::Client(line) = &mut next.processes[me].seat else {
            return None;
        };
        (!line.is_over).then_some(())?;
        let request = *line.requests.first()?;
        line.requests.remove(0);
        let owner = line.owner;
        let version = next.clock;
        next.running(owner)?;
        // The end of the connection is the answer of an engine that has ended.
        if !self.is_serving(&next.processes[owner].seat) {
            return (next.processes[owner].seat != Seat::Gone).then_some(());
        }
        let reply = match request {
            Request::Version { attempt } => Reply::Version { attempt, version },
            Request::Blind { attempt } => {
                let version = self.judge(next, owner, (me, attempt), version, None);
                Reply::Verdict { attempt, version }
            }
            Request::Commit {
                attempt,
                read,
                from,
            } => {
                let version = self.judge(next, owner, (me, attempt), read, from);
                Reply::Verdict { attempt, version }
            }
        };
        let Seat::Client(line) = &mut next.processes[me].seat else {
            return None;
        };
        line.replies.push(reply);
        Some(())
    }

    fn receive(&self, next: &mut State, me: usize) -> Option<()> {
        let shares = self.bug == Some(Bug::SharesVersions);
        let process = next.running(me)?;
        let Seat::Client(line) = &mut process.seat else {
            return None;
        };
        let reply = *line.replies.first()?;
        line.replies.remove(0);
        match (reply, process.call) {
            (Reply::Version { attempt, version }, Call::Asked { begun })
                if attempt == process.attempts || shares =>
            {
                process.call = Call::Has {
                    read: version,
                    from: Some(line.owner),
                };
                process.known = Some(version);
                next.has_stale |= version < begun;
            }
            (Reply::Verdict { attempt, version }, Call::Sent) if attempt == process.attempts => {
                process.call = Call::Idle;
                next.acknowledged.extend(version);
            }
            // Its transaction was dropped.
            _ => {}
        }
        Some(())
    }

    fn lose(&self, next: &mut State, me: usize) -> Option<()> {
        let Seat::Client(line) = &next.processes[me].seat else {
            return None;
        };
        let is_over = line.is_over || next.processes[line.owner].seat == Seat::Gone;
        (line.replies.is_empty() && is_over).then_some(())?;
        next.running(me)?.seek_next(self.candidacies[me]);
        Some(())
    }
}

impl State {
    pub(super) fn running(&mut self, process: usize) -> Option<&mut Process> {
        let process = &mut self.processes[process];
        (!process.is_stopped).then_some(process)
    }

    /// Ends the connections of the clients of `owner`.
    fn end_lines(&mut self, owner: usize) {
        for process in &mut self.processes {
            if let Seat::Client(line) = &mut process.seat {
                line.is_over |= line.owner == owner;
            }
        }
    }
}

impl Process {
    pub(super) fn end(&mut self) {
        self.seat = Seat::Gone;
        self.call = Call::Idle;
        self.is_stopped = false;
        self.has_hold = false;
        self.is_wanted = false;
        self.is_present = false;
        self.is_last = false;
    }

    /// Takes part in the next election.
    fn seek_next(&mut self, candidacy: Candidacy) {
        self.seat = Seat::Seeking(election::first(candidacy, true));
        if !matches!(self.call, Call::Has { .. }) {
            self.call = Call::Idle;
        }
    }
}

impl Line {
    fn awaits_version(&self) -> bool {
        let is_asked = |request: &Request| matches!(request, Request::Version { .. });
        let is_answered = |reply: &Reply| matches!(reply, Reply::Version { .. });
        self.requests.iter().any(is_asked) || self.replies.iter().any(is_answered)
    }
}

//! One connection to an owner: the requests that were sent on it, and what waits for their replies.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::contract::error::{Code, Error, Result};
use crate::contract::mutation::Versionstamp;
use crate::contract::transaction::Commit;
use crate::stores::embedded::disk::verify::Verified;
use crate::stores::embedded::processes::Process;
use crate::stores::embedded::wire::frames::Outgoing;
use crate::stores::embedded::wire::{Found, Reply, Request};

/// A connection that is open, is yet to be opened, or has ended. Requests that are sent before it is open wait in
/// `outgoing`.
#[derive(Default)]
pub(super) struct Connection {
    pub(super) outgoing: Outgoing,
    calls: Mutex<Calls>,
    last_transaction: AtomicU64,
}

#[derive(Default)]
struct Calls {
    last_number: u64,
    /// What waits for a reply, by the number of its request.
    waiting: BTreeMap<u64, Waiting>,
    /// Whether an owner may have carried out what waits for a reply.
    may_happen: bool,
    /// Why nothing more can be sent.
    end: Option<Error>,
}

/// Called with the read version and what a read found.
pub(super) type OnAnswer = Box<dyn FnOnce(Result<(i64, Found), Unanswered>) + Send>;

pub(super) enum Waiting {
    Read(OnAnswer),
    Commit(oneshot::Sender<Result<Committed>>),
    Watch(oneshot::Sender<Result<()>>),
    Verify(mpsc::Sender<Result<Verifying>>),
    Processes(oneshot::Sender<Result<Vec<Process>>>),
}

/// How a check of the store's file gets on.
pub(super) enum Verifying {
    Progress { read: u64, of: u64 },
    Done(Verified),
}

/// The result of a commit, and the read version that it used.
pub(crate) struct Committed {
    pub(crate) read_version: i64,
    pub(crate) commit: Commit,
}

/// Why a read has no answer.
pub(crate) enum Unanswered {
    /// The connection has ended.
    Lost,
    /// The owner refused it.
    Failed(Error),
}

impl Connection {
    /// Notes that from now on requests reach an owner. Returns false if the connection has ended before: then what
    /// waits was answered, and must not be sent.
    pub(super) fn open(&self) -> bool {
        let mut calls = self.calls.lock();
        calls.may_happen = calls.end.is_none();
        calls.may_happen
    }

    /// Notes that the owner has answered all that it has carried out, and carries out nothing more.
    pub(super) fn note_end(&self) {
        self.calls.lock().may_happen = false;
    }

    /// Returns a number for a transaction.
    pub(super) fn next_transaction(&self) -> u64 {
        self.last_transaction.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Sends a request, and returns its number.
    ///
    /// # Errors
    /// `transaction_too_old` if the connection has ended, otherwise the error that [`refuse`](Self::refuse) or
    /// [`end`](Self::end) was given.
    pub(super) fn send(&self, request: &Request, waiting: Waiting) -> Result<u64> {
        let number = {
            let mut calls = self.calls.lock();
            if let Some(error) = &calls.end {
                return Err(error.clone());
            }
            calls.last_number += 1;
            let number = calls.last_number;
            calls.waiting.insert(number, waiting);
            number
        };
        self.outgoing.send(number, request);
        Ok(number)
    }

    /// Delivers a reply.
    pub(super) fn answer(&self, number: u64, reply: Reply) {
        if let Reply::Progress { read, of } = reply {
            if let Some(Waiting::Verify(sender)) = self.calls.lock().waiting.get(&number) {
                // The caller may have stopped waiting, here and below.
                let _ = sender.send(Ok(Verifying::Progress { read, of }));
            }
            return;
        }
        let waiting = self.calls.lock().waiting.remove(&number);
        // A watch may have been dropped in the meantime.
        if let Some(waiting) = waiting {
            waiting.answer(reply);
        }
    }

    pub(super) fn forget_watch(&self, watch: u64) {
        if self.calls.lock().waiting.remove(&watch).is_some() {
            self.outgoing.send_later(0, &Request::Unwatch { watch });
        }
    }

    /// Returns whether nothing more can be sent.
    pub(super) fn is_over(&self) -> bool {
        self.calls.lock().end.is_some()
    }

    /// Refuses further requests. The replies to what was sent still come.
    pub(super) fn refuse(&self, error: Error) {
        self.calls.lock().end.get_or_insert(error);
    }

    /// Ends the connection. Further requests get the error.
    pub(super) fn end(&self, error: Error) {
        let (waiting, unsent) = {
            let mut calls = self.calls.lock();
            let error = calls.end.get_or_insert(error).clone();
            let unsent = if calls.may_happen { None } else { Some(error) };
            (std::mem::take(&mut calls.waiting), unsent)
        };
        self.outgoing.close();
        for waiting in waiting.into_values() {
            match (waiting, &unsent) {
                (Waiting::Commit(sender), Some(error)) => drop(sender.send(Err(error.clone()))),
                (waiting, _) => waiting.lose(),
            }
        }
    }
}

impl Waiting {
    fn answer(self, reply: Reply) {
        match (self, reply) {
            (Self::Read(answer), Reply::Found { version, found }) => answer(Ok((version, found))),
            (Self::Read(answer), Reply::Failed(failure)) => {
                answer(Err(Unanswered::Failed(failure.into())));
            }
            (Self::Commit(sender), reply) => drop(sender.send(committed(reply))),
            (Self::Verify(sender), Reply::Verified(verified)) => {
                drop(sender.send(Ok(Verifying::Done(verified))));
            }
            (Self::Verify(sender), Reply::Failed(failure)) => {
                drop(sender.send(Err(failure.into())));
            }
            (Self::Processes(sender), Reply::Processes(processes)) => {
                drop(sender.send(Ok(processes)));
            }
            (Self::Watch(sender), Reply::Failed(failure)) => drop(sender.send(Err(failure.into()))),
            (Self::Watch(sender), _) => drop(sender.send(Ok(()))),
            (waiting @ (Self::Read(_) | Self::Verify(_) | Self::Processes(_)), _) => waiting.lose(),
        }
    }

    /// Ends the wait, because there will be no reply.
    fn lose(self) {
        match self {
            Self::Read(answer) => answer(Err(Unanswered::Lost)),
            Self::Commit(sender) => drop(sender.send(Err(Code::COMMIT_UNKNOWN_RESULT.into()))),
            Self::Watch(sender) => drop(sender.send(Ok(()))),
            Self::Verify(sender) => drop(sender.send(Err(Code::TRANSACTION_TOO_OLD.into()))),
            Self::Processes(sender) => drop(sender.send(Err(Code::TRANSACTION_TOO_OLD.into()))),
        }
    }
}

fn committed(reply: Reply) -> Result<Committed> {
    match reply {
        Reply::Committed {
            read_version,
            versionstamp,
        } => {
            let stamp = Versionstamp::from_bytes(versionstamp);
            Ok(Committed {
                read_version,
                commit: Commit {
                    version: stamp.commit_version(),
                    versionstamp: Some(stamp),
                },
            })
        }
        Reply::Failed(failure) => Err(failure.into()),
        _ => Err(Code::COMMIT_UNKNOWN_RESULT.into()),
    }
}

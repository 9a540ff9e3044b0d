//! The reads of a client that wait for an answer of the owner.
//!
//! A read in the process that owns the store ends at its call. That of a client may need rows that were not fetched:
//! it asks the owner for them, still inside the call, so that the reads of a transaction are under way together. When
//! the reply is there, it starts again, on the thread of the connection, and either ends or asks for more. An attempt
//! runs under the lock of the transaction. One that ends has read fetched rows only, all at one version, and the
//! transaction's own writes as they were at the call, so it has the answer of a read that ends at its call. One that
//! asks leaves nothing behind.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::read_calls::{Read, ReadCall};
use super::seat::{RowSource, Unfinished};
use super::transaction_state::TransactionState;
use super::write_map::WriteMap;
use crate::contract::error::{Code, Error, Result};
use crate::stores::embedded::link::{LinkTransaction, Unanswered};
use crate::stores::embedded::wire::{Ask, Found};

/// What a client's transaction has under way.
pub(crate) struct UnderWay {
    pub(crate) link: LinkTransaction,
    reads: BTreeMap<u64, Box<dyn Suspended>>,
    last_number: u64,
    /// The commit, which waits for the end of all reads.
    commit: Option<oneshot::Sender<()>>,
}

/// A read that waits for an answer.
trait Suspended: Send {
    /// Tries again. Returns what to ask for next, `None` if the read has ended.
    fn attempt(&mut self, state: &mut TransactionState) -> Option<Ask>;

    /// Ends the read with an error.
    fn fail(&mut self, error: Error);

    /// Delivers the answer of a read that has ended.
    fn deliver(self: Box<Self>);
}

struct SuspendedCall<R: Read> {
    call: ReadCall<R>,
    /// The transaction's own writes, as they were at the call.
    writes: Arc<WriteMap>,
    answer: Option<Result<R::Answer>>,
    caller: oneshot::Sender<Result<R::Answer>>,
}

impl<R: Read> Suspended for SuspendedCall<R> {
    fn attempt(&mut self, state: &mut TransactionState) -> Option<Ask> {
        match state.attempt(RowSource::Fetched, &self.call, Some(&self.writes)) {
            Ok(answer) => self.answer = Some(Ok(answer)),
            Err(Unfinished::Failed(error)) => self.answer = Some(Err(error)),
            Err(Unfinished::Asks(ask)) => return Some(*ask),
        }
        None
    }

    fn fail(&mut self, error: Error) {
        self.answer = Some(Err(error));
    }

    fn deliver(self: Box<Self>) {
        if let Some(answer) = self.answer {
            // The caller may have stopped waiting.
            let _ = self.caller.send(answer);
        }
    }
}

/// Reads that have ended. Their callers may run as soon as they get the answers, so the lock of the transaction must be
/// free by then.
#[must_use]
pub(crate) struct Ended {
    reads: Vec<Box<dyn Suspended>>,
    commit: Option<oneshot::Sender<()>>,
}

impl Ended {
    pub(crate) fn deliver(self) {
        for read in self.reads {
            read.deliver();
        }
        if let Some(commit) = self.commit {
            // The commit may have been given up.
            let _ = commit.send(());
        }
    }
}

impl UnderWay {
    pub(crate) fn new(link: LinkTransaction) -> Self {
        Self {
            link,
            reads: BTreeMap::new(),
            last_number: 0,
            commit: None,
        }
    }

    /// Returns what waits for the end of all reads, `None` if there are none.
    pub(crate) fn reads_end(&mut self) -> Option<oneshot::Receiver<()>> {
        if self.reads.is_empty() {
            return None;
        }
        let (commit, end) = oneshot::channel();
        self.commit = Some(commit);
        Some(end)
    }

    /// Ends all reads with an error.
    pub(crate) fn fail_all(&mut self, error: &Error) -> Ended {
        let mut reads: Vec<_> = std::mem::take(&mut self.reads).into_values().collect();
        for read in &mut reads {
            read.fail(error.clone());
        }
        Ended {
            reads,
            commit: self.commit.take(),
        }
    }

    fn end(&mut self, read: Box<dyn Suspended>) -> Ended {
        let is_last = self.reads.is_empty();
        Ended {
            reads: vec![read],
            commit: self.commit.take_if(|_| is_last),
        }
    }
}

/// Suspends a read until the owner has answered. Returns what waits for its end.
pub(crate) fn suspend<R: Read>(
    shared: &Arc<Mutex<TransactionState>>,
    state: &mut TransactionState,
    call: ReadCall<R>,
    ask: Ask,
) -> oneshot::Receiver<Result<R::Answer>> {
    let (caller, answer) = oneshot::channel();
    let read = SuspendedCall {
        call,
        writes: state.writes.share(),
        answer: None,
        caller,
    };
    if let Some(ended) = ask_owner(shared, state, Box::new(read), ask) {
        // The caller does not have the receiver yet, so no task runs under the lock.
        ended.deliver();
    }
    answer
}

/// Asks the owner for what a read needs. Returns the read if the connection has ended.
fn ask_owner(
    shared: &Arc<Mutex<TransactionState>>,
    state: &mut TransactionState,
    mut read: Box<dyn Suspended>,
    ask: Ask,
) -> Option<Ended> {
    let at = state.snapshot_cache.read_version;
    let under_way = state.under_way.as_mut()?;
    under_way.last_number += 1;
    let number = under_way.last_number;
    let sent = under_way.link.read(at, ask.clone(), {
        // What waits for a stalled owner must not keep a transaction that nothing uses any more.
        let shared = Arc::downgrade(shared);
        move |answer| {
            if let Some(shared) = shared.upgrade() {
                resume(&shared, number, ask, answer);
            }
        }
    });
    match sent {
        Ok(()) => {
            under_way.reads.insert(number, read);
            None
        }
        Err(error) => {
            state.failed_read.get_or_insert(error.clone());
            read.fail(error);
            Some(under_way.end(read))
        }
    }
}

/// Continues a read with the owner's answer. If the owner has ended, a transaction that has no read version yet asks
/// the next one.
fn resume(
    shared: &Arc<Mutex<TransactionState>>,
    number: u64,
    ask: Ask,
    answer: Result<(i64, Found), Unanswered>,
) {
    let ended = {
        let mut locked = shared.lock();
        let state = &mut *locked;
        let read = state
            .under_way
            .as_mut()
            .and_then(|it| it.reads.remove(&number));
        // The transaction may have been reset or cancelled.
        let Some(mut read) = read else {
            return;
        };
        let has_version = state.snapshot_cache.read_version.is_some();
        let next = match answer {
            Ok((version, found)) => state
                .snapshot_cache
                .receive(version, ask, found)
                .map(|()| read.attempt(state)),
            Err(Unanswered::Lost) if !has_version => {
                if let Some(under_way) = &mut state.under_way {
                    under_way.link.leave_lost_owner();
                }
                Ok(Some(ask))
            }
            Err(Unanswered::Lost) => Err(Code::TRANSACTION_TOO_OLD.into()),
            Err(Unanswered::Failed(error)) => Err(error),
        };
        let next = next.unwrap_or_else(|error: Error| {
            state.failed_read.get_or_insert(error.clone());
            read.fail(error);
            None
        });
        match next {
            Some(ask) => ask_owner(shared, state, read, ask),
            None => state.under_way.as_mut().map(|it| it.end(read)),
        }
    };
    if let Some(ended) = ended {
        ended.deliver();
    }
}

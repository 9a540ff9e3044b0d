//! The open batch, which the resolver fills and the publisher takes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, MappedMutexGuard, Mutex, MutexGuard};
use tokio::sync::oneshot;

use super::queue::{FULL_BATCH_BYTES, FULL_BATCH_TRANSACTIONS};
use crate::contract::error::{Code, Result};
use crate::contract::transaction::Commit;
use crate::stores::embedded::layers::{FrozenPart, Parts};
use crate::stores::embedded::log::frame::Record;

/// A commit batch, as FoundationDB calls it: transactions that commit together, at one version, and become durable
/// together.
pub(super) struct Batch {
    pub(super) version: i64,
    /// The effects of the transactions on rows.
    pub(super) record: Record,
    /// The parts of the window after the batch, `None` if no transaction of the batch commits.
    pub(super) parts: Option<Parts>,
    /// The result of each transaction, in commit order.
    pub(super) verdicts: Vec<Verdict>,
    /// The part that ended before the batch.
    pub(super) frozen: Option<FrozenPart>,
    /// The size of the active part after the batch, zero if it is too small to be moved before it is full.
    pub(super) part_bytes: usize,
}

/// The result of a transaction, and where to send it.
pub(super) struct Verdict {
    pub(super) waiting: oneshot::Sender<Result<Commit>>,
    pub(super) verdict: Result<Commit, Code>,
}

impl Batch {
    /// Sends all transactions their results, after the batch was published.
    pub(super) fn answer(self) {
        for Verdict { waiting, verdict } in self.verdicts {
            // The caller may have stopped waiting.
            let _ = waiting.send(verdict.map_err(Into::into));
        }
    }

    /// Sends `commit_unknown_result` to all transactions that would commit: it is unknown whether the batch
    /// will be found after a restart.
    pub(super) fn answer_unknown(mut self) {
        for Verdict { verdict, .. } in &mut self.verdicts {
            if verdict.is_ok() {
                *verdict = Err(Code::COMMIT_UNKNOWN_RESULT);
            }
        }
        self.answer();
    }

    fn is_full(&self) -> bool {
        self.verdicts.len() >= FULL_BATCH_TRANSACTIONS
            || self.record.body().len() >= FULL_BATCH_BYTES
    }
}

/// Holds the open batch, which transactions join while the publisher writes.
#[derive(Default)]
pub(crate) struct Pipeline {
    state: Mutex<PipelineState>,
    /// Notified when there is a batch to take, when other work was requested, and at the end.
    for_publisher: Condvar,
    /// Notified when the batch was taken, and at the end.
    for_resolver: Condvar,
    publisher_was_called: AtomicBool,
    part_is_to_end: AtomicBool,
}

#[derive(Default)]
struct PipelineState {
    open: Option<Batch>,
    /// The last part of the window, at the end.
    last_part: Option<FrozenPart>,
    /// Whether the store is being closed, so that batches no longer wait for room for the log.
    is_closing: bool,
    is_closed: bool,
    /// For how many transactions in the open batch the publisher waits.
    publisher_waits_for: Option<usize>,
}

impl PipelineState {
    /// Returns the number of transactions in the open batch.
    fn len(&self) -> usize {
        self.open.as_ref().map_or(0, |batch| batch.verdicts.len())
    }
}

impl Pipeline {
    /// Waits until the open batch has room for transactions. Returns false once the pipeline is closed.
    pub(super) fn wait_for_room(&self) -> bool {
        let mut state = self.state.lock();
        let is_full = |state: &mut PipelineState| {
            !state.is_closed && state.open.as_ref().is_some_and(Batch::is_full)
        };
        self.for_resolver.wait_while(&mut state, is_full);
        !state.is_closed
    }

    /// Returns whether the open batch has room for transactions.
    pub(super) fn has_room(&self) -> bool {
        let state = self.state.lock();
        !state.is_closed && !state.open.as_ref().is_some_and(Batch::is_full)
    }

    /// Locks the open batch, which stays in place while the guard lives. `None` if there is no batch yet.
    pub(super) fn open(&self) -> MappedMutexGuard<'_, Option<Batch>> {
        MutexGuard::map(self.state.lock(), |state| &mut state.open)
    }

    /// Returns the number of transactions in the open batch.
    pub(crate) fn len(&self) -> usize {
        self.state.lock().len()
    }

    /// Notifies the publisher that the open batch has grown.
    pub(super) fn offer(&self) {
        let mut state = self.state.lock();
        let len = state.len();
        if state
            .publisher_waits_for
            .take_if(|count| *count <= len)
            .is_some()
        {
            self.for_publisher.notify_one();
        }
    }

    /// Requests that the active part end before the next batch, because its log has continued in another
    /// segment.
    pub(super) fn end_part(&self) {
        self.part_is_to_end.store(true, Ordering::Relaxed);
    }

    /// Returns whether the end of the active part was requested, and clears the request.
    pub(super) fn takes_end_of_part(&self) -> bool {
        self.part_is_to_end.swap(false, Ordering::Relaxed)
    }

    /// Waits for `time`. Returns false if the pipeline is closed or being closed.
    pub(super) fn pause(&self, time: Duration) -> bool {
        let mut state = self.state.lock();
        let goes_on = |state: &mut PipelineState| !state.is_closing && !state.is_closed;
        self.for_publisher.wait_while_for(&mut state, goes_on, time);
        goes_on(&mut state)
    }

    /// Stops batches from waiting for room for the log, because the store is being closed.
    pub(super) fn hurry(&self) {
        self.state.lock().is_closing = true;
        self.for_publisher.notify_one();
    }

    /// Wakes the publisher even if there is no batch.
    pub(super) fn call_publisher(&self) {
        if !self.publisher_was_called.swap(true, Ordering::Relaxed) {
            let _state = self.state.lock();
            self.for_publisher.notify_one();
        }
    }

    /// Waits for a batch, a call, the end, or until `limit` has passed. Returns false once the pipeline is
    /// closed and empty.
    pub(super) fn wait(&self, limit: Option<Duration>) -> bool {
        let mut state = self.state.lock();
        while state.open.is_none() {
            if state.is_closed {
                return false;
            }
            if self.publisher_was_called.swap(false, Ordering::Relaxed) {
                break;
            }
            state.publisher_waits_for = Some(1);
            match limit {
                None => self.for_publisher.wait(&mut state),
                Some(limit) => {
                    if self.for_publisher.wait_for(&mut state, limit).timed_out() {
                        break;
                    }
                }
            }
        }
        state.publisher_waits_for = None;
        true
    }

    /// Waits until the open batch has `count` transactions, but for no longer than `limit`.
    pub(crate) fn gather(&self, count: usize, limit: Duration) {
        let mut state = self.state.lock();
        let is_small = |state: &mut PipelineState| {
            let waits = !state.is_closed && (1..count).contains(&state.len());
            state.publisher_waits_for = if waits { Some(count) } else { None };
            waits
        };
        self.for_publisher
            .wait_while_for(&mut state, is_small, limit);
        state.publisher_waits_for = None;
    }

    /// Returns the number of transactions that the publisher waits for.
    #[cfg(test)]
    pub(crate) fn awaited(&self) -> Option<usize> {
        self.state.lock().publisher_waits_for
    }

    /// Takes the open batch.
    pub(super) fn take(&self) -> Option<Batch> {
        let taken = self.state.lock().open.take();
        self.for_resolver.notify_one();
        taken
    }

    /// Takes the last part of the window, which was given when the pipeline was closed.
    pub(super) fn take_last_part(&self) -> Option<FrozenPart> {
        self.state.lock().last_part.take()
    }

    /// Ends the pipeline. The batch in it can still be taken.
    pub(super) fn close(&self, last_part: Option<FrozenPart>) {
        let mut state = self.state.lock();
        state.is_closed = true;
        state.last_part = last_part;
        drop(state);
        self.for_publisher.notify_one();
        self.for_resolver.notify_one();
    }
}

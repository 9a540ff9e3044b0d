//! The batch between the resolver, which fills it, and the publisher, which takes it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, MappedMutexGuard, Mutex, MutexGuard};
use tokio::sync::oneshot;

use super::layers::{FrozenPart, Parts};
use super::log::frame::Record;
use super::queue::{BATCH_BYTES, BATCH_TRANSACTIONS};
use crate::error::{Code, Result};
use crate::transaction::Commit;

/// Transactions that are committed together, at one version.
pub(super) struct Batch {
    pub(super) version: i64,
    /// What the transactions do to the rows.
    pub(super) record: Record,
    /// The rows after it. `None`: no transaction commits.
    pub(super) parts: Option<Parts>,
    /// What each transaction is to hear, in commit order.
    pub(super) verdicts: Vec<Verdict>,
    /// The part that ended before the batch.
    pub(super) frozen: Option<FrozenPart>,
}

/// What a transaction is to hear.
pub(super) struct Verdict {
    pub(super) waiting: oneshot::Sender<Result<Commit>>,
    pub(super) verdict: Result<Commit, Code>,
}

impl Batch {
    /// Answers all transactions once the batch was published.
    pub(super) fn answer(self) {
        for Verdict { waiting, verdict } in self.verdicts {
            // Its caller may have stopped waiting.
            let _ = waiting.send(verdict.map_err(Into::into));
        }
    }

    /// Answers all transactions: it is unknown whether the batch will be found after a restart.
    pub(super) fn answer_unknown(mut self) {
        for Verdict { verdict, .. } in &mut self.verdicts {
            if verdict.is_ok() {
                *verdict = Err(Code::COMMIT_UNKNOWN_RESULT);
            }
        }
        self.answer();
    }

    fn is_full(&self) -> bool {
        self.verdicts.len() >= BATCH_TRANSACTIONS || self.record.body().len() >= BATCH_BYTES
    }
}

/// Holds one open batch: transactions that arrive while the publisher writes join it.
#[derive(Default)]
pub(super) struct Pipeline {
    state: Mutex<State>,
    /// Notified when there is a batch to take, when something else was asked for, and at the end.
    for_publisher: Condvar,
    /// Notified when the batch was taken, and at the end.
    for_resolver: Condvar,
    publisher_was_called: AtomicBool,
    part_is_to_end: AtomicBool,
}

#[derive(Default)]
struct State {
    open: Option<Batch>,
    /// What the window held at the end.
    last_part: Option<FrozenPart>,
    /// Whether the end is waited for: a full disk is no longer.
    is_closing: bool,
    is_closed: bool,
    publisher_waits: bool,
}

impl Pipeline {
    /// Waits until the open batch takes transactions. Returns false once the pipeline is closed.
    pub(super) fn wait_for_room(&self) -> bool {
        let mut state = self.state.lock();
        let is_full =
            |state: &mut State| !state.is_closed && state.open.as_ref().is_some_and(Batch::is_full);
        self.for_resolver.wait_while(&mut state, is_full);
        !state.is_closed
    }

    /// Returns whether the open batch takes transactions.
    pub(super) fn has_room(&self) -> bool {
        let state = self.state.lock();
        !state.is_closed && !state.open.as_ref().is_some_and(Batch::is_full)
    }

    /// Returns the open batch, which stays in place while the guard lives, or the place for one.
    pub(super) fn open(&self) -> MappedMutexGuard<'_, Option<Batch>> {
        MutexGuard::map(self.state.lock(), |state| &mut state.open)
    }

    /// Notifies the publisher that the open batch has grown.
    pub(super) fn offer(&self) {
        if std::mem::take(&mut self.state.lock().publisher_waits) {
            self.for_publisher.notify_one();
        }
    }

    /// Asks for the end of the active part, before the next batch: its log goes on in another segment.
    pub(super) fn end_part(&self) {
        self.part_is_to_end.store(true, Ordering::Relaxed);
    }

    /// Returns whether the active part is to end, once.
    pub(super) fn takes_end_of_part(&self) -> bool {
        self.part_is_to_end.swap(false, Ordering::Relaxed)
    }

    /// Waits for `time`. Returns false once the pipeline is closed, or is to be.
    pub(super) fn pause(&self, time: Duration) -> bool {
        let mut state = self.state.lock();
        let goes_on = |state: &mut State| !state.is_closing && !state.is_closed;
        self.for_publisher.wait_while_for(&mut state, goes_on, time);
        goes_on(&mut state)
    }

    /// Lets no batch wait for room on a full disk any longer: the store is being closed.
    pub(super) fn hurry(&self) {
        self.state.lock().is_closing = true;
        self.for_publisher.notify_one();
    }

    /// Wakes the publisher though there may be no batch.
    pub(super) fn call_publisher(&self) {
        if !self.publisher_was_called.swap(true, Ordering::Relaxed) {
            let _state = self.state.lock();
            self.for_publisher.notify_one();
        }
    }

    /// Waits for a batch, for a call, for the end, or until `limit` is over. Returns false once the
    /// pipeline is closed and empty.
    pub(super) fn wait(&self, limit: Option<Duration>) -> bool {
        let mut state = self.state.lock();
        while state.open.is_none() {
            if state.is_closed {
                return false;
            }
            if self.publisher_was_called.swap(false, Ordering::Relaxed) {
                break;
            }
            state.publisher_waits = true;
            match limit {
                None => self.for_publisher.wait(&mut state),
                Some(limit) => {
                    if self.for_publisher.wait_for(&mut state, limit).timed_out() {
                        break;
                    }
                }
            }
        }
        state.publisher_waits = false;
        true
    }

    /// Waits up to `limit` for the open batch to have `count` transactions.
    pub(super) fn gather(&self, count: usize, limit: Duration) {
        let mut state = self.state.lock();
        let is_small = |state: &mut State| {
            let waits = !state.is_closed
                && (state.open.as_ref()).is_some_and(|batch| batch.verdicts.len() < count);
            state.publisher_waits = waits;
            waits
        };
        self.for_publisher
            .wait_while_for(&mut state, is_small, limit);
    }

    /// Takes the open batch.
    pub(super) fn take(&self) -> Option<Batch> {
        let taken = self.state.lock().open.take();
        self.for_resolver.notify_one();
        taken
    }

    /// Takes what the window held when the pipeline was closed.
    pub(super) fn take_last_part(&self) -> Option<FrozenPart> {
        self.state.lock().last_part.take()
    }

    /// Ends the pipeline. What is in it may still be taken.
    pub(super) fn close(&self, last_part: Option<FrozenPart>) {
        let mut state = self.state.lock();
        state.is_closed = true;
        state.last_part = last_part;
        drop(state);
        self.for_publisher.notify_one();
        self.for_resolver.notify_one();
    }
}

//! The thread that moves parts of the window to the runs.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::pace::Pace;
use super::shared::{Ending, EngineShared};
use crate::contract::error::{Code, Result};
use crate::stores::embedded::disk::checkpoint::{Checkpoint, StoreFiles};
use crate::stores::embedded::runs::Runs;
#[cfg(test)]
use crate::stores::embedded::runs::damage::FileError;

/// How long an idle store keeps states that transactions may no longer read.
const MAX_IDLE_WAIT: Duration = Duration::from_secs(5);

/// The number of waiting parts at which commits wait. It bounds the length of the log, however small the
/// parts.
const MAX_PARTS: usize = 16;

/// The parts that are to be moved, oldest first.
pub(super) struct Checkpoints {
    waiting: Mutex<WaitingParts>,
    /// Notified when there is a part to move, and at the end.
    for_checkpointer: Condvar,
    /// Notified when a part was moved, and at the end.
    for_resolver: Condvar,
    /// The size of the waiting parts, in bytes, above which commits wait.
    limit_bytes: usize,
}

struct WaitingParts {
    parts: VecDeque<Checkpoint>,
    /// The sizes of the waiting parts, including the one that is being moved.
    bytes: usize,
    is_closed: bool,
    pace: Pace,
}

impl Checkpoints {
    pub(super) fn new(limit_bytes: usize) -> Self {
        Self {
            waiting: Mutex::new(WaitingParts {
                parts: VecDeque::new(),
                bytes: 0,
                is_closed: false,
                pace: Pace::new(limit_bytes),
            }),
            for_checkpointer: Condvar::new(),
            for_resolver: Condvar::new(),
            limit_bytes,
        }
    }

    /// Adds a part, which must be newer than all parts before.
    pub(super) fn push(&self, checkpoint: Checkpoint) {
        let mut waiting = self.waiting.lock();
        waiting.bytes += checkpoint.part.bytes;
        waiting.parts.push_back(checkpoint);
        self.for_checkpointer.notify_one();
    }

    /// Waits until the waiting parts are below their limits. Returns false once parts are no longer moved.
    pub(super) fn wait_for_room(&self) -> bool {
        let mut waiting = self.waiting.lock();
        let is_full = |waiting: &mut WaitingParts| !waiting.is_closed && !self.is_within(waiting);
        self.for_resolver.wait_while(&mut waiting, is_full);
        !waiting.is_closed
    }

    /// Returns whether the waiting parts are below their limits.
    pub(super) fn has_room(&self) -> bool {
        let waiting = self.waiting.lock();
        !waiting.is_closed && self.is_within(&waiting)
    }

    fn is_within(&self, waiting: &WaitingParts) -> bool {
        waiting.bytes <= self.limit_bytes && waiting.parts.len() <= MAX_PARTS
    }

    /// Waits for a part. Returns false once all parts were taken and no more will come.
    fn wait(&self, limit: Option<Duration>) -> bool {
        let mut waiting = self.waiting.lock();
        let is_idle = |waiting: &mut WaitingParts| !waiting.is_closed && waiting.parts.is_empty();
        match limit {
            Some(limit) => {
                let timed_out = self
                    .for_checkpointer
                    .wait_while_for(&mut waiting, is_idle, limit);
                timed_out.timed_out() || !waiting.parts.is_empty()
            }
            None => {
                self.for_checkpointer.wait_while(&mut waiting, is_idle);
                !waiting.parts.is_empty()
            }
        }
    }

    fn take(&self) -> Option<Checkpoint> {
        self.waiting.lock().parts.pop_front()
    }

    fn moved(&self, bytes: usize, took: Duration) {
        let mut waiting = self.waiting.lock();
        waiting.bytes -= bytes;
        waiting.pace.moved(bytes, took);
        self.for_resolver.notify_one();
    }

    /// Returns how long a commit that writes `bytes` bytes is to wait before it is sent.
    pub(super) fn pace(&self, now: Duration, bytes: usize) -> Duration {
        let mut waiting = self.waiting.lock();
        let waiting_bytes = waiting.bytes;
        waiting.pace.wait(now, bytes, waiting_bytes)
    }

    /// Accepts no more parts. Those that wait can still be taken.
    pub(super) fn close(&self) {
        self.waiting.lock().is_closed = true;
        self.for_checkpointer.notify_one();
        self.for_resolver.notify_one();
    }

    /// Returns the sizes of the parts that are to be moved.
    pub(super) fn bytes(&self) -> usize {
        self.waiting.lock().bytes
    }

    /// Drops the parts that wait: their writes stay only in the log.
    pub(super) fn abandon(&self) {
        self.waiting.lock().parts.clear();
        self.close();
    }
}

/// Moves parts to the runs.
pub(super) struct Checkpointer {
    shared: Arc<EngineShared>,
    files: StoreFiles,
}

/// Closes the store's file, also after a panic.
struct ReleasedFile(Arc<Runs>);

impl Drop for ReleasedFile {
    fn drop(&mut self) {
        self.0.release();
    }
}

impl Checkpointer {
    pub(super) fn new(shared: Arc<EngineShared>, files: StoreFiles) -> Self {
        Self { shared, files }
    }

    /// Moves parts until there are no more. The store has ended then.
    pub(super) fn run(mut self) -> Result<()> {
        let _released = ReleasedFile(self.files.runs.clone());
        let moved = self.move_all();
        self.finish().and(moved)
    }

    fn move_all(&mut self) -> Result<()> {
        let shared = self.shared.clone();
        let mut limit = Some(MAX_IDLE_WAIT);
        while shared.checkpoints.wait(limit) {
            let has_old_states = self.step()?;
            limit = if has_old_states {
                Some(MAX_IDLE_WAIT)
            } else {
                None
            };
            shared.timeline.expire();
        }
        Ok(())
    }

    #[cfg(test)]
    pub(super) fn write_record(&mut self) -> Result<(), FileError> {
        self.files.runs.change_meta(|_| ())
    }

    /// Ends the store, and closes its file.
    pub(super) fn finish(self) -> Result<()> {
        let checked = self.shared.timeline.check();
        let ended = checked.and_then(|()| {
            let is_there = self.files.check_place();
            is_there.map_err(|cause| self.shared.fail(cause))
        });
        self.files.runs.stop_merging();
        self.shared.merges.close();
        self.shared.merges.wait_for_end();
        // From here on, no state holds runs.
        self.shared.end(Code::TRANSACTION_CANCELLED.into());
        let has_log = self.files.runs.meta().log.is_some();
        let hands_over = self.shared.ending.get() == Some(&Ending::HandOver);
        let closed = match &ended {
            Ok(()) if !has_log && !hands_over && self.files.slots.is_some() => {
                self.files.runs.close()
            }
            _ => Ok(()),
        };
        self.files.runs.release();
        ended?;
        closed.map_err(|cause| self.shared.fail(cause))
    }

    /// Moves the oldest part that waits. Returns false if there is none.
    pub(super) fn step(&mut self) -> Result<bool> {
        let Some(checkpoint) = self.shared.checkpoints.take() else {
            return Ok(false);
        };
        let Self { shared, files } = self;
        let env = shared.timeline.environment();
        let started = env.now();
        shared.merges.wait_for_room(|| files.runs.is_full());
        let installed = |runs: &Arc<_>| shared.timeline.checkpointed(runs, checkpoint.part.id);
        let moved = files.checkpoint(&checkpoint, installed);
        let took = env.now().saturating_sub(started);
        moved.map_err(|cause| shared.fail(cause))?;
        shared.merges.run_added();
        shared.checkpoints.moved(checkpoint.part.bytes, took);
        Ok(true)
    }
}

//! What the threads of the engine and the transactions share, and how the store ends.

use std::error::Error as StdError;
use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::thread;

use tokio::sync::{Notify, oneshot};

use super::checkpointer::Checkpoints;
use super::merger::Merges;
use super::pipeline::Pipeline;
use super::queue::{CommitRequest, PendingCommit, Queue};
use super::snapshot::Snapshot;
use super::timeline::Timeline;
use super::watch::Registry;
use crate::contract::error::{Code, Error, Result, StorageFailure, chain};
use crate::stores::embedded::runs::Runs;
use crate::stores::embedded::runs::damage::FileError;

/// What an engine that ends does with its log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// Moves everything to the store's file, makes that small, and removes the log.
    Close,
    /// Does the same, but leaves the log to the next opening if it holds much.
    Drop,
    /// Leaves the log to the next owner, which waits for the store.
    HandOver,
}

/// The state that the threads and the transactions share.
pub(super) struct EngineShared {
    pub(super) timeline: Timeline,
    pub(super) queue: Queue,
    pub(super) pipeline: Pipeline,
    pub(super) checkpoints: Checkpoints,
    pub(super) merges: Merges,
    pub(super) registry: Arc<Registry>,
    /// The path of the store, for errors.
    pub(super) path: PathBuf,
    /// What is in the store's file.
    pub(super) runs: Arc<Runs>,
    /// How the engine ends, once it does.
    pub(super) ending: OnceLock<Ending>,
    /// Notifies those that wait for the end of the store.
    pub(super) ended: Notify,
}

impl EngineShared {
    /// Ends the active part of the window, with a commit that writes nothing.
    pub(super) fn end_part(&self) {
        self.pipeline.end_part();
        self.commit_nothing();
    }

    /// Commits a transaction that writes nothing.
    pub(super) fn commit_nothing(&self) {
        let Ok((read_version, _)) = self.timeline.read_version() else {
            return;
        };
        // No caller waits for the result.
        let (verdict, _) = oneshot::channel();
        let commit = PendingCommit {
            request: CommitRequest::default(),
            read_version,
            verdict,
        };
        // If the queue is full, another commit ends the part.
        if self.queue.push(commit).is_ok() {
            self.queue.wake();
        }
    }

    /// Returns whether the store leaves its log for the next opening.
    pub(super) fn keeps_log(&self, last_part_bytes: usize) -> bool {
        /// The most that is moved to the runs in a short time.
        const MAX_BYTES: usize = 8 << 20;
        match self.ending.get() {
            Some(Ending::HandOver) => true,
            Some(Ending::Drop) => self.checkpoints.bytes() + last_part_bytes > MAX_BYTES,
            Some(Ending::Close) | None => false,
        }
    }

    /// Returns the state that the newest commit left.
    pub(super) fn newest(self: &Arc<Self>) -> Result<Snapshot> {
        let (version, state) = self.timeline.read_version()?;
        Ok(Snapshot::new(version, state, self.clone()))
    }

    /// Runs a step of the engine on the thread of a caller. If it panics, ends the store and returns `None`.
    pub(super) fn or_poison<T>(&self, step: impl FnOnce() -> T) -> Option<T> {
        let stepped = panic::catch_unwind(AssertUnwindSafe(step));
        stepped
            .inspect_err(|_| drop(self.poison(io::Error::other(PANICKED))))
            .ok()
    }

    /// Ends the store because its file is damaged, or the disk failed. Returns the error that every later operation
    /// gets.
    pub(super) fn fail(&self, cause: FileError) -> Error {
        let damage = match cause {
            FileError::Io(cause) => return self.poison(cause),
            FileError::Damage(damage) => damage,
        };
        let reason = damage.to_string();
        // Before anything else: a checkpoint may be writing.
        self.runs.give_up(damage);
        tracing::error!(reason, "the store stops: it is damaged");
        let path = self.path.clone();
        self.end(Error::Damaged {
            path,
            reason,
            code: Code::FILE_CORRUPT,
        })
    }

    /// Ends the store because its storage failed. Returns the error that every later operation gets.
    pub(super) fn poison(&self, cause: impl StdError + Send + Sync + 'static) -> Error {
        tracing::error!(cause = %chain(&cause), "the store stops: its storage failed");
        let cause = StorageFailure::new(cause);
        self.end(Error::Poisoned { cause })
    }

    /// Ends the store. All waiting and later operations get the returned error: `error`, unless the store
    /// had already ended with another one.
    pub(super) fn end(&self, error: Error) -> Error {
        // Record the reason first: the threads end once their queues are closed, and then look for it.
        let error = self.timeline.end(error);
        self.queue.close();
        self.pipeline.close(None);
        self.checkpoints.abandon();
        self.merges.close();
        if let Some(batch) = self.pipeline.take() {
            batch.answer_unknown();
        }
        for commit in self.queue.take_all() {
            // The caller may have stopped waiting.
            let _ = commit.verdict.send(Err(error.clone()));
        }
        self.registry.fail_all(&error);
        self.ended.notify_waiters();
        error
    }
}

/// The reason given when a thread of the store has panicked.
pub(super) const PANICKED: &str = "a thread of the store panicked";

/// Ends the store if a thread of the engine panics.
pub(super) struct EndOnPanic<'a>(pub(super) &'a EngineShared);

impl Drop for EndOnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.poison(io::Error::other(PANICKED));
        }
    }
}

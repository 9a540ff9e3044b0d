//! The engine: one version clock, one queue of commits, one thread that commits them.
//!
//! ```text
//!  transactions                    the engine, one per store
//!  read version, snapshot   <----  Timeline: versions, published states
//!  commit request           ---->  Queue ----> Committer: 1 take a batch
//!                                                         2 take its commit version
//!                                                         3 resolve each against the History
//!                                                         4 apply the effects of the rest to the Store, flush
//!                                                         5 publish the state
//!                                                         6 tell watches
//!  verdict                  <---------------------------- 7 acknowledge
//! ```

use std::error::Error as StdError;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::Options;
use super::committer::Committer;
use super::queue::{PendingCommit, Queue};
use super::store::Store;
use super::timeline::Timeline;
use super::watch::{Registry, Watches};
use crate::env::Environment;
use crate::error::{Code, Error, Result};
use crate::transaction::Commit;

pub(super) use super::queue::CommitRequest;
pub(super) use super::snapshot::Snapshot;

/// A running store. Dropping it commits what was sent, ends the thread and closes the file.
pub(super) struct Engine {
    shared: Arc<Shared>,
    watches: Watches,
    /// The committer's thread. Taken by who shuts the engine down.
    committer: Mutex<Option<JoinHandle<Result<()>>>>,
    /// The version before the first one of this opening.
    opened_at: i64,
}

/// What the committer and the transactions share.
pub(super) struct Shared {
    timeline: Timeline,
    queue: Queue,
    registry: Arc<Registry>,
}

impl Engine {
    /// Starts the clock and the committer's thread.
    pub(super) fn start(store: Store, options: &Options) -> io::Result<Self> {
        let (mut engine, committer) = Self::prepare(store, options).map_err(io::Error::other)?;
        let thread = thread::Builder::new()
            .name("keyspace-committer".to_owned())
            .spawn(|| committer.run())?;
        engine.committer = Mutex::new(Some(thread));
        Ok(engine)
    }

    /// Starts the clock, and leaves the commits to whoever drives the committer.
    pub(super) fn prepare(
        store: Store,
        options: &Options,
    ) -> Result<(Self, Committer), redb::Error> {
        let rows = store.rows()?;
        let opened_at = store.last_version();
        let shared = Arc::new(Shared {
            timeline: Timeline::new(options.environment.clone(), opened_at, rows),
            queue: Queue::new(options.queue_bytes),
            registry: Arc::default(),
        });
        let committer = Committer::new(shared.clone(), store, options);
        let engine = Self {
            watches: Watches::new(shared.clone()),
            shared,
            committer: Mutex::default(),
            opened_at,
        };
        Ok((engine, committer))
    }

    /// Returns the version before the first one of this opening.
    pub(super) fn opened_at(&self) -> i64 {
        self.opened_at
    }

    /// Gives a read version, at least every commit version acknowledged before, and what to read.
    pub(super) fn read_version(&self) -> Result<(i64, Snapshot)> {
        let (version, state) = self.shared.timeline.read_version()?;
        Ok((version, Snapshot::new(version, state, self.shared.clone())))
    }

    /// Returns what to read at a version obtained elsewhere.
    ///
    /// # Errors
    /// `transaction_too_old`, after five seconds or sooner; `future_version`, at once.
    pub(super) fn snapshot_at(&self, version: i64) -> Result<Snapshot> {
        let state = self.shared.timeline.state_at(version)?;
        Ok(Snapshot::new(version, state, self.shared.clone()))
    }

    /// Sends a commit at the call, and gives its verdict.
    ///
    /// # Errors
    /// `not_committed`, `transaction_too_old`; `commit_proxy_memory_limit_exceeded` if too many
    /// commits wait; `commit_unknown_result` if the store failed under this commit, and
    /// [`Error::Poisoned`] if it failed before.
    ///
    /// # Cancel safety
    /// Dropping the future does not stop the commit.
    pub(super) fn commit(
        &self,
        request: CommitRequest,
    ) -> impl Future<Output = Result<Commit>> + Send + use<> {
        let sent = self.send(request);
        async {
            sent?
                .await
                .unwrap_or(Err(Code::COMMIT_UNKNOWN_RESULT.into()))
        }
    }

    pub(super) fn watches(&self) -> &Watches {
        &self.watches
    }

    pub(super) fn environment(&self) -> &Environment {
        self.shared.timeline.environment()
    }

    /// Commits what was sent, ends the thread, closes the file. Blocks until that is done. Fails
    /// if the store had failed, or its last flush does; a second call has nothing left to do.
    pub(super) fn shut_down(&self) -> Result<()> {
        let mut committer = self.committer.lock();
        self.shared.queue.close();
        let is_here = |thread: &JoinHandle<_>| thread.thread().id() == thread::current().id();
        // Who is woken by the committer may drop the last handle there. The thread ends by itself.
        let elsewhere = committer.take().filter(|thread| !is_here(thread));
        match elsewhere.map(JoinHandle::join) {
            Some(Ok(ended)) => ended,
            Some(Err(_panic)) => self.shared.timeline.check(),
            None => Ok(()),
        }
    }

    fn send(&self, request: CommitRequest) -> Result<oneshot::Receiver<Result<Commit>>> {
        let read_version = match request.read_version {
            Some(version) => {
                self.shared.timeline.check()?;
                version
            }
            None => self.shared.timeline.read_version()?.0,
        };
        let (verdict, receiver) = oneshot::channel();
        let commit = PendingCommit {
            request,
            read_version,
            verdict,
        };
        self.shared.queue.push(commit).or_else(|refusal| {
            self.shared.timeline.check()?;
            Err(refusal)
        })?;
        Ok(receiver)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // Whoever wants to know whether the last flush succeeded closes the store.
        let _ = self.shut_down();
    }
}

impl Shared {
    pub(super) fn timeline(&self) -> &Timeline {
        &self.timeline
    }

    pub(super) fn queue(&self) -> &Queue {
        &self.queue
    }

    pub(super) fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// Returns what the newest commit left.
    pub(super) fn newest(self: &Arc<Self>) -> Result<Snapshot> {
        let (version, state) = self.timeline.read_version()?;
        Ok(Snapshot::new(version, state, self.clone()))
    }

    /// Ends the store for a failure of its storage, and returns the error that everything gets
    /// from now on.
    pub(super) fn poison(&self, cause: impl StdError + Send + Sync + 'static) -> Error {
        tracing::error!(%cause, "the store stops: its storage failed");
        let cause = Arc::new(cause);
        self.end(Error::Poisoned { cause })
    }

    /// Ends the store: everything that waits, and everything later, gets the error returned. That
    /// is `error` unless the store had ended before.
    pub(super) fn end(&self, error: Error) -> Error {
        // The reason comes first: closing the queue ends the committer, which gives its own.
        let error = self.timeline.end(error);
        self.queue.close();
        for commit in self.queue.take_all() {
            // Who has stopped waiting does not hear of it.
            let _ = commit.verdict.send(Err(error.clone()));
        }
        self.registry.fail_all(&error);
        error
    }
}

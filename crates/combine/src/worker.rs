//! What combines updates: a process's part in the work on a queue.

use std::sync::Arc;

use hc_dequeue::keyspace::codec::Codec;
use hc_dequeue::keyspace::{Database, Runner};

use crate::bucket_worker::{BucketWorker, BucketWorkerOptions, WorkerHandle};
use crate::combining::Combining;
use crate::error::{Error, Result};
use crate::metrics::Metrics;
use crate::observer::ChangeObserver;
use crate::options::CombineOptions;
use crate::queue::CombineQueue;

/// Combines the updates of a queue until it is shut down.
///
/// Behind it runs a task with a session of its own. The buckets are divided between the living
/// sessions, with nothing to be written for it: each session computes the same order of sessions for
/// a bucket, and the first one combines it. While they disagree about who lives, two may try the same
/// bucket, and one of their passes fails with a conflict. When a worker dies, the others combine its
/// buckets as soon as its session is found dead, after a lease; when a pass hangs, after the
/// [time for a takeover](CombineOptions::takeover_after).
///
/// # Conflicts
/// A pass conflicts with another pass over the same bucket, with an
/// [initialization](CombineQueue::initialize) of a key that it combines, with what its observer
/// conflicts with, and never with an [addition](CombineQueue::add).
///
/// # Retries
/// The runner's: a pass is a transaction that commits exactly once.
///
/// # Cancel safety
/// Dropping a worker stops it wherever it is: a pass is committed or is not, and the session ends
/// after a lease.
pub type Worker = WorkerHandle<Error>;

impl<K, U, V, C> CombineQueue<K, U, V, C>
where
    K: Send + Sync + 'static,
    U: Send + 'static,
    V: Send + Sync + 'static,
    C: Codec<K> + Codec<U> + Codec<V>,
{
    /// Opens a session and combines the updates of the queue, telling the observer what changes.
    ///
    /// # Errors
    /// Those of [`Runner::run`].
    ///
    /// # Cancel safety
    /// Dropping the future may leave a session without a heartbeat, which others remove.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn work<D: Database>(
        &self,
        runner: &Runner<D>,
        options: CombineOptions,
        observer: impl ChangeObserver<K, V>,
    ) -> Result<Worker> {
        let own = BucketWorkerOptions::new(
            self.keys.sessions.clone(),
            self.settings.lease,
            self.keys.wake(),
        );
        let own = own
            .concurrency(options.concurrency())
            .takeover_after(options.takeover_after)
            .poll_interval(options.poll_interval());
        let job = Combining {
            queue: self.clone(),
            runner: runner.clone(),
            options,
            observer,
            metrics: Metrics::new(&self.subspace().to_string()),
        };
        let worker = BucketWorker::open(Arc::new(job), runner.clone(), own).await?;
        let span =
            tracing::debug_span!("combine", queue = %self.subspace(), session = %worker.session());
        Ok(WorkerHandle::spawn(worker, span))
    }
}

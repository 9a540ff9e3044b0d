//! What exports: a process's part in the work on a subscription.

use std::sync::Arc;

use combine::bucket_worker::{BucketWorker, BucketWorkerOptions, WorkerHandle};
use combine::keyspace::codec::Codec;
use combine::keyspace::{Database, Runner};

use crate::error::{Error, Result};
use crate::exporter::Exporter;
use crate::exporting::Exporting;
use crate::metrics::Metrics;
use crate::options::ExportOptions;
use crate::subscription::Subscription;

/// Exports the entries of a subscription until it is shut down.
///
/// A task with a session of its own does the work. The buckets are divided between the living sessions
/// of the subscription, as those of a combine queue are, and each batch is exported under a claim: of two
/// sessions that both take a bucket for theirs, one sets the position.
///
/// # Retries
/// Transactions are retried by the runner, and batches after a [backoff](combine::WorkerOptions::backoff).
///
/// # Cancel safety
/// Dropping a worker stops it wherever it is. A batch that was under way comes again, once the session
/// is found dead, after a lease.
pub type Worker = WorkerHandle<Error>;

impl<K, V, C> Subscription<K, V, C>
where
    K: Send + Sync + 'static,
    V: Send + Sync + 'static,
    C: Codec<K> + Codec<V>,
{
    /// Opens a session and exports.
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
        options: ExportOptions,
        exporter: impl Exporter<K, V>,
    ) -> Result<Worker> {
        let lease = self.queue.settings.get_lease();
        let own = BucketWorkerOptions::new(self.sessions(), lease, self.queue.keys.wake())
            .concurrency(options.concurrency())
            .takeover_after(options.takeover_after)
            .poll_interval(options.poll_interval());
        let queue = self.queue.subspace().to_string();
        let job = Exporting {
            subscription: self.clone(),
            runner: runner.clone(),
            metrics: Metrics::new(&queue, &self.name),
            options,
            exporter,
        };
        let worker = BucketWorker::open(Arc::new(job), runner.clone(), own).await?;
        let subscription = &*self.name;
        let session = worker.session();
        let span = tracing::debug_span!("export", queue, subscription, %session);
        Ok(WorkerHandle::spawn(worker, span))
    }
}

//! The worker, a process's part in exporting the entries of a subscription.
//!
//! | step | reads | writes | conflicts with a transaction that |
//! |---|---|---|---|
//! | a worker begins, ends, or removes dead sessions | `s` of the sessions that it removes | `s` and `b`; `w` | wrote one of these `s` |
//!
//! `s` and `b` stand for the sessions of the subscription. Heartbeats, and declaring a session dead, are as in
//! hc-dequeue.

use std::sync::Arc;

use combine::WorkerOptions;
use combine::bucket_worker::{BucketWorker, BucketWorkerOptions, Job, WorkerHandle};
use combine::keyspace::codec::{Codec, Raw};
use combine::keyspace::names::queue_name;
use combine::keyspace::{Bytes, Database, Runner, Store};
use futures::future::BoxFuture;

use crate::error::{Error, Result};
use crate::exporter::Exporter;
use crate::exporting::typed::{QueueExporter, TypedExporter};
use crate::exporting::{Exporting, RetryState};
use crate::subscription::Subscription;

/// Exports the entries of a subscription until it is shut down.
///
/// A worker is a task with a session of its own. The workers of a subscription divide the buckets among
/// the living sessions, as those of a combine queue do. A worker exports each batch under a claim of its
/// bucket: if two sessions both consider a bucket theirs, only one of them sets the position.
///
/// # Retries
/// The runner retries transactions. A batch that fails is retried after a
/// [backoff](WorkerOptions::with_backoff).
///
/// # Cancel safety
/// Dropping a worker stops it at once. A batch under way is exported again after a lease, when the
/// session is declared dead.
pub type Worker = WorkerHandle<Error>;

impl<K, V, C> Subscription<K, V, C>
where
    K: Send + Sync + 'static,
    V: Send + Sync + 'static,
    C: Codec<K> + Codec<V>,
{
    /// Starts a worker: opens a session, and exports the entries of the subscription in a new task.
    ///
    /// # Errors
    /// Those of [`Runner::run`].
    ///
    /// # Cancel safety
    /// Dropping the future may leave a session without a heartbeat, which other workers remove after a
    /// lease.
    ///
    /// # Panics
    /// If called outside of a tokio runtime.
    pub async fn work<D: Database>(
        &self,
        runner: &Runner<D>,
        options: WorkerOptions,
        exporter: impl Exporter<K, V>,
    ) -> Result<Worker> {
        let exporter = QueueExporter {
            queue: self.queue.clone(),
            exporter,
        };
        start(
            self.untyped(),
            runner.on_store(),
            options,
            Box::new(exporter),
        )
        .await
    }
}

/// Starts a worker of any subscription.
fn start(
    subscription: Subscription<Bytes, Bytes, Raw>,
    runner: Runner<Store>,
    options: WorkerOptions,
    exporter: Box<dyn TypedExporter>,
) -> BoxFuture<'static, Result<Worker>> {
    Box::pin(async move {
        let queue = subscription.queue.subspace().clone();
        let name = subscription.name.clone();
        let lease = subscription.queue.settings.lease();
        let wake = subscription.queue.keys.wake();
        let sessions = subscription.sessions();
        let exporting = Exporting::new(subscription, runner.clone(), &options, exporter);
        let options = options.with_takeover_after(exporting.options.takeover_after);
        let bucket_options = BucketWorkerOptions::new(sessions, lease, wake, &options);
        let job: Arc<dyn Job<Error = Error, State = RetryState>> = Arc::new(exporting);
        let worker = BucketWorker::open(job, runner, bucket_options).await?;
        let session = worker.session();
        let span = tracing::debug_span!("export", queue = queue_name(&queue), subscription = &*name, %session);
        Ok(WorkerHandle::spawn(worker, span))
    })
}

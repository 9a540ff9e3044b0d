//! The worker, a process's part in combining the updates of a queue.

use std::sync::Arc;

use futures::future::BoxFuture;
use hc_dequeue::WorkerOptions;
use hc_dequeue::keyspace::codec::{Codec, Raw};
use hc_dequeue::keyspace::names::queue_name;
use hc_dequeue::keyspace::{Bytes, Database, Runner, Store};

use crate::bucket_worker::{BucketWorker, BucketWorkerOptions, Job, WorkerHandle};
use crate::error::{Error, Result};
use crate::pass::combining::{BeginPass, Combining, RetryState};
use crate::pass::observer::ChangeObserver;
use crate::pass::typed::{QueuePass, TypedPass};
use crate::queue::CombineQueue;

/// Combines the updates of a queue until it is shut down.
///
/// A worker is a task with a session of its own. The workers of a queue divide the buckets among the
/// living sessions without writing anything: each session computes the same order of sessions for a
/// bucket, and the first one combines it. While sessions disagree about which of them are alive, two of
/// them may work on the same bucket, and the pass of one fails with a conflict. When a worker dies, its
/// session is declared dead after a lease, and the other workers combine its buckets. When a pass hangs,
/// another worker takes over the bucket after the [takeover time](WorkerOptions::with_takeover_after).
///
/// # Conflicts
/// A pass conflicts with another pass over the same bucket, with the
/// [initialization](CombineQueue::initialize) of a key that it combines, and with transactions that its
/// observer conflicts with. It never conflicts with an [addition](CombineQueue::add).
///
/// # Retries
/// The runner retries a pass, so that it commits exactly once.
///
/// # Cancel safety
/// Dropping a worker stops it at once. A pass under way commits or does not, and the session ends after a
/// lease.
pub type Worker = WorkerHandle<Error>;

impl<K, U, V, C> CombineQueue<K, U, V, C>
where
    K: Send + Sync + 'static,
    U: Send + 'static,
    V: Send + Sync + 'static,
    C: Codec<K> + Codec<U> + Codec<V>,
{
    /// Starts a worker: opens a session, and combines the updates of the queue in a new task. Every
    /// change goes to `observer`.
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
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    ///
    /// use combine::keyspace::{self, Runner};
    /// use combine::{CombineQueue, Sum, Unobserved, WorkerOptions};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let runner = Runner::new(keyspace::open("memory:")?);
    /// let words = &CombineQueue::<String, i64>::open(&runner, "words", Sum).await?;
    ///
    /// let worker = words.work(&runner, WorkerOptions::default(), Unobserved).await?;
    /// words.wait_idle(&runner).await?;
    /// worker.shut_down(Duration::from_secs(5)).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn work<D: Database>(
        &self,
        runner: &Runner<D>,
        options: WorkerOptions,
        observer: impl ChangeObserver<K, V>,
    ) -> Result<Worker> {
        let begin_pass = self.begin_pass(observer);
        start(self.untyped(), runner.on_store(), &options, begin_pass).await
    }

    /// Returns what begins the part of each pass that knows the types of keys and values.
    pub(crate) fn begin_pass(&self, observer: impl ChangeObserver<K, V>) -> BeginPass {
        let queue = self.clone();
        let observer = Arc::new(observer);
        Box::new(move || -> Box<dyn TypedPass> {
            Box::new(QueuePass::new(queue.clone(), observer.clone()))
        })
    }
}

/// Starts a worker of any queue.
fn start(
    queue: CombineQueue<Bytes, Bytes, Bytes, Raw>,
    runner: Runner<Store>,
    options: &WorkerOptions,
    begin_pass: BeginPass,
) -> BoxFuture<'_, Result<Worker>> {
    Box::pin(async move {
        let lease = queue.settings.lease;
        let wake = queue.keys.wake();
        let bucket_options = BucketWorkerOptions::new(queue.sessions(), lease, wake, options);
        let subspace = queue.subspace().clone();
        let combining = Combining::new(queue, runner.clone(), options, begin_pass);
        let job: Arc<dyn Job<Error = Error, State = RetryState>> = Arc::new(combining);
        let worker = BucketWorker::open(job, runner, bucket_options).await?;
        let session = worker.session();
        let span = tracing::debug_span!("combine", queue = %queue_name(&subspace), %session);
        Ok(WorkerHandle::spawn(worker, span))
    })
}

//! A bucket worker in a task of its own.

use std::time::Duration;

use hc_dequeue::Backoff;
use hc_dequeue::keyspace::error::chain;
use hc_dequeue::keyspace::foreign::{self, Guarded};
use hc_dequeue::keyspace::{Environment, Subspace};
use hc_dequeue::shutdown::{DROP_LIMIT, NotEnded, SESSION_END_LIMIT, ShutdownReport, within};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::Instrument;

use super::job::Job;
use super::worker::{BucketWorker, PAUSE_AFTER_FAILURE};

/// The longest pause before a worker that has failed is started again.
const MAX_PAUSE: Duration = Duration::from_secs(30);

/// A bucket worker in a task of its own. Dropping the handle stops the worker at once.
#[must_use = "a worker whose handle is dropped stops"]
pub struct WorkerHandle<E> {
    task: JoinSet<Result<ShutdownReport, E>>,
    /// The grace period, once the worker is to stop.
    stop: watch::Sender<Option<Duration>>,
    env: Environment,
    recipe: Subspace,
}

impl<E: From<NotEnded> + Send + 'static> WorkerHandle<E> {
    /// Spawns the task of a worker in the given span.
    ///
    /// # Panics
    /// If called outside of a tokio runtime.
    pub fn spawn<J>(worker: BucketWorker<J>, span: tracing::Span) -> Self
    where
        J: Job<Error = E> + ?Sized,
    {
        let (stop, stopped) = watch::channel(None);
        let env = worker.environment().clone();
        let recipe = worker.recipe().clone();
        let mut task = JoinSet::new();
        task.spawn(keep_running(worker, stopped).instrument(span));
        Self {
            task,
            stop,
            env,
            recipe,
        }
    }

    /// Stops the worker: it starts no more passes or batches, waits up to `grace` for those under way,
    /// and ends the session, so that other workers take over its buckets immediately.
    ///
    /// An observer or exporter that blocks its thread cannot be dropped. The worker goes on without it
    /// [`DROP_LIMIT`] after the grace. If it returns later, its pass commits only if no other session has made
    /// one over the bucket, and the position of its batch is refused. The call returns at the latest
    /// [`SESSION_END_LIMIT`] after that. It needs a thread of the runtime that no such call blocks. The
    /// runtime waits for blocked threads when it is dropped: see [`ShutdownReport`].
    ///
    /// # Errors
    /// Those of [`Runner::run`](hc_dequeue::keyspace::Runner::run), and [`NotEnded`] if the store does not
    /// answer in time. The session then ends after a lease.
    ///
    /// # Cancel safety
    /// Dropping the future drops the handle, which stops the worker at once.
    pub async fn shut_down(mut self, grace: Duration) -> Result<ShutdownReport, E> {
        self.stop.send_replace(Some(grace));
        let limit = grace.saturating_add(DROP_LIMIT + SESSION_END_LIMIT);
        match within(&self.env, limit, self.task.join_next()).await {
            Some(Some(Ok(ended))) => ended,
            // The store does not answer, or the runtime has dropped the task.
            _ => Err(E::from(NotEnded {
                recipe: self.recipe,
                limit,
            })),
        }
    }
}

/// Runs a worker until it is stopped. If a fault of this library ends it before, starts it again, in
/// another session.
async fn keep_running<J: Job + ?Sized>(
    worker: BucketWorker<J>,
    mut stop: watch::Receiver<Option<Duration>>,
) -> Result<ShutdownReport, J::Error> {
    let (job, runner, options) = worker.parts();
    // The last handle of the application's observer or exporter may be this one.
    let job = Guarded::new(job);
    let mut opened = Some(worker);
    let mut restarted = 0;
    let mut failures = 0_u32;
    loop {
        failures = failures.saturating_add(1);
        let run = async {
            let worker = match opened.take() {
                Some(worker) => worker,
                None => BucketWorker::open((*job).clone(), runner.clone(), options.clone()).await?,
            };
            worker.run(&mut stop).await
        };
        match foreign::run(Box::pin(run)).await {
            Ok(Ok(mut report)) => {
                report.restarted = restarted;
                return Ok(report);
            }
            Ok(Err(error)) if stop.borrow().is_some() => return Err(error),
            Ok(Err(error)) => {
                let error = chain(&error);
                tracing::warn!(%error, "a worker could not be started again: it tries once more");
            }
            Err(panicked) => {
                restarted += 1;
                job.restarts();
                let panic = panicked.message();
                tracing::error!(
                    panic,
                    "a fault of this library has ended a worker: it starts again"
                );
            }
        }
        let env = runner.environment();
        // Each start opens a session, which lives for a lease.
        let pauses = Backoff::new(PAUSE_AFTER_FAILURE, MAX_PAUSE);
        env.sleep(pauses.after(failures, env)).await;
    }
}

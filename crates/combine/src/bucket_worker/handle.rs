//! A bucket worker in a task of its own.

use std::time::Duration;

use hc_dequeue::keyspace::Database;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tracing::Instrument;

use super::job::Job;
use super::worker::BucketWorker;

/// A bucket worker in a task of its own. Dropping the handle stops the worker at once.
#[must_use = "a worker whose handle is dropped stops"]
pub struct WorkerHandle<E> {
    task: JoinSet<Result<(), E>>,
    stop: oneshot::Sender<Duration>,
}

impl<E: Send + 'static> WorkerHandle<E> {
    /// Spawns the task of a worker in the given span.
    ///
    /// # Panics
    /// If called outside of a tokio runtime.
    pub fn spawn<J: Job<Error = E>, D: Database>(
        worker: BucketWorker<J, D>,
        span: tracing::Span,
    ) -> Self {
        let (stop, stopped) = oneshot::channel();
        let mut task = JoinSet::new();
        task.spawn(worker.run(stopped).instrument(span));
        Self { task, stop }
    }

    /// Stops the worker: it starts no more passes or batches, waits up to `grace` for those under way,
    /// and ends the session, so that other workers take over its buckets immediately.
    ///
    /// # Errors
    /// Those of [`Runner::run`](hc_dequeue::keyspace::Runner::run). The session then ends after a lease.
    ///
    /// # Cancel safety
    /// Dropping the future drops the handle, which stops the worker at once.
    pub async fn shut_down(mut self, grace: Duration) -> Result<(), E> {
        // A worker ends without being stopped only if it panicked, which the join reports.
        let _ = self.stop.send(grace);
        match self.task.join_next().await {
            Some(Ok(ended)) => ended,
            Some(Err(error)) if error.is_panic() => {
                std::panic::resume_unwind(error.into_panic());
            }
            _ => Ok(()),
        }
    }
}

//! What combines updates: a process's part in the work on a queue.

use std::sync::Arc;
use std::time::Duration;

use hc_dequeue::Backoff;
use hc_dequeue::keyspace::codec::Codec;
use hc_dequeue::keyspace::{Database, Runner};

use crate::combining::Combining;
use crate::crew::{Crew, CrewOptions, Hands};
use crate::error::{Error, Result};
use crate::metrics::Metrics;
use crate::observer::ChangeObserver;
use crate::queue::CombineQueue;

/// The shortest time limit, patience and poll interval: with none a worker would do nothing else.
const SHORTEST: Duration = Duration::from_millis(1);

/// How a [`Worker`] works.
#[derive(Debug, Clone)]
pub struct WorkerOptions {
    pub(crate) bytes_per_pass: usize,
    pub(crate) concurrency: usize,
    pub(crate) observer_time_limit: Duration,
    pub(crate) patience: Duration,
    pub(crate) poll_interval: Duration,
    pub(crate) backoff: Backoff,
}

impl Default for WorkerOptions {
    /// Passes of a mebibyte, four at once; an observer has three seconds, and another worker five; a
    /// look every second at what a watch should have told; waits from 100 milliseconds to 30 seconds
    /// after failures.
    fn default() -> Self {
        Self {
            bytes_per_pass: 1 << 20,
            concurrency: 4,
            observer_time_limit: Duration::from_secs(3),
            patience: Duration::from_secs(5),
            poll_interval: Duration::from_secs(1),
            backoff: Backoff {
                first: Duration::from_millis(100),
                longest: Duration::from_secs(30),
            },
        }
    }
}

impl WorkerOptions {
    /// Sets how many bytes of updates and values a pass reads and how many bytes of its transaction it
    /// takes for itself, both together, and so how much memory. At least one update is combined,
    /// however large. What the observer stages comes on top: if that makes the transaction too large
    /// or too slow, the pass is tried with a smaller budget.
    #[must_use]
    pub fn bytes_per_pass(mut self, bytes: usize) -> Self {
        self.bytes_per_pass = bytes.max(1);
        self
    }

    /// Sets how many buckets are combined at the same time, at least one.
    #[must_use]
    pub fn concurrency(mut self, buckets: usize) -> Self {
        self.concurrency = buckets.max(1);
        self
    }

    /// Sets how long a call of the observer may take. A transaction lives for five seconds, and needs
    /// some of them for its reads and its commit.
    #[must_use]
    pub fn observer_time_limit(mut self, limit: Duration) -> Self {
        self.observer_time_limit = limit.max(SHORTEST);
        self
    }

    /// Sets how long a bucket of a worker that lives may stand still before the next one in the order
    /// of that bucket combines it; the one after that waits for twice as long, and so on. They look
    /// that often, so it may take one patience more.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience.max(SHORTEST);
        self
    }

    /// Sets how often a worker looks although nothing woke it. A watch wakes it as soon as there is
    /// an update; this is for those that get lost.
    #[must_use]
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.poll_interval = interval.max(SHORTEST);
        self
    }

    /// Sets when a bucket is tried again whose observer, or whose pass, has failed.
    #[must_use]
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }
}

/// Combines the updates of a queue until it is shut down.
///
/// Behind it runs a task with a session of its own. The buckets are divided between the living
/// sessions, with nothing to be written for it: each session computes the same order of sessions for
/// a bucket, and the first one combines it. While they disagree about who lives, two may try the same
/// bucket, and one of their passes fails with a conflict. When a worker dies, the others combine its
/// buckets as soon as its session is found dead, after a lease; when a pass hangs, after the
/// [patience](WorkerOptions::patience).
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
#[must_use = "a worker that is dropped stops"]
pub struct Worker(Hands<Error>);

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
        options: WorkerOptions,
        observer: impl ChangeObserver<K, V>,
    ) -> Result<Worker> {
        let crew = CrewOptions {
            concurrency: options.concurrency,
            patience: options.patience,
            poll_interval: options.poll_interval,
            sessions: self.keys.sessions.clone(),
            lease: self.settings.lease,
            wake: self.keys.wake(),
        };
        let job = Combining {
            queue: self.clone(),
            runner: runner.clone(),
            options,
            observer,
            metrics: Metrics::new(&self.subspace().to_string()),
        };
        let crew = Crew::open(Arc::new(job), runner.clone(), crew).await?;
        let span =
            tracing::debug_span!("combine", queue = %self.subspace(), session = %crew.session());
        Ok(Worker(Hands::begin(crew, span)))
    }
}

impl Worker {
    /// Begins no more passes, waits up to `grace` for those under way, and ends the session, so that
    /// others combine its buckets at once.
    ///
    /// # Errors
    /// Those of [`Runner::run`]: the session ends after a lease then.
    ///
    /// # Cancel safety
    /// Dropping the future is dropping the worker.
    pub async fn shut_down(self, grace: Duration) -> Result<()> {
        self.0.shut_down(grace).await
    }
}

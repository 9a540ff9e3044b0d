//! What exports: a process's part in the work on a subscription.

use std::sync::Arc;
use std::time::Duration;

use combine::crew::{Crew, CrewOptions, Hands};
use combine::hc_dequeue::Backoff;
use combine::keyspace::codec::Codec;
use combine::keyspace::{Database, Runner};

use crate::error::{Error, Result};
use crate::exporter::Exporter;
use crate::exporting::Exporting;
use crate::metrics::Metrics;
use crate::subscription::Subscription;

/// The shortest time limit, patience and poll interval: with none a worker would do nothing else.
const SHORTEST: Duration = Duration::from_millis(1);

/// How a [`Worker`] works.
#[derive(Debug, Clone)]
pub struct WorkerOptions {
    pub(crate) bytes_per_batch: usize,
    pub(crate) concurrency: usize,
    pub(crate) export_time_limit: Duration,
    pub(crate) coalesces: bool,
    pub(crate) dead_after: Option<u32>,
    pub(crate) patience: Duration,
    pub(crate) poll_interval: Duration,
    pub(crate) backoff: Backoff,
}

impl Default for WorkerOptions {
    /// Batches of a mebibyte, four at once; a call of the exporter has a minute, and another worker two;
    /// every entry is exported, and tried for ever; a look every second at what a watch should have
    /// told; waits from 100 milliseconds to 30 seconds after failures.
    fn default() -> Self {
        Self {
            bytes_per_batch: 1 << 20,
            concurrency: 4,
            export_time_limit: Duration::from_secs(60),
            coalesces: false,
            dead_after: None,
            patience: Duration::from_secs(120),
            poll_interval: Duration::from_secs(1),
            backoff: Backoff {
                first: Duration::from_millis(100),
                longest: Duration::from_secs(30),
            },
        }
    }
}

impl WorkerOptions {
    /// Sets how many bytes of entries, as stored, a batch has at most; one entry at least.
    #[must_use]
    pub fn bytes_per_batch(mut self, bytes: usize) -> Self {
        self.bytes_per_batch = bytes.max(1);
        self
    }

    /// Sets how many buckets are exported at the same time, at least one.
    #[must_use]
    pub fn concurrency(mut self, buckets: usize) -> Self {
        self.concurrency = buckets.max(1);
        self
    }

    /// Sets how long a call of the exporter may take. Then its future is dropped, and the batch comes
    /// again.
    #[must_use]
    pub fn export_time_limit(mut self, limit: Duration) -> Self {
        self.export_time_limit = limit.max(SHORTEST);
        self
    }

    /// Sets whether of several entries of a key in a batch only the newest is exported, for receivers
    /// that keep the last value alone.
    #[must_use]
    pub fn coalesce(mut self, coalesces: bool) -> Self {
        self.coalesces = coalesces;
        self
    }

    /// Sets after how many failures of its own an entry is put aside as a
    /// [dead letter](Subscription::dead_letters), at least one. Otherwise it is tried for ever, and keeps
    /// what is behind it. While the receiver is away every entry fails: choose a number whose waits,
    /// taken together, are longer than that.
    #[must_use]
    pub fn dead_letter_after(mut self, failures: u32) -> Self {
        self.dead_after = Some(failures.max(1));
        self
    }

    /// Sets how long a bucket that somebody else has claimed may stand still, though its session
    /// lives, before it is taken away. It should be longer than a call of the exporter may take.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience.max(SHORTEST);
        self
    }

    /// Sets how often a worker looks although nothing woke it. A watch wakes it as soon as there is
    /// an entry; this is for those that get lost.
    #[must_use]
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.poll_interval = interval.max(SHORTEST);
        self
    }

    /// Sets when a batch that has failed is tried again. Other buckets go on meanwhile.
    #[must_use]
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }
}

/// Exports the entries of a subscription until it is shut down.
///
/// Behind it runs a task with a session of its own. The buckets are divided between the living sessions
/// of the subscription, as those of a combine queue are, and each batch is exported under a claim, so
/// that of two who believe to own a bucket one sets the position.
///
/// # Retries
/// Transactions are retried by the runner, and batches after a [backoff](WorkerOptions::backoff).
///
/// # Cancel safety
/// Dropping a worker stops it wherever it is. A batch that was under way comes again, once the session
/// is found dead, after a lease.
#[must_use = "a worker that is dropped stops"]
pub struct Worker(Hands<Error>);

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
        options: WorkerOptions,
        exporter: impl Exporter<K, V>,
    ) -> Result<Worker> {
        let crew = CrewOptions {
            concurrency: options.concurrency,
            patience: options.patience,
            poll_interval: options.poll_interval,
            sessions: self.sessions(),
            lease: self.queue.settings.lease,
            wake: self.queue.keys.wake(),
        };
        let queue = self.queue.subspace().to_string();
        let job = Exporting {
            subscription: self.clone(),
            runner: runner.clone(),
            metrics: Metrics::new(&queue, &self.name),
            options,
            exporter,
        };
        let crew = Crew::open(Arc::new(job), runner.clone(), crew).await?;
        let subscription = &*self.name;
        let session = crew.session();
        let span = tracing::debug_span!("export", queue, subscription, %session);
        Ok(Worker(Hands::begin(crew, span)))
    }
}

impl Worker {
    /// Begins no more batches, waits up to `grace` for those under way, and ends the session, so that
    /// others export its buckets at once.
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

//! The options of a worker.

use std::time::Duration;

use combine::{Backoff, WorkerOptions};

/// The shortest time until a takeover. Without a minimum, a worker would do nothing else.
const SHORTEST: Duration = Duration::from_millis(1);

/// The options of a [`Worker`](crate::Worker).
///
/// The defaults for the options set through [`worker`](Self::worker):
///
/// - it exports four buckets at the same time
/// - a call of the exporter may take a minute
/// - it polls for work every second, in case a watch was lost
/// - after a failure a batch waits from 100 milliseconds up to 30 seconds
///
/// ```
/// use std::time::Duration;
///
/// use export_queue::{ExportOptions, WorkerOptions};
///
/// let options = ExportOptions::new()
///     .worker(WorkerOptions::new().time_limit(Duration::from_secs(10)))
///     .takeover_after(Duration::from_secs(20))
///     .coalesce(true);
/// # drop(options);
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ExportOptions {
    worker: WorkerOptions,
    pub(crate) bytes_per_batch: usize,
    pub(crate) takeover_after: Duration,
    pub(crate) coalesce: bool,
    pub(crate) dead_letter_after: Option<u32>,
}

impl Default for ExportOptions {
    /// Batches of 1 MiB, and a takeover after two minutes. Every entry is exported, and retried without a
    /// limit.
    fn default() -> Self {
        Self {
            worker: WorkerOptions::default(),
            bytes_per_batch: 1 << 20,
            takeover_after: Duration::from_secs(120),
            coalesce: false,
            dead_letter_after: None,
        }
    }
}

impl ExportOptions {
    /// Returns the defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the options that the workers of all recipes share. The time limit applies to each call of the
    /// exporter.
    #[must_use]
    pub fn worker(mut self, options: WorkerOptions) -> Self {
        self.worker = options;
        self
    }

    /// Sets the most bytes of a batch, counting its encoded keys and values and its sequences. A batch
    /// has at least one entry, however large.
    #[must_use]
    pub fn bytes_per_batch(mut self, bytes: usize) -> Self {
        self.bytes_per_batch = bytes.max(1);
        self
    }

    /// Sets how long a bucket that another worker has claimed may make no progress, although its session
    /// is alive, before this worker takes it over. Choose more than the time limit of an exporter call.
    #[must_use]
    pub fn takeover_after(mut self, time: Duration) -> Self {
        self.takeover_after = time.max(SHORTEST);
        self
    }

    /// Sets whether only the newest entry of each key in a batch is exported. Use this for receivers that
    /// keep only the last value.
    #[must_use]
    pub fn coalesce(mut self, coalesce: bool) -> Self {
        self.coalesce = coalesce;
        self
    }

    /// Sets how often an entry may fail on its own before it becomes a [dead
    /// letter](crate::Subscription::dead_letters), at least once.
    ///
    /// By default an entry is retried without a limit, and the entries after it wait. Every entry fails
    /// while the receiver is unavailable, so choose a number of failures whose backoff times add up to
    /// more than such an outage.
    #[must_use]
    pub fn dead_letter_after(mut self, failures: u32) -> Self {
        self.dead_letter_after = Some(failures.max(1));
        self
    }

    pub(crate) fn concurrency(&self) -> usize {
        self.worker.concurrency_or(4)
    }

    pub(crate) fn export_time_limit(&self) -> Duration {
        self.worker.time_limit_or(Duration::from_secs(60))
    }

    pub(crate) fn poll_interval(&self) -> Duration {
        self.worker.poll_interval_or(Duration::from_secs(1))
    }

    pub(crate) fn backoff(&self) -> Backoff {
        let default = Backoff::new(Duration::from_millis(100), Duration::from_secs(30));
        self.worker.backoff_or(default)
    }
}

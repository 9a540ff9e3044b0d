//! How a worker works.

use std::time::Duration;

use combine::{Backoff, WorkerOptions};

/// The shortest time until a takeover: with none a worker would do nothing else.
const SHORTEST: Duration = Duration::from_millis(1);

/// How a [`Worker`](crate::Worker) works.
///
/// Unless set otherwise in [`worker`](Self::worker), it exports four buckets at once; a call of the
/// exporter has a minute; the worker looks once in a second, in case a watch was lost; a batch waits
/// from 100 milliseconds to 30 seconds after a failure.
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
    /// Batches of a mebibyte, and a takeover after two minutes; every entry is exported, and tried
    /// without end.
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
    /// Begins with the defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets what the workers of all recipes have in common. A call is one of the exporter.
    #[must_use]
    pub fn worker(mut self, options: WorkerOptions) -> Self {
        self.worker = options;
        self
    }

    /// Sets how many bytes a batch has at most, of the keys and values as encoded and of the sequences;
    /// one entry at least.
    #[must_use]
    pub fn bytes_per_batch(mut self, bytes: usize) -> Self {
        self.bytes_per_batch = bytes.max(1);
        self
    }

    /// Sets how long a bucket that another worker has claimed may stand still, though its session
    /// lives, before it is taken over. It should be longer than a call of the exporter may take.
    #[must_use]
    pub fn takeover_after(mut self, time: Duration) -> Self {
        self.takeover_after = time.max(SHORTEST);
        self
    }

    /// Sets whether of several entries of a key in a batch only the newest is exported, for receivers
    /// that keep the last value alone.
    #[must_use]
    pub fn coalesce(mut self, coalesce: bool) -> Self {
        self.coalesce = coalesce;
        self
    }

    /// Sets after how many failures of its own an entry is put aside as a
    /// [dead letter](crate::Subscription::dead_letters), at least one. Otherwise it is tried without
    /// end, and keeps back what comes after it. While the receiver is away every entry fails: choose a
    /// number whose waits, taken together, are longer than that.
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

//! How a worker works.

use std::time::Duration;

use hc_dequeue::{Backoff, WorkerOptions};

/// The shortest time until a takeover: with none a worker would do nothing else.
const SHORTEST: Duration = Duration::from_millis(1);

/// How a [`Worker`](crate::Worker) works.
///
/// Unless set otherwise in [`worker`](Self::worker), it combines four buckets at once; the observer has
/// three seconds; the worker looks every second at what a watch should have told; a bucket waits from
/// 100 milliseconds to 30 seconds after a failure.
///
/// ```
/// use combine::{CombineOptions, WorkerOptions};
///
/// let options = CombineOptions::new()
///     .worker(WorkerOptions::new().concurrency(8))
///     .bytes_per_pass(1 << 18);
/// # drop(options);
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct CombineOptions {
    worker: WorkerOptions,
    pub(crate) bytes_per_pass: usize,
    pub(crate) takeover_after: Duration,
    pub(crate) pass_interval: Duration,
}

impl Default for CombineOptions {
    /// Passes of a mebibyte, one right after the other, and a takeover after five seconds.
    fn default() -> Self {
        Self {
            worker: WorkerOptions::default(),
            bytes_per_pass: 1 << 20,
            takeover_after: Duration::from_secs(5),
            pass_interval: Duration::ZERO,
        }
    }
}

impl CombineOptions {
    /// Begins with the defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets what the workers of all recipes have in common. A call is one of the observer: it takes
    /// place in a transaction, which lives for five seconds and needs some of them for its reads and
    /// its commit.
    #[must_use]
    pub fn worker(mut self, options: WorkerOptions) -> Self {
        self.worker = options;
        self
    }

    /// Sets how many bytes of its transaction a pass takes for itself. It reads up to twice as many bytes of
    /// updates, and so takes memory in proportion. At least one update is combined, however large. What the
    /// observer stages comes on top: if that makes the transaction too large or too slow, the pass is tried
    /// with a smaller budget.
    #[must_use]
    pub fn bytes_per_pass(mut self, bytes: usize) -> Self {
        self.bytes_per_pass = bytes.max(1);
        self
    }

    /// Sets how long a bucket of a worker that lives may stand still before the next worker in the
    /// order of that bucket takes it over; the one after that waits for twice as long, and so on. They
    /// look that often, so a takeover may come as much later.
    #[must_use]
    pub fn takeover_after(mut self, time: Duration) -> Self {
        self.takeover_after = time.max(SHORTEST);
        self
    }

    /// Sets how long a bucket is left alone after a pass that reached the end of its log. The next pass then
    /// finds more updates: there are fewer and larger transactions, which write each value and each page of
    /// the store less often, and changes are reported later by up to this time.
    #[must_use]
    pub fn pass_interval(mut self, interval: Duration) -> Self {
        self.pass_interval = interval;
        self
    }

    pub(crate) fn concurrency(&self) -> usize {
        self.worker.concurrency_or(4)
    }

    pub(crate) fn observer_time_limit(&self) -> Duration {
        self.worker.time_limit_or(Duration::from_secs(3))
    }

    pub(crate) fn poll_interval(&self) -> Duration {
        self.worker.poll_interval_or(Duration::from_secs(1))
    }

    pub(crate) fn backoff(&self) -> Backoff {
        let default = Backoff::new(Duration::from_millis(100), Duration::from_secs(30));
        self.worker.backoff_or(default)
    }
}

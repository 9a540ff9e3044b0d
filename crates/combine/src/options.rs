//! The options of a worker.

use std::time::Duration;

use hc_dequeue::keyspace::limits::TRANSACTION_LIFE;
use hc_dequeue::{Backoff, WorkerOptions};

/// The shortest time until a takeover. Without a minimum, a worker would do nothing else.
const SHORTEST: Duration = Duration::from_millis(1);

/// The options of a [`Worker`](crate::Worker).
///
/// The defaults for the options set through [`worker`](Self::worker):
///
/// - it combines four buckets at the same time
/// - a call of the observer may take three seconds; a limit above five seconds counts as five, because the observer works
///   in a transaction
/// - it polls for work every second, in case a watch was lost
/// - after a failure a bucket waits from 100 milliseconds up to 30 seconds
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
    /// Passes of 1 MiB with no pause between them, and a takeover after five seconds.
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
    /// Returns the defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the options that the workers of all recipes share.
    ///
    /// The time limit applies to each call of the observer. The observer runs in the transaction of a pass,
    /// which lives for five seconds and needs some of them for its own reads and its commit.
    #[must_use]
    pub fn worker(mut self, options: WorkerOptions) -> Self {
        self.worker = options;
        self
    }

    /// Sets how many bytes of its transaction a pass uses for itself. A pass combines at least one
    /// update, however large.
    ///
    /// A pass reads up to twice this many bytes of updates, so its use of memory grows in proportion. Rows
    /// that the observer stages are not included: if they make the transaction too large or too slow, the
    /// pass is repeated with fewer changes. If the pass itself takes more than a quarter of a transaction
    /// that is too large, it is repeated with a smaller budget.
    #[must_use]
    pub fn bytes_per_pass(mut self, bytes: usize) -> Self {
        self.bytes_per_pass = bytes.max(1);
        self
    }

    /// Sets how long a bucket may make no progress, although its worker is alive, before another worker
    /// takes it over.
    ///
    /// The next worker in the order of that bucket takes it over after this time, the one after that
    /// after twice this time, and so on. Workers check at this interval, so a takeover may come later by
    /// up to this time.
    #[must_use]
    pub fn takeover_after(mut self, time: Duration) -> Self {
        self.takeover_after = time.max(SHORTEST);
        self
    }

    /// Sets how long a bucket rests after a pass that reached the end of its log.
    ///
    /// The next pass then finds more updates. This leads to fewer and larger transactions, which write
    /// each value and each page of the store less often. Changes are reported later by up to this time.
    #[must_use]
    pub fn pass_interval(mut self, interval: Duration) -> Self {
        self.pass_interval = interval;
        self
    }

    pub(crate) fn concurrency(&self) -> usize {
        self.worker.concurrency_or(4)
    }

    /// Returns how long a call of the observer may take: at most as long as its transaction lives.
    pub(crate) fn observer_time_limit(&self) -> Duration {
        let limit = self.worker.time_limit_or(Duration::from_secs(3));
        limit.min(TRANSACTION_LIFE)
    }

    pub(crate) fn poll_interval(&self) -> Duration {
        self.worker.poll_interval_or(Duration::from_secs(1))
    }

    pub(crate) fn backoff(&self) -> Backoff {
        let default = Backoff::new(Duration::from_millis(100), Duration::from_secs(30));
        self.worker.backoff_or(default)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_observer_has_no_more_time_than_its_transaction() {
        let limited = |limit| {
            let worker = WorkerOptions::new().time_limit(limit);
            CombineOptions::new().worker(worker).observer_time_limit()
        };
        assert_eq!(limited(Duration::from_secs(4)), Duration::from_secs(4));
        assert_eq!(limited(Duration::from_secs(6)), Duration::from_secs(5));
        assert_eq!(limited(Duration::MAX), Duration::from_secs(5));
    }
}

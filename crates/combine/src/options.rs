//! How a worker works.

use std::time::Duration;

use hc_dequeue::Backoff;

/// The shortest time limit, patience and poll interval: with none a worker would do nothing else.
const SHORTEST: Duration = Duration::from_millis(1);

/// How a [`Worker`](crate::Worker) works.
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

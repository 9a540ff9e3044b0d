//! Options of consumers and workers, including the workers of the recipes that build on this crate.

use std::time::Duration;

use microqueue::keyspace::Environment;

/// The shortest time limit and poll interval. With zero, a worker would only poll and expire deliveries.
const SHORTEST: Duration = Duration::from_millis(1);

/// Options of a [`Consumer`](crate::Consumer).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ConsumerOptions {
    pub(crate) time_limit: Duration,
    pub(crate) poll_interval: Duration,
    pub(crate) backoff: Backoff,
}

impl Default for ConsumerOptions {
    /// Five minutes for each delivery, a poll interval of one second and the default [`Backoff`].
    fn default() -> Self {
        Self {
            time_limit: Duration::from_secs(5 * 60),
            poll_interval: Duration::from_secs(1),
            backoff: Backoff::default(),
        }
    }
}

impl ConsumerOptions {
    /// Returns the default options.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets how long a delivery may take, at least one millisecond. After that, it has failed, and its item comes back
    /// after the [backoff](Self::backoff).
    #[must_use]
    pub fn delivery_time_limit(mut self, limit: Duration) -> Self {
        self.time_limit = limit.max(SHORTEST);
        self
    }

    /// Sets how often a waiting consumer checks for items without being woken, at least one millisecond.
    ///
    /// Watches wake a consumer as soon as there is an item; polling only covers watches that get lost.
    #[must_use]
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.poll_interval = interval.max(SHORTEST);
        self
    }

    /// Sets how long an item waits after a failure for which the program has chosen no time: the time limit of its
    /// delivery has passed, the delivery was dropped, or the acknowledgement did not commit.
    ///
    /// An item whose value does not decode waits at least as long as with the default backoff, so that many such items
    /// leave time for the others.
    #[must_use]
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }
}

/// An exponential backoff: how long to wait after failures.
///
/// After the n-th failure in a row, the wait is `first * 2^(n - 1)`, but at most `longest`. A random part of up to
/// half of it is subtracted, so that items that failed together are not retried together.
///
/// ```
/// use std::time::Duration;
///
/// use hc_dequeue::Backoff;
///
/// let backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(30));
/// assert_ne!(backoff, Backoff::default());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Backoff {
    first: Duration,
    longest: Duration,
}

impl Default for Backoff {
    /// A first wait of one second and a longest wait of five minutes.
    fn default() -> Self {
        Self::new(Duration::from_secs(1), Duration::from_secs(5 * 60))
    }
}

impl Backoff {
    /// Returns a backoff that waits for `first` after the first failure and never longer than `longest`.
    #[must_use]
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest }
    }

    /// Returns a backoff that never waits less than this one or `other`, but for the random part.
    pub(crate) fn no_shorter_than(self, other: Self) -> Self {
        Self {
            first: self.first.max(other.first),
            longest: self.longest.max(other.longest),
        }
    }

    /// Returns how long to wait after the given number of failures in a row.
    #[must_use]
    pub fn after(self, failures: u32, env: &Environment) -> Duration {
        let doublings = failures.saturating_sub(1).min(30);
        let wait = self.first.saturating_mul(1 << doublings).min(self.longest);
        // No more than half of it, so that the longest duration does not overflow.
        wait - wait.mul_f64(env.random_unit() / 2.0)
    }
}

/// Options that the workers of all recipes share.
///
/// An option that is not set has the recipe's default. The defaults of this crate: sixteen handlers run at the same
/// time, a handler may take five minutes, the worker polls every second, and an item waits from one second to five
/// minutes after a failure.
///
/// ```
/// use std::time::Duration;
///
/// use hc_dequeue::WorkerOptions;
///
/// let options = WorkerOptions::new().concurrency(4).time_limit(Duration::from_secs(30));
/// # drop(options);
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerOptions {
    concurrency: Option<usize>,
    time_limit: Option<Duration>,
    poll_interval: Option<Duration>,
    backoff: Option<Backoff>,
}

impl WorkerOptions {
    /// Returns options that all have the recipe's defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets how many calls run at the same time, at least one. A call is that of a handler for one item, or of an
    /// observer or exporter for one bucket.
    #[must_use]
    pub fn concurrency(mut self, calls: usize) -> Self {
        self.concurrency = Some(calls.max(1));
        self
    }

    /// Sets how long a call of a handler, observer or exporter may take, at least one millisecond. After that, its
    /// future is dropped and its work is retried.
    #[must_use]
    pub fn time_limit(mut self, limit: Duration) -> Self {
        self.time_limit = Some(limit.max(SHORTEST));
        self
    }

    /// Sets how often a worker checks for work without being woken, at least one millisecond.
    ///
    /// Watches wake a worker as soon as there is work; polling only covers watches that get lost.
    #[must_use]
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.poll_interval = Some(interval.max(SHORTEST));
        self
    }

    /// Sets the wait before failed work is retried.
    #[must_use]
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = Some(backoff);
        self
    }

    /// Returns how many calls run at the same time, or `default` if it was not set.
    #[must_use]
    pub fn concurrency_or(&self, default: usize) -> usize {
        self.concurrency.unwrap_or(default)
    }

    /// Returns how long a call may take, or `default` if it was not set.
    #[must_use]
    pub fn time_limit_or(&self, default: Duration) -> Duration {
        self.time_limit.unwrap_or(default)
    }

    /// Returns how often a worker checks for work without being woken, or `default` if it was not set.
    #[must_use]
    pub fn poll_interval_or(&self, default: Duration) -> Duration {
        self.poll_interval.unwrap_or(default)
    }

    /// Returns the backoff, or `default` if it was not set.
    #[must_use]
    pub fn backoff_or(&self, default: Backoff) -> Backoff {
        self.backoff.unwrap_or(default)
    }
}

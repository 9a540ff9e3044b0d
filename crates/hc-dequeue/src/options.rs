//! How consumers and workers work, those of the recipes above included.

use std::time::Duration;

use microqueue::keyspace::Environment;

/// The shortest time limit and poll interval: with none a worker would do nothing else.
const SHORTEST: Duration = Duration::from_millis(1);

/// How a [`Consumer`](crate::Consumer) works.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ConsumerOptions {
    pub(crate) time_limit: Duration,
    pub(crate) poll_interval: Duration,
    pub(crate) backoff: Backoff,
}

impl Default for ConsumerOptions {
    /// Five minutes for each delivery, a read every second of what watches should have reported, and the default
    /// [`Backoff`].
    fn default() -> Self {
        Self {
            time_limit: Duration::from_secs(5 * 60),
            poll_interval: Duration::from_secs(1),
            backoff: Backoff::default(),
        }
    }
}

impl ConsumerOptions {
    /// Begins with the defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets how long a delivery may take. Afterwards its item goes back to the queue.
    #[must_use]
    pub fn delivery_time_limit(mut self, limit: Duration) -> Self {
        self.time_limit = limit.max(SHORTEST);
        self
    }

    /// Sets how often a consumer that waits looks although nothing woke it. Watches wake it as soon
    /// as there is an item; this is for those that get lost.
    #[must_use]
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.poll_interval = interval.max(SHORTEST);
        self
    }

    /// Sets when an item that does not decode is tried again.
    #[must_use]
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }
}

/// When something is tried again that has failed.
///
/// After the n-th failure in a row it waits for `first * 2^(n - 1)`, `longest` at most, of which a
/// random part of up to a half is taken off, so that what failed together is not tried together.
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
    /// From one second to five minutes.
    fn default() -> Self {
        Self::new(Duration::from_secs(1), Duration::from_secs(5 * 60))
    }
}

impl Backoff {
    /// Begins with a wait of `first` after the first failure, and never waits for more than `longest`.
    #[must_use]
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest }
    }

    /// Returns how long to wait after a number of failures in a row.
    #[must_use]
    pub fn after(self, failures: u32, env: &Environment) -> Duration {
        let doublings = failures.saturating_sub(1).min(30);
        let wait = self.first.saturating_mul(1 << doublings).min(self.longest);
        wait.mul_f64(1.0 - env.random_unit() / 2.0)
    }
}

/// How a worker works: what the workers of all recipes have in common.
///
/// An option that is not set is the recipe's own default. A worker of this crate handles sixteen items
/// at once; a handler has five minutes; the worker reads every second what watches should have reported;
/// an item waits from one second to five minutes after a failure.
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
    /// Begins with the defaults of the recipe.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets how many calls run at the same time, at least one: of the handler for an item each, of an
    /// observer or an exporter for a bucket each.
    #[must_use]
    pub fn concurrency(mut self, calls: usize) -> Self {
        self.concurrency = Some(calls.max(1));
        self
    }

    /// Sets how long a call of the handler, the observer or the exporter may take, at least a
    /// millisecond. Then its future is dropped, and what it was called for is tried again.
    #[must_use]
    pub fn time_limit(mut self, limit: Duration) -> Self {
        self.time_limit = Some(limit.max(SHORTEST));
        self
    }

    /// Sets how often a worker looks although nothing woke it, at least every millisecond. A watch
    /// wakes it as soon as there is something to do; this is for watches that get lost.
    #[must_use]
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.poll_interval = Some(interval.max(SHORTEST));
        self
    }

    /// Sets when something is tried again that has failed.
    #[must_use]
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = Some(backoff);
        self
    }

    /// Returns how many calls run at the same time, `default` if that was not set.
    #[must_use]
    pub fn concurrency_or(&self, default: usize) -> usize {
        self.concurrency.unwrap_or(default)
    }

    /// Returns how long a call may take, `default` if that was not set.
    #[must_use]
    pub fn time_limit_or(&self, default: Duration) -> Duration {
        self.time_limit.unwrap_or(default)
    }

    /// Returns how often a worker looks although nothing woke it, `default` if that was not set.
    #[must_use]
    pub fn poll_interval_or(&self, default: Duration) -> Duration {
        self.poll_interval.unwrap_or(default)
    }

    /// Returns when something is tried again, `default` if that was not set.
    #[must_use]
    pub fn backoff_or(&self, default: Backoff) -> Backoff {
        self.backoff.unwrap_or(default)
    }
}

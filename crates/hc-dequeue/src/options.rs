//! The options of consumers and workers of all recipes.

use std::time::Duration;

use microqueue::keyspace::Environment;

use crate::items::error::{Error, Result};

/// The shortest time limit, poll interval and time until a takeover. With zero, a worker would do nothing else than
/// poll, expire deliveries or take over buckets.
const MIN_TIME: Duration = Duration::from_millis(1);

/// The most handlers of a worker of this crate that run at the same time. Each of them costs a few kilobytes.
pub const MAX_CONCURRENCY: usize = 10_000;

/// The most items that a worker takes ahead of its handlers.
const MAX_RESERVE: usize = 512;

/// The options of a [`Consumer`](crate::Consumer) and of the workers of all recipes.
///
/// An option that is not set has the default of the recipe:
///
/// | option | what it is | consumer | `process`, `work` | combine | export-queue |
/// |---|---|---|---|---|---|
/// | [`concurrency`](Self::with_concurrency) | how many calls run at the same time: of a handler for one item, or of an observer or exporter for one bucket | - | 16, at most 10,000 | 4 | 4 |
/// | [`max_reserve`](Self::with_max_reserve) | how many items are taken ahead of handlers, at most | - | 512 | - | - |
/// | [`time_limit`](Self::with_time_limit) | how long a delivery or a call may take | 5 minutes | 5 minutes | 3 seconds, never more than 5 | 1 minute |
/// | [`poll_interval`](Self::with_poll_interval) | how often to check for work without being woken | 1 second | 1 second | 1 second | 1 second |
/// | [`backoff`](Self::with_backoff) | how long failed work waits | 1 second to 5 minutes | 1 second to 5 minutes | 100 milliseconds to 30 seconds | 100 milliseconds to 30 seconds |
/// | [`takeover_after`](Self::with_takeover_after) | how long a bucket may make no progress before another worker takes it over | - | - | 5 seconds | 2 minutes |
/// | [`max_batch_bytes`](Self::with_max_batch_bytes) | how many bytes one pass or one batch uses | - | - | 1 MiB | 1 MiB |
/// | [`pass_interval`](Self::with_pass_interval) | how long a bucket rests between passes | - | - | 0 | - |
/// | [`coalesce`](Self::with_coalesce) | whether only the newest entry of each key is exported | - | - | - | false |
/// | [`dead_letter_after`](Self::with_dead_letter_after) | after how many failures an entry becomes a dead letter | - | - | - | never |
///
/// An option has no effect where the table has "-".
///
/// ```
/// use std::time::Duration;
///
/// use hc_dequeue::WorkerOptions;
///
/// let options = WorkerOptions::new()
///     .with_concurrency(4)
///     .with_time_limit(Duration::from_secs(30));
/// assert_eq!(options.concurrency(), Some(4));
/// assert_eq!(options.backoff(), None);
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerOptions {
    concurrency: Option<usize>,
    max_reserve: Option<usize>,
    time_limit: Option<Duration>,
    poll_interval: Option<Duration>,
    backoff: Option<Backoff>,
    takeover_after: Option<Duration>,
    max_batch_bytes: Option<usize>,
    pass_interval: Option<Duration>,
    coalesce: Option<bool>,
    dead_letter_after: Option<u32>,
}

impl WorkerOptions {
    /// Returns options that all have the recipe's defaults.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets how many calls run at the same time, at least one. A call is that of a handler for one item, or of an
    /// observer or exporter for one bucket.
    ///
    /// A worker of this crate with more than [`MAX_CONCURRENCY`] does not start. Others never have more calls than
    /// buckets.
    #[must_use]
    pub fn with_concurrency(mut self, calls: usize) -> Self {
        self.concurrency = Some(calls.max(1));
        self
    }

    /// Sets how many items a worker of this crate takes ahead of its handlers, at most. Zero turns this off.
    ///
    /// The worker decides how many it takes from how long its handlers and its transactions take: up to as many as the
    /// handlers finish during eight takes, and none if a handler takes more than eight times as long as a take. An item
    /// that another process could have started waits in such a reserve for 20 ms, or 16 takes if that is longer, before
    /// it goes back.
    #[must_use]
    pub fn with_max_reserve(mut self, items: usize) -> Self {
        self.max_reserve = Some(items.min(MAX_RESERVE));
        self
    }

    /// Sets how long a delivery, or a call of a handler, observer or exporter, may take, at least one millisecond.
    ///
    /// - A delivery that takes longer has failed, and its item comes back after the [backoff](Self::with_backoff).
    /// - The future of a call that takes longer is dropped, and its work is retried.
    ///
    /// An observer runs in the transaction of a pass, which lives for five seconds and needs some of them for its own
    /// reads and its commit. A longer limit counts as five seconds.
    #[must_use]
    pub fn with_time_limit(mut self, limit: Duration) -> Self {
        self.time_limit = Some(limit.max(MIN_TIME));
        self
    }

    /// Sets how often a consumer or worker checks for work without being woken, at least one millisecond.
    ///
    /// Watches wake it as soon as there is work; polling only covers watches that get lost.
    #[must_use]
    pub fn with_poll_interval(mut self, interval: Duration) -> Self {
        self.poll_interval = Some(interval.max(MIN_TIME));
        self
    }

    /// Sets how long work waits after a failure for which the program has chosen no time. For an item, this is a
    /// handler that failed, a delivery whose time limit has passed or that was dropped, or an acknowledgement that
    /// did not commit. For a bucket, it is a pass or a batch that failed.
    ///
    /// An item whose value does not decode waits at least as long as with the default backoff, so that many such items
    /// leave time for the others.
    #[must_use]
    pub fn with_backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = Some(backoff);
        self
    }

    /// Sets how long a bucket may make no progress, although its worker is alive, before another worker takes it over,
    /// at least one millisecond. Choose more than the time limit of a call.
    ///
    /// The next worker in the order of that bucket takes it over after this time, the one after that after twice this
    /// time, and so on. Workers check at this interval, so a takeover may come later by up to this time. A worker of an
    /// export queue waits once more for this time, if another session still holds the claim of the bucket.
    #[must_use]
    pub fn with_takeover_after(mut self, time: Duration) -> Self {
        self.takeover_after = Some(time.max(MIN_TIME));
        self
    }

    /// Sets how many bytes one pass of a combine queue or one batch of an export queue uses, at least one. It takes at
    /// least one update or entry, however large.
    ///
    /// - A pass counts the bytes of its transaction that it uses for itself. It reads up to twice this many bytes of
    ///   updates, so its use of memory grows in proportion. Rows that the observer stages are not included: if they
    ///   make the transaction too large or too slow, the pass is repeated with fewer changes. If the pass itself takes
    ///   more than a quarter of a transaction that is too large, it is repeated with a smaller budget.
    /// - A batch counts its encoded keys and values and its sequences.
    #[must_use]
    pub fn with_max_batch_bytes(mut self, bytes: usize) -> Self {
        self.max_batch_bytes = Some(bytes.max(1));
        self
    }

    /// Sets how long a bucket of a combine queue rests after a pass that reached the end of its log.
    ///
    /// The next pass then finds more updates. This leads to fewer and larger transactions, which write each value and
    /// each page of the store less often. Changes are reported later by up to this time.
    #[must_use]
    pub fn with_pass_interval(mut self, interval: Duration) -> Self {
        self.pass_interval = Some(interval);
        self
    }

    /// Sets whether an export queue exports only the newest entry of each key in a batch. Use this for receivers that
    /// keep only the last value.
    #[must_use]
    pub fn with_coalesce(mut self, coalesce: bool) -> Self {
        self.coalesce = Some(coalesce);
        self
    }

    /// Sets how often an entry of an export queue may fail on its own before it becomes a dead letter, at least once.
    ///
    /// By default an entry is retried without a limit, and the entries after it wait. Every entry fails while the
    /// receiver is unavailable, so choose a number of failures whose backoff times add up to more than such an outage.
    ///
    /// An item of this crate becomes a dead letter after [`Settings::max_attempts`](crate::Settings::max_attempts).
    #[must_use]
    pub fn with_dead_letter_after(mut self, failures: u32) -> Self {
        self.dead_letter_after = Some(failures.max(1));
        self
    }

    /// Returns how many calls run at the same time, if it is set.
    #[must_use]
    pub fn concurrency(&self) -> Option<usize> {
        self.concurrency
    }

    /// Returns how many items a worker takes ahead of its handlers at most, if it is set.
    #[must_use]
    pub fn max_reserve(&self) -> Option<usize> {
        self.max_reserve
    }

    /// Returns how long a delivery or a call may take, if it is set.
    #[must_use]
    pub fn time_limit(&self) -> Option<Duration> {
        self.time_limit
    }

    /// Returns how often to check for work without being woken, if it is set.
    #[must_use]
    pub fn poll_interval(&self) -> Option<Duration> {
        self.poll_interval
    }

    /// Returns how long failed work waits, if it is set.
    #[must_use]
    pub fn backoff(&self) -> Option<Backoff> {
        self.backoff
    }

    /// Returns how long a bucket may make no progress, if it is set.
    #[must_use]
    pub fn takeover_after(&self) -> Option<Duration> {
        self.takeover_after
    }

    /// Returns how many bytes a pass or a batch uses, if it is set.
    #[must_use]
    pub fn max_batch_bytes(&self) -> Option<usize> {
        self.max_batch_bytes
    }

    /// Returns how long a bucket rests between passes, if it is set.
    #[must_use]
    pub fn pass_interval(&self) -> Option<Duration> {
        self.pass_interval
    }

    /// Returns whether only the newest entry of each key is exported, if it is set.
    #[must_use]
    pub fn coalesce(&self) -> Option<bool> {
        self.coalesce
    }

    /// Returns after how many failures an entry becomes a dead letter, if it is set.
    #[must_use]
    pub fn dead_letter_after(&self) -> Option<u32> {
        self.dead_letter_after
    }
}

/// The options of a dispatcher and of a worker's slots, with the defaults of this crate.
#[derive(Debug, Clone)]
pub(crate) struct DispatcherOptions {
    /// How many handlers run at the same time.
    pub(crate) concurrency: usize,
    pub(crate) max_reserve: usize,
    pub(crate) time_limit: Duration,
    pub(crate) poll_interval: Duration,
    pub(crate) backoff: Backoff,
}

impl DispatcherOptions {
    /// Returns the options of a worker.
    ///
    /// # Errors
    /// [`Error::TooHigh`] if too many handlers were to run at the same time.
    pub(crate) fn of_worker(options: &WorkerOptions) -> Result<Self> {
        let options = Self::of(options);
        if options.concurrency > MAX_CONCURRENCY {
            return Err(Error::TooHigh {
                option: "concurrency",
                given: options.concurrency,
                limit: MAX_CONCURRENCY,
            });
        }
        Ok(options)
    }

    fn of(options: &WorkerOptions) -> Self {
        Self {
            concurrency: options.concurrency.unwrap_or(16),
            max_reserve: options.max_reserve.unwrap_or(MAX_RESERVE),
            time_limit: options.time_limit.unwrap_or(Duration::from_secs(5 * 60)),
            poll_interval: options.poll_interval.unwrap_or(Duration::from_secs(1)),
            backoff: options.backoff.unwrap_or_default(),
        }
    }

    /// Returns the options of a consumer, which takes no items ahead of its callers.
    pub(crate) fn of_consumer(options: &WorkerOptions) -> Self {
        Self {
            max_reserve: 0,
            ..Self::of(options)
        }
    }
}

/// What a worker does with the items of a kind, where that differs from its other items.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Handling {
    pub(crate) time_limit: Option<Duration>,
    pub(crate) backoff: Option<Backoff>,
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

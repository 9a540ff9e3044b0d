//! Types of jobs.

use std::time::Duration;

use crate::options::Backoff;
use crate::queue::enqueue_options::Enqueue;

/// A type of jobs, of which a [queue of jobs](crate::Jobs) may have several.
///
/// ```
/// use std::time::Duration;
///
/// use hc_dequeue::{Job, JobOptions};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct SendMail {
///     to: String,
/// }
///
/// impl Job for SendMail {
///     const KIND: &'static str = "send-mail";
///     // Jobs that were enqueued under its earlier name are handled, too.
///     const ALIASES: &'static [&'static str] = &["mail"];
///
///     fn options() -> JobOptions {
///         JobOptions::new()
///             .with_max_attempts(10)
///             .with_time_limit(Duration::from_secs(30))
///     }
/// }
/// # drop(SendMail { to: String::new() });
/// ```
pub trait Job: Send + Sync + 'static {
    /// The name that is stored with each job, of 1 to [`MAX_KIND_BYTES`](crate::MAX_KIND_BYTES) bytes. Workers find
    /// their handlers by it, so it must not change while jobs wait; see [`ALIASES`](Self::ALIASES).
    const KIND: &'static str;

    /// Other names of such jobs, under which some may wait that were enqueued before. The empty name stands for items
    /// without a kind: those of a queue that had only this type.
    const ALIASES: &'static [&'static str] = &[];

    /// Returns what holds for such jobs, unless an enqueue says otherwise.
    #[must_use]
    fn options() -> JobOptions {
        JobOptions::new()
    }
}

/// What holds for the jobs of a type.
///
/// The options of an enqueue come first, then these, then the [settings](crate::Settings) of the queue or the
/// [options](crate::WorkerOptions) of the worker. The number of attempts and the priority are stored when a job is
/// enqueued; the time limit and the backoff are those of the worker that handles it.
///
/// ```
/// use hc_dequeue::JobOptions;
///
/// assert_eq!(JobOptions::new().with_priority(5).priority(), 5);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct JobOptions {
    max_attempts: u32,
    priority: i8,
    time_limit: Option<Duration>,
    backoff: Option<Backoff>,
}

impl JobOptions {
    /// Returns options that leave everything to the queue and the worker.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets after how many failed attempts a job becomes a dead letter. Zero leaves it to the queue.
    #[must_use]
    pub fn with_max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = attempts;
        self
    }

    /// Sets the [priority](Enqueue::with_priority). The default is 0.
    #[must_use]
    pub fn with_priority(mut self, priority: i8) -> Self {
        self.priority = priority;
        self
    }

    /// Sets how long a delivery may take, at least one millisecond.
    #[must_use]
    pub fn with_time_limit(mut self, limit: Duration) -> Self {
        self.time_limit = Some(limit.max(Duration::from_millis(1)));
        self
    }

    /// Sets how long a failed job waits.
    #[must_use]
    pub fn with_backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = Some(backoff);
        self
    }

    /// Returns the number of attempts. Zero: the queue's.
    #[must_use]
    pub fn max_attempts(&self) -> u32 {
        self.max_attempts
    }

    /// Returns the priority.
    #[must_use]
    pub fn priority(&self) -> i8 {
        self.priority
    }

    /// Returns how long a delivery may take, if it is set.
    #[must_use]
    pub fn time_limit(&self) -> Option<Duration> {
        self.time_limit
    }

    /// Returns how long a failed job waits, if it is set.
    #[must_use]
    pub fn backoff(&self) -> Option<Backoff> {
        self.backoff
    }

    /// Returns the options of the enqueue of a job, with these where it has none.
    pub(super) fn complete(&self, mut options: Enqueue, kind: &str) -> Enqueue {
        options.kind = Some(kind.to_owned());
        options.priority = options.priority.or(Some(self.priority));
        if options.limits.attempts == 0 {
            options.limits.attempts = self.max_attempts;
        }
        options
    }
}

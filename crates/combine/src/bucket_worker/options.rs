//! The options of a bucket worker.

use std::time::Duration;

use hc_dequeue::session::Sessions;

/// The options of a [`BucketWorker`](super::BucketWorker).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct BucketWorkerOptions {
    pub(super) sessions: Sessions,
    pub(super) lease: Duration,
    pub(super) wake: Vec<u8>,
    pub(super) concurrency: usize,
    pub(super) takeover_after: Duration,
    pub(super) poll_interval: Duration,
}

impl BucketWorkerOptions {
    /// Returns options with the defaults, for the sessions of a job: where they are stored, their lease,
    /// and the key that changes whenever there is new work.
    ///
    /// By default the worker runs four steps at the same time, takes over a bucket without progress after
    /// five seconds, and polls for work every second, in case a watch was lost.
    #[must_use]
    pub fn new(sessions: Sessions, lease: Duration, wake: Vec<u8>) -> Self {
        Self {
            sessions,
            lease,
            wake,
            concurrency: 4,
            takeover_after: Duration::from_secs(5),
            poll_interval: Duration::from_secs(1),
        }
    }

    /// Sets the number of buckets that the worker works on at the same time.
    #[must_use]
    pub fn concurrency(mut self, buckets: usize) -> Self {
        self.concurrency = buckets;
        self
    }

    /// Sets how long a bucket of another session may make no progress before the next session takes it
    /// over.
    #[must_use]
    pub fn takeover_after(mut self, time: Duration) -> Self {
        self.takeover_after = time;
        self
    }

    /// Sets how often the worker polls for work if no watch fires.
    #[must_use]
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.poll_interval = interval;
        self
    }
}

//! How a bucket worker works.

use std::time::Duration;

use hc_dequeue::session::Sessions;

/// How a [`BucketWorker`](super::BucketWorker) works.
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
    /// Begins with what the sessions of a job have in common: where they are kept, how long one of
    /// them lives without a sign of life, and the key that changes whenever there is something to do.
    ///
    /// Four steps run at once, a bucket that stands still is taken over after five seconds, and the
    /// worker reads every second what a watch should have told.
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

    /// Sets how many buckets it works on at the same time.
    #[must_use]
    pub fn concurrency(mut self, buckets: usize) -> Self {
        self.concurrency = buckets;
        self
    }

    /// Sets how long a bucket of another session may stand still before the next one takes it over.
    #[must_use]
    pub fn takeover_after(mut self, time: Duration) -> Self {
        self.takeover_after = time;
        self
    }

    /// Sets how often it reads what there is to do although nothing woke it.
    #[must_use]
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.poll_interval = interval;
        self
    }
}

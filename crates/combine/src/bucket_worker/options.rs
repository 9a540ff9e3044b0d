//! The options of a bucket worker.

use std::time::Duration;

use hc_dequeue::session::Sessions;
use hc_dequeue::{Backoff, WorkerOptions};

/// How often a worker polls for work by default.
pub const DEFAULT_POLL_INTERVAL: Duration = Duration::from_secs(1);

/// How long a bucket waits by default after a step that failed.
pub const DEFAULT_BACKOFF: Backoff =
    Backoff::new(Duration::from_millis(100), Duration::from_secs(30));

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
    /// Returns the options for the sessions of a job: where they are stored, their lease, and the key that changes
    /// whenever there is new work.
    ///
    /// Of `options`, a bucket worker uses the concurrency (by default four buckets at the same time), the time until a
    /// takeover (five seconds) and the poll interval ([`DEFAULT_POLL_INTERVAL`]).
    #[must_use]
    pub fn new(
        sessions: Sessions,
        lease: Duration,
        wake: Vec<u8>,
        options: &WorkerOptions,
    ) -> Self {
        Self {
            sessions,
            lease,
            wake,
            concurrency: options.concurrency().unwrap_or(4),
            takeover_after: options.takeover_after().unwrap_or(Duration::from_secs(5)),
            poll_interval: options.poll_interval().unwrap_or(DEFAULT_POLL_INTERVAL),
        }
    }
}

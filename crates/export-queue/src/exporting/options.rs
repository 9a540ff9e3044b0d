//! The options of a worker, with the defaults of this crate.

use std::time::Duration;

use combine::bucket_worker::{DEFAULT_BACKOFF, DEFAULT_POLL_INTERVAL};
use combine::{Backoff, WorkerOptions};

/// The options of the batches of a worker.
#[derive(Debug, Clone)]
pub(crate) struct BatchOptions {
    /// The most bytes of keys, values and sequences.
    pub(crate) max_bytes: usize,
    /// How long a call of the exporter may take.
    pub(crate) time_limit: Duration,
    /// How long another session may keep a claim without progress.
    pub(crate) takeover_after: Duration,
    pub(crate) poll_interval: Duration,
    pub(crate) backoff: Backoff,
    pub(crate) coalesces: bool,
    pub(crate) dead_letter_after: Option<u32>,
}

impl BatchOptions {
    pub(crate) fn new(options: &WorkerOptions) -> Self {
        Self {
            max_bytes: options.max_batch_bytes().unwrap_or(1 << 20),
            time_limit: options.time_limit().unwrap_or(Duration::from_secs(60)),
            takeover_after: options.takeover_after().unwrap_or(Duration::from_secs(120)),
            poll_interval: options.poll_interval().unwrap_or(DEFAULT_POLL_INTERVAL),
            backoff: options.backoff().unwrap_or(DEFAULT_BACKOFF),
            coalesces: options.coalesce().unwrap_or(false),
            dead_letter_after: options.dead_letter_after(),
        }
    }
}

//! The options of a worker, with the defaults of this crate.

use std::time::Duration;

use hc_dequeue::keyspace::limits::TRANSACTION_LIFE;
use hc_dequeue::{Backoff, WorkerOptions};

use crate::bucket_worker::DEFAULT_BACKOFF;

/// The options of the passes of a worker.
#[derive(Debug, Clone)]
pub(crate) struct PassOptions {
    /// How many bytes of its transaction a pass uses for itself.
    pub(crate) max_bytes: usize,
    /// How long a bucket rests after a pass that reached the end of its log.
    pub(crate) interval: Duration,
    /// How long a call of the observer may take: at most as long as its transaction lives.
    pub(crate) observer_time_limit: Duration,
    pub(crate) backoff: Backoff,
}

impl PassOptions {
    pub(crate) fn new(options: &WorkerOptions) -> Self {
        let time_limit = options.time_limit().unwrap_or(Duration::from_secs(3));
        Self {
            max_bytes: options.max_batch_bytes().unwrap_or(1 << 20),
            interval: options.pass_interval().unwrap_or_default(),
            observer_time_limit: time_limit.min(TRANSACTION_LIFE),
            backoff: options.backoff().unwrap_or(DEFAULT_BACKOFF),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_observer_has_no_more_time_than_its_transaction() {
        let limited = |limit| {
            let options = WorkerOptions::new().with_time_limit(limit);
            PassOptions::new(&options).observer_time_limit
        };
        assert_eq!(limited(Duration::from_secs(4)), Duration::from_secs(4));
        assert_eq!(limited(Duration::from_secs(6)), Duration::from_secs(5));
        assert_eq!(limited(Duration::MAX), Duration::from_secs(5));
    }
}

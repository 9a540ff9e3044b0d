//! How a worker works.

use std::time::Duration;

use combine::hc_dequeue::Backoff;

/// The shortest time limit, patience and poll interval: with none a worker would do nothing else.
const SHORTEST: Duration = Duration::from_millis(1);

/// How a [`Worker`](crate::Worker) works.
#[derive(Debug, Clone)]
pub struct WorkerOptions {
    pub(crate) bytes_per_batch: usize,
    pub(crate) concurrency: usize,
    pub(crate) export_time_limit: Duration,
    pub(crate) coalesces: bool,
    pub(crate) dead_after: Option<u32>,
    pub(crate) patience: Duration,
    pub(crate) poll_interval: Duration,
    pub(crate) backoff: Backoff,
}

impl Default for WorkerOptions {
    /// Batches of a mebibyte, four at once; a call of the exporter has a minute, and another worker two;
    /// every entry is exported, and tried for ever; a look every second at what a watch should have
    /// told; waits from 100 milliseconds to 30 seconds after failures.
    fn default() -> Self {
        Self {
            bytes_per_batch: 1 << 20,
            concurrency: 4,
            export_time_limit: Duration::from_secs(60),
            coalesces: false,
            dead_after: None,
            patience: Duration::from_secs(120),
            poll_interval: Duration::from_secs(1),
            backoff: Backoff {
                first: Duration::from_millis(100),
                longest: Duration::from_secs(30),
            },
        }
    }
}

impl WorkerOptions {
    /// Sets how many bytes of entries, as stored, a batch has at most; one entry at least.
    #[must_use]
    pub fn bytes_per_batch(mut self, bytes: usize) -> Self {
        self.bytes_per_batch = bytes.max(1);
        self
    }

    /// Sets how many buckets are exported at the same time, at least one.
    #[must_use]
    pub fn concurrency(mut self, buckets: usize) -> Self {
        self.concurrency = buckets.max(1);
        self
    }

    /// Sets how long a call of the exporter may take. Then its future is dropped, and the batch comes
    /// again.
    #[must_use]
    pub fn export_time_limit(mut self, limit: Duration) -> Self {
        self.export_time_limit = limit.max(SHORTEST);
        self
    }

    /// Sets whether of several entries of a key in a batch only the newest is exported, for receivers
    /// that keep the last value alone.
    #[must_use]
    pub fn coalesce(mut self, coalesces: bool) -> Self {
        self.coalesces = coalesces;
        self
    }

    /// Sets after how many failures of its own an entry is put aside as a
    /// [dead letter](crate::Subscription::dead_letters), at least one. Otherwise it is tried for ever, and keeps
    /// what is behind it. While the receiver is away every entry fails: choose a number whose waits,
    /// taken together, are longer than that.
    #[must_use]
    pub fn dead_letter_after(mut self, failures: u32) -> Self {
        self.dead_after = Some(failures.max(1));
        self
    }

    /// Sets how long a bucket that somebody else has claimed may stand still, though its session
    /// lives, before it is taken away. It should be longer than a call of the exporter may take.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience.max(SHORTEST);
        self
    }

    /// Sets how often a worker looks although nothing woke it. A watch wakes it as soon as there is
    /// an entry; this is for those that get lost.
    #[must_use]
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.poll_interval = interval.max(SHORTEST);
        self
    }

    /// Sets when a batch that has failed is tried again. Other buckets go on meanwhile.
    #[must_use]
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.backoff = backoff;
        self
    }
}

//! What a worker counts, for whatever recorder the application has installed for the [`metrics`]
//! facade. Every name has the labels `queue` and `subscription`.
//!
//! | name | kind | what |
//! |---|---|---|
//! | `export_queue_lag_seconds` | gauge | for how long the oldest entry has waited that is not exported; told for every subscription, so that one that nobody works for, and that holds the log back, shows |
//! | `export_queue_pending_entries` | gauge, label `bucket` | entries of a bucket of this worker that wait, up to 10,000 |
//! | `export_queue_pending_bytes` | gauge, label `bucket` | the bytes of their keys and values |
//! | `export_queue_exported` | counter | entries that were exported, or skipped for newer ones |
//! | `export_queue_repeats` | counter | entries that this worker has given to the exporter once more |
//! | `export_queue_failures` | counter | batches that failed, and are tried again later |
//! | `export_queue_dead` | counter | entries that became dead letters |
//! | `export_queue_lost` | counter | batches that were exported under a claim that was lost, and come again |
//! | `export_queue_batch_entries` | histogram | entries of a batch |
//! | `export_queue_batch_bytes` | histogram | their bytes in the store |
//! | `export_queue_export_seconds` | histogram | how long the exporter took |
//!
//! The gauges are set at each heartbeat.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use combine::Bucket;
use metrics::{Counter, Histogram, counter, gauge, histogram};

use crate::subscription::Backlog;

/// The numbers of one worker.
pub(crate) struct Metrics {
    queue: String,
    subscription: String,
    exported: Counter,
    pub(crate) repeats: Counter,
    pub(crate) failures: Counter,
    pub(crate) dead: Counter,
    pub(crate) lost: Counter,
    batch_entries: Histogram,
    batch_bytes: Histogram,
    export_seconds: Histogram,
    /// The buckets whose gauges are not at zero.
    reported: Mutex<BTreeSet<Bucket>>,
}

impl Metrics {
    pub(crate) fn new(queue: &str, subscription: &str) -> Self {
        let labels = [
            ("queue", queue.to_owned()),
            ("subscription", subscription.to_owned()),
        ];
        Self {
            exported: counter!("export_queue_exported", &labels),
            repeats: counter!("export_queue_repeats", &labels),
            failures: counter!("export_queue_failures", &labels),
            dead: counter!("export_queue_dead", &labels),
            lost: counter!("export_queue_lost", &labels),
            batch_entries: histogram!("export_queue_batch_entries", &labels),
            batch_bytes: histogram!("export_queue_batch_bytes", &labels),
            export_seconds: histogram!("export_queue_export_seconds", &labels),
            reported: Mutex::default(),
            queue: queue.to_owned(),
            subscription: subscription.to_owned(),
        }
    }

    /// Notes a batch.
    pub(crate) fn exported(&self, entries: usize, bytes: usize, took: Duration) {
        self.exported.increment(entries as u64);
        self.batch_entries.record(entries as f64);
        self.batch_bytes.record(bytes as f64);
        self.export_seconds.record(took.as_secs_f64());
    }

    pub(crate) fn lag(&self, subscription: &str, lag: Duration) {
        let labels = [
            ("queue", self.queue.clone()),
            ("subscription", subscription.to_owned()),
        ];
        gauge!("export_queue_lag_seconds", &labels).set(lag.as_secs_f64());
    }

    /// Returns the buckets whose gauges are to be set: those that have work, and those that had.
    pub(crate) fn to_report(&self, work: Vec<Bucket>) -> BTreeSet<Bucket> {
        let reported = self.reported.lock();
        let mut reported = reported.unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::take(&mut *reported);
        before.into_iter().chain(work).collect()
    }

    pub(crate) fn backlog(&self, bucket: Bucket, backlog: &Backlog) {
        let labels = [
            ("queue", self.queue.clone()),
            ("subscription", self.subscription.clone()),
            ("bucket", bucket.to_string()),
        ];
        gauge!("export_queue_pending_entries", &labels).set(backlog.entries as f64);
        gauge!("export_queue_pending_bytes", &labels).set(backlog.bytes as f64);
        if backlog.entries > 0 {
            let reported = self.reported.lock();
            let mut reported = reported.unwrap_or_else(PoisonError::into_inner);
            reported.insert(bucket);
        }
    }
}

//! The metrics of a worker, for the recorder that the application has installed for the [`metrics`]
//! facade. Every metric has the labels `queue`, the [name](combine::keyspace::names::queue_name) of the queue as
//! the console shows it, and `subscription`.
//!
//! | name | kind | meaning |
//! |---|---|---|
//! | `export_queue_lag_seconds` | gauge | how long the oldest entry that is not exported yet has waited; reported for every subscription, including those without a worker |
//! | `export_queue_paused` | gauge | 1 while the subscription is paused, otherwise 0; reported like the lag |
//! | `export_queue_pending_entries` | gauge, label `bucket` | pending entries of a bucket of this worker, in up to about 1 MiB of blocks |
//! | `export_queue_pending_bytes` | gauge, label `bucket` | the bytes of these blocks with their keys, up to about 1 MiB |
//! | `export_queue_exported` | counter | entries that were exported, or skipped in favor of newer ones |
//! | `export_queue_repeats` | counter | entries that this worker has passed to the exporter again |
//! | `export_queue_failures` | counter | batches that failed and are retried later |
//! | `export_queue_dead` | counter | entries and blocks that became dead letters |
//! | `export_queue_lost` | counter | batches that were exported under a claim that was lost, and are exported again |
//! | `export_queue_restarts` | counter | how often a fault of this library has ended this worker, which was then started again |
//! | `export_queue_batch_entries` | histogram | entries of a batch |
//! | `export_queue_batch_bytes` | histogram | bytes of the keys, values and sequences of a batch |
//! | `export_queue_export_seconds` | histogram | duration of a call of the exporter |
//!
//! The gauges are set at each heartbeat.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use combine::bucket_worker::PendingGauges;
use combine::keyspace::Subspace;
use combine::keyspace::names::queue_name;
use metrics::{Counter, Histogram, Label, counter, gauge, histogram};
use parking_lot::Mutex;

/// The metrics of one worker.
pub(crate) struct Metrics {
    queue: String,
    exported: Counter,
    pub(crate) repeats: Counter,
    pub(crate) failures: Counter,
    pub(crate) dead: Counter,
    pub(crate) lost: Counter,
    pub(crate) restarts: Counter,
    batch_entries: Histogram,
    batch_bytes: Histogram,
    export_seconds: Histogram,
    pub(crate) pending: PendingGauges,
    /// The subscriptions whose lag was reported last.
    reported: Mutex<BTreeSet<String>>,
}

impl Metrics {
    pub(crate) fn new(queue: &Subspace, subscription: &str) -> Self {
        let queue = queue_name(queue);
        let labels = [
            ("queue", queue.clone()),
            ("subscription", subscription.to_owned()),
        ];
        Self {
            exported: counter!("export_queue_exported", &labels),
            repeats: counter!("export_queue_repeats", &labels),
            failures: counter!("export_queue_failures", &labels),
            dead: counter!("export_queue_dead", &labels),
            lost: counter!("export_queue_lost", &labels),
            restarts: counter!("export_queue_restarts", &labels),
            batch_entries: histogram!("export_queue_batch_entries", &labels),
            batch_bytes: histogram!("export_queue_batch_bytes", &labels),
            export_seconds: histogram!("export_queue_export_seconds", &labels),
            pending: PendingGauges::new(
                "export_queue_pending_entries",
                "export_queue_pending_bytes",
                labels.iter().map(Label::from).collect(),
            ),
            reported: Mutex::default(),
            queue,
        }
    }

    /// Records a batch.
    pub(crate) fn exported(&self, entries: usize, bytes: usize, took: Duration) {
        self.exported.increment(entries as u64);
        self.batch_entries.record(entries as f64);
        self.batch_bytes.record(bytes as f64);
        self.export_seconds.record(took.as_secs_f64());
    }

    /// Sets the lags of all subscriptions, and whether they are paused. `None` leaves the gauges unchanged.
    pub(crate) fn lags(&self, lags: BTreeMap<String, Option<(Duration, bool)>>) {
        let set = |subscription: &str, lag: Duration, is_paused: bool| {
            let labels = [
                ("queue", self.queue.clone()),
                ("subscription", subscription.to_owned()),
            ];
            gauge!("export_queue_lag_seconds", &labels).set(lag.as_secs_f64());
            gauge!("export_queue_paused", &labels).set(f64::from(u8::from(is_paused)));
        };
        let mut reported = self.reported.lock();
        for removed in reported.iter().filter(|name| !lags.contains_key(*name)) {
            set(removed, Duration::ZERO, false);
        }
        for (subscription, lag) in &lags {
            if let Some((lag, is_paused)) = lag {
                set(subscription, *lag, *is_paused);
            }
        }
        *reported = lags.into_keys().collect();
    }
}

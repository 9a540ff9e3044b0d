//! The metrics of a worker, for the recorder that the application has installed for the [`metrics`]
//! facade. Every metric has the label `queue`: the [name](hc_dequeue::keyspace::names::queue_name) of the queue,
//! as the console shows it.
//!
//! | name | kind | meaning |
//! |---|---|---|
//! | `combine_pending_updates` | gauge, label `bucket` | pending updates of a bucket of this worker, in up to about 1 MiB of blocks |
//! | `combine_pending_bytes` | gauge, label `bucket` | the bytes of these blocks with their keys, up to about 1 MiB |
//! | `combine_lag_seconds` | gauge | how long the oldest pending update in the buckets of this worker has waited, derived from the versions of the store; zero if none waits |
//! | `combine_passes` | counter | passes of this worker |
//! | `combine_updates` | counter | updates that they took |
//! | `combine_changes` | counter | changes that they reported |
//! | `combine_set_aside` | counter | updates that they set aside |
//! | `combine_conflicts` | counter | conflicts that they had |
//! | `combine_failures` | counter | passes that failed and are repeated later |
//! | `combine_takeovers` | counter | passes of this worker over buckets that it took over |
//! | `combine_restarts` | counter | how often a fault of this library has ended this worker, which was then started again |
//! | `combine_pass_updates` | histogram | updates taken by a pass |
//! | `combine_pass_bytes` | histogram | bytes that a pass used of its budget |
//! | `combine_pass_seconds` | histogram | duration of a pass, including its retries |
//!
//! The gauges are set at each heartbeat.

use std::time::Duration;

use hc_dequeue::keyspace::Subspace;
use hc_dequeue::keyspace::names::queue_name;
use metrics::{Counter, Gauge, Histogram, Label, counter, gauge, histogram};

use crate::bucket_worker::PendingGauges;
use crate::pass::Pass;

/// The metrics of one worker.
pub(crate) struct Metrics {
    pub(crate) lag: Gauge,
    passes: Counter,
    updates: Counter,
    changes: Counter,
    set_aside: Counter,
    pub(crate) conflicts: Counter,
    pub(crate) failures: Counter,
    pub(crate) takeovers: Counter,
    pub(crate) restarts: Counter,
    pass_updates: Histogram,
    pass_bytes: Histogram,
    pass_seconds: Histogram,
    pub(crate) pending: PendingGauges,
}

impl Metrics {
    pub(crate) fn new(queue: &Subspace) -> Self {
        let name = queue_name(queue);
        let queue = || ("queue", name.clone());
        Self {
            lag: gauge!("combine_lag_seconds", &[queue()]),
            passes: counter!("combine_passes", &[queue()]),
            updates: counter!("combine_updates", &[queue()]),
            changes: counter!("combine_changes", &[queue()]),
            set_aside: counter!("combine_set_aside", &[queue()]),
            conflicts: counter!("combine_conflicts", &[queue()]),
            failures: counter!("combine_failures", &[queue()]),
            takeovers: counter!("combine_takeovers", &[queue()]),
            restarts: counter!("combine_restarts", &[queue()]),
            pass_updates: histogram!("combine_pass_updates", &[queue()]),
            pass_bytes: histogram!("combine_pass_bytes", &[queue()]),
            pass_seconds: histogram!("combine_pass_seconds", &[queue()]),
            pending: PendingGauges::new(
                "combine_pending_updates",
                "combine_pending_bytes",
                vec![Label::from(&queue())],
            ),
        }
    }

    /// Records a pass that was committed.
    pub(crate) fn record_pass(&self, pass: &Pass, took: Duration) {
        let count = |number| u64::try_from(number).unwrap_or(u64::MAX);
        self.passes.increment(1);
        self.updates.increment(count(pass.updates));
        self.changes.increment(count(pass.changes));
        self.set_aside.increment(count(pass.set_aside));
        self.pass_updates.record(pass.updates as f64);
        self.pass_bytes.record(pass.bytes as f64);
        self.pass_seconds.record(took.as_secs_f64());
    }
}

//! The metrics of dispatchers, recorded through the [`metrics`] facade. The documentation of the
//! [crate](crate#operating) lists them with those of workers.
//!
//! All of them have the label `queue`: the [name](microqueue::keyspace::names::queue_name) of the queue, as the console
//! shows it. Gauges of the queue are set at each heartbeat and at the end of a session. Those of what sessions of this
//! process find are set to zero at the end of a session, and others set them again. Counters and histograms are those
//! of this process.

use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};
use microqueue::keyspace::names::queue_name;
use microqueue::keyspace::{Environment, Subspace};

use crate::items::record::Record;
use crate::lanes::Met;
use crate::queue::stats::Stats;
use crate::session::wall::wall_millis;

/// The metrics of one dispatcher.
pub(crate) struct Metrics {
    depth: Gauge,
    delayed: Gauge,
    held: Gauge,
    dead: Gauge,
    paused: Gauge,
    age: Gauge,
    /// Records at the front of the queue, or among the first delayed ones, as far as this process has read.
    unreadable: Gauge,
    /// Kinds of items that wait and that no session takes, as far as a session of this process has read.
    pub(crate) unknown_kinds: Gauge,
    /// By how much the wall clock was ahead of the median at the last census.
    pub(crate) clock_error: Gauge,
    dequeues: Counter,
    pub(crate) conflicts: Counter,
    pub(crate) fulfilled: Histogram,
    pub(crate) patience_expiries: Counter,
    pub(crate) reclaimed: Counter,
    pub(crate) fired: Counter,
    pub(crate) skipped: Counter,
    /// Deliveries whose time limit has passed. Those that end with their session are not counted.
    pub(crate) lost: Counter,
    waiting: Histogram,
    lanes_looked: Counter,
    groups_at_limit: Counter,
    rate_waits: Counter,
    looks_fruitless: Counter,
    pub(crate) batches_finished: Counter,
}

impl Metrics {
    pub(crate) fn new(queue: &Subspace) -> Self {
        let name = queue_name(queue);
        let queue = || ("queue", name.clone());
        Self {
            depth: gauge!("hc_dequeue_depth", &[queue()]),
            delayed: gauge!("hc_dequeue_delayed", &[queue()]),
            held: gauge!("hc_dequeue_held", &[queue()]),
            dead: gauge!("hc_dequeue_dead", &[queue()]),
            paused: gauge!("hc_dequeue_paused", &[queue()]),
            age: gauge!("hc_dequeue_age_seconds", &[queue()]),
            unreadable: gauge!("hc_dequeue_unreadable", &[queue()]),
            unknown_kinds: gauge!("hc_dequeue_unknown_kinds", &[queue()]),
            clock_error: gauge!("hc_dequeue_clock_error_seconds", &[queue()]),
            dequeues: counter!("hc_dequeue_dequeues", &[queue()]),
            conflicts: counter!("hc_dequeue_conflicts", &[queue()]),
            fulfilled: histogram!("hc_dequeue_fulfilled", &[queue()]),
            patience_expiries: counter!("hc_dequeue_patience_expiries", &[queue()]),
            reclaimed: counter!("hc_dequeue_reclaimed", &[queue()]),
            fired: counter!("hc_dequeue_fired", &[queue()]),
            skipped: counter!("hc_dequeue_skipped", &[queue()]),
            lost: counter!("hc_dequeue_lost", &[queue()]),
            waiting: histogram!("hc_dequeue_waiting_seconds", &[queue()]),
            lanes_looked: counter!("hc_dequeue_lanes_looked", &[queue()]),
            groups_at_limit: counter!("hc_dequeue_groups_at_limit", &[queue()]),
            rate_waits: counter!("hc_dequeue_rate_waits", &[queue()]),
            looks_fruitless: counter!("hc_dequeue_looks_fruitless", &[queue()]),
            batches_finished: counter!("hc_dequeue_batches_finished", &[queue()]),
        }
    }

    /// Records that an item is handed out.
    pub(crate) fn hand_out(&self, record: &Record, env: &Environment) {
        self.dequeues.increment(1);
        let waited = wall_millis(env).saturating_sub(record.ready_millis());
        self.waiting
            .record(Duration::from_millis(waited).as_secs_f64());
    }

    /// Records what looks at lanes have met.
    pub(crate) fn look(&self, met: Met) {
        self.lanes_looked.increment(met.lanes);
        self.groups_at_limit.increment(met.at_limit);
        self.rate_waits.increment(met.rate_waits);
        self.looks_fruitless.increment(met.fruitless);
    }

    pub(crate) fn report(
        &self,
        stats: &Stats,
        is_paused: bool,
        age: Option<Duration>,
        unreadable: usize,
    ) {
        self.depth.set(stats.queued as f64);
        self.delayed.set(stats.delayed as f64);
        self.paused.set(f64::from(u8::from(is_paused)));
        self.held.set(stats.held as f64);
        self.dead.set(stats.dead as f64);
        self.age.set(age.unwrap_or_default().as_secs_f64());
        self.unreadable.set(unreadable as f64);
    }

    /// Records that a session has ended, which found these.
    pub(crate) fn forget_session(&self) {
        for found in [&self.unreadable, &self.unknown_kinds, &self.clock_error] {
            found.set(0.0);
        }
    }
}

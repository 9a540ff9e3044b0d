//! The metrics of dispatchers and workers, recorded through the [`metrics`] facade. All metrics have the label
//! `queue`: the [name](microqueue::keyspace::names::queue_name) of the queue, as the console shows it.
//!
//! | name | kind | meaning |
//! |---|---|---|
//! | `hc_dequeue_depth` | gauge | queued items |
//! | `hc_dequeue_delayed` | gauge | items that are not due yet |
//! | `hc_dequeue_held` | gauge | items that sessions hold |
//! | `hc_dequeue_dead` | gauge | dead letters |
//! | `hc_dequeue_paused` | gauge | 1 while the queue is paused, otherwise 0 |
//! | `hc_dequeue_age_seconds` | gauge | how long the item has waited that has waited longest, of the first 100: since its enqueue, or since it was due or came back |
//! | `hc_dequeue_unreadable` | gauge | records at the front of the queue, or among the first delayed ones, that do not decode and are skipped, as far as this process has read |
//! | `hc_dequeue_clock_error_seconds` | gauge | by how much this process's wall clock was ahead of the median at the last census |
//! | `hc_dequeue_dequeues` | counter | items that this process has taken |
//! | `hc_dequeue_conflicts` | counter | conflicts of this process's transactions that take items |
//! | `hc_dequeue_fulfilled` | histogram | items granted by one fulfillment of this process |
//! | `hc_dequeue_patience_expiries` | counter | how often this process lost patience with the first request |
//! | `hc_dequeue_reclaimed` | counter | items of dead sessions that this process has returned |
//! | `hc_dequeue_fired` | counter | items that this process has enqueued for schedules |
//! | `hc_dequeue_skipped` | counter | scheduled times for which this process has enqueued nothing, because the dedupe id was refused or the queue was full |
//! | `hc_dequeue_lost` | counter | deliveries that this process has lost |
//! | `hc_dequeue_waiting_seconds` | histogram | for each delivery, how long its item had waited in the queue: since its enqueue, or since it was due or came back |
//! | `hc_dequeue_handler_seconds` | histogram | for each call of a worker's handler, its duration |
//! | `hc_dequeue_outcomes` | counter | calls of handlers, with the label `outcome`: `done`, `snoozed`, `retried`, `discarded`, or `dropped` if the item was cancelled or the delivery lost |
//! | `hc_dequeue_restarts` | counter | slots of a worker that a fault of this library has ended, and that were started again |
//!
//! The number of conflicts per dequeue is the quotient of two counters. Gauges are set at each heartbeat.

use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};
use microqueue::keyspace::Subspace;
use microqueue::keyspace::names::queue_name;

use crate::queue::stats::Stats;

/// The metrics of one dispatcher.
pub(crate) struct Metrics {
    depth: Gauge,
    delayed: Gauge,
    held: Gauge,
    dead: Gauge,
    paused: Gauge,
    age: Gauge,
    unreadable: Gauge,
    pub(crate) clock_error: Gauge,
    pub(crate) dequeues: Counter,
    pub(crate) conflicts: Counter,
    pub(crate) fulfilled: Histogram,
    pub(crate) patience_expiries: Counter,
    pub(crate) reclaimed: Counter,
    pub(crate) fired: Counter,
    pub(crate) skipped: Counter,
    pub(crate) lost: Counter,
    pub(crate) waiting: Histogram,
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
        }
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
}

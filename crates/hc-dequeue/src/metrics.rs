//! What a dispatcher counts, for whatever recorder the application has installed for the [`metrics`]
//! facade. Every name has the label `queue`.
//!
//! | name | kind | what |
//! |---|---|---|
//! | `hc_dequeue_depth` | gauge | items that wait |
//! | `hc_dequeue_held` | gauge | items that sessions hold |
//! | `hc_dequeue_dead` | gauge | dead letters |
//! | `hc_dequeue_age_seconds` | gauge | for how long the first item has waited |
//! | `hc_dequeue_clock_error_seconds` | gauge | by how much this process's wall clock is ahead of the median, as the last census has seen |
//! | `hc_dequeue_dequeues` | counter | items that this process has taken |
//! | `hc_dequeue_conflicts` | counter | transactions of this process that took items and met a conflict |
//! | `hc_dequeue_fulfilled` | histogram | items granted by one fulfillment of this process |
//! | `hc_dequeue_patience_expiries` | counter | how often this process gave up on the first request |
//! | `hc_dequeue_reclaimed` | counter | items that this process has returned for the dead |
//! | `hc_dequeue_fired` | counter | items that this process has enqueued for schedules |
//! | `hc_dequeue_lost` | counter | deliveries of this process that were lost to it |
//! | `hc_dequeue_waiting_seconds` | histogram | for each delivery, how long ago its item was enqueued |
//! | `hc_dequeue_handler_seconds` | histogram | for each call of a worker's handler, how long it took |
//! | `hc_dequeue_outcomes` | counter | calls of handlers, with the label `outcome`: `done`, `snoozed`, `retried`, `discarded`; `dropped`, since the item was cancelled or the delivery lost |
//!
//! Conflicts per dequeue are the quotient of two counters. The gauges are set at each heartbeat.

use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};

use crate::outcome::Outcome;
use crate::read::Stats;

/// The numbers of one dispatcher.
pub(crate) struct Metrics {
    depth: Gauge,
    held: Gauge,
    dead: Gauge,
    age: Gauge,
    pub(crate) clock_error: Gauge,
    pub(crate) dequeues: Counter,
    pub(crate) conflicts: Counter,
    pub(crate) fulfilled: Histogram,
    pub(crate) patience_expiries: Counter,
    pub(crate) reclaimed: Counter,
    pub(crate) fired: Counter,
    pub(crate) lost: Counter,
    pub(crate) waiting: Histogram,
}

impl Metrics {
    pub(crate) fn new(queue: &str) -> Self {
        let queue = || ("queue", queue.to_owned());
        Self {
            depth: gauge!("hc_dequeue_depth", &[queue()]),
            held: gauge!("hc_dequeue_held", &[queue()]),
            dead: gauge!("hc_dequeue_dead", &[queue()]),
            age: gauge!("hc_dequeue_age_seconds", &[queue()]),
            clock_error: gauge!("hc_dequeue_clock_error_seconds", &[queue()]),
            dequeues: counter!("hc_dequeue_dequeues", &[queue()]),
            conflicts: counter!("hc_dequeue_conflicts", &[queue()]),
            fulfilled: histogram!("hc_dequeue_fulfilled", &[queue()]),
            patience_expiries: counter!("hc_dequeue_patience_expiries", &[queue()]),
            reclaimed: counter!("hc_dequeue_reclaimed", &[queue()]),
            fired: counter!("hc_dequeue_fired", &[queue()]),
            lost: counter!("hc_dequeue_lost", &[queue()]),
            waiting: histogram!("hc_dequeue_waiting_seconds", &[queue()]),
        }
    }

    pub(crate) fn report(&self, stats: &Stats, age: Option<Duration>) {
        self.depth.set(stats.queued as f64);
        self.held.set(stats.held as f64);
        self.dead.set(stats.dead as f64);
        self.age.set(age.unwrap_or_default().as_secs_f64());
    }
}

/// The numbers of one worker.
pub(crate) struct HandlerMetrics {
    handler: Histogram,
    done: Counter,
    snoozed: Counter,
    retried: Counter,
    discarded: Counter,
    dropped: Counter,
}

impl HandlerMetrics {
    pub(crate) fn new(queue: &str) -> Self {
        let outcome = |outcome: &'static str| {
            let labels = [("queue", queue.to_owned()), ("outcome", outcome.to_owned())];
            counter!("hc_dequeue_outcomes", &labels)
        };
        Self {
            handler: histogram!("hc_dequeue_handler_seconds", "queue" => queue.to_owned()),
            done: outcome("done"),
            snoozed: outcome("snoozed"),
            retried: outcome("retried"),
            discarded: outcome("discarded"),
            dropped: outcome("dropped"),
        }
    }

    /// Counts a call of the handler that took so long. `None`: it was dropped.
    pub(crate) fn record(&self, took: Duration, outcome: Option<&Outcome>) {
        self.handler.record(took.as_secs_f64());
        let counter = match outcome {
            Some(Outcome::Done) => &self.done,
            Some(Outcome::Snooze(_)) => &self.snoozed,
            Some(Outcome::Retry { .. }) => &self.retried,
            Some(Outcome::Discard { .. }) => &self.discarded,
            None => &self.dropped,
        };
        counter.increment(1);
    }
}

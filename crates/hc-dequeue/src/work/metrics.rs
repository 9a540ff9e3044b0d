//! The metrics of workers.

use std::time::Duration;

use metrics::{Counter, Histogram, counter, histogram};
use microqueue::keyspace::Subspace;
use microqueue::keyspace::names::queue_name;

use crate::work::outcome::Outcome;

/// The metrics of one worker.
pub(crate) struct HandlerMetrics {
    handler: Histogram,
    done: Counter,
    snoozed: Counter,
    retried: Counter,
    dead: Counter,
    discarded: Counter,
    dropped: Counter,
    pub(crate) restarts: Counter,
}

impl HandlerMetrics {
    pub(crate) fn new(queue: &Subspace) -> Self {
        let queue = queue_name(queue);
        let outcome = |outcome: &'static str| {
            let labels = [("queue", queue.clone()), ("outcome", outcome.to_owned())];
            counter!("hc_dequeue_outcomes", &labels)
        };
        Self {
            handler: histogram!("hc_dequeue_handler_seconds", "queue" => queue.clone()),
            done: outcome("done"),
            snoozed: outcome("snoozed"),
            retried: outcome("retried"),
            dead: outcome("dead"),
            discarded: outcome("discarded"),
            dropped: outcome("dropped"),
            restarts: counter!("hc_dequeue_restarts", "queue" => queue.to_owned()),
        }
    }

    /// Records a call of the handler, with its duration and its outcome, and whether a failure is the item's last. The
    /// outcome is `None` if the handler was dropped.
    pub(crate) fn record(&self, took: Duration, outcome: Option<&Outcome>, is_last: bool) {
        self.handler.record(took.as_secs_f64());
        let counter = match outcome {
            Some(Outcome::Done) => &self.done,
            Some(Outcome::Snooze(_)) => &self.snoozed,
            Some(Outcome::Retry { .. }) if is_last => &self.dead,
            Some(Outcome::Retry { .. }) => &self.retried,
            Some(Outcome::Discard { .. }) => &self.discarded,
            None => &self.dropped,
        };
        counter.increment(1);
    }
}

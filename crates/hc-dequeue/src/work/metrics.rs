//! The metrics of workers.

use std::collections::BTreeMap;
use std::time::Duration;

use metrics::{Counter, Histogram, counter, histogram};
use microqueue::keyspace::Subspace;
use microqueue::keyspace::names::queue_name;

use crate::items::kind::{Kind, Kinds};
use crate::work::outcome::Outcome;

/// The metrics of one worker.
pub(crate) struct WorkerMetrics {
    /// Of the items without a kind, and of each kind that it takes.
    unnamed: HandlerMetrics,
    named: BTreeMap<Kind, HandlerMetrics>,
    pub(crate) restarts: Counter,
}

impl WorkerMetrics {
    pub(crate) fn new(queue: &Subspace, kinds: &Kinds) -> Self {
        let queue = queue_name(queue);
        let of_kind = |kind: Kind| {
            let handler = HandlerMetrics::new(&queue, &kind);
            (kind, handler)
        };
        let named = kinds.known().filter(|kind| **kind != Kind::NONE);
        Self {
            unnamed: HandlerMetrics::new(&queue, &Kind::NONE),
            named: named.cloned().map(of_kind).collect(),
            restarts: counter!("hc_dequeue_restarts", "queue" => queue.clone()),
        }
    }

    /// Returns the metrics of the handler of a kind.
    pub(crate) fn of(&self, kind: &Kind) -> &HandlerMetrics {
        self.named.get(kind).unwrap_or(&self.unnamed)
    }
}

/// The metrics of one handler.
pub(crate) struct HandlerMetrics {
    handler: Histogram,
    done: Counter,
    snoozed: Counter,
    retried: Counter,
    dead: Counter,
    discarded: Counter,
    dropped: Counter,
}

impl HandlerMetrics {
    fn new(queue: &str, kind: &Kind) -> Self {
        let kind = kind.get().map(|kind| ("kind", kind.to_owned()));
        let labels: Vec<_> = [("queue", queue.to_owned())]
            .into_iter()
            .chain(kind)
            .collect();
        let outcome = |outcome: &'static str| {
            let outcome = ("outcome", outcome.to_owned());
            let labels: Vec<_> = labels.iter().cloned().chain([outcome]).collect();
            counter!("hc_dequeue_outcomes", &labels)
        };
        Self {
            handler: histogram!("hc_dequeue_handler_seconds", &labels),
            done: outcome("done"),
            snoozed: outcome("snoozed"),
            retried: outcome("retried"),
            dead: outcome("dead"),
            discarded: outcome("discarded"),
            dropped: outcome("dropped"),
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

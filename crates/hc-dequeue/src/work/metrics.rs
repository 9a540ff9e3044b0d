//! The metrics of workers.

use std::collections::BTreeMap;
use std::time::Duration;

use metrics::{Counter, Histogram, counter, histogram};
use microqueue::keyspace::Subspace;
use microqueue::keyspace::names::queue_name;

use crate::items::death::DEAD;
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
    discarded: Counter,
    dropped: Counter,
}

impl HandlerMetrics {
    fn new(queue: &str, kind: &Kind) -> Self {
        let outcomes = |outcome| kind.outcomes(queue, outcome);
        // Deaths are counted where they are committed. Until the first one, the counter is zero, and not missing.
        let _ = outcomes(DEAD);
        Self {
            handler: histogram!("hc_dequeue_handler_seconds", kind.labels(queue)),
            done: outcomes("done"),
            snoozed: outcomes("snoozed"),
            retried: outcomes("retried"),
            discarded: outcomes("discarded"),
            dropped: outcomes("dropped"),
        }
    }

    /// Records a call of the handler, with its duration and its outcome, and whether a failure is the item's last,
    /// after which it is not retried. The outcome is `None` if the handler was dropped.
    pub(crate) fn record(&self, took: Duration, outcome: Option<&Outcome>, is_last: bool) {
        self.handler.record(took.as_secs_f64());
        let counter = match outcome {
            Some(Outcome::Done) => &self.done,
            Some(Outcome::Snooze(_)) => &self.snoozed,
            Some(Outcome::Retry { .. }) if is_last => return,
            Some(Outcome::Retry { .. }) => &self.retried,
            Some(Outcome::Discard { .. }) => &self.discarded,
            None => &self.dropped,
        };
        counter.increment(1);
    }
}

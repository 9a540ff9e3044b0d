//! Calls an application's handler, and turns its outcome into what happens to the item.

use std::future::Future;
use std::time::Duration;

use microqueue::keyspace::foreign::{self, Panicked};
use microqueue::keyspace::{Environment, Subspace};
use tracing::Instrument;

use crate::consume::held_item::HeldItem;
use crate::items::kind::Kinds;
use crate::protocol::give_back::GiveBack;
use crate::work::metrics::WorkerMetrics;
use crate::work::outcome::Outcome;

/// How long a slot waits after a fault, which may occur again at once.
const PAUSE_AFTER_FAULT: Duration = Duration::from_millis(100);

/// What calls of a queue's handler need.
pub(crate) struct Calls {
    env: Environment,
    metrics: WorkerMetrics,
}

impl Calls {
    pub(crate) fn new(queue: &Subspace, env: &Environment, kinds: &Kinds) -> Self {
        Self {
            env: env.clone(),
            metrics: WorkerMetrics::new(queue, kinds),
        }
    }

    /// Runs a future that calls the handler for an item. Returns `None` if the future was dropped because the item was
    /// cancelled or the delivery was lost. A panic becomes a retry, wherever in the application's code it happens.
    pub(crate) async fn call(
        &self,
        item: &HeldItem,
        handle: impl Future<Output = Outcome>,
    ) -> Option<Outcome> {
        let handle = foreign::run(handle.instrument(item.handler_span()));
        let began = self.env.now();
        let handled = tokio::select! {
            handled = handle => Some(handled),
            () = item.cancelled() => {
                let queue = item.queue_name();
                let kind = item.record.kind.get();
                let attempt = item.attempt();
                let repeats = item.out.repeats().map(tracing::field::display);
                let item = item.item_ref();
                tracing::warn!(
                    queue,
                    %item,
                    kind,
                    attempt,
                    repeats,
                    "a handler was dropped: its item was cancelled, or its delivery is lost"
                );
                None
            }
        };
        let outcome = handled
            .map(|handled| handled.unwrap_or_else(|panicked| Outcome::retry(panicked.to_string())));
        let took = self.env.now().saturating_sub(began);
        let has_failed = matches!(outcome, Some(Outcome::Retry { .. }));
        let is_last = has_failed && item.is_last_attempt();
        let metrics = self.metrics.of(&item.record.kind);
        metrics.record(took, outcome.as_ref(), is_last);
        outcome
    }

    /// Records that a panic outside of the application's code has ended a slot, and waits before it starts again.
    pub(crate) async fn pause_after(&self, panicked: &Panicked) {
        self.metrics.restarts.increment(1);
        let panic = panicked.message();
        tracing::error!(
            panic,
            "a fault of this library has ended a slot of a worker: it starts again"
        );
        self.env.sleep(PAUSE_AFTER_FAULT).await;
    }

    /// Returns what happens to an item after an outcome of its handler, and the reason to keep.
    pub(crate) fn resolution(
        &self,
        held: &HeldItem,
        outcome: Outcome,
    ) -> (GiveBack, Option<String>) {
        let queue = held.queue_name();
        let item = held.item_ref();
        let kind = held.record.kind.get();
        let attempt = held.attempt();
        match outcome {
            Outcome::Done => (held.completed(), None),
            Outcome::Snooze(delay) => (GiveBack::Returned(held.after(delay)), None),
            Outcome::Retry { after, reason } => {
                let failures = u32::try_from(attempt).unwrap_or(u32::MAX);
                let backoff = held.out.life.backoff;
                let delay = after.unwrap_or_else(|| backoff.after(failures, &self.env));
                tracing::warn!(queue, %item, kind, attempt, reason, ?delay, "a handler failed");
                (GiveBack::Failed(held.after(delay)), Some(reason))
            }
            Outcome::Discard { reason } => {
                tracing::warn!(queue, %item, kind, attempt, reason, "a handler has discarded an item");
                (GiveBack::Discarded, Some(reason))
            }
        }
    }
}

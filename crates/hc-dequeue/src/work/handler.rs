//! Calls an application's handler, and turns its outcome into what happens to the item.

use std::future::Future;
use std::time::Duration;

use microqueue::keyspace::foreign::{self, Guarded, Panicked};
use microqueue::keyspace::{Database, Environment, Runner};
use tracing::Instrument;

use crate::consume::delivery::Delivery;
use crate::options::Backoff;
use crate::protocol::give_back::GiveBack;
use crate::queue::handle::Queue;
use crate::work::metrics::HandlerMetrics;
use crate::work::outcome::{IntoOutcome, Outcome};

/// How long a slot waits after a fault, which may occur again at once.
const PAUSE_AFTER_FAULT: Duration = Duration::from_millis(100);

/// A handler of a queue's items, with everything that its calls need.
pub(crate) struct Handler<F> {
    handle: Guarded<F>,
    backoff: Backoff,
    env: Environment,
    metrics: HandlerMetrics,
}

impl<F> Handler<F> {
    pub(crate) fn new<T, C, D: Database>(
        queue: &Queue<T, C>,
        runner: &Runner<D>,
        backoff: Backoff,
        handle: F,
    ) -> Self {
        Self {
            handle: Guarded::new(handle),
            backoff,
            env: runner.environment().clone(),
            metrics: HandlerMetrics::new(&queue.keys.queue),
        }
    }

    /// Calls the handler. Returns `None` if its future was dropped because the item was cancelled or the delivery was
    /// lost. A panic becomes a retry, wherever in the application's code it happens.
    pub(crate) async fn handle<T, Fut, R>(&self, delivery: &Delivery<T>) -> Option<Outcome>
    where
        F: Fn(Delivery<T>) -> Fut,
        Fut: Future<Output = R>,
        R: IntoOutcome,
    {
        // The call that creates the future may panic, and so may the conversion of its result.
        let handle = async {
            let handled = (self.handle)(delivery.clone()).await.into_outcome();
            handled.unwrap_or_else(|error| Outcome::failed(&*error))
        };
        let handle = foreign::run(handle.instrument(delivery.handler_span()));
        let began = self.env.now();
        let handled = tokio::select! {
            handled = handle => Some(handled),
            () = delivery.cancelled() => {
                let item = delivery.item_ref();
                tracing::warn!(%item, "a handler was dropped: its item was cancelled, or its delivery is lost");
                None
            }
        };
        let outcome = handled
            .map(|handled| handled.unwrap_or_else(|panicked| Outcome::retry(panicked.to_string())));
        let took = self.env.now().saturating_sub(began);
        self.metrics.record(took, outcome.as_ref());
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
    pub(crate) fn resolution<T>(
        &self,
        delivery: &Delivery<T>,
        outcome: Outcome,
    ) -> (GiveBack, Option<String>) {
        let item = delivery.item_ref();
        match outcome {
            Outcome::Done => (delivery.completed(), None),
            Outcome::Snooze(delay) => (GiveBack::Returned(delivery.after(delay)), None),
            Outcome::Retry { after, reason } => {
                let failures = u32::try_from(delivery.attempt()).unwrap_or(u32::MAX);
                let delay = after.unwrap_or_else(|| self.backoff.after(failures, &self.env));
                tracing::warn!(%item, reason, ?delay, "a handler failed");
                (GiveBack::Failed(delivery.after(delay)), Some(reason))
            }
            Outcome::Discard { reason } => {
                tracing::warn!(%item, reason, "a handler has discarded an item");
                (GiveBack::Discarded, Some(reason))
            }
        }
    }
}

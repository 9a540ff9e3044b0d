//! A loop around a consumer: take, handle, acknowledge or try again later.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use microqueue::keyspace::codec::Codec;
use microqueue::keyspace::error::panic_message;
use microqueue::keyspace::{Database, Environment, Runner};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::Instrument;

use crate::consumer::Consumer;
use crate::delivery::Delivery;
use crate::error::{Error, Result};
use crate::give_back::GiveBack;
use crate::metrics::HandlerMetrics;
use crate::options::{Backoff, ConsumerOptions, WorkerOptions};
use crate::outcome::Outcome;
use crate::queue::HighContentionQueue;

/// How many handlers work at the same time, unless told otherwise.
const CONCURRENCY: usize = 16;

/// Handles the items of a queue until it is shut down.
///
/// The handler gets each delivery, and the [`Outcome`] that it returns decides what becomes of the item:
///
/// - `Done`, or `Ok(())`: it is completed, unless the handler has acknowledged it in a transaction of its own.
///   The worker's acknowledgement goes into the transaction that takes the next items.
/// - `Retry`, an `Err`, or a panic: it is tried again later, see [`Backoff`]. After
///   [`Settings::max_attempts`](crate::Settings::max_attempts) attempts it is a dead letter.
/// - `Snooze`: it is put off, which costs it nothing.
/// - `Discard`: it is a dead letter.
/// - If the item is [cancelled](Delivery::cancelled), the handler's future is dropped.
/// - If the delivery is [lost](Delivery::lost), because its time is over or the session died, the
///   handler's future is dropped and another session gets the item. So a handler that hangs
///   costs its slot for as long as the time limit. One that blocks its thread cannot be stopped, but what it
///   acknowledges afterwards is refused.
///
/// Dropping a worker drops its handlers wherever they are, and returns what they held, as if it had not
/// been granted.
///
/// # Conflicts
/// As those of its [`Consumer`]. What a handler's own transactions conflict with is the handler's.
///
/// # Retries
/// The worker's transactions are retried by the runner that it was opened with, and by the worker if
/// that gives up. An item is tried again as said above, so that its handler runs at least once; what it
/// does in the transaction that [acknowledges](Delivery::ack) the item takes effect once.
pub struct Worker<T> {
    consumer: Consumer<T>,
    env: Environment,
    handlers: JoinSet<()>,
    stop: watch::Sender<bool>,
}

impl<T, C> HighContentionQueue<T, C>
where
    T: Send + Sync + 'static,
    C: Codec<T>,
{
    /// Opens a session and handles what it takes from the queue.
    ///
    /// # Errors
    /// Those of [`consumer`](Self::consumer).
    ///
    /// # Cancel safety
    /// As [`consumer`](Self::consumer).
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn work<D, F, Fut, R>(
        &self,
        runner: &Runner<D>,
        options: WorkerOptions,
        handler: F,
    ) -> Result<Worker<T>>
    where
        D: Database,
        F: Fn(Arc<Delivery<T>>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = R> + Send + 'static,
        R: Into<Outcome> + Send + 'static,
    {
        let default = ConsumerOptions::default();
        let consumer = ConsumerOptions {
            time_limit: options.time_limit_or(default.time_limit),
            poll_interval: options.poll_interval_or(default.poll_interval),
            backoff: options.backoff_or(default.backoff),
        };
        let consumer = self.consumer(runner, consumer).await?;
        let handler = Arc::new(handler);
        let metrics = Arc::new(HandlerMetrics::new(&self.subspace().to_string()));
        let (stop, _) = watch::channel(false);
        let mut handlers = JoinSet::new();
        for _ in 0..options.concurrency_or(CONCURRENCY) {
            let slot = HandlerSlot {
                consumer: consumer.clone(),
                handler: handler.clone(),
                backoff: options.backoff_or(default.backoff),
                env: runner.environment().clone(),
                metrics: metrics.clone(),
                stopped: stop.subscribe(),
            };
            handlers.spawn(slot.work());
        }
        Ok(Worker {
            consumer,
            env: runner.environment().clone(),
            handlers,
            stop,
        })
    }
}

impl<T> Drop for Worker<T> {
    fn drop(&mut self) {
        self.consumer.release();
    }
}

impl<T: Send + Sync + 'static> Worker<T> {
    /// Takes nothing more, lets the handlers finish for up to `grace`, and ends the session, which
    /// returns what is not finished by then. That was no attempt of the items which it returns: a
    /// handler that takes longer than the time between two deployments does not make dead letters.
    ///
    /// # Errors
    /// Those of [`Consumer::shut_down`].
    ///
    /// # Cancel safety
    /// Dropping the future drops the handlers.
    pub async fn shut_down(mut self, grace: Duration) -> Result<()> {
        self.stop.send_replace(true);
        let finish = async { while self.handlers.join_next().await.is_some() {} };
        if self.env.timeout(grace, finish).await.is_none() {
            tracing::warn!("handlers that do not finish are dropped");
            self.consumer.release();
            self.handlers.shutdown().await;
        }
        self.consumer.clone().shut_down(Duration::ZERO).await
    }
}

/// Where one of the handlers works that work at the same time.
struct HandlerSlot<T, F> {
    consumer: Consumer<T>,
    handler: Arc<F>,
    backoff: Backoff,
    env: Environment,
    metrics: Arc<HandlerMetrics>,
    stopped: watch::Receiver<bool>,
}

impl<T, F, Fut, R> HandlerSlot<T, F>
where
    T: Send + Sync + 'static,
    F: Fn(Arc<Delivery<T>>) -> Fut,
    Fut: Future<Output = R>,
    R: Into<Outcome>,
{
    async fn work(mut self) {
        loop {
            let next = tokio::select! {
                biased;
                _ = self.stopped.wait_for(|stopped| *stopped) => return,
                next = self.consumer.dequeue_within(Duration::MAX) => next,
            };
            match next {
                Ok(Some(delivery)) => self.handle(Arc::new(delivery)).await,
                Ok(None) => {}
                Err(Error::ShutDown { .. }) => return,
                // The dispatcher has logged it, and waits before it tries again.
                Err(_) => {}
            }
        }
    }

    async fn handle(&self, delivery: Arc<Delivery<T>>) {
        // The call itself may panic as well as its future.
        let handle = async { (self.handler)(delivery.clone()).await };
        let handle = handle.instrument(delivery.handler_span());
        let began = self.env.now();
        let took = || self.env.now().saturating_sub(began);
        let handled = tokio::select! {
            handled = AssertUnwindSafe(handle).catch_unwind() => handled,
            () = delivery.cancelled() => {
                let id = delivery.id();
                tracing::warn!(?id, "a handler was dropped: its item was cancelled, or its delivery is lost");
                self.metrics.record(took(), None);
                return;
            }
        };
        let outcome = handled.map_or_else(
            |panic| Outcome::retry(format!("it panicked: {}", panic_message(&*panic))),
            Into::into,
        );
        self.metrics.record(took(), Some(&outcome));
        self.resolve(&delivery, outcome);
    }

    /// Does with an item what its handler says.
    fn resolve(&self, delivery: &Delivery<T>, outcome: Outcome) {
        let id = delivery.id();
        match outcome {
            Outcome::Done => delivery.finish(),
            Outcome::Snooze(delay) => {
                delivery.come_back(GiveBack::Returned(delivery.after(delay)), None);
            }
            Outcome::Retry { after, reason } => {
                let failures = u32::try_from(delivery.attempt()).unwrap_or(u32::MAX);
                let delay = after.unwrap_or_else(|| self.backoff.after(failures, &self.env));
                tracing::warn!(?id, reason, ?delay, "a handler failed");
                let how = GiveBack::Failed(delivery.after(delay));
                delivery.come_back(how, Some(&reason));
            }
            Outcome::Discard { reason } => {
                tracing::warn!(?id, reason, "a handler has discarded an item");
                delivery.come_back(GiveBack::Rejected, Some(&reason));
            }
        }
    }
}

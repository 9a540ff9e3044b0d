//! A loop around a consumer: take, handle, acknowledge or try again later.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use microqueue::keyspace::codec::Codec;
use microqueue::keyspace::{Database, Environment, Runner};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::consumer::Consumer;
use crate::delivery::Delivery;
use crate::error::{Error, Result};
use crate::handler::Handler;
use crate::options::{ConsumerOptions, WorkerOptions};
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
/// - `Retry`, an `Err`, or a panic: it is tried again later, see [`Backoff`](crate::Backoff). After
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
        let backoff = options.backoff_or(default.backoff);
        let handler = Arc::new(Handler::new(self, runner, backoff, handler));
        let (stop, _) = watch::channel(false);
        let mut handlers = JoinSet::new();
        for _ in 0..options.concurrency_or(CONCURRENCY) {
            let slot = HandlerSlot {
                consumer: consumer.clone(),
                handler: handler.clone(),
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
    handler: Arc<Handler<F>>,
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
        // Otherwise dropping it gives the item back.
        if let Some(outcome) = self.handler.handle(&delivery).await {
            let (how, reason) = self.handler.resolution(&delivery, outcome);
            delivery.conclude(how, reason.as_deref());
        }
    }
}

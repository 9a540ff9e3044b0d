//! A loop around a consumer: takes items, handles them, and acknowledges or retries them.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use microqueue::keyspace::codec::Codec;
use microqueue::keyspace::{Database, Environment, Runner, foreign};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::consume::consumer::Consumer;
use crate::consume::delivery::Delivery;
use crate::items::error::{Error, Result};
use crate::options::WorkerOptions;
use crate::queue::handle::Queue;
use crate::shutdown::{ShutdownReport, end_tasks};
use crate::work::handler::Handler;
use crate::work::outcome::IntoOutcome;

/// How many handlers run at the same time by default.
const CONCURRENCY: usize = 16;

/// Handles the items of a queue until it is shut down.
///
/// The worker calls the handler for each delivery. The returned [`Outcome`](crate::Outcome) decides what happens to the item:
///
/// - `Done`, or `Ok(())`: the item is completed, unless the handler has already acknowledged it in its own
///   transaction. The worker acknowledges it in the transaction that takes the next items.
/// - `Retry`, an `Err`, a panic, or a passed time limit: the item is retried after the [`Backoff`](crate::Backoff).
///   After [`Settings::max_attempts`](crate::Settings::max_attempts) attempts, it becomes a dead letter.
/// - `Snooze`: the item is granted again later. This does not count as an attempt.
/// - `Discard`: the item becomes a dead letter.
///
/// The worker drops the handler's future early in two cases:
///
/// - The item is [cancelled](Delivery::cancelled).
/// - The delivery is [lost](Delivery::lost), because its time limit has passed or the session has died. The item
///   then comes back, after the backoff or at once. A handler that hangs therefore occupies its slot only until the
///   time limit. A handler that blocks its thread cannot be stopped, but its later acknowledgement is refused.
///
/// A panic in code of the application fails the item, wherever it happens, and never ends the worker.
///
/// Dropping the worker drops all handlers at once and returns their items without counting an attempt.
///
/// # Conflicts
/// As those of its [`Consumer`], and those of the transactions that a handler runs itself.
///
/// # Retries
/// The runner retries the worker's transactions, and the worker tries again if the runner gives up. Since items are
/// retried, a handler runs at least once for each item; what it does in the transaction that
/// [acknowledges](Delivery::ack) the item takes effect once.
pub struct Worker<T> {
    consumer: Consumer<T>,
    env: Environment,
    handlers: JoinSet<()>,
    stop: watch::Sender<bool>,
    /// How often a slot was started again.
    restarted: Arc<AtomicUsize>,
    /// How many slots handle an item.
    busy: Arc<AtomicUsize>,
}

impl<T, C> Queue<T, C>
where
    T: Send + Sync + 'static,
    C: Codec<T>,
{
    /// Opens a session and calls the handler for each item, outside a transaction.
    ///
    /// The handler gets the delivery, but no transaction. It may take as long as the worker's time limit, and its effects
    /// may be outside the store. [`process`](Self::process) is for handlers that work in a transaction.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use hc_dequeue::keyspace::{Database, Runner};
    /// # use hc_dequeue::{Delivery, Outcome, Queue, Result, Worker, WorkerOptions};
    /// # async fn send(mail: &str) -> std::io::Result<()> { Ok(()) }
    /// async fn send_mails<D: Database>(
    ///     runner: &Runner<D>,
    ///     mails: &Queue<String>,
    /// ) -> Result<Worker<String>> {
    ///     let handler = |mail: Delivery<String>| async move {
    ///         if mail.value().is_empty() {
    ///             return Ok(Outcome::discard("the mail is empty"));
    ///         }
    ///         send(mail.value()).await?; // an error is retried
    ///         Ok::<_, std::io::Error>(Outcome::Done)
    ///     };
    ///     mails.work(runner, WorkerOptions::new().with_concurrency(4), handler).await
    /// }
    /// ```
    /// # Errors
    /// Those of [`consumer`](Self::consumer).
    ///
    /// # Cancel safety
    /// As [`consumer`](Self::consumer).
    ///
    /// # Panics
    /// Panics outside a tokio runtime.
    pub async fn work<D, F, Fut, R>(
        &self,
        runner: &Runner<D>,
        options: WorkerOptions,
        handler: F,
    ) -> Result<Worker<T>>
    where
        D: Database,
        F: Fn(Delivery<T>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = R> + Send + 'static,
        R: IntoOutcome + Send + 'static,
    {
        let backoff = options.backoff().unwrap_or_default();
        let concurrency = options.concurrency().unwrap_or(CONCURRENCY);
        let consumer = self.consumer(runner, options).await?;
        let handler = Arc::new(Handler::new(self, runner, backoff, handler));
        let (stop, _) = watch::channel(false);
        let restarted = Arc::new(AtomicUsize::new(0));
        let busy = Arc::new(AtomicUsize::new(0));
        let mut handlers = JoinSet::new();
        for _ in 0..concurrency {
            let slot = HandlerSlot {
                consumer: consumer.clone(),
                handler: handler.clone(),
                stopped: stop.subscribe(),
                restarted: restarted.clone(),
                busy: busy.clone(),
            };
            handlers.spawn(slot.work());
        }
        Ok(Worker {
            consumer,
            env: runner.environment().clone(),
            handlers,
            stop,
            restarted,
            busy,
        })
    }
}

impl<T> Drop for Worker<T> {
    fn drop(&mut self) {
        self.consumer.release();
    }
}

impl<T: Send + Sync + 'static> Worker<T> {
    /// Stops taking items, lets the handlers finish for up to `grace`, and ends the session.
    ///
    /// Items whose handlers have not finished by then return to the queue without a counted attempt, so that
    /// deployments do not turn long items into dead letters.
    ///
    /// A handler that blocks its thread cannot be dropped. The call goes on without it [`DROP_LIMIT`](crate::shutdown::DROP_LIMIT) after the grace,
    /// and its later acknowledgement is refused. The call returns at the latest [`SESSION_END_LIMIT`](crate::shutdown::SESSION_END_LIMIT) after that. It
    /// needs a thread of the runtime that no handler blocks, and the runtime itself waits for blocked threads when it
    /// is dropped: if the [report](ShutdownReport::running) counts such handlers, end the process with
    /// [`std::process::exit`], or use `Runtime::shutdown_background` of tokio.
    ///
    /// # Errors
    /// Those of [`Consumer::shut_down`].
    ///
    /// # Cancel safety
    /// Dropping the future drops the handlers.
    pub async fn shut_down(mut self, grace: Duration) -> Result<ShutdownReport> {
        self.stop.send_replace(true);
        let busy = || self.busy.load(Ordering::Relaxed);
        let mut unfinished = 0;
        let release = || {
            unfinished = busy();
            self.consumer.release();
        };
        end_tasks(&self.env, &mut self.handlers, grace, release).await;
        // Slots without an item may end late, too.
        let running = busy();
        self.consumer.clone().shut_down(Duration::ZERO).await?;
        Ok(ShutdownReport {
            dropped: unfinished.saturating_sub(running),
            running,
            restarted: self.restarted.load(Ordering::Relaxed),
        })
    }
}

/// One of the slots in which handlers run at the same time.
struct HandlerSlot<T, F> {
    consumer: Consumer<T>,
    handler: Arc<Handler<F>>,
    stopped: watch::Receiver<bool>,
    restarted: Arc<AtomicUsize>,
    busy: Arc<AtomicUsize>,
}

/// Counts a slot as busy until it is dropped.
struct Busy<'a>(&'a AtomicUsize);

impl<'a> Busy<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<T, F, Fut, R> HandlerSlot<T, F>
where
    T: Send + Sync + 'static,
    F: Fn(Delivery<T>) -> Fut,
    Fut: Future<Output = R>,
    R: IntoOutcome,
{
    /// Works until the worker stops. No panic ends a slot for good: those of the application's code were caught where
    /// they happened, and another one is a fault of this library, which costs the item that the slot held an attempt.
    async fn work(mut self) {
        while let Err(panicked) = foreign::run(self.take_turns()).await {
            self.restarted.fetch_add(1, Ordering::Relaxed);
            self.handler.pause_after(&panicked).await;
        }
    }

    async fn take_turns(&mut self) {
        loop {
            let next = tokio::select! {
                biased;
                _ = self.stopped.wait_for(|stopped| *stopped) => return,
                next = self.consumer.dequeue_within(Duration::MAX) => next,
            };
            match next {
                Ok(Some(delivery)) => self.handle(delivery).await,
                Ok(None) => {}
                Err(Error::ShutDown { .. }) => return,
                // The dispatcher has logged the error, and waits before it tries again.
                Err(_) => {}
            }
        }
    }

    async fn handle(&self, delivery: Delivery<T>) {
        // Dropped last: until then, what the handler holds may block the thread.
        let _busy = Busy::new(&self.busy);
        self.consumer.let_dispatcher_run().await;
        // Without an outcome, dropping the delivery gives the item back.
        if let Some(outcome) = self.handler.handle(&delivery).await {
            let (how, reason) = self.handler.resolution(&delivery, outcome);
            delivery.conclude(how, reason.as_deref());
        }
    }
}

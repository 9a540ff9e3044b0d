//! The slots of a worker: what it does without knowing the types of its values and of its handler.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use microqueue::keyspace::foreign::Guarded;
use microqueue::keyspace::{Environment, Runner, Store, foreign};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::task::coop::consume_budget;

use crate::consume::held_item::HandedOut;
use crate::consume::untyped::UntypedConsumer;
use crate::items::error::{Error, Result};
use crate::options::{DispatcherOptions, WorkerOptions};
use crate::queue::handle::UntypedQueue;
use crate::shutdown::{ShutdownReport, end_tasks};
use crate::work::calls::Calls;
use crate::work::outcome::Outcome;

/// A handler of the application.
type Handler = Box<dyn Fn(HandedOut) -> BoxFuture<'static, Outcome> + Send + Sync>;

/// The slots of a worker, and their consumer.
pub(crate) struct Slots {
    consumer: UntypedConsumer,
    env: Environment,
    handlers: JoinSet<()>,
    stop: watch::Sender<bool>,
    /// How often a slot was started again.
    restarted: Arc<AtomicUsize>,
    /// How many slots handle an item.
    busy: Arc<AtomicUsize>,
}

impl Slots {
    /// Opens a session, and spawns the slots.
    pub(crate) fn open(
        queue: UntypedQueue,
        runner: Runner<Store>,
        options: &WorkerOptions,
        handler: Handler,
    ) -> BoxFuture<'_, Result<Self>> {
        Box::pin(async move {
            let env = runner.environment().clone();
            let options = DispatcherOptions::of_worker(options);
            let concurrency = options.concurrency;
            let calls = Arc::new(Calls::new(&queue.keys.queue, &env, options.backoff));
            let consumer = UntypedConsumer::open(queue, runner, options).await?;
            let handler = Arc::new(Guarded::new(handler));
            let (stop, _) = watch::channel(false);
            let restarted = Arc::new(AtomicUsize::new(0));
            let busy = Arc::new(AtomicUsize::new(0));
            let mut handlers = JoinSet::new();
            for _ in 0..concurrency {
                let slot = Slot {
                    consumer: consumer.clone(),
                    handler: handler.clone(),
                    calls: calls.clone(),
                    stopped: stop.subscribe(),
                    restarted: restarted.clone(),
                    busy: busy.clone(),
                };
                handlers.spawn(slot.work());
            }
            Ok(Self {
                consumer,
                env,
                handlers,
                stop,
                restarted,
                busy,
            })
        })
    }

    /// Stops taking items, lets the handlers finish for up to `grace`, and ends the session.
    pub(crate) fn shut_down(
        mut self,
        grace: Duration,
    ) -> BoxFuture<'static, Result<ShutdownReport>> {
        Box::pin(async move {
            self.stop.send_replace(true);
            self.consumer.end_reserve();
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
        })
    }
}

impl Drop for Slots {
    fn drop(&mut self) {
        self.consumer.release();
    }
}

/// One of the slots in which handlers run at the same time.
struct Slot {
    consumer: UntypedConsumer,
    handler: Arc<Guarded<Handler>>,
    calls: Arc<Calls>,
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

impl Slot {
    /// Works until the worker stops. No panic ends a slot for good: those of the application's code were caught where
    /// they happened, and another one is a fault of this library, which costs the item that the slot held an attempt.
    async fn work(mut self) {
        while let Err(panicked) = foreign::run(self.take_turns()).await {
            self.restarted.fetch_add(1, Ordering::Relaxed);
            self.calls.pause_after(&panicked).await;
        }
    }

    async fn take_turns(&mut self) {
        loop {
            let next = tokio::select! {
                biased;
                _ = self.stopped.wait_for(|stopped| *stopped) => return,
                next = self.consumer.dequeue(1, Duration::MAX) => next,
            };
            match next {
                Ok(handed_out) => {
                    for handed_out in handed_out {
                        self.handle(handed_out).await;
                    }
                    // Neither the reserve nor a handler that never waits makes the task wait.
                    consume_budget().await;
                }
                Err(Error::ShutDown { .. }) => return,
                // The dispatcher has logged the error, and waits before it tries again.
                Err(_) => {}
            }
        }
    }

    async fn handle(&self, handed_out: HandedOut) {
        // Dropped last: until then, what the handler holds may block the thread.
        let _busy = Busy::new(&self.busy);
        let item = handed_out.item.clone();
        self.consumer.let_dispatcher_run().await;
        let handle = async { (self.handler)(handed_out).await };
        // Without an outcome, dropping the item gives it back.
        if let Some(outcome) = self.calls.call(&item, handle).await {
            let (how, reason) = self.calls.resolution(&item, outcome);
            item.conclude(how, reason.as_deref());
        }
    }
}

#[cfg(test)]
mod tests;

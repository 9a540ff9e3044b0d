//! The slots of a worker: what it does without knowing the types of its values and of its handler.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use microqueue::keyspace::error::chain;
use microqueue::keyspace::foreign::Guarded;
use microqueue::keyspace::{Environment, Runner, Store, foreign};
use tokio::sync::{RwLock, watch};
use tokio::task::JoinSet;
use tokio::task::coop::consume_budget;

use crate::consume::held_item::{HandedOut, HeldItem};
use crate::consume::untyped::UntypedConsumer;
use crate::items::error::{Error, Result};
use crate::options::{DispatcherOptions, WorkerOptions};
use crate::protocol::give_back::GiveBack;
use crate::queue::handle::UntypedQueue;
use crate::shutdown::{SESSION_END_LIMIT, ShutdownReport, end_tasks};
use crate::work::calls::Calls;
use crate::work::outcome::Outcome;

/// Calls a handler of the application.
pub(crate) type Handle = dyn Fn(HandedOut) -> BoxFuture<'static, Outcome> + Send + Sync;

/// What the slots of a worker do besides taking items.
#[derive(Debug, Clone, Copy, Default)]
struct Orders {
    /// They take no items any more.
    stops: bool,
    /// How many slots have an item that is handed out apart, and wait until no other one has an item or waits for one.
    apart: usize,
}

/// The slots of a worker, and their consumer.
pub(crate) struct Slots {
    consumer: UntypedConsumer,
    env: Environment,
    handlers: JoinSet<()>,
    orders: Arc<watch::Sender<Orders>>,
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
        handler: Box<Handle>,
    ) -> BoxFuture<'_, Result<Self>> {
        Box::pin(async move {
            let env = runner.environment().clone();
            let options = DispatcherOptions::of_worker(options)?;
            let concurrency = options.concurrency;
            let calls = Arc::new(Calls::new(&queue.keys.queue, &env, &queue.kinds));
            let consumer = UntypedConsumer::open(queue, runner, options).await?;
            let handler = Arc::new(Guarded::new(handler));
            let orders = Arc::new(watch::Sender::default());
            let turns = Arc::new(RwLock::default());
            let restarted = Arc::new(AtomicUsize::new(0));
            let busy = Arc::new(AtomicUsize::new(0));
            let mut handlers = JoinSet::new();
            for _ in 0..concurrency {
                let slot = Slot {
                    consumer: consumer.clone(),
                    handler: handler.clone(),
                    calls: calls.clone(),
                    ordered: orders.subscribe(),
                    orders: orders.clone(),
                    turns: turns.clone(),
                    restarted: restarted.clone(),
                    busy: busy.clone(),
                };
                handlers.spawn(slot.work());
            }
            Ok(Self {
                consumer,
                env,
                handlers,
                orders,
                restarted,
                busy,
            })
        })
    }

    /// Stops taking items, lets the handlers finish for up to `grace`, and ends the session, which may take what is
    /// left of the grace.
    pub(crate) fn shut_down(
        mut self,
        grace: Duration,
    ) -> BoxFuture<'static, Result<ShutdownReport>> {
        Box::pin(async move {
            self.orders.send_modify(|orders| orders.stops = true);
            self.consumer.end_reserve();
            let until = self.env.now().saturating_add(grace);
            let busy = || self.busy.load(Ordering::Relaxed);
            let mut unfinished = 0;
            let release = || {
                unfinished = busy();
                self.consumer.release();
            };
            end_tasks(&self.env, &mut self.handlers, grace, release).await;
            // Slots without an item may end late, too.
            let running = busy();
            let left = until.saturating_sub(self.env.now());
            let limit = left.saturating_add(SESSION_END_LIMIT);
            self.consumer
                .clone()
                .end_within(limit, Duration::ZERO)
                .await?;
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
    handler: Arc<Guarded<Box<Handle>>>,
    calls: Arc<Calls>,
    ordered: watch::Receiver<Orders>,
    orders: Arc<watch::Sender<Orders>>,
    /// Locked shared while a slot waits for an item or handles one, and exclusively while it handles an item apart.
    turns: Arc<RwLock<()>>,
    restarted: Arc<AtomicUsize>,
    busy: Arc<AtomicUsize>,
}

/// Counts a slot among those that want to handle an item apart, until it is dropped.
struct Apart<'a>(&'a watch::Sender<Orders>);

impl<'a> Apart<'a> {
    fn new(orders: &'a watch::Sender<Orders>) -> Self {
        orders.send_modify(|orders| orders.apart += 1);
        Self(orders)
    }
}

impl Drop for Apart<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|orders| orders.apart -= 1);
    }
}

/// Returns when the slots must stop, and `true`. Also returns when a slot wants to handle an item apart, and `false`,
/// if `heeds_apart`.
async fn next_order(ordered: &mut watch::Receiver<Orders>, heeds_apart: bool) -> bool {
    let is_due = |orders: &Orders| orders.stops || heeds_apart && orders.apart > 0;
    // Each slot has a handle of the sender.
    let orders = ordered.wait_for(is_due).await;
    orders.expect("the sender is there").stops
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
        let turns = self.turns.clone();
        let mut shared = turns.read().await;
        loop {
            let next = tokio::select! {
                biased;
                stops = next_order(&mut self.ordered, true) => {
                    if stops {
                        return;
                    }
                    // The lock is fair: the slot that waits to be alone gets it first.
                    drop(shared);
                    shared = turns.read().await;
                    continue;
                }
                next = self.consumer.dequeue(1, Duration::MAX) => next,
            };
            match next {
                Ok(handed_out) => {
                    for handed_out in handed_out {
                        if handed_out.item.is_apart() {
                            drop(shared);
                            self.handle_apart(handed_out).await;
                            shared = turns.read().await;
                        } else {
                            let item = handed_out.item.clone();
                            if let Some((how, reason)) = self.handle(&item, handed_out).await {
                                item.conclude(how, reason.as_deref());
                            }
                        }
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

    /// Handles an item while no other slot has one. If the process dies of another item before, this is no death of the
    /// waiting one, since no transaction has recorded yet that it is handed out. Dropping the item gives it back.
    async fn handle_apart(&mut self, handed_out: HandedOut) {
        let turns = self.turns.clone();
        let orders = self.orders.clone();
        let wanted = Apart::new(&orders);
        let item = handed_out.item.clone();
        let _alone = tokio::select! {
            biased;
            _ = next_order(&mut self.ordered, false) => return,
            // Or lost: its time limit has passed while other handlers went on.
            () = item.cancelled() => return,
            alone = turns.write() => alone,
        };
        let handed_out = [handed_out];
        let is_confirmed = self.consumer.confirm(&handed_out).await;
        let [handed_out] = handed_out;
        // The wait does not count against the time limit.
        match is_confirmed.and_then(|()| handed_out.item.keep_alive()) {
            Ok(()) => {
                if let Some((how, reason)) = self.handle(&item, handed_out).await {
                    // The next item may end the process. The dispatcher logs its failures.
                    let _ = item.concluded(how, reason.as_deref()).await;
                }
            }
            Err(error) => {
                let queue = item.queue_name();
                let kind = item.record.kind.get();
                let item = item.item_ref();
                let error = chain(&error);
                tracing::warn!(queue, %item, kind, %error, "an item that must be handled apart goes back");
            }
        }
        drop(wanted);
    }

    /// Calls the handler for an item. Returns what happens to the item then, unless the handler was dropped.
    async fn handle(
        &self,
        item: &HeldItem,
        handed_out: HandedOut,
    ) -> Option<(GiveBack, Option<String>)> {
        // Dropped last: until then, what the handler holds may block the thread.
        let _busy = Busy::new(&self.busy);
        self.consumer.let_dispatcher_run().await;
        let handle = async { (self.handler)(handed_out).await };
        // Without an outcome, dropping the item gives it back.
        let outcome = self.calls.call(item, handle).await?;
        Some(self.calls.resolution(item, outcome))
    }
}

#[cfg(test)]
mod tests;

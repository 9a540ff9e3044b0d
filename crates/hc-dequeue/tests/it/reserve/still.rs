//! A worker on a clock that stands still.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::common::still::Still;
use crate::common::{LONG, World};
use conformance::{timeout, until};
use hc_dequeue::{Delivery, Worker, WorkerOptions};
use tokio::sync::{mpsc, watch};

/// How many items a test enqueues.
pub(super) const ITEMS: u64 = 20;

/// The largest reserve of most workers.
pub(super) const RESERVE: u64 = 10;

/// How long an item may be in a reserve if takes take no time.
pub(super) const PATIENCE: Duration = Duration::from_millis(20);

/// A worker on a clock that stands still. Its handlers wait before some of the items.
pub(super) struct StillWorker {
    pub(super) worker: Worker<u64>,
    pub(super) calls: mpsc::UnboundedReceiver<Delivery<u64>>,
    pub(super) blocked: watch::Sender<BTreeSet<u64>>,
}

impl StillWorker {
    pub(super) async fn start(
        world: &World,
        clock: &Still,
        options: WorkerOptions,
        blocked: impl IntoIterator<Item = u64>,
    ) -> Self {
        let (called, calls) = mpsc::unbounded_channel();
        let blocked = watch::Sender::new(blocked.into_iter().collect::<BTreeSet<_>>());
        let gate = blocked.subscribe();
        let handler = move |item: Delivery<u64>| {
            let value = *item.value();
            // The test may have ended.
            let _ = called.send(item);
            let mut gate = gate.clone();
            async move {
                let _ = gate.wait_for(|blocked| !blocked.contains(&value)).await;
            }
        };
        let runner = clock.runner(&world.store);
        let worker = world.queue.work(&runner, options, handler);
        Self {
            worker: worker.await.unwrap(),
            calls,
            blocked,
        }
    }

    /// Starts a worker with one handler, which waits with the second item in its hands and others in its reserve.
    pub(super) async fn with_reserve(world: &World, clock: &Still) -> (Self, BTreeSet<u64>) {
        world.enqueue(0..ITEMS).await;
        let mut worker = Self::start(world, clock, with_handlers(1), [1]).await;
        let reserve = worker.until_reserved(world, 1).await;
        (worker, reserve)
    }

    /// Waits until the reserve is full: the first item was handled, and the next `held` ones are with handlers. Returns
    /// the values in the reserve.
    pub(super) async fn until_reserved(&mut self, world: &World, held: u64) -> BTreeSet<u64> {
        for value in 0..=held {
            assert_eq!(self.next().await, value);
        }
        let mut reserved = 0;
        until_stats(world, |stats| {
            // Handlers may take the first items of a full reserve.
            reserved = stats.held.saturating_sub(held);
            stats.completed == 1 && stats.held >= RESERVE
        })
        .await;
        (held + 1..=held + reserved).collect()
    }

    /// Returns the value of the next item that is handled.
    pub(super) async fn next(&mut self) -> u64 {
        *self.next_delivery().await.value()
    }

    pub(super) async fn next_delivery(&mut self) -> Delivery<u64> {
        timeout(LONG, self.calls.recv()).await.unwrap()
    }

    /// Lets the handler of an item go on.
    pub(super) fn pass(&self, value: u64) {
        self.blocked.send_modify(|blocked| {
            blocked.remove(&value);
        });
    }

    /// Returns the values of the items whose handlers were called since the last call.
    pub(super) fn seen(&mut self) -> Vec<u64> {
        std::iter::from_fn(|| self.calls.try_recv().ok())
            .map(|item| *item.value())
            .collect()
    }
}

pub(super) fn with_handlers(handlers: usize) -> WorkerOptions {
    WorkerOptions::new()
        .with_concurrency(handlers)
        .with_max_reserve(RESERVE as usize)
}

/// Returns when the numbers of items are as wanted.
pub(super) async fn until_stats(world: &World, mut is_so: impl FnMut(&hc_dequeue::Stats) -> bool) {
    until(async || is_so(&world.stats().await)).await;
}

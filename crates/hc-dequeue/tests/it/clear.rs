//! Clearing a queue while sessions use it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use conformance::stores::TestStore;
use conformance::{scale, until};
use hc_dequeue::Error::Cancelled;
use hc_dequeue::{Delivery, Enqueue, ItemsOf, Outcome, WorkerOptions};
use keyspace::{Database, DatabaseOption, Error, Store};
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::task::block_in_place;

use crate::common::{LONG, World};

conformance::on_every_store!(
    threads:
    what_comes_back_while_a_clear_is_under_way_is_removed,
    what_comes_back_while_items_are_cancelled_is_cancelled,
    a_clear_beside_busy_workers_loses_nothing_and_one_of_a_paused_queue_leaves_nothing,
);

type Interruption = Box<dyn FnOnce() + Send>;

/// A store at one of whose transactions something happens before it begins.
#[derive(Clone)]
struct Interrupted {
    db: Store,
    left: Arc<AtomicUsize>,
    interruption: Arc<Mutex<Option<Interruption>>>,
}

impl Interrupted {
    /// Lets something happen before the next transaction after some others.
    fn new(
        world: &World,
        transactions_before: usize,
        interruption: impl Future<Output = ()> + Send + 'static,
    ) -> Self {
        let handle = Handle::current();
        let interruption: Interruption =
            Box::new(move || block_in_place(|| handle.block_on(interruption)));
        Self {
            db: world.store.db.clone(),
            left: Arc::new(AtomicUsize::new(transactions_before)),
            interruption: Arc::new(Mutex::new(Some(interruption))),
        }
    }
}

impl Database for Interrupted {
    type Transaction = <Store as Database>::Transaction;

    fn begin(&self) -> Result<Self::Transaction, Error> {
        if self.left.fetch_sub(1, Ordering::Relaxed) == 0
            && let Some(interrupt) = self.interruption.lock().take()
        {
            interrupt();
        }
        self.db.begin()
    }

    fn set_option(&self, option: DatabaseOption) -> Result<(), Error> {
        self.db.set_option(option)
    }
}

async fn what_comes_back_while_a_clear_is_under_way_is_removed(store: TestStore) {
    // Before each transaction of the first pass, and in each way.
    for transactions_before in 1..23 {
        for way in 0..3 {
            let world = World::with_defaults(&store).await;
            world.enqueue(0..3).await;
            let consumer = world.consumer().await;
            let held = consumer.dequeue().await.unwrap().unwrap();
            let come_back = async move {
                match way {
                    0 => held.release().await.unwrap(),
                    1 => held.retry_after(LONG, "not now").await.unwrap(),
                    _ => held.snooze(LONG).await.unwrap(),
                }
            };
            let db = Interrupted::new(&world, transactions_before, come_back);
            let runner = world.store.runner_on(db.clone());
            let cleared = world.queue.clear(&runner).await.unwrap();
            let case = format!("{transactions_before} {way}");
            assert!(db.interruption.lock().is_none(), "{case}");
            assert_eq!((cleared.removed, cleared.held), (3, 0), "{case}");
            let stats = world.stats().await;
            assert_eq!(
                (stats.queued, stats.delayed, stats.removed),
                (0, 0, 3),
                "{case}"
            );
            world.check().await;
        }
    }
}

async fn what_comes_back_while_items_are_cancelled_is_cancelled(store: TestStore) {
    // Before the call, and before each transaction of the first pass, and in each way.
    for transactions_before in 0..8 {
        for way in 0..4 {
            let world = World::with_defaults(&store).await;
            let of_a = Enqueue::new().with_group("a");
            world.enqueue_ref(7, &of_a).await;
            let consumer = world.consumer().await;
            let held = consumer.dequeue().await.unwrap().unwrap();
            let come_back = async move {
                let gave_back = match way {
                    0 => held.release().await,
                    1 => held.retry_after(LONG, "not now").await,
                    2 => held.snooze(LONG).await,
                    _ => held.discard("no").await,
                };
                assert!(matches!(gave_back, Ok(()) | Err(Cancelled { .. })));
            };
            let db = Interrupted::new(&world, transactions_before, come_back);
            let runner = world.store.runner_on(db.clone());
            let of_a = ItemsOf::group("a");
            let cancelled = world.queue.cancel_items(&runner, &of_a).await.unwrap();
            let case = format!("{transactions_before} {way}");
            assert!(db.interruption.lock().is_none(), "{case}");
            assert_eq!(cancelled.removed + cancelled.requested, 1, "{case}");
            until(async || world.stats().await.held == 0).await;
            let stats = world.stats().await;
            assert_eq!(
                (stats.queued, stats.delayed, stats.dead, stats.cancelled),
                (0, 0, 0, 1),
                "{case}"
            );
            world.check().await;
        }
    }
}

async fn a_clear_beside_busy_workers_loses_nothing_and_one_of_a_paused_queue_leaves_nothing(
    store: TestStore,
) {
    let world = World::with_defaults(&store).await;
    let count = scale(1_500, 20_000) as u64;
    let later = &Enqueue::new().with_delay(LONG);
    for value in 0..5 {
        let _ = world.enqueue_with(value, later).await.unwrap();
    }
    world.enqueue(5..count).await;
    let handler = |delivery: Delivery<u64>| async move {
        match delivery.value() % 5 {
            0 => Ok::<_, Error>(Outcome::snooze(Duration::ZERO)),
            _ => Ok(Outcome::Done),
        }
    };
    let options = WorkerOptions::new().with_concurrency(8);
    let mut workers = Vec::new();
    for _ in 0..2 {
        let worker = world.queue.work(&world.runner, options.clone(), handler);
        workers.push(worker.await.unwrap());
    }
    let first = world.queue.clear(&world.runner).await.unwrap();
    let queue = &world.queue;
    let pause = |tr: keyspace::Tx<_>| async move {
        queue.pause(&tr);
        Ok::<_, Error>(())
    };
    world.runner.run(pause).await.unwrap();
    for worker in workers {
        worker.shut_down(LONG).await.unwrap();
    }
    let second = world.queue.clear(&world.runner).await.unwrap();
    let stats = world.stats().await;
    assert_eq!(second.held, 0);
    assert_eq!(
        [stats.queued, stats.delayed, stats.held, stats.dead],
        [0; 4]
    );
    assert_eq!(stats.removed, first.removed + second.removed);
    assert_eq!(stats.removed + stats.completed, count);
    world.check().await;
}

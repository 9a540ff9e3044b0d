//! An item whose next death would make it a dead letter is handled apart, so that it dies of nothing but itself.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use conformance::stores::TestStore;
use conformance::{timeout, until};
use futures::future::BoxFuture;
use hc_dequeue::{Delivery, Enqueue, ItemRef, Outcome, Place, WorkerOptions};
use keyspace::{Runner, Store};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::yield_now;

use crate::common::{LONG, Queue, World, process, settings};

conformance::on_every_store!(
    items_beside_some_that_end_their_process_do_not_die_of_them,
    an_item_that_ends_the_process_of_its_consumer_becomes_a_dead_letter,
    an_item_that_is_handled_apart_waits_for_others_and_others_for_it,
    a_worker_that_stops_gives_an_item_back_that_waits_to_be_handled_apart,
    an_item_that_waits_to_be_handled_apart_survives_the_end_of_its_process,
);

/// The items from this value on end their process.
const POISON: u64 = 100;

/// How many handlers run beside one another.
const HANDLERS: usize = 8;

/// Handles items in a process of its own until one of them ends it. Returns `true` if none is left.
async fn live(world: &World, max_deaths: u64) -> bool {
    let (says, is_idle) = oneshot::channel();
    let queue = world.queue.clone();
    let runner = world.runner.clone();
    let died = process(move || async move {
        let ends = Arc::new(Notify::new());
        let ending = ends.clone();
        let is_poisoned = Arc::new(AtomicBool::new(false));
        let handler = move |item: Delivery<u64>| {
            let ending = ending.clone();
            let is_poisoned = is_poisoned.clone();
            async move {
                if *item.value() >= POISON {
                    is_poisoned.store(true, Ordering::Relaxed);
                    // At first, all others have begun before.
                    let is_last = item.deaths() + 1 == max_deaths;
                    for _ in 0..if is_last { 0 } else { 2_000 } {
                        yield_now().await;
                    }
                    ending.notify_one();
                    pending::<()>().await;
                }
                // Long enough for a poisoned one to begin beside it, and then never over.
                for _ in 0..10_000 {
                    if is_poisoned.load(Ordering::Relaxed) {
                        pending::<()>().await;
                    }
                    yield_now().await;
                }
            }
        };
        let options = WorkerOptions::new().with_concurrency(HANDLERS);
        let _worker = queue.work(&runner, options, handler).await.unwrap();
        let is_idle = tokio::select! {
            () = ends.notified() => false,
            idle = queue.wait_idle(&runner) => {
                idle.unwrap();
                true
            }
        };
        says.send(is_idle).unwrap();
    });
    tokio::task::spawn_blocking(|| died.join().unwrap())
        .await
        .unwrap();
    is_idle.await.unwrap()
}

async fn items_beside_some_that_end_their_process_do_not_die_of_them(store: TestStore) {
    for max_deaths in [2, 5] {
        let limit = u32::try_from(max_deaths).unwrap();
        let world = World::new(&store, settings().with_max_deaths(limit)).await;
        world.enqueue(0..6).await;
        world.enqueue([POISON, POISON + 1]).await;
        let mut deaths = 0;
        while !live(&world, max_deaths).await {
            deaths += 1;
            // Its first death may find each of them in the reserve.
            assert!(
                deaths <= 2 * (max_deaths + 1),
                "an item has died without a trace"
            );
        }
        let letters = world.dead_letters().await;
        let mut dead: Vec<_> = letters
            .iter()
            .map(|letter| (*letter.value.as_ref().unwrap(), letter.deaths))
            .collect();
        dead.sort_unstable();
        assert_eq!(dead, [(POISON, max_deaths), (POISON + 1, max_deaths)]);
        assert_eq!(world.stats().await.completed, 6);
        world.check().await;
    }
}

async fn an_item_that_ends_the_process_of_its_consumer_becomes_a_dead_letter(store: TestStore) {
    let world = World::new(&store, settings().with_max_deaths(2)).await;
    world.enqueue([7]).await;
    for deaths in 0..2 {
        let queue = world.queue.clone();
        let runner = world.runner.clone();
        let died = process(move || async move {
            let options = WorkerOptions::default();
            let consumer = queue.consumer(&runner, options).await.unwrap();
            let item = consumer.dequeue_within(LONG).await.unwrap().unwrap();
            assert_eq!(item.deaths(), deaths);
        });
        tokio::task::spawn_blocking(|| died.join().unwrap())
            .await
            .unwrap();
    }
    let consumer = world.consumer().await;
    until(async || world.stats().await.dead != 0).await;
    consumer.shut_down(LONG).await.unwrap();
    world.check().await;
}

/// A worker whose handlers report their items and then wait until they may end.
struct Handlers {
    begun: mpsc::UnboundedReceiver<(u64, oneshot::Sender<()>)>,
}

impl Handlers {
    async fn next(&mut self) -> (u64, oneshot::Sender<()>) {
        timeout(LONG, self.begun.recv()).await.unwrap()
    }
}

/// Returns a handler that reports each item, and ends when the test lets it.
fn reporting() -> (
    impl Fn(Delivery<u64>) -> BoxFuture<'static, Outcome> + Send + Sync,
    Handlers,
) {
    let (begins, begun) = mpsc::unbounded_channel();
    let handler = move |item: Delivery<u64>| -> BoxFuture<'static, Outcome> {
        let (end, ends) = oneshot::channel();
        begins.send((*item.value(), end)).unwrap();
        Box::pin(async move {
            let _ = ends.await;
            Outcome::Done
        })
    };
    (handler, Handlers { begun })
}

/// Returns a queue with an item that has died once, and dies for good with its next death, as soon as a session finds
/// the dead one.
async fn with_a_death(store: &TestStore) -> (World, ItemRef) {
    let world = World::new(store, settings().with_max_deaths(2)).await;
    let item = world.enqueue_ref(7, &Enqueue::new()).await;
    let queue = world.queue.clone();
    let runner = world.runner.clone();
    let died = process(move || async move {
        let options = WorkerOptions::default();
        let consumer = queue.consumer(&runner, options).await.unwrap();
        let _held = consumer.dequeue_within(LONG).await.unwrap().unwrap();
    });
    tokio::task::spawn_blocking(|| died.join().unwrap())
        .await
        .unwrap();
    (world, item)
}

/// Waits until the session of this process holds an item that has died once.
async fn until_held(runner: &Runner<Store>, queue: &Queue, item: &ItemRef) {
    until(async || {
        let status = runner.run(|tr| async move { queue.status(&tr, item).await });
        let status = status.await.unwrap().unwrap();
        status.deaths == 1 && matches!(status.place, Place::Held { .. })
    })
    .await;
}

async fn an_item_that_is_handled_apart_waits_for_others_and_others_for_it(store: TestStore) {
    let (world, item) = with_a_death(&store).await;
    let (handler, mut handlers) = reporting();
    let before = Enqueue::new().with_priority(1);
    world.enqueue_ref(1, &before).await;
    let options = WorkerOptions::new().with_concurrency(3);
    let worker = world.queue.work(&world.runner, options, handler).await;
    let worker = worker.unwrap();
    let (first, ends_first) = handlers.next().await;
    assert_eq!(first, 1);
    // The other one is held, and waits.
    until_held(&world.runner, &world.queue, &item).await;
    world.enqueue([2]).await;
    assert!(handlers.begun.try_recv().is_err());
    ends_first.send(()).unwrap();
    let (apart, ends_apart) = handlers.next().await;
    assert_eq!(apart, 7);
    until(async || world.stats().await.completed != 0).await;
    // No other one is even taken.
    let stats = world.stats().await;
    assert_eq!((stats.held, stats.queued), (1, 1));
    ends_apart.send(()).unwrap();
    let (last, ends_last) = handlers.next().await;
    assert_eq!(last, 2);
    ends_last.send(()).unwrap();
    worker.shut_down(LONG).await.unwrap();
    assert_eq!(world.stats().await.completed, 3);
    world.check().await;
}

async fn a_worker_that_stops_gives_an_item_back_that_waits_to_be_handled_apart(store: TestStore) {
    let (world, item) = with_a_death(&store).await;
    let (handler, mut handlers) = reporting();
    let before = Enqueue::new().with_priority(1);
    world.enqueue_ref(1, &before).await;
    let options = WorkerOptions::new().with_concurrency(2);
    let worker = world.queue.work(&world.runner, options, handler).await;
    let (first, _ends) = handlers.next().await;
    assert_eq!(first, 1);
    until_held(&world.runner, &world.queue, &item).await;
    worker.unwrap().shut_down(Duration::ZERO).await.unwrap();
    let consumer = world.consumer().await;
    for expected in [1, 7] {
        let item = consumer.dequeue_within(LONG).await.unwrap().unwrap();
        assert_eq!((*item.value(), item.attempt()), (expected, 1));
        item.complete().await.unwrap();
    }
    consumer.shut_down(LONG).await.unwrap();
    world.check().await;
}

async fn an_item_that_waits_to_be_handled_apart_survives_the_end_of_its_process(store: TestStore) {
    let (world, item) = with_a_death(&store).await;
    let before = Enqueue::new().with_priority(1);
    world.enqueue_ref(1, &before).await;
    let queue = world.queue.clone();
    let runner = world.runner.clone();
    let died = process(move || async move {
        let (handler, mut handlers) = reporting();
        let options = WorkerOptions::new().with_concurrency(2);
        let _worker = queue.work(&runner, options, handler).await.unwrap();
        let (first, _ends) = handlers.next().await;
        assert_eq!(first, 1);
        until_held(&runner, &queue, &item).await;
    });
    tokio::task::spawn_blocking(|| died.join().unwrap())
        .await
        .unwrap();
    world.complete_all().await;
    let stats = world.stats().await;
    assert_eq!((stats.dead, stats.completed), (0, 2));
    world.check().await;
}

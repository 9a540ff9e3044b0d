//! Shutdowns are bounded, whatever handlers and the store do, and nothing is lost.

use std::future::pending;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc as blocking};
use std::thread;
use std::time::Duration;

use crate::common::still::Still;
use crate::common::{LONG, Queue, World};
use conformance::chaos::{Chaos, Faults};
use conformance::stores::TestStore;
use conformance::timeout;
use futures::FutureExt;
use hc_dequeue::shutdown::SESSION_END_LIMIT;
use hc_dequeue::{
    Delivery, Error, NotEnded, Outcome, Settings, ShutdownReport, Worker, WorkerOptions,
};
use keyspace::{Environment, Runner};
use tokio::runtime::Builder;
use tokio::sync::mpsc;

conformance::on_every_store!(threads:
    handlers_that_cannot_be_dropped_are_left_behind_and_their_items_return,
    a_shutdown_lets_handlers_finish_and_reports_nothing,
    a_store_that_does_not_answer_fails_the_shutdown_of_a_worker,
    a_store_that_does_not_answer_fails_the_shutdown_of_a_consumer,
    the_end_of_a_session_may_take_what_is_left_of_the_grace,
    a_shutdown_that_is_dropped_halfway_returns_the_items,
    a_consumer_counts_the_deliveries_that_are_lost,
    clones_that_are_shut_down_side_by_side_end_once,
    a_shutdown_after_the_runtime_has_ended_says_so,
);

type Item = Delivery<u64>;

/// What holds up handlers until it is dropped.
#[derive(Clone)]
struct Block {
    release: Arc<Mutex<Vec<blocking::Sender<()>>>>,
    is_over: Arc<AtomicBool>,
}

impl Block {
    fn new() -> Self {
        Self {
            release: Arc::default(),
            is_over: Arc::default(),
        }
    }

    /// Returns a receiver that gets nothing until the block is over.
    fn receiver(&self) -> blocking::Receiver<()> {
        let (sender, receiver) = blocking::channel();
        self.release.lock().unwrap().push(sender);
        receiver
    }

    fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.release.lock().unwrap().clear();
    }
}

/// Ends a block with the test, even if that panics: the runtime waits for the threads that are blocked.
struct EndsWithTest(Block);

impl Drop for EndsWithTest {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Blocks its thread when it is dropped.
struct BlocksWhenDropped(blocking::Receiver<()>);

impl Drop for BlocksWhenDropped {
    fn drop(&mut self) {
        // It fails when the block is over.
        let _ = self.0.recv();
    }
}

/// Handles an item in a way that depends on its value.
async fn handle(item: Item, begun: mpsc::UnboundedSender<Item>, block: Block) -> Outcome {
    let receiver = block.receiver();
    begun.send(item.clone()).unwrap();
    match *item.value() {
        0 => drop(receiver.recv()),
        1 => {
            while !block.is_over.load(Ordering::Relaxed) {
                thread::yield_now();
            }
        }
        2 => {
            let _guard = BlocksWhenDropped(receiver);
            pending::<()>().await;
        }
        _ => pending().await,
    }
    Outcome::Done
}

async fn handlers_that_cannot_be_dropped_are_left_behind_and_their_items_return(store: TestStore) {
    for blocked in 0..=2 {
        let world = World::new(&store, Settings::new().with_max_attempts(1)).await;
        world.enqueue([blocked, 3, 4]).await;
        let (begun, mut begins) = mpsc::unbounded_channel();
        let block = Block::new();
        let _ends = EndsWithTest(block.clone());
        let handler = {
            let block = block.clone();
            move |item: Item| handle(item, begun.clone(), block.clone())
        };
        let options = WorkerOptions::new().with_concurrency(2);
        let worker = world.queue.work(&world.runner, options, handler).await;
        let mut held = Vec::new();
        for _ in 0..2 {
            held.push(timeout(LONG, begins.recv()).await.unwrap());
        }
        let ended = timeout(LONG, worker.unwrap().shut_down(Duration::ZERO)).await;
        let report = ended.unwrap();
        let counts = (report.dropped, report.running, report.restarted);
        assert_eq!(counts, (1, 1, 0), "{blocked}");
        assert_eq!(world.values().await, [4, blocked, 3]);
        for item in &held {
            assert!(item.is_lost());
            let refused = world.ack(item).await;
            assert!(matches!(refused, Err(Error::DeliveryLost { .. })));
        }
        block.end();
        let consumer = world.consumer().await;
        let again = consumer.dequeue_within(LONG).await.unwrap().unwrap();
        // The one attempt of each item is still there.
        assert_eq!((*again.value(), again.attempt()), (blocked, 1));
        drop(held);
        world.ack(&again).await.unwrap();
        drop(again);
        consumer.shut_down(LONG).await.unwrap();
        assert_eq!(world.stats().await.dead, 0);
        world.check().await;
    }
}

async fn a_shutdown_lets_handlers_finish_and_reports_nothing(store: TestStore) {
    let world = World::with_defaults(&store).await;
    world.enqueue([7]).await;
    let (begun, mut begins) = mpsc::unbounded_channel();
    let handler = move |item: Item| {
        let begun = begun.clone();
        async move {
            begun.send(*item.value()).unwrap();
            tokio::task::yield_now().await;
            Outcome::Done
        }
    };
    let options = WorkerOptions::new();
    let worker = world.queue.work(&world.runner, options, handler).await;
    assert_eq!(timeout(LONG, begins.recv()).await, Some(7));
    let report = worker.unwrap().shut_down(LONG).await.unwrap();
    assert_eq!(report, ShutdownReport::default());
    assert_eq!(world.stats().await.completed, 1);
    world.check().await;
}

/// A queue whose store can be stopped, with its runner.
async fn stoppable(
    world: &World,
) -> (
    Queue,
    Runner<Chaos<keyspace::Store>>,
    Chaos<keyspace::Store>,
) {
    let db = world.store.db.clone();
    let chaos = Chaos::new(db, Environment::system(), Faults::default());
    let runner = world.store.fast_runner(chaos.clone());
    let subspace = world.queue.subspace().clone();
    let queue = Queue::open(&runner, subspace).await;
    (queue.unwrap(), runner, chaos)
}

fn is_not_ended<T>(ended: Result<T, Error>, world: &World) {
    match ended {
        Err(Error::NotEnded(NotEnded { recipe, .. })) => {
            assert_eq!(recipe, *world.queue.subspace());
        }
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("the store does not answer"),
    }
}

async fn a_store_that_does_not_answer_fails_the_shutdown_of_a_worker(store: TestStore) {
    let world = World::with_defaults(&store).await;
    world.enqueue([3, 4]).await;
    let (queue, runner, chaos) = stoppable(&world).await;
    let (begun, mut begins) = mpsc::unbounded_channel();
    let block = Block::new();
    let handler = move |item: Item| handle(item, begun.clone(), block.clone());
    let options = WorkerOptions::new();
    let worker = queue.work(&runner, options, handler).await.unwrap();
    for _ in 0..2 {
        assert!(timeout(LONG, begins.recv()).await.is_some());
    }
    chaos.stop();
    let ended = timeout(LONG, worker.shut_down(Duration::from_secs(5))).await;
    is_not_ended(ended, &world);
    // The session ends as soon as the store answers.
    chaos.go_on();
    are_first_attempts(&world, [3, 4]).await;
}

async fn the_end_of_a_session_may_take_what_is_left_of_the_grace(store: TestStore) {
    let still = Still::new();
    let world = still.world(&store, Settings::default()).await;
    let options = still.options(&world.store);
    let env = world.runner.environment().clone();
    let chaos = Chaos::new(world.store.db.clone(), env, Faults::default());
    let runner = Runner::with_options(chaos.clone(), options);
    let queue = Queue::open(&runner, world.queue.subspace().clone()).await;
    let handler = |_: Item| async { Outcome::Done };
    let options = WorkerOptions::new();
    let worker = queue.unwrap().work(&runner, options, handler).await;
    chaos.stop();
    // No handler needs the grace, and the store answers after twice the time that a session's end may take otherwise.
    let outage = async {
        for _ in 0..100 {
            still.advance(SESSION_END_LIMIT / 50);
            tokio::task::yield_now().await;
        }
        chaos.go_on();
    };
    let (ended, ()) = tokio::join!(worker.unwrap().shut_down(LONG), outage);
    assert_eq!(ended.unwrap(), ShutdownReport::default());
}

async fn a_store_that_does_not_answer_fails_the_shutdown_of_a_consumer(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let (queue, runner, chaos) = stoppable(&world).await;
    let options = WorkerOptions::default();
    let consumer = queue.consumer(&runner, options).await.unwrap();
    chaos.stop();
    let ended = timeout(LONG, consumer.shut_down(Duration::ZERO)).await;
    is_not_ended(ended, &world);
    chaos.go_on();
}

/// Panics unless another consumer gets these items, and none has used an attempt. Each item comes back by itself, so
/// the other consumer may get them in either order.
async fn are_first_attempts(world: &World, values: [u64; 2]) {
    let consumer = world.consumer().await;
    let mut got = Vec::new();
    for _ in values {
        let delivery = consumer.dequeue_within(LONG).await.unwrap().unwrap();
        got.push((*delivery.value(), delivery.attempt()));
        world.ack(&delivery).await.unwrap();
    }
    got.sort_unstable();
    assert_eq!(got, values.map(|value| (value, 1)));
    consumer.shut_down(LONG).await.unwrap();
    world.check().await;
}

/// Starts a worker whose handlers hold these items and never end.
async fn busy(world: &World, items: usize) -> Worker<u64> {
    let (begun, mut begins) = mpsc::unbounded_channel();
    let block = Block::new();
    let handler = move |item: Item| handle(item, begun.clone(), block.clone());
    let options = WorkerOptions::new();
    let worker = world.queue.work(&world.runner, options, handler).await;
    for _ in 0..items {
        assert!(timeout(LONG, begins.recv()).await.is_some());
    }
    worker.unwrap()
}

async fn a_shutdown_that_is_dropped_halfway_returns_the_items(store: TestStore) {
    let world = World::new(&store, Settings::new().with_max_attempts(1)).await;
    world.enqueue([3, 4]).await;
    let worker = busy(&world, 2).await;
    let mut ending = Box::pin(worker.shut_down(LONG));
    assert!(ending.as_mut().now_or_never().is_none());
    drop(ending);
    are_first_attempts(&world, [3, 4]).await;
}

async fn a_consumer_counts_the_deliveries_that_are_lost(store: TestStore) {
    let world = World::with_defaults(&store).await;
    world.enqueue([1, 2, 3]).await;
    let consumer = world.consumer().await;
    let mut deliveries = Vec::new();
    while deliveries.len() < 3 {
        let more = consumer.dequeue_batch_within(3, LONG).await.unwrap();
        deliveries.extend(more);
    }
    deliveries.pop().unwrap().complete().await.unwrap();
    assert_eq!(consumer.shut_down(Duration::ZERO).await.unwrap(), 2);
    assert!(deliveries.iter().all(Delivery::is_lost));
    assert_eq!(world.stats().await.queued, 2);
    world.check().await;
}

async fn clones_that_are_shut_down_side_by_side_end_once(store: TestStore) {
    let world = World::with_defaults(&store).await;
    world.enqueue([7]).await;
    let consumer = world.consumer().await;
    let held = consumer.dequeue_within(LONG).await.unwrap().unwrap();
    let one = consumer.clone().shut_down(LONG);
    let other = consumer.clone().shut_down(LONG);
    // The session lasts until both have called.
    let ended = futures::join!(one, other, held.complete());
    assert!(matches!(ended, (Ok(0), Ok(0), Ok(()))), "{ended:?}");
    let again = consumer.shut_down(LONG).await;
    assert!(matches!(again, Err(Error::ShutDown { .. })));
    world.check().await;
}

async fn a_shutdown_after_the_runtime_has_ended_says_so(store: TestStore) {
    let world = World::with_defaults(&store).await;
    world.enqueue([3]).await;
    thread::scope(|scope| {
        let process = || {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            let worker = runtime.block_on(busy(&world, 1));
            let consumer = runtime.block_on(world.consumer());
            drop(runtime);
            let ended = worker.shut_down(LONG).now_or_never().unwrap();
            assert!(matches!(ended, Err(Error::ShutDown { .. })));
            let ended = consumer.shut_down(LONG).now_or_never().unwrap();
            assert!(matches!(ended, Err(Error::ShutDown { .. })));
        };
        scope.spawn(process).join().unwrap();
    });
    assert_eq!(world.stats().await.held, 1);
}

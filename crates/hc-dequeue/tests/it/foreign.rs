//! Code of the application that panics: no panic of it ends a slot of a worker or the session.

use std::future::pending;
use std::io;
use std::panic::panic_any;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::common::still::Still;
use crate::common::{LONG, World};
use conformance::chaos::{Chaos, CommitFault, Faults};
use conformance::hostile::{Bomb, Place};
use conformance::stores::TestStore;
use conformance::timeout;
use futures::future::BoxFuture;
use hc_dequeue::testing::{Drained, drain};
use hc_dequeue::{
    Backoff, BoxError, Cancelled, Delivery, IntoOutcome, Outcome, Queue, Settings, WorkerOptions,
};
use keyspace::codec::{Codec, DecodeError, MessagePack};
use keyspace::{Bytes, Environment, OpenOptions, Tx};
use metrics::{
    Counter, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};
use serde::{Deserialize, Serialize};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;

conformance::on_every_store!(
    a_panic_anywhere_in_a_handler_is_a_failed_attempt,
    a_panic_anywhere_in_a_handler_with_a_transaction_is_a_failed_attempt,
    a_panic_anywhere_in_a_handler_is_counted_when_a_test_drains_its_queue,
    as_many_items_that_panic_as_there_are_slots_leave_a_worker_that_works,
    a_handler_that_panics_when_its_time_limit_drops_it_leaves_its_slot,
    a_handler_that_panics_when_a_cancellation_drops_it_leaves_its_slot,
    a_handler_that_panics_when_a_shutdown_drops_it_costs_no_attempt,
    a_value_that_panics_when_it_is_dropped_leaves_its_slot,
    a_value_that_panics_when_a_conflict_drops_it_is_handed_out,
    a_codec_that_panics_fails_the_item,
    a_result_whose_owner_panics_when_it_is_dropped_ends_no_worker,
    a_slot_that_a_fault_of_the_library_ends_starts_again_and_is_reported,
);

type Item = Delivery<u64>;

/// What a handler does, in the order of the items.
#[derive(Debug, Clone, Copy)]
enum Case {
    /// It panics before it has a future.
    Call,
    /// It panics because of a nested runtime.
    Nested,
    /// The conversion of what it returns panics.
    Conversion,
    /// It, or its error, panics at a place.
    At(Place),
    /// It does not panic.
    Fine,
}

const CASES: [Case; 10] = [
    Case::Call,
    Case::Nested,
    Case::Conversion,
    Case::At(Place::Poll),
    Case::At(Place::Guard),
    Case::At(Place::Payload),
    Case::At(Place::Display),
    Case::At(Place::Source),
    Case::At(Place::Error),
    Case::Fine,
];

/// How many of them panic.
const PANICS: u64 = CASES.len() as u64 - 1;

fn case(value: u64) -> Case {
    CASES[usize::try_from(value).unwrap() % CASES.len()]
}

/// The reason that is kept for each of them, without that of a nested runtime, whose words are tokio's.
fn reason(case: Case) -> &'static str {
    match case {
        Case::Call => "it panicked: no call",
        Case::Nested => "it panicked: ",
        Case::Conversion => "it panicked: no outcome",
        Case::At(Place::Poll) => "it panicked: no poll",
        Case::At(Place::Guard | Place::Error) => "it panicked: no drop",
        Case::At(Place::Payload) => "it panicked: without a message",
        Case::At(Place::Display) => "an error that panicked while it was formatted: no words",
        Case::At(Place::Source) => "hostile",
        Case::At(Place::TimeLimit) | Case::Fine => "",
    }
}

/// What a handler returns, whose conversion may panic.
struct Ending(Case);

impl IntoOutcome for Ending {
    fn into_outcome(self) -> Result<Outcome, BoxError> {
        assert!(!matches!(self.0, Case::Conversion), "no outcome");
        Ok(Outcome::Done)
    }
}

async fn handle(case: Case) -> Result<Ending, BoxError> {
    match case {
        Case::Nested => drop(Runtime::new().unwrap()),
        Case::At(place) => place.call().await?,
        Case::Call | Case::Conversion | Case::Fine => {}
    }
    Ok(Ending(case))
}

/// Creates the future of a handler.
fn handler(item: &Item) -> impl Future<Output = Result<Ending, BoxError>> + Send + use<> {
    let case = case(*item.value());
    assert!(!matches!(case, Case::Call), "no call");
    handle(case)
}

fn quick() -> WorkerOptions {
    let soon = Duration::from_millis(1);
    WorkerOptions::new().with_backoff(Backoff::new(soon, soon))
}

/// Panics unless each item that panics has used its attempts for the reason of its case, and the others are done.
async fn check_reasons(world: &World, attempts: u64, rounds: u64) {
    let letters = world.dead_letters().await;
    assert_eq!(letters.len() as u64, PANICS * rounds);
    for letter in &letters {
        let case = case(*letter.value.as_ref().unwrap());
        let kept = &letter.failure.as_ref().unwrap().reason;
        assert!(kept.starts_with(reason(case)), "{case:?}: {kept}");
        assert_eq!(letter.attempts, attempts, "{case:?}");
    }
    let stats = world.stats().await;
    assert_eq!((stats.dead, stats.completed), (PANICS * rounds, rounds));
    world.check().await;
}

async fn a_panic_anywhere_in_a_handler_is_a_failed_attempt(store: TestStore) {
    let world = World::new(&store, Settings::new().with_max_attempts(2)).await;
    world.enqueue(0..=PANICS).await;
    let queue = &world.queue;
    let options = quick().with_concurrency(1);
    let handler = |item: Item| handler(&item);
    let worker = queue.work(&world.runner, options, handler).await.unwrap();
    let idle = queue.wait_idle(&world.runner);
    timeout(LONG, idle).await.unwrap();
    worker.shut_down(LONG).await.unwrap();
    check_reasons(&world, 2, 1).await;
}

async fn a_panic_anywhere_in_a_handler_with_a_transaction_is_a_failed_attempt(store: TestStore) {
    let world = World::new(&store, Settings::new().with_max_attempts(2)).await;
    world.enqueue(0..=PANICS).await;
    let queue = &world.queue;
    let options = quick().with_concurrency(1);
    let handler = |_: Tx<_>, item: Item| handler(&item);
    let worker = queue.process(&world.runner, options, handler).await;
    let idle = queue.wait_idle(&world.runner);
    timeout(LONG, idle).await.unwrap();
    worker.unwrap().shut_down(LONG).await.unwrap();
    check_reasons(&world, 2, 1).await;
}

async fn a_panic_anywhere_in_a_handler_is_counted_when_a_test_drains_its_queue(store: TestStore) {
    let world = World::new(&store, Settings::new().with_max_attempts(1)).await;
    world.enqueue(0..=PANICS).await;
    let handler = |item: Item| handler(&item);
    let drained = drain(&world.runner, &world.queue, handler).await.unwrap();
    let expected = Drained {
        completed: 1,
        dead: PANICS,
        ..Drained::default()
    };
    assert_eq!(drained, expected);
    check_reasons(&world, 1, 1).await;
}

async fn as_many_items_that_panic_as_there_are_slots_leave_a_worker_that_works(store: TestStore) {
    let world = World::new(&store, Settings::new().with_max_attempts(1)).await;
    let rounds = 20;
    world.enqueue(0..rounds * (PANICS + 1)).await;
    let queue = &world.queue;
    let handler = |item: Item| handler(&item);
    let worker = queue.work(&world.runner, quick(), handler).await.unwrap();
    let idle = queue.wait_idle(&world.runner);
    timeout(LONG, idle).await.unwrap();
    worker.shut_down(LONG).await.unwrap();
    check_reasons(&world, 1, rounds).await;
}

/// Returns a handler that never ends and panics when it is dropped, but for the item 0, and reports each call.
fn holds_a_bomb() -> (
    impl Fn(Item) -> BoxFuture<'static, Outcome> + Send + Sync + 'static,
    mpsc::UnboundedReceiver<u64>,
) {
    let (begun, begins) = mpsc::unbounded_channel();
    let handler = move |item: Item| {
        begun.send(*item.value()).unwrap();
        let held: BoxFuture<'static, Outcome> = Box::pin(async move {
            if *item.value() > 0 {
                let nested = Runtime::new().unwrap();
                let _both = (Bomb, pending::<()>().await, nested);
            }
            Outcome::Done
        });
        held
    };
    (handler, begins)
}

async fn a_handler_that_panics_when_its_time_limit_drops_it_leaves_its_slot(store: TestStore) {
    let world = World::new(&store, Settings::new().with_max_attempts(1)).await;
    world.enqueue([1, 2, 0]).await;
    let (handler, mut begins) = holds_a_bomb();
    let options = quick().with_concurrency(1).with_time_limit(LONG);
    let clock = Still::new();
    let runner = clock.runner(&world.store);
    let worker = world.queue.work(&runner, options, handler).await;
    for held in [1, 2] {
        assert_eq!(timeout(LONG, begins.recv()).await, Some(held));
        clock.advance(LONG);
    }
    assert_eq!(timeout(LONG, begins.recv()).await, Some(0));
    worker.unwrap().shut_down(LONG).await.unwrap();
    let stats = world.stats().await;
    assert_eq!((stats.dead, stats.completed), (2, 1));
    world.check().await;
}

async fn a_handler_that_panics_when_a_cancellation_drops_it_leaves_its_slot(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let cancelled = world.enqueue_ref(1, &hc_dequeue::Enqueue::new()).await;
    world.enqueue([0]).await;
    let (handler, mut begins) = holds_a_bomb();
    let options = quick().with_concurrency(1);
    let worker = world.queue.work(&world.runner, options, handler).await;
    assert_eq!(timeout(LONG, begins.recv()).await, Some(1));
    assert_eq!(world.cancel(&cancelled).await, Cancelled::Requested);
    assert_eq!(timeout(LONG, begins.recv()).await, Some(0));
    worker.unwrap().shut_down(LONG).await.unwrap();
    let stats = world.stats().await;
    assert_eq!((stats.dead, stats.completed, stats.queued), (0, 1, 0));
    world.check().await;
}

async fn a_handler_that_panics_when_a_shutdown_drops_it_costs_no_attempt(store: TestStore) {
    let world = World::new(&store, Settings::new().with_max_attempts(1)).await;
    world.enqueue([1, 2]).await;
    let (handler, mut begins) = holds_a_bomb();
    let worker = world.queue.work(&world.runner, quick(), handler).await;
    for _ in 0..2 {
        assert!(timeout(LONG, begins.recv()).await.is_some());
    }
    worker.unwrap().shut_down(Duration::ZERO).await.unwrap();
    assert_eq!(world.values().await, [1, 2]);
    world.check().await;
}

/// A value that panics when it is dropped, unless it is 0. Its bytes are those of a number.
#[derive(Debug, Serialize, Deserialize)]
struct Touchy(u64);

impl Drop for Touchy {
    fn drop(&mut self) {
        assert_eq!(self.0, 0, "no drop of the value");
    }
}

type TouchyQueue = Queue<Touchy>;

async fn a_value_that_panics_when_it_is_dropped_leaves_its_slot(store: TestStore) {
    let world = World::with_defaults(&store).await;
    world.enqueue([1, 2, 0]).await;
    let subspace = world.queue.subspace().clone();
    let settings = Settings::default();
    let queue =
        TouchyQueue::open_with(&world.runner, subspace, settings, OpenOptions::default()).await;
    let handler = |_: Delivery<Touchy>| async { Ok::<_, io::Error>(()) };
    let options = quick().with_concurrency(1);
    let queue = queue.unwrap();
    let worker = queue.work(&world.runner, options, handler).await.unwrap();
    timeout(LONG, queue.wait_idle(&world.runner)).await.unwrap();
    worker.shut_down(LONG).await.unwrap();
    assert_eq!(world.stats().await.completed, 3);
    world.check().await;
}

async fn a_value_that_panics_when_a_conflict_drops_it_is_handed_out(store: TestStore) {
    let world = World::with_defaults(&store).await;
    world.enqueue([1, 2]).await;
    let chaos = Chaos::new(
        world.store.db.clone(),
        Environment::system(),
        Faults::default(),
    );
    let runner = world.store.runner_on(chaos.clone());
    let subspace = world.queue.subspace().clone();
    let settings = Settings::default();
    let queue = TouchyQueue::open_with(&runner, subspace, settings, OpenOptions::default()).await;
    let options = WorkerOptions::default();
    let consumer = queue.unwrap().consumer(&runner, options).await.unwrap();
    chaos.script([CommitFault::TooOld; 3]);
    let popped = timeout(LONG, consumer.pop_within(LONG)).await.unwrap();
    // The value belongs to the caller now.
    let popped = popped.map(|item| std::mem::ManuallyDrop::new(item.value).0);
    assert_eq!(popped, Some(1));
    chaos.script([CommitFault::TooOld; 3]);
    let delivery = timeout(LONG, consumer.dequeue_within(LONG))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(delivery.value().0, 2);
    delivery.complete().await.unwrap();
    drop(delivery);
    consumer.shut_down(LONG).await.unwrap();
    assert_eq!(world.stats().await.completed, 2);
    world.check().await;
}

/// A codec that panics when it decodes an odd number.
#[derive(Debug, Clone, Copy, Default)]
struct Superstitious;

impl Codec<u64> for Superstitious {
    // The queue's own codec has written its items.
    const NAME: &'static str = "MessagePack";

    fn encode(&self, value: &u64, buffer: &mut Vec<u8>) -> keyspace::Result<()> {
        MessagePack.encode(value, buffer)
    }

    fn decode(&self, bytes: Bytes) -> Result<u64, DecodeError> {
        let value: u64 = MessagePack.decode(bytes)?;
        match value {
            1 => panic!("no luck"),
            3 => panic_any(Bomb),
            value => Ok(value),
        }
    }
}

async fn a_codec_that_panics_fails_the_item(store: TestStore) {
    let world = World::new(&store, Settings::new().with_max_attempts(1)).await;
    world.enqueue([1, 3, 2]).await;
    let subspace = world.queue.subspace().clone();
    let settings = Settings::new().with_max_attempts(1);
    let queue = Queue::<u64, Superstitious>::open_with(
        &world.runner,
        subspace,
        settings,
        OpenOptions::default(),
    );
    let queue = queue.await.unwrap();
    let handler = |_: Item| async { Ok::<_, io::Error>(()) };
    let worker = queue.work(&world.runner, quick(), handler).await.unwrap();
    timeout(LONG, queue.wait_idle(&world.runner)).await.unwrap();
    worker.shut_down(LONG).await.unwrap();
    let letters = world.dead_letters().await;
    let reasons: Vec<_> = letters
        .iter()
        .map(|letter| letter.failure.as_ref().unwrap().reason.clone())
        .collect();
    assert_eq!(
        reasons,
        [
            "expected MessagePack: the codec panicked: no luck",
            "expected MessagePack: the codec panicked: without a message",
        ]
    );
    assert_eq!(world.stats().await.completed, 1);
    world.check().await;
}

/// The owner of bytes of the application, whose drop panics.
struct Owner;

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        b"done"
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        panic!("no drop of the owner");
    }
}

async fn a_result_whose_owner_panics_when_it_is_dropped_ends_no_worker(store: TestStore) {
    let settings = Settings::new().with_max_attempts(1).with_keep_done(LONG);
    let world = World::new(&store, settings).await;
    let touchy = world.enqueue_ref(1, &hc_dequeue::Enqueue::new()).await;
    let other = world.enqueue_ref(0, &hc_dequeue::Enqueue::new()).await;
    let handler = |item: Item| async move {
        let result = match *item.value() {
            0 => Bytes::from_static(b"done"),
            _ => Bytes::from_owner(Owner),
        };
        item.set_result(result)
    };
    let options = quick().with_concurrency(1);
    let worker = world.queue.work(&world.runner, options, handler).await;
    timeout(LONG, world.queue.wait_idle(&world.runner))
        .await
        .unwrap();
    worker.unwrap().shut_down(LONG).await.unwrap();
    // It panics where the handler drops it.
    let status = world.status(&touchy).await.unwrap();
    let reason = status.failure.unwrap().reason;
    assert_eq!(reason, "it panicked: no drop of the owner");
    let status = world.status(&other).await.unwrap();
    assert_eq!(status.result, b"done"[..]);
    world.check().await;
}

/// A recorder that panics at the first recorded duration of a handler. It stands for a fault of the library, since it
/// is called in a slot but outside of the handler.
#[derive(Default)]
struct Faulty {
    durations: Arc<Durations>,
    restarts: Arc<AtomicU64>,
}

#[derive(Default)]
struct Durations(AtomicU64);

impl HistogramFn for Durations {
    fn record(&self, _: f64) {
        assert_ne!(self.0.fetch_add(1, Ordering::Relaxed), 0, "a planted fault");
    }
}

impl Recorder for Faulty {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        match key.name() {
            "hc_dequeue_restarts" => Counter::from_arc(self.restarts.clone()),
            _ => Counter::noop(),
        }
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        match key.name() {
            "hc_dequeue_handler_seconds" => Histogram::from_arc(self.durations.clone()),
            _ => Histogram::noop(),
        }
    }
}

async fn a_slot_that_a_fault_of_the_library_ends_starts_again_and_is_reported(store: TestStore) {
    let faulty = Faulty::default();
    let _recorder = metrics::set_default_local_recorder(&faulty);
    let world = World::with_defaults(&store).await;
    world.enqueue([1, 2]).await;
    let handler = |_: Item| async { Ok::<_, io::Error>(()) };
    let options = quick().with_concurrency(1);
    let worker = world.queue.work(&world.runner, options, handler).await;
    let idle = world.queue.wait_idle(&world.runner);
    timeout(LONG, idle).await.unwrap();
    let report = worker.unwrap().shut_down(LONG).await.unwrap();
    let restarts = faulty.restarts.load(Ordering::Relaxed);
    assert_eq!((report.restarted, restarts), (1, 1));
    assert_eq!(faulty.durations.0.load(Ordering::Relaxed), 3);
    assert_eq!(world.stats().await.completed, 2);
    world.check().await;
}

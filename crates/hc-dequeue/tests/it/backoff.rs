//! Failures for which the program has chosen no time: their items come back after the backoff.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::still::Still;
use crate::common::{LONG, Wall, World, settings};
use conformance::stores::TestStore;
use conformance::until;
use hc_dequeue::{Backoff, Delivery, Enqueue, ItemRef, Place, Queue, WorkerOptions};
use keyspace::codec::Bincode;
use keyspace::record::millis;
use keyspace::{Database, OpenOptions};

conformance::on_every_store!(
    a_passed_time_limit_comes_back_after_the_backoff,
    a_dropped_delivery_comes_back_after_the_backoff,
    an_acknowledgement_that_did_not_commit_comes_back_after_the_backoff,
    a_panic_comes_back_after_the_backoff,
    an_item_that_is_popped_and_does_not_decode_comes_back_after_the_backoff,
    a_nack_comes_back_at_once,
    handlers_that_hang_leave_the_slots_to_others,
    the_backoff_grows_with_the_failures,
    what_does_not_decode_waits_as_by_the_default_backoff,
);

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const MINUTE: Duration = Duration::from_secs(60);

/// A backoff that no test outlives.
const DAILY: Backoff = Backoff::new(DAY, DAY);

fn daily() -> WorkerOptions {
    WorkerOptions::new().with_backoff(DAILY)
}

/// Waits until the item has failed, and panics unless it waits for the backoff.
async fn waits(world: &World, item: &ItemRef, reason: &str) {
    until(async || !matches!(world.place(item).await, Some(Place::Held { .. }))).await;
    let status = world.status(item).await.unwrap();
    let failure = status.failure.unwrap();
    assert_eq!((&*failure.reason, status.attempts), (reason, 1));
    let Place::Delayed { until } = status.place else {
        panic!("{:?}: {reason}", status.place);
    };
    let wait = until.duration_since(failure.time).unwrap();
    assert!((DAY / 2..=DAY).contains(&wait), "{wait:?}: {reason}");
    world.check().await;
}

/// Returns a world with a consumer and the delivery of an item.
async fn delivered(
    store: &TestStore,
    options: WorkerOptions,
) -> (World, ItemRef, hc_dequeue::Consumer<u64>, Delivery<u64>) {
    let world = World::new(store, settings()).await;
    let item = world.enqueue_ref(7, &Enqueue::new()).await;
    let consumer = world.queue.consumer(&world.runner, options).await.unwrap();
    let delivery = consumer.dequeue_within(LONG).await.unwrap().unwrap();
    (world, item, consumer, delivery)
}

async fn a_passed_time_limit_comes_back_after_the_backoff(store: TestStore) {
    let options = daily().with_time_limit(Duration::from_millis(1));
    let (world, item, _consumer, delivery) = delivered(&store, options).await;
    delivery.lost().await;
    waits(&world, &item, "its time limit has passed").await;
}

async fn a_dropped_delivery_comes_back_after_the_backoff(store: TestStore) {
    let (world, item, _consumer, delivery) = delivered(&store, daily()).await;
    drop(delivery);
    waits(&world, &item, "its delivery was dropped").await;
}

async fn an_acknowledgement_that_did_not_commit_comes_back_after_the_backoff(store: TestStore) {
    let (world, item, _consumer, delivery) = delivered(&store, daily()).await;
    let not_committed = world.store.db.begin().unwrap();
    delivery.ack(&not_committed).await.unwrap();
    drop(delivery);
    waits(&world, &item, "its acknowledgement was not committed").await;
}

async fn a_panic_comes_back_after_the_backoff(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let item = world.enqueue_ref(7, &Enqueue::new()).await;
    let options = WorkerOptions::new().with_backoff(DAILY);
    let handler = async |_: Delivery<u64>| -> () { panic!("no luck") };
    let worker = world
        .queue
        .work(&world.runner, options, handler)
        .await
        .unwrap();
    until(async || world.stats().await.delayed != 0).await;
    waits(&world, &item, "it panicked: no luck").await;
    worker.shut_down(LONG).await.unwrap();
}

async fn an_item_that_is_popped_and_does_not_decode_comes_back_after_the_backoff(store: TestStore) {
    let world = Undecodable::new(&store, daily()).await;
    let status = world.fail(0).await;
    assert!((DAY / 2..=DAY).contains(&status), "{status:?}");
}

async fn a_nack_comes_back_at_once(store: TestStore) {
    let (world, item, consumer, delivery) = delivered(&store, daily()).await;
    delivery.nack().await.unwrap();
    assert_eq!(world.place(&item).await, Some(Place::Queued));
    let again = consumer.dequeue().await.unwrap().unwrap();
    assert_eq!(again.attempt(), 2);
}

async fn handlers_that_hang_leave_the_slots_to_others(store: TestStore) {
    const HANGING: usize = 4;
    let world = World::with_defaults(&store).await;
    world.enqueue(0..=HANGING as u64).await;
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let handler = move |item: Delivery<u64>| {
        counted.fetch_add(1, Ordering::Relaxed);
        async move {
            if *item.value() < HANGING as u64 {
                pending::<()>().await;
            }
        }
    };
    let options = WorkerOptions::new()
        .with_concurrency(2)
        .with_time_limit(MINUTE)
        .with_backoff(DAILY);
    let clock = Still::new();
    let runner = clock.runner(&world.store);
    let worker = world.queue.work(&runner, options, handler).await;
    for called in [HANGING / 2, HANGING] {
        until(async || calls.load(Ordering::Relaxed) == called).await;
        clock.advance(MINUTE);
    }
    until(async || world.stats().await.completed == 1).await;
    worker.unwrap().shut_down(LONG).await.unwrap();
    assert_eq!(calls.load(Ordering::Relaxed), HANGING + 1);
    assert_eq!(world.stats().await.delayed, HANGING as u64);
    world.check().await;
}

async fn the_backoff_grows_with_the_failures(store: TestStore) {
    let wall = Wall::ahead(Duration::ZERO);
    let world = World::new(&store, settings()).await;
    let item = world.enqueue_ref(7, &Enqueue::new()).await;
    let runner = wall.runner(&world.store);
    let queue = crate::common::open(&world.store, &runner, settings());
    let queue = queue.await.unwrap();
    let options = WorkerOptions::new().with_backoff(Backoff::new(MINUTE, MINUTE * 3));
    let consumer = queue.consumer(&runner, options).await.unwrap();
    for (failures, wait) in [
        (1, MINUTE),
        (2, MINUTE * 2),
        (3, MINUTE * 3),
        (4, MINUTE * 3),
    ] {
        wall.set(DAY * failures);
        let delivery = consumer.dequeue_within(LONG).await.unwrap().unwrap();
        assert_eq!(delivery.attempt(), u64::from(failures));
        drop(delivery);
        // This call is served after the item was given back.
        assert!(consumer.dequeue().await.unwrap().is_none());
        let status = world.status(&item).await.unwrap();
        let Place::Delayed { until } = status.place else {
            panic!("{:?}", status.place);
        };
        let waited = until.duration_since(status.failure.unwrap().time).unwrap();
        assert!(
            (wait / 2..=wait).contains(&waited),
            "{failures}: {waited:?}"
        );
    }
}

type Names = Queue<String, Bincode>;
type Numbers = Queue<u64, Bincode>;

/// A queue with an item whose value its consumer cannot decode.
struct Undecodable {
    names: Names,
    runner: keyspace::Runner<keyspace::Store>,
    item: ItemRef,
    wall: Wall,
    consumer: hc_dequeue::Consumer<u64>,
}

impl Undecodable {
    async fn new(store: &TestStore, options: WorkerOptions) -> Self {
        let store = store.fresh();
        let wall = Wall::ahead(Duration::ZERO);
        let runner = wall.runner(&store);
        let subspace = store.root.subspace(&"queue");
        let settings = settings();
        let opened = Names::open_with(
            &runner,
            subspace.clone(),
            settings.clone(),
            OpenOptions::default(),
        )
        .await;
        let names = opened.unwrap();
        let name = &"ten bytes.".to_owned();
        let queue = &names;
        let enqueue = |tr| async move { queue.enqueue(&tr, name).await };
        let (staged, commit) = runner.run_committed(enqueue).await.unwrap();
        // This codec does not store the type of its bytes.
        let numbers = Numbers::open_with(&runner, subspace, settings, OpenOptions::default())
            .await
            .unwrap();
        let consumer = numbers.consumer(&runner, options).await.unwrap();
        Self {
            item: staged.at(commit.versionstamp.unwrap()),
            names,
            runner,
            wall,
            consumer,
        }
    }

    /// Lets the item fail again, `ahead` of the time, and returns how long it waits.
    async fn fail(&self, failures: u32) -> Duration {
        self.wall.set(DAY * failures);
        while self.status().await.attempts == u64::from(failures) {
            assert!(self.consumer.pop().await.unwrap().is_none());
        }
        let status = self.status().await;
        assert_eq!(status.attempts, u64::from(failures) + 1);
        let Place::Delayed { until } = status.place else {
            panic!("{:?}", status.place);
        };
        let failure = status.failure.unwrap();
        assert!(failure.reason.contains("Bincode"), "{failure:?}");
        until.duration_since(failure.time).unwrap()
    }

    async fn status(&self) -> hc_dequeue::Status<String> {
        let names = &self.names;
        let item = &self.item;
        let status = |tr| async move { names.status(&tr, item).await };
        self.runner.run(status).await.unwrap().unwrap()
    }
}

async fn what_does_not_decode_waits_as_by_the_default_backoff(store: TestStore) {
    let soon = Duration::from_millis(1);
    let options = WorkerOptions::new().with_backoff(Backoff::new(soon, soon));
    let world = Undecodable::new(&store, options).await;
    let mut longest = Duration::from_secs(1);
    for failures in 0..11 {
        let wait = world.fail(failures).await;
        let range = millis(longest / 2)..=millis(longest);
        assert!(range.contains(&millis(wait)), "{failures}: {wait:?}");
        longest = (longest * 2).min(5 * MINUTE);
    }
    // A longer backoff stays as it is.
    let options = WorkerOptions::new().with_backoff(Backoff::new(MINUTE * 20, MINUTE * 20));
    let wait = Undecodable::new(&store, options).await.fail(0).await;
    assert!((MINUTE * 10..=MINUTE * 20).contains(&wait), "{wait:?}");
}

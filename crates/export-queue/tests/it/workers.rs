//! Several workers, and single ones under failures: which worker exports what, what is exported again,
//! and that the receiver ends up equal to the source.

use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{LONG, Receiver, World, no_backoff, settings};
use conformance::chaos::{Chaos, Faults};
use conformance::stores::TestStore;
use conformance::{timeout, until};
use export_queue::combine::Bucket;
use export_queue::{BoxError, Error, Exporter, SequencedExport, Start, WorkerOptions, async_trait};
use keyspace::error::corrupt_key;
use keyspace::{Environment, RunOptions, Runner};

conformance::on_every_store!(threads:
    a_sleeping_worker_is_woken_by_an_entry,
    buckets_are_divided_and_taken_over_at_a_shut_down,
    a_worker_that_dies_around_the_write_loses_nothing,
    a_worker_that_hangs_past_its_session_cannot_set_the_position,
    a_claim_that_stands_still_is_taken_over,
    an_exporter_that_fails_hangs_or_panics_holds_up_its_own_bucket_only,
    a_worker_without_a_subscription_does_nothing,
    a_damaged_record_does_not_stop_takeovers_of_dead_workers,
    a_graph_kept_outside_equals_the_graph_inside,
);

type Batch = [SequencedExport<String, Option<i64>>];

/// Options with which a worker acts only on a wake-up, or after more time than a test takes.
fn deaf_to_time() -> WorkerOptions {
    WorkerOptions::new()
        .with_poll_interval(LONG * 60)
        .with_takeover_after(LONG * 60)
}

/// An entry for each of several keys, enough for each of a few buckets to have some.
fn entries(value: i64) -> Vec<(String, Option<i64>)> {
    (0..64)
        .map(|key| (format!("key {key}"), Some(value)))
        .collect()
}

fn values(value: i64) -> BTreeMap<String, i64> {
    let entries = entries(value).into_iter();
    entries
        .filter_map(|(key, value)| Some((key, value?)))
        .collect()
}

/// A queue whose sessions die soon, and its store.
async fn short_lived(store: &TestStore) -> (TestStore, World) {
    let store = store.fresh();
    let settings = settings(8).with_lease(Duration::from_millis(150));
    let world = World::on(store.runner(), &store, settings).await;
    (store, world)
}

async fn a_sleeping_worker_is_woken_by_an_entry(store: TestStore) {
    let world = World::new(&store, 4).await;
    let receiver = Receiver::default();
    let worker = world.work(deaf_to_time(), receiver.clone()).await;
    for value in 0..10 {
        world.add("key", value).await;
        world.wait_idle().await;
        assert_eq!(receiver.values()["key"], value);
    }
    worker.shut_down(LONG).await.unwrap();
}

async fn buckets_are_divided_and_taken_over_at_a_shut_down(store: TestStore) {
    let world = World::new(&store, 32).await;
    let first = Receiver::default();
    let second = Receiver::default();
    let first_worker = world.work(deaf_to_time(), first.clone()).await;
    let second_worker = world.work(deaf_to_time(), second.clone()).await;
    let keys = |receiver: &Receiver, since: usize| -> BTreeSet<String> {
        let exports = receiver.all();
        exports[since..]
            .iter()
            .map(|export| export.key.clone())
            .collect()
    };
    // Until both know of each other.
    loop {
        let before_first = first.all().len();
        let before_second = second.all().len();
        world.add_all(entries(1)).await;
        world.wait_idle().await;
        let first = keys(&first, before_first);
        let second = keys(&second, before_second);
        if !first.is_empty() && !second.is_empty() && first.is_disjoint(&second) {
            assert_eq!(first.len() + second.len(), entries(1).len());
            break;
        }
    }
    second_worker.shut_down(LONG).await.unwrap();
    let before = first.all().len();
    world.add_all(entries(2)).await;
    world.wait_idle().await;
    assert_eq!(keys(&first, before).len(), entries(2).len());
    first_worker.shut_down(LONG).await.unwrap();
    world.assert_nothing_left().await;
}

/// The moment at which an exporter dies, relative to its write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moment {
    Before,
    /// Half of the batch is written.
    During,
    After,
}

/// Writes as much as its moment allows, and then requests to be killed.
#[derive(Clone)]
struct Dies {
    moment: Moment,
    receiver: Receiver,
    dying: Arc<tokio::sync::Notify>,
}

#[async_trait]
impl Exporter<String, Option<i64>> for Dies {
    async fn export(&self, batch: &Batch) -> Result<(), BoxError> {
        let written = match self.moment {
            Moment::Before => 0,
            Moment::During => batch.len() / 2,
            Moment::After => batch.len(),
        };
        self.receiver.receive(&batch[..written]);
        self.dying.notify_one();
        pending().await
    }
}

async fn a_worker_that_dies_around_the_write_loses_nothing(store: TestStore) {
    for moment in [Moment::Before, Moment::During, Moment::After] {
        let (_, world) = short_lived(&store).await;
        let receiver = Receiver::default();
        world.add_all(entries(1)).await;
        world.add_all(entries(2)).await;
        let dies = Dies {
            moment,
            receiver: receiver.clone(),
            dying: Arc::default(),
        };
        let options = WorkerOptions::new().with_takeover_after(LONG * 60);
        let worker = world.work(options.clone(), dies.clone()).await;
        dies.dying.notified().await;
        drop(worker);
        world.add_all(entries(3)).await;
        let worker = world.work(options, receiver.clone()).await;
        world.wait_idle().await;
        assert_eq!(receiver.values(), values(3), "{moment:?}");
        let mut seen = BTreeMap::<_, BTreeSet<_>>::new();
        for export in receiver.all() {
            seen.entry(export.key).or_default().insert(export.value);
        }
        let all: BTreeSet<_> = [1, 2, 3].map(Some).into();
        assert!(seen.values().all(|values| *values == all), "{seen:?}");
        worker.shut_down(LONG).await.unwrap();
    }
}

/// Waits until it is released, and then writes.
#[derive(Clone)]
struct Late {
    receiver: Receiver,
    has_begun: Arc<AtomicBool>,
    goes_on: Arc<tokio::sync::Semaphore>,
}

impl Late {
    fn new(receiver: &Receiver) -> Self {
        Self {
            receiver: receiver.clone(),
            has_begun: Arc::default(),
            goes_on: Arc::new(tokio::sync::Semaphore::new(0)),
        }
    }

    async fn begun(&self) {
        until(async || self.has_begun.load(Ordering::Relaxed)).await;
    }
}

#[async_trait]
impl Exporter<String, Option<i64>> for Late {
    async fn export(&self, batch: &Batch) -> Result<(), BoxError> {
        self.has_begun.store(true, Ordering::Relaxed);
        let _permit = self.goes_on.acquire().await?;
        self.receiver.receive(batch);
        Ok(())
    }
}

async fn a_worker_that_hangs_past_its_session_cannot_set_the_position(store: TestStore) {
    let (store, world) = short_lived(&store).await;
    let chaos = Chaos::new(store.db.clone(), Environment::system(), Faults::default());
    let options = RunOptions::default().with_ledger_subspace(store.root.subspace(&"ledgers"));
    let cut_off = Runner::with_options(chaos.clone(), options);
    let receiver = Receiver::default();
    world.add_all(entries(1)).await;
    let late = Late::new(&receiver);
    let once = WorkerOptions::new()
        .with_concurrency(64)
        .with_takeover_after(LONG * 60);
    let hung = world
        .reader
        .work(&cut_off, once.clone(), late.clone())
        .await
        .unwrap();
    late.begun().await;
    // The process hangs as a whole, for longer than its lease.
    chaos.stop();
    world.add_all(entries(2)).await;
    let worker = world.work(once, receiver.clone()).await;
    world.wait_idle().await;
    assert_eq!(receiver.values(), values(2));
    let positions = world.rows("p").await;
    // It resumes and writes old entries, which the receiver ignores.
    late.goes_on.add_permits(1000);
    chaos.go_on();
    hung.shut_down(LONG).await.unwrap();
    assert_eq!(world.rows("p").await, positions);
    assert_eq!(receiver.values(), values(2));
    worker.shut_down(LONG).await.unwrap();
}

async fn a_claim_that_stands_still_is_taken_over(store: TestStore) {
    let world = World::new(&store, 8).await;
    let receiver = Receiver::default();
    let late = Late::new(&receiver);
    // Its heartbeat continues, and its exporter may take forever.
    let forever = WorkerOptions::new()
        .with_concurrency(64)
        .with_time_limit(LONG * 60);
    let hung = world.work(forever, late.clone()).await;
    world.add_all(entries(1)).await;
    late.begun().await;
    let impatient = WorkerOptions::new().with_takeover_after(Duration::from_millis(50));
    let worker = world.work(impatient, receiver.clone()).await;
    world.wait_idle().await;
    assert_eq!(receiver.values(), values(1));
    let positions = world.rows("p").await;
    late.goes_on.add_permits(1000);
    hung.shut_down(LONG).await.unwrap();
    worker.shut_down(LONG).await.unwrap();
    assert_eq!(world.rows("p").await, positions);
    world.assert_nothing_left().await;
}

/// Fails in different ways in its first calls that contain a key.
struct Misbehaves {
    key: String,
    receiver: Receiver,
    calls: AtomicU32,
}

#[async_trait]
impl Exporter<String, Option<i64>> for Misbehaves {
    async fn export(&self, batch: &Batch) -> Result<(), BoxError> {
        if batch.iter().any(|export| export.key == self.key) {
            match self.calls.fetch_add(1, Ordering::Relaxed) {
                0 => return Err("on purpose".into()),
                1 => pending().await,
                2 => panic!("on purpose"),
                // Until all other entries are exported.
                _ if self.receiver.values().len() < 40 => return Err("not yet".into()),
                _ => {}
            }
        }
        self.receiver.receive(batch);
        Ok(())
    }
}

async fn an_exporter_that_fails_hangs_or_panics_holds_up_its_own_bucket_only(store: TestStore) {
    let world = World::new(&store, 16).await;
    let receiver = Receiver::default();
    let misbehaves = Misbehaves {
        key: "key 3".to_owned(),
        receiver: receiver.clone(),
        calls: AtomicU32::new(0),
    };
    let options = WorkerOptions::new()
        .with_backoff(no_backoff())
        .with_time_limit(Duration::from_millis(20));
    let worker = world.work(options, misbehaves).await;
    world.add_all(entries(1)).await;
    world.wait_idle().await;
    worker.shut_down(LONG).await.unwrap();
    assert_eq!(receiver.values(), values(1));
    world.assert_nothing_left().await;
}

async fn a_worker_without_a_subscription_does_nothing(store: TestStore) {
    let world = World::new(&store, 2).await;
    let receiver = Receiver::default();
    let options = WorkerOptions::new().with_backoff(no_backoff());
    let worker = world.work(options.clone(), receiver.clone()).await;
    let queue = &world.queue;
    let mut removed = std::pin::pin!(world.reader.wait_removed(&world.runner));
    assert!(futures::poll!(&mut removed).is_pending());
    let remove = |tr| async move { queue.unsubscribe(&tr, "reader").await };
    assert!(world.runner.run(remove).await.unwrap());
    timeout(LONG, removed).await.unwrap();
    // It is not idle, since it will never receive the new entries.
    let idle = timeout(LONG, world.reader.wait_idle(&world.runner));
    assert!(matches!(
        idle.await,
        Err(Error::NoSubscription { subscription, .. }) if subscription == "reader"
    ));
    world.add_all(entries(1)).await;
    let other = world.subscribe("other", Start::Oldest).await;
    let found = Receiver::default();
    world.export(&other, &found).await;
    assert_eq!(found.values(), values(1));
    assert_eq!(receiver.all(), []);
    worker.shut_down(LONG).await.unwrap();
}

async fn a_damaged_record_does_not_stop_takeovers_of_dead_workers(store: TestStore) {
    let (_, world) = short_lived(&store).await;
    let dies = world.work(deaf_to_time(), Receiver::default()).await;
    // As with a worker that is killed, its session stays.
    drop(dies);
    world.add_all(entries(1)).await;
    let claim = world.queue.subspace().pack(&("c", "reader", 0));
    world.set(&claim, b"no claim").await;
    let receiver = Receiver::default();
    let worker = world.work(deaf_to_time(), receiver.clone()).await;
    let mut expected = values(1);
    expected.retain(|key, _| world.queue.bucket(key).unwrap() != Bucket(0));
    assert!(expected.len() < entries(1).len());
    until(async || receiver.values() == expected).await;
    let idle = timeout(LONG, world.reader.wait_idle(&world.runner)).await;
    assert_eq!(corrupt_key(&idle.unwrap_err()), Some(&claim[..]));
    worker.shut_down(LONG).await.unwrap();
}

/// Several writers edit the links between pages while workers come and die. The external graph records
/// for each link whether it exists.
async fn a_graph_kept_outside_equals_the_graph_inside(store: TestStore) {
    let (_, world) = short_lived(&store).await;
    let world = Arc::new(world);
    let receiver = Receiver::default();
    let inside = Arc::new(Mutex::new(BTreeMap::new()));
    let env = Environment::system();
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..4_i64 {
        let world = world.clone();
        let inside = inside.clone();
        let env = env.clone();
        writers.spawn(async move {
            for round in 0..25 {
                let [from, to, kind, _] = env.random_bytes::<4>();
                // Each writer has pages of its own, so it knows what it has committed last.
                let link = format!("{writer}.{} -> {}", from % 5, to % 5);
                let value = if kind % 3 > 0 { Some(round) } else { None };
                world.add_all(vec![(link.clone(), value)]).await;
                let mut inside = inside.lock().unwrap();
                match value {
                    Some(value) => inside.insert(link, value),
                    None => inside.remove(&link),
                };
            }
        });
    }
    let options = WorkerOptions::new().with_max_batch_bytes(300);
    while !writers.is_empty() {
        let worker = world.work(options.clone(), receiver.clone()).await;
        // The worker is dropped wherever it is.
        let env = world.runner.environment();
        let _ = env
            .timeout(Duration::from_millis(30), writers.join_next())
            .await;
        drop(worker);
    }
    let worker = world.work(options, receiver.clone()).await;
    world.wait_idle().await;
    assert_eq!(receiver.values(), *inside.lock().unwrap());
    worker.shut_down(LONG).await.unwrap();
}

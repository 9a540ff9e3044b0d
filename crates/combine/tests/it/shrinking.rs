//! Passes that are too large or too slow because of the observer: they shrink until they fit, and changes
//! that can never fit are set aside.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::{LONG, Log, Stages, World};
use combine::hc_dequeue::Backoff;
use combine::{AsideId, BoxError, Change, ChangeObserver, SetAside, WorkerOptions};
use conformance::stores::TestStore;
use keyspace::limits::MAX_VALUE_BYTES;
use keyspace::{Listed, Transaction};

conformance::on_every_store!(threads:
    an_observer_may_stage_more_for_a_pass_than_a_transaction_holds,
    a_change_that_fits_no_transaction_is_set_aside_and_comes_back,
    several_changes_that_fit_no_transaction_are_all_set_aside,
    changes_before_one_that_fits_no_transaction_are_not_set_aside,
    an_observer_that_is_slow_for_many_changes_gets_fewer,
);

async fn an_observer_may_stage_more_for_a_pass_than_a_transaction_holds(store: TestStore) {
    let world = World::sums(&store, 1).await;
    // A third of the bytes that a transaction holds, for each.
    let stages = Stages::new(&world, MAX_VALUE_BYTES, |_| 33);
    let updates = (0..10).map(|key| (format!("key {key}"), 1 + key));
    world.add_all(updates.clone().collect()).await;
    let worker = world.work(stages.clone()).await;
    world.wait_idle().await;
    worker.shut_down(LONG).await.unwrap();
    let expected = updates.map(|(key, sum)| (key, (1, Some(sum))));
    assert_eq!(stages.log.reports(&world.runner).await, expected.collect());
    stages.log.check(&world).await;
    world.assert_nothing_left().await;
}

/// More bytes than a transaction holds, for one key.
fn too_much_for_one(key: &str) -> u32 {
    if key == "heavy" { 101 } else { 0 }
}

async fn aside(world: &World) -> Vec<Listed<AsideId, SetAside>> {
    let queue = &world.queue;
    let read = |tr| async move { queue.set_aside(&tr, None, usize::MAX).await };
    world.runner.run(read).await.unwrap()
}

/// The encoded key.
fn encoded(key: &str) -> Vec<u8> {
    [&[0xa0 | u8::try_from(key.len()).unwrap()], key.as_bytes()].concat()
}

async fn a_change_that_fits_no_transaction_is_set_aside_and_comes_back(store: TestStore) {
    let world = World::sums(&store, 1).await;
    let stages = Stages::new(&world, MAX_VALUE_BYTES, too_much_for_one);
    let updates = ["a", "heavy", "z", "heavy", "heavy"]
        .into_iter()
        .zip(1..)
        .map(|(key, update)| (key.to_owned(), update));
    world.add_all(updates.collect()).await;
    let worker = world.work(stages.clone()).await;
    world.wait_idle().await;
    let others = [("a", 1), ("z", 3)].map(|(key, sum)| (key.to_owned(), sum));
    assert_eq!(world.values().await, others.into());
    // Its updates are folded, and its reports are withheld.
    let found = aside(&world).await;
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].id, AsideId::Key(encoded("heavy").into()));
    let SetAside { reason, .. } = found[0].value.as_ref().unwrap();
    assert!(
        reason.starts_with("its change alone does not fit a transaction"),
        "{reason}"
    );
    assert_eq!(world.exact("heavy").await, Some(2 + 4 + 5));

    stages.is_fixed.store(true, Ordering::Relaxed);
    let queue = &world.queue;
    let heavy = &found[0].id;
    let redrive = |tr| async move { queue.redrive(&tr, heavy).await };
    assert!(world.runner.run(redrive).await.unwrap());
    world.wait_idle().await;
    worker.shut_down(LONG).await.unwrap();
    assert_eq!(world.settled("heavy").await, Some(2 + 4 + 5));
    stages.log.check(&world).await;
    world.assert_nothing_left().await;
}

async fn several_changes_that_fit_no_transaction_are_all_set_aside(store: TestStore) {
    let heavy = ["heavy 1", "heavy 2", "heavy 3"];
    for light in [&[][..], &["a", "m", "z"]] {
        let world = World::sums(&store, 1).await;
        let too_much = |key: &str| u32::from(key.starts_with("heavy")) * 101;
        let stages = Stages::new(&world, MAX_VALUE_BYTES, too_much);
        let updates = [light, &heavy]
            .concat()
            .into_iter()
            .map(|key| (key.to_owned(), 1));
        world.add_all(updates.collect()).await;
        let worker = world.work(stages.clone()).await;
        world.wait_idle().await;
        worker.shut_down(LONG).await.unwrap();
        let values: Vec<_> = world.values().await.into_keys().collect();
        assert_eq!(values, light);
        let found = aside(&world).await.into_iter().map(|aside| aside.id);
        let expected = heavy.map(|key| AsideId::Key(encoded(key).into()));
        assert_eq!(found.collect::<Vec<_>>(), expected);
        stages.log.check(&world).await;
    }
}

/// Adds to an earlier key, in a transaction of its own, whenever it stages too much.
struct Interrupts {
    stages: Stages,
    world: Arc<World>,
}

impl ChangeObserver<String, i64> for Interrupts {
    async fn observe<T: Transaction>(
        &self,
        tr: &T,
        changes: &[Change<String, i64>],
    ) -> Result<(), BoxError> {
        if changes.iter().any(|change| change.key == "heavy") {
            self.world.add("a", 1).await;
        }
        self.stages.observe(tr, changes).await
    }
}

async fn changes_before_one_that_fits_no_transaction_are_not_set_aside(store: TestStore) {
    let world = Arc::new(World::sums(&store, 1).await);
    let stages = Stages::new(&world, MAX_VALUE_BYTES, too_much_for_one);
    let interrupts = Interrupts {
        stages: stages.clone(),
        world: world.clone(),
    };
    world.add("heavy", 1).await;
    // The first pass shows that the change does not fit, and is undone.
    let options = WorkerOptions::new().with_max_batch_bytes(1);
    let worker = world.work_with(options, interrupts).await;
    world.wait_idle().await;
    worker.shut_down(LONG).await.unwrap();
    let found = aside(&world).await;
    let keys: Vec<_> = found.into_iter().map(|aside| aside.id).collect();
    assert_eq!(keys, [AsideId::Key(encoded("heavy").into())]);
    stages.log.check(&world).await;
}

/// Never returns if it receives more changes than it takes.
#[derive(Clone)]
struct TakesFew {
    log: Log<i64>,
    has_hung: Arc<AtomicBool>,
}

const FEW: usize = 3;

impl ChangeObserver<String, i64> for TakesFew {
    async fn observe<T: Transaction>(
        &self,
        tr: &T,
        changes: &[Change<String, i64>],
    ) -> Result<(), BoxError> {
        if changes.len() > FEW {
            self.has_hung.store(true, Ordering::Relaxed);
            return pending().await;
        }
        self.log.observe(tr, changes).await
    }
}

async fn an_observer_that_is_slow_for_many_changes_gets_fewer(store: TestStore) {
    let world = World::sums(&store, 1).await;
    let takes_few = TakesFew {
        log: Log::new(&world.root),
        has_hung: Arc::default(),
    };
    let updates = (0..12).map(|key| (format!("key {key}"), 1));
    world.add_all(updates.clone().collect()).await;
    let options = WorkerOptions::new()
        .with_time_limit(Duration::from_millis(100))
        .with_backoff(Backoff::new(
            Duration::from_millis(1),
            Duration::from_millis(1),
        ))
        .with_max_batch_bytes(1 << 14);
    let worker = world.work_with(options, takes_few.clone()).await;
    world.wait_idle().await;
    worker.shut_down(LONG).await.unwrap();
    assert!(takes_few.has_hung.load(Ordering::Relaxed));
    let expected = updates.map(|(key, sum)| (key, (1, Some(sum))));
    assert_eq!(
        takes_few.log.reports(&world.runner).await,
        expected.collect()
    );
    takes_few.log.check(&world).await;
    world.assert_nothing_left().await;
}

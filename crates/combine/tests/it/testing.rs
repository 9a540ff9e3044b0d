//! The test kit for applications.

use combine::testing::{Drained, drain};
use combine::{BoxError, Change, ChangeObserver, Error, Unobserved};
use conformance::stores::TestStore;
use keyspace::Transaction;

use crate::common::{LONG, Log, Queue, World, set_aside};

conformance::on_every_store!(
    a_drain_combines_and_reports_all_updates,
    a_drain_combines_what_its_observer_adds,
    a_drain_takes_as_many_passes_as_it_needs,
    a_drain_sets_aside_what_does_not_decode,
    a_drain_returns_the_error_of_its_observer_and_leaves_the_updates,
    a_drain_beside_a_worker_combines_each_update_once,
);

async fn a_drain_combines_and_reports_all_updates(store: TestStore) {
    let world = World::sums(&store, 8).await;
    let log = Log::new(&world.root);
    for key in 0..20 {
        world.add(&key.to_string(), 1).await;
        world.add(&key.to_string(), key).await;
    }
    let drained = drain(&world.runner, &world.queue, log.clone()).await;
    let drained = drained.unwrap();
    assert_eq!((drained.updates, drained.changes), (40, 20));
    assert_eq!(drained.set_aside, 0);
    for key in 0..20 {
        assert_eq!(world.settled(&key.to_string()).await, Some(key + 1));
    }
    log.check(&world).await;
    // There is no session that others would have to remove.
    world.assert_nothing_left().await;
    let nothing = drain(&world.runner, &world.queue, log).await.unwrap();
    assert_eq!(nothing, Drained::default());
}

/// Adds one less to the same queue, under another key, until that is zero.
struct CountDown(Queue);

impl ChangeObserver<String, i64> for CountDown {
    async fn observe<T: Transaction>(
        &self,
        tr: &T,
        changes: &[Change<String, i64>],
    ) -> Result<(), BoxError> {
        for change in changes {
            let left = change.new.unwrap_or_default() - 1;
            if left > 0 {
                self.0.add(tr, &left.to_string(), &left).await?;
            }
        }
        Ok(())
    }
}

async fn a_drain_combines_what_its_observer_adds(store: TestStore) {
    let world = World::sums(&store, 4).await;
    world.add("5", 5).await;
    let observer = CountDown(world.queue.clone());
    let drained = drain(&world.runner, &world.queue, observer).await;
    let drained = drained.unwrap();
    assert_eq!((drained.updates, drained.changes), (5, 5));
    assert_eq!(world.values().await.len(), 5);
    world.assert_nothing_left().await;
}

async fn a_drain_takes_as_many_passes_as_it_needs(store: TestStore) {
    const LONG_VALUE: usize = 60_000;
    // More than a pass takes of one bucket.
    const KEYS: u64 = 50;
    let last = |_: &String, _: Option<String>, updates: Vec<String>| updates.into_iter().last();
    let world = World::new(&store, 1, last).await;
    let long = "x".repeat(LONG_VALUE);
    for key in 0..KEYS {
        world.add(&key.to_string(), long.clone()).await;
    }
    let drained = drain(&world.runner, &world.queue, Unobserved).await;
    let drained = drained.unwrap();
    assert_eq!((drained.updates, drained.changes), (KEYS, KEYS));
    world.assert_nothing_left().await;
}

async fn a_drain_sets_aside_what_does_not_decode(store: TestStore) {
    let world = World::sums(&store, 1).await;
    let texts = World::<String, String> {
        runner: world.runner.clone(),
        queue: Queue::open(
            &world.runner,
            world.queue.subspace().clone(),
            |_: &String, old: Option<String>, _: Vec<String>| old,
        )
        .await
        .unwrap(),
        root: world.root.clone(),
    };
    texts.add("a", "no number".to_owned()).await;
    world.add("a", 7).await;
    let drained = drain(&world.runner, &world.queue, Unobserved).await;
    let drained = drained.unwrap();
    assert_eq!((drained.updates, drained.changes), (2, 1));
    assert_eq!(drained.set_aside, 1);
    assert_eq!(set_aside(&world).await.len(), 1);
    assert_eq!(world.settled("a").await, Some(7));
}

/// Refuses changes.
struct Refuses;

impl ChangeObserver<String, i64> for Refuses {
    async fn observe<T: Transaction>(
        &self,
        tr: &T,
        changes: &[Change<String, i64>],
    ) -> Result<(), BoxError> {
        tr.set(b"never", b"");
        match changes[0].new {
            Some(8) => panic!("no luck"),
            _ => Err("no disk".into()),
        }
    }
}

async fn a_drain_returns_the_error_of_its_observer_and_leaves_the_updates(store: TestStore) {
    let world = World::sums(&store, 1).await;
    world.add("a", 7).await;
    let refused = drain(&world.runner, &world.queue, Refuses).await;
    assert!(matches!(refused, Err(Error::Observer(_))), "{refused:?}");
    world.add("a", 1).await;
    let refused = drain(&world.runner, &world.queue, Refuses).await;
    let panicked = matches!(refused, Err(Error::ObserverPanicked { .. }));
    assert!(panicked, "{refused:?}");
    assert_eq!(world.settled("a").await, None);
    let log = Log::new(&world.root);
    let drained = drain(&world.runner, &world.queue, log.clone()).await;
    assert_eq!(drained.unwrap().updates, 2);
    log.check(&world).await;
    world.assert_nothing_left().await;
}

async fn a_drain_beside_a_worker_combines_each_update_once(store: TestStore) {
    let world = World::sums(&store, 4).await;
    let log = Log::new(&world.root);
    let worker = world.work(log.clone()).await;
    for key in 0..40 {
        world.add(&(key % 7).to_string(), 1).await;
        if key % 8 == 0 {
            let drained = drain(&world.runner, &world.queue, log.clone()).await;
            drained.unwrap();
        }
    }
    world.wait_idle().await;
    worker.shut_down(LONG).await.unwrap();
    let values = world.values().await;
    assert_eq!(values.into_values().sum::<i64>(), 40);
    log.check(&world).await;
    world.assert_nothing_left().await;
}

#[test]
fn futures_are_send() {
    fn assert_send<F: Send>(_: impl Fn(World) -> F) {}
    assert_send(|world| async move { drain(&world.runner, &world.queue, Unobserved).await });
}

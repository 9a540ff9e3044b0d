//! Buckets whose blocks, values or changes are too much for one pass. Each still reports.

use crate::common::{LONG, Log, Stages, World, open_sums, settings};
use combine::microqueue::{self, ItemId};
use combine::{BoxError, Change, ChangeObserver, Error, Exact, Unobserved, WorkerOptions};
use conformance::stores::TestStore;
use conformance::until;
use keyspace::{Transaction, Versionstamp};

conformance::on_every_store!(threads:
    a_block_of_many_keys_with_large_values_is_folded_in_parts,
    an_observer_that_stages_a_few_kilobytes_for_each_change_is_called_with_fewer,
    a_bucket_that_is_added_to_between_passes_goes_on_reporting,
    an_update_that_an_observer_adds_to_its_own_bucket_is_folded,
    exact_values_of_several_keys_are_those_of_each,
    a_queue_with_a_stamp_above_the_stores_version_does_not_open,
    a_queue_with_a_pass_above_the_stores_version_does_not_open,
);

async fn a_block_of_many_keys_with_large_values_is_folded_in_parts(store: TestStore) {
    const KEYS: usize = 630;
    const VALUE_BYTES: usize = 16_000;
    let replace_head = |_: &String, value: Option<String>, updates: Vec<String>| {
        let value = value.unwrap_or_default();
        let head = updates.last()?;
        Some(format!(
            "{head}{}",
            value.get(head.len()..).unwrap_or_default()
        ))
    };
    let world: World<String, String> = World::new(&store, 1, replace_head).await;
    let keys: Vec<_> = (0..KEYS).map(|key| format!("{key:03}")).collect();
    let queue = &world.queue;
    let value = &"v".repeat(VALUE_BYTES);
    for keys in keys.chunks(100) {
        let load = |tr: keyspace::Tx<_>| async move {
            for key in keys {
                queue.initialize(&tr, key, value).await?;
            }
            Ok::<_, Error>(())
        };
        world.runner.run(load).await.unwrap();
    }
    let updates = keys.iter().map(|key| (key.clone(), "head".to_owned()));
    world.add_all(updates.collect()).await;
    assert_eq!(world.rows("u").await.len(), 1);
    // Ten times as much as a transaction of this size holds.
    let worker = world.work_with(WorkerOptions::default(), Unobserved).await;
    world.wait_idle().await;
    worker.shut_down(LONG).await.unwrap();
    let values = world.values().await;
    assert_eq!(values.len(), KEYS);
    let is_replaced = |value: &String| value.len() == VALUE_BYTES && value.starts_with("headv");
    assert!(values.values().all(is_replaced));
    world.assert_nothing_left().await;
}

async fn an_observer_that_stages_a_few_kilobytes_for_each_change_is_called_with_fewer(
    store: TestStore,
) {
    let world = World::sums(&store, 1).await;
    let stages = Stages::new(&world, 5_000, |_| 1);
    // Together one and a half times as much as a transaction holds.
    let updates = (0..3_000).map(|key| (format!("key {key}"), 1));
    world.add_all(updates.clone().collect()).await;
    let worker = world.work(stages.clone()).await;
    world.wait_idle().await;
    worker.shut_down(LONG).await.unwrap();
    let expected = updates.map(|(key, sum)| (key, (1, Some(sum))));
    assert_eq!(stages.log.reports(&world.runner).await, expected.collect());
    stages.log.check(&world).await;
    world.assert_nothing_left().await;
}

async fn a_bucket_that_is_added_to_between_passes_goes_on_reporting(store: TestStore) {
    const KEYS: usize = 300;
    let world = World::sums(&store, 1).await;
    // A pass takes all updates, some 300 KiB and half of its budget. The changes are one and a half times
    // as much as a transaction holds.
    let stages = Stages::new(&world, 50_000, |_| 1);
    let keys = (0..2 * KEYS).map(|update| format!("key {:0>500}", update % KEYS));
    let updates: Vec<_> = keys.map(|key| (key, 1)).collect();
    let worker = world.work(stages.clone()).await;
    let mut added = 0;
    let mut seen = Vec::new();
    let goes_on = async {
        // Whether or not the previous pass reported anything.
        while stages.log.reports(&world.runner).await.len() < KEYS {
            world.add_all(updates.clone()).await;
            added += 1;
            until(async || world.rows("x").await != seen).await;
            seen = world.rows("x").await;
        }
    };
    conformance::timeout(LONG, goes_on).await;
    world.wait_idle().await;
    worker.shut_down(LONG).await.unwrap();
    stages.log.check(&world).await;
    let values = world.values().await;
    // One pass does not report all of them, and several passes may run between two additions.
    assert!(added > 1, "{added}");
    assert!(values.len() == KEYS && values.values().all(|sum| *sum == 2 * added));
    world.assert_nothing_left().await;
}

/// Adds one to the same key of the same bucket until the key has this value.
struct CountsTo(World, i64);

impl ChangeObserver<String, i64> for CountsTo {
    async fn observe<T: Transaction>(
        &self,
        tr: &T,
        changes: &[Change<String, i64>],
    ) -> Result<(), BoxError> {
        for Change { key, new, .. } in changes {
            if new.is_some_and(|new| new < self.1) {
                self.0.queue.add(tr, key, &1).await?;
            }
        }
        Ok(())
    }
}

async fn an_update_that_an_observer_adds_to_its_own_bucket_is_folded(store: TestStore) {
    let world = World::sums(&store, 1).await;
    let same_queue = open_sums(&world.runner, world.queue.subspace().clone(), settings(1));
    let same = World {
        runner: world.runner.clone(),
        queue: same_queue.await.unwrap(),
        root: world.root.clone(),
    };
    world.add("a", 1).await;
    world.add("b", 15).await;
    let worker = world.work(CountsTo(same, 20)).await;
    world.wait_idle().await;
    worker.shut_down(LONG).await.unwrap();
    for key in ["a", "b"] {
        assert_eq!(world.settled(key).await, Some(20));
    }
    world.assert_nothing_left().await;
}

async fn exact_values_of_several_keys_are_those_of_each(store: TestStore) {
    let world = World::sums(&store, 3).await;
    let keys: Vec<_> = (0..10).map(|key| format!("key {key}")).collect();
    let add = |from: usize| {
        let updates = keys[from..].iter().map(|key| (key.clone(), 1));
        world.add_all(updates.collect())
    };
    add(5).await;
    world
        .combine(WorkerOptions::default(), &Log::new(&world.root))
        .await;
    add(2).await;
    add(8).await;
    // Also one that is requested twice.
    let asked: &Vec<_> = &[&keys[..], &keys[9..]].concat();
    let queue = &world.queue;
    let read = |tr| async move { queue.exact_many(&tr, asked, &Exact::default()).await };
    let values = world.runner.run(read).await.unwrap();
    let expected =
        [0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3].map(|sum| if sum > 0 { Some(sum) } else { None });
    assert_eq!(values, expected);
    for (key, value) in keys.iter().zip(expected) {
        assert_eq!(world.exact(key).await, value);
    }
}

async fn a_queue_with_a_stamp_above_the_stores_version_does_not_open(store: TestStore) {
    let world = World::sums(&store, 7).await;
    let ahead = ItemId::Commit {
        versionstamp: Versionstamp::new(1 << 56, 0),
        call: 1,
    };
    let log = world.queue.subspace().subspace(&("u", 0, 3));
    let row = &ahead.key_in(&log);
    let write = |tr: keyspace::Tx<_>| async move {
        tr.set(row, b"\x01\x01\0\x01\0\0");
        Ok::<_, Error>(())
    };
    world.runner.run(write).await.unwrap();
    let subspace = world.queue.subspace().clone();
    let refused = open_sums(&world.runner, subspace, settings(7))
        .await
        .unwrap_err();
    assert!(
        matches!(&refused, Error::Updates(microqueue::Error::StampAhead { queue, .. }) if *queue == log),
        "{refused}"
    );
}

async fn a_queue_with_a_pass_above_the_stores_version_does_not_open(store: TestStore) {
    let world = World::sums(&store, 7).await;
    // The log is empty, and the pass was complete.
    let row = &world.queue.subspace().pack(&("x", 0, 3));
    let version = (1_i64 << 56).to_be_bytes();
    let state = &[&[1, 0][..], &version, &version].concat();
    let write = |tr: keyspace::Tx<_>| async move {
        tr.set(row, state);
        Ok::<_, Error>(())
    };
    world.runner.run(write).await.unwrap();
    let subspace = world.queue.subspace();
    let refused = open_sums(&world.runner, subspace.clone(), settings(7));
    let refused = refused.await.unwrap_err();
    assert!(
        matches!(&refused, Error::Updates(microqueue::Error::StampAhead { queue, stamp, .. })
            if queue == subspace && stamp.commit_version() == 1 << 56),
        "{refused}"
    );
}

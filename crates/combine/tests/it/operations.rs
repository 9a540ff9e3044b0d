//! The operations, one by one.

use std::collections::{BTreeMap, BTreeSet};

use crate::common::{LONG, Log, World};
use combine::{
    BoxError, Change, ChangeObserver, Error, Exact, LastWriter, Unobserved, WorkerOptions,
};
use conformance::stores::TestStore;
use conformance::until;
use keyspace::{Bytes, Isolation, MutationOp, Subspace, Transaction};

conformance::on_every_store!(threads:
    a_queue_writes_the_rows_of_the_schema,
    updates_become_values_and_reports,
    a_key_that_ends_where_it_was_is_not_reported,
    what_is_added_by_many_transactions_is_combined,
    one_update_per_pass_does_the_same,
    a_pass_goes_as_far_as_its_budget,
    a_key_at_zero_has_no_value,
    exact_values_count_what_is_pending,
    waiting_ends_with_the_report,
    initialized_values_are_old_values,
    values_come_in_pages_of_a_bucket_and_of_all,
    splits_part_the_buckets_of_updates_and_values,
);

async fn a_queue_writes_the_rows_of_the_schema(store: TestStore) {
    let world = World::sums(&store, 1).await;
    let subspace = world.queue.subspace().clone();
    let stamp = world
        .add_all(["a", "b"].map(|key| (key.to_owned(), 1)).into())
        .await;
    let rows = world.rows_of(&subspace).await;
    let [settings, block, wake] = &rows[..] else {
        panic!("{rows:?}");
    };
    assert_eq!(settings.key(), subspace.pack(&"m"));
    let log = subspace.subspace(&("u", 0, 0)).into_bytes();
    assert!(
        block
            .key()
            .starts_with(&[&log[..], b"\x33", stamp.as_bytes()].concat())
    );
    assert_eq!(
        block.value(),
        b"\x01\x01\0\x02\x02\x01\xa1a\x01\x02\x01\xa1b\x01"
    );
    assert_eq!(
        (wake.key(), wake.value()),
        (&subspace.pack(&"w")[..], &stamp.as_bytes()[..])
    );

    world
        .combine(WorkerOptions::default(), &Log::new(&world.root))
        .await;
    for (part, expected) in [
        ("u", 0),
        ("v", 2),
        ("x", 1),
        ("c", 0),
        ("q", 0),
        ("s", 0),
        ("b", 0),
    ] {
        assert_eq!(world.rows(part).await.len(), expected, "{part}");
    }
    for value in world.rows("v").await {
        assert_eq!(value.value(), b"\x01\x01");
    }
    // Only the parts of the schema exist: these, the settings and the wake stamp.
    assert_eq!(world.rows_of(&subspace).await.len(), 2 + 1 + 2);
}

async fn updates_become_values_and_reports(store: TestStore) {
    let world = World::sums(&store, 4).await;
    let log = Log::new(&world.root);
    let updates = [("a", 1), ("b", 2), ("a", 3)].map(|(key, update)| (key.to_owned(), update));
    world.add_all(updates.to_vec()).await;
    assert_eq!(world.values().await, BTreeMap::new());
    world.combine(WorkerOptions::default(), &log).await;
    let expected = [("a".to_owned(), 4), ("b".to_owned(), 2)];
    assert_eq!(world.values().await, expected.into());
    assert_eq!(world.settled("a").await, Some(4));
    let reports = log.reports(&world.runner).await;
    assert_eq!(reports["a"], (1, Some(4)));
    assert_eq!(reports["b"], (1, Some(2)));
    log.check(&world).await;
    world.assert_nothing_left().await;
}

async fn a_key_that_ends_where_it_was_is_not_reported(store: TestStore) {
    let world = World::sums(&store, 1).await;
    let log = Log::new(&world.root);
    world.add("a", 1).await;
    world.combine(WorkerOptions::default(), &log).await;
    world.add("a", 5).await;
    world.add("a", -5).await;
    world.add("b", 7).await;
    world.add("b", -7).await;
    world.combine(WorkerOptions::default(), &log).await;
    let reports = log.reports(&world.runner).await;
    assert_eq!(reports, [("a".to_owned(), (1, Some(1)))].into());
    log.check(&world).await;
    world.assert_nothing_left().await;
}

async fn what_is_added_by_many_transactions_is_combined(store: TestStore) {
    let world = World::sums(&store, 7).await;
    let log = Log::new(&world.root);
    let worker = world.work(log.clone()).await;
    let mut expected = BTreeMap::new();
    for round in 0..20 {
        let updates: Vec<_> = (0..10)
            .map(|key| (format!("key {key}"), round * key))
            .collect();
        for (key, update) in &updates {
            *expected.entry(key.clone()).or_insert(0) += update;
        }
        world.add_all(updates).await;
    }
    world.wait_idle().await;
    expected.retain(|_, sum| *sum != 0);
    assert_eq!(world.values().await, expected);
    worker.shut_down(LONG).await.unwrap();
    log.check(&world).await;
    world.assert_nothing_left().await;
}

async fn one_update_per_pass_does_the_same(store: TestStore) {
    let world = World::sums(&store, 3).await;
    let log = Log::new(&world.root);
    for update in 1..=4 {
        let updates = ["a", "b", "c"].map(|key| (key.to_owned(), update));
        world.add_all(updates.to_vec()).await;
    }
    let options = WorkerOptions::new().with_max_batch_bytes(1);
    world.combine(options, &log).await;
    let expected = ["a", "b", "c"].map(|key| (key.to_owned(), (1, Some(10))));
    // Updates are folded one by one, and each key is reported once.
    assert_eq!(log.reports(&world.runner).await, expected.into());
    log.check(&world).await;
    world.assert_nothing_left().await;
}

/// Counts the passes that report changes, in their transactions.
struct Passes(Subspace);

impl ChangeObserver<String, String> for Passes {
    async fn observe<T: Transaction>(
        &self,
        tr: &T,
        _changes: &[Change<String, String>],
    ) -> Result<(), BoxError> {
        tr.atomic(
            MutationOp::Add,
            &self.0.pack(&"passes"),
            &1_u64.to_le_bytes(),
        );
        Ok(())
    }
}

async fn a_pass_goes_as_far_as_its_budget(store: TestStore) {
    const KEYS: usize = 200;
    const VALUE_BYTES: usize = 400;
    const BYTES_PER_PASS: usize = 64 << 10;
    // An update and a value, with all the bytes of a transaction that they take.
    const MAX_BYTES_PER_KEY: usize = 2 << 10;
    let world: World<Option<String>, String> = World::new(&store, 1, LastWriter).await;
    let value = "x".repeat(VALUE_BYTES);
    let updates = (0..KEYS).map(|key| (format!("key {key}"), Some(value.clone())));
    world.add_all(updates.collect()).await;
    let count = world.root.subspace(&"count");
    let options = WorkerOptions::new().with_max_batch_bytes(BYTES_PER_PASS);
    let worker = world.work_with(options, Passes(count.clone())).await;
    world.wait_idle().await;
    worker.shut_down(LONG).await.unwrap();
    assert_eq!(world.values().await.len(), KEYS);

    let count = &world.rows_of(&count).await[0];
    let passes = u64::from_le_bytes(count.value().try_into().unwrap());
    // The last key of a pass may exceed the budget.
    let keys_per_pass = BYTES_PER_PASS / MAX_BYTES_PER_KEY - 1;
    let max_passes = KEYS.div_ceil(keys_per_pass) as u64;
    assert!((2..=max_passes).contains(&passes), "{passes} passes");
}

async fn a_key_at_zero_has_no_value(store: TestStore) {
    let world = World::sums(&store, 1).await;
    let log = Log::new(&world.root);
    for update in [3, -3, 2] {
        world.add("a", update).await;
        world.combine(WorkerOptions::default(), &log).await;
        // A key whose sum is zero has no value.
        let expected = if update == -3 { None } else { Some(update) };
        assert_eq!(world.settled("a").await, expected);
        log.check(&world).await;
    }
    assert_eq!(log.reports(&world.runner).await["a"], (3, Some(2)));
}

async fn exact_values_count_what_is_pending(store: TestStore) {
    let world = World::sums(&store, 2).await;
    world.add("a", 3).await;
    world.add("a", 4).await;
    assert_eq!(world.settled("a").await, None);
    assert_eq!(world.exact("a").await, Some(7));
    assert_eq!(world.exact("b").await, None);
    world
        .combine(WorkerOptions::default(), &Log::new(&world.root))
        .await;
    world.add("a", -7).await;
    assert_eq!(world.settled("a").await, Some(7));
    assert_eq!(world.exact("a").await, None);

    let queue = &world.queue;
    let key = &"a".to_owned();
    let strict = &Exact::new().with_max_bytes(0);
    let read = |tr| async move { queue.exact(&tr, key, strict).await };
    let refused = world.runner.run(read).await.unwrap_err();
    assert!(
        matches!(refused, Error::TooManyPending { limit: 0, .. }),
        "{refused}"
    );
}

async fn waiting_ends_with_the_report(store: TestStore) {
    let world = World::sums(&store, 2).await;
    let worker = world.work(Unobserved).await;
    for update in 1..=20 {
        let stamp = world.add("a", update).await;
        let keys = ["a".to_owned(), "b".to_owned()];
        let settled = world.queue.await_settled(&world.runner, &keys, stamp);
        conformance::timeout(LONG, settled).await.unwrap();
        assert_eq!(world.settled("a").await, Some((1..=update).sum()));
        let stamp = world.add("b", update).await;
        let queue = &world.queue;
        let is_settled = |tr| async move { queue.is_all_settled(&tr, stamp).await };
        until(async || world.runner.run(is_settled).await.unwrap()).await;
        assert_eq!(world.settled("b").await, Some((1..=update).sum()));
    }
    worker.shut_down(LONG).await.unwrap();
}

async fn initialized_values_are_old_values(store: TestStore) {
    let world = World::sums(&store, 2).await;
    let queue = &world.queue;
    let key = &"a".to_owned();
    world.add("a", 1).await;
    let load = |tr| async move { queue.initialize(&tr, key, &40).await };
    world.runner.run(load).await.unwrap();
    assert_eq!(world.exact("a").await, Some(41));
    let again = world.runner.run(load).await.unwrap_err();
    assert!(matches!(again, Error::AlreadyPresent { .. }), "{again}");
    let log = Log::new(&world.root);
    world.combine(WorkerOptions::default(), &log).await;
    assert_eq!(world.settled("a").await, Some(41));
    // The report started with the value that the log does not contain.
    let broken = std::mem::take(&mut *log.broken.lock().unwrap());
    assert_eq!(broken, ["a: None was reported, then Some(40) -> Some(41)"]);
}

async fn values_come_in_pages_of_a_bucket_and_of_all(store: TestStore) {
    let world = World::sums(&store, 5).await;
    let updates = (0..100)
        .map(|key| (format!("key {key}"), key + 1))
        .collect();
    world.add_all(updates).await;
    world
        .combine(WorkerOptions::default(), &Log::new(&world.root))
        .await;
    let queue = &world.queue;
    let mut all = Vec::new();
    let mut last = None::<Bytes>;
    loop {
        let after = last.as_deref();
        let read = |tr| async move { queue.values(&tr, after, 7, Isolation::Snapshot).await };
        let page = world.runner.run(read).await.unwrap();
        let is_last = page.len() < 7;
        last = page.last().map(|listed| listed.id.clone());
        all.extend(page.into_iter().map(|listed| listed.value.unwrap()));
        if is_last {
            break;
        }
    }
    let keys: BTreeSet<_> = all.iter().map(|(key, _)| key.clone()).collect();
    assert_eq!((all.len(), keys.len()), (100, 100));
    let buckets = all.iter().map(|(key, _)| queue.bucket(key).unwrap());
    assert!(buckets.is_sorted());
}

async fn splits_part_the_buckets_of_updates_and_values(store: TestStore) {
    let world = World::sums(&store, 7).await;
    let updates = (0..70).map(|key| (format!("key {key}"), key + 1));
    world.add_all(updates.collect()).await;
    let pending = world.rows("u").await;
    world
        .combine(WorkerOptions::default(), &Log::new(&world.root))
        .await;
    let values = world.rows("v").await;
    for (buckets_per_shard, shards) in [(0, 7), (1, 7), (3, 3), (7, 1), (100, 1)] {
        let splits = world.queue.suggested_splits(buckets_per_shard);
        assert!(splits.is_sorted());
        assert_eq!(splits.len(), 2 * shards);
        let (of_updates, of_values) = splits.split_at(shards);
        for (rows, splits) in [(&pending, of_updates), (&values, of_values)] {
            let mut in_shard = vec![0; shards];
            for row in rows {
                // No key lies before the first shard.
                let shard = splits.partition_point(|split| split[..] <= *row.key()) - 1;
                in_shard[shard] += 1;
            }
            assert!(in_shard.iter().all(|rows| *rows > 0), "{in_shard:?}");
        }
    }
}

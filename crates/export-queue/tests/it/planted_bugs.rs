//! Planted bugs, outside of this crate and inside: with each, the receiver ends up different from the
//! source.

use std::collections::BTreeMap;

use crate::common::{LONG, Receiver, World};
use conformance::chaos::{Chaos, CommitFault, Faults};
use conformance::stores::TestStore;
use export_queue::microqueue::blocks::EntryId;
use export_queue::{
    BoxError, Error, Exporter, SEQUENCE_BYTES, SequencedExport, Start, WorkerOptions, async_trait,
};
use keyspace::{
    Database, Environment, OwnedTransaction, RunOptions, Runner, Transaction, Versionstamp,
};

conformance::on_every_store!(threads:
    sequences_are_in_commit_order_and_read_versions_are_not,
    exporting_before_the_commit_exports_uncommitted_entries,
    coalescing_must_keep_the_newest,
    a_deletion_without_a_tombstone_is_undone_by_a_repetition,
    a_trim_past_the_slowest_subscription_loses_entries,
    a_trim_of_a_block_that_a_subscription_is_inside_of_loses_entries,
);

type Export = SequencedExport<String, Option<i64>>;

/// Changes each batch before the receiver gets it.
struct Altering<F> {
    alter: F,
    receiver: Receiver,
}

#[async_trait]
impl<F> Exporter<String, Option<i64>> for Altering<F>
where
    F: Fn(Vec<Export>) -> Vec<Export> + Send + Sync + 'static,
{
    async fn export(&self, batch: &[Export]) -> Result<(), BoxError> {
        self.receiver.receive(&(self.alter)(batch.to_vec()));
        Ok(())
    }
}

/// Exports everything with a worker that alters the batches. Returns the final contents of the receiver.
async fn export(
    world: &World,
    alter: impl Fn(Vec<Export>) -> Vec<Export> + Send + Sync + 'static,
) -> BTreeMap<String, i64> {
    let receiver = Receiver::default();
    let altering = Altering {
        alter,
        receiver: receiver.clone(),
    };
    let worker = world.work(WorkerOptions::default(), altering).await;
    world.wait_idle().await;
    worker.shut_down(LONG).await.unwrap();
    receiver.values()
}

/// The transaction that reads first commits last. Its value is the newer one, although its read version
/// is the older one.
async fn sequences_are_in_commit_order_and_read_versions_are_not(store: TestStore) {
    let mut ends = Vec::new();
    for is_planted in [false, true] {
        let world = World::new(&store, 1).await;
        let db = world.runner.database();
        let mut slow = db.begin().unwrap();
        let mut quick = db.begin().unwrap();
        let mut versions = BTreeMap::new();
        versions.insert(Some(2), slow.read_version().await.unwrap());
        // Another commit in between makes the versions differ.
        world.add("other", 0).await;
        versions.insert(Some(1), quick.read_version().await.unwrap());
        let key = "key".to_owned();
        world.queue.add(&quick, &key, &Some(1)).await.unwrap();
        world.queue.add(&slow, &key, &Some(2)).await.unwrap();
        quick.commit().await.unwrap();
        slow.commit().await.unwrap();
        let by_read_version = move |mut batch: Vec<Export>| {
            for export in batch
                .iter_mut()
                .filter(|export| export.key == "key" && is_planted)
            {
                let stamp = Versionstamp::new(versions[&export.value], 0);
                let bytes = [stamp.as_bytes().as_slice(), &[0; 10]].concat();
                export.sequence = (&bytes[..]).try_into().unwrap();
            }
            batch
        };
        ends.push(export(&world, by_read_version).await["key"]);
    }
    assert_eq!(ends, [2, 1]);
}

async fn exporting_before_the_commit_exports_uncommitted_entries(store: TestStore) {
    let store = store.fresh();
    let chaos = Chaos::new(store.db.clone(), Environment::system(), Faults::default());
    let options = RunOptions::default().with_ledger_subspace(store.root.subspace(&"ledgers"));
    let runner = Runner::with_options(chaos.clone(), options);
    let world = World::on(runner, &store, crate::common::settings(1)).await;
    let once = RunOptions::default()
        .with_exactly_once(false)
        .with_attempt_limit(1);
    let hasty = Runner::with_options(chaos.clone(), once);
    let early = Receiver::default();
    let receiver = Receiver::default();
    for value in 0..4 {
        let queue = &world.queue;
        let early = &early;
        let key = &format!("key {value}");
        let add = |tr| async move {
            queue.add(&tr, key, &Some(value)).await?;
            // The bug: it is not known yet whether this transaction commits.
            let sequence = "0".repeat(2 * SEQUENCE_BYTES).parse().unwrap();
            early.receive(&[Export::new(key.clone(), Some(value), sequence)]);
            Ok::<_, Error>(())
        };
        if value % 2 == 0 {
            world.runner.run(add).await.unwrap();
        } else {
            chaos.script([CommitFault::NotCommitted]);
            hasty.run(add).await.unwrap_err();
        }
    }
    let worker = world.work(WorkerOptions::default(), receiver.clone()).await;
    world.wait_idle().await;
    worker.shut_down(LONG).await.unwrap();
    let committed = [0, 2].map(|value| (format!("key {value}"), value));
    assert_eq!(receiver.values(), committed.into());
    assert_ne!(early.values(), receiver.values());
}

async fn coalescing_must_keep_the_newest(store: TestStore) {
    let mut ends = Vec::new();
    for is_planted in [false, true] {
        let world = World::new(&store, 1).await;
        for value in 1..=3 {
            world.add("key", value).await;
        }
        let coalesce = move |mut batch: Vec<Export>| {
            if !is_planted {
                batch.reverse();
            }
            batch.dedup_by(|one, other| one.key == other.key);
            batch
        };
        ends.push(export(&world, coalesce).await["key"]);
    }
    assert_eq!(ends, [3, 1]);
    let world = World::new(&store, 1).await;
    for value in 1..=3 {
        world.add("key", value).await;
    }
    let receiver = Receiver::default();
    let options = WorkerOptions::new().with_coalesce(true);
    let worker = world.work(options, receiver.clone()).await;
    world.wait_idle().await;
    worker.shut_down(LONG).await.unwrap();
    assert_eq!(receiver.values()["key"], 3);
}

async fn a_deletion_without_a_tombstone_is_undone_by_a_repetition(store: TestStore) {
    let world = World::new(&store, 1).await;
    world.add("key", 1).await;
    world.add_all(vec![("key".to_owned(), None)]).await;
    let receiver = Receiver::default();
    world.export(&world.reader, &receiver).await;
    // The first batch arrives again and late, as from an exporter whose worker is gone.
    let repeated = &receiver.all()[..1];
    receiver.receive(repeated);
    assert_eq!(receiver.values(), BTreeMap::new());

    // The bug: a deleted key is forgotten together with its sequence.
    let mut rows = BTreeMap::new();
    for export in receiver.all() {
        let is_newer = |held: &(_, Option<i64>)| export.sequence > held.0;
        if rows.get(&export.key).is_none_or(is_newer) {
            match export.value {
                Some(_) => rows.insert(export.key, (export.sequence, export.value)),
                None => rows.remove(&export.key),
            };
        }
    }
    assert_eq!(rows.len(), 1);
}

async fn a_trim_past_the_slowest_subscription_loses_entries(store: TestStore) {
    let mut ends = Vec::new();
    for is_planted in [false, true] {
        let world = World::new(&store, 1).await;
        let slow = world.subscribe("slow", Start::Oldest).await;
        world.add("first", 1).await;
        world.export(&world.reader, &Receiver::default()).await;
        if is_planted {
            // The bug: it clears the entries that only this subscription has passed.
            let entries = world.queue.subspace().subspace(&"e");
            let (begin, end) = &entries.range();
            let trim = |tr: keyspace::Tx<_>| async move {
                tr.clear_range(begin, end);
                Ok::<_, Error>(())
            };
            world.runner.run(trim).await.unwrap();
        }
        world.add("second", 2).await;
        let receiver = Receiver::default();
        world.export(&slow, &receiver).await;
        ends.push(receiver.values().len());
    }
    assert_eq!(ends, [2, 1]);
}

async fn a_trim_of_a_block_that_a_subscription_is_inside_of_loses_entries(store: TestStore) {
    let mut ends = Vec::new();
    for is_planted in [false, true] {
        let world = World::new(&store, 1).await;
        let slow = world.subscribe("slow", Start::Oldest).await;
        let entry = |value: i64| (format!("key {value}"), Some(value));
        world.add_all((0..10).map(entry).collect()).await;
        world.export(&world.reader, &Receiver::default()).await;
        let block = world.position("reader", 0).await.unwrap();
        // The slow subscription has exported the first four entries.
        let inside = EntryId { index: 3, ..block };
        let position = [&[1][..], &inside.to_bytes()].concat();
        let key = world.queue.subspace().pack(&("p", "slow", 0));
        world.set(&key, &position).await;
        world.add("last", 10).await;
        if is_planted {
            // The bug: it also clears the block that contains the slowest position.
            let row = &world.rows("e").await[0].to_key();
            let trim = |tr: keyspace::Tx<_>| async move {
                tr.clear(row);
                Ok::<_, Error>(())
            };
            world.runner.run(trim).await.unwrap();
        }
        world.export(&world.reader, &Receiver::default()).await;
        let receiver = Receiver::default();
        world.export(&slow, &receiver).await;
        ends.push(receiver.values().len());
    }
    assert_eq!(ends, [7, 1]);
}

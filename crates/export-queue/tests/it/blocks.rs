//! Positions inside blocks: which entries of a block a subscription has exported, and what happens to the
//! others.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use crate::common::{LONG, Reader, Receiver, World, no_backoff};
use conformance::stores::TestStore;
use export_queue::microqueue::blocks::{EntryId, WHOLE_BLOCK};
use export_queue::{
    BoxError, Error, Exporter, Sequence, SequencedExport, Start, WorkerOptions, async_trait,
};
use keyspace::Versionstamp;

conformance::on_every_store!(threads:
    two_subscriptions_stand_at_places_of_their_own_in_a_block,
    batches_end_and_begin_inside_of_blocks,
    one_bad_entry_is_found_in_a_block_of_a_hundred,
    coalescing_takes_the_newest_of_each_key_in_the_part_of_a_block,
    a_broken_block_is_a_dead_letter_and_its_bucket_goes_on,
    a_broken_block_is_exported_once_it_decodes,
    a_block_that_was_exported_in_part_is_redriven_from_there_on,
    a_position_past_the_end_of_a_block_is_after_the_block,
    a_position_inside_of_a_block_that_is_gone_is_before_the_next_one,
);

type Batch = [SequencedExport<String, Option<i64>>];

/// Entries of different keys, which fit one block as long as there are not too many.
fn entries(range: std::ops::Range<i64>) -> Vec<(String, Option<i64>)> {
    range.map(|n| (format!("key {n}"), Some(n))).collect()
}

/// Exports values below a limit and refuses the others.
#[derive(Clone)]
struct Below {
    end: Arc<AtomicI64>,
    receiver: Receiver,
    refused: Arc<tokio::sync::Notify>,
}

#[async_trait]
impl Exporter<String, Option<i64>> for Below {
    async fn export(&self, batch: &Batch) -> Result<(), BoxError> {
        let end = Some(self.end.load(Ordering::Relaxed));
        if batch.iter().any(|export| export.value >= end) {
            self.refused.notify_one();
            return Err("not yet".into());
        }
        self.receiver.receive(batch);
        Ok(())
    }
}

fn one_by_one() -> WorkerOptions {
    WorkerOptions::new()
        .with_backoff(no_backoff())
        .with_max_batch_bytes(1)
}

/// Exports values below a limit, one by one.
async fn export_below(world: &World, reader: &Reader, end: i64, receiver: &Receiver) {
    let below = Below {
        end: Arc::new(end.into()),
        receiver: receiver.clone(),
        refused: Arc::default(),
    };
    let worker = reader
        .work(&world.runner, one_by_one(), below.clone())
        .await
        .unwrap();
    conformance::timeout(LONG, below.refused.notified()).await;
    worker.shut_down(LONG).await.unwrap();
}

fn exported(receiver: &Receiver) -> Vec<i64> {
    let all = receiver.all().into_iter();
    all.filter_map(|export| export.value).collect()
}

async fn two_subscriptions_stand_at_places_of_their_own_in_a_block(store: TestStore) {
    let world = World::new(&store, 1).await;
    let quick = &world.reader;
    let slow = &world.subscribe("slow", Start::Oldest).await;
    let first = Receiver::default();
    let second = Receiver::default();
    let stamp = world.add_all(entries(0..10)).await;
    world.add_all(entries(10..20)).await;
    export_below(&world, quick, 7, &first).await;
    export_below(&world, slow, 3, &second).await;
    for (name, reader, next) in [("reader", quick, 7), ("slow", slow, 3)] {
        let position = world.position(name, 0).await.unwrap();
        assert_eq!((position.versionstamp, position.index), (stamp, next - 1));
        let pending = world.pending(reader, 0).await;
        assert_eq!(pending.count, usize::from(20 - next));
    }
    assert_eq!(world.rows("e").await.len(), 2);

    // The fast subscription has exported all of the first block, but the slow one still needs it.
    export_below(&world, quick, 10, &first).await;
    let position = world.position("reader", 0).await.unwrap();
    assert_eq!(
        (position.versionstamp, position.index),
        (stamp, WHOLE_BLOCK)
    );
    assert_eq!(world.pending(quick, 0).await.count, 10);
    export_below(&world, quick, 15, &first).await;
    assert_eq!(world.rows("e").await.len(), 2);

    // The slow subscription passes the first block, and the position of the fast one is inside the
    // second.
    export_below(&world, slow, 10, &second).await;
    assert_eq!(world.rows("e").await.len(), 1);
    world.export(slow, &second).await;
    assert_eq!(world.rows("e").await.len(), 1);
    world.export(quick, &first).await;
    world.assert_nothing_left().await;
    let all: Vec<_> = (0..20).collect();
    assert_eq!(exported(&first), all);
    // The entries of one call come sorted by key.
    let second: BTreeSet<_> = exported(&second).into_iter().collect();
    assert_eq!(second, all.into_iter().collect());
}

async fn batches_end_and_begin_inside_of_blocks(store: TestStore) {
    let world = World::new(&store, 1).await;
    let receiver = Receiver::default();
    for begin in [0, 10, 20, 30] {
        world.add_all(entries(begin..begin + 10)).await;
    }
    // An entry takes about 27 bytes.
    let options = WorkerOptions::new().with_max_batch_bytes(200);
    let worker = world.work(options, receiver.clone()).await;
    world.wait_idle().await;
    worker.shut_down(LONG).await.unwrap();
    let calls = receiver.calls();
    let values = |call: &Vec<SequencedExport<_, Option<i64>>>| -> BTreeSet<_> {
        call.iter().filter_map(|export| export.value).collect()
    };
    assert!(calls.iter().any(|call| call.len() < 10));
    let crosses = |values: BTreeSet<_>| values.contains(&9) && values.contains(&10);
    assert!(calls.iter().map(values).any(crosses), "{calls:?}");
    let in_order: Vec<_> = calls.iter().flat_map(values).collect();
    assert_eq!(in_order, (0..40).collect::<Vec<_>>());
    world.assert_nothing_left().await;
}

/// Refuses batches that contain a value.
struct Refuses {
    value: i64,
    receiver: Receiver,
}

#[async_trait]
impl Exporter<String, Option<i64>> for Refuses {
    async fn export(&self, batch: &Batch) -> Result<(), BoxError> {
        if batch.iter().any(|export| export.value == Some(self.value)) {
            return Err("refused".into());
        }
        self.receiver.receive(batch);
        Ok(())
    }
}

async fn one_bad_entry_is_found_in_a_block_of_a_hundred(store: TestStore) {
    let world = World::new(&store, 1).await;
    let receiver = Receiver::default();
    let stamp = world.add_all(entries(0..100)).await;
    assert_eq!(world.rows("e").await.len(), 1);
    let options = WorkerOptions::new()
        .with_backoff(no_backoff())
        .with_dead_letter_after(2);
    let refuses = Refuses {
        value: 57,
        receiver: receiver.clone(),
    };
    let worker = world.work(options, refuses).await;
    world.wait_idle().await;
    worker.shut_down(LONG).await.unwrap();
    let mut expected: BTreeSet<_> = (0..100).collect();
    expected.remove(&57);
    assert_eq!(receiver.all().len(), 99);
    assert_eq!(
        exported(&receiver).into_iter().collect::<BTreeSet<_>>(),
        expected
    );
    let letters = world.letters().await;
    assert_eq!(letters.len(), 1);
    let sequence = letters[0].id;
    let letter = letters[0].value.as_ref().unwrap();
    assert_eq!((letter.failures, &letter.reason[..]), (2, "refused"));
    assert_eq!(sequence.versionstamp(), stamp);
    assert_eq!(sequence.to_bytes()[18..], [0, 57]);
    assert_eq!(world.rows("e").await, []);
    // It is exported with the sequence that it had in its block.
    let redriven = world.reader.redrive(&world.runner, &receiver, &sequence);
    assert!(redriven.await.unwrap());
    let last = receiver.all().pop().unwrap();
    assert_eq!((last.value, last.sequence), (Some(57), sequence));
}

async fn coalescing_takes_the_newest_of_each_key_in_the_part_of_a_block(store: TestStore) {
    let world = World::new(&store, 1).await;
    let receiver = Receiver::default();
    let of_five = |n: i64| (format!("key {}", n % 5), Some(n));
    world.add_all((0..50).map(of_five).collect()).await;
    assert_eq!(world.rows("e").await.len(), 1);
    // Ten entries of 27 bytes in each batch.
    let options = WorkerOptions::new()
        .with_coalesce(true)
        .with_max_batch_bytes(275);
    let worker = world.work(options, receiver.clone()).await;
    world.wait_idle().await;
    worker.shut_down(LONG).await.unwrap();
    let newest: BTreeMap<_, _> = (45..50).map(|n| (format!("key {}", n % 5), n)).collect();
    assert_eq!(receiver.values(), newest);
    let calls = receiver.calls();
    assert!((2..25).contains(&calls.len()), "{calls:?}");
    assert!(calls.iter().all(|call| call.len() == 5), "{calls:?}");
    world.assert_nothing_left().await;
}

async fn a_broken_block_is_a_dead_letter_and_its_bucket_goes_on(store: TestStore) {
    let world = World::new(&store, 1).await;
    let receiver = Receiver::default();
    let mut good = Vec::new();
    let broken: [&[u8]; 6] = [
        b"",
        b"no block",
        b"\0\x01\0\x01\0\0",
        b"\x01\x01\0\0",
        // A count that is too large, and one that is too small.
        b"\x01\x01\0\x02\0\0",
        b"\x01\x01\0\x01\0\0\0\0",
    ];
    for (begin, bytes) in (0..).step_by(10).zip(broken) {
        world.add_all(entries(begin..begin + 3)).await;
        world.add_all(entries(begin + 3..begin + 6)).await;
        good.extend(begin..begin + 3);
        let last = world.rows("e").await.pop().unwrap().to_key();
        world.set(&last, bytes).await;
    }
    // As large as a value of the store can be.
    world.add("large", 100).await;
    let last = world.rows("e").await.pop().unwrap().to_key();
    world.set(&last, &[b'x'; 100_000]).await;
    let worker = world.work(one_by_one(), receiver.clone()).await;
    world.wait_idle().await;
    worker.shut_down(LONG).await.unwrap();
    assert_eq!(exported(&receiver), good);
    assert_eq!(world.rows("e").await, []);
    let letters = world.letters().await;
    assert_eq!(letters.len(), broken.len() + 1);
    let rows = world.rows("d").await;
    for (number, (listed, row)) in letters.iter().zip(&rows).enumerate() {
        let letter = listed.value.as_ref().unwrap();
        assert_eq!(letter.failures, 0);
        assert!(letter.reason.contains("expected a block"), "{letter:?}");
        assert!(listed.id.is_of_block());
        if let Some(bytes) = broken.get(number) {
            assert!(row.value().ends_with(bytes));
        }
        let redriven = world.reader.redrive(&world.runner, &receiver, &listed.id);
        match redriven.await {
            Err(Error::Keyspace(keyspace::Error::Corrupt { key, .. })) => {
                assert_eq!(key, row.key());
            }
            other => panic!("{other:?}"),
        }
    }
    for listed in &letters {
        let reader = &world.reader;
        let purge = |tr| async move { reader.purge(&tr, &listed.id).await };
        assert!(world.runner.run(purge).await.unwrap());
    }
    world.assert_nothing_left().await;
}

async fn a_broken_block_is_exported_once_it_decodes(store: TestStore) {
    let world = World::new(&store, 1).await;
    let receiver = Receiver::default();
    let pairs = [("b", 0), ("a", 1), ("b", 2)].map(|(key, value)| (key.to_owned(), Some(value)));
    let stamp = world.add_all(pairs.to_vec()).await;
    let row = world.rows("e").await.pop().unwrap();
    world.set(row.key(), b"no block").await;
    world.export(&world.reader, &receiver).await;
    assert_eq!(receiver.all(), []);
    // As with a version that knows the format of the block.
    let letter = world.rows("d").await.pop().unwrap();
    let record = [b"\x01\0\0\0\0\x03why\0\0", row.value()].concat();
    world.set(letter.key(), &record).await;
    let id = world.letters().await[0].id;
    let redriven = world.reader.redrive(&world.runner, &receiver, &id);
    assert!(redriven.await.unwrap());
    let calls = receiver.calls();
    let [call] = &calls[..] else {
        panic!("{calls:?}");
    };
    assert_eq!(exported(&receiver), [1, 0, 2]);
    for export in call {
        assert_eq!(export.sequence.versionstamp(), stamp);
        let index = u16::try_from(export.value.unwrap()).unwrap();
        assert_eq!(export.sequence.to_bytes()[18..], index.to_be_bytes());
    }
    world.assert_nothing_left().await;
}

/// Sets a position of the subscription.
async fn set_position(world: &World, id: EntryId) {
    let key = world.queue.subspace().pack(&("p", "reader", 0));
    let record = [&[1][..], &id.to_bytes()].concat();
    world.set(&key, &record).await;
}

async fn a_position_past_the_end_of_a_block_is_after_the_block(store: TestStore) {
    for (index, others) in [(10, 0..0), (50, 10..20), (WHOLE_BLOCK - 1, 10..11)] {
        let world = World::new(&store, 1).await;
        let receiver = Receiver::default();
        world.add_all(entries(0..10)).await;
        export_below(&world, &world.reader, 1, &receiver).await;
        let first = world.position("reader", 0).await.unwrap();
        assert_eq!(first.index, 0);
        if !others.is_empty() {
            world.add_all(entries(others.clone())).await;
        }
        set_position(&world, EntryId { index, ..first }).await;
        let left = others.clone().count();
        assert_eq!(world.pending(&world.reader, 0).await.count, left);
        world.export(&world.reader, &receiver).await;
        let expected: BTreeSet<_> = others.chain([0]).collect();
        let found: BTreeSet<_> = exported(&receiver).into_iter().collect();
        assert_eq!(found, expected, "{index}");
        world.assert_nothing_left().await;
        let position = world.position("reader", 0).await.unwrap();
        assert_eq!(position.index, WHOLE_BLOCK);
    }
}

async fn a_position_inside_of_a_block_that_is_gone_is_before_the_next_one(store: TestStore) {
    let world = World::new(&store, 1).await;
    let receiver = Receiver::default();
    world.add_all(entries(0..10)).await;
    let id = EntryId {
        versionstamp: Versionstamp::new(0, 0),
        call: 0,
        index: 5,
    };
    set_position(&world, id).await;
    assert_eq!(world.pending(&world.reader, 0).await.count, 10);
    world.export(&world.reader, &receiver).await;
    assert_eq!(receiver.all().len(), 10);
    let first: Option<Sequence> = receiver.all().first().map(|export| export.sequence);
    assert!(first > Some(Sequence::after_version(0)));
    world.assert_nothing_left().await;
}

async fn a_block_that_was_exported_in_part_is_redriven_from_there_on(store: TestStore) {
    for exported_before in [1, 2] {
        let world = World::new(&store, 1).await;
        let receiver = Receiver::default();
        world.add_all(entries(0..3)).await;
        let row = world.rows("e").await.pop().unwrap();
        let (stamp, call): (keyspace::tuple::Versionstamp, u64) = world
            .queue
            .subspace()
            .subspace(&("e", 0))
            .unpack(row.key())
            .unwrap();
        let position = EntryId {
            versionstamp: Versionstamp::from_bytes(stamp.transaction_version().try_into().unwrap()),
            call,
            index: exported_before - 1,
        };
        let record = [&b"\x01"[..], &position.to_bytes()].concat();
        world
            .set(&world.queue.subspace().pack(&("p", "reader", 0)), &record)
            .await;
        world.set(row.key(), b"no block").await;
        world.export(&world.reader, &receiver).await;
        let listed = world.letters().await.remove(0);
        assert_eq!(listed.value.unwrap().exported, exported_before);
        let letter = world.rows("d").await.pop().unwrap();
        let prefix = letter.value().strip_suffix(b"no block").unwrap();
        // A block that is too short for what was exported stays a dead letter.
        world
            .set(letter.key(), &[prefix, b"\x01\x01\0\x01\0\0"].concat())
            .await;
        let redriven = world.reader.redrive(&world.runner, &receiver, &listed.id);
        let refused = redriven.await.unwrap_err();
        assert!(refused.to_string().contains("failed"), "{refused}");
        world
            .set(letter.key(), &[prefix, row.value()].concat())
            .await;
        let redriven = world.reader.redrive(&world.runner, &receiver, &listed.id);
        assert!(redriven.await.unwrap());
        let rest: Vec<_> = (i64::from(exported_before)..3).collect();
        assert_eq!(exported(&receiver), rest);
        let redriven = world.reader.redrive(&world.runner, &receiver, &listed.id);
        assert!(!redriven.await.unwrap());
        world.assert_nothing_left().await;
    }
}

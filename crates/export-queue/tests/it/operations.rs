//! The operations, one by one.

use std::collections::{BTreeMap, BTreeSet};

use crate::common::{LONG, Receiver, World, no_backoff};
use conformance::stores::TestStore;
use export_queue::{BoxError, Error, Exporter, SequencedExport, Start, WorkerOptions, async_trait};

conformance::on_every_store!(threads:
    a_queue_writes_the_rows_of_the_schema,
    entries_leave_in_commit_order_key_by_key,
    small_batches_lose_nothing,
    subscriptions_have_positions_of_their_own,
    one_that_begins_now_sees_nothing_older,
    only_entries_that_all_subscriptions_have_passed_are_trimmed,
    a_subscription_that_is_removed_holds_nothing_back,
    a_pause_keeps_entries_until_it_ends,
    coalescing_exports_the_newest_of_each_key,
    an_entry_that_fails_is_isolated_and_becomes_a_dead_letter,
    without_a_limit_an_entry_that_fails_is_tried_until_it_works,
    dead_letters_can_be_redriven_and_purged,
);

fn entries(range: std::ops::Range<i64>) -> Vec<(String, Option<i64>)> {
    range.map(|n| (format!("key {}", n % 5), Some(n))).collect()
}

async fn a_queue_writes_the_rows_of_the_schema(store: TestStore) {
    let world = World::new(&store, 1).await;
    let subspace = world.queue.subspace();
    let reader = &world.reader;
    let stamp = world
        .add_all(vec![("a".to_owned(), Some(1)), ("b".to_owned(), None)])
        .await;
    let block = world.rows("e").await.pop().unwrap();
    let log = subspace.subspace(&("e", 0)).into_bytes();
    assert!(
        block
            .key()
            .starts_with(&[&log[..], b"\x33", stamp.as_bytes()].concat())
    );
    assert_eq!(
        block.value(),
        b"\x01\x01\0\x02\x02\x01\xa1a\x01\x02\x01\xa1b\xc0"
    );
    assert_eq!(
        world.get(&subspace.pack(&"w")).await.unwrap(),
        stamp.as_bytes()[..]
    );
    let pause = |tr| async move {
        reader.pause(&tr);
        Ok::<_, Error>(())
    };
    world.runner.run(pause).await.unwrap();
    assert_eq!(
        world.get(&subspace.pack(&("o", "reader"))).await.unwrap(),
        b""[..]
    );
    // The settings are the third part, and there are no others.
    let (begin, end) = subspace.range();
    assert_eq!(world.rows_between(begin, end).await.len(), 4);
}

async fn entries_leave_in_commit_order_key_by_key(store: TestStore) {
    let world = World::new(&store, 4).await;
    let receiver = Receiver::default();
    let mut stamps = BTreeMap::new();
    for round in 0..10 {
        let entries = entries(10 * round..10 * (round + 1));
        let stamp = world.add_all(entries.clone()).await;
        stamps.extend(entries.into_iter().map(|(_, value)| (value, stamp)));
    }
    let worker = world.work(WorkerOptions::default(), receiver.clone()).await;
    world.wait_idle().await;
    worker.shut_down(LONG).await.unwrap();
    let all = receiver.all();
    assert_eq!(all.len(), 100);
    let mut last = BTreeMap::new();
    for export in &all {
        // The sequence is that of the commit, and within a commit the order is that of the calls.
        assert_eq!(export.sequence.versionstamp(), stamps[&export.value]);
        let before = last.insert(&export.key, (export.sequence, export.value));
        assert!(before < Some((export.sequence, export.value)));
    }
    for call in receiver.calls() {
        let mut keys: Vec<_> = call.iter().map(|export| &export.key).collect();
        keys.dedup();
        let distinct: BTreeSet<_> = keys.iter().collect();
        assert_eq!(
            keys.len(),
            distinct.len(),
            "entries of a key are consecutive"
        );
    }
    world.assert_nothing_left().await;
}

async fn small_batches_lose_nothing(store: TestStore) {
    let world = World::new(&store, 2).await;
    let receiver = Receiver::default();
    world.add_all(entries(0..50)).await;
    let options = WorkerOptions::new().with_max_batch_bytes(1);
    let worker = world.work(options, receiver.clone()).await;
    world.wait_idle().await;
    worker.shut_down(LONG).await.unwrap();
    assert!(receiver.calls().iter().all(|call| call.len() == 1));
    assert_eq!(receiver.all().len(), 50);
    world.assert_nothing_left().await;
}

async fn subscriptions_have_positions_of_their_own(store: TestStore) {
    let world = World::new(&store, 3).await;
    let other = world.subscribe("other", Start::Oldest).await;
    let first = Receiver::default();
    let second = Receiver::default();
    world.add_all(entries(0..20)).await;
    world.export(&world.reader, &first).await;
    assert_eq!(first.all().len(), 20);
    world.add_all(entries(20..30)).await;
    // The other subscription gets all entries, although the first one has passed them.
    world.export(&other, &second).await;
    assert_eq!(second.all().len(), 30);
    world.export(&world.reader, &first).await;
    assert_eq!(first.all().len(), 30);
    assert_eq!(first.values(), second.values());
    world.assert_nothing_left().await;
}

async fn one_that_begins_now_sees_nothing_older(store: TestStore) {
    let world = World::new(&store, 3).await;
    world.add_all(entries(0..20)).await;
    let late = world.subscribe("late", Start::Now).await;
    world.add_all(entries(20..30)).await;
    let first = Receiver::default();
    let second = Receiver::default();
    world.export(&late, &second).await;
    let values: BTreeSet<_> = second.all().iter().map(|export| export.value).collect();
    assert_eq!(values, (20..30).map(Some).collect());
    world.export(&world.reader, &first).await;
    assert_eq!(first.all().len(), 30);
    // The start matters only when the subscription is created.
    let again = world.subscribe("late", Start::Oldest).await;
    world.export(&again, &second).await;
    assert_eq!(second.all().len(), 10);
}

async fn only_entries_that_all_subscriptions_have_passed_are_trimmed(store: TestStore) {
    let world = World::new(&store, 1).await;
    let slow = world.subscribe("slow", Start::Oldest).await;
    let receiver = Receiver::default();
    world.add_all(entries(0..20)).await;
    world.export(&world.reader, &receiver).await;
    assert_eq!(world.logged().await, 20);
    world.export(&slow, &Receiver::default()).await;
    assert_eq!(world.rows("e").await, []);
    world.add_all(entries(20..25)).await;
    world.export(&slow, &Receiver::default()).await;
    world.add_all(entries(25..30)).await;
    world.export(&slow, &Receiver::default()).await;
    assert_eq!(world.logged().await, 10);
    world.export(&world.reader, &receiver).await;
    assert_eq!(receiver.all().len(), 30);
    assert_eq!(world.rows("e").await, []);
}

async fn a_subscription_that_is_removed_holds_nothing_back(store: TestStore) {
    let world = World::new(&store, 2).await;
    world.subscribe("unused", Start::Oldest).await;
    world.add_all(entries(0..20)).await;
    let receiver = Receiver::default();
    world.export(&world.reader, &receiver).await;
    assert_eq!(world.logged().await, 20);
    let queue = &world.queue;
    let remove = |tr| async move { queue.unsubscribe(&tr, "unused").await };
    assert!(world.runner.run(remove).await.unwrap());
    assert!(!world.runner.run(remove).await.unwrap());
    let names = |tr| async move { queue.subscriptions(&tr).await };
    assert_eq!(world.runner.run(names).await.unwrap(), ["reader"]);
    // Each bucket is cleared with its next batch.
    world.add_all(entries(20..30)).await;
    world.export(&world.reader, &receiver).await;
    assert_eq!(receiver.all().len(), 30);
    world.assert_nothing_left().await;
}

async fn a_pause_keeps_entries_until_it_ends(store: TestStore) {
    let world = World::new(&store, 2).await;
    let reader = &world.reader;
    let receiver = Receiver::default();
    let pause = |tr| async move {
        reader.pause(&tr);
        Ok::<_, Error>(())
    };
    world.runner.run(pause).await.unwrap();
    let worker = world.work(WorkerOptions::default(), receiver.clone()).await;
    world.add_all(entries(0..20)).await;
    // Another subscription shows that there was enough time.
    let other = world.subscribe("other", Start::Oldest).await;
    world.export(&other, &Receiver::default()).await;
    assert_eq!(receiver.all(), []);
    let resume = |tr| async move {
        reader.resume(&tr);
        Ok::<_, Error>(())
    };
    world.runner.run(resume).await.unwrap();
    world.wait_idle().await;
    worker.shut_down(LONG).await.unwrap();
    assert_eq!(receiver.all().len(), 20);
}

async fn coalescing_exports_the_newest_of_each_key(store: TestStore) {
    let world = World::new(&store, 1).await;
    let receiver = Receiver::default();
    world.add_all(entries(0..50)).await;
    let options = WorkerOptions::new().with_coalesce(true);
    let worker = world.work(options, receiver.clone()).await;
    world.wait_idle().await;
    worker.shut_down(LONG).await.unwrap();
    let newest = (45..50).map(|n| (format!("key {}", n % 5), n)).collect();
    assert_eq!(receiver.values(), newest);
    assert_eq!(receiver.all().len(), 5);
    world.assert_nothing_left().await;
}

/// Refuses batches that contain certain values.
struct Picky {
    refused: BTreeSet<i64>,
    receiver: Receiver,
    /// The largest number of refusals.
    times: std::sync::Mutex<u32>,
}

#[async_trait]
impl Exporter<String, Option<i64>> for Picky {
    async fn export(&self, batch: &[SequencedExport<String, Option<i64>>]) -> Result<(), BoxError> {
        let is_refused = |export: &SequencedExport<_, Option<i64>>| {
            export
                .value
                .is_some_and(|value| self.refused.contains(&value))
        };
        if batch.iter().any(is_refused) {
            let mut times = self.times.lock().unwrap();
            if *times > 0 {
                *times -= 1;
                return Err("refused on purpose".into());
            }
        }
        self.receiver.receive(batch);
        Ok(())
    }
}

fn picky(refused: &[i64], times: u32, receiver: &Receiver) -> Picky {
    Picky {
        refused: refused.iter().copied().collect(),
        receiver: receiver.clone(),
        times: times.into(),
    }
}

async fn an_entry_that_fails_is_isolated_and_becomes_a_dead_letter(store: TestStore) {
    let world = World::new(&store, 1).await;
    let receiver = Receiver::default();
    world.add_all(entries(0..64)).await;
    let options = WorkerOptions::new()
        .with_backoff(no_backoff())
        .with_dead_letter_after(3);
    let worker = world
        .work(options, picky(&[17, 18, 63], u32::MAX, &receiver))
        .await;
    world.wait_idle().await;
    worker.shut_down(LONG).await.unwrap();
    let exported: BTreeSet<_> = receiver
        .all()
        .iter()
        .filter_map(|export| export.value)
        .collect();
    assert_eq!(
        exported,
        (0..64).filter(|n| ![17, 18, 63].contains(n)).collect()
    );
    // No entry that was written came again, since this exporter refuses batches as a whole.
    assert_eq!(receiver.all().len(), 61);
    let reader = &world.reader;
    let read = |tr| async move { reader.dead_letters(&tr, None, 10).await };
    let letters = world.runner.run(read).await.unwrap();
    assert_eq!(letters.len(), 3);
    for letter in letters {
        let letter = letter.value.unwrap();
        assert_eq!(
            (letter.failures, &letter.reason[..]),
            (3, "refused on purpose")
        );
    }
}

async fn without_a_limit_an_entry_that_fails_is_tried_until_it_works(store: TestStore) {
    let world = World::new(&store, 1).await;
    let receiver = Receiver::default();
    world.add_all(entries(0..20)).await;
    let options = WorkerOptions::new().with_backoff(no_backoff());
    let worker = world.work(options, picky(&[7], 30, &receiver)).await;
    world.wait_idle().await;
    worker.shut_down(LONG).await.unwrap();
    assert_eq!(receiver.all().len(), 20);
    world.assert_nothing_left().await;
}

async fn dead_letters_can_be_redriven_and_purged(store: TestStore) {
    let world = World::new(&store, 1).await;
    let receiver = Receiver::default();
    world.add_all(entries(0..10)).await;
    let options = WorkerOptions::new()
        .with_backoff(no_backoff())
        .with_dead_letter_after(1);
    let worker = world
        .work(options, picky(&[1, 2, 3], u32::MAX, &receiver))
        .await;
    world.wait_idle().await;
    worker.shut_down(LONG).await.unwrap();
    let reader = &world.reader;
    let letters = |tr| async move { reader.dead_letters(&tr, None, 10).await };
    let all = world.runner.run(letters).await.unwrap();
    let [first, second, third] = &all[..] else {
        panic!("{all:?}");
    };
    let page = |tr| async move { reader.dead_letters(&tr, Some(first.id), 1).await };
    assert_eq!(
        &world.runner.run(page).await.unwrap()[..],
        std::slice::from_ref(second)
    );

    // Key 1 has a newer value by now, so the receiver ignores this one.
    let refuses = picky(&[1], u32::MAX, &receiver);
    let refused = reader.redrive(&world.runner, &refuses, &first.id).await;
    assert!(matches!(refused, Err(Error::Exporter { .. })));
    assert!(
        reader
            .redrive(&world.runner, &receiver, &first.id)
            .await
            .unwrap()
    );
    assert!(
        !reader
            .redrive(&world.runner, &receiver, &first.id)
            .await
            .unwrap()
    );
    assert_eq!(receiver.all().last().unwrap().value, Some(1));
    assert_eq!(receiver.values()["key 1"], 6);

    let purge = |tr| async move { reader.purge(&tr, &second.id).await };
    assert!(world.runner.run(purge).await.unwrap());
    assert!(!world.runner.run(purge).await.unwrap());
    assert_eq!(
        &world.runner.run(letters).await.unwrap()[..],
        std::slice::from_ref(third)
    );
}

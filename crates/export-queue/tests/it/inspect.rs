//! Reading a queue without its types, and the progress of its subscriptions.

use crate::common::{LONG, Reader, Receiver, World, settings};
use conformance::stores::{TestStore, age, bytes_of};
use export_queue::microqueue::blocks::{EntryId, WHOLE_BLOCK};
use export_queue::{Error, ExportQueue, Start, SubscriptionState, WorkerOptions};
use futures::future::try_join_all;
use keyspace::codec::{Codec, Json, MessagePack, Raw, Tuple};
use keyspace::error::corrupt_key;
use keyspace::{
    Bytes, Database, Ids, KeyValue, OpenOptions, OwnedTransaction, Transaction, Versionstamp, tuple,
};

conformance::on_every_store!(threads:
    a_queue_of_any_codecs_is_opened_by_its_stored_bytes,
    where_there_is_no_queue_none_is_opened_and_none_is_made,
    settings_that_do_not_decode_or_cannot_work_are_refused,
    each_subscription_says_how_far_it_is,
    pending_totals_are_sums_over_all_buckets,
    a_subscription_holds_the_log_back_if_another_has_passed_more,
    the_log_is_held_back_in_any_bucket,
    without_those_that_hold_the_log_back_its_begin_is_removed,
    a_damaged_position_is_named_and_its_whole_log_waits,
    subscriptions_share_what_is_read_to_count_their_entries,
    a_foreign_key_in_a_log_damages_its_bucket_and_no_other,
    a_foreign_key_after_entries_keeps_none_of_them_from_being_exported,
    dead_letters_are_counted_as_far_as_a_mebibyte,
    looking_fails_for_no_other_transaction,
    the_sessions_of_workers_are_listed,
);

type Stored = ExportQueue<Bytes, Bytes, Raw>;

async fn a_queue_of_any_codecs_is_opened_by_its_stored_bytes(store: TestStore) {
    look_into(&store.fresh(), MessagePack).await;
    look_into(&store.fresh(), Json).await;
    look_into(&store.fresh(), Tuple).await;
}

/// Keeps the entries that it receives, as bytes.
#[derive(Clone, Default)]
struct Given(std::sync::Arc<std::sync::Mutex<Vec<(Bytes, Bytes)>>>);

#[export_queue::async_trait]
impl export_queue::Exporter<Bytes, Bytes> for Given {
    async fn export(
        &self,
        batch: &[export_queue::SequencedExport<Bytes, Bytes>],
    ) -> Result<(), export_queue::BoxError> {
        let pairs = batch
            .iter()
            .map(|export| (export.key.clone(), export.value.clone()));
        self.0.lock().unwrap().extend(pairs);
        Ok(())
    }
}

/// Reads a queue of some codec, adds to it, and exports its entries.
async fn look_into<C>(store: &TestStore, codec: C)
where
    C: Codec<String> + Codec<i64>,
{
    let pair = |key: &str, value: i64| {
        let key = bytes_of(&codec, &key.to_owned());
        (key, bytes_of(&codec, &value))
    };
    let runner = &store.runner();
    let subspace = store.root.subspace(&"queue");
    let ids = Ids::new(store.root.subspace(&"ids"));
    let options = OpenOptions::new().with_codec(codec.clone()).with_ids(ids);
    let typed: ExportQueue<String, i64, C> =
        ExportQueue::open_with(runner, subspace.clone(), settings(1), options)
            .await
            .unwrap();
    typed.subscribe(runner, "one", Start::Oldest).await.unwrap();
    typed.subscribe(runner, "two", Start::Oldest).await.unwrap();
    let queue = &typed;
    let a = &"a".to_owned();
    let add = |tr| async move { queue.add(&tr, a, &3).await };
    runner.run(add).await.unwrap();

    let before = store.rows().await;
    let (stored, record) = Stored::inspect(runner, subspace).await.unwrap().unwrap();
    assert_eq!(record.settings, settings(1));
    assert_eq!(*stored.settings(), settings(1));
    assert_eq!(record.codecs, [<C as Codec<i64>>::NAME; 2]);
    assert_eq!(record.subscriptions, ["one", "two"]);
    let tr = store.db.begin().unwrap();
    let states = stored.subscription_states(&tr).await.unwrap();
    let counts: Vec<_> = states.iter().map(|state| state.pending.count).collect();
    assert_eq!(counts, [1, 1]);
    assert_eq!(store.rows().await, before);

    let queue = &stored;
    let added = &pair("b", 4);
    let add = |tr| async move {
        queue.verify_order(&tr).await?;
        queue.add(&tr, &added.0, &added.1).await
    };
    runner.run(add).await.unwrap();
    let tr = store.db.begin().unwrap();
    let reader = stored.subscription(&tr, "two").await.unwrap().unwrap();
    let given = Given::default();
    let worker = reader
        .work(runner, WorkerOptions::default(), given.clone())
        .await
        .unwrap();
    conformance::timeout(LONG, reader.wait_idle(runner))
        .await
        .unwrap();
    worker.shut_down(LONG).await.unwrap();
    assert_eq!(*given.0.lock().unwrap(), [pair("a", 3), pair("b", 4)]);
}

async fn where_there_is_no_queue_none_is_opened_and_none_is_made(store: TestStore) {
    let runner = &store.runner();
    let subspace = store.root.subspace(&"queue");
    assert!(Stored::inspect(runner, subspace).await.unwrap().is_none());
    assert_eq!(store.rows().await, []);

    let world = World::new(&store, 1).await;
    world.clear(&world.queue.subspace().pack(&"m")).await;
    let tr = store.db.begin().unwrap();
    let gone = world.queue.subscription_states(&tr).await.unwrap_err();
    assert!(matches!(gone, Error::NoQueue { .. }), "{gone}");
}

async fn settings_that_do_not_decode_or_cannot_work_are_refused(store: TestStore) {
    let world = World::new(&store, 4).await;
    let row = world.queue.subspace().pack(&"m");
    assert_eq!(world.queue.describe_key(&row), Some("settings"));
    assert_eq!(world.queue.describe_key(b"elsewhere"), None);
    let stored = world.get(&row).await.unwrap();
    let inspect = || Stored::inspect(&world.runner, world.queue.subspace().clone());
    let newer = [&[2], &stored[1..]].concat();
    for damaged in [&newer[..], &stored[..12]] {
        world.set(&row, damaged).await;
        let refused = inspect().await.unwrap_err();
        assert!(
            matches!(&refused, Error::Keyspace(keyspace::Error::Corrupt { key, .. })
                if key[..] == row),
            "{refused}"
        );
    }
    for bucket_count in [0_u32, 65_537] {
        let mut record = stored.to_vec();
        record[1..5].copy_from_slice(&bucket_count.to_be_bytes());
        world.set(&row, &record).await;
        let refused = inspect().await.unwrap_err();
        assert_eq!(corrupt_key(&refused), Some(&row[..]), "{refused}");
    }
}

async fn states(world: &World) -> Vec<SubscriptionState> {
    let queue = &world.queue;
    let states = |tr| async move { queue.subscription_states(&tr).await };
    world.runner.run(states).await.unwrap()
}

/// Returns the names of the subscriptions that hold the log back.
async fn holders(world: &World) -> Vec<String> {
    let states = states(world).await.into_iter();
    let holders = states.filter(|state| state.holds_back);
    holders.map(|state| state.name).collect()
}

fn entries(count: i64) -> Vec<(String, Option<i64>)> {
    (0..count).map(|n| (format!("key {n}"), Some(n))).collect()
}

async fn each_subscription_says_how_far_it_is(store: TestStore) {
    let world = World::new(&store, 3).await;
    let other = &world.subscribe("other", Start::Oldest).await;
    let first = world.add_all(entries(10)).await;
    world.export(other, &Receiver::default()).await;
    let second = world.add("key 1", 9).await;
    let pause = |tr| async move {
        other.pause(&tr);
        Ok::<_, Error>(())
    };
    world.runner.run(pause).await.unwrap();
    let letter = world.queue.subspace().pack(&(
        "d",
        "other",
        tuple::Versionstamp::complete([1; 10], 0),
        2,
        3,
    ));
    world.set(&letter, b"\x02newer").await;

    let tr = store.db.begin().unwrap();
    let states = world.queue.subscription_states(&tr).await.unwrap();
    let [of_other, of_reader] = &states[..] else {
        panic!("{states:?}");
    };
    assert_eq!((&*of_other.name, of_other.is_paused), ("other", true));
    assert_eq!(of_other.lag, Some(age(&tr, second).await));
    assert_eq!((of_other.pending.count, of_other.holds_back), (1, false));
    assert_eq!(of_other.dead_letters.count, 1);
    assert_eq!((&*of_reader.name, of_reader.is_paused), ("reader", false));
    assert_eq!(of_reader.lag, Some(age(&tr, first).await));
    assert_eq!((of_reader.pending.count, of_reader.holds_back), (11, true));
    assert_eq!(of_reader.dead_letters.count, 0);
    for state in &states {
        assert!(state.damaged.is_empty());
        assert!(!state.pending.has_more && !state.dead_letters.has_more);
    }

    world.export(&world.reader, &Receiver::default()).await;
    let tr = store.db.begin().unwrap();
    let states = world.queue.subscription_states(&tr).await.unwrap();
    let of_reader = &states[1];
    assert_eq!((of_reader.lag, of_reader.pending.count), (None, 0));
    assert_eq!(holders(&world).await, ["other"]);
}

async fn pending_totals_are_sums_over_all_buckets(store: TestStore) {
    // With this many buckets, reads go from one bucket that has entries to the next.
    for bucket_count in [1, 7, 1_009] {
        let world = World::new(&store, bucket_count).await;
        world.add_all(entries(30)).await;
        world.add("key 1", 1).await;
        let state = states(&world).await.pop().unwrap();
        assert_eq!((state.pending.count, state.pending.has_more), (31, false));
        let tr = store.db.begin().unwrap();
        let buckets = (0..bucket_count).map(export_queue::combine::Bucket);
        // Side by side: a busy cluster may take 5 s for as many reads one after the other.
        let pending = try_join_all(buckets.map(|bucket| world.reader.pending(&tr, bucket)));
        let bytes: usize = pending
            .await
            .unwrap()
            .iter()
            .map(|pending| pending.bytes)
            .sum();
        assert_eq!(state.pending.bytes, bytes);
    }
}

/// Returns the ids of the blocks of a bucket.
async fn blocks(world: &World, bucket: u32) -> Vec<EntryId> {
    let log = world.queue.subspace().subspace(&("e", bucket));
    let (begin, end) = log.range();
    let id = |row: &KeyValue| {
        let (stamp, call): (tuple::Versionstamp, u64) = log.unpack(row.key()).unwrap();
        let stamp: [u8; 10] = stamp.transaction_version().try_into().unwrap();
        EntryId {
            versionstamp: Versionstamp::from_bytes(stamp),
            call,
            index: WHOLE_BLOCK,
        }
    };
    let rows = world.rows_between(begin, end).await;
    rows.iter().map(id).collect()
}

/// Sets a position, or clears it.
async fn set_position(world: &World, name: &str, bucket: u32, position: Option<EntryId>) {
    let row = world.queue.subspace().pack(&("p", name, bucket));
    match position {
        Some(position) => {
            let record = [&[1][..], &position.to_bytes()].concat();
            world.set(&row, &record).await;
        }
        None => world.clear(&row).await,
    }
}

async fn a_subscription_holds_the_log_back_if_another_has_passed_more(store: TestStore) {
    let world = World::new(&store, 1).await;
    world.subscribe("a", Start::Oldest).await;
    world.subscribe("b", Start::Oldest).await;
    for _ in 0..2 {
        world.add_all(entries(3)).await;
    }
    let [first, second] = blocks(&world, 0).await[..] else {
        panic!("expected two blocks");
    };
    let inside = |block: EntryId| EntryId { index: 1, ..block };
    // Positions, whether the first block is passed, and the number of entries that wait.
    let positions = [
        (None, false, 6),
        (Some(inside(first)), false, 4),
        (Some(first), true, 3),
        (Some(inside(second)), true, 1),
        (Some(second), true, 0),
    ];
    for one in positions {
        for two in positions {
            for three in positions {
                let all = [("a", one), ("b", two), ("reader", three)];
                for (name, (position, ..)) in all {
                    set_position(&world, name, 0, position).await;
                }
                let is_passed = all.iter().any(|(_, (_, is_passed, _))| *is_passed);
                for (state, (name, (_, has_passed, waiting))) in
                    states(&world).await.iter().zip(all)
                {
                    assert_eq!(state.name, name);
                    assert_eq!(
                        state.holds_back,
                        is_passed && !has_passed,
                        "{name} of {all:?}"
                    );
                    assert_eq!(state.pending.count, waiting, "{name} of {all:?}");
                }
            }
        }
    }
}

async fn the_log_is_held_back_in_any_bucket(store: TestStore) {
    let world = World::new(&store, 2).await;
    world.subscribe("other", Start::Oldest).await;
    world.add_all(entries(10)).await;
    let first = blocks(&world, 0).await[0];
    let second = blocks(&world, 1).await[0];
    assert_eq!(holders(&world).await, [""; 0]);
    set_position(&world, "reader", 0, Some(first)).await;
    assert_eq!(holders(&world).await, ["other"]);
    set_position(&world, "other", 1, Some(second)).await;
    assert_eq!(holders(&world).await, ["other", "reader"]);
}

async fn without_those_that_hold_the_log_back_its_begin_is_removed(store: TestStore) {
    let world = World::new(&store, 1).await;
    for name in ["idle", "slow"] {
        world.subscribe(name, Start::Oldest).await;
    }
    for _ in 0..2 {
        world.add_all(entries(3)).await;
    }
    let before = blocks(&world, 0).await;
    set_position(
        &world,
        "slow",
        0,
        Some(EntryId {
            index: 1,
            ..before[0]
        }),
    )
    .await;
    world.export(&world.reader, &Receiver::default()).await;
    assert_eq!(blocks(&world, 0).await, before);
    assert_eq!(holders(&world).await, ["idle", "slow"]);
    // Without one of them the other one still holds it back, and without both none does.
    for (removed, left) in [("idle", &["slow"][..]), ("slow", &[])] {
        let queue = &world.queue;
        let remove = |tr| async move { queue.unsubscribe(&tr, removed).await };
        assert!(world.runner.run(remove).await.unwrap());
        assert_eq!(holders(&world).await, left);
        world.add("key 1", 1).await;
        world.export(&world.reader, &Receiver::default()).await;
        let is_there = blocks(&world, 0).await.contains(&before[0]);
        assert_eq!(is_there, !left.is_empty());
    }
}

async fn a_damaged_position_is_named_and_its_whole_log_waits(store: TestStore) {
    let world = World::new(&store, 2).await;
    world.subscribe("other", Start::Oldest).await;
    let stamp = world.add_all(entries(10)).await;
    for bucket in [0, 1] {
        let block = blocks(&world, bucket).await[0];
        set_position(&world, "reader", bucket, Some(block)).await;
        set_position(&world, "other", bucket, Some(block)).await;
    }
    assert_eq!(holders(&world).await, [""; 0]);
    let row = world.queue.subspace().pack(&("p", "reader", 1));
    world.set(&row, b"\x02newer").await;
    let tr = store.db.begin().unwrap();
    let states = world.queue.subscription_states(&tr).await.unwrap();
    let of_reader = &states[1];
    assert_eq!(of_reader.damaged.len(), 1);
    assert_eq!(of_reader.damaged[0].0, 1);
    assert_eq!(of_reader.lag, Some(age(&tr, stamp).await));
    let (begin, end) = world.queue.subspace().subspace(&("e", 1)).range();
    let block = world.rows_between(begin, end).await.pop().unwrap();
    let count = export_queue::microqueue::blocks::entry_count(block.value()).unwrap();
    assert_eq!(of_reader.pending.count, usize::from(count));
    assert!(of_reader.holds_back && !states[0].holds_back);
    assert_eq!((states[0].lag, states[0].pending.count), (None, 0));
    assert_eq!(world.reader.lag(&tr).await.unwrap(), of_reader.lag);
}

async fn subscriptions_share_what_is_read_to_count_their_entries(store: TestStore) {
    let world = World::new(&store, 1).await;
    for number in 0..15 {
        world
            .subscribe(&format!("other {number}"), Start::Oldest)
            .await;
    }
    // 100 blocks of 30 KB: each of the 16 subscriptions counts half a mebibyte of them.
    let entry = |n| ("x".repeat(30_000), Some(n));
    for _ in 0..2 {
        world.add_all((0..50).map(entry).collect()).await;
    }
    for state in states(&world).await {
        assert_eq!((state.pending.count, state.pending.has_more), (18, true));
    }
}

/// Exports what can be exported beside a foreign key, with which the wait then fails. Returns how many
/// entries there were.
async fn exported_beside(world: &World, foreign: &[u8]) -> usize {
    let receiver = Receiver::default();
    let worker = world.work(WorkerOptions::default(), receiver.clone()).await;
    let idle = world.reader.wait_idle(&world.runner);
    let refused = conformance::timeout(LONG, idle).await.unwrap_err();
    assert_eq!(corrupt_key(&refused), Some(foreign), "{refused}");
    worker.shut_down(LONG).await.unwrap();
    receiver.all().len()
}

async fn a_foreign_key_in_a_log_damages_its_bucket_and_no_other(store: TestStore) {
    let world = World::new(&store, 2).await;
    world.add_all(entries(10)).await;
    let foreign = world.queue.subspace().pack(&("e", 0, "foreign"));
    world.set(&foreign, b"").await;
    let state = states(&world).await.pop().unwrap();
    assert_eq!(state.damaged.len(), 1);
    assert_eq!(state.damaged[0].0, 0);
    assert!(state.lag.is_some() && state.pending.has_more);
    // The entries of the other bucket are exported.
    let waiting = state.pending.count;
    assert!((1..10).contains(&waiting), "{waiting}");
    assert_eq!(exported_beside(&world, &foreign).await, waiting);
}

async fn a_foreign_key_after_entries_keeps_none_of_them_from_being_exported(store: TestStore) {
    let world = World::new(&store, 2).await;
    world.add_all(entries(10)).await;
    let log = world.queue.subspace().subspace(&("e", 0));
    // After every block, since no element of a tuple begins with this byte.
    let foreign = [log.bytes(), b"\x40"].concat();
    world.set(&foreign, b"").await;
    assert_eq!(exported_beside(&world, &foreign).await, 10);
}

async fn dead_letters_are_counted_as_far_as_a_mebibyte(store: TestStore) {
    let world = World::new(&store, 1).await;
    world.subscribe("other", Start::Oldest).await;
    let stamp = tuple::Versionstamp::complete([1; 10], 0);
    let row = |name: &str, call: u64| {
        let subspace = world.queue.subspace();
        subspace.pack(&("d", name, stamp.clone(), call, 0))
    };
    // Eleven of them have more than 1 MiB, and ten have less.
    let letter = vec![1; 100_000];
    for (letters, count, has_more) in [(10, 10, false), (11, 11, false), (12, 11, true)] {
        for call in 0..letters {
            world.set(&row("reader", call), &letter).await;
        }
        let states = states(&world).await;
        let counted = states[1].dead_letters;
        assert_eq!((counted.count, counted.has_more), (count, has_more));
        assert_eq!(states[0].dead_letters.count, 0);
    }
}

async fn looking_fails_for_no_other_transaction(store: TestStore) {
    let world = World::new(&store, 2).await;
    world.add_all(entries(10)).await;
    let mut tr = store.db.begin().unwrap();
    world.queue.subscription_states(&tr).await.unwrap();
    world.queue.verify_order(&tr).await.unwrap();
    world.reader.sessions().all(&tr).await.unwrap();
    world.reader.sessions().heartbeats(&tr).await.unwrap();
    world.subscribe("other", Start::Oldest).await;
    world.export(&world.reader, &Receiver::default()).await;
    world.add_all(entries(10)).await;
    // A transaction that only reads never conflicts.
    tr.set(&world.root.pack(&"other"), b"");
    tr.commit().await.unwrap();
}

async fn the_sessions_of_workers_are_listed(store: TestStore) {
    let world = World::new(&store, 2).await;
    let other = world.subscribe("other", Start::Oldest).await;
    let living = |reader: Reader| {
        let tr = store.db.begin().unwrap();
        async move {
            let sessions = reader.sessions();
            let all = sessions.all(&tr).await.unwrap();
            let heartbeats = sessions.heartbeats(&tr).await.unwrap();
            let with_state: Vec<_> = all.iter().map(|(session, _)| *session).collect();
            let with_heartbeat: Vec<_> = (heartbeats.iter())
                .map(|heartbeat| heartbeat.session)
                .collect();
            assert_eq!(with_heartbeat, with_state);
            all.len()
        }
    };
    let worker = world
        .work(WorkerOptions::default(), Receiver::default())
        .await;
    assert_eq!(living(world.reader.clone()).await, 1);
    assert_eq!(living(other).await, 0);
    worker.shut_down(LONG).await.unwrap();
    assert_eq!(living(world.reader.clone()).await, 0);
}

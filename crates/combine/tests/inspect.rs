//! Reading a queue without its types, and the other reads for operators.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::time::Duration;

use combine::microqueue::blocks::EntryId;
use combine::{
    Bucket, CombineOptions, CombineQueue, Error, Exact, InvalidSettings, KeyState, LastWriter,
    Pending, Sum, Unobserved, microqueue,
};
use common::{LONG, Log, World, encoded, settings, write};
use conformance::stores::TestStore;
use keyspace::codec::{Codec, Json, MessagePack, Raw, Tuple};
use keyspace::limits::VERSIONS_PER_SECOND;
use keyspace::{
    Bytes, Database, Ids, Isolation, KeyValue, OpenOptions, OwnedTransaction, Subspace,
    Transaction, Versionstamp, read_all, tuple,
};

conformance::on_every_store!(threads:
    a_queue_of_any_codecs_is_opened_by_its_stored_bytes,
    where_there_is_no_queue_none_is_opened_and_none_is_made,
    settings_that_do_not_decode_or_cannot_work_are_refused,
    the_lag_is_that_of_the_oldest_update_of_all_buckets,
    pending_totals_are_sums_over_all_buckets,
    a_bucket_that_is_not_counted_to_its_end_says_so_for_all,
    a_damaged_pass_state_makes_its_whole_log_count,
    a_key_has_a_settled_and_a_current_value_and_pending_updates,
    updates_of_a_block_that_are_folded_are_not_pending,
    why_the_reports_of_a_key_are_withheld_is_said,
    more_pending_updates_than_are_read_are_said_to_be_there,
    a_queue_that_was_added_to_is_not_looked_into_in_the_same_transaction,
    looking_fails_for_no_other_transaction,
    the_sessions_of_workers_are_listed,
);

type Stored = CombineQueue<Bytes, Bytes, Bytes, Raw>;

/// Keeps the value, for tools that do not fold.
fn keep(_key: &Bytes, value: Option<Bytes>, _updates: Vec<Bytes>) -> Option<Bytes> {
    value
}

/// Returns every row of a part of a store, except those of the runner.
async fn rows_of(store: &TestStore) -> Vec<KeyValue> {
    let (tr, everything) = (store.db.begin().unwrap(), store.everything());
    let mut rows = read_all(&tr, everything, Isolation::Snapshot)
        .await
        .unwrap();
    let ledgers = store.root.subspace(&"ledgers");
    rows.retain(|row| !row.key().starts_with(ledgers.bytes()));
    rows
}

fn bytes_of<T, C: Codec<T>>(codec: &C, value: &T) -> Bytes {
    let mut bytes = Vec::new();
    codec.encode(value, &mut bytes).unwrap();
    bytes.into()
}

async fn a_queue_of_any_codecs_is_opened_by_its_stored_bytes(store: TestStore) {
    look_into(&store.fresh(), MessagePack).await;
    look_into(&store.fresh(), Json).await;
    look_into(&store.fresh(), Tuple).await;
}

/// Reads a queue of some codec, and adds to it.
async fn look_into<C>(store: &TestStore, codec: C)
where
    C: Codec<String> + Codec<i64>,
{
    let text = |text: &str| bytes_of(&codec, &text.to_owned());
    let number = |number: i64| bytes_of(&codec, &number);
    let (runner, subspace) = (&store.runner(), store.root.subspace(&"queue"));
    let ids = Ids::new(store.root.subspace(&"ids"));
    let options = OpenOptions::new().codec(codec.clone()).ids(ids);
    let typed: CombineQueue<String, i64, i64, C> =
        CombineQueue::open_with(runner, subspace.clone(), settings(3), Sum, options)
            .await
            .unwrap();
    let (queue, a) = (&typed, &"a".to_owned());
    let add = |tr| async move { queue.add(&tr, a, &3).await };
    runner.run(add).await.unwrap();
    let worker = typed.work(runner, CombineOptions::default(), Unobserved);
    let worker = worker.await.unwrap();
    typed.wait_idle(runner).await.unwrap();
    worker.shut_down(LONG).await.unwrap();
    let add = |tr| async move { queue.add(&tr, a, &4).await };
    runner.run(add).await.unwrap();

    let before = rows_of(store).await;
    let sum = {
        let codec = codec.clone();
        move |_: &Bytes, value: Option<Bytes>, updates: Vec<Bytes>| {
            let terms = value.into_iter().chain(updates);
            let terms = terms.map(|term| <C as Codec<i64>>::decode(&codec, term).unwrap());
            Some(bytes_of(&codec, &terms.sum::<i64>()))
        }
    };
    let (stored, record) = Stored::inspect(runner, subspace, sum)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(record.settings, settings(3));
    assert_eq!(*stored.settings(), settings(3));
    assert_eq!(record.codecs, [<C as Codec<i64>>::NAME; 3]);
    let tr = store.db.begin().unwrap();
    let state = stored.look_up(&tr, &text("a")).await.unwrap();
    assert_eq!(state.settled, Some(number(3)));
    assert_eq!(state.current, Some(number(3)));
    assert_eq!(state.pending, [number(4)]);
    let exact = stored.exact(&tr, &text("a"), &Exact::default()).await;
    assert_eq!(exact.unwrap(), Some(number(7)));
    let values = stored.values(&tr, None, 9, Isolation::Snapshot).await;
    let values = values.unwrap().into_iter().map(|listed| listed.value);
    let values: Vec<_> = values.collect::<Result<_, _>>().unwrap();
    assert_eq!(values, [(text("a"), number(3))]);
    assert_eq!(rows_of(store).await, before);

    let (queue, update) = (&stored, &(text("b"), number(5)));
    let add = |tr| async move {
        queue.verify_order(&tr).await?;
        queue.add(&tr, &update.0, &update.1).await
    };
    runner.run(add).await.unwrap();
    let tr = store.db.begin().unwrap();
    let exact = typed.exact(&tr, &"b".to_owned(), &Exact::default()).await;
    assert_eq!(exact.unwrap(), Some(5));
}

async fn where_there_is_no_queue_none_is_opened_and_none_is_made(store: TestStore) {
    let (runner, subspace) = (&store.runner(), store.root.subspace(&"queue"));
    let opened = Stored::inspect(runner, subspace, keep).await.unwrap();
    assert!(opened.is_none());
    assert_eq!(rows_of(&store).await, []);
}

async fn settings_that_do_not_decode_or_cannot_work_are_refused(store: TestStore) {
    let world = World::sums(&store, 4).await;
    let row = world.queue.subspace().pack(&"m");
    let rows = world.rows_of(world.queue.subspace()).await;
    let stored = rows.iter().find(|found| found.key() == row).unwrap();
    let inspect = || Stored::inspect(&world.runner, world.queue.subspace().clone(), keep);
    let newer = [&[2], &stored.value()[1..]].concat();
    for damaged in [&newer[..], &stored.value()[..16]] {
        write(&world, &row, damaged).await;
        let refused = inspect().await.unwrap_err();
        assert!(
            matches!(&refused, Error::Keyspace(keyspace::Error::Corrupt { key, .. })
                if key[..] == row),
            "{refused}"
        );
    }
    for bucket_count in [0_u32, 65_537] {
        let mut record = stored.value().to_vec();
        record[5..9].copy_from_slice(&bucket_count.to_be_bytes());
        write(&world, &row, &record).await;
        let refused = inspect().await.unwrap_err();
        assert!(
            matches!(&refused, Error::InvalidSettings(InvalidSettings::BucketCount { given, .. })
                if *given == bucket_count),
            "{refused}"
        );
    }
}

/// Returns how long ago a commit was, according to the versions of a transaction.
async fn age(tr: &impl Transaction, stamp: Versionstamp) -> Duration {
    let versions = tr.read_version().await.unwrap() - stamp.commit_version();
    Duration::from_secs_f64(versions as f64 / VERSIONS_PER_SECOND as f64)
}

async fn the_lag_is_that_of_the_oldest_update_of_all_buckets(store: TestStore) {
    // With this many buckets, reads go from one bucket that has updates to the next.
    for bucket_count in [1, 7, 1_009] {
        let world = World::sums(&store, bucket_count).await;
        let begin = || world.runner.database().begin().unwrap();
        assert_eq!(world.queue.lag(&begin()).await.unwrap(), None);
        for round in 0..2 {
            let oldest = world.add("a", 1).await;
            for key in 0..10 {
                world.add(&format!("key {key}"), 1).await;
            }
            let tr = begin();
            let lag = world.queue.lag(&tr).await.unwrap();
            assert_eq!(lag, Some(age(&tr, oldest).await), "round {round}");
            let log = Log::new(&world.root);
            world.combine(CombineOptions::default(), &log).await;
            assert_eq!(world.queue.lag(&begin()).await.unwrap(), None);
        }
    }
}

async fn pending_total<U, V>(world: &World<U, V>) -> Pending
where
    U: common::Stored,
    V: common::Stored,
{
    let queue = &world.queue;
    let count = |tr| async move { queue.pending_total(&tr).await };
    world.runner.run(count).await.unwrap()
}

async fn pending_totals_are_sums_over_all_buckets(store: TestStore) {
    for bucket_count in [1, 7, 1_009] {
        let world = World::sums(&store, bucket_count).await;
        assert_eq!(pending_total(&world).await, Pending::default());
        let updates = (0..100).map(|update| (format!("key {}", update % 30), 1));
        world.add_all(updates.collect()).await;
        world.add("key 0", 1).await;
        let total = pending_total(&world).await;
        assert_eq!((total.count, total.has_more), (101, false));
        let (tr, mut bytes) = (world.runner.database().begin().unwrap(), 0);
        for bucket in 0..bucket_count {
            let pending = world.queue.pending(&tr, Bucket(bucket)).await.unwrap();
            bytes += pending.bytes;
        }
        assert_eq!(total.bytes, bytes);
        let log = Log::new(&world.root);
        world.combine(CombineOptions::default(), &log).await;
        assert_eq!(pending_total(&world).await, Pending::default());
    }
}

/// Adds updates of one key, each in its own block of about 90 KB.
async fn add_large(world: &World<Option<String>, String>, key: &str, updates: usize) {
    let update = Some("x".repeat(90_000));
    for _ in 0..updates.div_ceil(50) {
        let updates = (0..updates.min(50)).map(|_| (key.to_owned(), update.clone()));
        world.add_all(updates.collect()).await;
    }
}

async fn a_bucket_that_is_not_counted_to_its_end_says_so_for_all(store: TestStore) {
    let world: World<Option<String>, String> = World::new(&store, 7, LastWriter).await;
    let keys: Vec<_> = (0..20).map(|key| format!("key {key}")).collect();
    for key in &keys {
        world.add(key, None).await;
    }
    add_large(&world, &keys[0], 20).await;
    let total = pending_total(&world).await;
    assert!(total.has_more);
    // All updates of the other buckets, and those of this one in up to 1 MiB of blocks.
    let tr = world.runner.database().begin().unwrap();
    let bucket = world.queue.bucket(&keys[0]).unwrap();
    let of_bucket = world.queue.pending(&tr, bucket).await.unwrap();
    assert!(of_bucket.has_more);
    let buckets = keys.iter().map(|key| world.queue.bucket(key).unwrap());
    let others = buckets.filter(|other| *other != bucket).count();
    assert_eq!(total.count, of_bucket.count + others);
}

/// Stages a state of passes according to which the first updates of a block are folded.
async fn fold_first(world: &World, row: &KeyValue, folded: u16) {
    let log = world.queue.subspace().subspace(&("u", 0, 0));
    let (stamp, call): (tuple::Versionstamp, u64) = log.unpack(row.key()).unwrap();
    let position = EntryId {
        versionstamp: Versionstamp::from_bytes(stamp.transaction_version().try_into().unwrap()),
        call,
        index: folded,
    };
    let state = [&[1, 0][..], &[0; 16], &position.to_bytes()].concat();
    write(world, &pass_row(world), &state).await;
}

/// The state of the passes over the first bucket.
fn pass_row(world: &World) -> Vec<u8> {
    world.queue.subspace().pack(&("x", 0, 0))
}

/// A queue of one bucket with a block of three updates of a key. The first update is folded.
async fn folded_in_part(store: &TestStore) -> World {
    let world = World::sums(store, 1).await;
    let updates = [1, 2, 3].map(|update| ("a".to_owned(), update));
    world.add_all(updates.to_vec()).await;
    let block = world.rows("u").await.pop().unwrap();
    fold_first(&world, &block, 1).await;
    world
}

async fn a_damaged_pass_state_makes_its_whole_log_count(store: TestStore) {
    let world = folded_in_part(&store).await;
    assert_eq!(pending_total(&world).await.count, 2);
    write(&world, &pass_row(&world), b"\x02newer").await;
    assert_eq!(pending_total(&world).await.count, 3);
    let queue = &world.queue;
    let count = |tr| async move { queue.pending(&tr, Bucket(0)).await };
    let refused = world.runner.run(count).await.unwrap_err();
    assert!(
        matches!(refused, Error::Keyspace(keyspace::Error::Corrupt { .. })),
        "{refused}"
    );
}

async fn look_up<U, V>(world: &World<U, V>, key: &str) -> KeyState<V>
where
    U: common::Stored,
    V: common::Stored,
{
    let (queue, key) = (&world.queue, &key.to_owned());
    let look_up = |tr| async move { queue.look_up(&tr, key).await };
    world.runner.run(look_up).await.unwrap()
}

fn number(number: i64) -> Bytes {
    bytes_of(&MessagePack, &number)
}

/// Adds a current value for the only key that has a reported one.
async fn set_current(world: &World, record: &[u8]) {
    let [value] = &world.rows("v").await[..] else {
        panic!("expected one value");
    };
    let (hash, key) = id_of_value(world.queue.subspace(), value);
    let row = world.queue.subspace().pack(&("c", 0, hash, &key[..]));
    write(world, &row, record).await;
}

fn id_of_value(queue: &Subspace, row: &KeyValue) -> (u16, Vec<u8>) {
    queue.subspace(&("v", 0)).unpack(row.key()).unwrap()
}

async fn a_key_has_a_settled_and_a_current_value_and_pending_updates(store: TestStore) {
    let world = World::sums(&store, 1).await;
    let state = look_up(&world, "a").await;
    assert_eq!((state.settled, state.current), (None, None));
    assert_eq!((state.withheld, state.has_more), (None, false));
    assert!(state.pending.is_empty());

    world.add("a", 1).await;
    world
        .combine(CombineOptions::default(), &Log::new(&world.root))
        .await;
    set_current(&world, &[&b"\x01\x01"[..], &number(5)].concat()).await;
    let updates = [("a", 2), ("b", 9), ("a", 3)].map(|(key, update)| (key.to_owned(), update));
    world.add_all(updates.to_vec()).await;
    world.add("a", 4).await;
    let state = look_up(&world, "a").await;
    assert_eq!((state.settled, state.current), (Some(1), Some(5)));
    assert_eq!(state.pending, [2, 3, 4].map(number));
    assert_eq!((state.withheld, state.has_more), (None, false));
    assert_eq!(world.exact("a").await, Some(5 + 2 + 3 + 4));

    // A current value may also be that the key has no value.
    set_current(&world, b"\x01\0").await;
    let state = look_up(&world, "a").await;
    assert_eq!((state.settled, state.current), (Some(1), None));
}

async fn updates_of_a_block_that_are_folded_are_not_pending(store: TestStore) {
    let world = folded_in_part(&store).await;
    let state = look_up(&world, "a").await;
    assert_eq!(state.pending, [2, 3].map(number));
}

async fn why_the_reports_of_a_key_are_withheld_is_said(store: TestStore) {
    let world = World::sums(&store, 1).await;
    world.add("a", 1).await;
    world
        .combine(CombineOptions::default(), &Log::new(&world.root))
        .await;
    set_current(&world, &[&b"\x01\x03"[..], &number(5)].concat()).await;
    let row = world.queue.subspace();
    let row = row.pack(&("q", 0, "k", &encoded("a")[..]));
    write(&world, &row, b"\x01\x09too large").await;
    let state = look_up(&world, "a").await;
    assert_eq!(state.withheld.as_deref(), Some("too large"));
    assert_eq!((state.settled, state.current), (Some(1), Some(5)));
    assert_eq!(look_up(&world, "b").await.withheld, None);

    write(&world, &row, b"\x02newer").await;
    let (queue, a) = (&world.queue, &"a".to_owned());
    let look_up = |tr| async move { queue.look_up(&tr, a).await };
    let refused = world.runner.run(look_up).await.unwrap_err();
    assert!(
        matches!(&refused, Error::Keyspace(keyspace::Error::Corrupt { key, .. })
            if key[..] == row),
        "{refused}"
    );
}

async fn more_pending_updates_than_are_read_are_said_to_be_there(store: TestStore) {
    let world: World<Option<String>, String> = World::new(&store, 1, LastWriter).await;
    world.add("a", Some("first".to_owned())).await;
    add_large(&world, "other", 100).await;
    world.add("a", Some("last".to_owned())).await;
    let state = look_up(&world, "a").await;
    assert!(state.has_more);
    let first = bytes_of(&MessagePack, &Some("first".to_owned()));
    assert_eq!(state.pending, [first]);
}

async fn a_queue_that_was_added_to_is_not_looked_into_in_the_same_transaction(store: TestStore) {
    let world = World::sums(&store, 7).await;
    let (queue, a, b) = (&world.queue, &"a".to_owned(), &"b".to_owned());
    let look_up = |tr| async move {
        queue.look_up(&tr, a).await?;
        queue.add(&tr, b, &1).await?;
        queue.look_up(&tr, a).await
    };
    let refused = world.runner.run(look_up).await.unwrap_err();
    assert!(
        matches!(
            refused,
            Error::Updates(microqueue::Error::ReadAfterWrite { .. })
        ),
        "{refused}"
    );
}

async fn looking_fails_for_no_other_transaction(store: TestStore) {
    let world = World::sums(&store, 3).await;
    let (queue, a) = (&world.queue, &"a".to_owned());
    world.add("a", 1).await;
    let mut tr = store.db.begin().unwrap();
    queue.look_up(&tr, a).await.unwrap();
    queue.pending_total(&tr).await.unwrap();
    queue.lag(&tr).await.unwrap();
    queue.verify_order(&tr).await.unwrap();
    queue.sessions().all(&tr).await.unwrap();
    queue.sessions().heartbeats(&tr).await.unwrap();
    let log = Log::new(&world.root);
    world.combine(CombineOptions::default(), &log).await;
    world.add("a", 1).await;
    // A transaction that only reads never conflicts.
    tr.set(&world.root.pack(&"other"), b"");
    tr.commit().await.unwrap();
}

async fn the_sessions_of_workers_are_listed(store: TestStore) {
    let world = World::sums(&store, 3).await;
    let subspace = world.queue.subspace().clone();
    let stored = Stored::inspect(&world.runner, subspace, keep).await;
    let (stored, _) = stored.unwrap().unwrap();
    let sessions = || async {
        let tr = store.db.begin().unwrap();
        let sessions = stored.sessions();
        let heartbeats = sessions.heartbeats(&tr).await.unwrap();
        let heartbeats = heartbeats.iter().map(|heartbeat| heartbeat.session);
        let all = sessions.all(&tr).await.unwrap();
        let all = all.iter().map(|(session, _)| *session);
        (all.collect::<Vec<_>>(), heartbeats.collect::<Vec<_>>())
    };
    let workers = [world.work(Unobserved).await, world.work(Unobserved).await];
    let (all, heartbeats) = sessions().await;
    assert_eq!(all.len(), 2);
    assert_eq!(heartbeats, all);
    for worker in workers {
        worker.shut_down(LONG).await.unwrap();
    }
    assert_eq!(sessions().await, (Vec::new(), Vec::new()));
}

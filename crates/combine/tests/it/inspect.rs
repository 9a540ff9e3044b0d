//! Reading a queue without its types, and the other reads for operators.

use std::collections::BTreeMap;

use crate::common::{LONG, Log, World, encoded, settings, write};
use combine::microqueue::blocks::EntryId;
use combine::{
    Backlog, Bucket, CombineQueue, Error, Exact, KeyState, LastWriter, Pending, Sum, Unobserved,
    WorkerOptions, microqueue,
};
use conformance::stores::{TestStore, age, bytes_of};
use futures::future::try_join_all;
use keyspace::codec::{Codec, Json, MessagePack, Raw, Tuple};
use keyspace::error::corrupt_key;
use keyspace::{
    Bytes, Database, Ids, Isolation, KeyValue, OpenOptions, OwnedTransaction, Subspace,
    Transaction, Versionstamp, tuple,
};

conformance::on_every_store!(threads:
    a_queue_of_any_codecs_is_opened_by_its_stored_bytes,
    where_there_is_no_queue_none_is_opened_and_none_is_made,
    settings_that_do_not_decode_or_cannot_work_are_refused,
    the_lag_is_that_of_the_oldest_update_of_all_buckets,
    pending_totals_are_sums_over_all_buckets,
    a_bucket_that_is_not_counted_to_its_end_says_so_for_all,
    the_backlog_of_many_buckets_is_read_up_to_a_total,
    a_foreign_key_in_a_log_damages_its_bucket_and_no_other,
    a_damaged_pass_state_makes_its_whole_log_count,
    a_key_has_a_settled_and_a_current_value_and_pending_updates,
    updates_of_a_block_that_are_folded_are_not_pending,
    why_the_reports_of_a_key_are_withheld_is_said,
    what_does_not_decode_of_a_key_hides_nothing_else,
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
    let runner = &store.runner();
    let subspace = store.root.subspace(&"queue");
    let ids = Ids::new(store.root.subspace(&"ids"));
    let options = OpenOptions::new().with_codec(codec.clone()).with_ids(ids);
    let typed: CombineQueue<String, i64, i64, C> =
        CombineQueue::open_with(runner, subspace.clone(), settings(3), Sum, options)
            .await
            .unwrap();
    let queue = &typed;
    let a = &"a".to_owned();
    let add = |tr| async move { queue.add(&tr, a, &3).await };
    runner.run(add).await.unwrap();
    let worker = typed
        .work(runner, WorkerOptions::default(), Unobserved)
        .await
        .unwrap();
    typed.wait_idle(runner).await.unwrap();
    worker.shut_down(LONG).await.unwrap();
    let add = |tr| async move { queue.add(&tr, a, &4).await };
    runner.run(add).await.unwrap();

    let before = store.rows().await;
    let sum = {
        let codec = codec.clone();
        move |_: &Bytes, value: Option<Bytes>, updates: Vec<Bytes>| {
            let terms = value
                .into_iter()
                .chain(updates)
                .map(|term| <C as Codec<i64>>::decode(&codec, term).unwrap());
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
    let state = stored.key_state(&tr, &text("a")).await.unwrap();
    assert_eq!(state.settled, Ok(Some(number(3))));
    assert_eq!(state.current, Ok(Some(number(3))));
    assert_eq!(state.pending, Ok(vec![number(4)]));
    let exact = stored.exact(&tr, &text("a"), &Exact::default()).await;
    assert_eq!(exact.unwrap(), Some(number(7)));
    let values: Vec<_> = stored
        .values(&tr, None, 9, Isolation::Snapshot)
        .await
        .unwrap()
        .into_iter()
        .map(|listed| listed.value)
        .collect::<Result<_, _>>()
        .unwrap();
    assert_eq!(values, [(text("a"), number(3))]);
    assert_eq!(store.rows().await, before);

    let queue = &stored;
    let update = &(text("b"), number(5));
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
    let runner = &store.runner();
    let subspace = store.root.subspace(&"queue");
    let opened = Stored::inspect(runner, subspace, keep).await.unwrap();
    assert!(opened.is_none());
    assert_eq!(store.rows().await, []);
}

async fn settings_that_do_not_decode_or_cannot_work_are_refused(store: TestStore) {
    let world = World::sums(&store, 4).await;
    let row = world.queue.subspace().pack(&"m");
    assert_eq!(world.queue.describe_key(&row), Some("settings"));
    assert_eq!(world.queue.describe_key(b"elsewhere"), None);
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
        assert_eq!(corrupt_key(&refused), Some(&row[..]), "{refused}");
    }
}

async fn the_lag_is_that_of_the_oldest_update_of_all_buckets(store: TestStore) {
    // With this many buckets, reads go from one bucket that has updates to the next.
    for bucket_count in [1, 7, 1_009] {
        let world = World::sums(&store, bucket_count).await;
        let begin = || world.runner.database().begin().unwrap();
        assert_eq!(world.queue.backlog(&begin()).await.unwrap().lag, None);
        for round in 0..2 {
            let oldest = world.add("a", 1).await;
            for key in 0..10 {
                world.add(&format!("key {key}"), 1).await;
            }
            let tr = begin();
            let lag = world.queue.backlog(&tr).await.unwrap().lag;
            assert_eq!(lag, Some(age(&tr, oldest).await), "round {round}");
            let log = Log::new(&world.root);
            world.combine(WorkerOptions::default(), &log).await;
            assert_eq!(world.queue.backlog(&begin()).await.unwrap().lag, None);
        }
    }
}

async fn backlog<U, V>(world: &World<U, V>) -> Backlog
where
    U: crate::common::Stored,
    V: crate::common::Stored,
{
    let queue = &world.queue;
    let read = |tr| async move { queue.backlog(&tr).await };
    world.runner.run(read).await.unwrap()
}

async fn pending_totals_are_sums_over_all_buckets(store: TestStore) {
    for bucket_count in [1, 7, 1_009] {
        let world = World::sums(&store, bucket_count).await;
        assert_eq!(backlog(&world).await.pending, Pending::default());
        let updates = (0..100).map(|update| (format!("key {}", update % 30), 1));
        world.add_all(updates.collect()).await;
        world.add("key 0", 1).await;
        let total = backlog(&world).await.pending;
        assert_eq!((total.count, total.has_more), (101, false));
        let tr = world.runner.database().begin().unwrap();
        // Side by side: a busy cluster may take 5 s for as many reads one after the other.
        let pending = (0..bucket_count).map(|bucket| world.queue.pending(&tr, Bucket(bucket)));
        let pending = try_join_all(pending).await.unwrap();
        let bytes: usize = pending.iter().map(|pending| pending.bytes).sum();
        assert_eq!(total.bytes, bytes);
        let log = Log::new(&world.root);
        world.combine(WorkerOptions::default(), &log).await;
        assert_eq!(backlog(&world).await.pending, Pending::default());
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
    let total = backlog(&world).await.pending;
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

async fn the_backlog_of_many_buckets_is_read_up_to_a_total(store: TestStore) {
    let world: World<Option<String>, String> = World::new(&store, 16, LastWriter).await;
    // A key for each bucket.
    let mut keys = BTreeMap::new();
    for key in (0..).map(|key| format!("key {key}")) {
        keys.entry(world.queue.bucket(&key).unwrap()).or_insert(key);
        if keys.len() == 16 {
            break;
        }
    }
    let first = world.add(&keys[&Bucket(0)], None).await;
    for key in keys.values() {
        add_large(&world, key, 10).await;
    }
    let tr = store.db.begin().unwrap();
    let backlog = world.queue.backlog(&tr).await.unwrap();
    // 16 buckets of 900 KB each, of which 8 MiB are counted. The last block may exceed the limit.
    let read = backlog.pending.bytes;
    assert!(((8 << 20)..(8 << 20) + 100_000).contains(&read), "{read}");
    assert!(backlog.pending.has_more);
    assert!((90..100).contains(&backlog.pending.count), "{backlog:?}");
    assert_eq!(backlog.lag, Some(age(&tr, first).await));
    assert_eq!(backlog.damaged, []);
}

async fn a_foreign_key_in_a_log_damages_its_bucket_and_no_other(store: TestStore) {
    // With this many buckets, reads go from one bucket that has updates to the next.
    for bucket_count in [2, 200] {
        let world = World::sums(&store, bucket_count).await;
        let keys: Vec<_> = (0..20).map(|key| format!("key {key}")).collect();
        let updates = keys.iter().map(|key| (key.clone(), 1)).collect();
        let added = world.add_all(updates).await;
        let damaged = world.queue.bucket(&keys[0]).unwrap();
        let in_it = keys
            .iter()
            .filter(|key| world.queue.bucket(key).unwrap() == damaged)
            .count();
        let log = world.queue.subspace().subspace(&("u", 0, damaged.0));
        let last = [log.bytes(), b"\x40"].concat();
        for (foreign, counted_in_it) in [(last, in_it), (log.pack(&"first"), 0)] {
            write(&world, &foreign, b"").await;
            let backlog = backlog(&world).await;
            assert_eq!(backlog.damaged, [damaged]);
            assert_eq!(backlog.pending.count, keys.len() - in_it + counted_in_it);
            assert!(backlog.pending.has_more && backlog.lag.is_some());
        }
        // The passes over the other buckets go on.
        let worker = world.work(Unobserved).await;
        let is_whole = |key: &&String| world.queue.bucket(key).unwrap() != damaged;
        let others: Vec<_> = keys.iter().filter(is_whole).cloned().collect();
        let settled = world.queue.await_settled(&world.runner, &others, added);
        conformance::timeout(LONG, settled).await.unwrap();
        worker.shut_down(LONG).await.unwrap();
    }
}

/// Stages a state of passes according to which the first updates of a block are folded.
pub(crate) async fn fold_first(world: &World, row: &KeyValue, folded: u16) {
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
    assert_eq!(backlog(&world).await.pending.count, 2);
    write(&world, &pass_row(&world), b"\x02newer").await;
    let backlog = backlog(&world).await;
    assert_eq!(
        (backlog.pending.count, &backlog.damaged[..]),
        (3, &[Bucket(0)][..])
    );
    let queue = &world.queue;
    let count = |tr| async move { queue.pending(&tr, Bucket(0)).await };
    let refused = world.runner.run(count).await.unwrap_err();
    assert!(
        matches!(refused, Error::Keyspace(keyspace::Error::Corrupt { .. })),
        "{refused}"
    );
}

async fn key_state<U, V>(world: &World<U, V>, key: &str) -> KeyState<V>
where
    U: crate::common::Stored,
    V: crate::common::Stored,
{
    let queue = &world.queue;
    let key = &key.to_owned();
    let key_state = |tr| async move { queue.key_state(&tr, key).await };
    world.runner.run(key_state).await.unwrap()
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
    let state = key_state(&world, "a").await;
    assert_eq!((state.settled, state.current), (Ok(None), Ok(None)));
    assert_eq!((state.withheld, state.has_more), (Ok(None), false));
    assert_eq!(state.pending, Ok(Vec::new()));

    world.add("a", 1).await;
    world
        .combine(WorkerOptions::default(), &Log::new(&world.root))
        .await;
    set_current(&world, &[&b"\x01\x01"[..], &number(5)].concat()).await;
    let updates = [("a", 2), ("b", 9), ("a", 3)].map(|(key, update)| (key.to_owned(), update));
    world.add_all(updates.to_vec()).await;
    world.add("a", 4).await;
    let state = key_state(&world, "a").await;
    assert_eq!((state.settled, state.current), (Ok(Some(1)), Ok(Some(5))));
    assert_eq!(state.pending, Ok([2, 3, 4].map(number).to_vec()));
    assert_eq!((state.withheld, state.has_more), (Ok(None), false));
    assert_eq!(world.exact("a").await, Some(5 + 2 + 3 + 4));

    // A current value may also be that the key has no value.
    set_current(&world, b"\x01\0").await;
    let state = key_state(&world, "a").await;
    assert_eq!((state.settled, state.current), (Ok(Some(1)), Ok(None)));
}

async fn updates_of_a_block_that_are_folded_are_not_pending(store: TestStore) {
    let world = folded_in_part(&store).await;
    let state = key_state(&world, "a").await;
    assert_eq!(state.pending, Ok([2, 3].map(number).to_vec()));
}

async fn why_the_reports_of_a_key_are_withheld_is_said(store: TestStore) {
    let world = World::sums(&store, 1).await;
    world.add("a", 1).await;
    world
        .combine(WorkerOptions::default(), &Log::new(&world.root))
        .await;
    set_current(&world, &[&b"\x01\x03"[..], &number(5)].concat()).await;
    let row = world
        .queue
        .subspace()
        .pack(&("q", 0, "k", &encoded("a")[..]));
    write(&world, &row, b"\x01\x09too large").await;
    let state = key_state(&world, "a").await;
    assert_eq!(state.withheld, Ok(Some("too large".to_owned())));
    assert_eq!((state.settled, state.current), (Ok(Some(1)), Ok(Some(5))));
    assert_eq!(key_state(&world, "b").await.withheld, Ok(None));
}

async fn what_does_not_decode_of_a_key_hides_nothing_else(store: TestStore) {
    let world = World::sums(&store, 1).await;
    world.add("a", 1).await;
    let log = Log::new(&world.root);
    world.combine(WorkerOptions::default(), &log).await;
    set_current(&world, &[&b"\x01\x01"[..], &number(5)].concat()).await;
    world.add("a", 2).await;
    let queue = world.queue.subspace();
    let [value] = &world.rows("v").await[..] else {
        panic!("expected one value");
    };
    let (hash, key) = id_of_value(queue, value);
    let current = queue.pack(&("c", 0, hash, &key[..]));
    let withheld = queue.pack(&("q", 0, "k", &encoded("a")[..]));
    write(&world, &withheld, b"\x01\x03why").await;
    let block = world.rows("u").await.pop().unwrap().to_key();
    let damaged = b"\x02newer";
    for row in [value.key(), &current, &withheld, &pass_row(&world), &block] {
        let tr = store.db.begin().unwrap();
        let whole = tr.get(row, Isolation::Snapshot).await.unwrap().unwrap();
        write(&world, row, damaged).await;
        let state = key_state(&world, "a").await;
        let is_at = |at: &[u8]| row == at;
        assert_eq!(state.settled.is_err(), is_at(value.key()));
        assert_eq!(state.current.is_err(), is_at(&current));
        assert_eq!(state.withheld.is_err(), is_at(&withheld));
        let pending_is_unknown = is_at(&pass_row(&world)) || is_at(&block);
        assert_eq!(state.pending.is_err(), pending_is_unknown);
        let undecodable = (state.settled.err())
            .or(state.current.err())
            .or(state.withheld.err())
            .or(state.pending.err())
            .unwrap();
        assert_eq!(
            (&undecodable.key[..], &undecodable.bytes[..]),
            (row, &damaged[..])
        );
        assert!(undecodable.reason.contains("upgrade"), "{undecodable}");
        write(&world, row, &whole).await;
    }
}

async fn more_pending_updates_than_are_read_are_said_to_be_there(store: TestStore) {
    let world: World<Option<String>, String> = World::new(&store, 1, LastWriter).await;
    world.add("a", Some("first".to_owned())).await;
    add_large(&world, "other", 100).await;
    world.add("a", Some("last".to_owned())).await;
    let state = key_state(&world, "a").await;
    assert!(state.has_more);
    let first = bytes_of(&MessagePack, &Some("first".to_owned()));
    assert_eq!(state.pending, Ok(vec![first]));
}

async fn a_queue_that_was_added_to_is_not_looked_into_in_the_same_transaction(store: TestStore) {
    let world = World::sums(&store, 7).await;
    let queue = &world.queue;
    let a = &"a".to_owned();
    let b = &"b".to_owned();
    let key_state = |tr| async move {
        queue.key_state(&tr, a).await?;
        queue.add(&tr, b, &1).await?;
        queue.key_state(&tr, a).await
    };
    let refused = world.runner.run(key_state).await.unwrap_err();
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
    let queue = &world.queue;
    let a = &"a".to_owned();
    world.add("a", 1).await;
    let mut tr = store.db.begin().unwrap();
    queue.key_state(&tr, a).await.unwrap();
    queue.backlog(&tr).await.unwrap();
    queue.verify_order(&tr).await.unwrap();
    queue.sessions().all(&tr).await.unwrap();
    queue.sessions().heartbeats(&tr).await.unwrap();
    let log = Log::new(&world.root);
    world.combine(WorkerOptions::default(), &log).await;
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
        let all = sessions.all(&tr).await.unwrap();
        let heartbeats = sessions.heartbeats(&tr).await.unwrap();
        let with_state: Vec<_> = all.iter().map(|(session, _)| *session).collect();
        let with_heartbeat: Vec<_> = (heartbeats.iter())
            .map(|heartbeat| heartbeat.session)
            .collect();
        (with_state, with_heartbeat)
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

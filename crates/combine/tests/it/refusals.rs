//! Bad input is refused with a typed error or set aside, and nothing is lost.

use std::error::Error as _;
use std::time::Duration;

use crate::common::{
    LONG, Log, Queue, World, encoded, open_sums, redrive, set_aside, settings, short_lived, write,
};
use combine::microqueue;
use combine::{
    AsideId, Bucket, CombineQueue, Error, Exact, InvalidSettings, SetAside, Settings, Sum,
    WorkerOptions,
};
use conformance::stores::TestStore;
use conformance::{timeout, until, with_warnings};
use keyspace::codec::Json;
use keyspace::error::corrupt_key;
use keyspace::ids::Ids;
use keyspace::{
    Database, Isolation, OpenOptions, OwnedTransaction, RangeQuery, Transaction, read_all,
};

conformance::on_every_store!(threads:
    a_queue_is_opened_with_its_stored_settings,
    another_codec_than_the_queues_is_refused_by_both_names,
    settings_that_cannot_work_are_refused,
    settings_of_a_newer_version_are_refused,
    a_listing_of_updates_set_aside_says_of_each_whether_it_decodes,
    a_combiner_that_panics_keeps_its_own_updates_only,
    a_queue_that_was_added_to_has_no_exact_values_in_the_same_transaction,
    a_damaged_value_is_an_error_and_other_keys_go_on,
    a_damaged_pass_state_keeps_its_own_bucket_only,
    a_foreign_key_in_a_log_keeps_its_own_bucket_only,
    a_foreign_key_after_blocks_keeps_none_of_them_from_being_folded,
    a_row_that_is_no_current_value_keeps_no_change_from_being_reported,
    a_damaged_row_of_a_session_keeps_no_bucket,
    a_subspace_that_the_registry_of_ids_knows_is_refused,
);

async fn clear(world: &World, row: &[u8]) {
    let clear = |tr: keyspace::Tx<_>| async move {
        tr.clear(row);
        Ok::<_, Error>(())
    };
    world.runner.run(clear).await.unwrap();
}

fn bucket_of(world: &World, key: &str) -> Bucket {
    world.queue.bucket(&key.to_owned()).unwrap()
}

fn is_corrupt(error: &Error, row: &[u8]) -> bool {
    matches!(error, Error::Keyspace(keyspace::Error::Corrupt { key, .. }) if key == row)
}

async fn a_queue_is_opened_with_its_stored_settings(store: TestStore) {
    let world = World::sums(&store, 4).await;
    let other_count = settings(5);
    let other_lease = settings(4).with_lease(Duration::from_secs(7));
    let subspace = world.queue.subspace();
    for (given, expected_warnings) in [(settings(4), 0), (other_count, 1), (other_lease, 1)] {
        let open = open_sums(&world.runner, subspace.clone(), given);
        let (opened, warnings) = with_warnings(open).await;
        let opened = opened.unwrap();
        assert_eq!(warnings.len(), expected_warnings, "{warnings:?}");
        assert_eq!(opened.settings(), world.queue.settings());
        assert_eq!(
            opened.bucket(&"key".to_owned()).unwrap(),
            bucket_of(&world, "key")
        );
    }
    let open = Queue::<i64>::open(&world.runner, subspace.clone(), Sum);
    let (opened, warnings) = with_warnings(open).await;
    assert_eq!(opened.unwrap().settings(), world.queue.settings());
    assert_eq!(warnings, [""; 0]);
}

async fn another_codec_than_the_queues_is_refused_by_both_names(store: TestStore) {
    let world = World::sums(&store, 4).await;
    let subspace = world.queue.subspace().clone();
    let codec = CombineQueue::<String, i64, i64, Json>::open_with(
        &world.runner,
        subspace,
        settings(4),
        Sum,
        OpenOptions::default(),
    );
    let refused = codec.await.unwrap_err();
    assert!(
        matches!(&refused, Error::SettingsDiffer(differ)
            if differ.stored.codecs == ["MessagePack"; 3] && differ.given.codecs == ["Json"; 3]),
        "{refused}"
    );
    for name in ["MessagePack", "Json"] {
        assert!(refused.to_string().contains(name), "{refused}");
    }
}

async fn settings_that_cannot_work_are_refused(store: TestStore) {
    let runner = store.runner();
    let open = |settings| open_sums(&runner, store.fresh().root, settings);
    for bucket_count in [0, 65_537, u32::MAX] {
        let refused = open(settings(bucket_count)).await.unwrap_err();
        assert!(
            matches!(refused, Error::InvalidSettings(InvalidSettings::BucketCount { given, limit: 65_536 })
                if given == bucket_count),
            "{refused}"
        );
    }
    let lease_of = |lease| Settings::new().with_lease(lease);
    let least = Duration::from_millis(30);
    let too_short = least - Duration::from_nanos(1);
    let refused = open(lease_of(too_short)).await.unwrap_err();
    assert!(
        matches!(refused, Error::InvalidSettings(InvalidSettings::LeaseTooShort { given, least: at_least })
            if given == too_short && at_least == least),
        "{refused}"
    );
    for fits in [settings(1), settings(65_536), lease_of(least)] {
        assert_eq!(*open(fits).await.unwrap().settings(), fits);
    }
}

async fn settings_of_a_newer_version_are_refused(store: TestStore) {
    let world = World::sums(&store, 4).await;
    let row = world.queue.subspace().pack(&"m");
    let queue = &world.queue;
    let rows = world.rows_of(queue.subspace()).await;
    let stored = rows.iter().find(|found| found.key() == row).unwrap();
    let newer = [&[2], &stored.value()[1..]].concat();
    write(&world, &row, &newer).await;
    let open = || open_sums(&world.runner, queue.subspace().clone(), settings(4));
    let refused = open().await.unwrap_err();
    assert!(is_corrupt(&refused, &row), "{refused}");
    let reason = refused.source().unwrap().to_string();
    assert!(reason.contains("format 2 is newer"), "{reason}");
    write(&world, &row, stored.value()).await;
    open().await.unwrap();
}

async fn a_listing_of_updates_set_aside_says_of_each_whether_it_decodes(store: TestStore) {
    let sums = |_: &String, _: Option<i64>, _: Vec<i64>| -> Option<i64> { panic!("on purpose") };
    let world = World::new(&store, 1, sums).await;
    let log = Log::new(&world.root);
    for key in ["a", "b", "c"] {
        world.add(key, 1).await;
    }
    world.combine(WorkerOptions::default(), &log).await;
    let whole = set_aside(&world).await;
    let broken = &whole[1].id;
    let AsideId::Update { bucket, id } = broken else {
        panic!("expected an update, found {broken:?}");
    };
    let row = id.key_in(&world.queue.subspace().subspace(&("q", bucket.0, "u")));
    write(&world, &row, b"\x02newer").await;

    let listed = set_aside(&world).await;
    assert_eq!(listed.len(), 3);
    assert_eq!((&listed[0], &listed[2]), (&whole[0], &whole[2]));
    assert_eq!(&listed[1].id, broken);
    let undecodable = listed[1].value.as_ref().unwrap_err();
    assert_eq!(
        (&undecodable.key[..], &undecodable.bytes[..]),
        (&row[..], &b"\x02newer"[..])
    );
    let queue = &world.queue;
    let page = |tr| async move { queue.set_aside(&tr, Some(broken), 1).await };
    assert_eq!(world.runner.run(page).await.unwrap(), whole[2..]);
    // It cannot be redriven, but it can be purged.
    let redrive = |tr| async move { queue.redrive(&tr, broken).await };
    let refused = world.runner.run(redrive).await.unwrap_err();
    assert!(is_corrupt(&refused, &row), "{refused}");
    let purge = |tr| async move { queue.purge(&tr, broken).await };
    assert!(world.runner.run(purge).await.unwrap());
    assert_eq!(set_aside(&world).await, [&whole[..1], &whole[2..]].concat());
}

async fn a_combiner_that_panics_keeps_its_own_updates_only(store: TestStore) {
    let sums = |key: &String, current: Option<i64>, updates: Vec<i64>| {
        let bad = updates.iter().find(|update| **update < 0);
        assert_eq!(bad, None, "on purpose, for {key}");
        Some(current.unwrap_or(0) + updates.iter().sum::<i64>())
    };
    let world = World::new(&store, 1, sums).await;
    let log = Log::new(&world.root);
    world.add("bad", 1).await;
    world.combine(WorkerOptions::default(), &log).await;
    let updates = [("a", 2), ("bad", 4), ("bad", -1), ("z", 8)];
    world
        .add_all(updates.map(|(key, update)| (key.to_owned(), update)).into())
        .await;
    let queue = &world.queue;
    let bad = &"bad".to_owned();
    let exact = |tr| async move { queue.exact(&tr, bad, &Exact::default()).await };
    let refused = world.runner.run(exact).await.unwrap_err();
    assert!(
        matches!(&refused, Error::CombinerPanicked { key } if key[..] == encoded("bad")),
        "{refused}"
    );

    world.combine(WorkerOptions::default(), &log).await;
    let expected = [("a", 2), ("bad", 1), ("z", 8)].map(|(key, sum)| (key.to_owned(), sum));
    assert_eq!(world.values().await, expected.into());
    assert_eq!(world.exact("bad").await, Some(1));
    let found = set_aside(&world).await;
    assert_eq!(found.len(), 2);
    for aside in &found {
        let SetAside { key, reason, .. } = aside.value.as_ref().unwrap();
        assert_eq!(key[..], encoded("bad"));
        assert!(reason.contains("on purpose, for bad"), "{reason}");
    }
    // Updates that it can take alone do count.
    assert!(redrive(&world, &found[0].id).await);
    world.combine(WorkerOptions::default(), &log).await;
    assert_eq!(world.settled("bad").await, Some(1 + 4));
    assert_eq!(set_aside(&world).await, found[1..]);
    log.check(&world).await;
}

async fn a_queue_that_was_added_to_has_no_exact_values_in_the_same_transaction(store: TestStore) {
    let world = World::sums(&store, 7).await;
    for is_there_before in [false, true] {
        let isolations = [Isolation::Snapshot, Isolation::Serializable];
        for (isolation, added_to) in isolations.into_iter().zip(["a", "b"]) {
            let queue = &world.queue;
            let a = &"a".to_owned();
            let added_to = &added_to.to_owned();
            let options = &Exact::new().with_isolation(isolation);
            let read = |tr| async move {
                // Reading first is allowed. After an addition no key can be read, in any bucket.
                let before = queue.exact(&tr, a, options).await?;
                assert_eq!(before.is_some(), is_there_before);
                queue.clone().add(&tr, added_to, &1).await?;
                queue.exact(&tr, a, options).await
            };
            let refused = world.runner.run(read).await.unwrap_err();
            assert!(
                matches!(
                    refused,
                    Error::Updates(microqueue::Error::ReadAfterWrite { .. })
                ),
                "{refused}"
            );
        }
        world.add("a", 1).await;
    }
}

async fn a_damaged_value_is_an_error_and_other_keys_go_on(store: TestStore) {
    let world = World::sums(&store, 2).await;
    let log = Log::new(&world.root);
    let keys: Vec<_> = (0..20).map(|key| format!("key {key}")).collect();
    let add_all = || world.add_all(keys.iter().map(|key| (key.clone(), 1)).collect());
    add_all().await;
    world.combine(WorkerOptions::default(), &log).await;

    let queue = &world.queue;
    let key = &keys[0];
    let packed = keyspace::tuple::pack(&encoded(key));
    let rows = world.rows("v").await;
    let row = rows
        .iter()
        .find(|row| row.key().ends_with(&packed))
        .unwrap()
        .key();
    for damaged in [&b""[..], b"\0\x02", b"\x01\xc1"] {
        write(&world, row, damaged).await;
        let settled = |tr| async move { queue.settled(&tr, key, Isolation::Snapshot).await };
        let exact = |tr| async move { queue.exact(&tr, key, &Exact::default()).await };
        for refused in [
            world.runner.run(settled).await.unwrap_err(),
            world.runner.run(exact).await.unwrap_err(),
        ] {
            assert!(is_corrupt(&refused, row), "{refused}");
        }
        let read = |tr| async move {
            let values = queue.values(&tr, None, usize::MAX, Isolation::Snapshot);
            values.await
        };
        let values = world.runner.run(read).await.unwrap();
        let (bad, good): (Vec<_>, Vec<_>) =
            values.into_iter().partition(|listed| listed.value.is_err());
        assert_eq!((bad.len(), good.len()), (1, keys.len() - 1));
        assert_eq!(bad[0].id, encoded(key));
        assert_eq!(bad[0].value.as_ref().unwrap_err().key, row);
    }
    // Its updates are set aside, and all other keys continue.
    add_all().await;
    world.combine(WorkerOptions::default(), &log).await;
    let found = set_aside(&world).await;
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].value.as_ref().unwrap().key, encoded(key));
    for other in &keys[1..] {
        assert_eq!(world.settled(other).await, Some(2));
    }
    write(&world, row, b"\x01\x01").await;
    assert!(redrive(&world, &found[0].id).await);
    world.combine(WorkerOptions::default(), &log).await;
    let expected = keys.into_iter().map(|key| (key, 2));
    assert_eq!(world.values().await, expected.collect());
    log.check(&world).await;
    world.assert_nothing_left().await;
}

async fn a_damaged_pass_state_keeps_its_own_bucket_only(store: TestStore) {
    let world = World::sums(&store, 2).await;
    let log = Log::new(&world.root);
    let keys: Vec<_> = (0..20).map(|key| format!("key {key}")).collect();
    // The first bucket that is read.
    let bucket = Bucket(0);
    let row = world.queue.subspace().pack(&("x", 0, bucket.0));
    write(&world, &row, b"\x01\0").await;
    let stamp = world
        .add_all(keys.iter().map(|key| (key.clone(), 1)).collect())
        .await;
    let queue = &world.queue;
    let all = |tr| async move { queue.is_all_settled(&tr, stamp).await };
    assert!(!world.runner.run(all).await.unwrap());

    let worker = world.work(log.clone()).await;
    let others: Vec<_> = keys
        .iter()
        .filter(|key| bucket_of(&world, key) != bucket)
        .cloned()
        .collect();
    let settled = world.queue.await_settled(&world.runner, &others, stamp);
    timeout(LONG, settled).await.unwrap();
    // Once only this bucket is left, the error names the row.
    for refused in [
        timeout(LONG, world.queue.wait_idle(&world.runner))
            .await
            .unwrap_err(),
        world.runner.run(all).await.unwrap_err(),
    ] {
        assert!(is_corrupt(&refused, &row), "{refused}");
    }
    // Without the record, the first pass starts over.
    clear(&world, &row).await;
    world.wait_idle().await;
    worker.shut_down(LONG).await.unwrap();
    let expected = keys.into_iter().map(|key| (key, 1));
    assert_eq!(world.values().await, expected.collect());
    log.check(&world).await;
    world.assert_nothing_left().await;
}

async fn a_subspace_that_the_registry_of_ids_knows_is_refused(store: TestStore) {
    let runner = store.runner();
    let ids = &Ids::new(store.root.subspace(&"ids"));
    let jobs = &store.root.subspace(&"jobs");
    let counts = store.root.subspace(&"counts");
    let register = |tr| async move { ids.register(&tr, jobs, "hc-dequeue", &[]).await };
    runner.run(register).await.unwrap();
    let options = || OpenOptions::new().with_ids(ids.clone());
    for inside in [jobs.clone(), jobs.subspace(&"u"), store.root.clone()] {
        let queue = Queue::<i64>::open_with(&runner, inside, settings(1), Sum, options()).await;
        let error = queue.unwrap_err();
        let Error::Keyspace(overlap @ keyspace::Error::Overlap { .. }) = &error else {
            panic!("{error}");
        };
        let text = overlap.to_string();
        assert!(
            text.contains("hc-dequeue") || text.contains("registry of ids"),
            "{text}"
        );
    }
    // Nothing was written where the open failed. The queue may still open its own subspace again.
    let (begin, end) = jobs.range();
    let query = &RangeQuery::keys(begin, end);
    let rows = |tr| async move { read_all(&tr, query.clone(), Isolation::Snapshot).await };
    assert_eq!(runner.run(rows).await.unwrap(), []);
    for _ in 0..2 {
        let queue = Queue::<i64>::open_with(&runner, counts.clone(), settings(1), Sum, options());
        queue.await.unwrap();
    }
}

fn twenty() -> Vec<(String, i64)> {
    (0..20).map(|key| (format!("key {key}"), 1)).collect()
}

async fn a_foreign_key_in_a_log_keeps_its_own_bucket_only(store: TestStore) {
    for bucket_count in [2, 200] {
        let world = World::sums(&store, bucket_count).await;
        world.add_all(twenty()).await;
        let damaged = bucket_of(&world, "key 0");
        let log = world.queue.subspace().subspace(&("u", 0, damaged.0));
        let row = log.pack(&"foreign");
        write(&world, &row, b"").await;
        // The queue can still be opened.
        let subspace = world.queue.subspace().clone();
        let opened = open_sums(&world.runner, subspace, settings(bucket_count));
        opened.await.unwrap();
        let worker = world.work(Log::new(&world.root)).await;
        let refused = timeout(LONG, world.queue.wait_idle(&world.runner))
            .await
            .unwrap_err();
        assert_eq!(corrupt_key(&refused), Some(&row[..]), "{refused}");
        let others = twenty()
            .into_iter()
            .filter(|(key, _)| bucket_of(&world, key) != damaged);
        assert_eq!(world.values().await, others.collect());
        clear(&world, &row).await;
        world.wait_idle().await;
        worker.shut_down(LONG).await.unwrap();
        assert_eq!(world.values().await, twenty().into_iter().collect());
        world.assert_nothing_left().await;
    }
}

async fn a_foreign_key_after_blocks_keeps_none_of_them_from_being_folded(store: TestStore) {
    let world = World::sums(&store, 4).await;
    world.add_all(twenty()).await;
    let damaged = bucket_of(&world, "key 0");
    let log = world.queue.subspace().subspace(&("u", 0, damaged.0));
    // After every block, since no element of a tuple begins with this byte.
    let row = [log.bytes(), b"\x40"].concat();
    write(&world, &row, b"").await;
    let worker = world.work(Log::new(&world.root)).await;
    let refused = timeout(LONG, world.queue.wait_idle(&world.runner))
        .await
        .unwrap_err();
    assert_eq!(corrupt_key(&refused), Some(&row[..]), "{refused}");
    // All updates are folded. Those of the bucket are reported at the end of its log.
    let left: Vec<_> = world.rows("u").await;
    assert_eq!(
        left.iter().map(|row| row.key()).collect::<Vec<_>>(),
        [&row[..]]
    );
    clear(&world, &row).await;
    world.wait_idle().await;
    assert_eq!(world.values().await, twenty().into_iter().collect());
    worker.shut_down(LONG).await.unwrap();
    world.assert_nothing_left().await;
}

async fn a_row_that_is_no_current_value_keeps_no_change_from_being_reported(store: TestStore) {
    for bucket_count in [1, 4, 100] {
        let world = World::sums(&store, bucket_count).await;
        let queue = world.queue.subspace();
        // Before the values of all buckets, among them, and after them.
        for hash in [-1, 0, 1, 20_000, 40_000, 65_535, 70_000] {
            write(&world, &queue.pack(&("c", 0, hash, "foreign")), b"x").await;
            write(&world, &queue.pack(&("c", 0, hash)), b"").await;
        }
        write(&world, &queue.pack(&("c", 0, "foreign")), b"x").await;
        let log = Log::new(&world.root);
        world.add_all(twenty()).await;
        // Small passes leave values for later ones to report.
        let options = WorkerOptions::new().with_max_batch_bytes(1);
        world.combine(options, &log).await;
        assert_eq!(world.values().await, twenty().into_iter().collect());
        log.check(&world).await;
    }
}

async fn a_damaged_row_of_a_session_keeps_no_bucket(store: TestStore) {
    let (_, world) = short_lived(&store).await;
    let queue = world.queue.subspace();
    let session = [7_u8; 16].as_slice();
    for (part, name, value) in [
        ("s", session, &b"damaged"[..]),
        ("b", session, b"damaged"),
        ("s", b"no session", b""),
        ("b", b"no session", b""),
    ] {
        write(&world, &queue.pack(&(part, name)), value).await;
    }
    let log = Log::new(&world.root);
    world.add_all(twenty()).await;
    world.combine(WorkerOptions::default(), &log).await;
    assert_eq!(world.values().await, twenty().into_iter().collect());
    // A worker that dies is still found by another one.
    let dies = world.queue.sessions();
    let mut tr = world.runner.database().begin().unwrap();
    let dead = combine::hc_dequeue::session::SessionId([9; 16]);
    dies.open(&tr, dead, Duration::from_millis(30), std::time::UNIX_EPOCH);
    tr.commit().await.unwrap();
    let worker = world.work(log.clone()).await;
    let is_gone = || async {
        let tr = world.runner.database().begin().unwrap();
        dies.life(&tr, dead).await.unwrap().is_none()
    };
    until(async || is_gone().await).await;
    worker.shut_down(LONG).await.unwrap();
    log.check(&world).await;
}

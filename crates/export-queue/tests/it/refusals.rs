//! Operations that are refused, and that nothing is lost by them.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::common::{LONG, Queue, Receiver, World, no_backoff, open, settings};
use conformance::stores::TestStore;
use conformance::with_warnings;
use export_queue::combine::Bucket;
use export_queue::keyspace::codec::{Json, Raw};
use export_queue::keyspace::ids::Ids;
use export_queue::microqueue::blocks::{EntryId, WHOLE_BLOCK};
use export_queue::{Error, ExportQueue, MAX_ENTRY_BYTES, Start, WorkerOptions, microqueue};
use keyspace::{Bytes, OpenOptions, Transaction, Tx, Versionstamp};

conformance::on_every_store!(threads:
    a_queue_is_opened_with_its_stored_settings_and_its_codec,
    settings_that_cannot_work_are_refused,
    names_of_subscriptions_are_checked,
    a_subspace_that_is_taken_is_refused,
    the_largest_entry_goes_all_the_way_and_a_larger_one_is_refused,
    an_entry_that_does_not_decode_is_a_dead_letter_and_the_others_go_on,
    a_listing_of_dead_letters_says_of_each_whether_it_decodes,
    more_entries_that_do_not_decode_than_fit_a_transaction_are_all_dead_letters,
    a_damaged_position_keeps_its_own_bucket_and_subscription_only,
    a_queue_without_settings_is_no_queue,
    a_queue_with_a_stamp_above_the_stores_version_is_not_opened,
    a_damaged_row_of_a_session_keeps_no_bucket,
);

async fn a_queue_is_opened_with_its_stored_settings_and_its_codec(store: TestStore) {
    let world = World::new(&store, 3).await;
    let subspace = world.queue.subspace().clone();
    let runner = &world.runner;
    let other_lease = settings(3).with_lease(Duration::from_secs(1));
    for (given, expected_warnings) in [(settings(3), 0), (settings(4), 1), (other_lease, 1)] {
        let (opened, warnings) = with_warnings(open(runner, subspace.clone(), given)).await;
        assert_eq!(opened.unwrap().settings(), world.queue.settings());
        assert_eq!(warnings.len(), expected_warnings, "{warnings:?}");
    }
    let open_with_defaults = Queue::open(runner, subspace.clone());
    let (opened, warnings) = with_warnings(open_with_defaults).await;
    assert_eq!(opened.unwrap().settings(), world.queue.settings());
    assert_eq!(warnings, [""; 0]);
    type OtherCodec = ExportQueue<String, Option<i64>, Json>;
    let other_codec =
        OtherCodec::open_with(runner, subspace, settings(3), OpenOptions::default()).await;
    let error = other_codec.unwrap_err();
    assert!(matches!(error, Error::SettingsDiffer(_)), "{error}");
    let text = error.to_string();
    assert!(
        text.contains("MessagePack") && text.contains("Json"),
        "{text}"
    );
}

async fn settings_that_cannot_work_are_refused(store: TestStore) {
    let runner = store.runner();
    let short = settings(1).with_lease(Duration::from_millis(1));
    for settings in [settings(0), settings(65_537), settings(u32::MAX), short] {
        let refused = open(&runner, store.root.clone(), settings).await;
        assert!(
            matches!(refused, Err(Error::InvalidSettings(_))),
            "{settings:?}"
        );
    }
}

async fn names_of_subscriptions_are_checked(store: TestStore) {
    let world = World::new(&store, 1).await;
    for name in ["", &"x".repeat(256)] {
        let refused = world.queue.subscribe(&world.runner, name, Start::Now).await;
        assert!(matches!(refused, Err(Error::SubscriptionName { .. })));
    }
    let long = "x".repeat(255);
    let queue = &world.queue;
    let mut names = vec!["reader".to_owned()];
    let too_many = loop {
        let name = format!("{:03}{}", names.len(), &long[3..]);
        match queue.subscribe(&world.runner, &name, Start::Oldest).await {
            Ok(_) => names.push(name),
            Err(error) => break error,
        }
    };
    assert!(
        matches!(too_many, Error::TooManySubscriptions { .. }),
        "{too_many}"
    );
    names.sort_unstable();
    let stored = |tr| async move { queue.subscriptions(&tr).await };
    assert_eq!(world.runner.run(stored).await.unwrap(), names);
}

async fn a_subspace_that_is_taken_is_refused(store: TestStore) {
    let runner = store.runner();
    let ids = Ids::new(store.root.subspace(&"ids"));
    let options = || OpenOptions::new().with_ids(ids.clone());
    let place = store.root.subspace(&"place");
    Queue::open_with(&runner, place.clone(), settings(1), options())
        .await
        .unwrap();
    Queue::open_with(&runner, place.clone(), settings(1), options())
        .await
        .unwrap();
    let inside = place.subspace(&"e");
    let refused = Queue::open_with(&runner, inside, settings(1), options())
        .await
        .unwrap_err();
    assert!(
        matches!(refused, Error::Keyspace(keyspace::Error::Overlap { .. })),
        "{refused}"
    );
}

async fn the_largest_entry_goes_all_the_way_and_a_larger_one_is_refused(store: TestStore) {
    type Bytewise = ExportQueue<Bytes, Bytes, Raw>;
    let runner = store.runner();
    let queue = &Bytewise::open_with(
        &runner,
        store.root.subspace(&"queue"),
        settings(1),
        OpenOptions::default(),
    )
    .await
    .unwrap();
    let add = |bytes: usize| {
        let runner = &runner;
        async move {
            let key = &Bytes::from(vec![1; 10]);
            let value = &Bytes::from(vec![2; bytes]);
            runner
                .run(|tr| async move { queue.add(&tr, key, value).await })
                .await
        }
    };
    let refused = add(MAX_ENTRY_BYTES - 9).await.unwrap_err();
    assert!(matches!(refused, Error::EntryTooLarge { .. }), "{refused}");
    add(MAX_ENTRY_BYTES - 10).await.unwrap();

    /// Refuses all batches.
    struct Refuses;
    #[export_queue::async_trait]
    impl export_queue::Exporter<Bytes, Bytes> for Refuses {
        async fn export(
            &self,
            _: &[export_queue::SequencedExport<Bytes, Bytes>],
        ) -> Result<(), export_queue::BoxError> {
            Err("x".repeat(1000).into())
        }
    }
    let reader = queue
        .subscribe(&runner, "reader", Start::Oldest)
        .await
        .unwrap();
    let options = WorkerOptions::new().with_dead_letter_after(1);
    let worker = reader.work(&runner, options, Refuses).await.unwrap();
    let idle = reader.wait_idle(&runner);
    conformance::timeout(LONG, idle).await.unwrap();
    worker.shut_down(LONG).await.unwrap();
    let reader = &reader;
    let read = |tr| async move { reader.dead_letters(&tr, None, 10).await };
    let letters = runner.run(read).await.unwrap();
    assert_eq!(letters.len(), 1);
    assert_eq!(letters[0].value.as_ref().unwrap().reason, "x".repeat(255));
}

async fn an_entry_that_does_not_decode_is_a_dead_letter_and_the_others_go_on(store: TestStore) {
    let world = World::new(&store, 1).await;
    world.add("key", 1).await;
    world.add("other", 2).await;
    // A block of one entry, whose value is not MessagePack.
    let damaged = world.rows("e").await[0].to_key();
    let block = b"\x01\x01\0\x01\x04\x01\xa3key\xc1";
    world.set(&damaged, block).await;
    let receiver = Receiver::default();
    let options = WorkerOptions::new().with_backoff(no_backoff());
    let worker = world.work(options, receiver.clone()).await;
    world.wait_idle().await;
    worker.shut_down(LONG).await.unwrap();
    assert_eq!(receiver.values(), [("other".to_owned(), 2)].into());
    let reader = &world.reader;
    let read = |tr| async move { reader.dead_letters(&tr, None, 10).await };
    let letters = world.runner.run(read).await.unwrap();
    assert_eq!(letters.len(), 1);
    let letter = letters[0].value.as_ref().unwrap();
    assert_eq!(letter.failures, 0);
    let reason = &letter.reason;
    assert!(reason.contains("expected MessagePack"), "{reason}");
    // It still does not decode.
    let redriven = reader
        .redrive(&world.runner, &receiver, &letters[0].id)
        .await;
    assert!(matches!(
        redriven,
        Err(Error::Keyspace(keyspace::Error::Corrupt { .. }))
    ));
}

async fn a_listing_of_dead_letters_says_of_each_whether_it_decodes(store: TestStore) {
    /// Refuses all batches.
    struct Refuses;
    #[export_queue::async_trait]
    impl export_queue::Exporter<String, Option<i64>> for Refuses {
        async fn export(
            &self,
            _: &[export_queue::SequencedExport<String, Option<i64>>],
        ) -> Result<(), export_queue::BoxError> {
            Err("refused".into())
        }
    }
    let world = World::new(&store, 1).await;
    for key in ["a", "b", "c"] {
        world.add(key, 1).await;
    }
    let options = WorkerOptions::new().with_dead_letter_after(1);
    let worker = world.work(options, Refuses).await;
    world.wait_idle().await;
    worker.shut_down(LONG).await.unwrap();
    let reader = &world.reader;
    let letters = |tr| async move { reader.dead_letters(&tr, None, 10).await };
    let whole = world.runner.run(letters).await.unwrap();
    let broken = &whole[1].id;
    let row = &world.rows("d").await[1].to_key();
    let damage = |tr: Tx<_>| async move {
        tr.set(row, b"\x02newer");
        Ok::<_, Error>(())
    };
    world.runner.run(damage).await.unwrap();

    let listed = world.runner.run(letters).await.unwrap();
    assert_eq!(listed.len(), 3);
    assert_eq!((&listed[0], &listed[2]), (&whole[0], &whole[2]));
    assert_eq!(&listed[1].id, broken);
    let undecodable = listed[1].value.as_ref().unwrap_err();
    assert_eq!(
        (&undecodable.key, &undecodable.bytes[..]),
        (row, &b"\x02newer"[..])
    );
    let page = |tr| async move { reader.dead_letters(&tr, Some(*broken), 1).await };
    assert_eq!(world.runner.run(page).await.unwrap(), whole[2..]);
    // It cannot be exported, but it can be removed.
    let redriven = reader
        .redrive(&world.runner, &Receiver::default(), broken)
        .await;
    assert!(matches!(
        redriven,
        Err(Error::Keyspace(keyspace::Error::Corrupt { .. }))
    ));
    let purge = |tr| async move { reader.purge(&tr, broken).await };
    assert!(world.runner.run(purge).await.unwrap());
    assert_eq!(world.rows("d").await.len(), 2);
}

async fn more_entries_that_do_not_decode_than_fit_a_transaction_are_all_dead_letters(
    store: TestStore,
) {
    const ENTRIES: usize = 50_000;
    let world = World::new(&store, 1).await;
    for _ in 0..ENTRIES / 5_000 {
        let entry = |number: usize| (number.to_string(), Some(1));
        world.add_all((0..5_000).map(entry).collect()).await;
    }
    /// Never called.
    struct Unreached;
    #[export_queue::async_trait]
    impl export_queue::Exporter<String, [u64; 8]> for Unreached {
        async fn export(
            &self,
            _: &[export_queue::SequencedExport<String, [u64; 8]>],
        ) -> Result<(), export_queue::BoxError> {
            panic!("nothing decodes");
        }
    }
    let runner = &world.runner;
    let subspace = world.queue.subspace().clone();
    let queue = ExportQueue::<String, [u64; 8]>::open_with(
        runner,
        subspace,
        settings(1),
        OpenOptions::default(),
    )
    .await
    .unwrap();
    let reader = queue
        .subscribe(runner, "reader", Start::Oldest)
        .await
        .unwrap();
    let options = WorkerOptions::new()
        .with_backoff(no_backoff())
        .with_max_batch_bytes(100_000_000);
    let worker = reader.work(runner, options, Unreached).await.unwrap();
    world.wait_idle().await;
    worker.shut_down(LONG).await.unwrap();
    assert_eq!(world.rows("d").await.len(), ENTRIES);
    assert_eq!(world.rows("e").await, []);
}

async fn a_damaged_position_keeps_its_own_bucket_and_subscription_only(store: TestStore) {
    let world = World::new(&store, 8).await;
    let reader = &world.reader;
    let other = &world.subscribe("other", Start::Oldest).await;
    let entry = |number: i64| (format!("key {number}"), Some(number));
    world.add_all((0..64).map(entry).collect()).await;
    let damaged = Bucket(0);
    let (of_damaged, of_others): (BTreeMap<_, _>, BTreeMap<_, _>) = (0..64)
        .map(|number| (format!("key {number}"), number))
        .partition(|(key, _)| world.queue.bucket(key).unwrap() == damaged);
    assert!(!of_damaged.is_empty());
    let position = world.queue.subspace().pack(&("p", "reader", damaged.0));
    // A sequence of the length that was used before.
    world.set(&position, &[1; 19]).await;

    // The other subscription exports everything, and clears no entry that this one may need.
    let received = Receiver::default();
    world.export(other, &received).await;
    assert_eq!(received.values().len(), 64);

    let received = Receiver::default();
    let options = WorkerOptions::new().with_backoff(no_backoff());
    let worker = world.work(options, received.clone()).await;
    let pending = |tr| async move { reader.pending(&tr, damaged).await.map(drop) };
    let idle = conformance::timeout(LONG, reader.wait_idle(&world.runner));
    for refused in [
        // After all other entries have been exported.
        idle.await,
        world.runner.run(pending).await,
    ] {
        let refused = refused.unwrap_err();
        assert!(
            matches!(&refused, Error::Keyspace(keyspace::Error::Corrupt { key, .. }) if *key == position),
            "{refused}"
        );
    }
    assert_eq!(received.values(), of_others);
    // All entries of the bucket wait, and no other search or wait fails because of it.
    let lag = |tr| async move { reader.lag(&tr).await };
    assert!(world.runner.run(lag).await.unwrap().is_some());
    world.wait_for(other).await;

    // Without the record, the bucket starts with the oldest entry that is left.
    world.clear(&position).await;
    world.wait_idle().await;
    worker.shut_down(LONG).await.unwrap();
    assert_eq!(received.values().len(), 64);
    world.assert_nothing_left().await;
}

async fn a_queue_without_settings_is_no_queue(store: TestStore) {
    let world = World::new(&store, 1).await;
    let (begin, end) = &world.queue.subspace().range();
    let clear = |tr: Tx<_>| async move {
        tr.clear_range(begin, end);
        Ok::<_, Error>(())
    };
    world.runner.run(clear).await.unwrap();
    let refused = world
        .queue
        .subscribe(&world.runner, "late", Start::Now)
        .await;
    assert!(matches!(refused, Err(Error::NoQueue { .. })));
}

async fn a_queue_with_a_stamp_above_the_stores_version_is_not_opened(store: TestStore) {
    let ahead = EntryId {
        versionstamp: Versionstamp::new(i64::MAX, 0),
        call: 0,
        index: WHOLE_BLOCK,
    };
    for is_position in [false, true] {
        let world = World::new(&store, 1).await;
        world.add("key", 1).await;
        let block = world.rows("e").await[0].to_value();
        let place = world.queue.subspace();
        let log = place.subspace(&("e", 0));
        let (key, value, expected) = if is_position {
            let position = [&[1][..], &ahead.to_bytes()].concat();
            (place.pack(&("p", "reader", 0)), position.into(), place)
        } else {
            (ahead.block().key_in(&log), block, &log)
        };
        world.set(&key, &value).await;
        let refused = open(&world.runner, place.clone(), settings(1)).await;
        match refused {
            Err(Error::Log(microqueue::Error::StampAhead { queue, stamp, .. })) => {
                assert_eq!((&queue, stamp), (expected, ahead.versionstamp));
            }
            other => panic!("{other:?}"),
        }
    }
}

async fn a_damaged_row_of_a_session_keeps_no_bucket(store: TestStore) {
    let world = World::new(&store, 4).await;
    let queue = world.queue.subspace();
    let session = [7_u8; 16].as_slice();
    for (part, name, value) in [
        ("s", session, &b"damaged"[..]),
        ("b", session, b"damaged"),
        ("s", b"no session", b""),
        ("b", b"no session", b""),
    ] {
        world
            .set(&queue.pack(&("s", "reader", part, name)), value)
            .await;
    }
    // The session even has the claims.
    let claim = [&b"\x01"[..], session].concat();
    for bucket in 0..4 {
        world
            .set(&queue.pack(&("c", "reader", bucket)), &claim)
            .await;
    }
    let entries: Vec<_> = (0..20)
        .map(|number| (format!("key {number}"), Some(number)))
        .collect();
    world.add_all(entries).await;
    let receiver = Receiver::default();
    world.export(&world.reader, &receiver).await;
    assert_eq!(receiver.values().len(), 20);
}

//! Invalid input: each kind returns a typed error, and nothing is lost.

use std::time::Duration;

use crate::common::{LONG, World, dead_letters, open};
use conformance::stores::TestStore;
use conformance::until;
use hc_dequeue::{
    Backoff, Enqueue, Enqueued, Error, MAX_DEDUPE_BYTES, MAX_PAYLOAD_BYTES, PlaceKind, Queue,
    Settings, WorkerOptions, microqueue,
};
use keyspace::codec::{Bincode, Raw};
use keyspace::error::code_of;
use keyspace::tuple::Versionstamp as TupleVersionstamp;
use keyspace::{
    Bytes, Code, Database, Isolation, OpenOptions, RangeQuery, Transaction, Tx, Versionstamp,
    read_all,
};

conformance::on_every_store!(
    nothing_and_too_much_are_refused,
    a_lease_shorter_than_three_heartbeats_is_refused,
    another_codec_than_the_queues_is_refused,
    a_queue_with_rows_of_a_store_with_a_larger_version_does_not_open,
    an_item_is_acknowledged_once,
    an_acknowledgement_that_does_not_commit_has_no_effect,
    a_dedupe_id_has_a_length,
    a_payload_of_exactly_the_limit_goes_everywhere,
    more_than_a_transaction_takes_says_so,
    more_than_a_transaction_holds_comes_back_in_several,
    what_does_not_decode_fails_like_any_other_item_also_if_it_is_popped,
);

async fn nothing_and_too_much_are_refused(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let consumer = world.consumer().await;
    for wanted in [0, 513] {
        let refused = consumer.dequeue_batch(wanted).await.unwrap_err();
        assert!(matches!(refused, Error::Wanted { limit: 512, .. }));
    }
}

async fn more_than_a_transaction_takes_says_so(store: TestStore) {
    let store = store.fresh();
    let runner = store.runner();
    let subspace = store.root.subspace(&"queue");
    let queue = Queue::<Bytes, Raw>::open(&runner, subspace);
    let queue = &queue.await.unwrap();
    let value = Bytes::from(vec![7; MAX_PAYLOAD_BYTES]);
    let values = &vec![value; 18_000_000 / MAX_PAYLOAD_BYTES];
    let before = store.rows().await.len();
    let at_once = |tr| async move { queue.enqueue_all(&tr, values).await.map(drop) };
    let one_by_one = |tr| async move {
        for value in values {
            queue.enqueue(&tr, value).await?;
        }
        Ok::<_, Error>(())
    };
    for refused in [runner.run(at_once).await, runner.run(one_by_one).await] {
        let refused = refused.unwrap_err();
        assert!(
            matches!(refused, Error::TransactionTooLarge(_)),
            "{refused:?}"
        );
        assert_eq!(code_of(&refused), Some(Code::TRANSACTION_TOO_LARGE));
        assert_eq!(
            refused.to_string(),
            "the transaction stages more than the limit of 10000000 bytes: enqueue in several transactions"
        );
    }
    assert_eq!(store.rows().await.len(), before);
}

async fn a_lease_shorter_than_three_heartbeats_is_refused(store: TestStore) {
    let settings = Settings::new().with_lease(Duration::from_millis(29));
    let refused = open(&store, &store.runner(), settings).await.unwrap_err();
    assert!(matches!(
        refused,
        Error::TooShort {
            option: "lease",
            ..
        }
    ));
    assert!(
        open(&store, &store.runner(), Settings::default())
            .await
            .is_ok()
    );
}

async fn a_queue_with_rows_of_a_store_with_a_larger_version_does_not_open(store: TestStore) {
    // The version of a store after some thousand years of use.
    let far = Versionstamp::new(1 << 56, 0);
    let heartbeat = [&far.as_bytes()[..], &[0; 8]].concat();
    for (part, value) in [("i", &b"\x01\x01\0\x07"[..]), ("b", &heartbeat)] {
        let world = World::with_defaults(&store).await;
        world.enqueue(0..2).await;
        let consumer = world.consumer().await;
        let reopened = || open(&world.store, &world.runner, Settings::default());
        reopened().await.unwrap();
        let subspace = world.queue.subspace().subspace(&part);
        let key = &match part {
            "i" => subspace.pack(&(TupleVersionstamp::complete(*far.as_bytes(), 0), 1)),
            _ => subspace.pack(&[7_u8; 16].as_slice()),
        };
        let set = |tr: Tx<_>| async move {
            tr.set(key, value);
            Ok::<_, Error>(())
        };
        world.runner.run(set).await.unwrap();
        let refused = reopened().await.unwrap_err();
        let Error::Part(microqueue::Error::StampAhead {
            queue,
            stamp,
            read_version,
        }) = &refused
        else {
            panic!("expected a stamp ahead, got {refused:?}");
        };
        assert!(queue.bytes().starts_with(world.queue.subspace().bytes()));
        assert_eq!(*stamp, far);
        assert!((1..1 << 56).contains(read_version), "{read_version}");
        drop(consumer);
    }
    // A heartbeat that does not decode says nothing about versions.
    let world = World::with_defaults(&store).await;
    let key = &world.queue.subspace().pack(&("b", &[7_u8; 16][..]));
    let set = |tr: Tx<_>| async move {
        tr.set(key, b"?");
        Ok::<_, Error>(())
    };
    world.runner.run(set).await.unwrap();
    open(&world.store, &world.runner, Settings::default())
        .await
        .unwrap();
}

async fn another_codec_than_the_queues_is_refused(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let subspace = world.queue.subspace().clone();
    let settings = Settings::default();
    let codec =
        Queue::<Bytes, Raw>::open_with(&world.runner, subspace, settings, OpenOptions::default());
    assert!(matches!(codec.await.unwrap_err(), Error::SettingsDiffer(_)));
}

async fn an_item_is_acknowledged_once(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let consumer = world.consumer().await;
    world.enqueue([1]).await;
    let delivery = consumer.dequeue().await.unwrap().unwrap();
    let twice = world.runner.run(|tr| {
        let delivery = &delivery;
        async move {
            delivery.ack(&tr).await?;
            delivery.ack(&tr).await
        }
    });
    assert!(matches!(
        twice.await.unwrap_err(),
        Error::DeliveryLost { .. }
    ));
    world.ack(&delivery).await.unwrap();
    let again = world.ack(&delivery).await.unwrap_err();
    assert!(matches!(again, Error::DeliveryLost { .. }));
    assert_eq!(world.stats().await.completed, 1);
    world.check().await;
}

async fn an_acknowledgement_that_does_not_commit_has_no_effect(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let consumer = world.consumer().await;
    world.enqueue([1]).await;
    let delivery = consumer.dequeue().await.unwrap().unwrap();
    delivery.ack(&store.db.begin().unwrap()).await.unwrap();
    assert_eq!(world.stats().await.held, 1);
    world.ack(&delivery).await.unwrap();
    drop(delivery);
    assert_eq!(world.stats().await.completed, 1);
    world.check().await;
}

async fn a_dedupe_id_has_a_length(store: TestStore) {
    let world = World::with_defaults(&store).await;
    for bytes in [0, MAX_DEDUPE_BYTES + 1] {
        let options = Enqueue::new().with_dedupe(vec![7; bytes]);
        let refused = world.enqueue_with(1, &options).await.unwrap_err();
        assert!(matches!(refused, Error::DedupeId { .. }), "{refused}");
    }
    assert_eq!(world.stats().await.queued, 0);
}

async fn a_payload_of_exactly_the_limit_goes_everywhere(store: TestStore) {
    type Blobs = Queue<Bytes, Raw>;
    let settings = Settings::new().with_max_attempts(4);
    let runner = store.runner();
    let subspace = store.root.subspace(&"queue");
    let queue = &Blobs::open_with(&runner, subspace, settings, OpenOptions::default())
        .await
        .unwrap();
    let largest = &Bytes::from(vec![7; MAX_PAYLOAD_BYTES]);
    let too_large = &Bytes::from(vec![7; MAX_PAYLOAD_BYTES + 1]);
    // With the largest envelope, not one more byte would fit.
    let id = vec![7; MAX_DEDUPE_BYTES];
    let later = &Enqueue::new()
        .with_delay(Duration::from_millis(1))
        .with_dedupe(id);
    let operation = |tr| async move { queue.enqueue_with(&tr, too_large, later).await };
    let refused = runner.run(operation).await.unwrap_err();
    assert!(matches!(refused, Error::PayloadTooLarge { .. }));
    let enqueue = |tr| async move { queue.enqueue_with(&tr, largest, later).await };
    let enqueued = runner.run(enqueue).await.unwrap();
    assert!(matches!(enqueued, Enqueued::Staged(_)));

    let options = WorkerOptions::default();
    let consumer = queue.consumer(&runner, options).await.unwrap();
    let next = || async { consumer.dequeue_within(LONG).await.unwrap().unwrap() };
    next().await.nack().await.unwrap();
    let delay = Duration::from_millis(1);
    next().await.retry_after(delay, "not now").await.unwrap();
    next().await.discard("no good").await.unwrap();
    let redrive = |tr| async move {
        let dead = queue.list(&tr, PlaceKind::Dead, None, 1).await?.items;
        queue.redrive(&tr, &dead[0].item).await
    };
    assert!(runner.run(redrive).await.unwrap());
    let delivery = next().await;
    assert_eq!(delivery.value(), largest);
    delivery.complete().await.unwrap();

    // Two sessions wait, and the first one answers both requests.
    let options = WorkerOptions::default();
    let another = queue.consumer(&runner, options).await.unwrap();
    let (begin, end) = queue.subspace().subspace(&"r").range();
    let query = &RangeQuery::keys(begin, end);
    let requests = |tr| async move { read_all(&tr, query.clone(), Isolation::Snapshot).await };
    let enqueue = async {
        until(async || runner.run(requests).await.unwrap().len() >= 2).await;
        let four = &vec![largest.clone(); 4];
        let enqueue = |tr| async move { queue.enqueue_all(&tr, four).await };
        runner.run(enqueue).await.unwrap();
    };
    let (some, others, ()) = tokio::join!(
        consumer.dequeue_batch_within(2, LONG),
        another.dequeue_batch_within(2, LONG),
        enqueue
    );
    for answered in [some.unwrap(), others.unwrap()] {
        assert_eq!(answered.len(), 2);
        for delivery in answered {
            assert_eq!(delivery.value(), largest);
            delivery.complete().await.unwrap();
        }
    }
    assert!(queue.audit(&runner).await.unwrap().is_clean());
}

async fn more_than_a_transaction_holds_comes_back_in_several(store: TestStore) {
    type Blobs = Queue<Bytes, Raw>;
    // The items have more than ten million bytes in total.
    const ITEMS: u64 = 110;
    let runner = store.runner();
    let subspace = store.root.subspace(&"queue");
    let settings = Settings::default();
    let queue = &Blobs::open_with(&runner, subspace, settings, OpenOptions::default())
        .await
        .unwrap();
    let blob = &Bytes::from(vec![7; MAX_PAYLOAD_BYTES]);
    for _ in 0..ITEMS {
        let enqueue = |tr| async move { queue.enqueue(&tr, blob).await };
        runner.run(enqueue).await.unwrap();
    }
    let soon = Duration::from_millis(1);
    let options = WorkerOptions::new().with_backoff(Backoff::new(soon, soon));
    let consumer = queue.consumer(&runner, options).await.unwrap();
    let mut held = Vec::new();
    while held.len() < ITEMS as usize {
        held.extend(consumer.dequeue_batch_within(512, LONG).await.unwrap());
    }
    drop(held);
    let stats = |tr| async move { queue.stats(&tr).await };
    until(async || runner.run(stats).await.unwrap().delayed == ITEMS).await;
    assert!(queue.audit(&runner).await.unwrap().is_clean());
    // All of them are due.
    let mut taken = 0;
    while taken < ITEMS as usize {
        taken += consumer
            .dequeue_batch_within(512, LONG)
            .await
            .unwrap()
            .len();
    }
}

async fn what_does_not_decode_fails_like_any_other_item_also_if_it_is_popped(store: TestStore) {
    let subspace = store.root.subspace(&"queue");
    let runner = store.runner();
    // This codec does not store the type of its bytes.
    type Names = Queue<String, Bincode>;
    type Numbers = Queue<u64, Bincode>;
    let settings = Settings::new().with_max_attempts(2);
    let names = &Names::open_with(
        &runner,
        subspace.clone(),
        settings.clone(),
        OpenOptions::default(),
    )
    .await
    .unwrap();
    let enqueue = |tr| async move {
        for name in ["", "ten bytes.", "", "ten bytes."] {
            names.enqueue(&tr, &name.to_owned()).await?;
        }
        Ok::<_, Error>(())
    };
    runner.run(enqueue).await.unwrap();
    // Opens the queue with the same codec and another type. Of the names, only an empty one decodes as a number.
    let numbers = Numbers::open_with(&runner, subspace, settings, OpenOptions::default())
        .await
        .unwrap();
    let soon = Duration::from_millis(1);
    let options = WorkerOptions::new().with_backoff(Backoff::new(soon, soon));
    let consumer = numbers.consumer(&runner, options).await.unwrap();
    let popped = consumer.pop_within(LONG).await.unwrap().unwrap();
    assert_eq!(popped.value, 0);
    let delivered = consumer.dequeue_within(LONG).await.unwrap().unwrap();
    assert_eq!(*delivered.value(), 0);
    delivered.complete().await.unwrap();
    // While it waits, the other items are retried and fail again.
    tokio::select! {
        idle = numbers.wait_idle(&runner) => idle.unwrap(),
        popped = consumer.pop_within(LONG) => panic!("{popped:?}"),
    }
    let letters = |tr| async move { dead_letters(&tr, names, 10).await };
    let letters = runner.run(letters).await.unwrap();
    assert_eq!(letters.len(), 2);
    for letter in letters {
        assert_eq!(letter.value.as_ref().unwrap(), "ten bytes.");
        assert_eq!((letter.attempts, letter.deliveries), (2, 2));
        assert!(letter.failure.as_ref().unwrap().reason.contains("Bincode"));
    }
    assert!(numbers.audit(&runner).await.unwrap().is_clean());
}

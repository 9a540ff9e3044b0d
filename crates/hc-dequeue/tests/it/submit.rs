//! Enqueues that commit on their own, and enqueues of many items with options.

use std::sync::Arc;

use conformance::chaos::{Chaos, Faults};
use conformance::stores::TestStore;
use hc_dequeue::testing::ManualWall;
use hc_dequeue::{Enqueue, Enqueued, Error, MAX_PAYLOAD_BYTES, OnRepeat, Place, Settings};
use keyspace::codec::Raw;
use keyspace::{Bytes, Database, Environment, OwnedTransaction};

use crate::common::{LONG, World, open};

conformance::on_every_store!(
    a_submitted_item_is_found_by_its_reference,
    a_submission_whose_commit_is_in_doubt_happens_once,
    many_items_with_options_are_enqueued_in_their_order,
    many_items_replace_those_that_exist_whatever_comes_before_them,
    many_items_of_which_one_is_refused_are_not_enqueued,
    errors_name_an_item_as_its_reference_does,
);

async fn a_submitted_item_is_found_by_its_reference(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let queue = &world.queue;
    let runner = &world.runner;
    let plain = queue.submit(runner, &1).await.unwrap();
    assert_eq!(world.place(&plain).await, Some(Place::Queued));
    let once = Enqueue::new().with_dedupe("one").with_delay(LONG);
    let delayed = queue.submit_with(runner, &2, &once).await.unwrap().unwrap();
    assert!(matches!(
        world.place(&delayed).await,
        Some(Place::Delayed { .. })
    ));
    assert_eq!(queue.submit_with(runner, &3, &once).await.unwrap(), None);
    let replace = once.with_on_repeat(OnRepeat::Replace);
    let replaced = queue.submit_with(runner, &4, &replace).await.unwrap();
    assert_eq!(replaced, Some(delayed));
    assert_eq!(world.status(&delayed).await.unwrap().value, Ok(4));
    let refused = queue
        .submit_with(runner, &5, &Enqueue::new().with_max_depth(1))
        .await;
    assert!(matches!(refused, Err(Error::Full { .. })));
    world.check().await;
}

async fn a_submission_whose_commit_is_in_doubt_happens_once(store: TestStore) {
    let mut faults = 0;
    for seed in 0..20 {
        let store = store.fresh();
        let env = Environment::seeded(seed, Arc::new(ManualWall::new()));
        let chaos = Chaos::new(store.db.clone(), env, Faults::all(0.1));
        let runner = store.runner_on(chaos);
        let queue = open(&store, &runner, Settings::new()).await.unwrap();
        let quiet = store.runner();
        let world = World {
            queue: open(&store, &quiet, Settings::new()).await.unwrap(),
            runner: quiet,
            store,
        };
        for value in 0..10 {
            let item = queue.submit(&runner, &value).await.unwrap();
            let status = world.status(&item).await.expect("it was enqueued");
            assert_eq!(status.value, Ok(value), "seed {seed}");
        }
        assert_eq!(
            world.values().await,
            (0..10).collect::<Vec<_>>(),
            "seed {seed}"
        );
        faults += runner.database().tally().commits;
    }
    assert!(faults > 20, "{faults}");
}

async fn many_items_with_options_are_enqueued_in_their_order(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let once = Enqueue::new()
        .with_dedupe("one")
        .with_on_repeat(OnRepeat::Replace);
    let items = &[
        (1, Enqueue::new()),
        (2, Enqueue::new().with_delay(LONG)),
        (3, once.clone()),
        (4, Enqueue::new().with_max_depth(3)),
        (5, once.clone()),
        (6, Enqueue::new().with_dedupe("one")),
    ];
    let queue = &world.queue;
    let enqueue = |tr| async move { queue.enqueue_all_with(&tr, items).await };
    let enqueued = world.runner.run(enqueue).await.unwrap();
    let is_staged = |enqueued: &Enqueued| matches!(enqueued, Enqueued::Staged(_));
    assert!(enqueued[..5].iter().all(is_staged));
    assert_eq!(
        (enqueued[4], enqueued[5]),
        (enqueued[2], Enqueued::Repeated)
    );
    assert_eq!(world.values().await, [1, 5, 4]);
    let stats = world.stats().await;
    assert_eq!((stats.queued, stats.delayed), (3, 1));
    let nothing = |tr| async move { queue.enqueue_all_with(&tr, &[]).await };
    assert_eq!(world.runner.run(nothing).await.unwrap(), []);
    world.check().await;
}

/// Enqueues, in this order, an item without a dedupe id, and one for each place of the items that exist with one: a new
/// value for a queued item, a delayed item, a held item and a dead letter, each enqueued twice.
async fn many_items_replace_those_that_exist_whatever_comes_before_them(store: TestStore) {
    let world = World::new(&store, Settings::new().with_max_attempts(1)).await;
    let consumer = world.consumer().await;
    let once = |id: &'static str| Enqueue::new().with_dedupe(id);
    let add = async |id, options: &Enqueue| world.enqueue_ref(id, options).await;
    let dead = add(10, &once("dead")).await;
    let delivery = consumer.dequeue_within(LONG).await.unwrap().unwrap();
    delivery.discard("no good").await.unwrap();
    let held = add(20, &once("held")).await;
    let delivery = consumer.dequeue_within(LONG).await.unwrap().unwrap();
    let delayed = add(30, &once("delayed").with_delay(LONG)).await;
    // The last commit is that of an item that is replaced.
    let queued = add(40, &once("queued")).await;
    let again = |value, id| (value, once(id).with_on_repeat(OnRepeat::Replace));
    let items = &[
        (1, Enqueue::new()),
        again(41, "queued"),
        again(31, "delayed"),
        again(21, "held"),
        again(11, "dead"),
        again(51, "new"),
        (2, Enqueue::new()),
        again(42, "queued"),
        again(32, "delayed"),
        again(22, "held"),
        again(12, "dead"),
        again(52, "new"),
        (3, once("new")),
    ];
    let queue = &world.queue;
    // Without a read version, too.
    let mut tr = world.store.db.begin().unwrap();
    let enqueued = queue.enqueue_all_with(&tr, items).await.unwrap();
    tr.commit().await.unwrap();
    let replaced = |item| Enqueued::Replaced(item);
    assert_eq!(enqueued[1], replaced(queued));
    assert_eq!(enqueued[2], replaced(delayed));
    assert!(matches!(enqueued[3], Enqueued::Staged(_)));
    assert_eq!(enqueued[4], replaced(dead));
    for place in [1, 2, 3, 4, 5] {
        assert_eq!(enqueued[place + 6], enqueued[place], "{place}");
    }
    assert_eq!(enqueued[12], Enqueued::Repeated);
    for (item, value) in [(queued, 42), (delayed, 32), (dead, 12), (held, 20)] {
        assert_eq!(world.status(&item).await.unwrap().value, Ok(value));
    }
    assert_eq!(world.values().await, [12, 42, 1, 22, 52, 2]);
    delivery.complete().await.unwrap();
    consumer.shut_down(LONG).await.unwrap();
    world.check().await;
}

async fn many_items_of_which_one_is_refused_are_not_enqueued(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let queue =
        hc_dequeue::Queue::<Bytes, Raw>::open(&world.runner, world.store.root.subspace(&"bytes"));
    let queue = &queue.await.unwrap();
    let bytes = |length: usize| Bytes::from(vec![0; length]);
    let twice = Enqueue::new().with_dedupe("one").with_max_depth(2);
    let refused = [
        (bytes(MAX_PAYLOAD_BYTES + 1), Enqueue::new()),
        (bytes(1), Enqueue::new().with_dedupe("")),
        (bytes(1), Enqueue::new().with_max_depth(2)),
    ];
    for last in refused {
        let items = [
            (bytes(1), twice.clone()),
            (bytes(1), twice.clone()),
            (bytes(1), Enqueue::new()),
            last,
        ];
        let items = &items;
        let enqueue = |tr| async move { queue.enqueue_all_with(&tr, items).await };
        let error = world.runner.run(enqueue).await.unwrap_err();
        assert!(
            matches!(
                error,
                Error::PayloadTooLarge { .. }
                    | Error::DedupeId { .. }
                    | Error::Full { depth: 2, .. }
            ),
            "{error}"
        );
        let stats = |tr| async move { queue.stats(&tr).await };
        assert_eq!(world.runner.run(stats).await.unwrap().queued, 0);
    }
}

async fn errors_name_an_item_as_its_reference_does(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let consumer = world.consumer().await;
    let item = world.queue.submit(&world.runner, &1).await.unwrap();
    let held = consumer.dequeue_within(LONG).await.unwrap().unwrap();
    let _ = world.cancel(&item).await;
    let cancelled = world.ack(&held).await.unwrap_err();
    held.complete().await.unwrap_err();
    let item = world.queue.submit(&world.runner, &2).await.unwrap();
    let held = consumer.dequeue_within(LONG).await.unwrap().unwrap();
    world.ack(&held).await.unwrap();
    let lost = world.ack(&held).await.unwrap_err();
    let again = held.complete().await.unwrap_err();
    for (error, named) in [(&lost, item), (&again, item)] {
        let text = error.to_string();
        assert!(text.contains(&named.to_string()), "{text}");
        assert!(!text.contains("versionstamp"), "{text}");
    }
    assert!(cancelled.to_string().starts_with("item 01"), "{cancelled}");
    // A finding of an audit, too.
    let later = Enqueue::new().with_delay(LONG);
    let delayed = world
        .queue
        .submit_with(&world.runner, &3, &later)
        .await
        .unwrap()
        .unwrap();
    let row = delayed.id().key_in(&world.key("o"));
    world.write(&row, None).await;
    let audit = world.queue.audit(&world.runner).await.unwrap();
    let finding = audit.findings[0].to_string();
    assert!(finding.contains(&delayed.to_string()), "{finding}");
}

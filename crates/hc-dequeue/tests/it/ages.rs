//! How long items have waited: since they were ready, however they got into the queue.

use std::time::Duration;

use conformance::stores::TestStore;
use conformance::until;
use hc_dequeue::testing::ManualWall;
use hc_dequeue::{Enqueue, Enqueued, Error, ItemRef, OnRepeat, Settings, WorkerOptions};
use keyspace::{Isolation, RangeQuery, read_all};

use crate::common::{LONG, Result, World, process, settings};
use crate::testing::with_wall;

conformance::on_every_store!(
    an_item_that_was_enqueued_waits_since_then_and_stores_no_other_time,
    an_item_that_was_delayed_waits_since_it_was_due,
    an_item_that_was_expedited_waits_since_then,
    an_item_that_came_back_waits_since_it_came_back,
    an_item_that_was_redriven_waits_since_then,
    an_item_of_a_dead_session_waits_since_it_was_returned,
    an_item_that_waits_longer_is_not_hidden_by_one_that_came_back,
    a_clock_that_went_back_makes_no_age,
    an_item_that_does_not_decode_hides_no_age,
);

const WEEK: Duration = Duration::from_secs(7 * 24 * 60 * 60);
const SECONDS: Duration = Duration::from_secs(3);

async fn oldest_age(world: &World) -> Result<Option<Duration>> {
    let queue = &world.queue;
    world
        .runner
        .run(|tr| async move { queue.oldest_age(&tr).await })
        .await
}

/// Panics unless the item has waited for three seconds by its age and by its status.
async fn assert_three_seconds(world: &World, wall: &ManualWall, item: &ItemRef) {
    wall.advance(SECONDS);
    assert_eq!(oldest_age(world).await.unwrap(), Some(SECONDS));
    let status = world.status(item).await.unwrap();
    assert_eq!(status.ready, wall.time() - SECONDS);
    world.check().await;
}

/// Returns a queue with an item that was enqueued a week ago.
async fn a_week_ago(store: &TestStore, options: Enqueue) -> (World, ManualWall, ItemRef) {
    let settings = Settings::new().with_lease(LONG * 60).with_max_attempts(9);
    let (world, wall) = with_wall(store, settings).await;
    let item = world.enqueue_ref(1, &options).await;
    wall.advance(WEEK);
    (world, wall, item)
}

/// Returns the tags of the fields of the first record in the queue.
async fn tags_of_first(world: &World) -> Vec<u8> {
    let (begin, end) = world.key("i").range();
    let query = &RangeQuery::keys(begin, end).limit(1);
    let rows = |tr| async move { read_all(&tr, query.clone(), Isolation::Snapshot).await };
    let row = world.runner.run(rows).await.unwrap().remove(0);
    // After the formats of microqueue and of the record.
    let mut rest = &row.value()[2..];
    let mut tags = Vec::new();
    while rest[0] != 0 {
        tags.push(rest[0]);
        let length = usize::from(u16::from_be_bytes([rest[1], rest[2]]));
        rest = &rest[3 + length..];
    }
    tags
}

async fn an_item_that_was_enqueued_waits_since_then_and_stores_no_other_time(store: TestStore) {
    let (world, wall) = with_wall(&store, settings()).await;
    assert_eq!(oldest_age(&world).await.unwrap(), None);
    let item = world.enqueue_ref(1, &Enqueue::new()).await;
    assert_eq!(tags_of_first(&world).await, [1]);
    assert_three_seconds(&world, &wall, &item).await;
}

async fn an_item_that_was_delayed_waits_since_it_was_due(store: TestStore) {
    let (world, wall, _) = a_week_ago(&store, Enqueue::new().with_delay(WEEK)).await;
    let second = world
        .enqueue_ref(2, &Enqueue::new().with_delay(SECONDS))
        .await;
    wall.advance(SECONDS * 10);
    assert_eq!(oldest_age(&world).await.unwrap(), None);
    // The take of the first item makes the second one wait in the queue.
    let consumer = world.consumer().await;
    let first = consumer.dequeue().await.unwrap().unwrap();
    assert_eq!(*first.value(), 1);
    assert_eq!(oldest_age(&world).await.unwrap(), Some(SECONDS * 9));
    let due = wall.time() - SECONDS * 9;
    assert_eq!(world.status(&second).await.unwrap().ready, due);
    assert_eq!(tags_of_first(&world).await, [1, 13]);
}

async fn an_item_that_was_expedited_waits_since_then(store: TestStore) {
    let (world, wall, item) = a_week_ago(&store, Enqueue::new().with_delay(WEEK * 2)).await;
    let queue = &world.queue;
    let to_expedite = &item;
    let expedite = |tr| async move { queue.expedite(&tr, to_expedite).await };
    assert!(world.runner.run(expedite).await.unwrap());
    assert_three_seconds(&world, &wall, &item).await;
}

async fn an_item_that_came_back_waits_since_it_came_back(store: TestStore) {
    let (world, wall, item) = a_week_ago(&store, Enqueue::new()).await;
    let consumer = world.consumer().await;
    let delivery = consumer.dequeue().await.unwrap().unwrap();
    delivery.release().await.unwrap();
    assert_three_seconds(&world, &wall, &item).await;
}

async fn an_item_that_was_redriven_waits_since_then(store: TestStore) {
    for replaces in [false, true] {
        let options = Enqueue::new()
            .with_dedupe("id")
            .with_on_repeat(OnRepeat::Debounce);
        let (world, wall, item) = a_week_ago(&store, options.clone()).await;
        let consumer = world.consumer().await;
        let delivery = consumer.dequeue().await.unwrap().unwrap();
        delivery.discard("on purpose").await.unwrap();
        let queue = &world.queue;
        let to_redrive = &item;
        if replaces {
            let replaced = world.enqueue_with(2, &options).await.unwrap();
            assert!(matches!(replaced, Enqueued::Replaced(_)), "{replaced:?}");
        } else {
            let redrive = |tr| async move { queue.redrive(&tr, to_redrive).await };
            assert!(world.runner.run(redrive).await.unwrap());
        }
        assert_three_seconds(&world, &wall, &item).await;
    }
}

async fn an_item_of_a_dead_session_waits_since_it_was_returned(store: TestStore) {
    let (world, wall) = with_wall(&store, settings()).await;
    let item = world.enqueue_ref(1, &Enqueue::new()).await;
    let queue = world.queue.clone();
    let runner = world.runner.clone();
    let dies = process(|| async move {
        let consumer = queue
            .consumer(&runner, WorkerOptions::default())
            .await
            .unwrap();
        let held = consumer.dequeue().await.unwrap();
        assert!(held.is_some());
        std::mem::forget((consumer, held));
    });
    dies.join().unwrap();
    wall.advance(WEEK);
    // It takes nothing: it only returns what the dead session held.
    let _consumer = world.consumer().await;
    until(async || world.stats().await.queued != 0).await;
    assert_three_seconds(&world, &wall, &item).await;
}

async fn an_item_that_waits_longer_is_not_hidden_by_one_that_came_back(store: TestStore) {
    let (world, wall, _) = a_week_ago(&store, Enqueue::new()).await;
    world.enqueue([2]).await;
    let consumer = world.consumer().await;
    let delivery = consumer.dequeue().await.unwrap().unwrap();
    wall.advance(SECONDS);
    delivery.release().await.unwrap();
    assert_eq!(oldest_age(&world).await.unwrap(), Some(SECONDS));
    wall.advance(SECONDS);
    assert_eq!(oldest_age(&world).await.unwrap(), Some(SECONDS * 2));
}

async fn a_clock_that_went_back_makes_no_age(store: TestStore) {
    let (world, wall, _) = a_week_ago(&store, Enqueue::new()).await;
    wall.set(wall.time() - WEEK * 2);
    assert_eq!(oldest_age(&world).await.unwrap(), Some(Duration::ZERO));
}

async fn an_item_that_does_not_decode_hides_no_age(store: TestStore) {
    let (world, wall) = with_wall(&store, settings()).await;
    let damaged = world.enqueue_ref(1, &Enqueue::new()).await;
    wall.advance(WEEK);
    world.enqueue([2]).await;
    let first = damaged.id().key_in(&world.key("i"));
    world.write(&first, Some(b"damaged")).await;
    wall.advance(SECONDS);
    assert_eq!(oldest_age(&world).await.unwrap(), Some(SECONDS));
    let (_, end) = world.key("i").range();
    let clear = |tr: keyspace::Tx<_>| {
        let begin = keyspace::key_after(&first);
        let end = end.clone();
        async move {
            keyspace::Transaction::clear_range(&tr, &begin, &end);
            Ok::<_, Error>(())
        }
    };
    world.runner.run(clear).await.unwrap();
    assert_eq!(oldest_age(&world).await.unwrap(), None);
}

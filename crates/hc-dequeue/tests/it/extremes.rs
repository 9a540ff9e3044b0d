//! Times and durations at the ends of their types: none panics, and none stops a listing.

use std::time::{Duration, SystemTime};

use crate::common::{LONG, World};
use conformance::stores::TestStore;
use hc_dequeue::{Backoff, Enqueue, Place, PlaceKind, Settings, WorkerOptions};

conformance::on_every_store!(
    items_for_the_end_of_time_are_listed_and_can_be_made_ready,
    a_time_before_the_epoch_is_due_at_once,
    settings_of_any_length_work,
    waits_of_any_length_work,
);

/// The last time that the system can express.
fn last_time() -> SystemTime {
    let mut last = SystemTime::UNIX_EPOCH;
    let mut step = Duration::from_secs(u64::MAX / 2);
    while step > Duration::ZERO {
        last = last.checked_add(step).unwrap_or(last);
        step /= 2;
    }
    last
}

/// Returns until when an item is delayed.
async fn until(world: &World, item: &hc_dequeue::ItemRef) -> SystemTime {
    match world.place(item).await {
        Some(Place::Delayed { until }) => until,
        other => panic!("{other:?}"),
    }
}

async fn items_for_the_end_of_time_are_listed_and_can_be_made_ready(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let consumer = world.consumer().await;
    let mut items = Vec::new();
    for options in [
        Enqueue::new().with_delay(Duration::MAX),
        Enqueue::new().with_due_time(last_time()),
        Enqueue::new().with_delay(Duration::from_millis(u64::MAX)),
    ] {
        items.push(world.enqueue_ref(items.len() as u64, &options).await);
    }
    for is_snoozed in [false, true] {
        let value = items.len() as u64;
        items.push(world.enqueue_ref(value, &Enqueue::new()).await);
        let delivery = consumer.dequeue_within(LONG).await.unwrap().unwrap();
        if is_snoozed {
            delivery.snooze(Duration::MAX).await.unwrap();
        } else {
            delivery.retry_after(Duration::MAX, "later").await.unwrap();
        }
    }
    let queue = &world.queue;
    let list = |tr| async move { queue.list(&tr, PlaceKind::Delayed, None, 100).await };
    let page = world.runner.run(list).await.unwrap();
    assert_eq!((page.items.len(), page.strays.len()), (items.len(), 0));
    let thousand_years = Duration::from_secs(1_000 * 31_556_952);
    for item in &items {
        let far = SystemTime::UNIX_EPOCH + thousand_years;
        assert!(until(&world, item).await > far);
        let expedite = |tr| async move { queue.expedite(&tr, item).await };
        assert!(world.runner.run(expedite).await.unwrap());
    }
    for _ in &items {
        let delivery = consumer.dequeue_within(LONG).await.unwrap().unwrap();
        delivery.complete().await.unwrap();
    }
    world.check().await;
}

async fn a_time_before_the_epoch_is_due_at_once(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let consumer = world.consumer().await;
    let day = Duration::from_secs(86_400);
    let before = Enqueue::new().with_due_time(SystemTime::UNIX_EPOCH - day);
    world.enqueue_ref(1, &before).await;
    world
        .enqueue_ref(2, &Enqueue::new().with_delay(Duration::ZERO))
        .await;
    for _ in 0..2 {
        let delivery = consumer.dequeue_within(LONG).await.unwrap().unwrap();
        delivery.complete().await.unwrap();
    }
    world.check().await;
}

async fn settings_of_any_length_work(store: TestStore) {
    let settings = Settings::new()
        .with_lease(Duration::MAX)
        .with_keep_done(Duration::MAX)
        .with_dedupe_retention(Duration::MAX);
    let world = World::new(&store, settings).await;
    let consumer = world.consumer().await;
    let once = Enqueue::new().with_dedupe("id");
    let item = world.enqueue_ref(1, &once).await;
    let delivery = consumer
        .dequeue_within(Duration::MAX)
        .await
        .unwrap()
        .unwrap();
    delivery.complete().await.unwrap();
    assert!(matches!(world.place(&item).await, Some(Place::Done { .. })));
    let queue = &world.queue;
    let read = |tr| async move { queue.settings(&tr).await };
    let stored = world.runner.run(read).await.unwrap();
    let millis = Duration::from_millis(u64::MAX);
    assert_eq!((stored.keep_done(), stored.lease()), (millis, millis));
    consumer.shut_down(Duration::MAX).await.unwrap();
    world.check().await;
}

async fn waits_of_any_length_work(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let options = WorkerOptions::new()
        .with_time_limit(Duration::MAX)
        .with_poll_interval(Duration::MAX)
        .with_backoff(Backoff::new(Duration::MAX, Duration::MAX));
    let handler = |delivery: hc_dequeue::Delivery<u64>| async move {
        match *delivery.value() {
            1 => Err("it fails".into()),
            _ => Ok::<_, hc_dequeue::BoxError>(()),
        }
    };
    let worker = world
        .queue
        .work(&world.runner, options, handler)
        .await
        .unwrap();
    let fails = world.enqueue_ref(1, &Enqueue::new()).await;
    let works = world.enqueue_ref(2, &Enqueue::new()).await;
    let settled = async {
        while world.place(&works).await.is_some()
            || !matches!(world.place(&fails).await, Some(Place::Delayed { .. }))
        {
            tokio::task::yield_now().await;
        }
    };
    conformance::timeout(LONG, settled).await;
    until(&world, &fails).await;
    worker.shut_down(LONG).await.unwrap();
    let consumer = world
        .queue
        .consumer(&world.runner, WorkerOptions::default());
    drop(consumer.await.unwrap());
    world.check().await;
}

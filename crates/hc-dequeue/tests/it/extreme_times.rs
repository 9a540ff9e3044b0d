//! Times and durations at the ends of their types: none panics, and none stops a listing.

use std::time::{Duration, SystemTime};

use crate::common::{LONG, World};
use conformance::stores::TestStore;
use conformance::{timeout, until};
use hc_dequeue::{
    Backoff, Enqueue, Error, MAX_CONCURRENCY, Place, PlaceKind, Settings, WorkerOptions,
};

conformance::on_every_store!(
    items_for_the_end_of_time_are_listed_and_can_be_made_ready,
    a_time_before_the_epoch_is_due_at_once,
    settings_of_any_length_work,
    waits_of_any_length_work,
    a_worker_with_any_number_in_its_options_works_or_is_refused,
    a_consumer_with_any_number_in_its_options_works,
    limits_of_an_item_of_any_number_work,
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

/// Returns the time until which an item is delayed.
async fn ready_of(world: &World, item: &hc_dequeue::ItemRef) -> SystemTime {
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
        assert!(ready_of(&world, item).await > far);
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
    until(async || {
        world.place(&works).await.is_none()
            && matches!(world.place(&fails).await, Some(Place::Delayed { .. }))
    })
    .await;
    ready_of(&world, &fails).await;
    worker.shut_down(LONG).await.unwrap();
    let consumer = world
        .queue
        .consumer(&world.runner, WorkerOptions::default());
    drop(consumer.await.unwrap());
    world.check().await;
}

/// Each option of a worker of this crate at the ends of its type.
fn extreme_options() -> Vec<WorkerOptions> {
    let mut all = Vec::new();
    for number in [0, 1, usize::MAX] {
        all.push(WorkerOptions::new().with_max_reserve(number));
        all.push(WorkerOptions::new().with_max_batch_bytes(number));
    }
    let ends = [Duration::ZERO, Duration::from_nanos(1), Duration::MAX];
    for time in ends {
        all.push(WorkerOptions::new().with_poll_interval(time));
        all.push(WorkerOptions::new().with_takeover_after(time));
        all.push(WorkerOptions::new().with_pass_interval(time));
        for longest in ends {
            all.push(WorkerOptions::new().with_backoff(Backoff::new(time, longest)));
        }
    }
    all.push(WorkerOptions::new().with_time_limit(Duration::MAX));
    all.push(WorkerOptions::new().with_dead_letter_after(0));
    all.push(WorkerOptions::new().with_dead_letter_after(u32::MAX));
    all
}

async fn a_worker_with_any_number_in_its_options_works_or_is_refused(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let start = async |options| {
        let handler = |_: hc_dequeue::Delivery<u64>| async {};
        world.queue.work(&world.runner, options, handler).await
    };
    let concurrency = |calls| WorkerOptions::new().with_concurrency(calls);
    for calls in [MAX_CONCURRENCY + 1, usize::MAX] {
        let refused = start(concurrency(calls)).await.err().unwrap();
        let expected = format!("concurrency of {calls} is too high: set at most {MAX_CONCURRENCY}");
        assert_eq!(refused.to_string(), expected);
    }
    let work = [concurrency(0), concurrency(1), concurrency(MAX_CONCURRENCY)];
    for options in extreme_options().into_iter().chain(work) {
        world.enqueue([1]).await;
        let worker = start(options).await.unwrap();
        timeout(LONG, world.queue.wait_idle(&world.runner))
            .await
            .unwrap();
        timeout(LONG, worker.shut_down(LONG)).await.unwrap();
    }
    // A handler has no time at all.
    world.enqueue([1]).await;
    let none = WorkerOptions::new().with_time_limit(Duration::ZERO);
    let worker = start(none).await.unwrap();
    timeout(LONG, worker.shut_down(Duration::ZERO))
        .await
        .unwrap();
    world.check().await;
}

async fn a_consumer_with_any_number_in_its_options_works(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let any = WorkerOptions::new().with_concurrency(usize::MAX);
    for options in extreme_options().into_iter().chain([any]) {
        world.enqueue([1]).await;
        let consumer = world.queue.consumer(&world.runner, options).await.unwrap();
        let wait = Duration::MAX;
        let item = timeout(LONG, consumer.dequeue_within(wait))
            .await
            .unwrap()
            .unwrap();
        item.complete().await.unwrap();
        timeout(LONG, consumer.shut_down(Duration::MAX))
            .await
            .unwrap();
    }
    world.check().await;
}

async fn limits_of_an_item_of_any_number_work(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let consumer = world.consumer().await;
    for number in [0, 1, u32::MAX] {
        for options in [
            Enqueue::new().with_max_attempts(number),
            Enqueue::new().with_max_deaths(number),
            Enqueue::new().with_max_deliveries(number),
        ] {
            world.enqueue_ref(1, &options).await;
            let item = consumer.dequeue_within(LONG).await.unwrap().unwrap();
            item.release().await.unwrap();
        }
    }
    let unlimited = Enqueue::new().with_max_depth(u64::MAX).with_dedupe("a");
    world
        .enqueue_ref(1, &unlimited.with_max_wait(Duration::MAX))
        .await;
    let full = world
        .enqueue_with(1, &Enqueue::new().with_max_depth(0))
        .await;
    assert!(matches!(full, Err(Error::Full { .. })), "{full:?}");
    consumer.shut_down(LONG).await.unwrap();
    world.complete_all().await;
    world.check().await;
}

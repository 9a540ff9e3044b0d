//! Schedules whose items have options.

use std::time::Duration;

use conformance::stores::TestStore;
use microqueue::keyspace::{Transaction, Tx};

use super::*;
use crate::items::part::Part;
use crate::queue::enqueue_options::{Enqueue, OnRepeat};
use crate::queue::list::PlaceKind;
use crate::queue::status::Place;

conformance::on_every_store!(
    a_paused_queue_gets_one_item_of_a_schedule_with_a_dedupe_id,
    a_full_queue_skips_a_time_and_no_other_schedule,
    the_items_have_the_options_of_their_schedule,
    several_schedules_may_share_a_dedupe_id,
    a_damaged_row_of_a_dedupe_id_stops_its_own_schedule_only,
    options_that_cannot_work_are_refused,
);

async fn a_paused_queue_gets_one_item_of_a_schedule_with_a_dedupe_id(store: TestStore) {
    let world = ScheduleWorld::new(&store, "2026-11-22T11:59:30Z").await;
    let queue = &world.queue;
    let once = minutely().with_enqueue_options(Enqueue::new().with_dedupe("report"));
    world.create("a", &once).await;
    assert_eq!(world.schedule("a", &once).await, Scheduled::Unchanged);
    let pause = |tr: Tx<_>| async move {
        queue.pause(&tr);
        Ok::<_, Error>(())
    };
    world.runner.run(pause).await.unwrap();
    world.set(NOON);
    let mut skipped = 0;
    for _ in 0..30 {
        let fired = world.fire_from(None).await;
        skipped += fired.skipped.len();
        assert!(fired.skipped.iter().all(|skipped| skipped.full.is_none()));
        world.pass(MINUTE);
    }
    assert_eq!(skipped, 29);
    assert_eq!(world.times().await, [utc(NOON)]);
    // The schedule goes on, and fires as soon as the item is gone.
    assert_eq!(world.queue.clear(&world.runner).await.unwrap().removed, 1);
    assert_eq!(world.fire().await, 1);
    let entry = world.entry().await;
    assert_eq!(entry.last, Some(utc(NOON) + 30 * MINUTE));
    assert_eq!(entry.schedule, once);
    world.check().await;
}

async fn a_full_queue_skips_a_time_and_no_other_schedule(store: TestStore) {
    let world = ScheduleWorld::new(&store, "2026-11-22T11:59:30Z").await;
    let bounded = minutely().with_enqueue_options(Enqueue::new().with_max_depth(3));
    world.create("a", &bounded).await;
    world.create("b", &minutely()).await;
    world.set(NOON);
    let mut fired = Vec::new();
    for _ in 0..3 {
        let one = world.fire_from(None).await;
        let full = one.skipped.iter().filter(|skipped| skipped.full.is_some());
        fired.push((one.items, full.count()));
        world.pass(MINUTE);
    }
    assert_eq!(fired, [(2, 0), (2, 0), (1, 1)]);
    world.check().await;
}

async fn the_items_have_the_options_of_their_schedule(store: TestStore) {
    let world = ScheduleWorld::new(&store, "2026-11-22T11:59:30Z").await;
    let options = Enqueue::new()
        .with_delay(5 * MINUTE)
        .with_dedupe("id")
        .with_on_repeat(OnRepeat::Debounce)
        .with_max_wait(7 * MINUTE)
        .with_max_attempts(3);
    world
        .create("a", &minutely().with_enqueue_options(options))
        .await;
    let queue = &world.queue;
    let mut due = Vec::new();
    for minute in 0..5 {
        world.set(NOON);
        world.pass(minute * MINUTE);
        assert_eq!(world.fire().await, 1);
        let list = |tr| async move { queue.list(&tr, PlaceKind::Delayed, None, 10).await };
        let listed = world.runner.run(list).await.unwrap().items;
        let [item] = &listed[..] else {
            panic!("{listed:?}");
        };
        let status = item.status.as_ref().unwrap();
        assert_eq!(status.enqueued, utc(NOON));
        let Place::Delayed { until } = status.place else {
            panic!("{status:?}");
        };
        due.push(until.duration_since(utc(NOON)).unwrap());
    }
    assert_eq!(due, [5, 6, 7, 7, 7].map(|minute| minute * MINUTE));
    let tr = world.runner.database().begin().unwrap();
    let id = queue.find_deduped(&tr, b"id").await.unwrap().unwrap().id();
    let (_, record) = crate::items::find::find(&tr, &queue.keys, &id)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(record.limits.attempts, 3);
    world.check().await;
}

async fn several_schedules_may_share_a_dedupe_id(store: TestStore) {
    let world = ScheduleWorld::new(&store, "2026-11-22T11:59:30Z").await;
    let options = |delay: u32| {
        Enqueue::new()
            .with_delay(MINUTE * delay)
            .with_dedupe("id")
            .with_on_repeat(OnRepeat::Debounce)
    };
    // The second one of a transaction cannot have another time: it fires in the next transaction.
    world
        .create("a", &minutely().with_enqueue_options(options(10)))
        .await;
    world
        .create("b", &minutely().with_enqueue_options(options(20)))
        .await;
    world.create("c", &minutely()).await;
    world.set(NOON);
    let first = world.fire_from(None).await;
    assert_eq!((first.items, first.has_left), (2, true));
    assert_eq!(world.fire().await, 1);
    let keys = &*world.queue.keys;
    let tr = world.runner.database().begin().unwrap();
    let stats = world.queue.stats(&tr).await.unwrap();
    assert_eq!((stats.queued, stats.delayed), (1, 1));
    let (begin, end) = keys.pointers().range();
    let pointers = tr.get_range(&RangeQuery::keys(begin, end), Isolation::Snapshot);
    let due = (utc(NOON) + 20 * MINUTE)
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap();
    let due = u64::try_from(due.as_millis()).unwrap();
    let pointer = crate::items::pointer::Pointer::Delayed(due);
    assert_eq!(pointers.await.unwrap().rows[0].value(), pointer.to_bytes());
    world.check().await;
}

async fn a_damaged_row_of_a_dedupe_id_stops_its_own_schedule_only(store: TestStore) {
    for part in ["k", "y"] {
        let world = ScheduleWorld::new(&store, "2026-11-22T11:59:30Z").await;
        let once = minutely().with_enqueue_options(Enqueue::new().with_dedupe("x"));
        world.create("a", &once).await;
        world.create("b", &minutely()).await;
        let row = match part {
            "k" => world.queue.keys.dedupe(b"x"),
            _ => world.queue.keys.retained(b"x"),
        };
        let row = &row;
        let damage = |tr: Tx<_>| async move {
            tr.set(row, b"\xff");
            Ok::<_, Error>(())
        };
        world.runner.run(damage).await.unwrap();
        world.set(NOON);
        let fired = world.fire_from(None).await;
        assert_eq!((fired.items, fired.has_left), (1, false));
        let [refused] = &fired.refused[..] else {
            panic!("{:?}", fired.refused);
        };
        assert_eq!(refused.corrupt_key().map(|key| &**key), Some(&row[..]));
        let repair = |tr: Tx<_>| async move {
            tr.clear(row);
            Ok::<_, Error>(())
        };
        world.runner.run(repair).await.unwrap();
        assert_eq!(world.fire().await, 1);
        world.check().await;
    }
}

async fn options_that_cannot_work_are_refused(store: TestStore) {
    let world = ScheduleWorld::new(&store, NOON).await;
    for (options, is_time) in [
        (Enqueue::new().with_due_time(utc(NOON)), true),
        (Enqueue::new().with_dedupe(""), false),
        (Enqueue::new().with_dedupe(vec![0; 256]), false),
    ] {
        let schedule = minutely().with_enqueue_options(options);
        let refused = world.try_schedule("a", &schedule, "").await.unwrap_err();
        assert_eq!(matches!(refused, Error::FixedTime), is_time, "{refused}");
        assert_eq!(matches!(refused, Error::DedupeId { .. }), !is_time);
    }
    assert_eq!(
        (
            world.rows(Part::Schedules).await,
            world.rows(Part::FireTimes).await
        ),
        (0, 0)
    );
    // Times that are not whole milliseconds, or too long to be stored, are the same when they are scheduled again.
    let odd = Enqueue::new()
        .with_delay(Duration::MAX)
        .with_max_wait(Duration::from_nanos(1_500_000));
    let odd = minutely().with_enqueue_options(odd);
    world.create("a", &odd).await;
    assert_eq!(world.schedule("a", &odd).await, Scheduled::Unchanged);
    world.check().await;
}

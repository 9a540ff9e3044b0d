//! Priorities: items of a higher one are granted before all others, whatever happens to them.

use std::collections::BTreeSet;
use std::time::Duration;

use conformance::stores::TestStore;
use conformance::until;
use futures::future::join_all;
use hc_dequeue::microqueue::Error as PartError;
use hc_dequeue::{
    Cancelled, Enqueue, Enqueued, Error, Finding, ItemRef, MAX_PRIORITY, OnRepeat, Place,
    PlaceKind, Schedule, Settings,
};
use keyspace::{Transaction, Tx, Versionstamp};

use crate::common::{LONG, Result, World, open};
use crate::testing::with_wall;

conformance::on_every_store!(
    higher_priorities_are_granted_first_and_equal_ones_in_the_order_of_their_enqueues,
    requests_are_answered_in_the_order_of_priorities,
    an_item_that_comes_back_keeps_its_priority,
    a_delayed_item_gets_its_place_by_its_priority_when_it_is_due,
    the_priority_of_an_item_that_no_session_holds_can_be_changed,
    an_item_that_is_replaced_keeps_its_priority_and_a_debounced_one_gets_the_new_one,
    a_transaction_may_enqueue_a_dedupe_id_again_with_the_same_priority_only,
    a_priority_out_of_range_is_refused_before_anything_is_staged,
    a_schedule_gives_its_items_a_priority,
    a_queue_is_full_of_items_of_all_priorities,
    items_of_all_priorities_are_cleared,
    an_item_in_the_wrong_place_is_found,
    a_queue_from_a_store_that_was_ahead_is_refused,
);

fn priority(priority: i8) -> Enqueue {
    Enqueue::new().with_priority(priority)
}

/// Enqueues an item of each priority, in an order that is none, with its priority and 20 as the value.
async fn one_of_each(world: &World) -> Vec<ItemRef> {
    let mut items = Vec::new();
    for step in 0..19 {
        let level = step * 7 % 19 - 9;
        let options = priority(level as i8);
        items.push(world.enqueue_ref((level + 20) as u64, &options).await);
    }
    items
}

async fn set_priority(world: &World, item: &ItemRef, priority: i8) -> Result<bool> {
    let queue = &world.queue;
    let set = |tr| async move { queue.set_priority(&tr, item, priority).await };
    world.runner.run(set).await
}

async fn higher_priorities_are_granted_first_and_equal_ones_in_the_order_of_their_enqueues(
    store: TestStore,
) {
    let world = World::with_defaults(&store).await;
    one_of_each(&world).await;
    one_of_each(&world).await;
    let expected: Vec<_> = (11..=29).rev().flat_map(|value| [value, value]).collect();
    assert_eq!(world.values().await, expected);
    let items = world.stats().await.queued;
    assert_eq!(items, 38);
    let consumer = world.consumer().await;
    let mut last = (20, None);
    for value in expected {
        let delivery = consumer.dequeue().await.unwrap().unwrap();
        assert_eq!(*delivery.value(), value);
        assert_eq!(i64::from(delivery.priority()), value as i64 - 20);
        let this = (delivery.priority(), Some(delivery.id()));
        assert!(this.0 < last.0 || this.1 > last.1);
        last = this;
        delivery.complete().await.unwrap();
    }
    assert!(consumer.pop().await.unwrap().is_none());
    // No pointer is left.
    assert_eq!(world.count("o").await, 0);
    world.check().await;
}

async fn requests_are_answered_in_the_order_of_priorities(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let consumers = [world.consumer().await, world.consumer().await];
    let pops = consumers.iter().map(|consumer| consumer.pop_within(LONG));
    let enqueue = async {
        world.until_requested(2).await;
        let queue = &world.queue;
        let items = [-9, 0, 9, 9].map(|level| ((level + 20) as u64, priority(level)));
        let items = &items;
        let all = |tr| async move { queue.enqueue_all_with(&tr, items).await.map(drop) };
        world.runner.run(all).await.unwrap();
    };
    let (popped, ()) = futures::join!(join_all(pops), enqueue);
    let values = popped.into_iter().map(|item| item.unwrap().unwrap().value);
    assert!(values.eq([29, 29]));
    assert_eq!(world.values().await, [20, 11]);
    world.check().await;
}

async fn an_item_that_comes_back_keeps_its_priority(store: TestStore) {
    /// Longer than the backoff, and not so long that the session stops trusting its wall clock.
    const AGAIN: Duration = Duration::from_secs(10);
    let (world, wall) = with_wall(&store, Settings::new().with_lease(LONG)).await;
    let consumer = world.consumer().await;
    let high = world.enqueue_ref(1, &priority(3)).await;
    let next = || async { consumer.dequeue_within(LONG).await.unwrap().unwrap() };
    for way in 0..5 {
        let delivery = next().await;
        assert_eq!((*delivery.value(), delivery.priority()), (1, 3), "{way}");
        world.enqueue([2]).await;
        match way {
            0 => delivery.nack().await.unwrap(),
            1 => delivery.release().await.unwrap(),
            2 => drop(delivery),
            3 => delivery.snooze(AGAIN).await.unwrap(),
            _ => delivery.discard("no good").await.unwrap(),
        }
        until(async || !matches!(world.place(&high).await, Some(Place::Held { .. }))).await;
        if way == 4 {
            let queue = &world.queue;
            let redrive = |tr| async move { queue.redrive(&tr, &high).await };
            assert!(world.runner.run(redrive).await.unwrap());
        }
        wall.advance(AGAIN);
    }
    assert_eq!(*next().await.value(), 1);
}

async fn a_delayed_item_gets_its_place_by_its_priority_when_it_is_due(store: TestStore) {
    let (world, wall) = with_wall(&store, Settings::new().with_lease(LONG)).await;
    world.enqueue([1]).await;
    let delay = |level| priority(level).with_delay(LONG);
    world.enqueue_ref(0, &delay(-1)).await;
    world.enqueue_ref(2, &delay(1)).await;
    let late = world
        .enqueue_ref(3, &priority(2).with_delay(LONG * 9))
        .await;
    let queue = &world.queue;
    let expedite = |tr| async move { queue.expedite(&tr, &late).await };
    assert!(world.runner.run(expedite).await.unwrap());
    wall.advance(LONG);
    let consumer = world.consumer().await;
    for value in [3, 2, 1, 0] {
        assert_eq!(consumer.pop().await.unwrap().unwrap().value, value);
    }
    world.check().await;
}

async fn the_priority_of_an_item_that_no_session_holds_can_be_changed(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let consumer = world.consumer().await;
    let held = world.enqueue_ref(0, &priority(1)).await;
    let delivery = consumer.dequeue().await.unwrap().unwrap();
    assert!(!set_priority(&world, &held, 2).await.unwrap());
    assert_eq!(world.status(&held).await.unwrap().priority, 1);

    let dead = world.enqueue_ref(1, &Enqueue::new()).await;
    let discarded = consumer.dequeue().await.unwrap().unwrap();
    discarded.discard("no good").await.unwrap();
    let delayed = world.enqueue_ref(2, &Enqueue::new().with_delay(LONG)).await;
    let queued = world.enqueue_ref(3, &Enqueue::new()).await;
    let other = world.enqueue_ref(4, &priority(4)).await;
    for (item, places) in [
        (&queued, [9, -9, 0, 5]),
        (&delayed, [-9, 9, 0, 6]),
        (&dead, [-9, 9, 0, 7]),
    ] {
        let place = world.place(item).await;
        for priority in places {
            assert!(set_priority(&world, item, priority).await.unwrap());
            let status = world.status(item).await.unwrap();
            assert_eq!((status.priority, Some(status.place)), (priority, place));
            world.check().await;
        }
    }
    let queue = &world.queue;
    let all = |tr: Tx<_>| async move {
        queue.redrive(&tr, &dead).await?;
        queue.expedite(&tr, &delayed).await
    };
    assert!(world.runner.run(all).await.unwrap());
    assert_eq!(world.values().await, [1, 2, 3, 4]);
    assert_eq!(world.cancel(&other).await, Cancelled::Removed);
    assert!(!set_priority(&world, &other, 3).await.unwrap());
    drop(delivery);
    world.check().await;
}

async fn an_item_that_is_replaced_keeps_its_priority_and_a_debounced_one_gets_the_new_one(
    store: TestStore,
) {
    let world = World::with_defaults(&store).await;
    let named = |level| priority(level).with_dedupe("id");
    let item = world.enqueue_ref(1, &named(1)).await;
    world.enqueue([9]).await;
    for (on_repeat, to, expected) in [
        (OnRepeat::Keep, 2, 1),
        (OnRepeat::Replace, 3, 1),
        (OnRepeat::Debounce, -4, -4),
        (OnRepeat::Replace, 5, -4),
        (OnRepeat::Debounce, 0, 0),
        (OnRepeat::Debounce, 6, 6),
    ] {
        let again = named(to).with_on_repeat(on_repeat);
        let is_kept = on_repeat == OnRepeat::Keep;
        let enqueued = world.enqueue_with(2, &again).await.unwrap();
        assert_eq!(matches!(enqueued, Enqueued::Repeated), is_kept);
        let status = world.status(&item).await.unwrap();
        assert_eq!((status.priority, status.place), (expected, Place::Queued));
        world.check().await;
    }
    assert_eq!(world.values().await, [2, 9]);
    // A dead letter that is replaced gets a new place.
    let consumer = world.consumer().await;
    let delivery = consumer.dequeue().await.unwrap().unwrap();
    delivery.discard("no good").await.unwrap();
    let again = named(-1).with_on_repeat(OnRepeat::Replace);
    let replaced = world.enqueue_with(3, &again).await.unwrap();
    assert!(matches!(replaced, Enqueued::Replaced(_)));
    assert_eq!(world.status(&item).await.unwrap().priority, -1);
    assert_eq!(world.values().await, [9, 3]);
}

async fn a_transaction_may_enqueue_a_dedupe_id_again_with_the_same_priority_only(store: TestStore) {
    for delay in [Duration::ZERO, LONG] {
        let world = World::with_defaults(&store).await;
        let World { queue, runner, .. } = &world;
        let named = |level| priority(level).with_dedupe("id").with_delay(delay);
        let first = &named(-2);
        let twice = async |again: Enqueue| {
            let again = &again;
            let enqueue = |tr: Tx<_>| async move {
                let _ = queue.enqueue_with(&tr, &1, first).await?;
                match queue.enqueue_with(&tr, &2, again).await? {
                    Enqueued::Staged(staged) => Ok::<_, Error>(staged),
                    other => panic!("{other:?}"),
                }
            };
            let (staged, commit) = runner.run_committed(enqueue).await?;
            Ok::<_, Error>(staged.at(commit.versionstamp.unwrap()))
        };
        let refused = twice(named(3).with_on_repeat(OnRepeat::Debounce)).await;
        assert!(matches!(refused, Err(Error::EnqueuedWithOtherPlace)));
        for (on_repeat, level) in [(OnRepeat::Debounce, -2), (OnRepeat::Replace, 3)] {
            let item = twice(named(level).with_on_repeat(on_repeat)).await.unwrap();
            let status = world.status(&item).await.unwrap();
            assert_eq!((status.priority, status.value.unwrap()), (-2, 2));
            world.check().await;
            assert_eq!(world.cancel(&item).await, Cancelled::Removed);
        }
    }
}

async fn a_priority_out_of_range_is_refused_before_anything_is_staged(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let item = world.enqueue_ref(1, &Enqueue::new()).await;
    let rows = || async {
        let mut rows = Vec::new();
        for part in ["ht", "i", "j", "o", "w", "k", "e", "c"] {
            rows.push(world.count(part).await);
        }
        rows
    };
    let before = rows().await;
    let is_refusal =
        |error: &Error, given| matches!(error, Error::Priority { priority } if *priority == given);
    for given in [MAX_PRIORITY + 1, -MAX_PRIORITY - 1, i8::MAX, i8::MIN] {
        let options = &priority(given).with_dedupe("id");
        let error = world.enqueue_with(2, options).await.unwrap_err();
        assert!(is_refusal(&error, given), "{error}");
        assert!(error.to_string().ends_with("set one from -9 to 9"));
        let queue = &world.queue;
        let schedule = Schedule::new("@daily").with_enqueue_options(priority(given));
        let schedule = &schedule;
        let create = |tr| async move { queue.schedule(&tr, "name", schedule, &1).await };
        let error = world.runner.run(create).await.unwrap_err();
        assert!(is_refusal(&error, given), "{error}");
        let error = set_priority(&world, &item, given).await.unwrap_err();
        assert!(is_refusal(&error, given), "{error}");
        // The first item stays out, too.
        let both = [(3, Enqueue::new()), (4, priority(given))];
        let both = &both;
        let enqueue = |tr: Tx<_>| async move {
            let refused = queue.enqueue_all_with(&tr, both).await;
            assert!(matches!(refused, Err(Error::Priority { .. })));
            Ok::<_, Error>(())
        };
        world.runner.run(enqueue).await.unwrap();
    }
    assert_eq!(rows().await, before);
    assert_eq!(world.values().await, [1]);
}

async fn a_schedule_gives_its_items_a_priority(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let schedule = Schedule::new("* * * * * *").with_enqueue_options(priority(4));
    let queue = &world.queue;
    let schedule = &schedule;
    let create = |tr| async move { queue.schedule(&tr, "name", schedule, &1).await };
    let _ = world.runner.run(create).await.unwrap();
    let consumer = world.consumer().await;
    let fired = consumer.dequeue_within(LONG).await.unwrap().unwrap();
    assert_eq!((*fired.value(), fired.priority()), (1, 4));
    fired.complete().await.unwrap();
}

async fn a_queue_is_full_of_items_of_all_priorities(store: TestStore) {
    let world = World::with_defaults(&store).await;
    world.enqueue([1]).await;
    let limited = priority(9).with_max_depth(3);
    let queue = &world.queue;
    let limited = &limited;
    let fill = |tr: Tx<_>| async move {
        let _ = queue.enqueue_with(&tr, &2, limited).await?;
        let _ = queue.enqueue_with(&tr, &3, limited).await?;
        match queue.enqueue_with(&tr, &4, limited).await {
            Err(Error::Full { depth, limit, .. }) => assert_eq!((depth, limit), (3, 3)),
            other => panic!("{other:?}"),
        }
        Ok::<_, Error>(())
    };
    world.runner.run(fill).await.unwrap();
    assert_eq!(world.values().await, [2, 3, 1]);
}

async fn items_of_all_priorities_are_cleared(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let mut items = one_of_each(&world).await;
    items.push(world.enqueue_ref(1, &priority(3).with_delay(LONG)).await);
    assert_eq!(world.queue.clear(&world.runner).await.unwrap().removed, 20);
    for item in &items {
        assert_eq!(world.status(item).await, None);
    }
    for part in ["ht", "i", "j", "o", "t"] {
        assert_eq!(world.count(part).await, 0, "{part}");
    }
    world.check().await;
}

async fn an_item_in_the_wrong_place_is_found(store: TestStore) {
    let world = World::with_defaults(&store).await;
    for level in [9, -9] {
        let item = world.enqueue_ref(1, &priority(level)).await;
        let id = item.id();
        let rank = (10 - i64::from(level)) as u64;
        let part = if level > 0 { "ht" } else { "j" };
        let row = id.key_in(&world.queue.subspace().subspace(&(part, rank)));
        let pointer = id.key_in(&world.key("o"));
        let missing = Finding::NoPointer {
            item,
            key: row.clone().into(),
        };
        for damaged in [None, Some(&[1, 4][..]), Some(&[0; 9]), Some(&[9])] {
            world.write(&pointer, damaged).await;
            let audit = world.queue.repair(&world.runner).await.unwrap();
            let expected = std::slice::from_ref(&missing);
            assert_eq!(audit.findings, expected, "{damaged:?}");
            world.check().await;
            assert_eq!(world.status(&item).await.unwrap().priority, level);
        }
        // The same item with priority 0, or with another one.
        let read = |tr: Tx<_>| {
            let row = row.clone();
            async move { tr.get(&row, keyspace::Isolation::Snapshot).await }
        };
        let record = world.runner.run(read).await.unwrap().unwrap();
        for (part, rank) in [("i", None), ("ht", Some(2_u64)), ("j", Some(12))] {
            let twin = match rank {
                None => id.key_in(&world.key(part)),
                Some(rank) => id.key_in(&world.queue.subspace().subspace(&(part, rank))),
            };
            world.write(&twin, Some(&record)).await;
            let audit = world.queue.audit(&world.runner).await.unwrap();
            let found: BTreeSet<_> = audit.findings.iter().map(Finding::to_string).collect();
            let twice = Finding::Twice { item }.to_string();
            assert!(found.contains(&twice), "{part} {rank:?}: {found:?}");
            world.write(&twin, None).await;
            world.check().await;
        }
        assert_eq!(world.cancel(&item).await, Cancelled::Removed);
    }
    let stray = world.enqueue_ref(1, &Enqueue::new()).await;
    let pointer = stray.id().key_in(&world.key("o"));
    world.write(&pointer, Some(&[1, 4])).await;
    let audit = world.queue.repair(&world.runner).await.unwrap();
    assert_eq!(audit.findings, [Finding::StrayPointer { item: stray }]);
    assert_eq!(world.count("o").await, 0);
}

async fn a_queue_from_a_store_that_was_ahead_is_refused(store: TestStore) {
    let world = World::with_defaults(&store).await;
    world.enqueue_ref(1, &priority(5)).await;
    let ahead = Versionstamp::new(i64::MAX / 2, 0);
    let wake = world.queue.subspace().pack(&"w");
    world.write(&wake, Some(ahead.as_bytes())).await;
    let refused = open(&world.store, &world.runner, Settings::default()).await;
    let is_refusal = matches!(
        refused,
        Err(Error::Part(PartError::StampAhead { stamp, .. })) if stamp == ahead
    );
    assert!(is_refusal, "{refused:?}");
    let listed = world.queue.clone();
    let list = |tr| {
        let queue = &listed;
        async move { queue.list(&tr, PlaceKind::Queued, None, 9).await }
    };
    assert_eq!(world.runner.run(list).await.unwrap().items.len(), 1);
}

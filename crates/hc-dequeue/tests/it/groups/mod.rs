//! Groups: items of a group are limited, in order, and take turns with others.

mod damage;
mod pause;
mod prior_art;
mod quiet;
mod rates;
mod tokens;
mod turns;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use conformance::stores::TestStore;
use futures::future::join_all;
use hc_dequeue::testing::{EnqueuedItem, enqueued};
use hc_dequeue::{
    Consumer, Delivery, Enqueue, Enqueued, GroupLimits, GroupState, GroupStatus, OnRepeat, Place,
    PlaceKind, Schedule, Settings,
};
use keyspace::Tx;

use crate::common::{LONG, World, settings};
use crate::testing::with_wall;

conformance::on_every_store!(
    at_most_as_many_items_of_a_group_are_held_as_its_limit_says,
    a_limit_that_changes_takes_effect_at_once_and_revokes_nothing,
    default_limits_apply_to_groups_without_their_own_and_let_waiting_items_start,
    a_popped_item_needs_a_free_slot_and_keeps_none,
    items_of_an_ordered_group_come_one_after_another_whatever_happens,
    a_dead_letter_frees_its_slot_or_blocks_its_group,
    what_waits_in_a_lane_can_be_found_changed_listed_and_cleared,
    a_repeated_dedupe_id_keeps_the_group,
    a_schedule_gives_its_items_a_group,
    requests_are_answered_with_items_of_groups,
    a_group_shows_its_state,
);

fn of(group: &'static str) -> Enqueue {
    Enqueue::new().with_group(group)
}

impl World {
    async fn enqueue_all_of(&self, group: &'static str, values: impl IntoIterator<Item = u64>) {
        let queue = &self.queue;
        let items: Vec<_> = values.into_iter().map(|value| (value, of(group))).collect();
        let items = &items;
        let enqueue = |tr| async move { queue.enqueue_all_with(&tr, items).await.map(drop) };
        self.runner.run(enqueue).await.unwrap();
    }

    async fn limit(&self, group: &str, limits: impl Into<Option<GroupLimits>>) {
        let queue = &self.queue;
        let limits = &limits.into();
        let configure = |tr| async move {
            let limits = limits.as_ref();
            queue.configure_group(&tr, group.as_bytes(), limits).await
        };
        self.runner.run(configure).await.unwrap();
    }

    async fn limit_all(&self, limits: GroupLimits) {
        let queue = &self.queue;
        let limits = &limits;
        let configure = |tr| async move { queue.configure_groups(&tr, limits).await };
        self.runner.run(configure).await.unwrap();
    }

    async fn group_status(&self, group: &str) -> GroupStatus {
        let queue = &self.queue;
        let read = |tr| async move { queue.group(&tr, group.as_bytes()).await };
        self.runner.run(read).await.unwrap()
    }
}

/// Takes what there is, at once.
async fn take_all(consumer: &Consumer<u64>) -> Vec<Delivery<u64>> {
    let mut taken = Vec::new();
    while let Some(delivery) = consumer.dequeue().await.unwrap() {
        taken.push(delivery);
    }
    taken
}

fn values(deliveries: &[Delivery<u64>]) -> Vec<u64> {
    let values = deliveries.iter().map(|delivery| *delivery.value());
    values.collect()
}

async fn next(consumer: &Consumer<u64>) -> Delivery<u64> {
    consumer.dequeue_within(LONG).await.unwrap().unwrap()
}

async fn at_most_as_many_items_of_a_group_are_held_as_its_limit_says(store: TestStore) {
    let world = World::with_defaults(&store).await;
    world.limit("a", GroupLimits::new().with_limit(2)).await;
    world.enqueue_all_of("a", 0..5).await;
    let consumer = world.consumer().await;
    let held = take_all(&consumer).await;
    assert_eq!(values(&held), [0, 1]);
    assert_eq!(held[0].group().map(|group| &group[..]), Some(&b"a"[..]));
    let status = world.group_status("a").await;
    assert_eq!((status.slots, status.waiting), (2, 3));
    assert_eq!(status.state, GroupState::AtLimit);
    // Each way to let go of an item frees its slot, also in the transaction that takes the next one.
    let [first, second] = &held[..] else {
        panic!("two items");
    };
    first.complete().await.unwrap();
    assert_eq!(*next(&consumer).await.value(), 2);
    second.retry_after(LONG, "later").await.unwrap();
    let fourth = next(&consumer).await;
    assert_eq!(*fourth.value(), 3);
    fourth.discard("no").await.unwrap();
    let last = next(&consumer).await;
    world.ack(&last).await.unwrap();
    drop(last);
    assert!(consumer.dequeue().await.unwrap().is_none());
    world.check().await;
    consumer.shut_down(LONG).await.unwrap();
    assert_eq!(world.group_status("a").await.slots, 0);
    world.check().await;
}

async fn a_limit_that_changes_takes_effect_at_once_and_revokes_nothing(store: TestStore) {
    let world = World::with_defaults(&store).await;
    world.enqueue_all_of("a", 0..9).await;
    let consumer = world.consumer().await;
    // Slots are counted without a limit, too.
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(consumer.dequeue().await.unwrap().unwrap());
    }
    world.limit("a", GroupLimits::new().with_limit(2)).await;
    assert!(consumer.dequeue().await.unwrap().is_none());
    for _ in 0..2 {
        held.remove(0).complete().await.unwrap();
        assert!(consumer.dequeue().await.unwrap().is_none());
    }
    held.remove(0).complete().await.unwrap();
    assert_eq!(*next(&consumer).await.value(), 4);
    // Zero pauses the group.
    world.limit("a", GroupLimits::new().with_limit(0)).await;
    held.remove(0).complete().await.unwrap();
    assert!(consumer.dequeue().await.unwrap().is_none());
    assert_eq!(world.group_status("a").await.state, GroupState::Paused);
    // A consumer that waits sees that the group goes on.
    let (delivery, ()) = tokio::join!(next(&consumer), async {
        world.until_requested(1).await;
        world.limit("a", None).await;
    });
    assert_eq!(*delivery.value(), 5);
    assert_eq!(world.group_status("a").await.state, GroupState::Ready);
    world.check().await;
}

async fn default_limits_apply_to_groups_without_their_own_and_let_waiting_items_start(
    store: TestStore,
) {
    let world = World::new(&store, settings()).await;
    world.limit_all(GroupLimits::new().with_limit(0)).await;
    world.limit("c", GroupLimits::new()).await;
    for group in ["a", "b", "c"] {
        world.enqueue_all_of(group, [1, 2]).await;
    }
    let queue = &world.queue;
    let read = |tr| async move { queue.default_group_limits(&tr).await };
    assert_eq!(world.runner.run(read).await.unwrap().limit(), Some(0));
    let consumer = world.consumer().await;
    let held = take_all(&consumer).await;
    assert!(held.iter().all(|item| item.group().unwrap() == "c"));
    assert_eq!(values(&held), [1, 2]);
    // The looks of the consumer have removed the notices. A session that sees the mark writes them again.
    world.limit_all(GroupLimits::new().with_limit(1)).await;
    let started = [next(&consumer).await, next(&consumer).await];
    let groups: BTreeSet<_> = started.iter().map(|item| item.group().unwrap()).collect();
    assert!(groups.into_iter().eq(["a", "b"]));
    assert!(consumer.dequeue().await.unwrap().is_none());
    world.check().await;
}

async fn a_popped_item_needs_a_free_slot_and_keeps_none(store: TestStore) {
    let world = World::with_defaults(&store).await;
    world.limit("a", GroupLimits::new().with_limit(1)).await;
    world.enqueue_all_of("a", 0..4).await;
    let consumer = world.consumer().await;
    for value in 0..2 {
        assert_eq!(consumer.pop().await.unwrap().unwrap().value, value);
    }
    assert_eq!(world.group_status("a").await.slots, 0);
    let held = next(&consumer).await;
    assert!(consumer.pop().await.unwrap().is_none());
    held.complete().await.unwrap();
    assert_eq!(consumer.pop_within(LONG).await.unwrap().unwrap().value, 3);
    world.check().await;
}

async fn items_of_an_ordered_group_come_one_after_another_whatever_happens(store: TestStore) {
    let (world, wall) = with_wall(&store, Settings::new()).await;
    world.limit_all(GroupLimits::ordered()).await;
    world.enqueue_all_of("a", 0..3).await;
    let urgent = of("a").with_priority(9);
    let consumer = world.consumer().await;
    let first = next(&consumer).await;
    let _ = world.enqueue_with(9, &urgent).await.unwrap();
    let first_again = async |delivery: Delivery<u64>| {
        assert!(consumer.dequeue().await.unwrap().is_none());
        assert_eq!(*delivery.value(), 0);
        delivery
    };
    let first = first_again(first).await;
    first.nack().await.unwrap();
    let first = first_again(next(&consumer).await).await;
    first.release().await.unwrap();
    let first = first_again(next(&consumer).await).await;
    first
        .retry_after(Duration::from_secs(5), "soon")
        .await
        .unwrap();
    assert!(consumer.dequeue().await.unwrap().is_none());
    assert_eq!(world.group_status("a").await.slots, 1);
    wall.advance(Duration::from_secs(6));
    let first = first_again(next(&consumer).await).await;
    consumer.shut_down(Duration::ZERO).await.unwrap();
    assert!(first.is_lost());
    let consumer = world.consumer().await;
    let first = next(&consumer).await;
    assert_eq!(*first.value(), 0);
    assert!(consumer.dequeue().await.unwrap().is_none());
    world.ack(&first).await.unwrap();
    for value in [9, 1, 2] {
        let delivery = next(&consumer).await;
        assert_eq!(*delivery.value(), value);
        assert!(consumer.dequeue().await.unwrap().is_none());
        delivery.complete().await.unwrap();
    }
    world.check().await;
}

async fn a_dead_letter_frees_its_slot_or_blocks_its_group(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let queue = &world.queue;
    world.limit("a", GroupLimits::ordered()).await;
    let blocking = GroupLimits::ordered().with_dead_letters_blocking();
    for group in ["b", "c", "d"] {
        world.limit(group, blocking).await;
    }
    for group in ["a", "b", "c", "d"] {
        world.enqueue_all_of(group, [1, 2]).await;
    }
    let consumer = world.consumer().await;
    let held = take_all(&consumer).await;
    assert_eq!(values(&held), [1; 4]);
    let mut dead = BTreeMap::new();
    for delivery in held {
        delivery.discard("no good").await.unwrap();
        let group = delivery.group().cloned().unwrap();
        dead.insert(group, delivery.item_ref());
    }
    let second = next(&consumer).await;
    assert_eq!((*second.value(), second.group().unwrap()), (2, &"a".into()));
    assert!(consumer.dequeue().await.unwrap().is_none());
    let blocked = world.status(&dead[&b"b"[..]]).await.unwrap();
    assert_eq!((blocked.place, blocked.has_slot), (Place::Dead, true));
    // A redrive lets it go on first, and the others follow.
    let redriven = dead[&b"b"[..]];
    let redrive = |tr| async move { queue.redrive(&tr, &redriven).await };
    assert!(world.runner.run(redrive).await.unwrap());
    let again = next(&consumer).await;
    assert_eq!((*again.value(), again.group().unwrap()), (1, &"b".into()));
    again.complete().await.unwrap();
    assert_eq!(*next(&consumer).await.value(), 2);
    // A purge and a cancellation free the slot.
    let purged = dead[&b"c"[..]];
    let purge = |tr| async move { queue.purge(&tr, &purged).await };
    assert!(world.runner.run(purge).await.unwrap());
    assert_eq!(next(&consumer).await.group().unwrap(), "c");
    let _ = world.cancel(&dead[&b"d"[..]]).await;
    assert_eq!(next(&consumer).await.group().unwrap(), "d");
    world.check().await;
}

async fn what_waits_in_a_lane_can_be_found_changed_listed_and_cleared(store: TestStore) {
    let (world, wall) = with_wall(&store, Settings::new()).await;
    let queue = &world.queue;
    let first = world.enqueue_ref(1, &of("a")).await;
    let second = world
        .enqueue_ref(2, &of("a").with_delay(Duration::from_secs(9)))
        .await;
    world.enqueue([3]).await;
    let status = world.status(&first).await.unwrap();
    assert_eq!(
        (status.place, &status.group[..]),
        (Place::Queued, &b"a"[..])
    );
    assert_eq!(world.values().await, [3, 1]);
    let set = |tr| async move { queue.set_priority(&tr, &first, 5).await };
    assert!(world.runner.run(set).await.unwrap());
    let replace = |tr| async move { queue.replace(&tr, &first, &10).await };
    let _ = world.runner.run(replace).await.unwrap();
    wall.advance(Duration::from_secs(10));
    let consumer = world.consumer().await;
    let delivery = next(&consumer).await;
    assert_eq!((*delivery.value(), delivery.priority()), (10, 5));
    // The promotion of the delayed item is a part of that take.
    assert_eq!(world.place(&second).await, Some(Place::Queued));
    delivery.release().await.unwrap();
    let items = enqueued(&world.runner, queue).await.unwrap();
    assert_eq!(
        items,
        [
            EnqueuedItem::new(3),
            EnqueuedItem::new(10).group("a").priority(5),
            EnqueuedItem::new(2).group("a")
        ]
    );
    let end = |tr| async move { queue.end(&tr, PlaceKind::Queued).await };
    assert!(world.runner.run(end).await.unwrap().is_some());
    let age = |tr| async move { queue.oldest_age(&tr).await };
    assert!(world.runner.run(age).await.unwrap().is_some());
    consumer.shut_down(LONG).await.unwrap();
    assert_eq!(queue.clear(&world.runner).await.unwrap().removed, 3);
    assert_eq!(world.stats().await.queued, 0);
    // Nothing of a group remains, but notices until a session looks.
    for part in ["l", "o"] {
        assert_eq!(world.count(part).await, 0, "{part}");
    }
    let consumer = world.consumer().await;
    assert!(consumer.dequeue().await.unwrap().is_none());
    assert_eq!(world.count("hs").await, 0);
    world.check().await;
}

async fn a_repeated_dedupe_id_keeps_the_group(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let queue = &world.queue;
    let once = |group: &'static str, mode| of(group).with_dedupe("id").with_on_repeat(mode);
    // In one transaction, and in two.
    let [first, again] = &[once("a", OnRepeat::Keep), once("b", OnRepeat::Replace)];
    let both = |tr: Tx<_>| async move {
        let _ = queue.enqueue_with(&tr, &1, first).await?;
        queue.enqueue_with(&tr, &2, again).await
    };
    let enqueued = world.runner.run(both).await.unwrap();
    assert!(matches!(enqueued, Enqueued::Staged(_)));
    for (value, mode) in [(3, OnRepeat::Replace), (4, OnRepeat::Debounce)] {
        let options = once("b", mode);
        let enqueued = world.enqueue_with(value, &options).await.unwrap();
        assert!(matches!(enqueued, Enqueued::Replaced(_)));
    }
    world.check().await;
    let consumer = world.consumer().await;
    let held = next(&consumer).await;
    assert_eq!((*held.value(), held.group().unwrap()), (4, &"a".into()));
    // An item that takes the id over has its own group.
    let options = once("b", OnRepeat::Replace);
    let enqueued = world.enqueue_with(5, &options).await.unwrap();
    assert!(matches!(enqueued, Enqueued::Staged(_)));
    let other = next(&consumer).await;
    assert_eq!((*other.value(), other.group().unwrap()), (5, &"b".into()));
    world.check().await;
}

async fn a_schedule_gives_its_items_a_group(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let queue = &world.queue;
    let schedule = &Schedule::new("* * * * * *").with_enqueue_options(of("a"));
    let set = |tr| async move { queue.schedule(&tr, "name", schedule, &7).await };
    let _ = world.runner.run(set).await.unwrap();
    let consumer = world.consumer().await;
    let fired = next(&consumer).await;
    assert_eq!((*fired.value(), fired.group().unwrap()), (7, &"a".into()));
    fired.complete().await.unwrap();
}

async fn requests_are_answered_with_items_of_groups(store: TestStore) {
    let world = World::with_defaults(&store).await;
    world.limit("a", GroupLimits::new().with_limit(2)).await;
    let consumers = [
        world.consumer().await,
        world.consumer().await,
        world.consumer().await,
    ];
    let enqueue = async {
        world.until_requested(3).await;
        world.enqueue_all_of("a", 0..4).await;
        world.enqueue_all_of("b", [9]).await;
    };
    let dequeue = consumers.iter().map(next);
    let (deliveries, ()) = tokio::join!(join_all(dequeue), enqueue);
    let mut values = values(&deliveries);
    values.sort_unstable();
    assert_eq!(values, [0, 1, 9]);
    assert_eq!(world.group_status("a").await.slots, 2);
    // A slot that is freed wakes one that waits.
    let of_a = deliveries
        .iter()
        .find(|item| item.group().unwrap() == "a")
        .unwrap();
    let free = async {
        world.until_requested(1).await;
        world.ack(of_a).await.unwrap();
    };
    let (third, ()) = tokio::join!(next(&consumers[0]), free);
    assert_eq!(*third.value(), 2);
    world.check().await;
}

async fn a_group_shows_its_state(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let queue = &world.queue;
    let two = GroupLimits::new().with_limit(2);
    world.limit("limited", two).await;
    world.enqueue_all_of("limited", 0..3).await;
    world.enqueue_all_of("free", 0..2).await;
    let idle = world.group_status("unknown").await;
    assert_eq!(
        (idle.state, idle.slots, idle.waiting),
        (GroupState::Idle, 0, 0)
    );
    assert!(!idle.has_own_limits);
    let read = |after: Option<&'static [u8]>, limit| {
        move |tr| async move { queue.groups(&tr, after, limit).await }
    };
    let page = world.runner.run(read(None, 1)).await.unwrap();
    assert_eq!(
        (&page.groups[0].group[..], page.groups[0].waiting),
        (&b"free"[..], 2)
    );
    assert_eq!(page.next.as_deref(), Some(&b"free"[..]));
    let page = world.runner.run(read(Some(b"free"), 10)).await.unwrap();
    assert_eq!(page.next, None);
    let [limited] = &page.groups[..] else {
        panic!("{page:?}");
    };
    assert_eq!((limited.limits, limited.has_own_limits), (two, true));
    assert_eq!(limited.state, GroupState::Ready);
    let count = |tr| async move { queue.groups(&tr, None, 0).await };
    assert_eq!(world.runner.run(count).await.unwrap().groups, []);
    world.check().await;
}

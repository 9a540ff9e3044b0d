//! Turns: which group and which priority comes next.

use std::collections::{BTreeMap, BTreeSet};

use conformance::stores::TestStore;
use futures::future::try_join_all;
use hc_dequeue::{Consumer, Delivery, Enqueue, GroupLimits};

use super::{next, of, take_all, values};
use crate::common::World;

conformance::on_every_store!(
    groups_take_turns_by_their_weights_and_alternate_with_items_without_a_group,
    the_priority_comes_before_the_turn,
    all_of_many_groups_have_their_turns,
    what_may_be_granted_is_found_behind_many_groups_that_may_not,
    the_priority_comes_first_behind_groups_of_two_priorities_that_may_not_start,
);

/// Completes items until none is left. Returns their groups and values.
async fn order(world: &World, consumer: &Consumer<u64>) -> Vec<(String, u64)> {
    let mut order = Vec::new();
    while let Some(delivery) = consumer.dequeue().await.unwrap() {
        let group = delivery.group().map_or(&b""[..], |group| group);
        let group = String::from_utf8(group.to_vec()).unwrap();
        order.push((group, *delivery.value()));
        world.ack(&delivery).await.unwrap();
    }
    order
}

async fn groups_take_turns_by_their_weights_and_alternate_with_items_without_a_group(
    store: TestStore,
) {
    let world = World::with_defaults(&store).await;
    world.limit("b", GroupLimits::new().with_weight(3)).await;
    world.enqueue_all_of("a", 0..6).await;
    world.enqueue_all_of("b", 0..12).await;
    world.enqueue_all_of("c", 0..2).await;
    world.enqueue(0..4).await;
    let consumer = world.consumer().await;
    let order = order(&world, &consumer).await;
    // Of each group, the items come in order.
    for group in ["a", "b", "c", ""] {
        let of_key = order.iter().filter(|(of, _)| of == group);
        assert!(of_key.map(|(_, value)| *value).is_sorted());
    }
    assert_eq!(order.len(), 24);
    // While both wait, every other item has no group.
    let without: Vec<_> = order[..8]
        .iter()
        .map(|(group, _)| group.is_empty())
        .collect();
    assert!(without == [false, true].repeat(4) || without == [true, false].repeat(4));
    // The turns: one of `a`, three of `b`, one of `c` while it lasts.
    let turns: String = order.iter().map(|(group, _)| group.as_str()).collect();
    let rounds = [turns.find("a"), turns.find("b"), turns.find("c")];
    assert!(
        rounds
            .iter()
            .all(|first| first.is_some_and(|first| first < 5)),
        "{turns}"
    );
    let later = &turns[turns.rfind('c').unwrap() + 1..];
    assert!(
        later.contains("abbbabbb") || later.contains("bbbabbba"),
        "{turns}"
    );
    world.check().await;
}

async fn the_priority_comes_before_the_turn(store: TestStore) {
    let world = World::with_defaults(&store).await;
    for (value, options) in [
        (0, of("a").with_priority(-1)),
        (1, of("a")),
        (2, of("b").with_priority(1)),
        (3, Enqueue::new().with_priority(1)),
        (4, of("a").with_priority(9)),
        (5, Enqueue::new().with_priority(-9)),
        (6, of("a").with_priority(9)),
    ] {
        let _ = world.enqueue_with(value, &options).await.unwrap();
    }
    let consumer = world.consumer().await;
    let order = order(&world, &consumer).await;
    let values: Vec<_> = order.iter().map(|(_, value)| *value).collect();
    assert_eq!(values[..2], [4, 6]);
    assert_eq!(BTreeSet::from([values[2], values[3]]), [2, 3].into());
    assert_eq!(values[4..], [1, 0, 5]);
    world.check().await;
}

async fn all_of_many_groups_have_their_turns(store: TestStore) {
    // More than one look reads notices of, and more than it reads lanes of.
    const GROUPS: u64 = 300;
    let world = World::with_defaults(&store).await;
    let queue = &world.queue;
    let grouped = |number: u64| Enqueue::new().with_group(number.to_be_bytes());
    let items: Vec<_> = (0..3)
        .flat_map(|_| (0..GROUPS).map(|group| (group, grouped(group))))
        .collect();
    for items in items.chunks(100) {
        let enqueue = |tr| async move { queue.enqueue_all_with(&tr, items).await.map(drop) };
        world.runner.run(enqueue).await.unwrap();
    }
    let consumer = world.consumer().await;
    let mut handled: BTreeMap<u64, u64> = BTreeMap::new();
    let mut taken = 0;
    while taken < 3 * GROUPS {
        let deliveries = consumer.dequeue_batch(7).await.unwrap();
        assert!(!deliveries.is_empty(), "{taken}");
        for delivery in deliveries {
            taken += 1;
            *handled.entry(*delivery.value()).or_default() += 1;
            // A group has no second turn before all have had one.
            let least = (0..GROUPS)
                .map(|group| handled.get(&group).copied().unwrap_or(0))
                .min();
            let most = handled.values().max().copied();
            assert!(
                most <= least.map(|least| least + 1),
                "{taken}: {most:?} and {least:?}"
            );
            delivery.complete().await.unwrap();
        }
    }
    world.check().await;
}

async fn what_may_be_granted_is_found_behind_many_groups_that_may_not(store: TestStore) {
    // More than one look reads lanes of, and than a small one reads notices of.
    const GROUPS: u64 = 150;
    let world = World::with_defaults(&store).await;
    let queue = &world.queue;
    world.limit_all(GroupLimits::new().with_limit(0)).await;
    world.limit("free", GroupLimits::new()).await;
    let consumer = world.consumer().await;
    for wanted in [1, 200] {
        let grouped = |number: u64| Enqueue::new().with_group(number.to_be_bytes());
        let items: Vec<_> = (0..GROUPS).map(|group| (group, grouped(group))).collect();
        let items = &items;
        let enqueue = |tr| async move { queue.enqueue_all_with(&tr, items).await.map(drop) };
        world.runner.run(enqueue).await.unwrap();
        world.enqueue_all_of("free", [7]).await;
        let last = Enqueue::new().with_priority(-1);
        let _ = world.enqueue_with(8, &last).await.unwrap();
        let mut found = consumer.dequeue_batch(wanted).await.unwrap();
        assert_eq!(values(&found), [7, 8][..wanted.min(2)]);
        found.extend(take_all(&consumer).await);
        assert_eq!(values(&found), [7, 8]);
        let completed = found.iter().map(Delivery::complete);
        try_join_all(completed).await.unwrap();
    }
    // All notices were looked at.
    assert!(consumer.dequeue().await.unwrap().is_none());
    assert_eq!(world.count("hs").await, 0);
    world.check().await;
}

async fn the_priority_comes_first_behind_groups_of_two_priorities_that_may_not_start(
    store: TestStore,
) {
    // A look for one item does not read the notices of all groups of the second priority.
    const GROUPS: u64 = 20;
    let world = World::with_defaults(&store).await;
    world.limit_all(GroupLimits::new().with_limit(0)).await;
    world.limit("free", GroupLimits::new()).await;
    let consumer = world.consumer().await;
    // It has seen what the changes of limits have left.
    assert!(consumer.dequeue().await.unwrap().is_none());
    for group in 0..GROUPS {
        let priority = if group % 2 == 0 { 2 } else { 1 };
        let options = Enqueue::new().with_group(group.to_be_bytes());
        let options = options.with_priority(priority);
        let _ = world.enqueue_with(group, &options).await.unwrap();
    }
    let _ = world.enqueue_with(100, &of("free")).await.unwrap();
    let last = Enqueue::new().with_priority(-1);
    let _ = world.enqueue_with(101, &last).await.unwrap();
    assert_eq!(*next(&consumer).await.value(), 100);
    assert_eq!(*next(&consumer).await.value(), 101);
}

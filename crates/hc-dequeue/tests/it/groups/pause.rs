//! Groups that are paused keep their limits, their rates and the order of their items.

use std::time::Duration;

use conformance::stores::TestStore;
use hc_dequeue::{Error, GroupLimits, GroupState, MAX_GROUP_BYTES, Rate};
use keyspace::{Database, OwnedTransaction, Tx};

use super::{next, take_all, values};
use crate::common::World;

conformance::on_every_store!(
    a_paused_group_grants_nothing_while_others_go_on,
    a_grant_beside_a_pause_is_seen_after_it_and_not_by_it,
    a_resumed_ordered_group_goes_on_in_its_order,
    a_paused_group_keeps_its_limits_and_follows_the_default_ones,
    a_call_that_waits_gets_the_item_of_a_group_that_is_resumed,
    a_pause_names_a_group_of_a_valid_length,
);

impl World {
    async fn pause_group(&self, group: &str, paused: bool) {
        let queue = &self.queue;
        let change = |tr: Tx<_>| async move {
            if paused {
                queue.pause_group(&tr, group.as_bytes())
            } else {
                queue.resume_group(&tr, group.as_bytes())
            }
        };
        self.runner.run(change).await.unwrap();
    }
}

async fn a_paused_group_grants_nothing_while_others_go_on(store: TestStore) {
    let world = World::with_defaults(&store).await;
    // A group without limits, and one of which nothing ever waited.
    for group in ["a", "none"] {
        world.pause_group(group, true).await;
    }
    world.enqueue_all_of("a", [1, 2]).await;
    world.enqueue_all_of("b", [3]).await;
    let consumer = world.consumer().await;
    let mut held = take_all(&consumer).await;
    assert_eq!(values(&held), [3]);
    let status = world.group_status("a").await;
    assert_eq!((status.state, status.is_paused), (GroupState::Paused, true));
    assert_eq!((status.waiting, status.slots), (2, 0));
    world.check().await;
    world.pause_group("a", false).await;
    held.extend(take_all(&consumer).await);
    assert_eq!(values(&held), [3, 1, 2]);
    assert!(!world.group_status("a").await.is_paused);
    world.pause_group("none", false).await;
    // A pause leaves nothing behind.
    for delivery in held {
        delivery.complete().await.unwrap();
    }
    assert_eq!(world.count("l").await, 0);
    world.check().await;
}

async fn a_grant_beside_a_pause_is_seen_after_it_and_not_by_it(store: TestStore) {
    let world = World::with_defaults(&store).await;
    world.enqueue_all_of("a", [1, 2]).await;
    let consumer = world.consumer().await;
    let mut pause = world.store.db.begin().unwrap();
    let before = world.queue.group(&pause, b"a").await.unwrap();
    let held = next(&consumer).await;
    world.queue.pause_group(&pause, b"a").unwrap();
    let during = world.queue.group(&pause, b"a").await.unwrap();
    pause.commit().await.unwrap();
    assert_eq!((before.slots, during.slots), (0, 0));
    assert!(consumer.dequeue().await.unwrap().is_none());
    assert_eq!(world.group_status("a").await.slots, 1);
    held.complete().await.unwrap();
    assert_eq!(world.group_status("a").await.slots, 0);
    world.check().await;
}

async fn a_resumed_ordered_group_goes_on_in_its_order(store: TestStore) {
    let world = World::with_defaults(&store).await;
    world.limit("a", GroupLimits::ordered()).await;
    world.enqueue_all_of("a", [1, 2]).await;
    let consumer = world.consumer().await;
    let first = next(&consumer).await;
    world.pause_group("a", true).await;
    // It keeps its slot, and comes back before the other one.
    first.release().await.unwrap();
    assert!(consumer.dequeue().await.unwrap().is_none());
    let status = world.group_status("a").await;
    assert_eq!((status.state, status.slots), (GroupState::Paused, 1));
    assert_eq!(status.limits, GroupLimits::ordered());
    world.check().await;
    world.pause_group("a", false).await;
    for value in [1, 2] {
        let delivery = next(&consumer).await;
        assert_eq!(*delivery.value(), value);
        assert!(consumer.dequeue().await.unwrap().is_none());
        delivery.complete().await.unwrap();
    }
    world.check().await;
}

async fn a_paused_group_keeps_its_limits_and_follows_the_default_ones(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let rate = Rate::new(1, Duration::from_secs(3_600)).with_burst(9);
    let limits = GroupLimits::new().with_limit(2).with_rate(rate);
    world.limit("own", limits).await;
    for group in ["own", "default"] {
        world.pause_group(group, true).await;
        world.enqueue_all_of(group, [1, 2, 3]).await;
    }
    world.limit_all(GroupLimits::new().with_limit(1)).await;
    let consumer = world.consumer().await;
    assert!(consumer.dequeue().await.unwrap().is_none());
    for (group, limits, is_own, granted) in [
        ("own", limits, true, 2),
        ("default", GroupLimits::new().with_limit(1), false, 1),
    ] {
        let status = world.group_status(group).await;
        assert_eq!((status.limits, status.has_own_limits), (limits, is_own));
        world.pause_group(group, false).await;
        let held = take_all(&consumer).await;
        assert_eq!(held.len(), granted, "{group}");
        for delivery in held {
            delivery.complete().await.unwrap();
        }
        world.pause_group(group, true).await;
    }
    world.check().await;
}

async fn a_call_that_waits_gets_the_item_of_a_group_that_is_resumed(store: TestStore) {
    let world = World::with_defaults(&store).await;
    world.pause_group("a", true).await;
    world.enqueue_all_of("a", [1]).await;
    let consumer = world.consumer().await;
    let resume = async {
        world.until_requested(1).await;
        world.pause_group("a", false).await;
    };
    let (delivery, ()) = futures::join!(next(&consumer), resume);
    assert_eq!(*delivery.value(), 1);
}

async fn a_pause_names_a_group_of_a_valid_length(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let queue = &world.queue;
    let long = vec![b'a'; MAX_GROUP_BYTES + 1];
    for group in [&b""[..], &long] {
        let refuse = |tr: Tx<_>| async move {
            let refused = queue.pause_group(&tr, group);
            assert!(matches!(refused, Err(Error::Group { .. })));
            let refused = queue.resume_group(&tr, group);
            assert!(matches!(refused, Err(Error::Group { .. })));
            Ok::<_, Error>(())
        };
        world.runner.run(refuse).await.unwrap();
    }
    assert_eq!(world.count("l").await, 0);
}

//! What other queues got wrong, by the names of their bug reports: each case excludes one here.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use conformance::stores::TestStore;
use conformance::{timeout, until};
use futures::future::join_all;
use hc_dequeue::{
    Enqueued, Error, GroupLimits, GroupState, OnRepeat, Place, Settings, WorkerOptions,
};

use super::{next, of, take_all, values};
use crate::common::{LONG, World, settings};

conformance::on_every_store!(
    solid_queue_735_761_a_slot_neither_expires_nor_is_freed_twice,
    solid_queue_689_an_enqueue_and_a_release_at_the_same_time_both_count,
    solid_queue_125_804_silo_255_what_is_discarded_before_it_starts_leaks_no_slot,
    silo_142_340_369_many_consumers_never_grant_too_many,
    good_job_325_378_838_retries_are_held_again_only_with_a_slot,
    oban_53388_sqs_a_blocked_group_hides_no_other,
    bull_mq_3210_one_runs_at_a_time_and_waiting_items_are_visible,
    silo_315_322_nothing_that_happens_to_an_item_changes_its_group,
    sidekiq_6234_an_item_that_kills_its_process_keeps_its_turn_in_an_ordered_group,
);

async fn solid_queue_735_761_a_slot_neither_expires_nor_is_freed_twice(store: TestStore) {
    let world = World::with_defaults(&store).await;
    world.limit("a", GroupLimits::new().with_limit(1)).await;
    world.enqueue_all_of("a", 0..3).await;
    let consumer = world.consumer().await;
    let late = next(&consumer).await;
    // The delivery is lost, and the item comes back. Its slot is free exactly once.
    consumer.shut_down(Duration::ZERO).await.unwrap();
    let consumer = world.consumer().await;
    let held = next(&consumer).await;
    assert_eq!(held.id(), late.id());
    let refused = world.ack(&late).await;
    assert!(matches!(refused, Err(Error::DeliveryLost { .. })));
    assert!(matches!(late.nack().await, Err(Error::ShutDown { .. })));
    assert_eq!(world.group_status("a").await.slots, 1);
    assert!(consumer.dequeue().await.unwrap().is_none());
    world.ack(&held).await.unwrap();
    assert!(world.ack(&held).await.is_err());
    assert_eq!(world.group_status("a").await.slots, 0);
    assert_eq!(values(&take_all(&consumer).await), [1]);
    world.check().await;
}

async fn solid_queue_689_an_enqueue_and_a_release_at_the_same_time_both_count(store: TestStore) {
    let world = World::with_defaults(&store).await;
    world.limit("a", GroupLimits::new().with_limit(1)).await;
    world.enqueue_all_of("a", [0]).await;
    let consumer = world.consumer().await;
    let other = world.consumer().await;
    let mut held = next(&consumer).await;
    for value in 1..50 {
        // A look of another session sees the slot in use while both commit.
        let enqueue = world.enqueue_all_of("a", [value]);
        let (acked, (), seen) = tokio::join!(world.ack(&held), enqueue, other.dequeue());
        acked.unwrap();
        held = match seen.unwrap() {
            Some(delivery) => delivery,
            None => next(&consumer).await,
        };
        assert_eq!(*held.value(), value);
    }
    world.ack(&held).await.unwrap();
    world.check().await;
}

async fn solid_queue_125_804_silo_255_what_is_discarded_before_it_starts_leaks_no_slot(
    store: TestStore,
) {
    let world = World::with_defaults(&store).await;
    for limits in [GroupLimits::new().with_limit(1), GroupLimits::ordered()] {
        world.limit("a", limits).await;
        let mut items = Vec::new();
        for value in 0..4 {
            items.push(world.enqueue_ref(value, &of("a")).await);
        }
        let consumer = world.consumer().await;
        let held = next(&consumer).await;
        // One that waits, one that is started and waits again, and one that is held are cancelled.
        let _ = world.cancel(&items[3]).await;
        held.retry_after(LONG, "no").await.unwrap();
        let _ = world.cancel(&items[0]).await;
        let held = next(&consumer).await;
        let _ = world.cancel(&held.item_ref()).await;
        drop(held);
        let last = next(&consumer).await;
        assert_eq!(*last.value(), 2);
        consumer.shut_down(Duration::ZERO).await.unwrap();
        assert_eq!(world.queue.clear(&world.runner).await.unwrap().removed, 1);
        assert_eq!(world.group_status("a").await.slots, 0);
        world.check().await;
    }
}

async fn silo_142_340_369_many_consumers_never_grant_too_many(store: TestStore) {
    const ITEMS: u64 = 60;
    const LIMIT: u32 = 3;
    let world = World::new(&store, Settings::new().with_max_attempts(100)).await;
    world.limit("a", GroupLimits::new().with_limit(LIMIT)).await;
    world.enqueue_all_of("a", 0..ITEMS).await;
    let running = &AtomicUsize::new(0);
    let most = &AtomicUsize::new(0);
    let world = &world;
    let consume = async |fails: bool| {
        let consumer = world.consumer().await;
        while world.stats().await.completed < ITEMS {
            let Some(delivery) = consumer.dequeue().await.unwrap() else {
                // The others are in the same task.
                tokio::task::yield_now().await;
                continue;
            };
            let now = running.fetch_add(1, Ordering::SeqCst) + 1;
            most.fetch_max(now, Ordering::SeqCst);
            tokio::task::yield_now().await;
            running.fetch_sub(1, Ordering::SeqCst);
            if fails && delivery.attempt() == 1 {
                delivery.nack().await.unwrap();
            } else {
                world.ack(&delivery).await.unwrap();
            }
        }
        consumer.shut_down(LONG).await.unwrap();
    };
    let all = (0..4).map(|number| consume(number % 2 == 0));
    timeout(LONG, join_all(all)).await;
    assert!(most.load(Ordering::SeqCst) <= LIMIT as usize);
    assert_eq!(world.group_status("a").await.slots, 0);
    world.check().await;
}

async fn good_job_325_378_838_retries_are_held_again_only_with_a_slot(store: TestStore) {
    let world = World::with_defaults(&store).await;
    world.limit("a", GroupLimits::new().with_limit(1)).await;
    world.enqueue_all_of("a", 0..2).await;
    let [one, other] = [world.consumer().await, world.consumer().await];
    let first = next(&one).await;
    // The retry waits in the queue while the next item has the slot.
    first.retry_after(Duration::ZERO, "again").await.unwrap();
    let held = match one.dequeue().await.unwrap() {
        Some(delivery) => delivery,
        None => next(&one).await,
    };
    assert!(other.dequeue().await.unwrap().is_none());
    assert_eq!(world.group_status("a").await.state, GroupState::AtLimit);
    world.ack(&held).await.unwrap();
    let last = next(&other).await;
    assert_eq!(
        BTreeSet::from([*held.value(), *last.value()]),
        [0, 1].into()
    );
    assert!(one.dequeue().await.unwrap().is_none());
    world.check().await;
}

async fn oban_53388_sqs_a_blocked_group_hides_no_other(store: TestStore) {
    let world = World::with_defaults(&store).await;
    world.limit("busy", GroupLimits::new().with_limit(1)).await;
    for begin in [0, 500] {
        world.enqueue_all_of("busy", begin..begin + 500).await;
    }
    let consumer = world.consumer().await;
    let busy = next(&consumer).await;
    world.enqueue_all_of("other", [7]).await;
    assert_eq!(*next(&consumer).await.value(), 7);
    world.enqueue([8]).await;
    assert_eq!(*next(&consumer).await.value(), 8);
    assert_eq!(*busy.value(), 0);
    world.check().await;
}

async fn bull_mq_3210_one_runs_at_a_time_and_waiting_items_are_visible(store: TestStore) {
    let world = World::with_defaults(&store).await;
    world.limit("a", GroupLimits::new().with_limit(1)).await;
    let first = world.enqueue_ref(1, &of("a")).await;
    let second = world.enqueue_ref(2, &of("a")).await;
    let [one, other] = [world.consumer().await, world.consumer().await];
    let held = loop {
        let both = tokio::join!(one.dequeue(), other.dequeue());
        match (both.0.unwrap(), both.1.unwrap()) {
            (Some(held), None) | (None, Some(held)) => break held,
            (Some(_), Some(_)) => panic!("two run"),
            (None, None) => {}
        }
    };
    assert_eq!(held.item_ref(), first);
    assert_eq!(world.place(&second).await, Some(Place::Queued));
    assert_eq!(world.values().await, [2]);
    assert_eq!(world.group_status("a").await.waiting, 1);
    assert_eq!(world.stats().await.queued, 1);
    world.check().await;
}

async fn sidekiq_6234_an_item_that_kills_its_process_keeps_its_turn_in_an_ordered_group(
    store: TestStore,
) {
    let world = World::new(&store, settings().with_max_deaths(2)).await;
    world.limit("a", GroupLimits::ordered()).await;
    world.enqueue_all_of("a", 0..2).await;
    // Its process dies with it: the runtime is dropped, and no heartbeat follows.
    let die = || {
        let queue = world.queue.clone();
        let runner = world.runner.clone();
        crate::common::process(|| async move {
            let options = WorkerOptions::default();
            let consumer = queue.consumer(&runner, options).await.unwrap();
            let held = consumer.dequeue_within(LONG).await.unwrap().unwrap();
            assert_eq!(*held.value(), 0);
            std::mem::forget(held);
            std::mem::forget(consumer);
        })
    };
    let heir = async || {
        let consumer = world.consumer().await;
        until(async || world.stats().await.held == 0).await;
        consumer.shut_down(LONG).await.unwrap();
    };
    let died = die();
    tokio::task::spawn_blocking(|| died.join().unwrap())
        .await
        .unwrap();
    heir().await;
    // It has kept its slot, and comes before the next one.
    assert_eq!(world.group_status("a").await.slots, 1);
    let died = die();
    tokio::task::spawn_blocking(|| died.join().unwrap())
        .await
        .unwrap();
    heir().await;
    // Its second death makes it a dead letter, which frees the slot.
    assert_eq!(world.stats().await.dead, 1);
    let consumer = world.consumer().await;
    assert_eq!(*next(&consumer).await.value(), 1);
    world.check().await;
}

async fn silo_315_322_nothing_that_happens_to_an_item_changes_its_group(store: TestStore) {
    let world = World::with_defaults(&store).await;
    world.limit("a", GroupLimits::new().with_limit(1)).await;
    let once = of("a").with_dedupe("once");
    let item = &world.enqueue_ref(0, &once.clone().with_delay(LONG)).await;
    world.enqueue_all_of("a", [1]).await;
    let queue = &world.queue;
    let replace = of("b")
        .with_dedupe("once")
        .with_on_repeat(OnRepeat::Replace);
    let replaced = world.enqueue_with(2, &replace).await.unwrap();
    assert_eq!(replaced, Enqueued::Replaced(*item));
    let change = |tr| async move {
        assert!(queue.set_priority(&tr, item, 9).await?);
        let _ = queue.replace(&tr, item, &3).await?;
        queue.expedite(&tr, item).await
    };
    assert!(world.runner.run(change).await.unwrap());
    let consumer = world.consumer().await;
    // It comes first, and takes the only slot of its group. A dead letter that is redriven needs one, too.
    let held = next(&consumer).await;
    assert_eq!(
        (*held.value(), held.group().unwrap().as_ref()),
        (3, &b"a"[..])
    );
    assert!(consumer.dequeue().await.unwrap().is_none());
    held.discard("no").await.unwrap();
    let other = next(&consumer).await;
    let redrive = |tr| async move { queue.redrive(&tr, item).await };
    assert!(world.runner.run(redrive).await.unwrap());
    assert!(consumer.dequeue().await.unwrap().is_none());
    other.complete().await.unwrap();
    assert_eq!(next(&consumer).await.item_ref(), *item);
    world.check().await;
}

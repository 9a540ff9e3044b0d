//! The effect of each operation, with one caller at a time, on every store.

use std::time::{Duration, SystemTime};

use crate::common::still::Still;
use crate::common::{LONG, World};
use conformance::stores::TestStore;
use conformance::{timeout, until};
use futures::StreamExt;
use futures::future::try_join_all;
use hc_dequeue::{Enqueue, Enqueued, Error, PlaceKind, Settings, WorkerOptions};
use keyspace::Environment;

conformance::on_every_store!(
    items_are_delivered_in_order_and_acknowledged,
    a_delivery_that_is_released_or_refused_has_the_next_turn,
    a_delivery_can_come_back_later,
    a_delivery_whose_time_is_over_is_lost,
    the_end_of_an_earlier_delivery_does_not_end_a_later_one,
    keeping_a_delivery_alive_gives_it_more_time,
    what_is_granted_too_often_becomes_a_dead_letter,
    popped_items_are_gone,
    an_enqueue_wakes_a_waiting_consumer,
    an_item_for_later_comes_later,
    an_item_is_there_once_for_each_dedupe_id,
    purging_a_dead_letter_frees_its_dedupe_id,
    a_dedupe_id_is_kept_after_completion_for_as_long_as_asked,
    dedupe_ids_are_removed_once_they_were_kept_for_long_enough,
    a_full_queue_refuses,
    reading_changes_nothing,
    a_queue_is_idle_when_nothing_is_queued_delayed_or_held,
    a_paused_queue_grants_nothing,
    a_stream_delivers_until_it_is_shut_down,
    several_items_are_acknowledged_together,
    a_shut_down_returns_what_is_held,
    a_shut_down_waits_for_deliveries_and_takes_nothing_more,
    a_shut_down_waits_no_longer_than_its_grace,
    a_shut_down_right_after_a_delivery_is_heard_at_once,
    clearing_removes_what_waits_and_nothing_else,
);

async fn items_are_delivered_in_order_and_acknowledged(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let consumer = world.consumer().await;
    assert!(consumer.dequeue().await.unwrap().is_none());
    world.enqueue([1, 2, 3]).await;
    let before = Environment::system().wall();
    for value in 1..=3 {
        let delivery = consumer.dequeue().await.unwrap().unwrap();
        assert_eq!((*delivery.value(), delivery.attempt()), (value, 1));
        assert!(delivery.enqueued() <= before + LONG && delivery.enqueued() + LONG >= before);
        assert_eq!(world.stats().await.held, 1);
        world.ack(&delivery).await.unwrap();
    }
    assert!(consumer.dequeue().await.unwrap().is_none());
    let stats = world.stats().await;
    assert_eq!((stats.queued, stats.held, stats.completed), (0, 0, 3));
    world.check().await;
}

async fn a_delivery_that_is_released_or_refused_has_the_next_turn(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let consumer = world.consumer().await;
    world.enqueue([1, 2, 3, 4]).await;
    let next = async || consumer.dequeue().await.unwrap().unwrap();
    let first = next().await;
    first.release().await.unwrap();
    let again = next().await;
    assert_eq!((*again.value(), again.attempt()), (1, 1));
    // It comes back twice in a row: between, it is the turn of one that has not.
    again.nack().await.unwrap();
    let second = next().await;
    assert_eq!((*second.value(), second.attempt()), (2, 1));
    let again = next().await;
    assert_eq!((*again.value(), again.attempt()), (1, 2));
    world.ack(&again).await.unwrap();
    assert!(matches!(
        again.nack().await.unwrap_err(),
        Error::DeliveryLost { .. }
    ));
    // Those that come back have their turns by their enqueues.
    let third = next().await;
    third.nack().await.unwrap();
    second.nack().await.unwrap();
    let mut values = Vec::new();
    while let Some(delivery) = consumer.dequeue().await.unwrap() {
        values.push(*delivery.value());
        world.ack(&delivery).await.unwrap();
    }
    assert_eq!(values, [2, 4, 3]);
    world.check().await;
}

async fn a_delivery_can_come_back_later(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let consumer = world.consumer().await;
    world.enqueue([1, 2]).await;
    let delivery = consumer.dequeue().await.unwrap().unwrap();
    let id = delivery.id();
    delivery.snooze(LONG).await.unwrap();
    let mut other = consumer.dequeue().await.unwrap().unwrap();
    assert_eq!(*other.value(), 2);
    assert!(consumer.dequeue().await.unwrap().is_none());
    assert_eq!(world.stats().await.delayed, 1);
    for attempts in [1, 2] {
        let wait = Duration::from_millis(20);
        match attempts {
            1 => other.snooze(wait).await.unwrap(),
            _ => other.retry_after(wait, "not now").await.unwrap(),
        }
        other = consumer.dequeue_within(LONG).await.unwrap().unwrap();
        assert_eq!((*other.value(), other.attempt()), (2, attempts));
        assert_ne!(other.id(), id);
    }
    drop(other);
    world.check().await;
}

async fn a_delivery_whose_time_is_over_is_lost(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let options = WorkerOptions::default().with_time_limit(Duration::from_millis(20));
    let consumer = world.quick_consumer(options).await;
    world.enqueue([1]).await;
    let late = consumer.dequeue().await.unwrap().unwrap();
    late.lost().await;
    assert!(late.is_lost() && late.keep_alive().is_err());
    let again = consumer.dequeue_within(LONG).await.unwrap().unwrap();
    assert_eq!((*again.value(), again.attempt()), (1, 2));
    let refused = world.ack(&late).await.unwrap_err();
    assert!(matches!(refused, Error::DeliveryLost { .. }));
    drop((late, again));
    world.check().await;
}

async fn the_end_of_an_earlier_delivery_does_not_end_a_later_one(store: TestStore) {
    let settings = Settings::new().with_lease(Duration::from_millis(60));
    let clock = Still::new();
    let world = clock.world(&store, settings.clone()).await;
    let options = WorkerOptions::default().with_time_limit(LONG);
    let consumer = world.quick_consumer(options).await;
    world.enqueue([1]).await;
    let late = consumer.dequeue().await.unwrap().unwrap();
    clock.advance(LONG);
    late.lost().await;
    let again = consumer.dequeue_within(LONG).await.unwrap().unwrap();
    drop(late);
    // Each heartbeat searches for items without a delivery.
    for _ in 0..2 {
        clock.next_heartbeats(&world, settings.lease()).await;
    }
    assert!(!again.is_lost());
    world.ack(&again).await.unwrap();
    assert_eq!(again.attempt(), 2);
    world.check().await;
}

async fn keeping_a_delivery_alive_gives_it_more_time(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let options = WorkerOptions::default().with_time_limit(LONG);
    let consumer = world.queue.consumer(&world.runner, options).await.unwrap();
    world.enqueue([1]).await;
    let delivery = consumer.dequeue().await.unwrap().unwrap();
    delivery.keep_alive().unwrap();
    assert!(!delivery.is_lost());
    world.ack(&delivery).await.unwrap();
}

async fn what_is_granted_too_often_becomes_a_dead_letter(store: TestStore) {
    let settings = Settings::new().with_max_attempts(2);
    let world = World::new(&store, settings).await;
    let consumer = world.consumer().await;
    world.enqueue([1, 2]).await;
    for _ in 0..2 {
        let delivery = consumer.dequeue().await.unwrap().unwrap();
        assert_eq!(*delivery.value(), 1);
        delivery.nack().await.unwrap();
    }
    let second = consumer.dequeue().await.unwrap().unwrap();
    second.discard("no good").await.unwrap();
    assert!(consumer.dequeue().await.unwrap().is_none());

    let queue = &world.queue;
    let runner = &world.runner;
    let dead = world.dead_letters().await;
    assert_eq!([&dead[0].value, &dead[1].value], [&Ok(1), &Ok(2)]);
    assert_eq!(world.stats().await.dead, 2);

    let item = &dead[0].item;
    let redrive = |tr| async move { queue.redrive(&tr, item).await };
    assert!(runner.run(redrive).await.unwrap());
    assert!(!runner.run(redrive).await.unwrap());
    let again = consumer.dequeue().await.unwrap().unwrap();
    assert_eq!((again.item_ref(), again.attempt()), (*item, 1));
    world.ack(&again).await.unwrap();

    let item = &dead[1].item;
    let purge = |tr| async move { queue.purge(&tr, item).await };
    assert!(runner.run(purge).await.unwrap());
    assert!(!runner.run(purge).await.unwrap());
    assert!(world.dead_letters().await.is_empty());
    world.check().await;
}

async fn popped_items_are_gone(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let consumer = world.consumer().await;
    world.enqueue(0..3).await;
    for value in 0..3 {
        assert_eq!(consumer.pop().await.unwrap().unwrap().value, value);
    }
    assert!(consumer.pop().await.unwrap().is_none());
    let stats = world.stats().await;
    assert_eq!((stats.queued, stats.held, stats.completed), (0, 0, 3));
    world.check().await;
}

async fn an_enqueue_wakes_a_waiting_consumer(store: TestStore) {
    let world = World::with_defaults(&store).await;
    // Without polls, only a watch can wake it.
    let options = WorkerOptions::default().with_poll_interval(LONG * 10);
    let consumer = world.queue.consumer(&world.runner, options).await.unwrap();
    let wait = consumer.dequeue_within(LONG);
    let enqueue = async {
        world.until_requested(1).await;
        world.enqueue([7]).await;
    };
    let (delivery, ()) = tokio::join!(wait, enqueue);
    let delivery = delivery.unwrap().expect("the enqueue woke it");
    world.ack(&delivery).await.unwrap();
    world.check().await;
}

async fn an_item_for_later_comes_later(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let consumer = world.consumer().await;
    let soon = Enqueue::new().with_delay(Duration::from_millis(30));
    let much_later = Enqueue::new().with_due_time(Environment::system().wall() + LONG);
    let earlier = Enqueue::new().with_due_time(SystemTime::UNIX_EPOCH);
    for (value, options) in [(1, much_later), (3, earlier), (2, soon)] {
        let staged = world.enqueue_with(value, &options).await.unwrap();
        assert!(matches!(staged, Enqueued::Staged(_)));
    }
    let first = consumer.dequeue_within(LONG).await.unwrap().unwrap();
    let second = consumer.dequeue_within(LONG).await.unwrap().unwrap();
    assert_eq!((*first.value(), *second.value()), (3, 2));
    world.ack(&first).await.unwrap();
    world.ack(&second).await.unwrap();
    let stats = world.stats().await;
    assert_eq!((stats.queued, stats.delayed, stats.held), (0, 1, 0));
    world.check().await;
}

async fn an_item_is_there_once_for_each_dedupe_id(store: TestStore) {
    let settings = Settings::new().with_max_attempts(2);
    let world = World::new(&store, settings).await;
    let consumer = world.consumer().await;
    let once = Enqueue::new().with_dedupe("once");
    let is_repeated = async |options: &Enqueue| {
        let staged = world.enqueue_with(1, options).await.unwrap();
        staged == Enqueued::Repeated
    };
    assert!(!is_repeated(&once).await);
    assert!(!is_repeated(&Enqueue::new().with_dedupe("another").with_delay(LONG)).await);
    assert!(is_repeated(&once).await);
    let delivery = consumer.dequeue().await.unwrap().unwrap();
    assert!(is_repeated(&once).await, "while it is held");
    delivery
        .retry_after(Duration::from_millis(1), "not now")
        .await
        .unwrap();
    assert!(is_repeated(&once).await, "while it is delayed");
    let delivery = consumer.dequeue_within(LONG).await.unwrap().unwrap();
    assert_eq!(delivery.attempt(), 2);
    delivery.nack().await.unwrap();
    assert_eq!(world.stats().await.dead, 1);
    assert!(is_repeated(&once).await, "while it is dead");

    let queue = &world.queue;
    let redrive = |tr| async move {
        let letters = queue.list(&tr, PlaceKind::Dead, None, 1).await?.items;
        queue.redrive(&tr, &letters[0].item).await
    };
    assert!(world.runner.run(redrive).await.unwrap());
    let delivery = consumer.dequeue().await.unwrap().unwrap();
    world.ack(&delivery).await.unwrap();
    assert!(!is_repeated(&once).await, "it is completed");
    world.check().await;
}

async fn purging_a_dead_letter_frees_its_dedupe_id(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let consumer = world.consumer().await;
    let once = Enqueue::new().with_dedupe("once");
    let _ = world.enqueue_with(1, &once).await.unwrap();
    let delivery = consumer.dequeue().await.unwrap().unwrap();
    let item = &delivery.item_ref();
    delivery.discard("no good").await.unwrap();
    let repeated = world.enqueue_with(1, &once).await.unwrap();
    assert_eq!(repeated, Enqueued::Repeated);

    let queue = &world.queue;
    let purge = |tr| async move { queue.purge(&tr, item).await };
    assert!(world.runner.run(purge).await.unwrap());
    assert_eq!(world.count("k").await, 0);
    let again = world.enqueue_with(1, &once).await.unwrap();
    assert!(matches!(again, Enqueued::Staged(_)));
    world.check().await;
}

async fn a_dedupe_id_is_kept_after_completion_for_as_long_as_asked(store: TestStore) {
    for (retention, is_kept) in [(LONG, true), (Duration::ZERO, false)] {
        let settings = Settings::new().with_dedupe_retention(retention);
        let world = World::new(&store, settings).await;
        let consumer = world.consumer().await;
        let once = Enqueue::new().with_dedupe(vec![0; 255]);
        let _ = world.enqueue_with(1, &once).await.unwrap();
        assert!(consumer.pop().await.unwrap().is_some());
        let again = world.enqueue_with(1, &once).await.unwrap();
        assert_eq!(again == Enqueued::Repeated, is_kept);
    }
}

async fn dedupe_ids_are_removed_once_they_were_kept_for_long_enough(store: TestStore) {
    let settings = Settings::new()
        .with_lease(Duration::from_millis(60))
        .with_dedupe_retention(Duration::from_millis(1));
    let world = World::new(&store, settings).await;
    let consumer = world.consumer().await;
    // More than one transaction checks.
    let once = |number: u64| (number, Enqueue::new().with_dedupe(number.to_be_bytes()));
    let items = &(0..150).map(once).collect::<Vec<_>>();
    let queue = &world.queue;
    let enqueue = |tr| async move { queue.enqueue_all_with(&tr, items).await.map(drop) };
    world.runner.run(enqueue).await.unwrap();
    let popped = try_join_all((0..149).map(|_| consumer.pop_within(LONG)));
    assert!(popped.await.unwrap().iter().all(Option::is_some));
    // Only the id of the item that is still queued stays.
    until(async || world.count("k").await == 1).await;
    world.check().await;
}

async fn a_full_queue_refuses(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let options = Enqueue::new().with_max_depth(2);
    for value in 0..2 {
        let _ = world.enqueue_with(value, &options).await.unwrap();
    }
    let error = world.enqueue_with(2, &options).await.unwrap_err();
    assert!(matches!(
        error,
        Error::Full {
            depth: 2,
            limit: 2,
            ..
        }
    ));
    assert_eq!(world.stats().await.queued, 2);
}

async fn reading_changes_nothing(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let queue = &world.queue;
    let look = |tr| async move {
        let page = queue.list(&tr, PlaceKind::Queued, None, 1).await?;
        let mut items = page.items.into_iter();
        let first = items.next().map(|item| item.status.unwrap().value.unwrap());
        Ok::<_, Error>((first, queue.len(&tr).await?, queue.oldest_age(&tr).await?))
    };
    assert_eq!(world.runner.run(look).await.unwrap(), (None, 0, None));
    world.enqueue([7, 8]).await;
    let (first, count, age) = world.runner.run(look).await.unwrap();
    assert_eq!((first, count), (Some(7), 2));
    assert!(age.is_some_and(|age| age < LONG));
    assert_eq!(world.values().await, [7, 8]);
    world.check().await;
}

async fn a_paused_queue_grants_nothing(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let options = WorkerOptions::default().with_poll_interval(LONG * 10);
    let consumer = world.queue.consumer(&world.runner, options).await.unwrap();
    let queue = &world.queue;
    let pause = |tr| async move {
        queue.pause(&tr);
        Ok::<_, Error>(())
    };
    let resume = |tr| async move {
        queue.resume(&tr);
        Ok::<_, Error>(())
    };
    world.enqueue([1]).await;
    world.runner.run(pause).await.unwrap();
    assert!(consumer.dequeue().await.unwrap().is_none());
    let wait = consumer.dequeue_within(LONG);
    let (delivery, resumed) = tokio::join!(wait, world.runner.run(resume));
    resumed.unwrap();
    assert_eq!(*delivery.unwrap().unwrap().value(), 1);
}

async fn a_stream_delivers_until_it_is_shut_down(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let consumer = world.consumer().await;
    world.enqueue(0..5).await;
    let mut deliveries = Box::pin(consumer.deliveries());
    for value in 0..5 {
        let delivery = deliveries.next().await.unwrap().unwrap();
        assert_eq!(*delivery.value(), value);
        world.ack(&delivery).await.unwrap();
    }
    let (end, ended) = tokio::join!(
        deliveries.next(),
        consumer.clone().shut_down(Duration::ZERO)
    );
    ended.unwrap();
    assert!(end.is_none());
    assert!(matches!(
        consumer.dequeue().await.unwrap_err(),
        Error::ShutDown { .. }
    ));
    world.check().await;
}

async fn several_items_are_acknowledged_together(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let consumer = world.consumer().await;
    world.enqueue(0..10).await;
    let deliveries = &consumer.dequeue_batch(10).await.unwrap();
    let values: Vec<_> = deliveries
        .iter()
        .map(|delivery| *delivery.value())
        .collect();
    assert_eq!(values, (0..10).collect::<Vec<_>>());
    let ack = |tr| async move {
        for delivery in deliveries {
            delivery.ack(&tr).await?;
        }
        Ok::<_, Error>(())
    };
    world.runner.run(ack).await.unwrap();
    assert_eq!(world.stats().await.completed, 10);
    // None of them can be acknowledged again: the whole transaction fails.
    let again = world.runner.run(ack).await.unwrap_err();
    assert!(matches!(again, Error::DeliveryLost { .. }));
    world.check().await;
}

async fn a_shut_down_returns_what_is_held(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let consumer = world.consumer().await;
    world.enqueue([1, 2]).await;
    let held = consumer.dequeue().await.unwrap().unwrap();
    consumer.shut_down(Duration::ZERO).await.unwrap();
    assert!(held.is_lost());
    assert_eq!(world.values().await, [2, 1]);
    // Another session holds the same item, and only that session can acknowledge it.
    let another = world.consumer().await;
    let other = another.dequeue().await.unwrap().unwrap();
    assert_eq!(other.id(), held.id());
    let refused = world.ack(&held).await.unwrap_err();
    assert!(matches!(refused, Error::DeliveryLost { .. }));
    world.ack(&other).await.unwrap();
    assert!(matches!(
        held.nack().await.unwrap_err(),
        Error::ShutDown { .. }
    ));
    world.check().await;
}

async fn a_shut_down_waits_for_deliveries_and_takes_nothing_more(store: TestStore) {
    // With this lease, no heartbeat covers for a lost notification.
    let settings = Settings::new().with_lease(LONG * 60);
    let world = World::new(&store, settings).await;
    let consumer = world.consumer().await;
    world.enqueue([1, 2, 3]).await;
    let acked = consumer.dequeue().await.unwrap().unwrap();
    let returned = consumer.dequeue().await.unwrap().unwrap();
    let shut_down = consumer.clone().shut_down(LONG);
    let finish = async {
        // Returns after the shutdown has reached the dispatcher.
        while consumer.dequeue_within(LONG).await.is_ok() {}
        assert!(!acked.is_lost() && !returned.is_lost());
        world.ack(&acked).await.unwrap();
        drop(acked);
        returned.nack().await.unwrap();
        drop(returned);
    };
    let (ended, ()) = timeout(LONG, async { tokio::join!(biased; shut_down, finish) }).await;
    ended.unwrap();
    assert_eq!(world.values().await, [3, 2]);
    world.check().await;
}

async fn a_shut_down_waits_no_longer_than_its_grace(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let consumer = world.consumer().await;
    world.enqueue([1]).await;
    let held = consumer.dequeue().await.unwrap().unwrap();
    let shut_down = consumer.shut_down(Duration::from_millis(50));
    timeout(LONG, shut_down).await.unwrap();
    assert!(held.is_lost());
    assert_eq!(world.values().await, [1]);
    world.check().await;
}

async fn a_shut_down_right_after_a_delivery_is_heard_at_once(store: TestStore) {
    // With this lease, no heartbeat covers for a lost notification.
    let settings = Settings::new().with_lease(LONG * 60);
    let world = World::new(&store, settings).await;
    let consumer = world.consumer().await;
    world.enqueue([1]).await;
    let _held = consumer.dequeue().await.unwrap().unwrap();
    let shut_down = timeout(LONG, consumer.shut_down(Duration::ZERO)).await;
    shut_down.unwrap();
    assert_eq!(world.values().await, [1]);
    world.check().await;
}

async fn clearing_removes_what_waits_and_nothing_else(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let consumer = world.consumer().await;
    world.enqueue(0..1_000).await;
    let later = Enqueue::new().with_delay(LONG).with_dedupe("later");
    let _ = world.enqueue_with(7, &later).await.unwrap();
    // More items than one page has.
    let queue = &world.queue;
    let all_later = &Enqueue::new().with_delay(LONG * 2);
    let enqueue = |tr| async move {
        for value in 0..600 {
            let _ = queue.enqueue_with(&tr, &value, all_later).await?;
        }
        Ok::<_, Error>(())
    };
    world.runner.run(enqueue).await.unwrap();
    let held = consumer.dequeue().await.unwrap().unwrap();
    let dead = consumer.dequeue().await.unwrap().unwrap();
    dead.discard("no good").await.unwrap();
    assert_eq!(
        world.queue.clear(&world.runner).await.unwrap().removed,
        1_599
    );
    let stats = world.stats().await;
    assert_eq!((stats.queued, stats.delayed), (0, 0));
    assert_eq!((stats.held, stats.dead), (1, 1));
    let again = world.enqueue_with(7, &later).await.unwrap();
    assert!(matches!(again, Enqueued::Staged(_)));
    world.ack(&held).await.unwrap();
    world.check().await;
}

/// Returns whether waiting for an idle queue ends within many reads of the queue.
async fn is_idle(world: &World) -> bool {
    let read = async {
        for _ in 0..20 {
            world.stats().await;
        }
    };
    tokio::select! {
        biased;
        idle = world.queue.wait_idle(&world.runner) => {
            idle.unwrap();
            true
        }
        () = read => false,
    }
}

async fn a_queue_is_idle_when_nothing_is_queued_delayed_or_held(store: TestStore) {
    let world = World::with_defaults(&store).await;
    assert!(is_idle(&world).await);
    world.enqueue([1]).await;
    assert!(!is_idle(&world).await);
    let consumer = world.consumer().await;
    let delivery = consumer.dequeue().await.unwrap().unwrap();
    assert_eq!(world.stats().await.held, 1);
    assert!(!is_idle(&world).await);
    let idle = timeout(LONG, world.queue.wait_idle(&world.runner));
    let (idle, acknowledged) = tokio::join!(idle, world.ack(&delivery));
    acknowledged.unwrap();
    idle.unwrap();

    let queue = &world.queue;
    let later = &Enqueue::new().with_delay(LONG * 60);
    let enqueue = |tr| async move { queue.enqueue_with(&tr, &2, later).await };
    let enqueued = world.runner.run(enqueue).await.unwrap();
    assert!(matches!(enqueued, Enqueued::Staged(_)));
    assert!(!is_idle(&world).await);
    world.check().await;
}

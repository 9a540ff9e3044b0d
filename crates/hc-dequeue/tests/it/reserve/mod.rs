//! Items that a worker takes ahead of its handlers.
//!
//! Most tests run the worker on a clock that stands still. All durations are then zero, so that the worker takes as
//! many items ahead as it may, and keeps them until the test moves the clock.

mod still;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use self::still::{ITEMS, PATIENCE, RESERVE, StillWorker, until_stats, with_handlers};

use crate::common::still::Still;
use crate::common::{LONG, World, open, process, settings};
use conformance::chaos::{Chaos, Faults};
use conformance::stores::TestStore;
use conformance::{timeout, until};
use hc_dequeue::{
    Cancelled, Delivery, Enqueue, Error, GroupLimits, Outcome, Place, PlaceKind, Rate, Settings,
    ShutdownReport, Status, WorkerOptions,
};
use keyspace::{Environment, Tx};
use tokio::sync::{Notify, mpsc, oneshot};

conformance::on_every_store!(
    a_backlog_is_handled_in_order_and_with_few_takes,
    a_worker_without_a_reserve_takes_nothing_ahead,
    an_item_that_takes_a_token_of_a_rate_is_not_taken_ahead,
    a_consumer_takes_nothing_ahead,
    a_shutdown_gives_the_reserve_back_while_a_handler_finishes,
    a_pause_gives_the_reserve_back,
    changed_settings_give_the_reserve_back,
    a_cancelled_item_leaves_the_reserve,
    the_first_death_costs_an_item_of_the_reserve_nothing_and_the_next_one_counts,
    a_handler_that_takes_long_leaves_the_reserve_to_other_workers,
    the_time_limit_begins_at_the_hand_out,
    an_item_that_kills_its_process_from_a_reserve_becomes_a_dead_letter_and_no_other_does,
);

/// Returns the items in a place.
async fn listed(world: &World, place: PlaceKind) -> Vec<Status<u64>> {
    let queue = &world.queue;
    let list = |tr| async move { queue.list(&tr, place, None, 1_000).await };
    let page = world.runner.run(list).await.unwrap();
    let items = page.items.into_iter();
    items.map(|item| item.status.unwrap()).collect()
}

fn value(status: &Status<u64>) -> u64 {
    *status.value.as_ref().unwrap()
}

/// Panics unless these items wait in the queue, as if they had never been granted.
async fn are_unused(world: &World, values: &BTreeSet<u64>) {
    let queued = listed(world, PlaceKind::Queued).await;
    let queued: Vec<_> = queued
        .iter()
        .filter(|status| values.contains(&value(status)))
        .collect();
    assert_eq!(queued.len(), values.len());
    for status in queued {
        let counts = (status.attempts, status.deaths, status.deliveries);
        assert_eq!(counts, (0, 0, 0), "{status:?}");
        assert_eq!(status.failure, None);
    }
}

/// Lets a plain consumer handle what is left. Panics unless these items come, in any order, each as its first attempt.
async fn are_left(world: &World, values: impl IntoIterator<Item = u64>) {
    let consumer = world.consumer().await;
    let mut left: BTreeSet<_> = values.into_iter().collect();
    while !left.is_empty() {
        let item = consumer.dequeue_within(LONG).await.unwrap().unwrap();
        assert!(left.remove(item.value()), "{}", item.value());
        assert_eq!(item.attempt(), 1);
        item.complete().await.unwrap();
    }
    consumer.shut_down(LONG).await.unwrap();
    let stats = world.stats().await;
    assert_eq!(
        (stats.queued, stats.delayed, stats.held, stats.dead),
        (0, 0, 0, 0)
    );
    world.check().await;
}

async fn a_backlog_is_handled_in_order_and_with_few_takes(store: TestStore) {
    const BACKLOG: u64 = 200;
    for (max_reserve, in_transactions) in [(512, false), (512, true), (0, false), (0, true)] {
        let settings = Settings::new().with_keep_done(LONG * 60);
        let world = Still::new().world(&store, settings).await;
        world.enqueue(0..BACKLOG).await;
        let (called, mut calls) = mpsc::unbounded_channel();
        let runner = &world.runner;
        let options = with_handlers(1).with_max_reserve(max_reserve);
        let worker = if in_transactions {
            let handler = move |_: Tx<_>, item: Delivery<u64>| {
                called.send(*item.value()).unwrap();
                async {}
            };
            world.queue.process(runner, options, handler).await
        } else {
            let handler = move |item: Delivery<u64>| {
                called.send(*item.value()).unwrap();
                async {}
            };
            world.queue.work(runner, options, handler).await
        };
        timeout(LONG, world.queue.wait_idle(&world.runner))
            .await
            .unwrap();
        worker.unwrap().shut_down(LONG).await.unwrap();
        let mut values = Vec::new();
        calls.recv_many(&mut values, usize::MAX).await;
        assert!(values.into_iter().eq(0..BACKLOG));
        let done = listed(&world, PlaceKind::Done).await;
        assert!(
            done.iter()
                .all(|item| (item.attempts, item.deliveries) == (0, 1))
        );
        // Items that were granted together have the same time.
        let takes: BTreeSet<_> = done.iter().map(|item| item.granted.unwrap()).collect();
        let takes = takes.len() as u64;
        if max_reserve == 0 {
            assert_eq!(takes, BACKLOG);
        } else {
            assert!(takes <= BACKLOG / 10, "{takes} takes");
        }
        assert_eq!(world.stats().await.completed, BACKLOG);
        world.check().await;
    }
}

async fn a_worker_without_a_reserve_takes_nothing_ahead(store: TestStore) {
    for (max_reserve, takes_ahead) in [(0, false), (RESERVE, true)] {
        let world = World::with_defaults(&store).await;
        world.enqueue(0..ITEMS).await;
        let (told, mut tells) = mpsc::unbounded_channel();
        let queue = world.queue.clone();
        let reader = world.runner.clone();
        let handler = move |_: Delivery<u64>| {
            let told = told.clone();
            let queue = queue.clone();
            let reader = reader.clone();
            async move {
                let queue = &queue;
                let stats = |tr| async move { queue.stats(&tr).await };
                told.send(reader.run(stats).await.unwrap().held).unwrap();
            }
        };
        let runner = Still::new().runner(&world.store);
        let options = with_handlers(1).with_max_reserve(max_reserve as usize);
        let worker = world.queue.work(&runner, options, handler).await;
        timeout(LONG, world.queue.wait_idle(&world.runner))
            .await
            .unwrap();
        worker.unwrap().shut_down(LONG).await.unwrap();
        let mut held = Vec::new();
        tells.recv_many(&mut held, usize::MAX).await;
        assert_eq!(held.len() as u64, ITEMS);
        assert_eq!(held.iter().any(|held| *held > 1), takes_ahead, "{held:?}");
        world.check().await;
    }
}

/// It would not be known after a death of the session whether a handler got it.
async fn an_item_that_takes_a_token_of_a_rate_is_not_taken_ahead(store: TestStore) {
    for has_rate in [false, true] {
        let world = World::with_defaults(&store).await;
        let queue = &world.queue;
        let limits = if has_rate {
            GroupLimits::new().with_rate(Rate::new(1, LONG * 60))
        } else {
            GroupLimits::new()
        };
        let items = (0..ITEMS).map(|value| {
            let options = Enqueue::new().with_group(value.to_be_bytes());
            (value, options)
        });
        let items = &items.collect::<Vec<_>>();
        let limits = &limits;
        let fill = |tr| async move {
            queue.configure_groups(&tr, limits).await?;
            queue.enqueue_all_with(&tr, items).await.map(drop)
        };
        world.runner.run(fill).await.unwrap();
        let (told, mut tells) = mpsc::unbounded_channel();
        let reader = world.runner.clone();
        let in_handler = queue.clone();
        let handler = move |_: Delivery<u64>| {
            let told = told.clone();
            let queue = in_handler.clone();
            let reader = reader.clone();
            async move {
                let queue = &queue;
                let stats = |tr| async move { queue.stats(&tr).await };
                told.send(reader.run(stats).await.unwrap().held).unwrap();
            }
        };
        let runner = Still::new().runner(&world.store);
        let worker = queue.work(&runner, with_handlers(1), handler).await;
        timeout(LONG, queue.wait_idle(&world.runner)).await.unwrap();
        worker.unwrap().shut_down(LONG).await.unwrap();
        let mut held = Vec::new();
        tells.recv_many(&mut held, usize::MAX).await;
        assert_eq!(held.len() as u64, ITEMS);
        assert_eq!(held.iter().any(|held| *held > 1), !has_rate, "{held:?}");
        world.check().await;
    }
}

async fn a_consumer_takes_nothing_ahead(store: TestStore) {
    let world = World::with_defaults(&store).await;
    world.enqueue(0..ITEMS).await;
    let runner = Still::new().runner(&world.store);
    let options = with_handlers(1);
    let consumer = world.queue.consumer(&runner, options).await.unwrap();
    for value in 0..ITEMS {
        let item = consumer.dequeue_within(LONG).await.unwrap().unwrap();
        assert_eq!(*item.value(), value);
        assert_eq!(world.stats().await.held, 1);
        item.complete().await.unwrap();
    }
    world.check().await;
}

async fn a_shutdown_gives_the_reserve_back_while_a_handler_finishes(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let (mut worker, reserve) = StillWorker::with_reserve(&world, &Still::new()).await;
    let shut_down = tokio::spawn(worker.worker.shut_down(LONG));
    until_stats(&world, |stats| stats.held == 1).await;
    assert!(!shut_down.is_finished());
    are_unused(&world, &reserve).await;
    worker.blocked.send_replace(BTreeSet::new());
    let report = timeout(LONG, shut_down).await.unwrap().unwrap();
    assert_eq!(report, ShutdownReport::default());
    assert!(worker.calls.try_recv().is_err());
    assert_eq!(world.stats().await.completed, 2);
    are_left(&world, 2..ITEMS).await;
}

async fn a_pause_gives_the_reserve_back(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let (mut worker, reserve) = StillWorker::with_reserve(&world, &Still::new()).await;
    let queue = &world.queue;
    let pause = |tr| async move {
        queue.pause(&tr);
        Ok::<_, Error>(())
    };
    world.runner.run(pause).await.unwrap();
    // The session sees the pause when it completes an item, since it would take others with that.
    worker.blocked.send_replace((2..ITEMS).collect());
    until_stats(&world, |stats| stats.completed == 2 && stats.held <= 1).await;
    // The handler was perhaps faster than the dispatcher.
    let seen = worker.seen();
    assert!(seen.is_empty() || seen == [2], "{seen:?}");
    let returned = reserve.iter().copied();
    let returned = returned.filter(|value| !seen.contains(value));
    are_unused(&world, &returned.collect()).await;
    worker.blocked.send_replace(BTreeSet::new());
    until_stats(&world, |stats| stats.held == 0).await;
    assert_eq!(worker.seen(), [0; 0]);
    let resume = |tr| async move {
        queue.resume(&tr);
        Ok::<_, Error>(())
    };
    world.runner.run(resume).await.unwrap();
    for value in 2 + seen.len() as u64..ITEMS {
        assert_eq!(worker.next().await, value);
    }
    timeout(LONG, worker.worker.shut_down(LONG)).await.unwrap();
    are_left(&world, []).await;
}

async fn changed_settings_give_the_reserve_back(store: TestStore) {
    // A sixth of the lease, after which the session notices the change, is shorter than the patience.
    let settings = Settings::new().with_lease(PATIENCE * 3);
    let clock = Still::new();
    let world = clock.world(&store, settings.clone()).await;
    let (worker, reserve) = StillWorker::with_reserve(&world, &clock).await;
    let changed = &settings.clone().with_max_attempts(3);
    let queue = &world.queue;
    let configure = |tr| async move { queue.configure(&tr, changed).await };
    world.runner.run(configure).await.unwrap();
    let grants = async || {
        let held = listed(&world, PlaceKind::Held).await;
        let reserved = held.iter().filter(|item| reserve.contains(&value(item)));
        reserved.map(|item| item.granted).collect::<Vec<_>>()
    };
    let before = grants().await;
    clock.advance(settings.lease() / 6);
    // They are then taken again, in a transaction that knows the settings.
    until(async || {
        let grants = grants().await;
        let is_another = |(now, before)| now != before;
        grants.len() == before.len() && grants.iter().zip(&before).all(is_another)
    })
    .await;
    let held = listed(&world, PlaceKind::Held).await;
    assert!(
        held.iter()
            .all(|item| (item.attempts, item.deliveries) == (0, 1))
    );
    worker.blocked.send_replace(BTreeSet::new());
    timeout(LONG, world.queue.wait_idle(&world.runner))
        .await
        .unwrap();
    worker.worker.shut_down(LONG).await.unwrap();
    assert_eq!(world.stats().await.completed, ITEMS);
    are_left(&world, []).await;
}

async fn a_cancelled_item_leaves_the_reserve(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let cancelled = world.enqueue_ref(100, &Enqueue::new()).await;
    world.enqueue(0..ITEMS).await;
    // The item is the first of the reserve.
    let blocked = [0, 100];
    let clock = Still::new();
    let mut worker = StillWorker::start(&world, &clock, with_handlers(1), blocked).await;
    assert_eq!(worker.next().await, 100);
    let in_hand = cancelled;
    worker.pass(100);
    assert_eq!(worker.next().await, 0);
    until_stats(&world, |stats| {
        stats.completed == 1 && stats.held >= RESERVE
    })
    .await;
    assert_eq!(world.cancel(&in_hand).await, Cancelled::NotThere);
    let queue = &world.queue;
    let list = |tr| async move { queue.list(&tr, PlaceKind::Held, None, 1_000).await };
    let held = world.runner.run(list).await.unwrap().items;
    let of = |wanted| {
        let mut items = held.iter();
        let item = items.find(|item| value(item.status.as_ref().unwrap()) == wanted);
        item.unwrap().item
    };
    for item in [1, 5] {
        let item = &of(item);
        let place = world.place(item).await;
        assert!(matches!(
            place,
            Some(Place::Held {
                is_cancelled: false,
                ..
            })
        ));
        assert_eq!(world.cancel(item).await, Cancelled::Requested);
    }
    until_stats(&world, |stats| stats.cancelled == 2).await;
    worker.pass(0);
    timeout(LONG, world.queue.wait_idle(&world.runner))
        .await
        .unwrap();
    worker.worker.shut_down(LONG).await.unwrap();
    let mut calls = worker.calls;
    let mut seen = Vec::new();
    while let Some(item) = calls.recv().await {
        seen.push(*item.value());
    }
    let expected = (1..ITEMS).filter(|value| ![1, 5].contains(value));
    assert_eq!(seen, expected.collect::<Vec<_>>());
    let stats = world.stats().await;
    assert_eq!((stats.completed, stats.cancelled), (ITEMS - 1, 2));
    are_left(&world, []).await;
}

/// Runs a worker in a process of its own, which dies as soon as its handler waits with this item in its hands and
/// `held` items or more are held.
async fn die_with(world: &World, in_hand: u64, held: u64) {
    let store = world.store.clone();
    let queue = world.queue.clone();
    let runner = world.runner.clone();
    let (says, is_over) = oneshot::channel();
    let died = process(move || async move {
        let world = World {
            store,
            runner,
            queue,
        };
        let clock = Still::new();
        let mut worker = StillWorker::start(&world, &clock, with_handlers(1), [in_hand]).await;
        while worker.next().await != in_hand {}
        until_stats(&world, |stats| stats.held >= held).await;
        says.send(world.stats().await.held).unwrap();
        std::mem::forget(worker);
    });
    let at_death = is_over.await.unwrap();
    tokio::task::spawn_blocking(|| died.join().unwrap())
        .await
        .unwrap();
    assert_eq!(world.stats().await.held, at_death);
    // Another session returns what it held.
    let heir = world.consumer().await;
    until_stats(world, |stats| stats.held == 0).await;
    heir.shut_down(LONG).await.unwrap();
}

async fn the_first_death_costs_an_item_of_the_reserve_nothing_and_the_next_one_counts(
    store: TestStore,
) {
    let world = World::new(&store, settings()).await;
    world.enqueue(0..ITEMS).await;
    die_with(&world, 1, RESERVE).await;
    let queued = listed(&world, PlaceKind::Queued).await;
    assert_eq!(queued.len() as u64, ITEMS - 1);
    for item in queued.iter().filter(|item| value(item) != 1) {
        assert_eq!((item.attempts, item.deaths), (0, 0), "{item:?}");
        assert_eq!(item.failure, None);
    }
    // These were in the reserve. Now each of them is granted when a handler wants it.
    die_with(&world, 3, 1).await;
    let queued = listed(&world, PlaceKind::Queued).await;
    for item in &queued {
        assert_eq!(item.deaths, u64::from(value(item) == 3), "{item:?}");
    }
    assert!(queued.iter().any(|item| value(item) == 3));
    let left: BTreeSet<_> = queued.iter().map(value).collect();
    are_left(&world, left).await;
}

async fn a_handler_that_takes_long_leaves_the_reserve_to_other_workers(store: TestStore) {
    let world = World::new(&store, Settings::new().with_lease(LONG * 60)).await;
    let clock = Still::new();
    let (mut worker, reserve) = StillWorker::with_reserve(&world, &clock).await;
    let (called, mut calls) = mpsc::unbounded_channel();
    let handler = move |item: Delivery<u64>| {
        called.send(*item.value()).unwrap();
        async {}
    };
    let options = WorkerOptions::new();
    let other = world.queue.work(&world.runner, options, handler).await;
    let reserved = reserve.len() as u64;
    until_stats(&world, |stats| stats.completed == ITEMS - 1 - reserved).await;
    assert_eq!(world.stats().await.held, reserved + 1);
    clock.advance(PATIENCE);
    until_stats(&world, |stats| stats.completed == ITEMS - 1).await;
    worker.blocked.send_replace(BTreeSet::new());
    timeout(LONG, worker.worker.shut_down(LONG)).await.unwrap();
    assert!(worker.calls.try_recv().is_err());
    other.unwrap().shut_down(LONG).await.unwrap();
    let mut handled = BTreeSet::new();
    while let Some(value) = calls.recv().await {
        assert!(handled.insert(value), "{value} was handled twice");
    }
    assert!(handled.into_iter().eq(2..ITEMS));
    assert_eq!(world.stats().await.completed, ITEMS);
    are_left(&world, []).await;
}

async fn the_time_limit_begins_at_the_hand_out(store: TestStore) {
    const LIMIT: Duration = Duration::from_millis(30);
    let world = World::with_defaults(&store).await;
    world.enqueue(0..ITEMS).await;
    let clock = Still::new();
    let options = with_handlers(2).with_time_limit(LIMIT);
    let blocked = [1, 2, 3];
    let mut worker = StillWorker::start(&world, &clock, options, blocked).await;
    for value in [0, 1] {
        assert_eq!(worker.next().await, value);
    }
    let early = worker.next_delivery().await;
    until_stats(&world, |stats| {
        stats.completed == 1 && stats.held >= RESERVE
    })
    .await;
    clock.advance(LIMIT / 2);
    worker.pass(1);
    let late = worker.next_delivery().await;
    assert_eq!((*early.value(), *late.value()), (2, 3));
    // Both were granted at the same time, but only one was handed out this long ago.
    clock.advance(LIMIT / 2);
    timeout(LONG, early.lost()).await;
    assert!(!late.is_lost());
    clock.advance(LIMIT / 2);
    timeout(LONG, late.lost()).await;
    drop((early, late));
    worker.worker.shut_down(Duration::ZERO).await.unwrap();
}

async fn an_item_that_kills_its_process_from_a_reserve_becomes_a_dead_letter_and_no_other_does(
    store: TestStore,
) {
    const PILL: u64 = 30;
    const ITEMS: u64 = 60;
    const MAX_DEATHS: u64 = 5;
    let settings = settings().with_max_deaths(MAX_DEATHS as u32);
    let world = World::new(&store, settings.clone()).await;
    world.enqueue(0..ITEMS).await;
    let mut killed = 0;
    let mut most_held = 0;
    while world.stats().await.dead == 0 {
        let store = world.store.clone();
        let settings = settings.clone();
        let (says, was_killed) = oneshot::channel();
        let died = process(move || async move {
            // Takes take longer than handlers.
            let chaos = Chaos::new(store.db.clone(), Environment::system(), Faults::default());
            chaos.set_latency(Duration::from_millis(2));
            let runner = store.runner_on(chaos);
            let queue = open(&store, &runner, settings).await.unwrap();
            let meets_pill = Arc::new(Notify::new());
            let kill = meets_pill.clone();
            let handler = move |item: Delivery<u64>| {
                let is_pill = *item.value() == PILL;
                if is_pill {
                    kill.notify_one();
                }
                async move {
                    if is_pill {
                        std::future::pending::<()>().await;
                    }
                    Outcome::Done
                }
            };
            // Other handlers might hold the same items as it dies, again and again.
            let options = WorkerOptions::new().with_concurrency(1);
            let _worker = queue.work(&runner, options, handler).await.unwrap();
            let is_killed = tokio::select! {
                () = meets_pill.notified() => true,
                idle = queue.wait_idle(&runner) => {
                    idle.unwrap();
                    false
                }
            };
            says.send(is_killed).unwrap();
        });
        tokio::task::spawn_blocking(|| died.join().unwrap())
            .await
            .unwrap();
        killed += u64::from(was_killed.await.unwrap());
        most_held = most_held.max(world.stats().await.held);
    }
    // The first death may have found it in the reserve.
    assert!((MAX_DEATHS..=MAX_DEATHS + 1).contains(&killed), "{killed}");
    // Otherwise no process would have had a reserve when it died.
    assert!(most_held > 1, "{most_held}");
    let letters = &world.dead_letters().await;
    let [letter] = &letters[..] else {
        panic!("one dead letter: {letters:?}");
    };
    assert_eq!(
        (value(letter), letter.attempts, letter.deaths),
        (PILL, 0, MAX_DEATHS)
    );
    world.complete_all().await;
    let stats = world.stats().await;
    assert_eq!((stats.completed, stats.dead), (ITEMS - 1, 1));
    world.check().await;
}

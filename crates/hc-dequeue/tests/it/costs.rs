//! What each way back counts as, why an item becomes a dead letter, and what happens to an item that kills its
//! process.

use std::sync::Arc;
use std::time::Duration;

use crate::common::{DeadLetter, LONG, World, process, settings};
use conformance::stores::TestStore;
use conformance::{let_pass, until};
use hc_dequeue::{
    Backoff, Delivery, Enqueue, Enqueued, Error, ItemRef, MAX_FAILURE_BYTES, OnRepeat, Outcome,
    Settings, WorkerOptions,
};
use tokio::sync::{Notify, mpsc};

conformance::on_every_store!(
    a_failure_stays_with_its_item_until_the_next_one,
    a_reason_that_is_too_long_is_refused_and_the_delivery_is_as_it_was,
    a_handlers_outcome_says_what_becomes_of_its_item,
    the_death_of_a_session_costs_a_death_and_no_attempt,
    what_was_granted_and_not_collected_costs_nothing,
    an_item_that_is_snoozed_for_good_comes_to_an_end,
    an_item_may_have_limits_of_its_own,
    a_delivery_tells_its_limits_and_whether_a_failure_would_be_the_last,
    an_item_that_begins_anew_has_all_its_limits_again,
    a_delivery_from_before_a_redrive_stays_lost,
    an_item_that_kills_its_process_becomes_a_dead_letter_and_no_other_does,
);

const SOON: Duration = Duration::from_millis(1);

fn reason(letter: &DeadLetter<u64>) -> &str {
    &letter.failure.as_ref().unwrap().reason
}

async fn a_failure_stays_with_its_item_until_the_next_one(store: TestStore) {
    let world = World::with_defaults(&store).await;
    world.enqueue([7]).await;
    let consumer = world.consumer().await;
    let next = || async { consumer.dequeue_within(LONG).await.unwrap().unwrap() };
    let first = next().await;
    assert_eq!(first.last_failure(), None);
    first.retry_after(SOON, "no disk").await.unwrap();
    let second = next().await;
    let failure = second.last_failure().unwrap();
    assert_eq!(failure.reason, "no disk");
    assert!(failure.time >= second.enqueued());
    second.snooze(SOON).await.unwrap();
    let third = next().await;
    assert_eq!(third.last_failure(), Some(failure));
    assert_eq!((third.attempt(), third.deliveries()), (2, 3));
    third.nack().await.unwrap();
    let fourth = next().await;
    assert_eq!(fourth.last_failure().unwrap().reason, "it was given back");
    fourth.discard("no use").await.unwrap();
    let [letter] = &world.dead_letters().await[..] else {
        panic!("one dead letter");
    };
    assert_eq!((letter.attempts, letter.deliveries), (2, 4));
    assert_eq!(reason(letter), "no use");
    world.check().await;
}

async fn a_reason_that_is_too_long_is_refused_and_the_delivery_is_as_it_was(store: TestStore) {
    let world = World::with_defaults(&store).await;
    world.enqueue([7]).await;
    let consumer = world.consumer().await;
    let delivery = consumer.dequeue_within(LONG).await.unwrap().unwrap();
    let long = "a".repeat(MAX_FAILURE_BYTES + 1);
    for refused in [
        delivery.retry_after(SOON, &long).await,
        delivery.discard(&long).await,
    ] {
        assert!(matches!(
            refused,
            Err(Error::ReasonTooLong { bytes: 501, .. })
        ));
    }
    delivery.discard(&long[1..]).await.unwrap();
    assert_eq!(reason(&world.dead_letters().await[0]), &long[1..]);
}

async fn a_handlers_outcome_says_what_becomes_of_its_item(store: TestStore) {
    let world = World::new(&store, Settings::new().with_max_attempts(2)).await;
    world.enqueue([0, 1, 2, 3, 4]).await;
    let (seen, mut all) = mpsc::unbounded_channel();
    let handler = move |delivery: Delivery<u64>| {
        let value = *delivery.value();
        let granted = delivery.deliveries();
        seen.send((value, delivery.attempt(), granted)).unwrap();
        async move {
            match (value, granted) {
                (0, _) => Ok(Outcome::Done),
                (1, 1..4) => Ok(Outcome::snooze(SOON)),
                (1, _) => Ok(Outcome::Done),
                (2, _) => Err("no"),
                (3, 1) => Ok(Outcome::retry_after(SOON, "later")),
                (3, _) => panic!("no luck"),
                _ => Ok(Outcome::discard("x".repeat(MAX_FAILURE_BYTES + 100))),
            }
        }
    };
    let options = WorkerOptions::new().with_backoff(Backoff::new(SOON, SOON));
    let worker = world.queue.work(&world.runner, options, handler).await;
    world.queue.wait_idle(&world.runner).await.unwrap();
    worker.unwrap().shut_down(LONG).await.unwrap();
    let mut calls = Vec::new();
    while let Some(call) = all.recv().await {
        calls.push(call);
    }
    calls.sort_unstable();
    let snoozed = [(1, 1, 1), (1, 1, 2), (1, 1, 3), (1, 1, 4)];
    let failed = [(2, 1, 1), (2, 2, 2), (3, 1, 1), (3, 2, 2)];
    let expected = [&[(0, 1, 1)][..], &snoozed, &failed, &[(4, 1, 1)]].concat();
    assert_eq!(calls, expected);
    let letters = world.dead_letters().await;
    let dead: Vec<_> = letters
        .iter()
        .map(|letter| (*letter.value.as_ref().unwrap(), reason(letter)))
        .collect();
    let discarded = "x".repeat(MAX_FAILURE_BYTES);
    let expected = [(2, "no"), (3, "it panicked: no luck"), (4, &discarded)];
    assert_eq!(dead, expected);
    world.check().await;
}

/// Holds an item in a process that is then killed.
pub(crate) async fn die_with_an_item(world: &World) {
    let queue = world.queue.clone();
    let runner = world.runner.clone();
    let died = process(move || async move {
        let consumer = queue
            .consumer(&runner, WorkerOptions::default())
            .await
            .unwrap();
        std::mem::forget(consumer.dequeue_within(LONG).await.unwrap().unwrap());
    });
    tokio::task::spawn_blocking(|| died.join().unwrap())
        .await
        .unwrap();
}

async fn the_death_of_a_session_costs_a_death_and_no_attempt(store: TestStore) {
    let world = World::new(&store, settings().with_max_attempts(1).with_max_deaths(3)).await;
    world.enqueue([7]).await;
    for deaths in 0..3 {
        let consumer = world.consumer().await;
        let delivery = consumer.dequeue_within(LONG).await.unwrap().unwrap();
        assert_eq!((delivery.attempt(), delivery.deaths()), (1, deaths));
        delivery.release().await.unwrap();
        consumer.shut_down(Duration::ZERO).await.unwrap();
        die_with_an_item(&world).await;
    }
    let consumer = world.consumer().await;
    tokio::select! {
        idle = world.queue.wait_idle(&world.runner) => idle.unwrap(),
        taken = consumer.dequeue_within(LONG) => panic!("{taken:?}"),
    }
    let [letter] = &world.dead_letters().await[..] else {
        panic!("one dead letter");
    };
    assert_eq!((letter.attempts, letter.deaths), (0, 3));
    assert_eq!(reason(letter), "the session that held it has died");
    world.check().await;
}

async fn what_was_granted_and_not_collected_costs_nothing(store: TestStore) {
    let (world, dead) = World::with_dead(&store, settings().with_max_deaths(1)).await;
    world.enqueue([7]).await;
    // The session loses patience with the first request, and answers it.
    let options = WorkerOptions::new().with_poll_interval(SOON);
    let consumer = world.queue.consumer(&world.runner, options).await.unwrap();
    let granted = async {
        until(async || world.count("g").await > 0).await;
        world.declare_dead(dead).await;
    };
    let (delivery, ()) = tokio::join!(consumer.dequeue_within(LONG), granted);
    let delivery = delivery.unwrap().unwrap();
    assert_eq!((delivery.attempt(), delivery.deaths()), (1, 0));
    world.ack(&delivery).await.unwrap();
    world.check().await;
}

async fn an_item_that_is_snoozed_for_good_comes_to_an_end(store: TestStore) {
    let world = World::new(&store, Settings::new().with_max_deliveries(5)).await;
    world.enqueue([7]).await;
    let handler = |_| async { Outcome::snooze(SOON) };
    let worker = world
        .queue
        .work(&world.runner, WorkerOptions::new(), handler)
        .await;
    world.queue.wait_idle(&world.runner).await.unwrap();
    worker.unwrap().shut_down(LONG).await.unwrap();
    let [letter] = &world.dead_letters().await[..] else {
        panic!("one dead letter");
    };
    assert_eq!((letter.attempts, letter.deliveries), (0, 5));
    assert_eq!(reason(letter), "it was granted too often");
}

async fn an_item_may_have_limits_of_its_own(store: TestStore) {
    let world = World::new(&store, Settings::new().with_max_attempts(2)).await;
    for (value, options) in [
        (1, Enqueue::new().with_max_attempts(1)),
        (2, Enqueue::new()),
        (3, Enqueue::new().with_max_attempts(3)),
        (
            4,
            Enqueue::new().with_max_attempts(9).with_max_deliveries(2),
        ),
    ] {
        let enqueued = world.enqueue_with(value, &options).await.unwrap();
        assert!(matches!(enqueued, Enqueued::Staged(_)));
    }
    let handler = |_| async { Err::<(), _>("no") };
    let options = WorkerOptions::new().with_backoff(Backoff::new(SOON, SOON));
    let worker = world.queue.work(&world.runner, options, handler).await;
    world.queue.wait_idle(&world.runner).await.unwrap();
    worker.unwrap().shut_down(LONG).await.unwrap();
    let letters = world.dead_letters().await;
    let costs = letters
        .iter()
        .map(|letter| (*letter.value.as_ref().unwrap(), letter.attempts));
    assert_eq!(costs.collect::<Vec<_>>(), [(1, 1), (2, 2), (3, 3), (4, 2)]);
}

/// How a dead letter goes back to the queue.
#[derive(Debug, Clone, Copy)]
enum Anew {
    Redrive,
    Replace,
    Debounce,
    DebounceLater,
}

impl Anew {
    /// Begins an item anew that was enqueued with these options.
    async fn begin(self, world: &World, item: &ItemRef, options: &Enqueue) {
        let options = options.clone();
        let options = match self {
            Self::Redrive => {
                let queue = &world.queue;
                let redrive = |tr| async move { queue.redrive(&tr, item).await };
                return assert!(world.runner.run(redrive).await.unwrap());
            }
            Self::Replace => options.with_on_repeat(OnRepeat::Replace),
            Self::Debounce => options.with_on_repeat(OnRepeat::Debounce),
            Self::DebounceLater => options.with_on_repeat(OnRepeat::Debounce).with_delay(SOON),
        };
        let enqueued = world.enqueue_with(7, &options).await;
        assert_eq!(enqueued.unwrap(), Enqueued::Replaced(*item));
    }
}

async fn a_delivery_tells_its_limits_and_whether_a_failure_would_be_the_last(store: TestStore) {
    let settings = Settings::new()
        .with_max_attempts(3)
        .with_max_deaths(4)
        .with_max_deliveries(5);
    let world = World::new(&store, settings).await;
    let consumer = world.consumer().await;
    let next = async || consumer.dequeue_within(LONG).await.unwrap().unwrap();
    let limits = |delivery: &Delivery<u64>| {
        [
            delivery.max_attempts(),
            delivery.max_deaths(),
            delivery.max_deliveries(),
        ]
    };
    world.enqueue([1]).await;
    for is_last in [false, false, true] {
        let delivery = next().await;
        assert_eq!(limits(&delivery), [3, 4, 5]);
        assert_eq!(delivery.is_last_attempt(), is_last);
        delivery.nack().await.unwrap();
    }
    assert_eq!(world.stats().await.dead, 1);

    // The last grant is the last attempt, too.
    world.enqueue([2]).await;
    for _ in 1..5 {
        let delivery = next().await;
        assert!(!delivery.is_last_attempt());
        delivery.release().await.unwrap();
    }
    let delivery = next().await;
    assert_eq!(delivery.attempt(), 1);
    assert!(delivery.is_last_attempt());
    delivery.nack().await.unwrap();
    assert_eq!(world.stats().await.dead, 2);

    let own = Enqueue::new()
        .with_max_attempts(2)
        .with_max_deaths(6)
        .with_max_deliveries(7);
    let _ = world.enqueue_with(3, &own).await.unwrap();
    for is_last in [false, true] {
        let delivery = next().await;
        assert_eq!(limits(&delivery), [2, 6, 7]);
        assert_eq!(delivery.is_last_attempt(), is_last);
        delivery.nack().await.unwrap();
    }
    assert_eq!(world.stats().await.dead, 3);
}

async fn an_item_that_begins_anew_has_all_its_limits_again(store: TestStore) {
    const LIMIT: u64 = 3;
    let of_the_queue = Enqueue::new().with_dedupe("one");
    let of_the_item = of_the_queue.clone().with_max_deliveries(LIMIT as u32);
    for (settings, options) in [
        (
            Settings::new().with_max_deliveries(LIMIT as u32),
            of_the_queue,
        ),
        (Settings::new(), of_the_item),
    ] {
        let world = World::new(&store, settings).await;
        let item = &world.enqueue_ref(7, &options).await;
        let consumer = world.consumer().await;
        let ways = [
            Anew::Redrive,
            Anew::Replace,
            Anew::Debounce,
            Anew::DebounceLater,
        ];
        for way in ways {
            for granted in 1..=LIMIT {
                let delivery = consumer.dequeue_within(LONG).await.unwrap().unwrap();
                assert_eq!(delivery.deliveries(), granted, "before {way:?}");
                assert_eq!(world.status(item).await.unwrap().deliveries, granted);
                delivery.snooze(SOON).await.unwrap();
            }
            let [letter] = &world.dead_letters().await[..] else {
                panic!("one dead letter");
            };
            assert_eq!((letter.attempts, letter.deliveries), (0, LIMIT));
            assert_eq!(reason(letter), "it was granted too often");
            way.begin(&world, item, &options).await;
            assert_eq!(world.status(item).await.unwrap().deliveries, 0);
        }
        world.check().await;
    }
}

async fn a_delivery_from_before_a_redrive_stays_lost(store: TestStore) {
    let world = World::new(&store, Settings::new().with_max_deliveries(1)).await;
    let item = &world.enqueue_ref(7, &Enqueue::new()).await;
    let consumer = world.consumer().await;
    let before = consumer.dequeue_within(LONG).await.unwrap().unwrap();
    before.release().await.unwrap();
    assert_eq!(world.dead_letters().await.len(), 1);
    Anew::Redrive.begin(&world, item, &Enqueue::new()).await;
    let again = consumer.dequeue_within(LONG).await.unwrap().unwrap();
    assert_eq!((before.deliveries(), again.deliveries()), (1, 1));
    let late = world.ack(&before).await;
    assert!(matches!(late, Err(Error::DeliveryLost { .. })));
    world.ack(&again).await.unwrap();
    world.check().await;
}

async fn an_item_that_kills_its_process_becomes_a_dead_letter_and_no_other_does(store: TestStore) {
    const PILL: u64 = 13;
    let world = World::new(&store, settings().with_max_deaths(5)).await;
    world.enqueue(0..40).await;
    while world.stats().await.dead == 0 {
        let queue = world.queue.clone();
        let runner = world.runner.clone();
        let died = process(move || async move {
            let killed = Arc::new(Notify::new());
            let kill = killed.clone();
            let handler = move |delivery: Delivery<u64>| {
                if *delivery.value() == PILL {
                    kill.notify_one();
                }
                async move {
                    let_pass(Duration::from_millis(5)).await;
                    Outcome::Done
                }
            };
            let options = WorkerOptions::new().with_concurrency(8);
            let _worker = queue.work(&runner, options, handler).await.unwrap();
            tokio::select! {
                () = killed.notified() => {}
                idle = queue.wait_idle(&runner) => idle.unwrap(),
            }
        });
        tokio::task::spawn_blocking(|| died.join().unwrap())
            .await
            .unwrap();
    }
    let stats = world.stats().await;
    let [letter] = &world.dead_letters().await[..] else {
        panic!("one dead letter: {stats:?}");
    };
    assert_eq!((letter.value.as_ref().unwrap(), letter.deaths), (&PILL, 5));
    world.complete_all().await;
    let stats = world.stats().await;
    assert_eq!((stats.completed, stats.dead), (39, 1));
    world.check().await;
}

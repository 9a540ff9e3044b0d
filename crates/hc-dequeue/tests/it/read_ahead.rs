//! Takes that follow closely on one another: each reads the queue while the previous one commits.

use std::sync::Arc;
use std::time::Duration;

use crate::common::World;
use conformance::stores::TestStore;
use futures::executor::block_on;
use futures::{FutureExt, TryFutureExt};
use hc_dequeue::{Queue, Settings, WorkerOptions};
use keyspace::embedded::Options;
use keyspace::env::ManualClock;
use keyspace::{Environment, RunOptions, Runner, Subspace};

conformance::on_every_store!(
    takes_leave_out_what_was_taken_before,
    what_comes_back_between_takes_comes_next,
    what_was_just_enqueued_is_there,
    a_larger_wish_gets_all_that_there_is,
    a_consumer_that_completes_and_asks_at_once_has_completed,
);

async fn takes_leave_out_what_was_taken_before(store: TestStore) {
    const ITEMS: u64 = 200;
    let world = World::recorded(&store, Settings::default()).await;
    world.enqueue(0..ITEMS).await;
    let consumer = world.consumer().await;
    for value in 0..ITEMS {
        assert_eq!(consumer.pop().await.unwrap().unwrap().value, value);
    }
    // A take of items that are gone would have failed and registered a request.
    assert_eq!(world.recorded_sum("hc_dequeue_conflicts"), 0.0);
    assert!(consumer.pop().await.unwrap().is_none());
    world.check().await;
}

async fn what_comes_back_between_takes_comes_next(store: TestStore) {
    const ITEMS: u64 = 100;
    let world = World::with_defaults(&store).await;
    world.enqueue(0..ITEMS).await;
    let consumer = world.consumer().await;
    let next = || async { consumer.dequeue().await.unwrap().unwrap() };
    for value in (0..ITEMS).step_by(2) {
        let first = next().await;
        let second = next().await;
        first.nack().await.unwrap();
        let again = next().await;
        assert_eq!((*again.value(), *second.value()), (value, value + 1));
        again.complete().await.unwrap();
        second.complete().await.unwrap();
    }
    world.check().await;
}

async fn what_was_just_enqueued_is_there(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let consumer = world.consumer().await;
    for value in 0..100 {
        world.enqueue([2 * value, 2 * value + 1]).await;
        for value in [2 * value, 2 * value + 1] {
            assert_eq!(consumer.pop().await.unwrap().unwrap().value, value);
        }
    }
    world.check().await;
}

async fn a_larger_wish_gets_all_that_there_is(store: TestStore) {
    const ROUNDS: u64 = 20;
    let world = World::with_defaults(&store).await;
    world.enqueue(0..ROUNDS * 12).await;
    let consumer = world.consumer().await;
    for _ in 0..ROUNDS {
        for _ in 0..2 {
            assert!(consumer.pop().await.unwrap().is_some());
        }
        let batch = consumer.dequeue_batch(10).await.unwrap();
        assert_eq!(batch.len(), 10);
        for delivery in batch {
            delivery.complete().await.unwrap();
        }
    }
    world.check().await;
}

async fn a_consumer_that_completes_and_asks_at_once_has_completed(store: TestStore) {
    const ITEMS: u64 = 100;
    let world = World::recorded(&store, Settings::default()).await;
    world.enqueue(0..ITEMS).await;
    let consumer = world.consumer().await;
    let mut values = Vec::new();
    let mut next = consumer.dequeue().await.unwrap();
    while let Some(delivery) = next {
        values.push(*delivery.value());
        let (completed, after) = tokio::join!(delivery.complete(), consumer.dequeue());
        completed.unwrap();
        next = after.unwrap();
    }
    assert!(values.into_iter().eq(0..ITEMS));
    let stats = world.stats().await;
    assert_eq!((stats.held, stats.completed), (0, ITEMS));
    assert_eq!(world.recorded_sum("hc_dequeue_conflicts"), 0.0);
    world.check().await;
}

#[tokio::test]
async fn a_lone_caller_runs_one_step_of_the_dispatcher_itself() {
    let clock = ManualClock::new();
    let environment = Environment::seeded(1, Arc::new(clock.clone()));
    let options = RunOptions::default().with_environment(environment);
    let runner = &Runner::with_options(Options::new().memory().unwrap(), options);
    let subspace = Subspace::from("jobs");
    let queue = Queue::<u64>::open(runner, subspace);
    let queue = &queue.await.unwrap();
    let enqueue = || runner.run(|tr| async move { queue.enqueue(&tr, &0).await });
    let len = || runner.run(|tr| async move { queue.len(&tr).await });
    enqueue().await.unwrap();
    let consumer = &queue.consumer(runner, WorkerOptions::new()).await.unwrap();
    let pops_at_once = || async {
        let mut pop = consumer.pop().boxed();
        let answer = (&mut pop).now_or_never();
        // The runtime has only this thread, which it does not get back here. If the poll has committed, that comes
        // before the commit of the enqueue.
        let left = block_on(enqueue().and_then(|_| len())).unwrap();
        match answer {
            Some(answer) => answer.unwrap(),
            None => pop.await.unwrap(),
        };
        left == 1
    };
    for _ in 0..100 {
        // The runtime takes a poll from time to time.
        let popped = pops_at_once().await || pops_at_once().await;
        assert!(popped, "no call ran the dispatcher");
        clock.advance(Duration::from_secs(60));
        assert!(
            !pops_at_once().await,
            "a call did more than the heartbeat that was due"
        );
    }
}

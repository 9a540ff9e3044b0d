//! Which ways back to the queue count as attempts. Every item here has one attempt, so that a counted one makes it a
//! dead letter.

use std::future::pending;
use std::time::Duration;

use crate::common::{LONG, World};
use conformance::stores::TestStore;
use conformance::timeout;
use hc_dequeue::{Delivery, Settings, Worker, WorkerOptions};
use tokio::sync::mpsc;

conformance::on_every_store!(
    a_worker_that_is_shut_down_costs_no_attempt,
    a_worker_that_is_dropped_costs_no_attempt,
    a_consumer_that_is_shut_down_costs_no_attempt,
    a_consumer_that_is_dropped_before_its_deliveries_costs_no_attempt,
    a_snooze_is_no_attempt,
    a_failure_is_an_attempt,
    a_handler_that_fails_while_its_worker_shuts_down_costs_an_attempt,
);

const RESTARTS: usize = 10;

/// Returns a queue with one item, which has one attempt.
async fn world(store: &TestStore) -> World {
    let world = World::new(store, Settings::new().with_max_attempts(1)).await;
    world.enqueue([7]).await;
    world
}

/// Panics unless the item still has its one attempt.
async fn is_untouched(world: &World) {
    let consumer = world.consumer().await;
    let delivery = consumer.dequeue_within(LONG).await.unwrap().unwrap();
    assert_eq!((*delivery.value(), delivery.attempt()), (7, 1));
    world.ack(&delivery).await.unwrap();
    assert_eq!(world.stats().await.dead, 0);
    world.check().await;
}

async fn is_dead(world: &World) {
    let stats = world.stats().await;
    assert_eq!((stats.dead, stats.queued, stats.delayed), (1, 0, 0));
    world.check().await;
}

/// Starts a worker whose handler takes longer than any test, and returns after the handler has started.
async fn long_job(world: &World) -> Worker<u64> {
    let (begun, mut begins) = mpsc::unbounded_channel();
    let handler = move |delivery: Delivery<u64>| {
        begun.send(delivery.attempt()).unwrap();
        async move {
            let _held = delivery;
            pending::<Result<(), String>>().await
        }
    };
    let options = WorkerOptions::default();
    let worker = world.queue.work(&world.runner, options, handler).await;
    let attempts = timeout(LONG, begins.recv()).await;
    assert_eq!(attempts, Some(1));
    worker.unwrap()
}

async fn a_worker_that_is_shut_down_costs_no_attempt(store: TestStore) {
    let world = world(&store).await;
    for _ in 0..RESTARTS {
        let worker = long_job(&world).await;
        worker.shut_down(Duration::ZERO).await.unwrap();
    }
    is_untouched(&world).await;
}

async fn a_worker_that_is_dropped_costs_no_attempt(store: TestStore) {
    let world = world(&store).await;
    for _ in 0..RESTARTS {
        drop(long_job(&world).await);
    }
    is_untouched(&world).await;
}

async fn a_consumer_that_is_shut_down_costs_no_attempt(store: TestStore) {
    let world = world(&store).await;
    for restart in 0..RESTARTS {
        let consumer = world.consumer().await;
        let delivery = consumer.dequeue_within(LONG).await.unwrap().unwrap();
        assert_eq!(delivery.attempt(), 1);
        let ended = consumer.shut_down(Duration::ZERO);
        // The delivery is held, or was dropped before the shutdown.
        if restart % 2 == 0 {
            let (ended, ()) = futures::join!(ended, async move { drop(delivery) });
            ended.unwrap();
        } else {
            ended.await.unwrap();
            assert!(delivery.is_lost());
        }
    }
    is_untouched(&world).await;
}

async fn a_consumer_that_is_dropped_before_its_deliveries_costs_no_attempt(store: TestStore) {
    let world = world(&store).await;
    for _ in 0..RESTARTS {
        let consumer = world.consumer().await;
        let delivery = consumer.dequeue_within(LONG).await.unwrap().unwrap();
        drop(consumer);
        drop(delivery);
    }
    is_untouched(&world).await;
}

async fn a_snooze_is_no_attempt(store: TestStore) {
    let world = world(&store).await;
    let consumer = world.consumer().await;
    for _ in 0..RESTARTS {
        let delivery = consumer.dequeue_within(LONG).await.unwrap().unwrap();
        assert_eq!(delivery.attempt(), 1);
        delivery.snooze(Duration::from_millis(1)).await.unwrap();
        let stats = world.stats().await;
        assert_eq!((stats.dead, stats.delayed + stats.queued), (0, 1));
    }
    consumer.shut_down(Duration::ZERO).await.unwrap();
    is_untouched(&world).await;
}

async fn a_failure_is_an_attempt(store: TestStore) {
    for way in 0..3 {
        let world = world(&store).await;
        let consumer = world.consumer().await;
        let delivery = consumer.dequeue().await.unwrap().unwrap();
        match way {
            0 => delivery.nack().await.unwrap(),
            1 => delivery
                .retry_after(Duration::ZERO, "not now")
                .await
                .unwrap(),
            _ => drop(delivery),
        }
        assert!(consumer.dequeue().await.unwrap().is_none());
        is_dead(&world).await;
    }
}

async fn a_handler_that_fails_while_its_worker_shuts_down_costs_an_attempt(store: TestStore) {
    let world = world(&store).await;
    let (begun, mut begins) = mpsc::unbounded_channel();
    let handler = move |delivery: Delivery<u64>| {
        let begun = begun.clone();
        async move {
            let _held = delivery;
            let (fail, fails) = tokio::sync::oneshot::channel::<()>();
            begun.send(fail).unwrap();
            fails.await.map_err(|_| "no")
        }
    };
    let options = WorkerOptions::default();
    let worker = world.queue.work(&world.runner, options, handler).await;
    let fail = begins.recv().await.unwrap();
    // The shutdown starts first.
    let ended = worker.unwrap().shut_down(LONG);
    let (ended, ()) = futures::join!(ended, async move { drop(fail) });
    ended.unwrap();
    is_dead(&world).await;
}

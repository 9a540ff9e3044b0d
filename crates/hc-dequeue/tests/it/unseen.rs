//! An item that no code of the application has seen costs nothing when the call for it is dropped.

use std::time::Duration;

use conformance::by_hand::ByHand;
use conformance::stores::TestStore;
use conformance::{timeout, until};
use futures::StreamExt;
use hc_dequeue::testing::{Drained, drain, drain_process};
use hc_dequeue::{Consumer, Delivery, Settings, WorkerOptions};
use keyspace::Tx;

use crate::common::{LONG, World};

conformance::on_every_store!(
    a_call_that_is_dropped_with_its_answer_costs_its_items_nothing,
    an_answer_that_its_caller_does_not_fetch_in_time_costs_nothing,
    a_delivery_that_was_received_and_dropped_has_failed,
    a_drain_that_is_dropped_at_any_poll_costs_no_attempt,
    a_drain_with_transactions_that_is_dropped_at_any_poll_costs_no_attempt,
);

mod threads {
    use super::*;

    conformance::on_every_store!(threads: no_shutdown_of_a_worker_makes_a_dead_letter);

    async fn no_shutdown_of_a_worker_makes_a_dead_letter(store: TestStore) {
        let world = fragile(&store).await;
        for round in 0..conformance::scale(40, 1_000) {
            world.enqueue(0..24).await;
            let handler = |_: Delivery<u64>| tokio::task::yield_now();
            let options = WorkerOptions::new().with_concurrency(8);
            let worker = world.queue.work(&world.runner, options, handler);
            let worker = worker.await.unwrap();
            for _ in 0..round {
                tokio::task::yield_now().await;
            }
            let grace = if round % 2 == 0 { Duration::ZERO } else { LONG };
            worker.shut_down(grace).await.unwrap();
            let stats = world.stats().await;
            assert_eq!((stats.dead, stats.delayed, stats.held), (0, 0, 0));
        }
        world.check().await;
    }
}

/// Returns a queue whose items become dead letters with the first attempt that counts.
async fn fragile(store: &TestStore) -> World {
    World::new(store, Settings::new().with_max_attempts(1)).await
}

/// A call of a consumer that was answered, and would return this number of items.
fn call(number: usize, consumer: &Consumer<u64>) -> (ByHand<'_, usize>, u64) {
    match number {
        0 => {
            let call = async { consumer.dequeue_within(LONG).await.unwrap().iter().count() };
            (ByHand::new(call), 1)
        }
        1 => {
            let call = async { consumer.dequeue_batch_within(3, LONG).await.unwrap().len() };
            (ByHand::new(call), 3)
        }
        _ => {
            let call = async {
                let mut deliveries = Box::pin(consumer.deliveries());
                deliveries.next().await.iter().count()
            };
            (ByHand::new(call), 1)
        }
    }
}

async fn a_call_that_is_dropped_with_its_answer_costs_its_items_nothing(store: TestStore) {
    for number in 0..3 {
        for is_shut_down in [false, true] {
            let world = fragile(&store).await;
            let consumer = world.consumer().await;
            let (mut call, items) = call(number, &consumer);
            assert_eq!(call.poll(), None);
            world.enqueue(0..items).await;
            timeout(LONG, call.until_woken()).await;
            assert_eq!(world.stats().await.held, items);
            drop(call);
            let other = if is_shut_down {
                consumer.shut_down(LONG).await.unwrap();
                world.consumer().await
            } else {
                consumer
            };
            for value in 0..items {
                let again = timeout(LONG, other.dequeue_within(LONG)).await;
                let again = again.unwrap().unwrap();
                let counts = (again.attempt(), again.deliveries());
                assert_eq!((*again.value(), counts), (value, (1, 1)), "{number}");
                again.complete().await.unwrap();
            }
            other.shut_down(LONG).await.unwrap();
            world.check().await;
        }
    }
}

async fn an_answer_that_its_caller_does_not_fetch_in_time_costs_nothing(store: TestStore) {
    let world = fragile(&store).await;
    let limit = WorkerOptions::new().with_time_limit(Duration::from_millis(1));
    let consumer = world.quick_consumer(limit).await;
    let mut call = ByHand::new(consumer.dequeue_within(LONG));
    assert!(call.poll().is_none());
    world.enqueue([7]).await;
    timeout(LONG, call.until_woken()).await;
    until(async || world.stats().await.queued != 0).await;
    // It waits for the next item, which may be the same one.
    assert!(call.poll().is_none());
    drop(call);
    consumer.shut_down(LONG).await.unwrap();
    let stats = world.stats().await;
    assert_eq!((stats.queued, stats.delayed, stats.dead), (1, 0, 0));
    world.check().await;
}

async fn a_delivery_that_was_received_and_dropped_has_failed(store: TestStore) {
    let world = fragile(&store).await;
    let consumer = world.consumer().await;
    let mut call = ByHand::new(consumer.dequeue_within(LONG));
    assert!(call.poll().is_none());
    world.enqueue([7]).await;
    timeout(LONG, call.until_woken()).await;
    drop(call.poll().unwrap().unwrap().unwrap());
    drop(call);
    until(async || world.stats().await.dead != 0).await;
    consumer.shut_down(LONG).await.unwrap();
    world.check().await;
}

/// Drops a drain of a queue with one item after every number of polls at which it is not over.
async fn drop_at_each_poll(store: &TestStore, is_process: bool) {
    for polls in 1.. {
        let world = fragile(store).await;
        world.enqueue([7]).await;
        let handle = async || {
            for _ in 0..3 {
                tokio::task::yield_now().await;
            }
        };
        let drained = async {
            if is_process {
                let handler = |_: Tx<_>, _: Delivery<u64>| handle();
                drain_process(&world.runner, &world.queue, handler).await
            } else {
                drain(&world.runner, &world.queue, |_: Delivery<u64>| handle()).await
            }
        };
        let mut drained = ByHand::new(drained);
        let mut output = None;
        for _ in 0..polls {
            output = drained.poll();
            if output.is_some() {
                break;
            }
            timeout(LONG, drained.until_woken()).await;
        }
        drop(drained);
        let settled = async {
            loop {
                let stats = world.stats().await;
                if stats.held == 0
                    && stats.queued + stats.delayed + stats.dead + stats.completed == 1
                {
                    break stats;
                }
                tokio::task::yield_now().await;
            }
        };
        let stats = timeout(LONG, settled).await;
        assert_eq!((stats.delayed, stats.dead), (0, 0), "after {polls} polls");
        if let Some(output) = output {
            let one = Drained {
                completed: 1,
                ..Drained::default()
            };
            assert_eq!(output.unwrap(), one);
            assert!(polls > 3, "it was dropped while its handler ran");
            return;
        }
    }
}

async fn a_drain_that_is_dropped_at_any_poll_costs_no_attempt(store: TestStore) {
    drop_at_each_poll(&store, false).await;
}

async fn a_drain_with_transactions_that_is_dropped_at_any_poll_costs_no_attempt(store: TestStore) {
    drop_at_each_poll(&store, true).await;
}

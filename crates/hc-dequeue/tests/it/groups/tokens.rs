//! Tokens of rates: only an item that a handler gets costs one.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use conformance::by_hand::ByHand;
use conformance::stores::TestStore;
use conformance::{timeout, until};
use futures::poll;
use hc_dequeue::{Delivery, Enqueue, GroupLimits, Queue, Rate, WorkerOptions};
use keyspace::OpenOptions;
use tokio::sync::watch;

use super::{next, of, take_all, values};
use crate::common::{LONG, World};

conformance::on_every_store!(
    orderly_restarts_of_workers_cost_no_tokens,
    a_call_that_is_dropped_with_its_answer_costs_no_token,
    an_item_that_does_not_decode_costs_no_token,
);

/// No second item starts during a test.
const RARE: GroupLimits =
    GroupLimits::new().with_rate(Rate::new(1, Duration::from_secs(24 * 60 * 60)));

async fn orderly_restarts_of_workers_cost_no_tokens(store: TestStore) {
    const GROUPS: u64 = 200;
    const HANDLERS: u64 = 4;
    /// How many items each worker handles.
    const HANDLED: u64 = 20;
    let world = World::with_defaults(&store).await;
    world.limit_all(RARE).await;
    let items = (0..GROUPS).map(|value| (value, Enqueue::new().with_group(value.to_be_bytes())));
    let items = &items.collect::<Vec<_>>();
    let queue = &world.queue;
    let enqueue = |tr| async move { queue.enqueue_all_with(&tr, items).await.map(drop) };
    world.runner.run(enqueue).await.unwrap();
    let started = Arc::new(Mutex::new(Vec::new()));
    for _ in 0..5 {
        // The first handlers are quick, and the last ones wait until the worker is shutting down.
        let (open, opened) = watch::channel(false);
        let calls = Arc::new(AtomicU64::new(0));
        let called = calls.clone();
        let starts = started.clone();
        let handler = move |item: Delivery<u64>| {
            let call = called.fetch_add(1, Ordering::Relaxed);
            starts.lock().unwrap().push(*item.value());
            let mut opened = opened.clone();
            async move {
                if call >= HANDLED - HANDLERS {
                    opened.wait_for(|is_open| *is_open).await.unwrap();
                }
            }
        };
        let options = WorkerOptions::new().with_concurrency(HANDLERS as usize);
        let worker = queue.work(&world.runner, options, handler).await.unwrap();
        until(async || calls.load(Ordering::Relaxed) >= HANDLED).await;
        let mut shut_down = Box::pin(worker.shut_down(LONG));
        assert!(poll!(&mut shut_down).is_pending());
        open.send_replace(true);
        shut_down.await.unwrap();
    }
    let consumer = world.consumer().await;
    let left = values(&take_all(&consumer).await);
    let mut started = started.lock().unwrap().clone();
    started.extend(left);
    started.sort_unstable();
    assert_eq!(started, Vec::from_iter(0..GROUPS));
    world.check().await;
}

async fn a_call_that_is_dropped_with_its_answer_costs_no_token(store: TestStore) {
    let world = World::with_defaults(&store).await;
    world.limit("a", RARE).await;
    let consumer = world.consumer().await;
    let mut call = ByHand::new(consumer.dequeue_within(LONG));
    assert!(call.poll().is_none());
    world.enqueue_all_of("a", [7]).await;
    timeout(LONG, call.until_woken()).await;
    drop(call);
    assert_eq!(*next(&consumer).await.value(), 7);
    world.check().await;
}

async fn an_item_that_does_not_decode_costs_no_token(store: TestStore) {
    let world = World::with_defaults(&store).await;
    world.limit("a", RARE).await;
    // A queue of another type in the same place.
    let options = OpenOptions::default();
    let place = world.store.root.subspace(&"queue");
    let texts = Queue::<String>::open_with(&world.runner, place, Default::default(), options);
    let texts = &texts.await.unwrap();
    let enqueue = |tr| async move {
        let text = "no number".to_owned();
        texts.enqueue_with(&tr, &text, &of("a")).await.map(drop)
    };
    world.runner.run(enqueue).await.unwrap();
    let consumer = world.consumer().await;
    assert!(consumer.dequeue().await.unwrap().is_none());
    until(async || world.stats().await.delayed != 0).await;
    world.enqueue_all_of("a", [7]).await;
    assert_eq!(*next(&consumer).await.value(), 7);
    world.check().await;
}

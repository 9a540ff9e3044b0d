//! What other queues got wrong about batches, by the names of their bug reports: each case excludes one here.

use std::time::Duration;

use conformance::stores::TestStore;
use futures::future::join_all;
use hc_dequeue::{Batch, Enqueue, Settings, WorkerOptions};
use keyspace::Tx;

use super::{DONE, complete_next, counts, expect, of, then};
use crate::common::{LONG, World};

conformance::on_every_store!(
    sidekiq_3050_a_batch_without_members_is_complete_when_it_is_closed,
    sidekiq_3535_5290_6026_a_callback_that_adds_members_keeps_the_parent_waiting,
    sidekiq_6234_a_member_that_kills_its_process_ends_and_counts,
    sidekiq_6852_4361_a_member_that_comes_back_counts_once,
    breamware_69_100_no_callback_comes_before_the_adder_is_done,
    breamware_90_members_that_are_added_while_others_end_all_count,
);

async fn sidekiq_3050_a_batch_without_members_is_complete_when_it_is_closed(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let queue = &world.queue;
    let batch = &then(DONE);
    let open_and_close = |tr: Tx<_>| async move {
        let batch = queue.open_batch(&tr, batch).await?;
        queue.close_batch(&tr, &batch)
    };
    world.runner.run(open_and_close).await.unwrap();
    let consumer = world.consumer().await;
    let callback = expect(&consumer, DONE).await;
    assert_eq!(counts(&callback), [0, 0, 0]);
    assert!(consumer.dequeue().await.unwrap().is_none());
    world.check().await;
}

async fn sidekiq_3535_5290_6026_a_callback_that_adds_members_keeps_the_parent_waiting(
    store: TestStore,
) {
    let world = World::with_defaults(&store).await;
    let parent = world.open_batch(&then(2 * DONE)).await;
    let child = world.open_batch(&then(DONE).with_parent(&parent)).await;
    world.members(&child, 0..2).await;
    for batch in [&parent, &child] {
        world.close(batch).await;
    }
    let consumer = world.consumer().await;
    complete_next(&consumer, 0).await;
    complete_next(&consumer, 1).await;
    let callback = expect(&consumer, DONE).await;
    assert!(consumer.dequeue().await.unwrap().is_none());
    // It adds a member in the transaction that ends it.
    let queue = &world.queue;
    let member = &Enqueue::new().with_batch_of(&callback);
    let callback = &callback;
    let add = |tr: Tx<_>| async move {
        let _ = queue.enqueue_with(&tr, &5, member).await?;
        callback.ack(&tr).await
    };
    world.runner.run(add).await.unwrap();
    assert_eq!(world.batch(&parent).await.unwrap().pending, 1);
    complete_next(&consumer, 5).await;
    assert_eq!(counts(&expect(&consumer, 2 * DONE).await), [2, 0, 0]);
    world.check().await;
}

async fn sidekiq_6234_a_member_that_kills_its_process_ends_and_counts(store: TestStore) {
    let settings = Settings::new()
        .with_max_deaths(1)
        .with_lease(Duration::from_millis(300));
    let world = World::new(&store, settings).await;
    let batch = world.open_batch(&then(DONE)).await;
    world.members(&batch, [1]).await;
    world.close(&batch).await;
    let queue = world.queue.clone();
    let runner = world.runner.clone();
    let killed = crate::common::process(|| async move {
        let options = WorkerOptions::default();
        let consumer = queue.consumer(&runner, options).await.unwrap();
        let held = consumer.dequeue_within(LONG).await.unwrap().unwrap();
        // The process ends without a word.
        std::mem::forget(held);
        std::mem::forget(consumer);
    });
    killed.join().unwrap();
    let consumer = world.consumer().await;
    assert_eq!(counts(&expect(&consumer, DONE).await), [0, 1, 0]);
    world.check().await;
}

async fn sidekiq_6852_4361_a_member_that_comes_back_counts_once(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let batch = world.open_batch(&then(DONE)).await;
    world.members(&batch, 0..2).await;
    world.close(&batch).await;
    let consumer = world.consumer().await;
    let late = expect(&consumer, 0).await;
    consumer.shut_down(Duration::ZERO).await.unwrap();
    let consumer = world.consumer().await;
    let again = expect(&consumer, 0).await;
    assert!(world.ack(&late).await.is_err());
    world.ack(&again).await.unwrap();
    assert!(world.ack(&again).await.is_err());
    let status = world.batch(&batch).await.unwrap();
    assert_eq!((status.pending, status.counts.completed), (1, 1));
    complete_next(&consumer, 1).await;
    assert_eq!(counts(&expect(&consumer, DONE).await), [2, 0, 0]);
    world.check().await;
}

async fn breamware_69_100_no_callback_comes_before_the_adder_is_done(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let batch = world.open_batch(&then(DONE)).await;
    let consumer = world.consumer().await;
    for value in 0..3 {
        // All members so far have ended each time.
        world.members(&batch, [value]).await;
        complete_next(&consumer, value).await;
        assert!(consumer.dequeue().await.unwrap().is_none());
        assert!(world.batch(&batch).await.unwrap().is_open);
    }
    world.close(&batch).await;
    assert_eq!(counts(&expect(&consumer, DONE).await), [3, 0, 0]);
    world.check().await;
}

async fn breamware_90_members_that_are_added_while_others_end_all_count(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let parent = &world.open_batch(&Batch::new()).await;
    let batch = &world.open_batch(&then(DONE).with_parent(parent)).await;
    let consumer = &world.consumer().await;
    let world = &world;
    let member = &of(batch);
    let add_and_end = |value| async move {
        world.enqueue_ref(value, member).await;
        let delivery = consumer.dequeue_within(LONG).await.unwrap().unwrap();
        delivery.complete().await.unwrap();
    };
    join_all((0..30).map(add_and_end)).await;
    world.close(batch).await;
    assert_eq!(counts(&expect(consumer, DONE).await), [30, 0, 0]);
    world.check().await;
}

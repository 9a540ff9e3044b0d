//! Only members of a closed batch add members to it. After its end, its counts can be read as long as they are kept.

use std::time::Duration;

use conformance::stores::TestStore;
use conformance::until;
use hc_dequeue::{Batch, Enqueue, Enqueued, Error, OnRepeat, Settings};
use keyspace::Tx;

use super::{DONE, complete_next, counts, expect, of, then};
use crate::common::{LONG, World, settings};
use crate::testing::with_wall;

conformance::on_every_store!(
    a_closed_batch_takes_members_only_from_its_own_ones,
    the_callback_of_a_batch_adds_to_the_parent_that_was_closed,
    the_end_of_a_batch_is_told_while_done_items_are_kept,
    a_batch_without_a_callback_is_told_of_as_well,
    items_with_the_same_options_are_enqueued_together,
);

fn is_closed<T>(refused: &Result<T, Error>) -> bool {
    matches!(refused, Err(Error::BatchClosed { .. }))
}

async fn a_closed_batch_takes_members_only_from_its_own_ones(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let queue = &world.queue;
    let batch = &world.open_batch(&then(DONE)).await;
    world.members(batch, [1]).await;
    let once = Enqueue::new().with_dedupe("once");
    world.enqueue_ref(2, &once).await;
    world.close(batch).await;
    // Neither a new item, nor one that gets another value, nor a batch.
    assert!(is_closed(&world.enqueue_with(3, &of(batch)).await));
    let replace = once.with_on_repeat(OnRepeat::Replace).with_batch(batch);
    assert!(is_closed(&world.enqueue_with(4, &replace).await));
    let within = Batch::new().with_parent(batch);
    assert!(is_closed(&world.try_open_batch(&within).await));
    assert_eq!(world.values().await, [1, 2]);
    assert_eq!(world.batch(batch).await.unwrap().pending, 1);

    let consumer = world.consumer().await;
    let member = expect(&consumer, 1).await;
    let other = expect(&consumer, 2).await;
    // What handles no member has no batch to add to.
    let of_none = Enqueue::new().with_batch_of(&other);
    assert_eq!(of_none.batch(), None);
    world.ack(&other).await.unwrap();
    // A member adds an item, a batch, and another item in the transaction that ends it.
    let by_member = &Enqueue::new().with_batch_of(&member);
    assert_eq!(by_member.batch(), Some(batch));
    world.enqueue_ref(5, by_member).await;
    let within = &then(6).with_parent_of(&member);
    let delivery = &member;
    let end = |tr| async move {
        let tr = &tr;
        delivery.ack(tr).await?;
        let child = queue.open_batch(tr, within).await?;
        queue.close_batch(tr, &child)?;
        queue.enqueue_with(tr, &7, by_member).await.map(drop)
    };
    world.runner.run(end).await.unwrap();
    assert_eq!(world.batch(batch).await.unwrap().pending, 3);
    for value in [5, 7, 6] {
        complete_next(&consumer, value).await;
    }
    let callback = expect(&consumer, DONE).await;
    assert_eq!(counts(&callback), [4, 0, 0]);
    world.check().await;
}

async fn the_callback_of_a_batch_adds_to_the_parent_that_was_closed(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let parent = &world.open_batch(&then(DONE)).await;
    let child = world.open_batch(&then(1).with_parent(parent)).await;
    world.close(parent).await;
    world.close(&child).await;
    let consumer = world.consumer().await;
    let callback = expect(&consumer, 1).await;
    world
        .enqueue_ref(2, &Enqueue::new().with_batch_of(&callback))
        .await;
    callback.complete().await.unwrap();
    complete_next(&consumer, 2).await;
    assert_eq!(counts(&expect(&consumer, DONE).await), [2, 0, 0]);
    world.check().await;
}

async fn the_end_of_a_batch_is_told_while_done_items_are_kept(store: TestStore) {
    for delay in [Duration::ZERO, Duration::from_secs(1)] {
        let settings = settings().with_keep_done(LONG);
        let (world, wall) = with_wall(&store, settings).await;
        let world = &world;
        let options = Enqueue::new().with_delay(delay);
        let then = Batch::new().with_callback(DONE, options);
        let batch = &world.open_batch(&then).await;
        let items = world.members(batch, [1, 2]).await;
        world.close(batch).await;
        let before = world.batch(batch).await.unwrap();
        assert_eq!((before.pending, before.end), (2, None));
        let _ = world.cancel(&items[1]).await;
        let consumer = world.consumer().await;
        complete_next(&consumer, 1).await;
        world.queue.await_batch(&world.runner, batch).await.unwrap();
        let ended = world.batch(batch).await.unwrap();
        let end = ended.end.unwrap();
        assert_eq!((ended.pending, ended.is_open), (0, false));
        assert_eq!((ended.counts.completed, ended.counts.cancelled), (1, 1));
        assert_eq!((ended.opened, ended.has_callback), (before.opened, true));
        assert!(end.at >= ended.opened);
        wall.advance(delay);
        let callback = expect(&consumer, DONE).await;
        assert_eq!(end.callback, Some(callback.item_ref()));
        callback.complete().await.unwrap();
        // It is over all the same.
        assert!(matches!(
            world.enqueue_with(3, &of(batch)).await,
            Err(Error::BatchOver { .. })
        ));
        assert!(!world.cancel_batch(batch).await);
        world.check().await;
        wall.advance(LONG);
        until(async || world.count("Bd").await == 0).await;
        assert_eq!(world.batch(batch).await, None);
        consumer.shut_down(LONG).await.unwrap();
    }
}

async fn a_batch_without_a_callback_is_told_of_as_well(store: TestStore) {
    let world = World::new(&store, Settings::new().with_keep_done(LONG)).await;
    let parent = &world.open_batch(&then(DONE)).await;
    let within = || Batch::new().with_parent(parent).with_dead_letters_staying();
    let [silent, cancelled] = &[
        world.open_batch(&within()).await,
        world.open_batch(&within()).await,
    ];
    world.close(silent).await;
    assert!(world.cancel_batch(cancelled).await);
    let consumer = world.consumer().await;
    for (batch, is_cancelled) in [(silent, false), (cancelled, true)] {
        let waits = world.queue.await_batch(&world.runner, batch);
        let (ended, none) = futures::join!(waits, async {
            // A call that waits lets the session look.
            consumer.dequeue().await.unwrap()
        });
        ended.unwrap();
        assert!(none.is_none());
        let status = world.batch(batch).await.unwrap();
        assert_eq!(status.is_cancelled, is_cancelled);
        assert_eq!(
            (status.parent, status.dead_letters_stay),
            (Some(*parent), true)
        );
        assert_eq!(status.end.unwrap().callback, None);
    }
    // One that has not ended comes first, and only such batches are listed.
    assert_eq!(world.batch(parent).await.unwrap().end, None);
    let queue = &world.queue;
    let list = |tr: Tx<_>| async move { queue.batches(&tr, None, 10).await };
    assert_eq!(world.runner.run(list).await.unwrap().batches.len(), 1);
    world.check().await;
    // A row that does not decode is found.
    world.damage("Bd").await;
    let audit = queue.audit(&world.runner).await.unwrap();
    assert_eq!(audit.findings.len(), 2);
}

async fn items_with_the_same_options_are_enqueued_together(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let queue = &world.queue;
    let batch = &world.open_batch(&Batch::new()).await;
    let options = &of(batch).with_priority(3);
    let enqueue = |tr| async move { queue.enqueue_all_alike(&tr, &[1, 2, 3], options).await };
    let (enqueued, commit) = world.runner.run_committed(enqueue).await.unwrap();
    let stamp = commit.versionstamp.unwrap();
    for (enqueued, value) in enqueued.into_iter().zip(1..) {
        let Enqueued::Staged(staged) = enqueued else {
            panic!("{enqueued:?}");
        };
        let status = world.status(&staged.at(stamp)).await.unwrap();
        assert_eq!((status.value, status.priority), (Ok(value), 3));
        assert_eq!(status.batch, Some(*batch));
    }
    // A dedupe id is that of one item.
    let once = &Enqueue::new().with_dedupe("once");
    let refuse = |tr| async move { queue.enqueue_all_alike(&tr, &[4, 5], once).await };
    let refused = world.runner.run(refuse).await;
    assert!(matches!(refused, Err(Error::EnqueueOptions { .. })));
    assert_eq!(world.values().await, [1, 2, 3]);
}

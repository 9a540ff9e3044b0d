//! Handlers that change their own items in the transactions in which they handle them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::{LONG, Queue, World};
use conformance::plant::{Plant, Planted};
use conformance::stores::TestStore;
use futures::future::BoxFuture;
use hc_dequeue::{
    Backoff, Cancelled, Delivery, End, Enqueue, Enqueued, Error, ItemRef, OnRepeat, Outcome, Place,
    Replaced, Settings, WorkerOptions,
};
use keyspace::{Database, Isolation, MutationOp, OwnedTransaction, Runner, Transaction, Tx};

conformance::on_every_store!(
    an_item_that_its_handler_cancels_ends_as_cancelled_with_all_effects,
    an_item_that_its_handler_acknowledges_is_completed_with_all_effects,
    what_a_handler_cancels_and_does_not_complete_is_not_cancelled,
    a_cancellation_by_another_transaction_lets_nothing_commit,
    an_attempt_that_did_not_commit_cancels_nothing,
    a_handler_may_replace_its_own_item_by_its_dedupe_id,
    other_changes_of_the_own_item_have_no_effect,
    a_handler_that_releases_its_own_item_commits_nothing,
);

type Item = Delivery<u64>;
type Tr<D> = Tx<<D as Database>::Transaction>;
type Handled = Result<Outcome, Error>;

/// Settings with which items that are done stay readable, and one attempt.
fn kept() -> Settings {
    Settings::new()
        .with_keep_done(LONG * 60)
        .with_dedupe_retention(Duration::ZERO)
        .with_max_attempts(1)
}

fn quick() -> WorkerOptions {
    let soon = Duration::from_millis(1);
    WorkerOptions::new().with_backoff(Backoff::new(soon, soon))
}

async fn effects(world: &World) -> u64 {
    let key = &world.store.root.pack(&"effects");
    let read = |tr: Tx<_>| async move { tr.get(key, Isolation::Snapshot).await };
    let sum = world.runner.run(read).await.unwrap();
    sum.map_or(0, |sum| u64::from_le_bytes((&*sum).try_into().unwrap()))
}

/// Handles an item with a handler that first stages an effect, until nothing is left to handle. Returns the item.
async fn handle<D: Database>(
    world: &World,
    runner: &Runner<D>,
    handler: impl Fn(Queue, Tr<D>, Item) -> BoxFuture<'static, Handled> + Send + Sync + 'static,
) -> ItemRef {
    let item = world
        .enqueue_ref(7, &Enqueue::new().with_dedupe("one"))
        .await;
    let key = world.store.root.pack(&"effects");
    let queue = world.queue.clone();
    let process = move |tr: Tr<D>, item: Item| {
        tr.atomic(MutationOp::Add, &key, &1_u64.to_le_bytes());
        handler(queue.clone(), tr, item)
    };
    let worker = world.queue.process(runner, quick(), process).await.unwrap();
    world.queue.wait_idle(&world.runner).await.unwrap();
    worker.shut_down(LONG).await.unwrap();
    world.check().await;
    item
}

async fn end(world: &World, item: &ItemRef) -> Option<End> {
    match world.place(item).await {
        Some(Place::Done { end, .. }) => Some(end),
        _ => None,
    }
}

async fn an_item_that_its_handler_cancels_ends_as_cancelled_with_all_effects(store: TestStore) {
    let world = World::new(&store, kept()).await;
    let item = handle(&world, &world.runner, |queue, tr, item| {
        Box::pin(async move {
            item.set_result("unseen")?;
            let cancelled = queue.cancel(&tr, &item.item_ref()).await?;
            assert_eq!(cancelled, Cancelled::Requested);
            Ok(Outcome::Done)
        })
    })
    .await;
    assert_eq!(end(&world, &item).await, Some(End::Cancelled));
    assert_eq!(effects(&world).await, 1);
    let status = world.status(&item).await.unwrap();
    assert_eq!((status.attempts, &*status.result), (0, &b""[..]));
    let stats = world.stats().await;
    assert_eq!((stats.cancelled, stats.completed, stats.dead), (1, 0, 0));
    // Its dedupe id is free.
    assert_eq!(world.count("k").await + world.count("n").await, 0);
}

async fn an_item_that_its_handler_acknowledges_is_completed_with_all_effects(store: TestStore) {
    let world = World::new(&store, kept()).await;
    let calls = Arc::new(AtomicUsize::new(0));
    let item = handle(&world, &world.runner, move |_, tr, item| {
        let calls = calls.clone();
        Box::pin(async move {
            item.ack(&tr).await?;
            match calls.fetch_add(1, Ordering::Relaxed) {
                0 => Err(keyspace::Error::from(keyspace::Code::NOT_COMMITTED).into()),
                _ => Ok(Outcome::Done),
            }
        })
    })
    .await;
    assert_eq!(end(&world, &item).await, Some(End::Completed));
    assert_eq!(effects(&world).await, 1);
    assert_eq!(world.stats().await.completed, 1);
}

async fn what_a_handler_cancels_and_does_not_complete_is_not_cancelled(store: TestStore) {
    let world = World::new(&store, kept().with_max_attempts(2)).await;
    let calls = Arc::new(AtomicUsize::new(0));
    let item = handle(&world, &world.runner, move |queue, tr, item| {
        let calls = calls.clone();
        Box::pin(async move {
            match calls.fetch_add(1, Ordering::Relaxed) {
                0 => {
                    let _ = queue.cancel(&tr, &item.item_ref()).await?;
                    Ok(Outcome::retry("not yet"))
                }
                1 => {
                    assert_eq!(item.attempt(), 2);
                    let _ = queue.cancel(&tr, &item.item_ref()).await?;
                    Ok(Outcome::snooze(Duration::from_millis(1)))
                }
                _ => Ok(Outcome::Done),
            }
        })
    })
    .await;
    assert_eq!(end(&world, &item).await, Some(End::Completed));
    assert_eq!(effects(&world).await, 1);
}

/// Lets another transaction cancel the item after the handler has cancelled it. Returns the number of effects.
async fn cancelled_twice<D: Database>(world: &World, runner: &Runner<D>) -> u64 {
    let other = world.runner.clone();
    let queue = world.queue.clone();
    let item = handle(world, runner, move |own, tr, item| {
        let other = other.clone();
        let queue = queue.clone();
        Box::pin(async move {
            let item = &item.item_ref();
            let _ = own.cancel(&tr, item).await?;
            let queue = &queue;
            let cancel = |tr| async move { queue.cancel(&tr, item).await.map(drop) };
            other.run(cancel).await?;
            Ok(Outcome::Done)
        })
    })
    .await;
    assert_eq!(end(world, &item).await, Some(End::Cancelled));
    effects(world).await
}

async fn a_cancellation_by_another_transaction_lets_nothing_commit(store: TestStore) {
    let world = World::new(&store, kept()).await;
    assert_eq!(cancelled_twice(&world, &world.runner).await, 0);
    assert_eq!(world.stats().await.cancelled, 1);
}

/// A handler cancels its item, and another transaction does so after the check and before the commit.
async fn cancels_late(world: &World, db: impl Database) -> bool {
    let item = world.enqueue_ref(7, &Enqueue::new()).await;
    let consumer = world.consumer().await;
    let delivery = consumer.dequeue_within(LONG).await.unwrap().unwrap();
    let mut tr = db.begin().unwrap();
    assert_eq!(
        world.queue.cancel(&tr, &item).await.unwrap(),
        Cancelled::Requested
    );
    assert!(matches!(
        delivery.ack(&tr).await,
        Err(Error::Cancelled { .. })
    ));
    let _ = world.cancel(&item).await;
    tr.commit().await.is_ok()
}

#[tokio::test]
async fn without_read_conflicts_such_a_transaction_would_commit() {
    let store = TestStore::memory();
    let world = World::new(&store, kept()).await;
    assert!(!cancels_late(&world, world.store.db.clone()).await);
    let planted = Planted::new(world.store.db.clone(), Plant::NoReadConflicts);
    assert!(cancels_late(&world, planted).await);
}

async fn an_attempt_that_did_not_commit_cancels_nothing(store: TestStore) {
    let world = World::new(&store, kept()).await;
    let db = world.store.db.clone();
    let calls = Arc::new(AtomicUsize::new(0));
    let key = world.store.root.pack(&"read");
    let item = handle(&world, &world.runner, move |queue, tr, item| {
        let db = db.clone();
        let key = key.clone();
        let calls = calls.clone();
        Box::pin(async move {
            tr.get(&key, Isolation::Serializable).await?;
            if calls.fetch_add(1, Ordering::Relaxed) == 0 {
                let _ = queue.cancel(&tr, &item.item_ref()).await?;
                let mut other = db.begin()?;
                other.set(&key, b"");
                other.commit().await?;
            }
            Ok(Outcome::Done)
        })
    })
    .await;
    assert_eq!(end(&world, &item).await, Some(End::Completed));
    assert_eq!(effects(&world).await, 1);
    assert_eq!(world.stats().await.cancelled, 0);
}

async fn a_handler_may_replace_its_own_item_by_its_dedupe_id(store: TestStore) {
    for mode in [OnRepeat::Replace, OnRepeat::Debounce, OnRepeat::Keep] {
        let world = World::new(&store, kept()).await;
        let item = handle(&world, &world.runner, move |queue, tr, item| {
            Box::pin(async move {
                if *item.value() == 7 {
                    let again = Enqueue::new().with_dedupe("one").with_on_repeat(mode);
                    let enqueued = queue.enqueue_with(&tr, &8, &again).await?;
                    let is_kept = enqueued == Enqueued::Repeated;
                    assert_eq!(is_kept, mode == OnRepeat::Keep);
                }
                Ok(Outcome::Done)
            })
        })
        .await;
        assert_eq!(end(&world, &item).await, Some(End::Completed));
        let handled = if mode == OnRepeat::Keep { 1 } else { 2 };
        assert_eq!(effects(&world).await, handled, "{mode:?}");
        assert_eq!(world.stats().await.completed, handled);
        assert_eq!(world.count("k").await + world.count("n").await, 0);
    }
}

async fn other_changes_of_the_own_item_have_no_effect(store: TestStore) {
    let world = World::new(&store, kept()).await;
    let item = handle(&world, &world.runner, |queue, tr, item| {
        Box::pin(async move {
            let item = &item.item_ref();
            assert!(!queue.expedite(&tr, item).await?);
            assert!(!queue.redrive(&tr, item).await?);
            assert!(!queue.purge(&tr, item).await?);
            assert_eq!(queue.replace(&tr, item, &8).await?, Replaced::IsHeld);
            queue.configure(&tr, &kept().with_max_attempts(9)).await?;
            Ok(Outcome::Done)
        })
    })
    .await;
    assert_eq!(end(&world, &item).await, Some(End::Completed));
    assert_eq!(effects(&world).await, 1);
}

async fn a_handler_that_releases_its_own_item_commits_nothing(store: TestStore) {
    let world = World::new(&store, kept()).await;
    let calls = Arc::new(AtomicUsize::new(0));
    let item = handle(&world, &world.runner, move |_, _, item| {
        let calls = calls.clone();
        Box::pin(async move {
            if calls.fetch_add(1, Ordering::Relaxed) == 0 {
                item.release().await?;
            }
            Ok(Outcome::Done)
        })
    })
    .await;
    assert_eq!(end(&world, &item).await, Some(End::Completed));
    assert_eq!(effects(&world).await, 1);
    assert_eq!(world.status(&item).await.unwrap().attempts, 0);
}

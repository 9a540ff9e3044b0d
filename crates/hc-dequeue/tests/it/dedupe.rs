//! When a dedupe id is refused, and what frees it.

use std::time::Duration;

use conformance::plant::{Plant, Planted};
use conformance::stores::TestStore;
use conformance::until;
use hc_dequeue::{Cancelled, Consumer, Enqueue, Enqueued, Error, ItemRef, OnRepeat, Settings};
use keyspace::{Code, Database, OwnedTransaction, Runner, Transaction};

use crate::common::{LONG, Queue, Wall, World, open};

conformance::on_every_store!(
    what_is_cancelled_purged_or_cleared_frees_its_id_although_ids_are_retained,
    a_held_item_that_is_cancelled_leaves_its_id_to_the_next_one,
    an_id_is_released_only_while_it_is_retained,
    a_retention_that_is_changed_applies_to_ids_that_are_already_retained,
    sessions_remove_what_a_shorter_retention_no_longer_refuses,
    a_release_and_an_enqueue_with_the_id_at_the_same_time_conflict,
    a_full_queue_leaves_the_id_of_a_held_item,
    a_time_of_completion_that_does_not_decode_can_be_released,
);

fn once() -> Enqueue {
    Enqueue::new().with_dedupe("once")
}

fn retaining() -> Settings {
    Settings::new()
        .with_dedupe_retention(LONG)
        .with_keep_done(LONG)
}

impl World {
    async fn is_refused(&self) -> bool {
        self.enqueue_with(0, &once()).await.unwrap() == Enqueued::Repeated
    }

    async fn release(&self) -> bool {
        let queue = &self.queue;
        let release = |tr| async move { queue.release_dedupe(&tr, b"once").await };
        self.runner.run(release).await.unwrap()
    }

    async fn clear(&self) -> u64 {
        self.queue.clear(&self.runner).await.unwrap().removed
    }

    async fn set(&self, settings: &Settings) {
        let queue = &self.queue;
        let configure = |tr| async move { queue.configure(&tr, settings).await };
        self.runner.run(configure).await.unwrap();
    }

    /// Makes the first item a dead letter.
    async fn discard(&self, consumer: &Consumer<u64>) {
        let delivery = consumer.dequeue_within(LONG).await.unwrap().unwrap();
        delivery.discard("no good").await.unwrap();
    }

    async fn complete(&self, consumer: &Consumer<u64>) {
        assert!(consumer.pop_within(LONG).await.unwrap().is_some());
    }

    async fn purge_item(&self, item: &ItemRef) -> bool {
        let queue = &self.queue;
        let purge = |tr| async move { queue.purge(&tr, item).await };
        self.runner.run(purge).await.unwrap()
    }
}

async fn what_is_cancelled_purged_or_cleared_frees_its_id_although_ids_are_retained(
    store: TestStore,
) {
    let world = World::new(&store, retaining()).await;
    let consumer = world.consumer().await;
    let later = once().with_delay(LONG);
    for way in [
        "cancel queued",
        "cancel delayed",
        "cancel dead",
        "purge",
        "clear queued",
        "clear delayed",
    ] {
        let options = if way.ends_with("delayed") {
            &later
        } else {
            &once()
        };
        let item = world.enqueue_ref(1, options).await;
        if matches!(way, "cancel dead" | "purge") {
            world.discard(&consumer).await;
        }
        assert!(world.is_refused().await, "{way}");
        match way {
            "purge" => assert!(world.purge_item(&item).await),
            "clear queued" | "clear delayed" => assert_eq!(world.clear().await, 1),
            _ => assert_eq!(world.cancel(&item).await, Cancelled::Removed),
        }
        assert!(!world.release().await, "{way}");
        assert!(!world.is_refused().await, "{way}");
        assert_eq!(world.clear().await, 1);
        world.check().await;
    }
    assert_eq!(world.count("y").await, 0);
}

async fn a_held_item_that_is_cancelled_leaves_its_id_to_the_next_one(store: TestStore) {
    let world = World::new(&store, retaining()).await;
    let consumer = world.consumer().await;
    let first = world.enqueue_ref(1, &once()).await;
    let held = consumer.dequeue_within(LONG).await.unwrap().unwrap();
    assert!(world.is_refused().await);
    // In one transaction: the id is free as soon as the cancellation is staged.
    let queue = &world.queue;
    let again = |tr| async move {
        assert_eq!(queue.cancel(&tr, &first).await?, Cancelled::Requested);
        queue.enqueue_with(&tr, &2, &once()).await
    };
    let (again, commit) = world.runner.run_committed(again).await.unwrap();
    let Enqueued::Staged(second) = again else {
        panic!("{again:?}");
    };
    let second = second.at(commit.versionstamp.unwrap());
    world.check().await;
    // The first item no longer has the id when its session lets go of it.
    let refused = world.ack(&held).await.unwrap_err();
    assert!(matches!(refused, Error::Cancelled { .. }), "{refused}");
    held.release().await.unwrap();
    let find = |tr| async move { queue.find_deduped(&tr, b"once").await };
    assert_eq!(world.runner.run(find).await.unwrap(), Some(second));
    assert!(world.is_refused().await);
    world.complete(&consumer).await;
    assert!(world.is_refused().await, "the second item was completed");
    assert_eq!(world.stats().await.cancelled, 1);
    world.check().await;
}

async fn an_id_is_released_only_while_it_is_retained(store: TestStore) {
    let world = World::new(&store, retaining()).await;
    let consumer = world.consumer().await;
    assert!(!world.release().await, "the id was never used");
    let delayed = world.enqueue_ref(1, &once().with_delay(LONG)).await;
    assert!(!world.release().await, "an item with the id is delayed");
    assert_eq!(world.cancel(&delayed).await, Cancelled::Removed);
    world.enqueue_ref(1, &once()).await;
    assert!(!world.release().await, "an item with the id is queued");
    let held = consumer.dequeue_within(LONG).await.unwrap().unwrap();
    assert!(!world.release().await, "an item with the id is held");
    let item = held.item_ref();
    held.discard("no good").await.unwrap();
    assert!(!world.release().await, "an item with the id is dead");
    assert!(world.is_refused().await);
    assert!(world.purge_item(&item).await);
    world.enqueue_ref(1, &once()).await;
    world.complete(&consumer).await;
    assert!(world.is_refused().await);
    assert!(world.release().await);
    assert!(!world.release().await);
    // The id can be used and retained again.
    world.enqueue_ref(1, &once()).await;
    world.complete(&consumer).await;
    assert!(world.is_refused().await);
    world.check().await;
    let queue = &world.queue;
    for id in [vec![], vec![0; 256]] {
        let id = &id;
        let release = |tr| async move { queue.release_dedupe(&tr, id).await };
        let refused = world.runner.run(release).await.unwrap_err();
        assert!(matches!(refused, Error::DedupeId { .. }), "{refused}");
    }
}

async fn a_retention_that_is_changed_applies_to_ids_that_are_already_retained(store: TestStore) {
    let world = World::new(&store, retaining()).await;
    let consumer = world.consumer().await;
    world.enqueue_ref(1, &once()).await;
    world.complete(&consumer).await;
    let hour = Duration::from_secs(3600);
    let wall = Wall::ahead(hour);
    let later = World {
        store: world.store.clone(),
        runner: wall.runner(&world.store),
        queue: world.queue.clone(),
    };
    let queue = open(&world.store, &later.runner, retaining()).await;
    let later = World {
        queue: queue.unwrap(),
        ..later
    };
    let is_refused = async |retention| {
        world
            .set(&retaining().with_dedupe_retention(retention))
            .await;
        // Dropped without a commit, so that the id stays as it is.
        let tr = later.store.db.begin().unwrap();
        let enqueued = later.queue.enqueue_with(&tr, &0, &once()).await;
        enqueued.unwrap() == Enqueued::Repeated
    };
    // An hour has passed since the completion, by the clock of the process that asks.
    assert!(!is_refused(LONG).await);
    assert!(is_refused(2 * hour).await);
    assert!(!is_refused(hour / 2).await);
    assert!(is_refused(Duration::MAX).await);
    assert!(!is_refused(Duration::ZERO).await);
}

async fn sessions_remove_what_a_shorter_retention_no_longer_refuses(store: TestStore) {
    let settings = retaining().with_lease(Duration::from_millis(60));
    let world = World::new(&store, settings.clone()).await;
    let consumer = world.consumer().await;
    world.enqueue_ref(1, &once()).await;
    world.complete(&consumer).await;
    assert_eq!(world.count("y").await, 1);
    world
        .set(&settings.with_dedupe_retention(Duration::ZERO))
        .await;
    until(async || world.count("y").await == 0).await;
    assert!(!world.is_refused().await);
}

/// Lets a transaction that is refused the id write something else, and another one release the id first. Returns
/// whether the refused transaction fails.
async fn refusal_conflicts<D: Database>(db: D, runner: &Runner<D>, queue: &Queue) -> bool {
    let mut release = db.begin().unwrap();
    let mut refused = db.begin().unwrap();
    assert!(queue.release_dedupe(&release, b"once").await.unwrap());
    let repeated = queue.enqueue_with(&refused, &2, &once()).await.unwrap();
    assert_eq!(repeated, Enqueued::Repeated);
    refused.set(&queue.subspace().pack(&"i"), b"");
    refused.clear(&queue.subspace().pack(&"i"));
    release.commit().await.unwrap();
    let committed = refused.commit().await;
    let again = |tr| async move { queue.enqueue_with(&tr, &2, &once()).await };
    assert_ne!(runner.run(again).await.unwrap(), Enqueued::Repeated);
    match committed {
        Ok(_) => false,
        Err(error) => {
            assert_eq!(error.code(), Some(Code::NOT_COMMITTED));
            true
        }
    }
}

async fn a_release_and_an_enqueue_with_the_id_at_the_same_time_conflict(store: TestStore) {
    let world = World::new(&store, retaining()).await;
    let consumer = world.consumer().await;
    world.enqueue_ref(1, &once()).await;
    world.complete(&consumer).await;
    let db = world.store.db.clone();
    assert!(refusal_conflicts(db, &world.runner, &world.queue).await);

    // A store whose reads do not conflict lets both commit.
    let world = World::new(&store, retaining()).await;
    let consumer = world.consumer().await;
    world.enqueue_ref(1, &once()).await;
    world.complete(&consumer).await;
    let planted = Planted::new(world.store.db.clone(), Plant::NoReadConflicts);
    let runner = world.store.runner_on(planted.clone());
    assert!(!refusal_conflicts(planted, &runner, &world.queue).await);
}

async fn a_full_queue_leaves_the_id_of_a_held_item(store: TestStore) {
    let world = World::new(&store, Settings::new()).await;
    let consumer = world.consumer().await;
    let _ = world.enqueue_with(1, &once()).await.unwrap();
    let held = consumer.dequeue_within(LONG).await.unwrap().unwrap();
    world.enqueue([2]).await;
    let replace = once().with_on_repeat(OnRepeat::Replace).with_max_depth(1);
    let mut tr = world.store.db.begin().unwrap();
    let refused = world.queue.enqueue_with(&tr, &3, &replace).await;
    assert!(matches!(refused, Err(Error::Full { depth: 1, .. })));
    // A caller may go on without the item.
    tr.set(&world.store.root.pack(&"another row"), b"");
    tr.commit().await.unwrap();
    assert!(world.is_refused().await);
    held.complete().await.unwrap();
    assert!(!world.is_refused().await);
    consumer.shut_down(LONG).await.unwrap();
    world.check().await;
}

async fn a_time_of_completion_that_does_not_decode_can_be_released(store: TestStore) {
    let world = World::new(&store, retaining()).await;
    let row = world.key("y").pack(&&b"once"[..]);
    world.write(&row, Some(b"1")).await;
    let refused = world.enqueue_with(1, &once()).await.unwrap_err();
    assert_eq!(keyspace::error::corrupt_key(&refused), Some(&row[..]));
    assert!(world.release().await);
    assert!(!world.release().await);
    assert!(!world.is_refused().await);
    world.check().await;
}

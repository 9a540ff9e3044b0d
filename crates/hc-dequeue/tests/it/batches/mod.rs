//! Batches: the callback comes once, when all members have ended.

mod damage;
mod dedupe;
mod ended;
mod members;
mod prior_art;

use std::time::Duration;

use conformance::stores::TestStore;
use futures::future::join_all;
use hc_dequeue::testing::drain;
use hc_dequeue::{
    Batch, BatchCounts, BatchRef, BatchStatus, Consumer, Delivery, Enqueue, Error, ItemRef,
    OnRepeat, Place, Schedule, Settings, WorkerOptions,
};
use keyspace::Tx;

use crate::common::{LONG, World};

conformance::on_every_store!(
    the_callback_comes_once_with_the_counts_of_all_members,
    members_are_added_in_many_transactions_and_by_other_members,
    a_parent_waits_for_the_callbacks_of_its_batches_and_for_what_they_add,
    a_batch_without_a_callback_ends_and_counts_in_its_parent,
    dead_letters_leave_their_batch_or_stay_in_it,
    a_cancelled_batch_takes_no_members_and_has_no_callback,
    a_popped_member_ends_its_batch,
    a_callback_is_enqueued_with_its_options,
    what_cannot_be_done_is_refused_before_anything_is_staged,
    a_batch_shows_its_state_until_it_is_complete,
    a_drained_queue_has_handled_the_callbacks,
);

/// The value of callbacks.
const DONE: u64 = 1_000;

fn of(batch: &BatchRef) -> Enqueue {
    Enqueue::new().with_batch(batch)
}

fn then(value: u64) -> Batch<u64> {
    Batch::new().with_callback(value, Enqueue::new())
}

impl World {
    async fn try_open_batch(&self, batch: &Batch<u64>) -> Result<BatchRef, Error> {
        let queue = &self.queue;
        let open = |tr| async move { queue.open_batch(&tr, batch).await };
        self.runner.run(open).await
    }

    async fn open_batch(&self, batch: &Batch<u64>) -> BatchRef {
        self.try_open_batch(batch).await.unwrap()
    }

    async fn close(&self, batch: &BatchRef) {
        let queue = &self.queue;
        let close = |tr: Tx<_>| async move { queue.close_batch(&tr, batch) };
        self.runner.run(close).await.unwrap();
    }

    async fn cancel_batch(&self, batch: &BatchRef) -> bool {
        let queue = &self.queue;
        let cancel = |tr| async move { queue.cancel_batch(&tr, batch).await };
        self.runner.run(cancel).await.unwrap()
    }

    async fn batch(&self, batch: &BatchRef) -> Option<BatchStatus> {
        let queue = &self.queue;
        let read = |tr| async move { queue.batch_status(&tr, batch).await };
        self.runner.run(read).await.unwrap()
    }

    async fn members(
        &self,
        batch: &BatchRef,
        values: impl IntoIterator<Item = u64>,
    ) -> Vec<ItemRef> {
        let options = &of(batch);
        let mut members = Vec::new();
        for value in values {
            members.push(self.enqueue_ref(value, options).await);
        }
        members
    }
}

/// Returns the next item, which must have this value.
async fn expect(consumer: &Consumer<u64>, value: u64) -> Delivery<u64> {
    let delivery = consumer.dequeue_within(LONG).await.unwrap().unwrap();
    assert_eq!(*delivery.value(), value);
    delivery
}

async fn complete_next(consumer: &Consumer<u64>, value: u64) {
    expect(consumer, value).await.complete().await.unwrap();
}

fn counts(delivery: &Delivery<u64>) -> [u64; 3] {
    let BatchCounts {
        completed,
        dead,
        cancelled,
        ..
    } = delivery.batch_counts().unwrap();
    [completed, dead, cancelled]
}

async fn the_callback_comes_once_with_the_counts_of_all_members(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let batch = world.open_batch(&then(DONE)).await;
    let items = world.members(&batch, 0..5).await;
    world.close(&batch).await;
    world.check().await;
    let consumer = world.consumer().await;
    complete_next(&consumer, 0).await;
    world.ack(&expect(&consumer, 1).await).await.unwrap();
    let third = expect(&consumer, 2).await;
    assert_eq!(third.batch(), Some(batch));
    assert_eq!(third.batch_counts(), None);
    third.discard("no").await.unwrap();
    let _ = world.cancel(&items[3]).await;
    assert!(world.batch(&batch).await.is_some());
    let last = expect(&consumer, 4).await;
    let failed = last.item_ref();
    // A failure does not end a member.
    last.retry_after(Duration::from_millis(1), "later")
        .await
        .unwrap();
    let again = expect(&consumer, 4).await;
    assert_eq!(again.item_ref(), failed);
    again.complete().await.unwrap();
    let callback = expect(&consumer, DONE).await;
    assert_eq!(counts(&callback), [3, 1, 1]);
    assert_eq!(callback.batch(), None);
    assert_eq!(world.batch(&batch).await, None);
    // A redrive does not bring a member back that has left.
    let queue = &world.queue;
    let dead = &items[2];
    let redrive = |tr| async move { queue.redrive(&tr, dead).await };
    assert!(world.runner.run(redrive).await.unwrap());
    world.close(&batch).await;
    callback.complete().await.unwrap();
    complete_next(&consumer, 2).await;
    assert!(consumer.dequeue().await.unwrap().is_none());
    world.check().await;
    assert_eq!(world.count("B").await, 0);
}

async fn members_are_added_in_many_transactions_and_by_other_members(store: TestStore) {
    let world = &World::with_defaults(&store).await;
    let batch = &world.open_batch(&then(DONE)).await;
    let add = |value| async move { world.members(batch, [value]).await };
    join_all((0..20).map(add)).await;
    world.close(batch).await;
    let queue = &world.queue;
    let runner = &world.runner;
    let (seen, values) = std::sync::mpsc::channel();
    let worker_queue = queue.clone();
    let options = WorkerOptions::new().with_concurrency(8);
    let handler = move |tr: Tx<_>, item: Delivery<u64>| {
        let queue = worker_queue.clone();
        let seen = seen.clone();
        async move {
            let value = *item.value();
            // Also in the transaction that ends the member.
            if value < DONE && value % 100 < 80 {
                let next = value + 20;
                let member = Enqueue::new().with_batch_of(&item);
                let _ = queue.enqueue_with(&tr, &next, &member).await?;
            }
            if let Some(counts) = item.batch_counts() {
                let _ = seen.send(counts.completed);
            }
            Ok::<_, Error>(())
        }
    };
    let worker = queue.process(runner, options, handler).await.unwrap();
    queue.await_batch(runner, batch).await.unwrap();
    queue.wait_idle(runner).await.unwrap();
    worker.shut_down(LONG).await.unwrap();
    let seen: Vec<_> = values.try_iter().collect();
    assert!(seen.iter().all(|count| *count == 100), "{seen:?}");
    assert!(!seen.is_empty());
    assert_eq!(world.stats().await.completed, 101);
    world.check().await;
}

async fn a_parent_waits_for_the_callbacks_of_its_batches_and_for_what_they_add(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let top = world.open_batch(&then(3 * DONE)).await;
    let middle = world.open_batch(&then(2 * DONE).with_parent(&top)).await;
    let bottom = world.open_batch(&then(DONE).with_parent(&middle)).await;
    for batch in [&top, &middle, &bottom] {
        world.close(batch).await;
    }
    world.check().await;
    let consumer = world.consumer().await;
    let first = expect(&consumer, DONE).await;
    assert_eq!(first.batch(), Some(middle));
    assert_eq!(counts(&first), [0, 0, 0]);
    let by_first = Enqueue::new().with_batch_of(&first);
    world.enqueue_ref(7, &by_first).await;
    first.complete().await.unwrap();
    world.check().await;
    let added = expect(&consumer, 7).await;
    assert!(consumer.dequeue().await.unwrap().is_none());
    added.complete().await.unwrap();
    let second = expect(&consumer, 2 * DONE).await;
    assert_eq!(counts(&second), [2, 0, 0]);
    assert!(consumer.dequeue().await.unwrap().is_none());
    assert_eq!(world.batch(&top).await.unwrap().pending, 1);
    second.complete().await.unwrap();
    let last = expect(&consumer, 3 * DONE).await;
    assert_eq!(counts(&last), [1, 0, 0]);
    last.complete().await.unwrap();
    assert_eq!(world.count("B").await + world.count("Bs").await, 0);
    world.check().await;
}

async fn a_batch_without_a_callback_ends_and_counts_in_its_parent(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let top = world.open_batch(&then(DONE)).await;
    let silent = Batch::new().with_parent(&top);
    let batches = [
        world.open_batch(&silent).await,
        world.open_batch(&silent).await,
        world.open_batch(&then(1).with_parent(&top)).await,
        // These have no members, and count as none.
        world.open_batch(&silent).await,
        world.open_batch(&silent).await,
    ];
    world
        .close(
            &world
                .open_batch(&Batch::new().with_parent(&batches[4]))
                .await,
        )
        .await;
    world.members(&batches[0], [5]).await;
    for batch in [&batches[0], &batches[3], &batches[4]] {
        world.close(batch).await;
    }
    // An open batch is complete when it was cancelled and no member is left.
    assert!(world.cancel_batch(&batches[1]).await);
    assert!(world.cancel_batch(&batches[2]).await);
    world.close(&top).await;
    let consumer = world.consumer().await;
    complete_next(&consumer, 5).await;
    assert_eq!(counts(&expect(&consumer, DONE).await), [1, 0, 2]);
    world.check().await;
}

async fn dead_letters_leave_their_batch_or_stay_in_it(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let batch = world
        .open_batch(&then(DONE).with_dead_letters_staying())
        .await;
    let items = world.members(&batch, 0..3).await;
    world.close(&batch).await;
    let consumer = world.consumer().await;
    for value in 0..3 {
        expect(&consumer, value).await.discard("no").await.unwrap();
    }
    world.check().await;
    let status = world.batch(&batch).await.unwrap();
    assert_eq!((status.pending, status.counts.dead), (3, 3));
    let queue = &world.queue;
    let [first, second, third] = &items[..] else {
        panic!("three items");
    };
    let change = |tr: Tx<_>| async move {
        assert!(queue.redrive(&tr, first).await?);
        assert!(queue.purge(&tr, second).await?);
        queue.cancel(&tr, third).await.map(drop)
    };
    world.runner.run(change).await.unwrap();
    let status = world.batch(&batch).await.unwrap();
    assert_eq!((status.pending, status.counts.dead), (1, 0));
    complete_next(&consumer, 0).await;
    assert_eq!(counts(&expect(&consumer, DONE).await), [1, 0, 2]);
    world.check().await;
}

async fn a_cancelled_batch_takes_no_members_and_has_no_callback(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let batch = world.open_batch(&then(DONE)).await;
    world.members(&batch, 0..2).await;
    assert!(world.cancel_batch(&batch).await);
    assert!(world.cancel_batch(&batch).await);
    let refused = world.enqueue_with(9, &of(&batch)).await;
    assert!(matches!(refused, Err(Error::BatchOver { batch: over }) if over == batch));
    assert!(world.batch(&batch).await.unwrap().is_cancelled);
    let consumer = world.consumer().await;
    complete_next(&consumer, 0).await;
    complete_next(&consumer, 1).await;
    world
        .queue
        .await_batch(&world.runner, &batch)
        .await
        .unwrap();
    assert!(!world.cancel_batch(&batch).await);
    assert!(consumer.dequeue().await.unwrap().is_none());
    world.check().await;
}

async fn a_popped_member_ends_its_batch(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let batch = world.open_batch(&then(DONE)).await;
    world.members(&batch, 0..2).await;
    world.close(&batch).await;
    let consumer = world.consumer().await;
    for value in [0, 1, DONE] {
        let popped = consumer.pop_within(LONG).await.unwrap().unwrap();
        assert_eq!(popped.value, value);
    }
    // Items that end without being held end batches, too.
    let batch = world.open_batch(&then(DONE)).await;
    world.members(&batch, 0..2).await;
    world.close(&batch).await;
    assert_eq!(world.queue.clear(&world.runner).await.unwrap().removed, 2);
    assert_eq!(counts(&expect(&consumer, DONE).await), [0, 0, 2]);
    world.check().await;
}

async fn a_callback_is_enqueued_with_its_options(store: TestStore) {
    let settings = Settings::new().with_keep_done(LONG);
    let world = World::new(&store, settings).await;
    let options = Enqueue::new()
        .with_group("acme")
        .with_priority(3)
        .with_max_attempts(1)
        .with_delay(Duration::from_millis(5));
    let batch = world
        .open_batch(&Batch::new().with_callback(DONE, options))
        .await;
    world.close(&batch).await;
    let consumer = world.consumer().await;
    let callback = expect(&consumer, DONE).await;
    assert_eq!(callback.group().map(|group| &group[..]), Some(&b"acme"[..]));
    assert_eq!(callback.priority(), 3);
    let item = callback.item_ref();
    callback.nack().await.unwrap();
    assert_eq!(world.place(&item).await, Some(Place::Dead));
    // Far in the future.
    let options = Enqueue::new().with_delay(LONG);
    let batch = world
        .open_batch(&Batch::new().with_callback(DONE, options))
        .await;
    let [member] = &world.members(&batch, [1]).await[..] else {
        panic!("one item");
    };
    world.close(&batch).await;
    complete_next(&consumer, 1).await;
    world
        .queue
        .await_batch(&world.runner, &batch)
        .await
        .unwrap();
    assert_eq!(world.stats().await.delayed, 1);
    assert_eq!(world.status(member).await.unwrap().batch, Some(batch));
    world.check().await;
}

async fn what_cannot_be_done_is_refused_before_anything_is_staged(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let foreign = World::with_defaults(&store).await;
    let of_other = foreign.open_batch(&Batch::new()).await;
    let queue = &world.queue;
    let _ = world
        .enqueue_with(1, &Enqueue::new().with_dedupe("taken"))
        .await
        .unwrap();
    for options in [of(&of_other), of(&of_other).with_dedupe("taken")] {
        let refused = world.enqueue_with(1, &options).await;
        assert!(matches!(refused, Err(Error::ForeignRef { .. })));
    }
    let refused = world
        .try_open_batch(&Batch::new().with_parent(&of_other))
        .await;
    assert!(matches!(refused, Err(Error::ForeignRef { .. })));
    let over = world.open_batch(&Batch::new()).await;
    world.close(&over).await;
    let consumer = world.consumer().await;
    queue.await_batch(&world.runner, &over).await.unwrap();
    consumer.shut_down(LONG).await.unwrap();
    let refused = world.try_open_batch(&Batch::new().with_parent(&over)).await;
    assert!(matches!(refused, Err(Error::BatchOver { .. })));
    let refused = world.enqueue_with(1, &of(&over)).await;
    assert_eq!(
        refused.unwrap_err().to_string(),
        format!("batch {over} is over: it takes no members")
    );
    for options in [
        Enqueue::new().with_dedupe("id"),
        Enqueue::new().with_on_repeat(OnRepeat::Replace),
        Enqueue::new().with_max_depth(1),
        Enqueue::new().with_batch(&over),
    ] {
        let batch = Batch::new().with_callback(DONE, options);
        let refused = world.try_open_batch(&batch).await;
        assert!(matches!(refused, Err(Error::EnqueueOptions { .. })));
    }
    let priority = Enqueue::new().with_priority(10);
    let refused = world
        .try_open_batch(&Batch::new().with_callback(DONE, priority))
        .await;
    assert!(matches!(refused, Err(Error::Priority { .. })));
    let schedule = &Schedule::new("* * * * *").with_enqueue_options(of(&over));
    let plan = |tr| async move { queue.schedule(&tr, "minutely", schedule, &1).await };
    let refused = world.runner.run(plan).await;
    assert!(matches!(refused, Err(Error::EnqueueOptions { .. })));
    assert_eq!((world.count("B").await, world.count("i").await), (0, 1));
}

async fn a_batch_shows_its_state_until_it_is_complete(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let parent = world.open_batch(&Batch::new()).await;
    let batch = world
        .open_batch(&then(DONE).with_parent(&parent).with_dead_letters_staying())
        .await;
    world.members(&batch, 0..3).await;
    let status = world.batch(&batch).await.unwrap();
    assert_eq!(status.pending, 3);
    assert!(status.is_open && status.has_callback && status.dead_letters_stay);
    assert_eq!(status.parent, Some(parent));
    world.close(&batch).await;
    assert!(!world.batch(&batch).await.unwrap().is_open);
    let queue = &world.queue;
    let mut listed = Vec::new();
    let mut after = None;
    loop {
        let from = after.as_ref();
        let read = |tr| async move { queue.batches(&tr, from, 1).await };
        let page = world.runner.run(read).await.unwrap();
        listed.extend(page.batches.into_iter().map(|batch| batch.id));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    listed.sort_unstable();
    let mut all = [parent, batch];
    all.sort_unstable();
    assert_eq!(listed, all);
}

async fn a_drained_queue_has_handled_the_callbacks(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let parent = world.open_batch(&then(2 * DONE)).await;
    let batch = world.open_batch(&then(DONE).with_parent(&parent)).await;
    world.members(&batch, 0..3).await;
    world.close(&batch).await;
    world.close(&parent).await;
    let drained = drain(&world.runner, &world.queue, |_| async {}).await;
    assert_eq!(drained.unwrap().completed, 5);
    assert_eq!(world.stats().await.queued, 0);
    // Nor is it idle before.
    let batch = world.open_batch(&then(DONE)).await;
    world.close(&batch).await;
    world.complete_all().await;
    assert_eq!(world.batch(&batch).await, None);
    assert_eq!(world.stats().await.completed, 6);
}

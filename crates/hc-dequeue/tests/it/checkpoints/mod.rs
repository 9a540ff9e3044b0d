//! What a delivery leaves in its item is there in the next one, and nothing else is.

mod kills;
mod steps;

use std::time::Duration;

use crate::common::still::Still;
use crate::common::{LONG, World, process, settings};
use conformance::stores::TestStore;
use hc_dequeue::{
    Consumer, Delivery, Enqueue, Enqueued, Error, ItemRef, MAX_CHECKPOINT_BYTES,
    MAX_PROGRESS_TEXT_BYTES, OnRepeat, Outcome, PlaceKind, Progress, Replaced, Settings,
    WorkerOptions,
};
use keyspace::{Isolation, RangeQuery, Runner, Store, Transaction, Tx, read_all};

conformance::on_every_store!(
    the_next_delivery_gets_the_checkpoint_however_the_last_one_ended,
    an_item_that_is_taken_ahead_keeps_its_checkpoint,
    a_checkpoint_is_as_its_transaction,
    a_lost_delivery_leaves_nothing,
    a_cancelled_item_takes_nothing,
    too_much_is_refused_before_anything_is_staged,
    a_redriven_item_goes_on_and_a_replaced_one_begins_anew,
    a_done_item_has_its_progress_and_no_checkpoint,
    progress_is_seen_while_the_item_is_held,
);

const SOON: Duration = Duration::from_millis(1);

/// Longer than the time limit of a delivery.
const AFTER_LIMIT: Duration = Duration::from_secs(301);

type Item = Delivery<u64>;

/// Settings for a clock that jumps.
fn patient() -> Settings {
    Settings::new().with_lease(LONG * 60)
}

/// Sets a checkpoint in a transaction of its own.
async fn set(runner: &Runner<Store>, delivery: &Item, checkpoint: &[u8]) -> Result<(), Error> {
    let set = async |tr| delivery.set_checkpoint(&tr, checkpoint).await;
    runner.run(set).await
}

async fn set_progress(world: &World, delivery: &Item, done: u64) -> Result<(), Error> {
    let set = async |tr| delivery.set_progress(&tr, done, 100, "on it").await;
    world.runner.run(set).await
}

async fn progress_of(world: &World, item: &ItemRef) -> Option<u64> {
    let progress = world.status(item).await.unwrap().progress?;
    assert_eq!((progress.total, &*progress.text), (100, "on it"));
    Some(progress.done)
}

fn checkpoint(delivery: &Item) -> &[u8] {
    delivery.checkpoint().map_or(&[], |bytes| &bytes[..])
}

async fn next(consumer: &Consumer<u64>) -> Item {
    consumer.dequeue_within(LONG).await.unwrap().unwrap()
}

/// How a delivery ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DeliveryEnd {
    Drop,
    Nack,
    RetryAfter,
    Release,
    Snooze,
    /// It is discarded, and the dead letter redriven.
    Discard,
    /// Its consumer shuts down.
    ShutDown,
    /// Its session dies.
    Die,
    /// Its time limit passes.
    Overrun,
}

const DELIVERY_ENDS: [DeliveryEnd; 9] = [
    DeliveryEnd::Drop,
    DeliveryEnd::Nack,
    DeliveryEnd::RetryAfter,
    DeliveryEnd::Release,
    DeliveryEnd::Snooze,
    DeliveryEnd::Discard,
    DeliveryEnd::ShutDown,
    DeliveryEnd::Die,
    DeliveryEnd::Overrun,
];

/// Ends a delivery, and then its consumer.
async fn end(
    world: &World,
    clock: &Still,
    consumer: Consumer<u64>,
    delivery: Item,
    way: DeliveryEnd,
) {
    match way {
        DeliveryEnd::Drop => drop(delivery),
        DeliveryEnd::Nack => delivery.nack().await.unwrap(),
        DeliveryEnd::RetryAfter => delivery.retry_after(SOON, "not yet").await.unwrap(),
        DeliveryEnd::Release => delivery.release().await.unwrap(),
        DeliveryEnd::Snooze => delivery.snooze(SOON).await.unwrap(),
        DeliveryEnd::Discard => {
            delivery.discard("no good").await.unwrap();
            let item = &delivery.item_ref();
            let redrive = async |tr| world.queue.redrive(&tr, item).await;
            assert!(world.runner.run(redrive).await.unwrap());
        }
        DeliveryEnd::ShutDown => {
            consumer.shut_down(Duration::ZERO).await.unwrap();
            assert!(delivery.is_lost());
            return;
        }
        DeliveryEnd::Overrun => {
            clock.advance(AFTER_LIMIT);
            delivery.lost().await;
        }
        DeliveryEnd::Die => unreachable!("its process is another one"),
    }
    consumer.shut_down(Duration::ZERO).await.unwrap();
}

/// Takes the only item in a process that sets a checkpoint and is then killed.
async fn die_after(world: &World, checkpoint: &'static [u8]) {
    let queue = world.queue.clone();
    let runner = world.runner.clone();
    let died = process(move || async move {
        let options = WorkerOptions::default();
        let consumer = queue.consumer(&runner, options).await.unwrap();
        let delivery = next(&consumer).await;
        set(&runner, &delivery, checkpoint).await.unwrap();
        std::mem::forget(delivery);
    });
    let joined = tokio::task::spawn_blocking(|| died.join().unwrap());
    joined.await.unwrap();
}

async fn the_next_delivery_gets_the_checkpoint_however_the_last_one_ended(store: TestStore) {
    for way in DELIVERY_ENDS {
        let clock = Still::new();
        let world = if way == DeliveryEnd::Die {
            let world = World::new(&store, settings()).await;
            world.enqueue([7]).await;
            die_after(&world, b"half").await;
            world
        } else {
            let world = clock.world(&store, patient()).await;
            world.enqueue([7]).await;
            let consumer = world.quick_consumer(WorkerOptions::new()).await;
            let delivery = next(&consumer).await;
            set(&world.runner, &delivery, b"first").await.unwrap();
            set(&world.runner, &delivery, b"half").await.unwrap();
            // It says what an earlier one has left.
            assert_eq!(delivery.checkpoint(), None);
            end(&world, &clock, consumer, delivery, way).await;
            world
        };
        let consumer = world.quick_consumer(WorkerOptions::new()).await;
        let delivery = next(&consumer).await;
        assert_eq!(checkpoint(&delivery), b"half", "{way:?}");
        // Without another one, it stays.
        delivery.release().await.unwrap();
        let delivery = next(&consumer).await;
        assert_eq!(checkpoint(&delivery), b"half", "{way:?}");
        // An empty one removes it.
        set(&world.runner, &delivery, b"").await.unwrap();
        delivery.release().await.unwrap();
        let delivery = next(&consumer).await;
        assert_eq!(delivery.checkpoint(), None, "{way:?}");
        world.ack(&delivery).await.unwrap();
        consumer.shut_down(Duration::ZERO).await.unwrap();
        world.check().await;
    }
}

async fn an_item_that_is_taken_ahead_keeps_its_checkpoint(store: TestStore) {
    let world = World::with_defaults(&store).await;
    world.enqueue(0..40).await;
    let runner = world.runner.clone();
    let handler = move |item: Item| {
        let runner = runner.clone();
        async move {
            let expected = match item.attempt() {
                1 => None,
                _ => Some(*item.value()),
            };
            assert_eq!(item.checkpoint_as().unwrap(), expected);
            let value = *item.value();
            let set = async |tr| item.set_checkpoint_as(&tr, &value).await;
            runner.run(set).await.unwrap();
            match item.attempt() {
                1 => Outcome::retry_after(SOON, "once more"),
                _ => Outcome::Done,
            }
        }
    };
    let options = WorkerOptions::new().with_concurrency(2);
    let worker = world.queue.work(&world.runner, options, handler).await;
    world.queue.wait_idle(&world.runner).await.unwrap();
    worker.unwrap().shut_down(LONG).await.unwrap();
    let stats = world.stats().await;
    assert_eq!((stats.completed, stats.dead), (40, 0));
    world.check().await;
}

async fn a_checkpoint_is_as_its_transaction(store: TestStore) {
    let world = World::with_defaults(&store).await;
    world.enqueue([7]).await;
    let consumer = world.quick_consumer(WorkerOptions::new()).await;
    let delivery = next(&consumer).await;
    let refused = async |tr| {
        delivery.set_checkpoint(&tr, b"lost").await?;
        Err::<(), _>(Error::MalformedCursor)
    };
    world.runner.run(refused).await.unwrap_err();
    let both = async |tr| {
        delivery.set_checkpoint(&tr, b"first").await?;
        delivery.set_progress(&tr, 1, 100, "on it").await?;
        // The second one sees what the first one has staged.
        delivery.set_checkpoint(&tr, b"second").await
    };
    world.runner.run(both).await.unwrap();
    delivery.release().await.unwrap();
    let delivery = next(&consumer).await;
    assert_eq!(checkpoint(&delivery), b"second");
    assert_eq!(progress_of(&world, &delivery.item_ref()).await, Some(1));
    // A transaction that ends the item leaves nothing.
    let end = async |tr| {
        delivery.set_checkpoint(&tr, b"third").await?;
        delivery.ack(&tr).await
    };
    world.runner.run(end).await.unwrap();
    assert_eq!(world.count("h").await, 0);
    consumer.shut_down(Duration::ZERO).await.unwrap();
    world.check().await;
}

async fn a_lost_delivery_leaves_nothing(store: TestStore) {
    // The item is held again by the same session, or by another one.
    for by_same in [true, false] {
        let clock = Still::new();
        let world = clock.world(&store, patient()).await;
        let item = &world.enqueue_ref(7, &Enqueue::new()).await;
        let consumer = world.quick_consumer(WorkerOptions::new()).await;
        let old = next(&consumer).await;
        clock.advance(AFTER_LIMIT);
        old.lost().await;
        let other = if by_same {
            consumer.clone()
        } else {
            consumer.shut_down(Duration::ZERO).await.unwrap();
            world.quick_consumer(WorkerOptions::new()).await
        };
        let present = next(&other).await;
        let is_lost = |left: Result<(), Error>| matches!(left, Err(Error::DeliveryLost { .. }));
        assert!(is_lost(set(&world.runner, &old, b"old").await), "{by_same}");
        assert!(is_lost(set_progress(&world, &old, 7).await), "{by_same}");
        let key = &world.store.root.pack(&"effect");
        let step = async |tr: Tx<_>| {
            tr.set(key, b"");
            Ok::<_, Error>(())
        };
        assert!(is_lost(old.step("late", step).await), "{by_same}");
        let read = async |tr: Tx<_>| tr.get(key, Isolation::Snapshot).await;
        assert_eq!(world.runner.run(read).await.unwrap(), None);
        assert_eq!(progress_of(&world, item).await, None);
        present.release().await.unwrap();
        let present = next(&other).await;
        assert_eq!(present.checkpoint(), None);
        other.shut_down(Duration::ZERO).await.unwrap();
        world.check().await;
    }
}

async fn a_cancelled_item_takes_nothing(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let item = &world.enqueue_ref(7, &Enqueue::new()).await;
    let consumer = world.consumer().await;
    let delivery = next(&consumer).await;
    let _ = world.cancel(item).await;
    let is_refused = |left: Result<(), Error>| matches!(left, Err(Error::Cancelled { .. }));
    assert!(is_refused(set(&world.runner, &delivery, b"late").await));
    assert!(is_refused(set_progress(&world, &delivery, 7).await));
    let step = async |_| Ok::<_, Error>(());
    assert!(is_refused(delivery.step("late", step).await));
    delivery.release().await.unwrap();
    assert_eq!(world.place(item).await, None);
    consumer.shut_down(Duration::ZERO).await.unwrap();
    world.check().await;
}

async fn too_much_is_refused_before_anything_is_staged(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let item = &world.enqueue_ref(7, &Enqueue::new()).await;
    let consumer = world.consumer().await;
    let delivery = next(&consumer).await;
    let longest = vec![7; MAX_CHECKPOINT_BYTES];
    set(&world.runner, &delivery, &longest).await.unwrap();
    // The transaction commits what else it has staged.
    let too_long = async |tr| {
        let bytes = vec![8; MAX_CHECKPOINT_BYTES + 1];
        let refused = delivery.set_checkpoint(&tr, &bytes).await;
        let Err(Error::CheckpointTooLong { bytes, limit }) = refused else {
            panic!("{refused:?}");
        };
        assert_eq!((bytes, limit), (4_097, 4_096));
        let text = "a".repeat(MAX_PROGRESS_TEXT_BYTES + 1);
        let refused = delivery.set_progress(&tr, 1, 2, &text).await;
        let Err(Error::ProgressTextTooLong { bytes, limit }) = refused else {
            panic!("{refused:?}");
        };
        assert_eq!((bytes, limit), (201, 200));
        Ok::<_, Error>(())
    };
    world.runner.run(too_long).await.unwrap();
    delivery.release().await.unwrap();
    let delivery = next(&consumer).await;
    assert_eq!(checkpoint(&delivery), longest);
    assert_eq!(world.status(item).await.unwrap().progress, None);
    // It is no number in MessagePack.
    let other = delivery.checkpoint_as::<String>().unwrap_err();
    let Error::Keyspace(keyspace::Error::Corrupt { .. }) = other else {
        panic!("{other}");
    };
    consumer.shut_down(Duration::ZERO).await.unwrap();
}

/// Lets the item become a dead letter with a checkpoint, progress and a step that is done.
async fn die_half_done(world: &World, consumer: &Consumer<u64>) {
    let delivery = next(consumer).await;
    let half = async |tr| {
        delivery.set_checkpoint(&tr, b"half").await?;
        delivery.set_progress(&tr, 50, 100, "on it").await
    };
    world.runner.run(half).await.unwrap();
    let step = async |_| Ok::<_, Error>(7_u64);
    assert_eq!(delivery.step("seven", step).await.unwrap(), 7);
    delivery.discard("no good").await.unwrap();
}

async fn a_redriven_item_goes_on_and_a_replaced_one_begins_anew(store: TestStore) {
    for (dedupe, replaces) in [
        (None, false),
        (None, true),
        (Some(OnRepeat::Replace), true),
        (Some(OnRepeat::Debounce), true),
    ] {
        let world = World::with_defaults(&store).await;
        let queue = &world.queue;
        let item = &world
            .enqueue_ref(7, &Enqueue::new().with_dedupe("one"))
            .await;
        let consumer = world.consumer().await;
        die_half_done(&world, &consumer).await;
        assert_eq!(progress_of(&world, item).await, Some(50));
        if let Some(mode) = dedupe {
            let again = Enqueue::new().with_dedupe("one").with_on_repeat(mode);
            let enqueued = world.enqueue_with(7, &again).await.unwrap();
            assert_eq!(enqueued, Enqueued::Replaced(*item));
        } else {
            let redrive = async |tr| {
                if replaces {
                    // The same value.
                    let replaced = queue.replace(&tr, item, &7).await?;
                    assert_eq!(replaced, Replaced::Replaced);
                }
                queue.redrive(&tr, item).await
            };
            assert!(world.runner.run(redrive).await.unwrap());
        }
        let left = if replaces { None } else { Some(50) };
        assert_eq!(progress_of(&world, item).await, left);
        let delivery = next(&consumer).await;
        let expected: &[u8] = if replaces { b"" } else { b"half" };
        assert_eq!(checkpoint(&delivery), expected, "{dedupe:?}");
        let step = async |_| Ok::<_, Error>(8_u64);
        let result = delivery.step("seven", step).await.unwrap();
        assert_eq!(result, if replaces { 8 } else { 7 }, "{dedupe:?}");
        consumer.shut_down(Duration::ZERO).await.unwrap();
    }
}

async fn a_done_item_has_its_progress_and_no_checkpoint(store: TestStore) {
    let kept = Settings::new().with_keep_done(LONG * 60);
    let world = World::new(&store, kept).await;
    let item = &world.enqueue_ref(7, &Enqueue::new()).await;
    let consumer = world.consumer().await;
    let delivery = next(&consumer).await;
    let longest = vec![7; MAX_CHECKPOINT_BYTES];
    set(&world.runner, &delivery, &longest).await.unwrap();
    set_progress(&world, &delivery, 99).await.unwrap();
    delivery.set_result(vec![8; MAX_CHECKPOINT_BYTES]).unwrap();
    world.ack(&delivery).await.unwrap();
    assert_eq!(progress_of(&world, item).await, Some(99));
    let status = world.status(item).await.unwrap();
    assert_eq!(status.result, vec![8; MAX_CHECKPOINT_BYTES]);
    // The checkpoint would be a second field of this size.
    let (begin, end) = world.key("x").range();
    let rows = &RangeQuery::keys(begin, end);
    let read = async |tr| read_all(&tr, rows.clone(), Isolation::Snapshot).await;
    let [row] = &world.runner.run(read).await.unwrap()[..] else {
        panic!("one row");
    };
    assert!(row.value().len() < 2 * MAX_CHECKPOINT_BYTES);
    consumer.shut_down(Duration::ZERO).await.unwrap();
    world.check().await;
}

async fn progress_is_seen_while_the_item_is_held(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let item = &world.enqueue_ref(7, &Enqueue::new()).await;
    assert_eq!(progress_of(&world, item).await, None);
    let consumer = world.consumer().await;
    let delivery = next(&consumer).await;
    for done in [1, 2] {
        set_progress(&world, &delivery, done).await.unwrap();
        assert_eq!(progress_of(&world, item).await, Some(done));
    }
    let list = async |tr| world.queue.list(&tr, PlaceKind::Held, None, 10).await;
    let page = world.runner.run(list).await.unwrap();
    let Progress {
        done, total, text, ..
    } = page.items[0]
        .status
        .as_ref()
        .unwrap()
        .progress
        .clone()
        .unwrap();
    assert_eq!((done, total, &*text), (2, 100, "on it"));
    delivery.complete().await.unwrap();
    consumer.shut_down(Duration::ZERO).await.unwrap();
    world.check().await;
}

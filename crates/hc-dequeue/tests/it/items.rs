//! Items by their references: where they are, and operations that change them there.

use std::future::pending;
use std::time::{Duration, SystemTime};

use crate::common::{LONG, World};
use conformance::stores::TestStore;
use conformance::{timeout, until};
use hc_dequeue::{
    Cancelled, Delivery, End, Enqueue, Enqueued, Error, ItemRef, OnRepeat, Place, Replaced,
    Settings, WorkerOptions,
};
use keyspace::{Code, Database, Environment, OwnedTransaction, Transaction};
use tokio::sync::{mpsc, oneshot};

conformance::on_every_store!(
    a_reference_finds_its_item_wherever_it_goes,
    a_reference_to_an_item_of_another_queue_is_refused,
    a_cancelled_item_is_never_delivered_again,
    a_cancellation_notifies_the_delivery_and_refuses_its_acknowledgement,
    a_busy_consumer_learns_of_a_cancellation_with_its_next_heartbeat,
    a_handler_of_a_cancelled_item_is_dropped,
    an_item_that_is_cancelled_before_it_is_collected_is_never_handed_out,
    an_item_that_is_cancelled_before_a_dead_session_has_collected_it_is_done,
    an_expedited_item_comes_at_once_and_to_its_place,
    a_replaced_item_keeps_its_place_and_its_costs,
    a_repeated_enqueue_keeps_replaces_or_debounces,
    an_item_that_replaces_a_held_one_takes_over_its_dedupe_id,
    an_id_that_ends_and_is_enqueued_again_at_the_same_time_conflicts,
);

const SOON: Duration = Duration::from_millis(1);

impl World {
    async fn replace(&self, item: &ItemRef, value: u64) -> Replaced {
        let queue = &self.queue;
        let replace = |tr| async move { queue.replace(&tr, item, &value).await };
        self.runner.run(replace).await.unwrap()
    }

    async fn expedite(&self, item: &ItemRef) -> bool {
        let queue = &self.queue;
        let expedite = |tr| async move { queue.expedite(&tr, item).await };
        self.runner.run(expedite).await.unwrap()
    }

    async fn find_deduped(&self, dedupe: &[u8]) -> Option<ItemRef> {
        let queue = &self.queue;
        let find = |tr| async move { queue.find_deduped(&tr, dedupe).await };
        self.runner.run(find).await.unwrap()
    }
}

async fn a_reference_finds_its_item_wherever_it_goes(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let until = Environment::system().wall() + LONG;
    let item: ItemRef = world
        .enqueue_ref(7, &Enqueue::new().with_due_time(until))
        .await
        .to_string()
        .parse()
        .unwrap();
    let Some(Place::Delayed { until: found }) = world.place(&item).await else {
        panic!("it is delayed");
    };
    let millis = |time: SystemTime| {
        time.duration_since(SystemTime::UNIX_EPOCH)
            .unwrap()
            .as_millis()
    };
    assert_eq!(millis(found), millis(until));
    assert!(world.expedite(&item).await);
    let status = world.status(&item).await.unwrap();
    assert_eq!((status.place, status.value), (Place::Queued, Ok(7)));

    let consumer = world.consumer().await;
    let next = || async { consumer.dequeue_within(LONG).await.unwrap().unwrap() };
    let delivery = next().await;
    assert_eq!(delivery.item_ref(), item);
    assert!(matches!(
        world.place(&item).await,
        Some(Place::Held {
            is_cancelled: false,
            ..
        })
    ));
    delivery.retry_after(LONG, "no").await.unwrap();
    assert!(matches!(
        world.place(&item).await,
        Some(Place::Delayed { .. })
    ));
    assert!(world.expedite(&item).await);
    let delivery = next().await;
    delivery.snooze(LONG).await.unwrap();
    assert!(matches!(
        world.place(&item).await,
        Some(Place::Delayed { .. })
    ));
    assert!(world.expedite(&item).await);
    next().await.discard("no use").await.unwrap();
    let status = world.status(&item).await.unwrap();
    assert_eq!(
        (status.place, status.attempts, status.deliveries),
        (Place::Dead, 1, 3)
    );
    assert_eq!(status.failure.unwrap().reason, "no use");

    let queue = &world.queue;
    let item = &item;
    let redrive = |tr| async move { queue.redrive(&tr, item).await };
    assert!(world.runner.run(redrive).await.unwrap());
    let delivery = next().await;
    world.ack(&delivery).await.unwrap();
    assert_eq!(world.status(item).await, None);
    assert_eq!(world.count("o").await, 0);
    world.check().await;
}

async fn a_reference_to_an_item_of_another_queue_is_refused(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let other = World::new(&store.fresh(), Settings::default()).await;
    let item = &other.enqueue_ref(7, &Enqueue::new()).await;
    let queue = &world.queue;
    let status = |tr| async move { queue.status(&tr, item).await };
    let refused = world.runner.run(status).await;
    assert!(matches!(refused, Err(Error::ForeignRef { .. })));
    let cancel = |tr| async move { queue.cancel(&tr, item).await };
    let refused = world.runner.run(cancel).await;
    assert!(matches!(refused, Err(Error::ForeignRef { .. })));
    let redrive = |tr| async move { queue.redrive(&tr, item).await };
    let refused = world.runner.run(redrive).await;
    assert!(matches!(refused, Err(Error::ForeignRef { .. })));
    assert_eq!(other.place(item).await, Some(Place::Queued));
}

async fn a_cancelled_item_is_never_delivered_again(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let consumer = world.consumer().await;
    let dead = world
        .enqueue_ref(1, &Enqueue::new().with_dedupe("dead"))
        .await;
    let delivery = consumer.dequeue_within(LONG).await.unwrap().unwrap();
    delivery.discard("no use").await.unwrap();
    let later = Enqueue::new().with_delay(LONG).with_dedupe("later");
    let delayed = world.enqueue_ref(2, &later).await;
    let queued = world
        .enqueue_ref(3, &Enqueue::new().with_dedupe("now"))
        .await;
    for item in [dead, delayed, queued] {
        assert_eq!(world.cancel(&item).await, Cancelled::Removed);
        assert_eq!(world.place(&item).await, None);
        assert_eq!(world.cancel(&item).await, Cancelled::NotThere);
        assert!(!world.expedite(&item).await);
    }
    assert!(consumer.dequeue().await.unwrap().is_none());
    let stats = world.stats().await;
    assert_eq!((stats.queued, stats.delayed, stats.dead), (0, 0, 0));
    assert_eq!((stats.cancelled, stats.completed), (3, 0));
    for part in ["k", "n", "o", "y"] {
        assert_eq!(world.count(part).await, 0, "{part}");
    }
    world.check().await;
}

async fn a_cancellation_notifies_the_delivery_and_refuses_its_acknowledgement(store: TestStore) {
    // With this lease no heartbeat comes: only the watch can report the cancellation.
    let world = World::new(&store, Settings::new().with_lease(LONG * 10)).await;
    let consumer = world.consumer().await;
    for way in 0..4 {
        let item = world
            .enqueue_ref(7, &Enqueue::new().with_dedupe("one"))
            .await;
        let delivery = consumer.dequeue_within(LONG).await.unwrap().unwrap();
        assert!(!delivery.is_cancelled());
        assert_eq!(world.cancel(&item).await, Cancelled::Requested);
        timeout(LONG, delivery.cancelled()).await;
        assert!(delivery.is_cancelled() && !delivery.is_lost());
        assert!(matches!(
            world.place(&item).await,
            Some(Place::Held {
                is_cancelled: true,
                ..
            })
        ));
        let refused = world.ack(&delivery).await;
        assert!(matches!(refused, Err(Error::Cancelled { .. })));
        match way {
            0 => {
                let refused = delivery.complete().await;
                assert!(matches!(refused, Err(Error::Cancelled { .. })));
            }
            1 => delivery.retry_after(SOON, "no").await.unwrap(),
            2 => delivery.release().await.unwrap(),
            _ => drop(delivery),
        }
        // This call is served after the item was given back.
        assert!(consumer.dequeue().await.unwrap().is_none());
        assert_eq!(world.place(&item).await, None);
    }
    let stats = world.stats().await;
    assert_eq!((stats.cancelled, stats.completed, stats.held), (4, 0, 0));
    assert_eq!(world.count("k").await, 0);
    world.check().await;
}

async fn a_busy_consumer_learns_of_a_cancellation_with_its_next_heartbeat(store: TestStore) {
    let world = World::new(&store, crate::common::settings()).await;
    let consumer = world.consumer().await;
    let item = world.enqueue_ref(7, &Enqueue::new()).await;
    let delivery = consumer.dequeue_within(LONG).await.unwrap().unwrap();
    let _ = world.cancel(&item).await;
    let busy = async {
        loop {
            world.enqueue([1]).await;
            consumer.pop().await.unwrap();
        }
    };
    tokio::select! {
        () = delivery.cancelled() => {}
        () = busy => {}
    }
    drop(delivery);
    consumer.shut_down(Duration::ZERO).await.unwrap();
    assert_eq!(world.stats().await.cancelled, 1);
    world.check().await;
}

async fn a_handler_of_a_cancelled_item_is_dropped(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let (begun, mut begins) = mpsc::unbounded_channel();
    let handler = move |delivery: Delivery<u64>| {
        begun.send(delivery.item_ref()).unwrap();
        pending::<()>()
    };
    let worker = world
        .queue
        .work(&world.runner, WorkerOptions::new(), handler)
        .await
        .unwrap();
    world.enqueue([7]).await;
    let item = begins.recv().await.unwrap();
    assert_eq!(world.cancel(&item).await, Cancelled::Requested);
    world.queue.wait_idle(&world.runner).await.unwrap();
    worker.shut_down(LONG).await.unwrap();
    let stats = world.stats().await;
    assert_eq!((stats.cancelled, stats.completed, stats.dead), (1, 0, 0));
    world.check().await;
}

/// Enqueues an item and lets a consumer grant it to the session with the first request, which does not collect it.
/// Then cancels the item.
async fn cancel_granted(world: &World) -> ItemRef {
    let options = WorkerOptions::new().with_poll_interval(SOON);
    let consumer = world.queue.consumer(&world.runner, options).await.unwrap();
    let item = world.enqueue_ref(7, &Enqueue::new()).await;
    // The consumer loses patience with the first request, and answers it.
    tokio::select! {
        other = consumer.dequeue_within(LONG) => panic!("{other:?}"),
        () = until(async || world.place(&item).await != Some(Place::Queued)) => {}
    }
    assert_eq!((world.count("h").await, world.stats().await.held), (0, 1));
    assert_eq!(world.cancel(&item).await, Cancelled::Requested);
    consumer.shut_down(Duration::ZERO).await.unwrap();
    item
}

async fn an_item_that_is_cancelled_before_it_is_collected_is_never_handed_out(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let queue = world.queue.clone();
    let runner = world.runner.clone();
    let (fall_asleep, is_to_sleep) = oneshot::channel::<()>();
    let (asleep, is_asleep) = oneshot::channel::<()>();
    let (wake, is_awake) = std::sync::mpsc::channel::<()>();
    let (deliver, delivered) = oneshot::channel();
    let sleeper = crate::common::process(move || async move {
        let consumer = queue
            .consumer(&runner, WorkerOptions::default())
            .await
            .unwrap();
        let sleep = async {
            is_to_sleep.await.unwrap();
            asleep.send(()).unwrap();
            // Meanwhile nothing of this process runs, although it does not die.
            is_awake.recv().unwrap();
            pending::<()>().await;
        };
        tokio::select! {
            delivery = consumer.dequeue_within(LONG) => {
                let delivery = delivery.unwrap().unwrap();
                deliver.send(*delivery.value()).unwrap();
                delivery.complete().await.unwrap();
            }
            () = sleep => {}
        }
    });
    world.until_requested(1).await;
    fall_asleep.send(()).unwrap();
    is_asleep.await.unwrap();
    cancel_granted(&world).await;
    world.enqueue([8]).await;
    wake.send(()).unwrap();
    assert_eq!(delivered.await.unwrap(), 8);
    tokio::task::spawn_blocking(|| sleeper.join().unwrap())
        .await
        .unwrap();
    let stats = world.stats().await;
    assert_eq!((stats.cancelled, stats.completed, stats.held), (1, 1, 0));
    world.check().await;
}

async fn an_item_that_is_cancelled_before_a_dead_session_has_collected_it_is_done(
    store: TestStore,
) {
    let settings = crate::common::settings().with_keep_done(LONG);
    let (world, dead) = World::with_dead(&store, settings).await;
    let item = cancel_granted(&world).await;
    world.declare_dead(dead).await;
    let consumer = world.consumer().await;
    let done = timeout(LONG, world.queue.await_done(&world.runner, &item)).await;
    let end = done.unwrap().map(|status| status.place);
    let was_cancelled = matches!(
        end,
        Some(Place::Done {
            end: End::Cancelled,
            ..
        })
    );
    assert!(was_cancelled, "{end:?}");
    assert!(consumer.dequeue().await.unwrap().is_none());
    world.check().await;
}

async fn an_expedited_item_comes_at_once_and_to_its_place(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let first = world.enqueue_ref(1, &Enqueue::new().with_delay(LONG)).await;
    let second = world.enqueue_ref(2, &Enqueue::new()).await;
    assert!(!world.expedite(&second).await);
    assert!(world.expedite(&first).await);
    assert_eq!(world.values().await, [1, 2]);
    let stats = world.stats().await;
    assert_eq!((stats.queued, stats.delayed), (2, 0));
    world.check().await;
}

async fn a_replaced_item_keeps_its_place_and_its_costs(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let consumer = world.consumer().await;
    let item = world.enqueue_ref(1, &Enqueue::new()).await;
    let delivery = consumer.dequeue_within(LONG).await.unwrap().unwrap();
    assert_eq!(world.replace(&item, 10).await, Replaced::IsHeld);
    delivery.nack().await.unwrap();
    world.enqueue([2]).await;
    assert_eq!(world.replace(&item, 11).await, Replaced::Replaced);
    // It is listed after those that have not come back.
    assert_eq!(world.values().await, [2, 11]);
    let delivery = consumer.dequeue_within(LONG).await.unwrap().unwrap();
    assert_eq!((*delivery.value(), delivery.attempt()), (11, 2));
    delivery.retry_after(LONG, "no").await.unwrap();
    assert_eq!(world.replace(&item, 12).await, Replaced::Replaced);
    let status = world.status(&item).await.unwrap();
    assert!(matches!(status.place, Place::Delayed { .. }));
    assert_eq!((status.value, status.attempts), (Ok(12), 2));
    assert!(world.expedite(&item).await);
    // One that has not come back has its turn in between.
    let between = consumer.dequeue_within(LONG).await.unwrap().unwrap();
    assert_eq!(*between.value(), 2);
    world.ack(&between).await.unwrap();
    let delivery = consumer.dequeue_within(LONG).await.unwrap().unwrap();
    assert_eq!(*delivery.value(), 12);
    delivery.discard("no use").await.unwrap();
    assert_eq!(world.replace(&item, 13).await, Replaced::Replaced);
    assert_eq!(world.status(&item).await.unwrap().value, Ok(13));
    let _ = world.cancel(&item).await;
    assert_eq!(world.replace(&item, 14).await, Replaced::NotThere);
    world.check().await;
}

async fn a_repeated_enqueue_keeps_replaces_or_debounces(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let once = |mode| Enqueue::new().with_dedupe("one").with_on_repeat(mode);
    let item = world.enqueue_ref(1, &once(OnRepeat::Keep)).await;
    assert_eq!(world.find_deduped(b"one").await, Some(item));
    assert_eq!(world.find_deduped(b"two").await, None);
    let value = async |expected| {
        let status = world.status(&item).await.unwrap();
        assert_eq!(status.value, Ok(expected));
        status.place
    };
    let repeat = async |value, options| world.enqueue_with(value, &options).await.unwrap();

    assert_eq!(repeat(2, once(OnRepeat::Keep)).await, Enqueued::Repeated);
    assert_eq!(value(1).await, Place::Queued);
    let later = once(OnRepeat::Replace).with_delay(LONG);
    assert_eq!(repeat(3, later).await, Enqueued::Replaced(item));
    assert_eq!(value(3).await, Place::Queued);
    let later = once(OnRepeat::Debounce).with_delay(LONG);
    assert_eq!(repeat(4, later).await, Enqueued::Replaced(item));
    let Place::Delayed { until: first } = value(4).await else {
        panic!("it is delayed");
    };
    let later = once(OnRepeat::Debounce).with_delay(2 * LONG);
    assert_eq!(repeat(5, later).await, Enqueued::Replaced(item));
    let Place::Delayed { until: second } = value(5).await else {
        panic!("it is delayed");
    };
    assert!(second > first);
    assert_eq!(
        repeat(6, once(OnRepeat::Replace)).await,
        Enqueued::Replaced(item)
    );
    assert_eq!(value(6).await, Place::Delayed { until: second });
    assert_eq!(
        repeat(7, once(OnRepeat::Debounce)).await,
        Enqueued::Replaced(item)
    );
    assert_eq!(value(7).await, Place::Queued);

    let consumer = world.consumer().await;
    let delivery = consumer.dequeue_within(LONG).await.unwrap().unwrap();
    delivery.nack().await.unwrap();
    let delivery = consumer.dequeue_within(LONG).await.unwrap().unwrap();
    delivery.discard("no use").await.unwrap();
    assert_eq!(world.status(&item).await.unwrap().attempts, 1);
    assert_eq!(repeat(8, once(OnRepeat::Keep)).await, Enqueued::Repeated);
    assert_eq!(
        repeat(9, once(OnRepeat::Replace)).await,
        Enqueued::Replaced(item)
    );
    assert_eq!(value(9).await, Place::Queued);
    assert_eq!(world.status(&item).await.unwrap().attempts, 0);
    let stats = world.stats().await;
    assert_eq!((stats.queued, stats.delayed, stats.dead), (1, 0, 0));
    world.check().await;
}

async fn an_item_that_replaces_a_held_one_takes_over_its_dedupe_id(store: TestStore) {
    let retention = Settings::new().with_dedupe_retention(LONG);
    for settings in [Settings::new(), retention] {
        let keeps = !settings.dedupe_retention().is_zero();
        let world = World::new(&store, settings).await;
        let consumer = world.consumer().await;
        let once = Enqueue::new()
            .with_dedupe("one")
            .with_on_repeat(OnRepeat::Replace);
        let first = world.enqueue_ref(1, &once).await;
        let held = consumer.dequeue_within(LONG).await.unwrap().unwrap();
        let second = world.enqueue_ref(2, &once).await;
        assert_ne!(first, second);
        assert_eq!(world.find_deduped(b"one").await, Some(second));
        // The first item is done, and the id belongs to the second one.
        world.ack(&held).await.unwrap();
        assert_eq!(world.find_deduped(b"one").await, Some(second));
        let keep = Enqueue::new().with_dedupe("one");
        assert_eq!(
            world.enqueue_with(3, &keep).await.unwrap(),
            Enqueued::Repeated
        );
        let held = consumer.dequeue_within(LONG).await.unwrap().unwrap();
        assert_eq!(*held.value(), 2);
        world.ack(&held).await.unwrap();
        assert_eq!(world.find_deduped(b"one").await, None);
        let again = world.enqueue_with(4, &keep).await.unwrap();
        assert_eq!(again == Enqueued::Repeated, keeps);
        world.check().await;
    }
}

async fn an_id_that_ends_and_is_enqueued_again_at_the_same_time_conflicts(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let db = &world.store.db;
    let queue = &world.queue;
    let once = Enqueue::new().with_dedupe("one");
    world.enqueue_ref(1, &once).await;
    let consumer = world.consumer().await;
    let held = consumer.dequeue_within(LONG).await.unwrap().unwrap();
    let mut done = db.begin().unwrap();
    let mut again = db.begin().unwrap();
    held.ack(&done).await.unwrap();
    let repeated = queue.enqueue_with(&again, &2, &once).await.unwrap();
    assert_eq!(repeated, Enqueued::Repeated);
    again.set(&world.store.root.pack(&"work"), b"");
    done.commit().await.unwrap();
    let refused = again.commit().await.unwrap_err();
    assert_eq!(refused.code(), Some(Code::NOT_COMMITTED));
    drop(held);
    world.enqueue_ref(2, &once).await;
    world.check().await;
}

//! Done items: what is kept of them, how long it is kept, and waiting for their ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::common::{LONG, Wall, World, open, settings};
use conformance::stores::TestStore;
use conformance::{timeout, until};
use hc_dequeue::{
    Awaited, Cancelled, Delivery, End, Enqueue, Enqueued, Error, ItemRef, MAX_RESULT_BYTES,
    Outcome, Place, Settings, WorkerOptions,
};

conformance::on_every_store!(
    the_end_of_each_item_is_kept_however_it_comes,
    what_comes_back_later_is_not_done,
    a_result_that_is_too_long_is_refused_and_the_item_stays,
    nothing_is_kept_unless_the_settings_say_so,
    what_is_done_is_kept_for_its_time,
    a_session_whose_clock_is_an_hour_ahead_sweeps_nothing,
    a_caller_waits_until_an_item_is_done,
    a_caller_that_waits_learns_that_an_item_is_a_dead_letter,
    a_wait_with_a_limit_says_whether_the_item_has_ended,
);

const HOUR: Duration = Duration::from_secs(60 * 60);

impl World {
    /// Returns how an item ended, with its result.
    async fn end(&self, item: &ItemRef) -> Option<(End, Vec<u8>)> {
        let status = self.status(item).await?;
        match status.place {
            Place::Done { end, .. } => Some((end, status.result.to_vec())),
            _ => None,
        }
    }

    async fn purge(&self, item: &ItemRef) -> bool {
        let queue = &self.queue;
        let purge = |tr| async move { queue.purge(&tr, item).await };
        self.runner.run(purge).await.unwrap()
    }

    /// Returns the numbers of done items, of entries in the index by expiry time, and of dedupe ids.
    async fn kept(&self) -> [usize; 3] {
        [
            self.count("x").await,
            self.count("z").await,
            self.count("y").await,
        ]
    }
}

fn keeping() -> Settings {
    Settings::new().with_keep_done(LONG)
}

async fn the_end_of_each_item_is_kept_however_it_comes(store: TestStore) {
    let world = World::new(&store, keeping()).await;
    let consumer = world.consumer().await;
    let mut items = Vec::new();
    for value in 0..7 {
        items.push(world.enqueue_ref(value, &Enqueue::new()).await);
    }
    let next = || async { consumer.dequeue_within(LONG).await.unwrap().unwrap() };
    let acknowledged = next().await;
    acknowledged.set_result("zero").unwrap();
    world.ack(&acknowledged).await.unwrap();
    let completed = next().await;
    completed.set_result("one").unwrap();
    completed.complete().await.unwrap();
    assert_eq!(consumer.pop().await.unwrap().unwrap().value, 2);
    let held = next().await;
    assert_eq!(world.cancel(&items[3]).await, Cancelled::Requested);
    assert_eq!(world.end(&items[3]).await, None);
    held.set_result("three").unwrap();
    assert!(matches!(
        held.complete().await,
        Err(Error::Cancelled { .. })
    ));
    next().await.discard("no use").await.unwrap();
    assert_eq!(world.place(&items[4]).await, Some(Place::Dead));
    assert!(world.purge(&items[4]).await);
    assert_eq!(world.cancel(&items[5]).await, Cancelled::Removed);
    assert_eq!(world.queue.clear(&world.runner).await.unwrap().removed, 1);

    let ends: [(End, &[u8]); 7] = [
        (End::Completed, b"zero"),
        (End::Completed, b"one"),
        (End::Completed, b""),
        (End::Cancelled, b""),
        (End::Removed, b""),
        (End::Cancelled, b""),
        (End::Removed, b""),
    ];
    for (item, (end, result)) in items.iter().zip(ends) {
        let status = world.status(item).await.unwrap();
        assert_eq!(world.end(item).await, Some((end, result.to_vec())));
        assert_eq!(
            world.queue.await_done(&world.runner, item).await.unwrap(),
            Some(status)
        );
        assert_eq!(world.cancel(item).await, Cancelled::NotThere);
    }
    let status = world.status(&items[4]).await.unwrap();
    assert_eq!((status.value, status.deliveries), (Ok(4), 1));
    assert_eq!(status.failure.unwrap().reason, "no use");
    assert_eq!((world.count("x").await, world.count("z").await), (7, 7));
    world.check().await;
}

async fn what_comes_back_later_is_not_done(store: TestStore) {
    let world = World::new(&store, keeping()).await;
    let consumer = world.consumer().await;
    let item = world.enqueue_ref(7, &Enqueue::new()).await;
    let delivery = consumer.dequeue_within(LONG).await.unwrap().unwrap();
    delivery.set_result("early").unwrap();
    delivery.retry_after(Duration::ZERO, "no").await.unwrap();
    let delivery = consumer.dequeue_within(LONG).await.unwrap().unwrap();
    assert_eq!((world.count("x").await, world.count("z").await), (0, 0));
    // The result of an earlier attempt is gone.
    world.ack(&delivery).await.unwrap();
    assert_eq!(world.end(&item).await, Some((End::Completed, Vec::new())));
}

async fn a_result_that_is_too_long_is_refused_and_the_item_stays(store: TestStore) {
    let world = World::new(&store, keeping()).await;
    let consumer = world.consumer().await;
    let item = world.enqueue_ref(7, &Enqueue::new()).await;
    let delivery = consumer.dequeue_within(LONG).await.unwrap().unwrap();
    let longest = vec![b'a'; MAX_RESULT_BYTES];
    delivery.set_result(longest.clone()).unwrap();
    let refused = delivery.set_result(vec![b'b'; MAX_RESULT_BYTES + 1]);
    assert!(matches!(refused, Err(Error::ResultTooLong { .. })));
    world.ack(&delivery).await.unwrap();
    assert_eq!(world.end(&item).await, Some((End::Completed, longest)));
}

async fn nothing_is_kept_unless_the_settings_say_so(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let consumer = world.consumer().await;
    let item = world.enqueue_ref(7, &Enqueue::new()).await;
    assert_eq!(consumer.pop_within(LONG).await.unwrap().unwrap().value, 7);
    assert_eq!(world.status(&item).await, None);
    let waited = world.queue.await_done(&world.runner, &item);
    assert_eq!(timeout(LONG, waited).await.unwrap(), None);
    assert_eq!((world.count("x").await, world.count("z").await), (0, 0));
}

async fn what_is_done_is_kept_for_its_time(store: TestStore) {
    let store = store.fresh();
    let wall = Wall::ahead(Duration::ZERO);
    let runner = wall.runner(&store);
    let queue = open(&store, &runner, settings().with_keep_done(HOUR)).await;
    let queue = queue.unwrap();
    let world = World {
        store,
        runner,
        queue,
    };
    let first = world.enqueue_ref(1, &Enqueue::new()).await;
    let second = world.enqueue_ref(2, &Enqueue::new()).await;
    let options = WorkerOptions::default();
    let consumer = world.queue.consumer(&world.runner, options).await.unwrap();
    assert_eq!(consumer.pop_within(LONG).await.unwrap().unwrap().value, 1);
    wall.set(HOUR / 2);
    assert_eq!(consumer.pop_within(LONG).await.unwrap().unwrap().value, 2);
    wall.set(HOUR);
    until(async || world.count("z").await != 2).await;
    assert_eq!((world.count("x").await, world.count("z").await), (1, 1));
    assert_eq!(world.status(&first).await, None);
    let waited = world.queue.await_done(&world.runner, &first);
    assert_eq!(timeout(LONG, waited).await.unwrap(), None);
    assert_eq!(world.end(&second).await, Some((End::Completed, Vec::new())));
}

async fn a_session_whose_clock_is_an_hour_ahead_sweeps_nothing(store: TestStore) {
    // With such a long lease, no session is declared dead: the two remain the majority.
    let settings = Settings::new()
        .with_lease(Duration::from_secs(3))
        .with_keep_done(HOUR / 2)
        .with_dedupe_retention(HOUR / 2);
    let world = World::new(&store, settings.clone()).await;
    let consumer = world.consumer().await;
    let other = world.consumer().await;
    let once = Enqueue::new().with_dedupe("once");
    let item = world.enqueue_ref(7, &once).await;
    assert_eq!(consumer.pop_within(LONG).await.unwrap().unwrap().value, 7);
    let runner = Wall::ahead(HOUR).runner(&world.store);
    let queue = open(&world.store, &runner, settings).await.unwrap();
    let known = world.sessions().await;
    let options = WorkerOptions::default();
    let _ahead = queue.consumer(&runner, options).await.unwrap();
    let mut sessions = world.sessions().await;
    sessions.retain(|session| !known.contains(session));
    // Each heartbeat except the first comes after the sweep of the previous one.
    for _ in 0..3 {
        timeout(LONG, world.next_heartbeat(sessions[0])).await;
    }
    assert_eq!(world.kept().await, [1, 1, 1]);
    assert_eq!(world.end(&item).await, Some((End::Completed, Vec::new())));
    let repeated = world.enqueue_with(8, &once).await.unwrap();
    assert_eq!(repeated, Enqueued::Repeated);
    world.check().await;

    // Alone, the session has no other clock to compare its own with, by which everything has expired.
    consumer.shut_down(Duration::ZERO).await.unwrap();
    other.shut_down(Duration::ZERO).await.unwrap();
    until(async || world.kept().await == [0, 0, 0]).await;
}

async fn a_caller_waits_until_an_item_is_done(store: TestStore) {
    let world = World::new(&store, keeping()).await;
    let item = world.enqueue_ref(7, &Enqueue::new()).await;
    let queue = world.queue.clone();
    let runner = world.runner.clone();
    let waits = tokio::spawn(async move { queue.await_done(&runner, &item).await });
    let attempts = Arc::new(AtomicU64::new(0));
    let counted = attempts.clone();
    let handle = move |delivery: Delivery<u64>| {
        let attempt = counted.fetch_add(1, Ordering::Relaxed) + 1;
        async move {
            if attempt < 3 {
                return Outcome::Retry {
                    after: Some(Duration::ZERO),
                    reason: "not yet".to_owned(),
                };
            }
            delivery.set_result(attempt.to_string()).unwrap();
            Outcome::Done
        }
    };
    let worker = world
        .queue
        .work(&world.runner, WorkerOptions::new(), handle)
        .await
        .unwrap();
    let done = timeout(LONG, waits).await.unwrap().unwrap().unwrap();
    assert_eq!((done.attempts, &done.result[..]), (2, &b"3"[..]));
    assert!(matches!(
        done.place,
        Place::Done {
            end: End::Completed,
            ..
        }
    ));
    assert_eq!(attempts.load(Ordering::Relaxed), 3);
    worker.shut_down(LONG).await.unwrap();
}

async fn a_caller_that_waits_learns_that_an_item_is_a_dead_letter(store: TestStore) {
    // This also works if no done items are kept.
    let world = World::with_defaults(&store).await;
    let consumer = world.consumer().await;
    let item = world.enqueue_ref(7, &Enqueue::new()).await;
    let queue = world.queue.clone();
    let runner = world.runner.clone();
    let waits = tokio::spawn(async move { queue.await_done(&runner, &item).await });
    let delivery = consumer.dequeue_within(LONG).await.unwrap().unwrap();
    delivery.discard("no use").await.unwrap();
    let dead = timeout(LONG, waits).await.unwrap().unwrap().unwrap();
    assert_eq!((dead.place, dead.value), (Place::Dead, Ok(7)));
}

async fn a_wait_with_a_limit_says_whether_the_item_has_ended(store: TestStore) {
    let world = World::new(&store, keeping()).await;
    let queue = &world.queue;
    let wait = async |item: &ItemRef, limit| {
        let waited = queue.await_done_within(&world.runner, item, limit);
        timeout(LONG, waited).await.unwrap()
    };
    let item = &world.enqueue_ref(7, &Enqueue::new()).await;
    let pending = wait(item, Duration::ZERO).await;
    let Awaited::Pending(status) = pending else {
        panic!("{pending:?}");
    };
    assert_eq!((status.place, status.value), (Place::Queued, Ok(7)));
    // Whether it is over is seen even without time to wait.
    world.complete_all().await;
    for limit in [Duration::ZERO, Duration::MAX] {
        let ended = wait(item, limit).await;
        let Awaited::Ended(status) = ended else {
            panic!("{ended:?}");
        };
        assert!(matches!(status.place, Place::Done { .. }));
    }
    // It ends during the wait.
    let item = &world.enqueue_ref(8, &Enqueue::new()).await;
    let (ended, ()) = tokio::join!(wait(item, LONG), world.complete_all());
    assert!(matches!(ended, Awaited::Ended(_)), "{ended:?}");
    let without = World::with_defaults(&store).await;
    let item = &without.enqueue_ref(7, &Enqueue::new()).await;
    without.complete_all().await;
    let gone = without
        .queue
        .await_done_within(&without.runner, item, Duration::MAX);
    assert_eq!(gone.await.unwrap(), Awaited::Gone);
}

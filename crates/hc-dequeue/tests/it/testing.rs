//! The test kit for applications.

use std::future::pending;
use std::io;
use std::sync::Mutex;
use std::time::Duration;

use crate::common::{LONG, World};
use conformance::stores::TestStore;
use conformance::{timeout, until};
use hc_dequeue::testing::{
    Drained, EnqueuedItem, EnqueuedSince, ManualWall, advance_rates, drain, drain_process,
    drain_process_with, drain_with, enqueued,
};
use hc_dequeue::{
    Backoff, Batch, Delivery, Enqueue, Enqueued, Error, OnRepeat, Outcome, Queue, Schedule,
    Scheduled, Settings, WorkerOptions,
};
use keyspace::{MutationOp, RunOptions, Runner, Transaction, Tx};

conformance::on_every_store!(
    a_drain_handles_also_what_handlers_enqueue_in_the_order_of_the_queue,
    a_drain_counts_what_became_of_each_item,
    a_drain_commits_effects_with_the_items,
    what_comes_back_at_once_is_handled_again_until_it_is_dead,
    what_is_delayed_is_handled_when_the_wall_has_come_there,
    a_schedule_fires_when_the_wall_has_come_to_its_time,
    a_worker_that_runs_follows_the_wall,
    what_a_drain_cannot_handle_stays,
    a_drain_has_the_backoff_and_the_time_limit_of_its_options,
    a_drain_counts_what_does_not_decode,
    a_drain_that_is_dropped_holds_nothing,
    enqueued_items_show_values_times_and_dedupe_ids,
    enqueued_items_show_kinds_priorities_batches_and_limits,
    what_was_enqueued_before_or_not_committed_is_not_shown,
    an_item_that_does_not_decode_is_an_error,
);

type Item = Delivery<u64>;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const NONE: [u64; 0] = [];

/// Returns a world with a wall clock that the test sets.
pub(crate) async fn with_wall(store: &TestStore, settings: Settings) -> (World, ManualWall) {
    let store = store.fresh();
    let wall = ManualWall::new();
    let options = RunOptions::default()
        .with_ledger_subspace(store.root.subspace(&"ledgers"))
        .with_environment(wall.environment());
    let runner = Runner::with_options(store.db.clone(), options);
    let queue = crate::common::open(&store, &runner, settings)
        .await
        .unwrap();
    let world = World {
        store,
        runner,
        queue,
    };
    (world, wall)
}

fn completed(completed: u64) -> Drained {
    Drained {
        completed,
        ..Drained::default()
    }
}

/// Drains the queue, and returns the values in the order in which they were handled.
async fn drain_to_values(world: &World) -> Vec<u64> {
    let values = Mutex::new(Vec::new());
    let handler = async |item: Item| values.lock().unwrap().push(*item.value());
    let drained = drain(&world.runner, &world.queue, handler).await.unwrap();
    let values = values.into_inner().unwrap();
    assert_eq!(drained, completed(values.len() as u64));
    values
}

async fn a_drain_handles_also_what_handlers_enqueue_in_the_order_of_the_queue(store: TestStore) {
    let (world, _wall) = with_wall(&store, Settings::new()).await;
    let world = &world;
    let values = &Mutex::new(Vec::new());
    world.enqueue(1..=30).await;
    let handler = |item: Item| async move {
        values.lock().unwrap().push(*item.value());
        if *item.value() <= 30 {
            world.enqueue([item.value() + 100]).await;
        }
    };
    let drained = drain(&world.runner, &world.queue, handler).await.unwrap();
    assert_eq!(drained, completed(60));
    let expected: Vec<_> = (1..=30).chain(101..=130).collect();
    assert_eq!(*values.lock().unwrap(), expected);
    let stats = world.stats().await;
    assert_eq!((stats.queued, stats.held, stats.completed), (0, 0, 60));
    // The session of the drain has ended.
    assert_eq!(world.count("s").await, 0);
    world.check().await;
}

async fn a_drain_counts_what_became_of_each_item(store: TestStore) {
    for keep_done in [Duration::ZERO, DAY] {
        let settings = Settings::new()
            .with_max_attempts(2)
            .with_keep_done(keep_done);
        count_what_became_of_each_item(&store, settings).await;
    }
}

async fn count_what_became_of_each_item(store: &TestStore, settings: Settings) {
    let (world, wall) = with_wall(store, settings).await;
    let world = &world;
    world.enqueue(0..=10).await;
    let only_attempt = Enqueue::new().with_max_attempts(1);
    let enqueued = world.enqueue_with(11, &only_attempt).await.unwrap();
    assert!(matches!(enqueued, Enqueued::Staged(_)));
    let handler = |item: Item| async move {
        let again = item.deliveries() > 1;
        match item.value() {
            0 => Ok(Outcome::Done),
            1 if !again => Ok(Outcome::snooze(DAY)),
            2 if !again => Ok(Outcome::retry_after(DAY, "not yet")),
            3 => Ok(Outcome::discard("of no use")),
            4 | 11 => Err(io::Error::other("no disk")),
            5 => panic!("no luck"),
            6 => {
                // The outcome that the handler returns afterwards has no effect.
                world.ack(&item).await.unwrap();
                Err(io::Error::other("too late"))
            }
            7 | 8 => {
                let queue = &world.queue;
                let reference = &item.item_ref();
                let cancel = |tr| async move { queue.cancel(&tr, reference).await.map(drop) };
                world.runner.run(cancel).await.unwrap();
                match item.value() {
                    7 => Ok(Outcome::Done),
                    // The future of this handler is dropped.
                    _ => pending().await,
                }
            }
            9 if !again => {
                item.release().await.unwrap();
                Ok(Outcome::Done)
            }
            10 if !again => {
                item.nack().await.unwrap();
                Ok(Outcome::Done)
            }
            _ => Ok(Outcome::Done),
        }
    };
    let first = Drained {
        completed: 4,
        snoozed: 2,
        retried: 4,
        dead: 2,
        cancelled: 2,
        undecodable: 0,
    };
    let drained = drain(&world.runner, &world.queue, handler).await.unwrap();
    assert_eq!(drained, first);
    wall.advance(DAY);
    let second = Drained {
        completed: 2,
        dead: 2,
        ..Drained::default()
    };
    let drained = drain(&world.runner, &world.queue, handler).await.unwrap();
    assert_eq!(drained, second);
    let stats = world.stats().await;
    let ends = (stats.completed, stats.dead, stats.cancelled);
    assert_eq!((ends, stats.queued, stats.delayed), ((6, 4, 2), 0, 0));
    world.check().await;
}

async fn a_drain_commits_effects_with_the_items(store: TestStore) {
    let (world, _wall) = with_wall(&store, Settings::new()).await;
    world.enqueue(1..=3).await;
    let next = &world.store.root.pack(&"next");
    let queue = &world.queue;
    let handler = |tr: Tx<_>, item: Item| async move {
        tr.atomic(MutationOp::Add, next, &1_u64.to_le_bytes());
        if *item.value() <= 3 {
            queue.enqueue(&tr, &(item.value() + 10)).await?;
        }
        Ok::<_, Error>(match item.value() {
            1 => Outcome::Done,
            _ => Outcome::discard("of no use"),
        })
    };
    let drained = drain_process(&world.runner, queue, handler).await;
    let expected = Drained {
        completed: 1,
        dead: 3,
        ..Drained::default()
    };
    assert_eq!(drained.unwrap(), expected);
    let read = |tr: Tx<_>| async move { tr.get(next, keyspace::Isolation::Snapshot).await };
    let value = world.runner.run(read).await.unwrap();
    assert_eq!(value.as_deref(), Some(&1_u64.to_le_bytes()[..]));
    world.check().await;
}

async fn what_comes_back_at_once_is_handled_again_until_it_is_dead(store: TestStore) {
    let settings = Settings::new().with_max_attempts(3).with_max_deliveries(5);
    let (world, _wall) = with_wall(&store, settings).await;
    world.enqueue([0, 1, 2]).await;
    let values = &Mutex::new(Vec::new());
    let handler = |item: Item| async move {
        values.lock().unwrap().push(*item.value());
        match item.value() {
            0 => Outcome::retry_after(Duration::ZERO, "never"),
            1 => Outcome::snooze(Duration::ZERO),
            _ => Outcome::Done,
        }
    };
    let drained = drain(&world.runner, &world.queue, handler).await.unwrap();
    let expected = Drained {
        completed: 1,
        snoozed: 4,
        retried: 2,
        dead: 2,
        ..Drained::default()
    };
    assert_eq!(drained, expected);
    // Items that come back alternate with those that have not.
    assert_eq!(*values.lock().unwrap(), [0, 0, 1, 0, 2, 1, 1, 1, 1]);
    world.check().await;
}

async fn what_is_delayed_is_handled_when_the_wall_has_come_there(store: TestStore) {
    let (world, wall) = with_wall(&store, Settings::new()).await;
    for (value, days) in [(1, 2), (2, 1)] {
        let later = Enqueue::new().with_delay(days * DAY);
        let enqueued = world.enqueue_with(value, &later).await.unwrap();
        assert!(matches!(enqueued, Enqueued::Staged(_)));
    }
    assert_eq!(drain_to_values(&world).await, NONE);
    wall.advance(DAY - Duration::from_millis(1));
    assert_eq!(drain_to_values(&world).await, NONE);
    wall.advance(Duration::from_millis(1));
    assert_eq!(drain_to_values(&world).await, [2]);
    wall.set(wall.time() + DAY);
    assert_eq!(drain_to_values(&world).await, [1]);
    // The backoff after a failure ends within five minutes.
    world.enqueue([3]).await;
    let fail = async |_| Err::<(), _>("no disk");
    let failed = drain(&world.runner, &world.queue, fail).await.unwrap();
    assert_eq!((failed.retried, failed.completed), (1, 0));
    assert_eq!(drain_to_values(&world).await, NONE);
    wall.advance(Duration::from_secs(5 * 60));
    assert_eq!(drain_to_values(&world).await, [3]);
}

async fn a_schedule_fires_when_the_wall_has_come_to_its_time(store: TestStore) {
    let (world, wall) = with_wall(&store, Settings::new()).await;
    let queue = &world.queue;
    let daily = &Schedule::new("0 9 * * *");
    let schedule = |tr| async move { queue.schedule(&tr, "a", daily, &7).await };
    let scheduled = world.runner.run(schedule).await.unwrap();
    assert_eq!(scheduled, Scheduled::Created);
    let list = |tr| async move { queue.schedules(&tr, None, 1).await };
    for _ in 0..2 {
        let listed = world.runner.run(list).await.unwrap().remove(0);
        let next = listed.entry.unwrap().next.unwrap();
        wall.set(next - Duration::from_millis(1));
        assert_eq!(drain_to_values(&world).await, NONE);
        wall.set(next);
        assert_eq!(drain_to_values(&world).await, [7]);
        assert_eq!(drain_to_values(&world).await, NONE);
    }
}

async fn a_worker_that_runs_follows_the_wall(store: TestStore) {
    let settings = Settings::new().with_lease(Duration::from_millis(600));
    let (world, wall) = with_wall(&store, settings).await;
    let tomorrow = Enqueue::new().with_delay(DAY);
    let enqueued = world.enqueue_with(1, &tomorrow).await.unwrap();
    assert!(matches!(enqueued, Enqueued::Staged(_)));
    let options = WorkerOptions::new().with_poll_interval(Duration::from_millis(100));
    let handler = async |_| ();
    let worker = world.queue.work(&world.runner, options, handler).await;
    assert_eq!(world.stats().await.delayed, 1);
    wall.advance(DAY);
    let idle = world.queue.wait_idle(&world.runner);
    timeout(LONG, idle).await.unwrap();
    worker.unwrap().shut_down(LONG).await.unwrap();
    assert_eq!(world.stats().await.completed, 1);
}

async fn what_a_drain_cannot_handle_stays(store: TestStore) {
    let (world, _wall) = with_wall(&store, Settings::new()).await;
    world.enqueue([1]).await;
    let queue = &world.queue;
    let pause = |tr: Tx<_>| async move {
        queue.pause(&tr);
        Ok::<_, Error>(())
    };
    world.runner.run(pause).await.unwrap();
    assert_eq!(drain_to_values(&world).await, NONE);
    assert_eq!(world.values().await, [1]);
    let resume = |tr: Tx<_>| async move {
        queue.resume(&tr);
        queue.enqueue(&tr, &2).await
    };
    world.runner.run(resume).await.unwrap();
    assert_eq!(drain_to_values(&world).await, [1, 2]);
    world.check().await;
}

async fn a_drain_counts_what_does_not_decode(store: TestStore) {
    let (world, wall) = with_wall(&store, Settings::new().with_max_attempts(2)).await;
    let queue = &world.queue;
    let texts = &of_texts(&world).await;
    world.enqueue([1]).await;
    let enqueue = |tr| async move { texts.enqueue(&tr, &"no number".to_owned()).await };
    world.runner.run(enqueue).await.unwrap();
    world.enqueue([2]).await;
    let handler = async |_| ();
    let both = Drained {
        completed: 2,
        undecodable: 1,
        ..Drained::default()
    };
    let drained = drain(&world.runner, queue, handler).await.unwrap();
    assert_eq!(drained, both);
    assert_eq!(world.stats().await.delayed, 1);
    // Its last attempt, after which it is a dead letter.
    wall.advance(DAY);
    let one = Drained {
        undecodable: 1,
        ..Drained::default()
    };
    let handler = async |_: Tx<_>, _: Item| ();
    let drained = drain_process(&world.runner, queue, handler).await.unwrap();
    assert_eq!(drained, one);
    assert_eq!(world.stats().await.dead, 1);
    let drained = drain_process(&world.runner, queue, handler).await.unwrap();
    assert_eq!(drained, Drained::default());
    world.check().await;
}

async fn a_drain_has_the_backoff_and_the_time_limit_of_its_options(store: TestStore) {
    let (world, wall) = with_wall(&store, Settings::new()).await;
    let runner = &world.runner;
    let queue = &world.queue;
    let options = WorkerOptions::new()
        .with_backoff(Backoff::new(2 * DAY, 2 * DAY))
        .with_time_limit(Duration::from_millis(50));
    let retried = Drained {
        retried: 1,
        ..Drained::default()
    };
    let hang = async |_: Item| pending::<()>().await;
    let fail = async |_: Tx<_>, _: Item| Err::<(), _>("no disk");
    world.enqueue([1]).await;
    let drained = drain_with(runner, queue, options.clone(), hang).await;
    assert_eq!(drained.unwrap(), retried);
    // A random part of up to half of the backoff is subtracted.
    wall.advance(DAY - Duration::from_secs(60));
    assert_eq!(drain_to_values(&world).await, NONE);
    wall.advance(2 * DAY);
    let options = options.with_time_limit(LONG);
    let drained = drain_process_with(runner, queue, options, fail).await;
    assert_eq!(drained.unwrap(), retried);
    wall.advance(DAY - Duration::from_secs(60));
    assert_eq!(drain_to_values(&world).await, NONE);
    wall.advance(4 * DAY);
    assert_eq!(drain_to_values(&world).await, [1]);
    world.check().await;
}

/// Opens the queue as one of texts.
async fn of_texts(world: &World) -> Queue<String> {
    let subspace = world.queue.subspace().clone();
    let queue = Queue::open(&world.runner, subspace);
    queue.await.unwrap()
}

async fn a_drain_that_is_dropped_holds_nothing(store: TestStore) {
    let world = World::new(&store, Settings::new().with_max_attempts(1)).await;
    world.enqueue([1]).await;
    let (handles, is_handled) = tokio::sync::oneshot::channel();
    let handles = &Mutex::new(Some(handles));
    let handler = |_| async move {
        let _ = handles.lock().unwrap().take().unwrap().send(());
        pending::<()>().await;
    };
    tokio::select! {
        _ = drain(&world.runner, &world.queue, handler) => unreachable!("the handler hangs"),
        handled = is_handled => handled.unwrap(),
    }
    until(async || world.count("s").await == 0).await;
    // The dropped delivery has not failed.
    assert_eq!(drain_to_values(&world).await, [1]);
    world.check().await;
}

async fn enqueued_items_show_values_times_and_dedupe_ids(store: TestStore) {
    let (world, wall) = with_wall(&store, Settings::new()).await;
    let new = EnqueuedSince::now(&world.runner, &world.queue)
        .await
        .unwrap();
    assert_eq!(new.items().await.unwrap(), []);
    let in_a_day = Enqueue::new().with_delay(DAY).with_dedupe("a");
    let in_an_hour = Enqueue::new().with_due_time(wall.time() + DAY / 24);
    for (value, options) in [
        (1, Enqueue::new()),
        (2, in_a_day),
        (3, in_an_hour),
        (4, Enqueue::new().with_dedupe("b")),
    ] {
        let enqueued = world.enqueue_with(value, &options).await.unwrap();
        assert!(matches!(enqueued, Enqueued::Staged(_)));
    }
    let expected = [
        EnqueuedItem::new(1),
        EnqueuedItem::new(4).dedupe("b"),
        EnqueuedItem::new(3).ready(wall.time() + DAY / 24),
        EnqueuedItem::new(2).ready(wall.time() + DAY).dedupe("a"),
    ];
    assert_eq!(new.items().await.unwrap(), expected);
    let all = enqueued(&world.runner, &world.queue).await.unwrap();
    assert_eq!(all, expected);
    assert_eq!(new.values().await.unwrap(), [1, 4, 3, 2]);
    assert_eq!(drain_to_values(&world).await, [1, 4]);
    assert_eq!(new.values().await.unwrap(), [3, 2]);
}

async fn enqueued_items_show_kinds_priorities_batches_and_limits(store: TestStore) {
    let (world, wall) = with_wall(&store, Settings::new()).await;
    let queue = &world.queue;
    let open = |tr| async move { queue.open_batch(&tr, &Batch::new()).await };
    let batch = world.runner.run(open).await.unwrap();
    let urgent = Enqueue::new()
        .with_kind("invoice")
        .with_priority(3)
        .with_max_attempts(4)
        .with_max_deaths(5)
        .with_max_deliveries(6);
    let member = Enqueue::new().with_group("a").with_batch(&batch);
    let later = member.clone().with_delay(DAY).with_priority(-1);
    for (value, options) in [(1, &member), (2, &later), (3, &urgent)] {
        let enqueued = world.enqueue_with(value, options).await.unwrap();
        assert!(matches!(enqueued, Enqueued::Staged(_)));
    }
    let expected = [
        EnqueuedItem::new(3)
            .kind("invoice")
            .priority(3)
            .max_attempts(4)
            .max_deaths(5)
            .max_deliveries(6),
        EnqueuedItem::new(1).group("a").batch(&batch),
        EnqueuedItem::new(2)
            .group("a")
            .batch(&batch)
            .priority(-1)
            .ready(wall.time() + DAY),
    ];
    assert_eq!(enqueued(&world.runner, queue).await.unwrap(), expected);
    // Each of them matters to the comparison.
    let plain = || EnqueuedItem::new(3);
    for other in [
        plain().kind("invoice"),
        plain().priority(3),
        plain().max_attempts(4),
        plain().max_deaths(5),
        plain().max_deliveries(6),
        plain().batch(&batch),
    ] {
        assert_ne!(other, plain());
    }
}

async fn what_was_enqueued_before_or_not_committed_is_not_shown(store: TestStore) {
    let (world, _wall) = with_wall(&store, Settings::new()).await;
    let deduped = Enqueue::new().with_dedupe("a");
    let delayed = Enqueue::new().with_delay(DAY);
    for (value, options) in [(1, &deduped), (2, &delayed)] {
        let enqueued = world.enqueue_with(value, options).await.unwrap();
        assert!(matches!(enqueued, Enqueued::Staged(_)));
    }
    let new = EnqueuedSince::now(&world.runner, &world.queue)
        .await
        .unwrap();
    let repeated = world.enqueue_with(3, &deduped).await.unwrap();
    assert_eq!(repeated, Enqueued::Repeated);
    let replace = deduped.clone().with_on_repeat(OnRepeat::Replace);
    let replaced = world.enqueue_with(4, &replace).await.unwrap();
    assert!(matches!(replaced, Enqueued::Replaced(_)));
    let queue = &world.queue;
    let fail = |tr: Tx<_>| async move {
        queue.enqueue(&tr, &5).await?;
        let wanted = 0;
        Err::<(), _>(Error::Wanted { wanted, limit: 1 })
    };
    world.runner.run(fail).await.unwrap_err();
    assert_eq!(new.values().await.unwrap(), NONE);
    world.enqueue([6]).await;
    assert_eq!(new.values().await.unwrap(), [6]);
    let all: Vec<_> = enqueued(&world.runner, queue)
        .await
        .unwrap()
        .into_iter()
        .map(|item| item.value)
        .collect();
    assert_eq!(all, [4, 6, 2]);
}

async fn an_item_that_does_not_decode_is_an_error(store: TestStore) {
    let (world, _wall) = with_wall(&store, Settings::new()).await;
    let texts = &of_texts(&world).await;
    for options in [Enqueue::new(), Enqueue::new().with_delay(DAY)] {
        let options = &options;
        let text = &"no number".to_owned();
        let enqueue = |tr| async move { texts.enqueue_with(&tr, text, options).await };
        let enqueued_text = world.runner.run(enqueue).await.unwrap();
        assert!(matches!(enqueued_text, Enqueued::Staged(_)));
        let refused = enqueued(&world.runner, &world.queue).await;
        let is_corrupt = matches!(
            refused,
            Err(Error::Keyspace(keyspace::Error::Corrupt { .. }))
        );
        assert!(is_corrupt, "{refused:?}");
        let _ = world.queue.clear(&world.runner).await.unwrap();
    }
}

#[test]
fn futures_are_send() {
    fn assert_send<F: Send>(_: impl Fn(World) -> F) {}
    assert_send(|world| async move {
        drain(&world.runner, &world.queue, |_| async {}).await?;
        let done = |_, _| async { Ok::<_, Error>(()) };
        drain_process(&world.runner, &world.queue, done).await?;
        let options = WorkerOptions::new();
        drain_with(&world.runner, &world.queue, options.clone(), |_| async {}).await?;
        drain_process_with(&world.runner, &world.queue, options, done).await?;
        advance_rates(&world.runner, &world.queue, DAY).await?;
        let new = EnqueuedSince::now(&world.runner, &world.queue).await?;
        new.values().await?;
        enqueued(&world.runner, &world.queue).await
    });
}

//! Sessions fire schedules at their times. A session whose wall clock is far off leaves schedules and delayed items
//! to the others.

use std::time::Duration;

use crate::common::{LONG, Wall, World};
use conformance::stores::TestStore;
use conformance::{timeout, until};
use hc_dequeue::session::{Member, SessionId, Sessions};
use hc_dequeue::{
    Consumer, Enqueue, Enqueued, MAX_MISSED, Missed, Queue, Schedule, Scheduled, Settings,
    WorkerOptions,
};
use keyspace::{Environment, Runner, Store, Tx};

conformance::on_every_store!(
    each_time_is_delivered_once_while_sessions_of_several_processes_fire,
    a_session_that_wants_nothing_fires_in_time,
    a_session_that_sleeps_learns_of_a_new_schedule,
    a_session_whose_clock_is_an_hour_ahead_neither_fires_nor_promotes,
    a_clock_that_was_set_right_is_trusted_at_the_next_heartbeat,
);

/// With such a long lease, only the first census of a session counts, and no test waits for the next tick of a session.
fn settings() -> Settings {
    Settings::new().with_lease(LONG * 60)
}

/// A process with a clock of its own.
struct ClockedProcess {
    runner: Runner<Store>,
    queue: Queue<u64>,
}

impl ClockedProcess {
    async fn start(store: &TestStore, ahead: Duration) -> Self {
        let runner = Wall::ahead(ahead).runner(store);
        let queue = crate::common::open(store, &runner, settings()).await;
        let queue = queue.unwrap();
        Self { runner, queue }
    }

    async fn consumer(&self) -> Consumer<u64> {
        let options = WorkerOptions::default();
        self.queue.consumer(&self.runner, options).await.unwrap()
    }

    async fn schedule(&self, schedule: &Schedule) {
        let queue = &self.queue;
        let schedule = |tr| async move { queue.schedule(&tr, "a", schedule, &7).await };
        assert_eq!(self.runner.run(schedule).await.unwrap(), Scheduled::Created);
    }
}

const HOUR: Duration = Duration::from_secs(60 * 60);

async fn each_time_is_delivered_once_while_sessions_of_several_processes_fire(store: TestStore) {
    let store = store.fresh();
    let one = ClockedProcess::start(&store, Duration::ZERO).await;
    let other = ClockedProcess::start(&store, Duration::from_millis(50)).await;
    let consumer = one.consumer().await;
    let idle = other.consumer().await;
    let each_second = Schedule::new("* * * * * *").with_missed(Missed::All { cap: MAX_MISSED });
    other.schedule(&each_second).await;
    let mut times = Vec::new();
    for _ in 0..3 {
        let next = consumer.dequeue_within(LONG);
        let delivery = timeout(LONG, next).await.unwrap().unwrap();
        assert_eq!(*delivery.value(), 7);
        times.push(delivery.enqueued());
        let delivery = &delivery;
        let ack = |tr| async move { delivery.ack(&tr).await };
        one.runner.run(ack).await.unwrap();
    }
    let later = times.windows(2).map(|pair| pair[1].duration_since(pair[0]));
    assert!(
        later
            .into_iter()
            .all(|later| later.unwrap() == Duration::from_secs(1)),
        "{times:?}"
    );
    drop((consumer, idle));
    assert!(one.queue.audit(&one.runner).await.unwrap().is_clean());
}

async fn a_session_that_wants_nothing_fires_in_time(store: TestStore) {
    let world = World::new(&store, settings()).await;
    let process = ClockedProcess::start(&world.store, Duration::ZERO).await;
    process.schedule(&Schedule::new("* * * * * *")).await;
    let _idle = world.consumer().await;
    // The next tick of the session would be too late.
    until(async || world.stats().await.queued >= 2).await;
    world.check().await;
}

async fn a_session_that_sleeps_learns_of_a_new_schedule(store: TestStore) {
    let store = store.fresh();
    let world = World::recorded(&store, settings()).await;
    let process = ClockedProcess {
        runner: world.runner.clone(),
        queue: world.queue.clone(),
    };
    let consumer = process.consumer().await;
    let next = tokio::spawn(async move { consumer.dequeue_within(LONG).await });
    world.until_requested(1).await;
    process.schedule(&Schedule::new("* * * * * *")).await;
    // The next regular check would be too late.
    let delivery = timeout(LONG, next).await.unwrap().unwrap().unwrap();
    assert_eq!(*delivery.value(), 7);
    assert!(world.recorded_sum("hc_dequeue_fired") >= 1.0);
}

async fn a_session_whose_clock_is_an_hour_ahead_neither_fires_nor_promotes(store: TestStore) {
    // With one other session, it is unknown which of the two clocks is right.
    for others in 0..3 {
        let world = World::recorded(&store, settings()).await;
        let store = &world.store;
        let mut sessions = Vec::new();
        for _ in 0..others {
            sessions.push(world.consumer().await);
        }
        // Both are due in half an hour.
        let later = Enqueue::new().with_delay(HOUR / 2);
        let enqueued = world.enqueue_with(1, &later).await.unwrap();
        assert!(matches!(enqueued, Enqueued::Staged(_)));
        let half_an_hour_ahead = ClockedProcess::start(store, HOUR / 2).await;
        half_an_hour_ahead
            .schedule(&Schedule::new("* * * * *"))
            .await;

        let ahead = ClockedProcess::start(store, HOUR).await.consumer().await;
        let first = ahead.dequeue().await.unwrap();
        let second = ahead.dequeue().await.unwrap();
        let taken = [first, second].into_iter().flatten();
        let mut values: Vec<_> = taken.map(|delivery| *delivery.value()).collect();
        values.sort_unstable();
        let stats = world.stats().await;
        let error = world.recorded_sum("hc_dequeue_clock_error_seconds");
        if others < 2 {
            assert_eq!((values, stats.delayed, error), (vec![1, 7], 0, 0.0));
        } else {
            assert_eq!((values, stats.delayed, stats.queued), (vec![], 1, 0));
            assert!((3_000.0..4_200.0).contains(&error), "{error}");
            // The registry is used, too: this gets the item that is enqueued later.
            let next = tokio::spawn(async move { ahead.dequeue_within(LONG).await });
            world.until_requested(1).await;
            world.enqueue([2]).await;
            let next = timeout(LONG, next).await.unwrap().unwrap().unwrap();
            assert_eq!((*next.value(), world.stats().await.delayed), (2, 1));
        }
        world.check().await;
    }
}

async fn a_clock_that_was_set_right_is_trusted_at_the_next_heartbeat(store: TestStore) {
    let store = store.fresh();
    let sessions = &Sessions::new(store.root.clone());
    let open = |tr: Tx<_>| async move {
        // With this many sessions, each of them takes a census rarely.
        for number in 0..100 {
            let wall = Environment::system().wall();
            sessions.open(&tr, SessionId([number; 16]), LONG, wall);
        }
        Ok::<_, keyspace::Error>(())
    };
    store.runner().run(open).await.unwrap();
    let wall = Wall::ahead(HOUR);
    let runner = wall.runner(&store);
    let mut member = Member::new(sessions.clone(), &runner, LONG);
    member.open().await.unwrap();
    for (ahead, is_trusted) in [
        (HOUR, false),
        (Duration::ZERO, true),
        (HOUR, false),
        (HOUR, false),
    ] {
        wall.set(ahead);
        assert_eq!(member.find_dead().await.unwrap(), []);
        assert_eq!(member.trusts_clock(), is_trusted);
        let error = member.clock_error_seconds();
        assert!((error - ahead.as_secs_f64()).abs() < 600.0, "{error}");
    }
}

//! Sessions on a store that is slow or unavailable for a while, in simulated time: dead sessions are found, and no
//! living session is declared dead.

mod simulation;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use conformance::chaos::{Chaos, Faults};
use hc_dequeue::session::{Member, SessionId, Sessions, Tick};
use hc_dequeue::{Enqueue, Queue, Settings, WorkerOptions};
use keyspace::env::ManualClock;
use keyspace::{
    Embedded, Environment, Error, OpenOptions, RunOptions, Runner, Subspace, Transaction,
};

use simulation::{Outage, Simulation};

const LEASE: Duration = Duration::from_secs(1);

/// After how many of its own ticks a session has found a dead one. It judges after seven observations and takes a
/// census at every second tick. A tick that takes time may delay each of them by one.
const TICKS_TO_FIND: u32 = 11;

/// The history of a session.
#[derive(Debug, Default)]
struct SlowCourse {
    ticks: AtomicU32,
    /// How often it was declared dead.
    deaths: AtomicU32,
    /// How many other sessions it has declared dead.
    found: AtomicU32,
    /// The lease that it should promise, in milliseconds. Zero stands for [`LEASE`].
    lease: AtomicU32,
}

impl SlowCourse {
    fn lease(&self) -> Duration {
        match self.lease.load(Ordering::Relaxed) {
            0 => LEASE,
            millis => Duration::from_millis(millis.into()),
        }
    }
}

/// Runs a member with its own time and connection to the store.
async fn live(runner: Runner<Chaos<Embedded>>, work: u32, course: Arc<SlowCourse>) {
    let env = runner.environment().clone();
    let sessions = Sessions::new(Subspace::from("sessions"));
    let mut member = Member::new(sessions, &runner, LEASE);
    member.open().await.unwrap();
    let mut lease = LEASE;
    loop {
        if env.now() >= member.next_tick() {
            if lease != course.lease() {
                lease = course.lease();
                member.set_lease(lease);
            }
            let tick = member.tick().await.unwrap();
            course.ticks.fetch_add(1, Ordering::Relaxed);
            match tick {
                Tick::Observed => {}
                Tick::Heartbeat => {
                    let dead: Vec<SessionId> = member.find_dead().await.unwrap();
                    let found = u32::try_from(dead.len()).unwrap();
                    course.found.store(found, Ordering::Relaxed);
                }
                Tick::Dead => {
                    course.deaths.fetch_add(1, Ordering::Relaxed);
                    member.open().await.unwrap();
                }
            }
        }
        for _ in 0..work {
            let read = |tr: keyspace::Tx<_>| async move { tr.read_version().await };
            runner.run::<_, Error, _, _, _>(read).await.unwrap();
        }
        env.sleep(member.next_tick().saturating_sub(env.now()))
            .await;
    }
}

/// Some members on one store.
struct SlowWorld {
    simulation: Simulation,
    courses: Vec<Arc<SlowCourse>>,
}

impl SlowWorld {
    /// Starts members that do the given work besides their ticks, on a store with the given latency.
    fn new(seed: u64, latency: Duration, work: &[u32]) -> Self {
        let db = keyspace::embedded::Options::new().memory().unwrap();
        let mut simulation = Simulation::new(seed);
        let mut courses = Vec::new();
        for work in work {
            let way = simulation.way_to_the_store();
            let chaos = Chaos::new(db.clone(), way, Faults::default());
            chaos.set_latency(latency);
            let options = RunOptions::default().with_environment(simulation.environment());
            let runner = Runner::with_options(chaos, options);
            let course = Arc::new(SlowCourse::default());
            courses.push(course.clone());
            simulation.begin(live(runner, *work, course));
        }
        Self {
            simulation,
            courses,
        }
    }

    fn ticks(&self, member: usize) -> u32 {
        self.courses[member].ticks.load(Ordering::Relaxed)
    }

    /// Simulates until every member has done this many more ticks.
    async fn tick(&mut self, ticks: u32) {
        let living = self.simulation.living();
        let goals = living
            .into_iter()
            .map(|member| (member, self.ticks(member) + ticks));
        for (member, goal) in goals.collect::<Vec<_>>() {
            while self.ticks(member) < goal {
                self.simulation.step().await;
            }
        }
    }

    fn deaths(&self) -> u32 {
        let deaths = self.courses.iter();
        deaths
            .map(|course| course.deaths.load(Ordering::Relaxed))
            .sum()
    }

    /// Kills the last member, and returns after how many ticks the slowest of the others has found it.
    async fn find_the_last(&mut self) -> u32 {
        let last = self.courses.len() - 1;
        self.simulation.kill(last);
        let before: Vec<_> = (0..last).map(|member| self.ticks(member)).collect();
        let mut slowest = 0;
        for (member, before) in before.iter().enumerate() {
            while self.courses[member].found.load(Ordering::Relaxed) == 0 {
                self.simulation.step().await;
                slowest = slowest.max(self.ticks(member) - before);
                if slowest > 100 {
                    return slowest;
                }
            }
        }
        slowest
    }
}

/// The latencies of the store: up to several leases, and below and above each part of the lease in which something is
/// due.
fn latencies() -> impl Iterator<Item = Duration> {
    [
        0, 1, 10, 30, 60, 80, 90, 160, 170, 240, 260, 340, 500, 1000, 1600, 4000,
    ]
    .into_iter()
    .map(Duration::from_millis)
}

#[tokio::test]
async fn a_dead_session_is_found_however_slow_the_store_is_and_no_other() {
    for (seed, latency) in (0..).zip(latencies()) {
        // Some members do three times as much as the others.
        for work in [&[0, 0, 0][..], &[0, 12, 0, 12]] {
            let mut world = SlowWorld::new(seed, latency, work);
            world.tick(20).await;
            assert_eq!(world.deaths(), 0, "of {latency:?}, {work:?}");
            let ticks = world.find_the_last().await;
            assert!(
                ticks <= TICKS_TO_FIND,
                "{ticks} ticks, {latency:?}, {work:?}"
            );
            world.tick(10).await;
            assert_eq!(world.deaths(), 0, "of {latency:?}, {work:?}");
        }
    }
}

#[tokio::test]
async fn an_outage_of_any_length_costs_no_session() {
    for (seed, millis) in (0..).zip([100, 250, 400, 1000, 3000, 100_000]) {
        let length = Duration::from_millis(millis);
        for latency in [0, 20, 90, 300, 2000].map(Duration::from_millis) {
            let mut world = SlowWorld::new(seed, latency, &[0, 6, 0]);
            world.tick(10).await;
            // At several times between two heartbeats, and again soon after each.
            for part in 0..6 {
                let begin = world.simulation.now() + LEASE / 20 * part;
                let end = begin + length;
                world.simulation.plan(Outage { begin, end });
                while world.simulation.now() < end {
                    world.simulation.step().await;
                }
                world.tick(1 + part).await;
                assert_eq!(world.deaths(), 0, "{length:?}, {latency:?}, part {part}");
            }
            let ticks = world.find_the_last().await;
            assert!(
                ticks <= TICKS_TO_FIND,
                "{ticks} ticks, {length:?}, {latency:?}"
            );
        }
    }
}

#[tokio::test]
async fn a_lease_that_changes_costs_no_session_and_holds_for_the_next_death() {
    for (seed, latency) in (0..).zip(latencies()) {
        let mut world = SlowWorld::new(seed, latency, &[0, 3, 0]);
        world.tick(10).await;
        // Each member adopts a lease at another time, and all of them do so eventually.
        for millis in [10_000, 300, 2_000, 60_000, 100] {
            for member in 0..3 {
                let lease = &world.courses[member].lease;
                lease.store(millis, Ordering::Relaxed);
                world.tick(3).await;
                assert_eq!(
                    world.deaths(),
                    0,
                    "{latency:?}, member {member}, {millis} ms"
                );
            }
            world.tick(20).await;
            assert_eq!(world.deaths(), 0, "{latency:?}, {millis} ms");
        }
        let ticks = world.find_the_last().await;
        assert!(ticks <= TICKS_TO_FIND, "{ticks} ticks, {latency:?}");
    }
}

#[tokio::test]
async fn what_a_dead_session_held_comes_back_where_every_answer_takes_half_a_lease() {
    let db = keyspace::embedded::Options::new().memory().unwrap();
    let env = Environment::seeded(1, Arc::new(ManualClock::moved_by_sleepers()));
    let begin = || {
        let chaos = Chaos::new(db.clone(), env.clone(), Faults::default());
        let options = RunOptions::default().with_environment(env.clone());
        (chaos.clone(), Runner::with_options(chaos, options))
    };
    let settings = Settings::new().with_lease(LEASE);
    let (doomed, its_runner) = begin();
    let (slow, runner) = begin();
    let queue = Queue::<u64>::open_with(&runner, "queue", settings, OpenOptions::default());
    let queue = &queue.await.unwrap();
    let enqueue = |tr| async move { queue.enqueue(&tr, &7).await.map(drop) };
    runner.run(enqueue).await.unwrap();
    let options = WorkerOptions::default();
    let holder = queue.consumer(&its_runner, options.clone()).await.unwrap();
    let held = holder.dequeue().await.unwrap().unwrap();
    doomed.stop();

    slow.set_latency(LEASE / 2);
    let heir = queue.consumer(&runner, options).await.unwrap();
    let delivery = heir.dequeue_within(1000 * LEASE).await.unwrap().unwrap();
    assert_eq!((*delivery.value(), delivery.deaths()), (7, 1));
    assert_eq!(held.id(), delivery.id());
}

/// In real time: with one read after the other, a transaction over a hundred groups would be too old.
#[tokio::test]
async fn an_audit_of_many_groups_ends_on_a_slow_store() {
    let env = Environment::system();
    let db = keyspace::embedded::Options::new().memory().unwrap();
    let chaos = Chaos::new(db, env, Faults::default());
    let runner = &Runner::new(chaos.clone());
    let queue = &Queue::<u64>::open(runner, "queue").await.unwrap();
    let items = (0..100_u64).map(|value| (value, Enqueue::new().with_group(value.to_be_bytes())));
    let items = &items.collect::<Vec<_>>();
    let enqueue = |tr| async move { queue.enqueue_all_with(&tr, items).await.map(drop) };
    runner.run(enqueue).await.unwrap();
    chaos.set_latency(Duration::from_millis(15));
    let audit = conformance::timeout(conformance::HANG, queue.audit(runner)).await;
    let audit = audit.unwrap();
    assert!(audit.is_clean(), "{audit:?}");
}

#[tokio::test]
async fn a_caller_that_waits_for_less_time_than_an_answer_takes_gets_what_there_is() {
    let env = Environment::seeded(1, Arc::new(ManualClock::moved_by_sleepers()));
    let chaos = Chaos::new(
        keyspace::embedded::Options::new().memory().unwrap(),
        env.clone(),
        Faults::default(),
    );
    let options = RunOptions::default().with_environment(env);
    let runner = &Runner::with_options(chaos.clone(), options);
    let settings = Settings::new().with_lease(LEASE);
    let queue = Queue::<u64>::open_with(runner, "queue", settings, OpenOptions::default());
    let queue = &queue.await.unwrap();
    let options = WorkerOptions::default();
    let consumer = queue.consumer(runner, options).await.unwrap();
    for latency in latencies() {
        chaos.set_latency(latency);
        let short = latency / 10 + Duration::from_millis(1);
        for number in 0..8 {
            assert!(consumer.dequeue_within(short).await.unwrap().is_none());
            let enqueue = |tr| async move { queue.enqueue(&tr, &number).await.map(drop) };
            runner.run(enqueue).await.unwrap();
            let taken = consumer.pop_within(short).await.unwrap();
            assert_eq!(taken.map(|item| item.value), Some(number), "{latency:?}");
        }
    }
}

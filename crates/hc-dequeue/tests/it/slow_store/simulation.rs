//! Simulated time, which passes only while every task waits for it.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::{Duration, SystemTime};

use futures::future::BoxFuture;
use keyspace::Environment;
use keyspace::env::Clock;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::sync::oneshot;

/// A time in which the store answers nothing.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Outage {
    pub(crate) begin: Duration,
    pub(crate) end: Duration,
}

/// Tasks that run one at a time: the next one is the one whose sleep ends first, after all of them sleep.
pub(crate) struct Simulation {
    seed: u64,
    time: Arc<Mutex<Time>>,
    /// `None` for a task that was killed.
    tasks: Vec<Option<BoxFuture<'static, ()>>>,
}

struct Time {
    now: Duration,
    /// The sleeping tasks, by the ends of their sleeps and then in their order.
    sleepers: BTreeMap<(Duration, u64), Sleeper>,
    sleeps: u64,
    outage: Option<Outage>,
    rng: StdRng,
}

struct Sleeper {
    task: usize,
    /// Whether it waits for an answer of the store.
    asks: bool,
    wake: oneshot::Sender<()>,
}

/// The time of a task, or of its connection to the store.
struct TaskClock {
    task: usize,
    asks: bool,
    time: Arc<Mutex<Time>>,
}

impl Simulation {
    pub(crate) fn new(seed: u64) -> Self {
        let time = Time {
            now: Duration::ZERO,
            sleepers: BTreeMap::new(),
            sleeps: 0,
            outage: None,
            rng: StdRng::seed_from_u64(seed),
        };
        Self {
            seed,
            time: Arc::new(Mutex::new(time)),
            tasks: Vec::new(),
        }
    }

    /// Returns the environment of the task that is started next.
    pub(crate) fn environment(&self) -> Environment {
        self.seeded(false)
    }

    /// Returns the environment of the store for that task: its answers take time.
    pub(crate) fn way_to_the_store(&self) -> Environment {
        self.seeded(true)
    }

    fn seeded(&self, asks: bool) -> Environment {
        let task = self.tasks.len();
        let clock = TaskClock {
            task,
            asks,
            time: self.time.clone(),
        };
        Environment::seeded(self.seed * 100 + task as u64, Arc::new(clock))
    }

    pub(crate) fn begin(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.push(Some(Box::pin(task)));
    }

    pub(crate) fn kill(&mut self, task: usize) {
        self.tasks[task] = None;
    }

    pub(crate) fn living(&self) -> Vec<usize> {
        let tasks = self.tasks.iter().enumerate();
        let living = tasks.filter(|(_, task)| task.is_some());
        living.map(|(task, _)| task).collect()
    }

    pub(crate) fn now(&self) -> Duration {
        self.time.lock().unwrap().now
    }

    /// Plans an outage, which replaces any earlier plan. Calls that are waiting for an answer wait longer, too.
    pub(crate) fn plan(&mut self, outage: Outage) {
        let mut time = self.time.lock().unwrap();
        time.outage = Some(outage);
        let late = time
            .sleepers
            .range((outage.begin, 0)..(outage.end, 0))
            .filter(|(_, sleeper)| sleeper.asks);
        for (due, number) in late.map(|(key, _)| *key).collect::<Vec<_>>() {
            let sleeper = time.sleepers.remove(&(due, number)).unwrap();
            let due = outage.end + (due - outage.begin);
            time.sleepers.insert((due, number), sleeper);
        }
    }

    /// Lets every task run until it sleeps, and then ends the sleep that is over first.
    pub(crate) async fn step(&mut self) {
        poll_fn(|cx| {
            for task in self.tasks.iter_mut().flatten() {
                assert!(task.as_mut().poll(cx).is_pending(), "a task ended");
            }
            let mut time = self.time.lock().unwrap();
            time.sleepers.retain(|_, sleeper| !sleeper.wake.is_closed());
            let sleeps = |task| time.sleepers.values().any(|sleeper| sleeper.task == task);
            // Otherwise one of them waits for the store itself, which wakes it.
            if self.living().into_iter().all(sleeps) {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
        let mut time = self.time.lock().unwrap();
        if let Some(((due, _), sleeper)) = time.sleepers.pop_first() {
            time.now = time.now.max(due);
            // The task may no longer wait for it.
            let _ = sleeper.wake.send(());
        }
    }
}

impl Clock for TaskClock {
    fn now(&self) -> Duration {
        self.time.lock().unwrap().now
    }

    fn wall(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + self.now()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        let (wake, woken) = oneshot::channel();
        let mut time = self.time.lock().unwrap();
        let due = if self.asks {
            time.answered(duration)
        } else {
            time.now.saturating_add(duration)
        };
        time.sleeps += 1;
        let key = (due, time.sleeps);
        let sleeper = Sleeper {
            task: self.task,
            asks: self.asks,
            wake,
        };
        time.sleepers.insert(key, sleeper);
        Box::pin(async move {
            woken.await.expect("the simulation goes on");
        })
    }
}

impl Time {
    /// Returns when the store answers: after the latency, up to a quarter more or less.
    fn answered(&mut self, latency: Duration) -> Duration {
        let latency = latency.mul_f64(self.rng.random_range(0.75..1.25));
        let due = self.now.saturating_add(latency);
        match self.outage {
            Some(outage) if self.now < outage.end && due >= outage.begin => outage.end + latency,
            _ => due,
        }
    }
}

//! A load: the work of a process's consumers for a time, and its outcome.

use std::iter::Sum;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use keyspace::{Bytes, Environment};
use serde::{Deserialize, Serialize};

use crate::contender::{Contender, ITEM, NUMBER_BYTES, numbered};
use crate::meter::Reading;
use crate::shift::{self, Act, Burst, Work};

/// What fits a transaction of any contender.
const ITEMS_PER_COMMIT: u64 = 5_000;

/// How long a store is left alone with what was put into it, for each item: a cluster acknowledges
/// what it has logged, and moves it on for seconds afterwards.
const DIGESTION: Duration = Duration::from_micros(10);

/// Leaves a store alone after a number of items was put into it.
pub async fn digest(items: u64) {
    let digestion = DIGESTION.mul_f64(items as f64);
    Environment::system().sleep(digestion).await;
}

/// What each consumer does, one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Action {
    /// Takes an item, in a commit of its own.
    Pop,
    /// Puts an item into the queue, in a commit of its own.
    Enqueue,
}

/// What the consumers of one process do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Load {
    /// What they do.
    pub action: Action,
    /// How many sessions there are.
    pub sessions: usize,
    /// How many consumers share a session.
    pub consumers_per_session: usize,
    /// How many items are in the queue when they begin. Each time they have taken this number, they start
    /// again.
    pub backlog: u64,
    /// How long they go on.
    pub time: Duration,
}

/// The outcome of a load.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Sample {
    /// Actions per second.
    pub rate: f64,
    /// The time of each action, in microseconds.
    pub took_micros: Vec<u32>,
    /// The commits and refusals during the load.
    pub reading: Reading,
}

impl Sum for Sample {
    /// Returns the sample of processes that ran at the same time.
    fn sum<I: Iterator<Item = Self>>(samples: I) -> Self {
        samples.fold(Self::default(), |mut sum, sample| {
            sum.rate += sample.rate;
            sum.took_micros.extend(sample.took_micros);
            sum.reading = sum.reading + sample.reading;
            sum
        })
    }
}

/// Returns the items of a backlog by the commits that enqueue them, after as many backlogs as `fills`. All items are
/// [`numbered`], and no two of these backlogs have the same number.
pub fn commits_of(backlog: u64, fills: u64) -> impl Iterator<Item = Vec<Bytes>> {
    let first = fills * backlog;
    let end = first + backlog;
    (first..end)
        .step_by(ITEMS_PER_COMMIT as usize)
        .map(move |begin| {
            let numbers = begin..end.min(begin + ITEMS_PER_COMMIT);
            numbers.map(numbered).collect()
        })
}

impl Load {
    /// Opens the sessions, puts the backlog into the queue and lets the store digest it.
    pub async fn prepare<C: Contender>(&self, site: &C::Site) -> Vec<Arc<C>> {
        let mut sessions = Vec::new();
        for _ in 0..self.sessions {
            sessions.push(Arc::new(C::open(site).await));
        }
        self.fill(&*sessions[0], 0).await;
        digest(self.items_before()).await;
        sessions
    }

    /// Returns how many items are put into the queue before the consumers begin.
    fn items_before(&self) -> u64 {
        match self.action {
            Action::Pop => self.backlog,
            Action::Enqueue => 0,
        }
    }

    /// Puts the backlog into the queue, after the queue was filled a number of times. No two items are equal.
    async fn fill<C: Contender>(&self, session: &C, fills: u64) {
        for commit in commits_of(self.items_before(), fills) {
            session.enqueue(&commit).await;
        }
    }

    /// Lets the consumers act for the time. Whenever they have taken the backlog, they pause until it is filled again,
    /// which is not measured. `read` reads the meter.
    ///
    /// # Panics
    /// If a consumer does.
    pub async fn run<C: Contender>(
        &self,
        sessions: &[Arc<C>],
        read: impl Fn() -> Reading,
    ) -> Sample {
        let mut sample = Sample::default();
        let mut elapsed = Duration::ZERO;
        let mut done_in_time = 0;
        for fills in 1.. {
            let before = read();
            let burst = self.burst(sessions, self.time - elapsed).await;
            sample.reading = sample.reading + (read() - before);
            elapsed += burst.lasted;
            done_in_time += burst.done_in_time;
            sample.took_micros.extend(burst.took_micros);
            if elapsed >= self.time {
                break;
            }
            self.fill(&*sessions[0], fills).await;
        }
        sample.rate = done_in_time as f64 / elapsed.as_secs_f64();
        sample
    }

    /// Lets the consumers act until they have taken the backlog, or until the time is over.
    async fn burst<C: Contender>(&self, sessions: &[Arc<C>], time_left: Duration) -> Burst {
        let env = Environment::system();
        let tickets = Arc::new(AtomicU64::new(match self.action {
            Action::Pop => self.backlog,
            Action::Enqueue => u64::MAX,
        }));
        let consumers = (0..self.sessions * self.consumers_per_session).map(|number| Consumer {
            session: sessions[number % sessions.len()].clone(),
            action: self.action,
            tickets: tickets.clone(),
            env: env.clone(),
        });
        shift::work(&env, consumers, time_left).await
    }
}

/// A task that acts until there are no more tickets or no more time.
struct Consumer<C> {
    session: Arc<C>,
    action: Action,
    /// How many actions are still allowed: as many as there are items.
    tickets: Arc<AtomicU64>,
    env: Environment,
}

impl<C: Contender> Work for Consumer<C> {
    async fn act(&mut self, deadline: Duration) -> Act {
        if !self.draw() {
            return Act::Over;
        }
        if self.action == Action::Enqueue {
            self.session.enqueue(&[ITEM]).await;
            return Act::Done;
        }
        loop {
            // There is an item for each ticket, but a session may hold one back for a moment.
            if let Some(item) = self.session.pop().await {
                assert_eq!(item[NUMBER_BYTES..], ITEM[NUMBER_BYTES..]);
                return Act::Done;
            }
            if self.env.now() >= deadline {
                return Act::Over;
            }
        }
    }
}

impl<C> Consumer<C> {
    fn draw(&self) -> bool {
        let draw = |tickets: u64| tickets.checked_sub(1);
        self.tickets
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, draw)
            .is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contender::number_of;

    /// Counts what is in it and what went through.
    struct Counter {
        items: AtomicU64,
        enqueued: AtomicU64,
        popped: AtomicU64,
    }

    impl Contender for Counter {
        type Site = ();

        async fn open((): &()) -> Self {
            Self {
                items: AtomicU64::new(0),
                enqueued: AtomicU64::new(0),
                popped: AtomicU64::new(0),
            }
        }

        async fn enqueue(&self, items: &[Bytes]) {
            let count = items.len() as u64;
            self.items.fetch_add(count, Ordering::Relaxed);
            self.enqueued.fetch_add(count, Ordering::Relaxed);
        }

        async fn pop(&self) -> Option<Bytes> {
            let before = self.items.fetch_sub(1, Ordering::Relaxed);
            assert!(before > 0, "there is an item for each ticket");
            self.popped.fetch_add(1, Ordering::Relaxed);
            Some(ITEM)
        }
    }

    const LOAD: Load = Load {
        action: Action::Pop,
        sessions: 1,
        consumers_per_session: 4,
        backlog: 3,
        time: Duration::from_millis(20),
    };

    async fn run(load: &Load) -> (Arc<Counter>, Sample) {
        let sessions = load.prepare::<Counter>(&()).await;
        let sample = load.run(&sessions, Reading::default).await;
        (sessions[0].clone(), sample)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn the_backlog_is_there_again_when_it_is_taken() {
        let (queue, sample) = run(&LOAD).await;
        let [items, enqueued, popped] =
            [&queue.items, &queue.enqueued, &queue.popped].map(|n| n.load(Ordering::Relaxed));
        assert!(popped > LOAD.backlog);
        assert_eq!(sample.took_micros.len() as u64, popped);
        assert_eq!(enqueued, popped + items);
        assert_eq!(enqueued % LOAD.backlog, 0);
        assert!(items <= LOAD.backlog);
        assert!(sample.rate > 0.0);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_is_enqueued_is_the_whole_load_if_enqueues_are_measured() {
        let load = Load {
            action: Action::Enqueue,
            ..LOAD
        };
        let (queue, sample) = run(&load).await;
        let enqueued = queue.enqueued.load(Ordering::Relaxed);
        assert_eq!(sample.took_micros.len() as u64, enqueued);
        assert_eq!(queue.popped.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn the_items_of_all_backlogs_have_different_numbers() {
        let backlog = ITEMS_PER_COMMIT + 1;
        let commits: Vec<_> = (0..2)
            .flat_map(|fills| commits_of(backlog, fills))
            .collect();
        let sizes: Vec<_> = commits.iter().map(Vec::len).collect();
        assert_eq!(sizes, [ITEMS_PER_COMMIT as usize, 1].repeat(2));
        let numbers = commits.iter().flatten().map(|item| number_of(item));
        assert!(numbers.eq(0..2 * backlog));
    }

    #[test]
    fn processes_add_up() {
        let sample = |rate, micros| Sample {
            rate,
            took_micros: vec![micros],
            reading: Reading {
                commits: 1,
                mutations: 1,
                conflicts: 2,
                bytes_written: 3,
            },
        };
        let sum: Sample = [sample(10.0, 1), sample(20.0, 2)].into_iter().sum();
        assert_eq!(sum.rate, 30.0);
        assert_eq!(sum.took_micros, [1, 2]);
        assert_eq!(sum.reading.bytes_written, 6);
    }
}

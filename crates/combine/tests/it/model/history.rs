//! One random history, and the properties that must hold at every moment of it and at its end.
//!
//! Each write leaves a marker in its transaction: a versionstamp. A reader of the markers therefore knows
//! which updates exist at its read version and in which order they were committed, whatever result the
//! writer received.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::ops::AddAssign;
use std::time::Duration;

use combine::{CombineQueue, Error, Exact, WorkerOptions};
use conformance::chaos::{Chaos, Faults};
use conformance::stores::TestStore;
use conformance::{let_pass, timeout};
use futures::future::try_join_all;
use keyspace::{
    Environment, Isolation, KeyValue, OpenOptions, RangeQuery, RunOptions, Runner, Store, Subspace,
    Transaction, Tx, Versionstamp, read_all,
};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use tokio::task::JoinSet;

use crate::common::{LONG, Log, Stored, World, settings};
use crate::model::mortal::{Moody, Mortal, runner};

const STEPS: usize = 150;
const WORKERS: usize = 3;

/// The largest number of writes that are under way at the same time.
const WRITERS: usize = 6;

/// The keys of a history. The first one is in every other write.
const KEYS: [&str; 10] = ["hot", "a", "b", "c", "d", "e", "f", "g", "h", "i"];

/// The events of a history other than writes and passes.
#[derive(Debug, Clone)]
pub(crate) struct Play<U, V> {
    pub(crate) seed: u64,
    pub(crate) bucket_count: u32,
    pub(crate) faults: Faults,
    /// Whether workers die and hang.
    pub(crate) has_deaths: bool,
    pub(crate) combine: fn(&String, Option<V>, Vec<U>) -> Option<V>,
    /// Creates an update.
    pub(crate) draw: fn(&mut StdRng) -> U,
}

/// The result of a history.
#[derive(Debug, Default)]
pub(crate) struct Course {
    pub(crate) writes: usize,
    /// Writes that did not return, or did not return successfully.
    pub(crate) unknown: usize,
    pub(crate) killed: usize,
    pub(crate) hung: usize,
    /// How often the model was compared with the queue.
    pub(crate) checks: usize,
}

impl AddAssign for Course {
    fn add_assign(&mut self, other: Self) {
        self.writes += other.writes;
        self.unknown += other.unknown;
        self.killed += other.killed;
        self.hung += other.hung;
        self.checks += other.checks;
    }
}

struct Player<U, V> {
    store: TestStore,
    play: Play<U, V>,
    rng: StdRng,
    /// The queue, and a fault-free access to the store.
    world: World<U, V>,
    log: Log<V>,
    /// The writers' access to the store.
    runner: Runner<Chaos<Store>>,
    /// The same, but without retries.
    hasty: Runner<Chaos<Store>>,
    workers: Vec<Mortal>,
    /// The accesses of dead workers to the store.
    graves: Vec<Chaos<Store>>,
    /// The updates of each write, by its number.
    writes: Vec<Vec<(String, U)>>,
    /// Each returns its number if it has certainly committed.
    writers: JoinSet<Option<usize>>,
    committed: BTreeSet<usize>,
    course: Course,
}

/// Runs a history and checks it.
pub(crate) async fn play<U, V>(store: TestStore, play: Play<U, V>) -> Course
where
    U: Stored + Clone,
    V: Stored + Clone + PartialEq + Debug,
{
    let settings = settings(play.bucket_count).with_lease(Duration::from_millis(300));
    let sound = store.runner();
    let root = store.root.clone();
    let queue = CombineQueue::open_with(
        &sound,
        root.subspace(&"queue"),
        settings,
        play.combine,
        OpenOptions::default(),
    );
    let world = World {
        queue: queue.await.unwrap(),
        runner: sound,
        root,
    };
    let chaos = Chaos::new(store.db.clone(), Environment::system(), play.faults.clone());
    let once = RunOptions::default().with_attempt_limit(1);
    let mut player = Player {
        rng: StdRng::seed_from_u64(play.seed),
        log: Log::new(&world.root),
        runner: runner(&store, chaos.clone(), RunOptions::default()),
        hasty: runner(&store, chaos, once),
        workers: Vec::new(),
        graves: Vec::new(),
        writes: Vec::new(),
        writers: JoinSet::new(),
        committed: BTreeSet::new(),
        course: Course::default(),
        store,
        play,
        world,
    };
    for _ in 0..WORKERS {
        player.start().await;
    }
    for _ in 0..STEPS {
        Box::pin(player.step()).await;
    }
    Box::pin(player.end()).await
}

impl<U, V> Player<U, V>
where
    U: Stored + Clone,
    V: Stored + Clone + PartialEq + Debug,
{
    async fn start(&mut self) {
        let moody = Moody {
            log: self.log.clone(),
            calls: self.rng.random_range(0..16).into(),
        };
        let queue = &self.world.queue;
        let faults = &self.play.faults;
        let worker = Mortal::start(&self.store, faults, queue, moody, &mut self.rng);
        self.workers.push(worker.await);
    }

    async fn step(&mut self) {
        match self.rng.random_range(0..100) {
            0..65 => self.write().await,
            65..75 => self.check().await,
            75..90 => self.pause(Duration::from_millis(10)).await,
            // Enough time to be declared dead.
            90..92 => {
                let lease = self.world.queue.settings().lease();
                self.pause(lease * 2).await;
            }
            _ if self.play.has_deaths => self.strike().await,
            _ => {}
        }
    }

    async fn pause(&mut self, longest: Duration) {
        let pause = longest.mul_f64(self.rng.random());
        let_pass(pause).await;
    }

    /// Several updates in one transaction, whose writer may be dropped at any moment.
    async fn write(&mut self) {
        while self.writers.len() >= WRITERS {
            self.take_in_one().await;
        }
        let count = match self.rng.random_range(0..4) {
            0 => self.rng.random_range(2..12),
            _ => 1,
        };
        let update = |_| {
            let key = if self.rng.random() {
                KEYS[0]
            } else {
                KEYS.choose(&mut self.rng).unwrap()
            };
            (key.to_owned(), (self.play.draw)(&mut self.rng))
        };
        let updates: Vec<_> = (0..count).map(update).collect();
        let number = self.writes.len();
        self.writes.push(updates.clone());
        let marker = markers(&self.world.root).pack(&number);
        let queue = self.world.queue.clone();
        let runner = match self.rng.random_range(0..8) {
            0 => self.hasty.clone(),
            _ => self.runner.clone(),
        };
        let interest = match self.rng.random_range(0..4) {
            0 => Duration::from_micros(self.rng.random_range(0..3_000)),
            _ => LONG,
        };
        self.writers.spawn(async move {
            let queue = &queue;
            let updates = &updates;
            let marker = &marker;
            let add = |tr: Tx<_>| async move {
                tr.set_to_versionstamp(marker);
                queue
                    .add_all(&tr, updates.iter().map(|(key, value)| (key, value)))
                    .await
            };
            let written = Environment::system()
                .timeout(interest, runner.run(add))
                .await;
            match written {
                Some(Ok(())) => Some(number),
                _ => None,
            }
        });
    }

    async fn take_in_one(&mut self) {
        match self.writers.join_next().await {
            Some(Ok(Some(number))) => {
                self.committed.insert(number);
            }
            Some(Ok(None)) => self.course.unknown += 1,
            Some(Err(panic)) => std::panic::resume_unwind(panic.into_panic()),
            None => {}
        }
    }

    /// Compares the queue with the model, and the reports with the settled values, all at one read
    /// version. It uses the fault-free access to the store, since one of this many reads would always
    /// fail.
    async fn check(&mut self) {
        self.course.checks += 1;
        let queue = &self.world.queue;
        let log = &self.log;
        let keys = &KEYS.map(str::to_owned);
        let (begin, end) = markers(&self.world.root).range();
        let marks = &RangeQuery::keys(begin, end);
        let read = |tr| async move {
            let tr = &tr;
            let exact = &Exact::default();
            let marks = read_all(tr, marks.clone(), Isolation::Snapshot).await?;
            let exact = try_join_all(keys.iter().map(|key| queue.exact(tr, key, exact))).await?;
            let reads = keys
                .iter()
                .map(|key| queue.settled(tr, key, Isolation::Snapshot));
            let settled = try_join_all(reads).await?;
            Ok::<_, Error>((marks, exact, settled, log.reports_in(tr).await?))
        };
        let (marks, exact, settled, reports) = self.world.runner.run(read).await.unwrap();
        let model = self.model(&marks);
        for ((key, exact), settled) in keys.iter().zip(exact).zip(settled) {
            assert_eq!(exact.as_ref(), model.get(key), "{key}");
            let reported = reports.get(key).and_then(|(_, last)| last.clone());
            assert_eq!(settled, reported, "{key} is settled, and was reported");
        }
    }

    /// Returns the values after the writes that have left a marker.
    fn model(&self, marks: &[KeyValue]) -> BTreeMap<String, V> {
        let markers = markers(&self.world.root);
        let written: BTreeMap<_, _> = marks
            .iter()
            .map(|row| {
                let number: usize = markers.unpack(row.key()).unwrap();
                (Versionstamp::try_from(row.value()).unwrap(), number)
            })
            .collect();
        assert_eq!(written.len(), marks.len());
        let mut updates: BTreeMap<_, Vec<U>> = BTreeMap::new();
        for number in written.values() {
            for (key, update) in &self.writes[*number] {
                updates.entry(key.clone()).or_default().push(update.clone());
            }
        }
        let value = |(key, updates)| {
            let value = (self.play.combine)(&key, None, updates)?;
            Some((key, value))
        };
        updates.into_iter().filter_map(value).collect()
    }

    /// Kills, stops or ends a worker, or resumes one that was stopped.
    async fn strike(&mut self) {
        let place = self.rng.random_range(0..self.workers.len());
        match self.rng.random_range(0..6) {
            0 => {
                self.workers[place].hang(&mut self.rng);
                self.course.hung += 1;
            }
            1 | 2 => {
                let dead = self.workers.swap_remove(place);
                self.graves.push(dead.chaos.clone());
                drop(dead);
                self.course.killed += 1;
                self.start().await;
            }
            3 => {
                let old = self.workers.swap_remove(place);
                let grace = Duration::from_millis(self.rng.random_range(0..50));
                self.graves.push(old.shut_down(grace).await);
                self.start().await;
            }
            4 => self.workers[place].chaos.stop(),
            _ => {
                for worker in &self.workers {
                    worker.chaos.go_on();
                }
                for grave in std::mem::take(&mut self.graves) {
                    // Requests that the dead worker had sent arrive after its death.
                    grave.flush().await;
                }
            }
        }
    }

    /// Lets one last worker finish the work, and checks the result.
    async fn end(mut self) -> Course {
        for worker in std::mem::take(&mut self.workers) {
            self.graves.push(worker.chaos.clone());
        }
        while !self.writers.is_empty() {
            self.take_in_one().await;
        }
        self.graves.push(self.runner.database().clone());
        for grave in std::mem::take(&mut self.graves) {
            grave.flush().await;
        }
        // Settles the operations that these runners have given up.
        for runner in [&self.runner, &self.hasty] {
            while runner.run(|_| async { Ok::<_, Error>(()) }).await.is_err() {}
        }
        // It knows only the changes that it has received.
        let deaf = WorkerOptions::new()
            .with_poll_interval(LONG * 60)
            .with_takeover_after(LONG * 60);
        let last = self.world.work_with(deaf, self.log.clone()).await;
        self.world.wait_idle().await;
        let others_end = async {
            while self.world.rows("s").await.len() > 1 {
                let_pass(Duration::from_millis(20)).await;
            }
        };
        timeout(LONG, others_end).await;
        last.shut_down(LONG).await.unwrap();
        self.judge().await;
        self.course.writes = self.writes.len();
        self.course
    }

    async fn judge(&mut self) {
        self.check().await;
        self.log.check(&self.world).await;
        self.world.assert_nothing_left().await;
        let markers = markers(&self.world.root);
        let marks = self.world.rows_of(&markers).await;
        assert_eq!(self.world.values().await, self.model(&marks));
        let written: BTreeSet<usize> = marks
            .iter()
            .map(|row| markers.unpack(row.key()).unwrap())
            .collect();
        assert!(
            self.committed.is_subset(&written),
            "a write was acknowledged and lost"
        );
    }
}

/// The marker of each write.
fn markers(root: &Subspace) -> Subspace {
    root.subspace(&"markers")
}

//! A random history: many sessions on one queue, and the properties that must hold at its end.

mod batches;
mod checkpoints;
mod counts;
mod deaths;
mod end;
mod groups;
mod starts;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use conformance::chaos::{Chaos, Faults};
use conformance::let_pass;
use conformance::stores::TestStore;
use hc_dequeue::{
    Backoff, Cancelled, Death, Delivery, Enqueue, Enqueued, Error, ItemRef, OnRepeat, Place,
    Replaced, Settings, WorkerOptions,
};
use keyspace::{Environment, RunOptions, Runner, Store};
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, IteratorRandom};
use rand::{Rng, SeedableRng};
use tokio::task::JoinSet;

use crate::common::{LONG, Queue, open, settings};
use crate::model::history::batches::OpenedBatch;
use crate::model::history::checkpoints::begin_anew;
pub(crate) use crate::model::history::counts::count_done;
use crate::model::history::counts::{count, count_kept, is_kept};
use crate::model::history::deaths::count_return;
use crate::model::history::groups::PACED;
pub(crate) use crate::model::history::starts::Starts;
use crate::model::process::{FATES, Process, runner, runner_with};

const STEPS: usize = 120;
const PROCESSES: usize = 3;

/// Longer than any history.
pub(crate) const HOUR: Duration = Duration::from_secs(60 * 60);

/// Values that differ by this belong to the same item.
const SAME: u64 = 1_000_000;

/// The events of a history besides enqueues, deliveries and acknowledgements.
#[derive(Debug, Clone)]
pub(crate) struct Play {
    pub(crate) seed: u64,
    pub(crate) faults: Faults,
    /// Whether sessions die and are stopped.
    pub(crate) deaths: bool,
    /// Whether items are popped, too.
    pub(crate) pops: bool,
    /// Whether processes also have workers, which find a backlog.
    pub(crate) works: bool,
    /// Whether items have groups.
    pub(crate) groups: bool,
    /// Whether items are members of batches.
    pub(crate) batches: bool,
    /// How long done items may be kept. The queue is created with the first of these.
    pub(crate) keeps: Vec<Duration>,
}

/// The results of a history.
#[derive(Debug, Default)]
pub(crate) struct Course {
    pub(crate) enqueued: usize,
    pub(crate) killed: usize,
    pub(crate) late_refused: usize,
    pub(crate) late_accepted: usize,
    /// Pops that did not return, each of which may have removed an item.
    pub(crate) unanswered_pops: usize,
    pub(crate) cancelled: u64,
    pub(crate) merged: u64,
    /// The items whose ends are kept.
    pub(crate) kept: usize,
    /// How often the settings were changed.
    pub(crate) configured: usize,
    /// How often the limits of groups were changed.
    pub(crate) limited: usize,
    /// The largest number of slots of the group whose limit never changes.
    pub(crate) most_slots: u64,
    /// How many items have started of the group whose rate never changes.
    pub(crate) starts: u64,
    /// The batches that were opened.
    pub(crate) batches: usize,
    /// The batches that were cancelled before they were complete.
    pub(crate) cancelled_batches: u64,
    /// The items and batches that were members of a batch.
    pub(crate) members: u64,
    /// The callbacks whose counts were compared.
    pub(crate) callbacks: usize,
    /// How often items became dead letters.
    pub(crate) deaths: usize,
    /// The parts of items that were done with a checkpoint.
    pub(crate) parts: usize,
}

/// The result of a call that a task waits for.
enum PlayerAnswer {
    Delivered(Vec<Delivery<u64>>),
    Popped(u64),
    /// Nothing, or the future was dropped.
    Nothing,
    /// A pop that ended without an answer.
    PopUnanswered,
}

struct Player {
    store: TestStore,
    play: Play,
    rng: StdRng,
    runner: Runner<Chaos<Store>>,
    /// A runner on the same store that makes only one attempt.
    hasty: Runner<Chaos<Store>>,
    queue: Queue,
    /// The queue of deaths.
    deaths: hc_dequeue::Queue<Death>,
    processes: Vec<Process>,
    /// The connections of dead processes to the store.
    graves: Vec<Chaos<Store>>,
    wishes: JoinSet<PlayerAnswer>,
    held: Vec<Delivery<u64>>,
    popped: BTreeMap<u64, usize>,
    /// The items by their values.
    items: BTreeMap<u64, ItemRef>,
    batches: Vec<OpenedBatch>,
    /// The items of which a part was done.
    parted: BTreeSet<ItemRef>,
    /// The values of the items without a dedupe id that have the group with a rate.
    paced: BTreeSet<u64>,
    starts: Arc<Starts>,
    /// The stored settings.
    settings: Settings,
    /// How long each session keeps done items, as long as all of them agree.
    keep_done: Option<Duration>,
    next_value: u64,
    course: Course,
}

/// Plays a history and checks its results.
pub(crate) async fn play(store: TestStore, play: Play) -> Result<Course, String> {
    let chaos = Chaos::new(store.db.clone(), Environment::system(), play.faults.clone());
    let runner = runner(&store, chaos.clone());
    let keep_done = play.keeps[0];
    let deaths = hc_dequeue::Queue::open(&runner, store.root.subspace(&"deaths"));
    let deaths = deaths.await.unwrap();
    let settings = settings()
        .with_max_attempts(2)
        .with_keep_done(keep_done)
        .with_deaths(deaths.subspace().clone());
    let queue = open(&store, &runner, settings.clone()).await.unwrap();
    let starts = Starts::since_now(&store.runner()).await;
    let mut player = Player {
        rng: StdRng::seed_from_u64(play.seed),
        hasty: runner_with(
            &store,
            chaos.clone(),
            RunOptions::default().with_attempt_limit(1),
        ),
        store,
        play,
        runner,
        queue,
        deaths,
        processes: Vec::new(),
        graves: Vec::new(),
        wishes: JoinSet::new(),
        held: Vec::new(),
        popped: BTreeMap::new(),
        items: BTreeMap::new(),
        batches: Vec::new(),
        parted: BTreeSet::new(),
        paced: BTreeSet::new(),
        starts: Arc::new(starts),
        settings,
        keep_done: Some(keep_done),
        next_value: 0,
        course: Course::default(),
    };
    if player.play.groups {
        player.fix_limits().await;
    }
    for _ in 0..PROCESSES {
        player.start().await;
    }
    for step in 0..STEPS {
        player.step().await;
        player.check_starts().await?;
        player.check_parts().await?;
        if (player.play.groups || player.play.batches) && step % 20 == 0 {
            Box::pin(player.look_at_rows()).await?;
        }
    }
    Box::pin(player.end()).await
}

impl Player {
    async fn start(&mut self) {
        // Short, so that deliveries that are leaked or hang come back while their process is alive.
        let soon = Duration::from_millis(1);
        let options = WorkerOptions::default()
            .with_backoff(Backoff::new(soon, soon))
            .with_poll_interval(Duration::from_millis(50))
            .with_time_limit(settings().lease() * 2);
        let starts = self.starts.clone();
        let worker_starts = self.play.works.then_some(starts);
        let process = Process::start(&self.store, &self.play.faults, options, worker_starts);
        self.processes.push(process.await);
    }

    async fn step(&mut self) {
        while let Some(answer) = self.wishes.try_join_next() {
            self.take_in(answer.unwrap());
        }
        match self.rng.random_range(0..100) {
            0..15 => self.enqueue().await,
            15..22 => self.enqueue_once().await,
            22..25 => Box::pin(self.change()).await,
            25..35 if self.play.batches => Box::pin(self.step_batches()).await,
            25..50 => self.wish(),
            50..53 => Box::pin(self.redrive()).await,
            53..58 => self.do_part().await,
            58..75 => self.acknowledge().await,
            75..82 => self.let_go().await,
            82..84 if self.play.groups => self.limit().await,
            82..85 => self.configure().await,
            85..88 => self.pause(Duration::from_millis(10)).await,
            // Long enough for the session to be declared dead.
            88..92 => self.pause(settings().lease() * 2).await,
            _ if self.play.deaths => self.strike().await,
            _ => {}
        }
    }

    async fn pause(&mut self, longest: Duration) {
        let pause = longest.mul_f64(self.rng.random());
        let_pass(pause).await;
    }

    async fn enqueue(&mut self) {
        let most = if self.play.works { 30 } else { 4 };
        let count = self.rng.random_range(1..most);
        let values: Vec<_> = (self.next_value..self.next_value + count).collect();
        self.next_value += count;
        self.course.enqueued += values.len();
        let options = match self.rng.random_range(0..4) {
            0 => Enqueue::new().with_delay(Duration::from_millis(self.rng.random_range(0..50))),
            _ => Enqueue::new(),
        };
        let group = self.some_group();
        if group == Some(PACED) {
            self.paced.extend(&values);
        }
        let options = self.with_group(options, group);
        let queue = &self.queue;
        let values = &values;
        let options = &options;
        let enqueue = |tr| async move {
            let mut staged = Vec::new();
            for value in values {
                match queue.enqueue_with(&tr, value, options).await? {
                    Enqueued::Staged(item) => staged.push(item),
                    other => panic!("{other:?}"),
                }
            }
            Ok::<_, Error>(staged)
        };
        let (staged, commit) = self.runner.run_committed(enqueue).await.unwrap();
        let stamp = commit.versionstamp.unwrap();
        let staged = staged.into_iter().map(|item| item.at(stamp));
        self.items.extend(values.iter().copied().zip(staged));
    }

    /// Enqueues under one of a few dedupe ids. Records in the same transaction whether the item was refused or
    /// replaced.
    async fn enqueue_once(&mut self) {
        let value = self.next_value;
        self.next_value += 1;
        self.course.enqueued += 1;
        let modes = [OnRepeat::Keep, OnRepeat::Replace, OnRepeat::Debounce];
        let mode = *modes.choose(&mut self.rng).unwrap();
        let dedupe = vec![self.rng.random_range(0..3_u8)];
        let delay = Duration::from_millis(self.rng.random_range(0..20));
        let options = Enqueue::new()
            .with_dedupe(dedupe.clone())
            .with_on_repeat(mode)
            .with_delay(delay);
        let group = self.some_group();
        let options = self.with_group(options, group);
        let queue = &self.queue;
        let store = &self.store;
        let dedupe = &dedupe;
        let options = &options;
        let enqueue = |tr| async move {
            let tr = &tr;
            let there = queue.find_deduped(tr, dedupe).await?;
            let old = match &there {
                Some(item) => queue.status(tr, item).await?,
                None => None,
            };
            let enqueued = queue.enqueue_with(tr, &value, options).await?;
            match enqueued {
                Enqueued::Staged(_) => {}
                Enqueued::Replaced(item) => {
                    assert_eq!(Some(item), there);
                    let old = old.unwrap();
                    begin_anew(tr, store, &item);
                    count(tr, store, "merged", old.value.unwrap());
                    if old.place == Place::Dead {
                        count_return(tr, store, &item);
                    }
                }
                _ => count(tr, store, "merged", value),
            }
            Ok::<_, Error>(enqueued)
        };
        let enqueued = Box::pin(self.runner.run_committed(enqueue)).await.unwrap();
        match enqueued {
            (Enqueued::Staged(item), commit) => {
                let item = item.at(commit.versionstamp.unwrap());
                self.items.insert(value, item);
            }
            (Enqueued::Replaced(item), _) => {
                self.items.insert(value, item);
            }
            _ => {}
        }
    }

    /// Changes the settings, including the lease: a session that promises the new lease has adopted them.
    async fn configure(&mut self) {
        let leases = [100, 150, 300].map(Duration::from_millis);
        let others = leases
            .into_iter()
            .filter(|lease| *lease != self.settings.lease());
        let settings = Settings::new()
            .with_lease(others.choose(&mut self.rng).unwrap())
            .with_max_attempts(self.rng.random_range(1..20))
            .with_max_deaths(self.rng.random_range(1..5))
            .with_max_deliveries(self.rng.random_range(2..40))
            .with_keep_done(*self.play.keeps.choose(&mut self.rng).unwrap())
            .with_deaths(self.deaths.subspace().clone());
        if settings.keep_done() != self.settings.keep_done() {
            self.keep_done = None;
        }
        let queue = &self.queue;
        let changed = &settings;
        let configure = |tr| async move { queue.configure(&tr, changed).await };
        self.runner.run(configure).await.unwrap();
        self.settings = settings;
        self.course.configured += 1;
    }

    /// Cancels, expedites or replaces an item, wherever it is.
    async fn change(&mut self) {
        let Some(item) = self.items.values().choose(&mut self.rng).copied() else {
            return;
        };
        let queue = &self.queue;
        let store = &self.store;
        let what = self.rng.random_range(0..3);
        let keep_done = self.settings.keep_done();
        let change = |tr| async move {
            let tr = &tr;
            let status = queue.status(tr, &item).await?;
            let is_done = |place: &Place| matches!(place, Place::Done { .. });
            let Some(status) = status.filter(|status| !is_done(&status.place)) else {
                return Ok(());
            };
            let value = status.value.unwrap();
            match what {
                0 => {
                    let was_cancelled = matches!(
                        status.place,
                        Place::Held {
                            is_cancelled: true,
                            ..
                        }
                    );
                    let cancelled = queue.cancel(tr, &item).await?;
                    assert_ne!(cancelled, Cancelled::NotThere);
                    if !was_cancelled {
                        count(tr, store, "cancelled", value);
                    }
                    if status.place == Place::Dead {
                        count_return(tr, store, &item);
                    }
                    if cancelled == Cancelled::Removed {
                        count_kept(tr, store, value, Some(keep_done));
                    }
                }
                1 => drop(queue.expedite(tr, &item).await?),
                // The same item with another value.
                _ => {
                    let replaced = queue.replace(tr, &item, &(value + SAME)).await?;
                    if replaced == Replaced::Replaced {
                        begin_anew(tr, store, &item);
                    }
                }
            }
            Ok::<_, Error>(())
        };
        Box::pin(self.runner.run(change)).await.unwrap();
    }

    /// Starts a call for items, which may be dropped at any moment.
    fn wish(&mut self) {
        let process = self.processes.choose(&mut self.rng).unwrap();
        let consumer = process.consumer.clone();
        let wanted = self.rng.random_range(1..4);
        let within = Duration::from_millis(self.rng.random_range(0..30));
        let interest = match self.rng.random_range(0..3) {
            0 => Duration::from_micros(self.rng.random_range(0..3_000)),
            _ => LONG,
        };
        let env = Environment::system();
        if self.play.pops && self.rng.random() {
            self.wishes.spawn(async move {
                match env.timeout(interest, consumer.pop_within(within)).await {
                    Some(Ok(Some(item))) => PlayerAnswer::Popped(item.value % SAME),
                    Some(Ok(None)) => PlayerAnswer::Nothing,
                    Some(Err(_)) | None => PlayerAnswer::PopUnanswered,
                }
            });
        } else {
            self.wishes.spawn(async move {
                let wish = consumer.dequeue_batch_within(wanted, within);
                match env.timeout(interest, wish).await {
                    Some(Ok(deliveries)) => PlayerAnswer::Delivered(deliveries),
                    Some(Err(_)) | None => PlayerAnswer::Nothing,
                }
            });
        }
    }

    fn take_in(&mut self, answer: PlayerAnswer) {
        match answer {
            PlayerAnswer::Delivered(deliveries) => {
                for delivery in &deliveries {
                    self.starts.note(delivery);
                    if delivery.batch_counts().is_some() {
                        // From now on, a callback is changed as other items.
                        let callback = delivery.value() % SAME;
                        self.items.insert(callback, delivery.item_ref());
                    }
                }
                self.held.extend(deliveries);
            }
            PlayerAnswer::Popped(value) => {
                if self.paced.contains(&value) {
                    self.starts.note_popped();
                }
                *self.popped.entry(value).or_default() += 1;
            }
            PlayerAnswer::PopUnanswered => self.course.unanswered_pops += 1,
            PlayerAnswer::Nothing => {}
        }
    }

    /// Acknowledges one of the deliveries, which may be lost, together with an effect.
    async fn acknowledge(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let place = self.rng.random_range(0..self.held.len());
        let delivery = self.held.swap_remove(place);
        let was_lost = delivery.is_lost();
        if self.rng.random_range(0..8) == 0 {
            // Makes only one attempt, whatever its outcome.
            let _ = acknowledge(&self.hasty, &self.store, &delivery, self.keep_done).await;
            return;
        }
        let mut batch = self.batch_of(&delivery);
        if self.rng.random() {
            batch = None;
        }
        let acknowledged = match batch {
            Some(batch) => Box::pin(self.acknowledge_and_add(&delivery, &batch)).await,
            None => acknowledge(&self.runner, &self.store, &delivery, self.keep_done).await,
        };
        match acknowledged {
            Ok(()) if was_lost => self.course.late_accepted += 1,
            Ok(()) => {}
            Err(Error::DeliveryLost { .. } | Error::Cancelled { .. }) => {
                self.course.late_refused += 1;
            }
            Err(error) => panic!("seed {}: {error}", self.play.seed),
        }
    }

    /// Gives a delivery back, leaks it, or continues with it after it was lost.
    async fn let_go(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let delivery = self.held.swap_remove(0);
        match self.rng.random_range(0..10) {
            6 => drop(tokio::spawn(async move { delivery.release().await })),
            7.. => drop(tokio::spawn(async move { delivery.discard("no").await })),
            0 => drop(delivery),
            1 => drop(tokio::spawn(async move { delivery.nack().await })),
            2 => {
                let delay = Duration::from_millis(self.rng.random_range(0..30));
                drop(tokio::spawn(async move {
                    delivery.retry_after(delay, "not now").await
                }));
            }
            3 => {
                let delay = Duration::from_millis(self.rng.random_range(0..30));
                drop(tokio::spawn(async move { delivery.snooze(delay).await }));
            }
            4 => std::mem::forget(delivery),
            // The transaction of this acknowledgement never commits.
            _ => {
                let tr = keyspace::Database::begin(&self.store.db).unwrap();
                let _ = delivery.ack(&tr).await;
            }
        }
    }

    /// Kills or stops a process, or resumes a stopped one.
    async fn strike(&mut self) {
        let place = self.rng.random_range(0..self.processes.len());
        match self.rng.random_range(0..5) {
            0 | 1 => {
                let fate = *FATES.choose(&mut self.rng).unwrap();
                let commit = self.rng.random_range(0..4);
                self.processes[place].hang_at(commit, fate);
            }
            2 => {
                let dead = self.processes.swap_remove(place);
                self.graves.push(dead.chaos.clone());
                drop(dead);
                self.course.killed += 1;
                self.start().await;
            }
            3 => self.processes[place].stop(),
            _ => {
                for process in &mut self.processes {
                    process.go_on();
                }
                for grave in std::mem::take(&mut self.graves) {
                    // Requests that the dead process had sent arrive at this point.
                    grave.flush().await;
                }
            }
        }
    }
}

/// Acknowledges a delivery, and counts it in the same transaction.
async fn acknowledge(
    runner: &Runner<Chaos<Store>>,
    store: &TestStore,
    delivery: &Delivery<u64>,
    keep_done: Option<Duration>,
) -> Result<(), Error> {
    runner
        .run(|tr| async move {
            delivery.ack(&tr).await?;
            count_done(&tr, store, delivery, keep_done);
            Ok(())
        })
        .await
}

//! One random history: many sessions on one queue, and what must be true in the end.

use std::collections::BTreeMap;
use std::time::Duration;

use conformance::stores::TestStore;
use hc_dequeue::{
    Cancelled, ConsumerOptions, Delivery, Enqueue, Enqueued, Error, ItemRef, OnRepeat, Place,
};
use keyspace::chaos::{Chaos, Faults};
use keyspace::{
    Environment, Isolation, MutationOp, RangeQuery, RunOptions, Runner, Store, Transaction,
    read_all,
};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use tokio::task::JoinSet;

use crate::common::{LONG, Queue, open, settings};
use crate::process::{FATES, Process, runner, runner_with};

const STEPS: usize = 120;
const PROCESSES: usize = 3;

/// Values that differ by this are of the same item.
const SAME: u64 = 1_000_000;

/// What happens in a history beside enqueues, deliveries and acknowledgements.
#[derive(Debug, Clone)]
pub(crate) struct Play {
    pub(crate) seed: u64,
    pub(crate) faults: Faults,
    /// Whether sessions die and are stopped.
    pub(crate) deaths: bool,
    /// Whether items are popped, too.
    pub(crate) pops: bool,
}

/// What a history came to.
#[derive(Debug, Default)]
pub(crate) struct Course {
    pub(crate) enqueued: usize,
    pub(crate) killed: usize,
    pub(crate) late_refused: usize,
    pub(crate) late_accepted: usize,
    /// Pops that did not return, each of which may have taken an item with it.
    pub(crate) unanswered_pops: usize,
    pub(crate) cancelled: u64,
    pub(crate) merged: u64,
}

/// A wish that a task waits for.
enum Answer {
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
    /// The same, and it tries once.
    hasty: Runner<Chaos<Store>>,
    queue: Queue,
    processes: Vec<Process>,
    /// The ways of the dead to the store.
    graves: Vec<Chaos<Store>>,
    wishes: JoinSet<Answer>,
    held: Vec<Delivery<u64>>,
    popped: BTreeMap<u64, usize>,
    items: Vec<ItemRef>,
    next_value: u64,
    course: Course,
}

/// Plays a history and checks what it left.
pub(crate) async fn play(store: TestStore, play: Play) -> Result<Course, String> {
    let chaos = Chaos::new(store.db.clone(), Environment::system(), play.faults.clone());
    let runner = runner(&store, chaos.clone());
    let queue = open(&store, &runner, settings()).await.unwrap();
    let mut player = Player {
        rng: StdRng::seed_from_u64(play.seed),
        hasty: runner_with(
            &store,
            chaos.clone(),
            RunOptions::default().attempt_limit(1),
        ),
        store,
        play,
        runner,
        queue,
        processes: Vec::new(),
        graves: Vec::new(),
        wishes: JoinSet::new(),
        held: Vec::new(),
        popped: BTreeMap::new(),
        items: Vec::new(),
        next_value: 0,
        course: Course::default(),
    };
    for _ in 0..PROCESSES {
        player.start().await;
    }
    for _ in 0..STEPS {
        player.step().await;
    }
    Box::pin(player.end()).await
}

impl Player {
    async fn start(&mut self) {
        // Short, so that what is leaked or hangs comes back while its process lives.
        let options = ConsumerOptions::default()
            .poll_interval(Duration::from_millis(50))
            .delivery_time_limit(settings().get_lease() * 2);
        let process = Process::start(&self.store, &self.play.faults, options);
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
            25..55 => self.wish(),
            55..75 => self.acknowledge().await,
            75..85 => self.let_go().await,
            85..87 => self.pause(Duration::from_millis(10)).await,
            // Time enough to be found dead.
            87..92 => self.pause(settings().get_lease() * 2).await,
            _ if self.play.deaths => self.strike().await,
            _ => {}
        }
    }

    async fn pause(&mut self, longest: Duration) {
        let pause = longest.mul_f64(self.rng.random());
        self.runner.environment().sleep(pause).await;
    }

    async fn enqueue(&mut self) {
        let count = self.rng.random_range(1..4);
        let values: Vec<_> = (self.next_value..self.next_value + count).collect();
        self.next_value += count;
        self.course.enqueued += values.len();
        let options = match self.rng.random_range(0..4) {
            0 => Enqueue::new().after(Duration::from_millis(self.rng.random_range(0..50))),
            _ => Enqueue::new(),
        };
        let (queue, values, options) = (&self.queue, &values, &options);
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
        self.items
            .extend(staged.into_iter().map(|item| item.at(stamp)));
    }

    /// Enqueues under one of a few dedupe ids. What is refused or replaced by that is noted in the same
    /// transaction.
    async fn enqueue_once(&mut self) {
        let value = self.next_value;
        self.next_value += 1;
        self.course.enqueued += 1;
        let modes = [OnRepeat::Keep, OnRepeat::Replace, OnRepeat::Debounce];
        let mode = *modes.choose(&mut self.rng).unwrap();
        let dedupe = vec![self.rng.random_range(0..3_u8)];
        let delay = Duration::from_millis(self.rng.random_range(0..20));
        let options = Enqueue::new()
            .dedupe(dedupe.clone())
            .on_repeat(mode)
            .after(delay);
        let (queue, store) = (&self.queue, &self.store);
        let (dedupe, options) = (&dedupe, &options);
        let enqueue = |tr| async move {
            let tr = &tr;
            let there = queue.find_deduped(tr, dedupe).await?;
            let old = match &there {
                Some(item) => queue.status(tr, item).await?,
                None => None,
            };
            match queue.enqueue_with(tr, &value, options).await? {
                Enqueued::Staged(_) => {}
                Enqueued::Replaced(item) => {
                    assert_eq!(Some(item), there);
                    count(tr, store, "merged", old.unwrap().value.unwrap());
                }
                _ => count(tr, store, "merged", value),
            }
            Ok::<_, Error>(())
        };
        Box::pin(self.runner.run(enqueue)).await.unwrap();
    }

    /// Cancels, expedites or replaces an item, wherever it is.
    async fn change(&mut self) {
        let Some(item) = self.items.choose(&mut self.rng).copied() else {
            return;
        };
        let (queue, store, what) = (&self.queue, &self.store, self.rng.random_range(0..3));
        let change = |tr| async move {
            let tr = &tr;
            let Some(status) = queue.status(tr, &item).await? else {
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
                }
                1 => drop(queue.expedite(tr, &item).await?),
                // The same item, by another value.
                _ => drop(queue.replace(tr, &item, &(value + SAME)).await?),
            }
            Ok::<_, Error>(())
        };
        Box::pin(self.runner.run(change)).await.unwrap();
    }

    /// Somebody wants items, and may lose interest at any moment.
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
                    Some(Ok(Some(item))) => Answer::Popped(item.value % SAME),
                    Some(Ok(None)) => Answer::Nothing,
                    Some(Err(_)) | None => Answer::PopUnanswered,
                }
            });
        } else {
            self.wishes.spawn(async move {
                let wish = consumer.dequeue_batch_within(wanted, within);
                match env.timeout(interest, wish).await {
                    Some(Ok(deliveries)) => Answer::Delivered(deliveries),
                    Some(Err(_)) | None => Answer::Nothing,
                }
            });
        }
    }

    fn take_in(&mut self, answer: Answer) {
        match answer {
            Answer::Delivered(deliveries) => self.held.extend(deliveries),
            Answer::Popped(value) => *self.popped.entry(value).or_default() += 1,
            Answer::PopUnanswered => self.course.unanswered_pops += 1,
            Answer::Nothing => {}
        }
    }

    /// Acknowledges one of the deliveries, be it late, together with an effect.
    async fn acknowledge(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let place = self.rng.random_range(0..self.held.len());
        let delivery = self.held.swap_remove(place);
        let was_lost = delivery.is_lost();
        if self.rng.random_range(0..8) == 0 {
            // Given up after one attempt, whatever became of it.
            let _ = acknowledge(&self.hasty, &self.store, &delivery).await;
            return;
        }
        match acknowledge(&self.runner, &self.store, &delivery).await {
            Ok(()) if was_lost => self.course.late_accepted += 1,
            Ok(()) => {}
            Err(Error::DeliveryLost { .. } | Error::Cancelled { .. }) => {
                self.course.late_refused += 1;
            }
            Err(error) => panic!("seed {}: {error}", self.play.seed),
        }
    }

    /// Gives a delivery back, or leaks it, or goes on with it after it was lost.
    async fn let_go(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let delivery = self.held.swap_remove(0);
        match self.rng.random_range(0..8) {
            6 => drop(tokio::spawn(async move { delivery.release().await })),
            7 => drop(tokio::spawn(async move { delivery.reject("no").await })),
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
            // Its transaction never commits.
            _ => {
                let tr = keyspace::Database::begin(&self.store.db).unwrap();
                let _ = delivery.ack(&tr).await;
            }
        }
    }

    /// Kills or stops a process, or lets what is stopped go on.
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
                    // What the dead had sent arrives now.
                    grave.flush().await;
                }
            }
        }
    }

    /// Lets one last process finish what there is, and checks what is left.
    async fn end(mut self) -> Result<Course, String> {
        for process in std::mem::take(&mut self.processes) {
            self.graves.push(process.chaos.clone());
        }
        for grave in std::mem::take(&mut self.graves) {
            grave.flush().await;
        }
        self.hasty.database().flush().await;
        while let Some(answer) = self.wishes.join_next().await {
            self.take_in(answer.unwrap());
        }
        let quiet = Faults::default();
        let chaos = Chaos::new(self.store.db.clone(), Environment::system(), quiet.clone());
        self.runner = runner(&self.store, chaos);
        let options = ConsumerOptions::default().poll_interval(Duration::from_millis(50));
        let last = Process::start(&self.store, &quiet, options).await;
        self.held.clear();
        let drained = Environment::system()
            .timeout(LONG, Box::pin(self.drain(&last)))
            .await;
        if drained.is_none() {
            return Err(format!("not all was delivered: {}", self.describe().await));
        }
        last.consumer
            .clone()
            .shut_down(Duration::ZERO)
            .await
            .unwrap();
        self.judge().await?;
        Ok(self.course)
    }

    /// Acknowledges what comes until every item is completed and every session but one is gone.
    async fn drain(&self, process: &Process) {
        loop {
            let stats = self.stats().await;
            let is_drained = stats.queued + stats.delayed + stats.held + stats.dead == 0;
            if is_drained && self.rows("s").await == 1 {
                return;
            }
            let queue = &self.queue;
            let redrive = |tr| async move {
                for letter in queue.dead_letters(&tr, None, 100).await? {
                    queue.redrive(&tr, &letter.item).await?;
                }
                Ok::<_, Error>(())
            };
            self.runner.run(redrive).await.unwrap();
            let wait = Duration::from_millis(50);
            for delivery in process
                .consumer
                .dequeue_batch_within(8, wait)
                .await
                .unwrap()
            {
                match acknowledge(&self.runner, &self.store, &delivery).await {
                    Ok(()) | Err(Error::DeliveryLost { .. } | Error::Cancelled { .. }) => {}
                    Err(error) => panic!("seed {}: {error}", self.play.seed),
                }
            }
        }
    }

    async fn stats(&self) -> hc_dequeue::Stats {
        let queue = &self.queue;
        let stats = |tr| async move { queue.stats(&tr).await };
        Box::pin(self.runner.run(stats)).await.unwrap()
    }

    /// Compares what is left with what was asked for.
    async fn judge(&mut self) -> Result<(), String> {
        let audit = self.queue.audit(&self.runner).await.unwrap();
        if !audit.is_clean() {
            return Err(format!("{audit:?}"));
        }
        let done = self.effects("done").await;
        let cancelled = self.effects("cancelled").await;
        let merged = self.effects("merged").await;
        let mut missing = 0;
        for value in 0..self.next_value {
            let acknowledged = done.get(&value).copied().unwrap_or_default();
            let popped = self.popped.get(&value).copied().unwrap_or_default();
            let ended = [&cancelled, &merged].map(|ended| ended.get(&value).copied());
            let ended: usize = ended.into_iter().flatten().sum();
            match acknowledged + popped + ended {
                0 => missing += 1,
                1 => {}
                times => return Err(format!("item {value} was effective {times} times")),
            }
        }
        if missing > self.course.unanswered_pops {
            return Err(format!(
                "{missing} items were lost, {} may have been",
                self.course.unanswered_pops
            ));
        }
        let stats = self.stats().await;
        let sum = |ended: &BTreeMap<u64, usize>| ended.values().sum::<usize>() as u64;
        self.course.cancelled = sum(&cancelled);
        self.course.merged = sum(&merged);
        let ended = self.course.cancelled + self.course.merged;
        let expected = (self.next_value - ended, self.course.cancelled);
        if (stats.completed, stats.cancelled) != expected {
            return Err(format!("{stats:?}, not {expected:?}"));
        }
        for part in [
            "i", "t", "h", "g", "r", "d", "s", "b", "o", "k", "n", "a", "y",
        ] {
            let left = self.rows(part).await;
            if left != 0 {
                return Err(format!("{left} keys are left under `{part}`"));
            }
        }
        Ok(())
    }

    /// Returns how often something was counted of each item.
    async fn effects(&self, what: &str) -> BTreeMap<u64, usize> {
        let part = self.store.root.subspace(&what);
        let (begin, end) = part.range();
        let query = &RangeQuery::keys(begin, end);
        let read = |tr| async move { read_all(&tr, query.clone(), Isolation::Snapshot).await };
        let rows = self.runner.run(read).await.unwrap();
        let effect = |row: &keyspace::KeyValue| {
            let count = u64::from_le_bytes(row.value().try_into().unwrap());
            (part.unpack(row.key()).unwrap(), count as usize)
        };
        rows.iter().map(effect).collect()
    }

    async fn rows(&self, part: &str) -> usize {
        let (begin, end) = self.queue.subspace().subspace(&part).range();
        let query = &RangeQuery::keys(begin, end);
        let read = |tr| async move { read_all(&tr, query.clone(), Isolation::Snapshot).await };
        self.runner.run(read).await.unwrap().len()
    }

    async fn describe(&self) -> String {
        let mut parts = format!("{:?}", self.stats().await);
        for part in ["r", "g", "h", "s"] {
            parts += &format!(", {part}: {}", self.rows(part).await);
        }
        parts
    }
}

/// Acknowledges a delivery, and counts that in the same transaction.
async fn acknowledge(
    runner: &Runner<Chaos<Store>>,
    store: &TestStore,
    delivery: &Delivery<u64>,
) -> Result<(), Error> {
    runner
        .run(|tr| async move {
            delivery.ack(&tr).await?;
            count(&tr, store, "done", *delivery.value());
            Ok(())
        })
        .await
}

/// Counts something of an item.
fn count(tr: &impl Transaction, store: &TestStore, what: &str, value: u64) {
    let key = store.root.pack(&(what, value % SAME));
    tr.atomic(MutationOp::Add, &key, &1_u64.to_le_bytes());
}

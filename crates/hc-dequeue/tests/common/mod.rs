//! Helpers that several tests of this crate share.

#![allow(dead_code, reason = "every test file uses a part of it")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod recorder;
pub(crate) mod still;

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, SystemTime};

use conformance::stores::TestStore;
use conformance::until;
use futures::future::BoxFuture;
use hc_dequeue::session::{SessionId, Sessions};
use hc_dequeue::{
    Backoff, Cancelled, Consumer, Enqueue, Enqueued, ItemRef, Place, PlaceKind, Settings, Status,
    WorkerOptions,
};
use keyspace::codec::Codec;
use keyspace::env::Clock;
use keyspace::names::queue_name;
use keyspace::run::RunOptions;
use keyspace::{
    Database, Environment, Error, Isolation, OpenOptions, RangeQuery, Runner, Store, Transaction,
    Tx, read_all,
};
use tokio::runtime::Builder;
use tokio::sync::oneshot;

/// Longer than anything takes that is not stuck.
pub(crate) const LONG: Duration = conformance::HANG;

/// How many cases a test tries at the same time: a store that answers slowly serves them side by side.
pub(crate) const AT_ONCE: usize = 24;

pub(crate) type Queue = hc_dequeue::Queue<u64>;
pub(crate) type Result<T, E = hc_dequeue::Error> = std::result::Result<T, E>;

/// Records the metrics of what is created from now on.
pub(crate) fn install_recorder() {
    recorder::install();
}

/// Returns the values that this program has recorded, as [`World::records`] does.
pub(crate) fn recorded(metric: &str, labels: String) -> Vec<f64> {
    recorder::values_of(metric, labels)
}

/// Returns all values that a gauge was set to, by the values of its labels.
pub(crate) fn all_recorded(metric: &str, labels: String) -> Vec<f64> {
    recorder::all_values_of(metric, labels)
}

/// A queue in a store, with a runner.
pub(crate) struct World {
    pub(crate) store: TestStore,
    pub(crate) runner: Runner<Store>,
    pub(crate) queue: Queue,
}

impl World {
    pub(crate) async fn new(store: &TestStore, settings: Settings) -> Self {
        let store = store.fresh();
        let runner = store.runner();
        let queue = open(&store, &runner, settings).await.unwrap();
        Self {
            store,
            runner,
            queue,
        }
    }

    /// Returns a world whose metrics are recorded from the start.
    pub(crate) async fn recorded(store: &TestStore, settings: Settings) -> Self {
        recorder::install();
        Self::new(store, settings).await
    }

    pub(crate) async fn with_defaults(store: &TestStore) -> Self {
        Self::new(store, Settings::default()).await
    }

    pub(crate) async fn consumer(&self) -> Consumer<u64> {
        let options = WorkerOptions::default();
        self.queue.consumer(&self.runner, options).await.unwrap()
    }

    /// Returns a consumer whose failed items come back soon.
    pub(crate) async fn quick_consumer(&self, options: WorkerOptions) -> Consumer<u64> {
        let soon = Duration::from_millis(1);
        let options = options.with_backoff(Backoff::new(soon, soon));
        self.queue.consumer(&self.runner, options).await.unwrap()
    }

    pub(crate) async fn enqueue(&self, values: impl IntoIterator<Item = u64>) {
        enqueue(&self.runner, &self.queue, values).await.unwrap();
    }

    pub(crate) async fn enqueue_with(&self, value: u64, options: &Enqueue) -> Result<Enqueued> {
        let queue = &self.queue;
        let enqueue = |tr| async move { queue.enqueue_with(&tr, &value, options).await };
        self.runner.run(enqueue).await
    }

    pub(crate) async fn enqueue_ref(&self, value: u64, options: &Enqueue) -> ItemRef {
        let queue = &self.queue;
        let enqueue = |tr| async move { queue.enqueue_with(&tr, &value, options).await };
        match self.runner.run_committed(enqueue).await.unwrap() {
            (Enqueued::Staged(staged), commit) => staged.at(commit.versionstamp.unwrap()),
            (other, _) => panic!("{other:?}"),
        }
    }

    pub(crate) async fn status(&self, item: &ItemRef) -> Option<Status<u64>> {
        let queue = &self.queue;
        let status = |tr| async move { queue.status(&tr, item).await };
        self.runner.run(status).await.unwrap()
    }

    pub(crate) async fn place(&self, item: &ItemRef) -> Option<Place> {
        self.status(item).await.map(|status| status.place)
    }

    pub(crate) async fn cancel(&self, item: &ItemRef) -> Cancelled {
        let queue = &self.queue;
        let cancel = |tr| async move { queue.cancel(&tr, item).await };
        self.runner.run(cancel).await.unwrap()
    }

    /// Acknowledges in a transaction of its own.
    pub(crate) async fn ack(&self, delivery: &hc_dequeue::Delivery<u64>) -> Result<()> {
        let ack = |tr| async move { delivery.ack(&tr).await };
        self.runner.run(ack).await
    }

    pub(crate) async fn stats(&self) -> hc_dequeue::Stats {
        let queue = &self.queue;
        let stats = |tr| async move { queue.stats(&tr).await };
        self.runner.run(stats).await.unwrap()
    }

    /// Returns the values of the waiting items.
    pub(crate) async fn values(&self) -> Vec<u64> {
        let queue = &self.queue;
        let mut values = Vec::new();
        let mut after = None;
        loop {
            let from = after.as_ref();
            let list = |tr| async move { queue.list(&tr, PlaceKind::Queued, from, 1_000).await };
            let page = self.runner.run(list).await.unwrap();
            values.extend(
                page.items
                    .into_iter()
                    .map(|item| item.status.unwrap().value.unwrap()),
            );
            after = page.next;
            if after.is_none() {
                return values;
            }
        }
    }

    /// Returns the dead letters of the queue. Panics if there are more than a thousand, or if a row contains none.
    pub(crate) async fn dead_letters(&self) -> Vec<DeadLetter<u64>> {
        let queue = &self.queue;
        let dead = |tr| async move { dead_letters(&tr, queue, 1_000).await };
        self.runner.run(dead).await.unwrap()
    }

    /// Returns a world, and a dead session whose request is the first. Others judge that session by its own lease,
    /// which is long: only [`declare_dead`](Self::declare_dead) lets them return what it was granted.
    pub(crate) async fn with_dead(store: &TestStore, settings: Settings) -> (Self, SessionId) {
        let mut world = Self::new(store, settings.clone().with_lease(LONG)).await;
        Doomed::start(&world).await.die();
        let [dead] = world.sessions().await[..] else {
            panic!("one session");
        };
        let configure = async |tr| world.queue.configure(&tr, &settings).await;
        world.runner.run(configure).await.unwrap();
        let queue = open(&world.store, &world.runner, settings).await;
        world.queue = queue.unwrap();
        (world, dead)
    }

    /// Declares a session dead, as another one does after its lease.
    pub(crate) async fn declare_dead(&self, session: SessionId) {
        let sessions = &self.queue.sessions();
        let declare = |tr| async move {
            let version_ago = |_| Some(i64::MAX);
            sessions.declare_dead(&tr, session, version_ago).await
        };
        assert!(self.runner.run(declare).await.unwrap());
    }

    /// Returns when `count` requests are registered.
    pub(crate) async fn until_requested(&self, count: usize) {
        until(async || self.count("r").await == count).await;
    }

    /// Returns the sessions.
    pub(crate) async fn sessions(&self) -> Vec<SessionId> {
        let sessions = &Sessions::new(self.queue.subspace().clone());
        let read = |tr| async move { sessions.all(&tr).await };
        let all = self.runner.run(read).await.unwrap();
        all.into_iter().map(|(session, _)| session).collect()
    }

    /// Returns after a session has written another heartbeat.
    pub(crate) async fn next_heartbeat(&self, session: SessionId) {
        let key = &self.queue.subspace().pack(&("b", session.0.as_slice()));
        let read = || {
            let read = |tr: Tx<_>| async move { tr.get(key, Isolation::Snapshot).await };
            async move { self.runner.run(read).await.unwrap().unwrap() }
        };
        let last = read().await;
        until(async || read().await != last).await;
    }

    /// Returns how many keys a part of the queue has.
    pub(crate) async fn count(&self, part: &str) -> usize {
        let (begin, end) = self.queue.subspace().subspace(&part).range();
        let query = &RangeQuery::keys(begin, end);
        let rows = |tr| async move { read_all(&tr, query.clone(), Isolation::Snapshot).await };
        self.runner.run(rows).await.unwrap().len()
    }

    /// Returns the values that this program has recorded of the queue under the name of a metric: the last nonzero
    /// value of a gauge, the increments of a counter, or each value of a histogram.
    pub(crate) fn records(&self, metric: &str) -> Vec<f64> {
        recorder::values_of(metric, queue_name(self.queue.subspace()))
    }

    /// Returns how many calls of handlers were counted with an outcome.
    pub(crate) fn recorded_outcome(&self, outcome: &str) -> f64 {
        // The outcome follows the queue in the labels.
        let labels = queue_name(self.queue.subspace()) + outcome;
        recorder::values_of("hc_dequeue_outcomes", labels)
            .into_iter()
            .sum()
    }

    /// Returns the value of a gauge, or the sum of the recorded values.
    pub(crate) fn recorded_sum(&self, metric: &str) -> f64 {
        self.records(metric).into_iter().sum()
    }

    /// Lets a worker complete the items that are queued or delayed.
    pub(crate) async fn complete_all(&self) {
        let worker = self
            .queue
            .work(&self.runner, WorkerOptions::new(), |_| async {});
        let worker = worker.await.unwrap();
        self.queue.wait_idle(&self.runner).await.unwrap();
        worker.shut_down(LONG).await.unwrap();
    }

    /// Panics if an audit finds a contradiction.
    pub(crate) async fn check(&self) {
        let audit = self.queue.audit(&self.runner).await.unwrap();
        assert!(audit.is_clean(), "{audit:?}");
    }

    /// Returns a part of the queue's rows.
    pub(crate) fn key(&self, part: &str) -> keyspace::Subspace {
        self.queue.subspace().subspace(&part)
    }

    /// Gives all rows of a part of the queue a value that does not decode.
    pub(crate) async fn damage(&self, part: &str) {
        let (begin, end) = self.key(part).range();
        let rows = &RangeQuery::keys(begin, end);
        let damage = |tr: Tx<_>| async move {
            for row in read_all(&tr, rows.clone(), Isolation::Snapshot).await? {
                tr.set(row.key(), b"\xffnewer");
            }
            Ok::<_, Error>(())
        };
        self.runner.run(damage).await.unwrap();
    }

    /// Writes a key, or clears it.
    pub(crate) async fn write(&self, key: &[u8], value: Option<&[u8]>) {
        let write = self.runner.run(|tr| async move {
            match value {
                Some(value) => tr.set(key, value),
                None => tr.clear(key),
            }
            Ok::<_, Error>(())
        });
        write.await.unwrap();
    }
}

/// The system's clock with a wall clock that is set forward.
#[derive(Clone)]
pub(crate) struct Wall {
    ahead: Arc<Mutex<Duration>>,
}

impl Wall {
    pub(crate) fn ahead(by: Duration) -> Self {
        let ahead = Arc::new(Mutex::new(by));
        Self { ahead }
    }

    pub(crate) fn set(&self, ahead: Duration) {
        *self.ahead.lock().unwrap() = ahead;
    }

    /// Returns a runner of a process with this clock.
    pub(crate) fn runner(&self, store: &TestStore) -> Runner<Store> {
        let seed = u64::from_le_bytes(Environment::system().random_bytes());
        let options = RunOptions::default()
            .with_ledger_subspace(store.root.subspace(&"ledgers"))
            .with_environment(Environment::seeded(seed, Arc::new(self.clone())));
        Runner::with_options(store.db.clone(), options)
    }
}

impl Clock for Wall {
    fn now(&self) -> Duration {
        Environment::system().now()
    }

    fn wall(&self) -> SystemTime {
        Environment::system().wall() + *self.ahead.lock().unwrap()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Environment::system().sleep(duration)
    }
}

/// A consumer on its own runtime, which waits for an item until it dies.
pub(crate) struct Doomed {
    alive: oneshot::Sender<()>,
    process: thread::JoinHandle<()>,
}

impl Doomed {
    pub(crate) async fn start(world: &World) -> Self {
        let (alive, killed) = oneshot::channel::<()>();
        let queue = world.queue.clone();
        let runner = world.runner.clone();
        let process = process(|| async move {
            let options = WorkerOptions::default();
            let consumer = queue.consumer(&runner, options).await.unwrap();
            tokio::select! {
                _ = consumer.pop_within(LONG) => {}
                _ = killed => {}
            }
        });
        world.until_requested(1).await;
        Self { alive, process }
    }

    /// Returns when nothing of it runs any more.
    pub(crate) fn die(self) {
        drop(self.alive);
        self.process.join().unwrap();
    }
}

/// Runs a future in its own runtime, and drops the runtime with all tasks that are still running. What the future
/// returns outlives them.
pub(crate) fn process<F: Future<Output: Send + 'static>>(
    work: impl FnOnce() -> F + Send + 'static,
) -> thread::JoinHandle<F::Output> {
    thread::spawn(move || {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(work())
    })
}

/// Settings for tests in which sessions die.
pub(crate) fn settings() -> Settings {
    Settings::new()
        .with_lease(Duration::from_millis(150))
        .with_max_attempts(20)
}

pub(crate) async fn open<D: Database>(
    store: &TestStore,
    runner: &Runner<D>,
    settings: Settings,
) -> Result<Queue> {
    Queue::open_with(
        runner,
        store.root.subspace(&"queue"),
        settings,
        OpenOptions::default(),
    )
    .await
}

pub(crate) async fn enqueue<D: Database>(
    runner: &Runner<D>,
    queue: &Queue,
    values: impl IntoIterator<Item = u64>,
) -> Result<()> {
    let values: Vec<_> = values.into_iter().collect();
    let values = &values;
    let enqueue = |tr| async move { queue.enqueue_all(&tr, values).await.map(drop) };
    runner.run(enqueue).await
}

/// A dead letter whose record decodes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct DeadLetter<T> {
    pub(crate) item: ItemRef,
    pub(crate) status: Status<T>,
}

impl<T> std::ops::Deref for DeadLetter<T> {
    type Target = Status<T>;

    fn deref(&self) -> &Status<T> {
        &self.status
    }
}

/// Returns the dead letters of a queue. Panics if a page with this limit does not have all of them, or if a row
/// contains none.
pub(crate) async fn dead_letters<T, C: Codec<T>>(
    tr: &impl Transaction,
    queue: &hc_dequeue::Queue<T, C>,
    limit: usize,
) -> hc_dequeue::Result<Vec<DeadLetter<T>>> {
    let page = queue.list(tr, PlaceKind::Dead, None, limit).await?;
    assert_eq!((page.strays, page.next), (vec![], None));
    let letters = page.items.into_iter().map(|listed| DeadLetter {
        item: listed.item,
        status: listed.status.unwrap(),
    });
    Ok(letters.collect())
}

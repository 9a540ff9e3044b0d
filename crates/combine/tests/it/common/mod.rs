//! Helpers that several tests of this crate share.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use combine::{
    AsideId, BoxError, Change, ChangeObserver, CombineQueue, Combiner, Error, Exact, SetAside,
    Settings, Sum, Worker, WorkerOptions,
};
use conformance::stores::{TestStore, rows_between};
use keyspace::codec::{Codec, MessagePack};
use keyspace::{
    Database, Isolation, KeyValue, Listed, OpenOptions, RangeQuery, Runner, Store, Subspace,
    Transaction, Versionstamp, read_all,
};

/// More time than any operation takes that is not stuck.
pub(crate) const LONG: Duration = conformance::HANG;

pub(crate) type Queue<U = i64, V = i64> = CombineQueue<String, U, V>;

/// A combine queue in a store, with a runner.
pub(crate) struct World<U = i64, V = i64, D: Database = Store> {
    pub(crate) runner: Runner<D>,
    pub(crate) queue: Queue<U, V>,
    pub(crate) root: Subspace,
}

impl World {
    /// A queue of sums with this many buckets.
    pub(crate) async fn sums(store: &TestStore, bucket_count: u32) -> Self {
        Self::new(store, bucket_count, Sum).await
    }
}

impl<U, V> World<U, V>
where
    U: Stored,
    V: Stored,
{
    pub(crate) async fn new(
        store: &TestStore,
        bucket_count: u32,
        combiner: impl Combiner<String, U, V>,
    ) -> Self {
        let store = store.fresh();
        Self::on(store.runner(), &store, bucket_count, combiner).await
    }
}

/// A queue whose sessions die soon, and its store.
pub(crate) async fn short_lived(store: &TestStore) -> (TestStore, World) {
    let store = store.fresh();
    let runner = store.runner();
    let settings = settings(32).with_lease(Duration::from_millis(150));
    let queue = open_sums(&runner, store.root.subspace(&"queue"), settings).await;
    let world = World {
        queue: queue.unwrap(),
        runner,
        root: store.root.clone(),
    };
    (store, world)
}

/// Types that can be updates or values in these tests.
pub(crate) trait Stored:
    serde::Serialize + serde::de::DeserializeOwned + Send + Sync + 'static
{
}

impl<T: serde::Serialize + serde::de::DeserializeOwned + Send + Sync + 'static> Stored for T {}

impl<U, V, D> World<U, V, D>
where
    U: Stored,
    V: Stored,
    D: Database,
{
    pub(crate) async fn on(
        runner: Runner<D>,
        store: &TestStore,
        bucket_count: u32,
        combiner: impl Combiner<String, U, V>,
    ) -> Self {
        let settings = settings(bucket_count);
        let root = store.root.clone();
        let subspace = root.subspace(&"queue");
        let queue = CombineQueue::open_with(
            &runner,
            subspace,
            settings,
            combiner,
            OpenOptions::default(),
        );
        Self {
            queue: queue.await.unwrap(),
            runner,
            root,
        }
    }

    pub(crate) async fn add(&self, key: &str, update: U) -> Versionstamp {
        self.add_all(vec![(key.to_owned(), update)]).await
    }

    pub(crate) async fn add_all(&self, updates: Vec<(String, U)>) -> Versionstamp {
        let queue = &self.queue;
        let updates = &updates;
        let add = |tr| async move {
            queue
                .add_all(&tr, updates.iter().map(|(key, value)| (key, value)))
                .await
        };
        let ((), commit) = self.runner.run_committed(add).await.unwrap();
        commit.versionstamp.unwrap()
    }

    pub(crate) async fn settled(&self, key: &str) -> Option<V> {
        let queue = &self.queue;
        let key = &key.to_owned();
        let read = |tr| async move { queue.settled(&tr, key, Isolation::Snapshot).await };
        self.runner.run(read).await.unwrap()
    }

    pub(crate) async fn exact(&self, key: &str) -> Option<V> {
        let queue = &self.queue;
        let key = &key.to_owned();
        let read = |tr| async move { queue.exact(&tr, key, &Exact::default()).await };
        self.runner.run(read).await.unwrap()
    }

    /// Returns all values.
    pub(crate) async fn values(&self) -> BTreeMap<String, V> {
        let queue = &self.queue;
        let read = |tr| async move {
            let isolation = Isolation::Snapshot;
            queue.values(&tr, None, usize::MAX, isolation).await
        };
        let values = self.runner.run(read).await.unwrap();
        let decode = values.into_iter().map(|listed| listed.value);
        decode.collect::<Result<_, _>>().unwrap()
    }

    /// Starts a worker that rarely polls, so that it acts only when it is woken.
    pub(crate) async fn work(&self, observer: impl ChangeObserver<String, V>) -> Worker {
        self.work_with(WorkerOptions::default(), observer).await
    }

    pub(crate) async fn work_with(
        &self,
        options: WorkerOptions,
        observer: impl ChangeObserver<String, V>,
    ) -> Worker {
        let worker = self.queue.work(&self.runner, options, observer);
        worker.await.unwrap()
    }

    pub(crate) async fn wait_idle(&self) {
        let idle = self.queue.wait_idle(&self.runner);
        conformance::timeout(LONG, idle).await.unwrap();
    }

    /// Combines everything with a worker of its own.
    pub(crate) async fn combine(&self, options: WorkerOptions, log: &Log<V>)
    where
        V: Clone + PartialEq + std::fmt::Debug,
    {
        let worker = self.work_with(options, log.clone()).await;
        self.wait_idle().await;
        worker.shut_down(LONG).await.unwrap();
    }

    /// Returns the rows of a part of the queue.
    pub(crate) async fn rows(&self, part: &str) -> Vec<KeyValue> {
        self.rows_of(&self.queue.subspace().subspace(&part)).await
    }

    /// Returns the rows of a subspace.
    pub(crate) async fn rows_of(&self, subspace: &Subspace) -> Vec<KeyValue> {
        let (begin, end) = subspace.range();
        rows_between(self.runner.database(), begin, end).await
    }

    /// Panics if there are other rows than values, states of passes and settings.
    pub(crate) async fn assert_nothing_left(&self) {
        for part in ["u", "c", "q", "s", "b"] {
            let rows = self.rows(part).await;
            assert_eq!(rows, [], "{part}");
        }
    }
}

/// Opens a queue of sums with these settings.
pub(crate) async fn open_sums<D: Database>(
    runner: &Runner<D>,
    subspace: Subspace,
    settings: Settings,
) -> combine::Result<Queue> {
    Queue::open_with(runner, subspace, settings, Sum, OpenOptions::default()).await
}

pub(crate) fn settings(bucket_count: u32) -> Settings {
    Settings::new().with_bucket_count(bucket_count)
}

/// Stages a row of the queue.
pub(crate) async fn write(world: &World, row: &[u8], value: &[u8]) {
    let write = |tr: keyspace::Tx<_>| async move {
        tr.set(row, value);
        Ok::<_, Error>(())
    };
    world.runner.run(write).await.unwrap();
}

/// The encoded key.
pub(crate) fn encoded(key: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    <MessagePack as Codec<String>>::encode(&MessagePack, &key.to_owned(), &mut bytes).unwrap();
    bytes
}

/// Returns the records that were set aside.
pub(crate) async fn set_aside(world: &World) -> Vec<Listed<AsideId, SetAside>> {
    /// As many as a transaction can read in time on a store that is slow.
    const PAGE: usize = 1_000;
    let queue = &world.queue;
    let mut found: Vec<Listed<AsideId, SetAside>> = Vec::new();
    loop {
        let after = found.last().map(|last| last.id.clone());
        let after = after.as_ref();
        let read = |tr| async move { queue.set_aside(&tr, after, PAGE).await };
        let page = world.runner.run(read).await.unwrap();
        let is_last = page.len() < PAGE;
        found.extend(page);
        if is_last {
            return found;
        }
    }
}

/// Redrives a record that was set aside. Returns false if it is no longer set aside.
pub(crate) async fn redrive(world: &World, aside: &AsideId) -> bool {
    let queue = &world.queue;
    let redrive = |tr| async move { queue.redrive(&tr, aside).await };
    world.runner.run(redrive).await.unwrap()
}

/// An observer that records its changes in the transaction of the pass, and verifies that the reports of
/// each key are a chain.
///
/// The row `(log, key)` contains the number of reports and the new value of the last one.
#[derive(Debug, Clone)]
pub(crate) struct Log<V> {
    log: Subspace,
    /// The deviations found, whether or not the pass committed.
    pub(crate) broken: Arc<Mutex<Vec<String>>>,
    value: std::marker::PhantomData<fn() -> V>,
}

impl<V> Log<V> {
    pub(crate) fn new(root: &Subspace) -> Self {
        Self {
            log: root.subspace(&"log"),
            broken: Arc::default(),
            value: std::marker::PhantomData,
        }
    }
}

impl<V> ChangeObserver<String, V> for Log<V>
where
    V: Stored + Clone + PartialEq + std::fmt::Debug,
{
    async fn observe<T: Transaction>(
        &self,
        tr: &T,
        changes: &[Change<String, V>],
    ) -> Result<(), BoxError> {
        for Change { key, old, new, .. } in changes {
            let row = self.log.pack(key);
            let last = tr.get(&row, Isolation::Serializable).await?;
            let (reports, last): (u64, Option<V>) = match last {
                Some(last) => serde_json::from_slice(&last)?,
                None => (0, None),
            };
            if last != *old || old == new {
                let broken = format!("{key}: {last:?} was reported, then {old:?} -> {new:?}");
                self.broken.lock().unwrap().push(broken);
            }
            tr.set(&row, &serde_json::to_vec(&(reports + 1, new))?);
        }
        Ok(())
    }
}

impl<V> Log<V>
where
    V: Stored + Clone + PartialEq + std::fmt::Debug,
{
    /// Returns how often each key was reported, and its last new value.
    pub(crate) async fn reports<D: Database>(
        &self,
        runner: &Runner<D>,
    ) -> BTreeMap<String, (u64, Option<V>)> {
        let read = |tr| async move { self.reports_in(&tr).await };
        runner.run(read).await.unwrap()
    }

    /// Returns the same at the read version of a transaction.
    pub(crate) async fn reports_in(
        &self,
        tr: &impl Transaction,
    ) -> Result<BTreeMap<String, (u64, Option<V>)>, Error> {
        let (begin, end) = self.log.range();
        let rows = read_all(tr, RangeQuery::keys(begin, end), Isolation::Snapshot).await?;
        let report = |row: &KeyValue| {
            let key: String = self.log.unpack(row.key()).unwrap();
            (key, serde_json::from_slice(row.value()).unwrap())
        };
        Ok(rows.iter().map(report).collect())
    }

    /// Panics if the reports are not chains that end at the values.
    pub(crate) async fn check<U: Stored, D: Database>(&self, world: &World<U, V, D>) {
        assert_eq!(*self.broken.lock().unwrap(), [""; 0]);
        let reports = self.reports(&world.runner).await;
        let reported = reports.into_iter();
        let last: BTreeMap<_, _> = reported
            .filter_map(|(key, (_, new))| Some((key, new?)))
            .collect();
        assert_eq!(last, world.values().await);
    }
}

/// An observer that records a log, and stages rows of some size for each change.
#[derive(Clone)]
pub(crate) struct Stages {
    pub(crate) log: Log<i64>,
    rows: Subspace,
    row_bytes: usize,
    rows_of: fn(&str) -> u32,
    /// Whether it only records the log from now on.
    pub(crate) is_fixed: Arc<AtomicBool>,
    /// The changes of all calls, whether or not their passes committed.
    pub(crate) reported: Arc<AtomicUsize>,
}

impl Stages {
    /// Stages as many rows of `row_bytes` as `rows_of` returns for the key of a change.
    pub(crate) fn new(world: &World, row_bytes: usize, rows_of: fn(&str) -> u32) -> Self {
        Self {
            log: Log::new(&world.root),
            rows: world.root.subspace(&"staged"),
            row_bytes,
            rows_of,
            is_fixed: Arc::default(),
            reported: Arc::default(),
        }
    }
}

impl ChangeObserver<String, i64> for Stages {
    async fn observe<T: Transaction>(
        &self,
        tr: &T,
        changes: &[Change<String, i64>],
    ) -> Result<(), BoxError> {
        self.log.observe(tr, changes).await?;
        self.reported.fetch_add(changes.len(), Ordering::Relaxed);
        if self.is_fixed.load(Ordering::Relaxed) {
            return Ok(());
        }
        let row = vec![7; self.row_bytes];
        for change in changes {
            for number in 0..(self.rows_of)(&change.key) {
                tr.set(&self.rows.pack(&(&change.key, number)), &row);
            }
        }
        Ok(())
    }
}

/// An observer that fails.
pub(crate) struct Fails;

impl<V: Sync> ChangeObserver<String, V> for Fails {
    async fn observe<T: Transaction>(
        &self,
        _tr: &T,
        _changes: &[Change<String, V>],
    ) -> Result<(), BoxError> {
        Err("on purpose".into())
    }
}

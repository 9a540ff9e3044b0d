//! Helpers that several tests of this crate share.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use conformance::stores::{TestStore, rows_between};
use export_queue::combine::Bucket;
use export_queue::hc_dequeue::Backoff;
use export_queue::microqueue::blocks::{EntryId, decode_block};
use export_queue::{
    BoxError, DeadLetter, Error, ExportQueue, Exporter, Pending, Sequence, SequencedExport,
    Settings, Start, Subscription, Worker, WorkerOptions, async_trait,
};
use keyspace::{
    Bytes, Database, Isolation, KeyValue, Listed, OpenOptions, Runner, Store, Subspace,
    Transaction, Tx, Versionstamp,
};

/// More time than any operation takes that is not stuck.
pub(crate) const LONG: Duration = conformance::HANG;

pub(crate) type Queue = ExportQueue<String, Option<i64>>;
pub(crate) type Reader = Subscription<String, Option<i64>>;

/// An export queue in a store, with a runner and a subscription.
pub(crate) struct World<D: Database = Store> {
    pub(crate) runner: Runner<D>,
    pub(crate) queue: Queue,
    pub(crate) reader: Reader,
    pub(crate) root: Subspace,
}

impl World {
    pub(crate) async fn new(store: &TestStore, bucket_count: u32) -> Self {
        let store = store.fresh();
        Self::on(store.runner(), &store, settings(bucket_count)).await
    }
}

impl<D: Database> World<D> {
    pub(crate) async fn on(runner: Runner<D>, store: &TestStore, settings: Settings) -> Self {
        let root = store.root.clone();
        let queue = open(&runner, root.subspace(&"queue"), settings)
            .await
            .unwrap();
        let reader = queue.subscribe(&runner, "reader", Start::Oldest).await;
        Self {
            reader: reader.unwrap(),
            queue,
            runner,
            root,
        }
    }

    pub(crate) async fn add(&self, key: &str, value: i64) -> Versionstamp {
        self.add_all(vec![(key.to_owned(), Some(value))]).await
    }

    pub(crate) async fn add_all(&self, entries: Vec<(String, Option<i64>)>) -> Versionstamp {
        let queue = &self.queue;
        let entries = &entries;
        let add = |tr| async move {
            queue
                .add_all(&tr, entries.iter().map(|(key, value)| (key, value)))
                .await
        };
        let ((), commit) = self.runner.run_committed(add).await.unwrap();
        commit.versionstamp.unwrap()
    }

    pub(crate) async fn subscribe(&self, name: &str, start: Start) -> Reader {
        self.queue
            .subscribe(&self.runner, name, start)
            .await
            .unwrap()
    }

    pub(crate) async fn work(
        &self,
        options: WorkerOptions,
        exporter: impl Exporter<String, Option<i64>>,
    ) -> Worker {
        self.reader
            .work(&self.runner, options, exporter)
            .await
            .unwrap()
    }

    pub(crate) async fn wait_idle(&self) {
        self.wait_for(&self.reader).await;
    }

    pub(crate) async fn wait_for(&self, reader: &Reader) {
        let idle = reader.wait_idle(&self.runner);
        conformance::timeout(LONG, idle).await.unwrap();
    }

    /// Exports everything with a worker of its own.
    pub(crate) async fn export(&self, reader: &Reader, receiver: &Receiver) {
        let options = WorkerOptions::default();
        let worker = reader
            .work(&self.runner, options, receiver.clone())
            .await
            .unwrap();
        self.wait_for(reader).await;
        worker.shut_down(LONG).await.unwrap();
    }

    /// Returns the rows of a part of the queue.
    pub(crate) async fn rows(&self, part: &str) -> Vec<KeyValue> {
        let (begin, end) = self.queue.subspace().subspace(&part).range();
        self.rows_between(begin, end).await
    }

    /// Returns the rows of a range of keys.
    pub(crate) async fn rows_between(&self, begin: Vec<u8>, end: Vec<u8>) -> Vec<KeyValue> {
        rows_between(self.runner.database(), begin, end).await
    }

    /// Returns the number of entries in the logs.
    pub(crate) async fn logged(&self) -> usize {
        let blocks = self.rows("e").await;
        let entries = blocks.iter().map(|row| decode_block(&row.to_value()));
        entries.map(|entries| entries.unwrap().len()).sum()
    }

    /// Returns the position of a subscription in a bucket.
    pub(crate) async fn position(&self, name: &str, bucket: u32) -> Option<EntryId> {
        let key = self.queue.subspace().pack(&("p", name, bucket));
        let record = self.get(&key).await?;
        assert_eq!(record[0], 1);
        Some(EntryId::try_from(&record[1..]).unwrap())
    }

    /// Returns a row of the store.
    pub(crate) async fn get(&self, key: &[u8]) -> Option<Bytes> {
        let read = |tr: Tx<_>| async move { tr.get(key, Isolation::Snapshot).await };
        self.runner.run(read).await.unwrap()
    }

    /// Sets a row of the store.
    pub(crate) async fn set(&self, key: &[u8], value: &[u8]) {
        let set = |tr: Tx<_>| async move {
            tr.set(key, value);
            Ok::<_, Error>(())
        };
        self.runner.run(set).await.unwrap();
    }

    /// Clears a row of the store.
    pub(crate) async fn clear(&self, key: &[u8]) {
        let clear = |tr: Tx<_>| async move {
            tr.clear(key);
            Ok::<_, Error>(())
        };
        self.runner.run(clear).await.unwrap();
    }

    /// Returns the backlog of a subscription in a bucket.
    pub(crate) async fn pending(&self, reader: &Reader, bucket: u32) -> Pending {
        let pending = |tr| async move { reader.pending(&tr, Bucket(bucket)).await };
        self.runner.run(pending).await.unwrap()
    }

    /// Returns the dead letters of the subscription.
    pub(crate) async fn letters(&self) -> Vec<Listed<Sequence, DeadLetter>> {
        let reader = &self.reader;
        let letters = |tr| async move { reader.dead_letters(&tr, None, 1000).await };
        self.runner.run(letters).await.unwrap()
    }

    /// Panics if there are other rows than positions and settings.
    pub(crate) async fn assert_nothing_left(&self) {
        for part in ["e", "c", "o", "d", "s"] {
            assert_eq!(self.rows(part).await, [], "{part}");
        }
    }
}

/// Opens a queue with these settings.
pub(crate) async fn open<D: Database>(
    runner: &Runner<D>,
    subspace: Subspace,
    settings: Settings,
) -> export_queue::Result<Queue> {
    Queue::open_with(runner, subspace, settings, OpenOptions::default()).await
}

pub(crate) fn settings(bucket_count: u32) -> Settings {
    Settings::new().with_bucket_count(bucket_count)
}

pub(crate) fn no_backoff() -> Backoff {
    Backoff::new(Duration::from_millis(1), Duration::from_millis(1))
}

/// The data that a receiver has for a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) value: Option<i64>,
    pub(crate) sequence: Sequence,
}

/// A receiver that keeps the value of each key with its sequence, including deleted keys, and ignores
/// entries that are not newer. It also keeps all calls in their order.
#[derive(Debug, Clone, Default)]
pub(crate) struct Receiver(Arc<Mutex<Received>>);

#[derive(Debug, Default)]
pub(crate) struct Received {
    pub(crate) held: BTreeMap<String, Held>,
    pub(crate) calls: Vec<Vec<SequencedExport<String, Option<i64>>>>,
}

impl Receiver {
    /// Takes a batch.
    pub(crate) fn receive(&self, batch: &[SequencedExport<String, Option<i64>>]) {
        let mut received = self.0.lock().unwrap();
        for export in batch {
            let new = Held {
                value: export.value,
                sequence: export.sequence,
            };
            let held = received.held.entry(export.key.clone()).or_insert(new);
            if new.sequence > held.sequence {
                *held = new;
            }
        }
        received.calls.push(batch.to_vec());
    }

    /// Returns the keys that have a value, with their values.
    pub(crate) fn values(&self) -> BTreeMap<String, i64> {
        let received = self.0.lock().unwrap();
        let held = received.held.iter();
        held.filter_map(|(key, held)| Some((key.clone(), held.value?)))
            .collect()
    }

    pub(crate) fn calls(&self) -> Vec<Vec<SequencedExport<String, Option<i64>>>> {
        self.0.lock().unwrap().calls.clone()
    }

    /// Returns all exported entries, in the order of the calls.
    pub(crate) fn all(&self) -> Vec<SequencedExport<String, Option<i64>>> {
        self.calls().into_iter().flatten().collect()
    }
}

#[async_trait]
impl Exporter<String, Option<i64>> for Receiver {
    async fn export(&self, batch: &[SequencedExport<String, Option<i64>>]) -> Result<(), BoxError> {
        self.receive(batch);
        Ok(())
    }
}

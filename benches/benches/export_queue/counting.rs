//! Two ways to count the phrases of documents that come out of a queue, and a trial of each: workers take
//! a document, and in one transaction acknowledge it and count its phrases.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use benches::contender::Site;
use benches::load::{Sample, digest};
use benches::meter::Metered;
use combine::{BoxError, CombineQueue, Unobserved};
use futures::future::try_join_all;
use hc_dequeue::{Delivery, Queue, WorkerOptions};
use keyspace::codec::{Codec, MessagePack};
use keyspace::{
    Database, Isolation, OpenOptions, RunOptions, Runner, Store, Subspace, Transaction,
};
use tokio::sync::mpsc;

use crate::phrases::{Count, of_document};

/// Longer than any transaction waits for a phrase. A cluster's default is shorter.
const TIME_LIMIT: Duration = Duration::from_secs(600);

/// Longer than the work in progress takes.
const GRACE: Duration = Duration::from_secs(60);

/// How many documents are put into the queue in a commit.
const DOCUMENTS_PER_COMMIT: usize = 100;

/// A way to count.
pub(crate) trait Counting: Send + Sync + Sized + 'static {
    /// Opens the counts, and starts the tasks that run beside the workers.
    fn open(runner: &Runner<Store>, place: Subspace) -> impl Future<Output = Self> + Send;

    /// Stages the counts of a document.
    fn stage(
        &self,
        tr: &impl Transaction,
        counts: &[(String, Count)],
    ) -> impl Future<Output = combine::Result<()>> + Send;

    /// Waits until everything that was staged and committed is counted, and returns the count of a
    /// phrase.
    fn settle(&self, runner: &Runner<Store>, phrase: &str) -> impl Future<Output = Count> + Send;
}

/// Counts that a task beside the workers combines.
pub(crate) struct Combined {
    queue: CombineQueue<String, Count>,
    _worker: combine::Worker,
}

impl Counting for Combined {
    async fn open(runner: &Runner<Store>, place: Subspace) -> Self {
        let combine = |_: &String, current: Option<Count>, updates: Vec<Count>| {
            let mut sum = current.unwrap_or_default();
            updates.into_iter().for_each(|update| sum.add(update));
            Some(sum)
        };
        let queue: CombineQueue<String, Count> = CombineQueue::open(runner, place, combine)
            .await
            .expect("nothing conflicts");
        let options = combine::WorkerOptions::default();
        let worker = queue.work(runner, options, Unobserved).await;
        Self {
            queue,
            _worker: worker.expect("nothing conflicts"),
        }
    }

    async fn stage(
        &self,
        tr: &impl Transaction,
        counts: &[(String, Count)],
    ) -> combine::Result<()> {
        self.queue
            .add_all(tr, counts.iter().map(|(key, value)| (key, value)))
            .await
    }

    async fn settle(&self, runner: &Runner<Store>, phrase: &str) -> Count {
        let queue = &self.queue;
        let phrase = &phrase.to_owned();
        queue.wait_idle(runner).await.expect("the store serves");
        let read = |tr| async move { queue.settled(&tr, phrase, Isolation::Snapshot).await };
        let count = runner.run(read).await.expect("the store serves");
        count.unwrap_or_default()
    }
}

/// Counts that workers read and write back, all those of a document at the same time.
pub(crate) struct ReadModifyWrite(Subspace);

impl ReadModifyWrite {
    async fn count(&self, tr: &impl Transaction, key: &[u8]) -> keyspace::Result<Count> {
        let stored = tr.get(key, Isolation::Serializable).await?;
        let count = stored.map(|bytes| MessagePack.decode(bytes).expect("only counts are written"));
        Ok(count.unwrap_or_default())
    }
}

impl Counting for ReadModifyWrite {
    async fn open(_: &Runner<Store>, place: Subspace) -> Self {
        Self(place)
    }

    async fn stage(
        &self,
        tr: &impl Transaction,
        counts: &[(String, Count)],
    ) -> combine::Result<()> {
        let modified = counts.iter().map(|(phrase, more)| async move {
            let key = self.0.pack(phrase);
            let mut count = self.count(tr, &key).await?;
            count.add(*more);
            let mut value = Vec::new();
            MessagePack.encode(&count, &mut value)?;
            tr.set(&key, &value);
            Ok(())
        });
        try_join_all(modified).await.map(drop)
    }

    async fn settle(&self, runner: &Runner<Store>, phrase: &str) -> Count {
        let key = &self.0.pack(&phrase);
        let read = |tr| async move { self.count(&tr, key).await };
        runner.run(read).await.expect("the store serves")
    }
}

/// A phrase of the documents, and how often it is in all of them.
pub(crate) type Known = (String, Count);

/// Lets a number of workers count all documents, and checks the known count. Meters only the workers' transactions.
pub(crate) async fn drain<C: Counting>(
    site: &Site,
    store: &Store,
    documents: &[String],
    workers: usize,
    (phrase, expected): &Known,
) -> Sample {
    let runner = &runner(store.clone(), site);
    let queue = &fill(site, runner, documents).await;
    let env = runner.environment();
    let before = site.db.reading();
    let began = env.now();
    let counting = Arc::new(C::open(runner, site.root.subspace(&"counts")).await);
    let (counted, mut took) = mpsc::unbounded_channel();
    let handle = {
        let counting = counting.clone();
        let runner = self::runner(site.db.clone(), site);
        move |delivery: Delivery<String>| {
            let counting = counting.clone();
            let runner = runner.clone();
            let counted = counted.clone();
            async move {
                let began = runner.environment().now();
                count(&*counting, &runner, &delivery).await?;
                let took = runner.environment().now() - began;
                // The receiver may be gone if the document was delivered again.
                let _ = counted.send(u32::try_from(took.as_micros()).unwrap_or(u32::MAX));
                Ok::<_, BoxError>(())
            }
        }
    };
    let options = WorkerOptions::new().with_concurrency(workers);
    let worker = queue.work(runner, options, handle).await;
    let mut took_micros = Vec::new();
    while took_micros.len() < documents.len() {
        took_micros.push(took.recv().await.expect("the worker goes on"));
    }
    let reading = site.db.reading() - before;
    assert_eq!(counting.settle(runner, phrase).await, *expected);
    let lasted = env.now() - began;
    let ended = worker.expect("nothing conflicts").shut_down(GRACE).await;
    ended.expect("the store serves");
    Sample {
        rate: documents.len() as f64 / lasted.as_secs_f64(),
        took_micros,
        reading,
    }
}

/// Counts a document, and acknowledges it.
async fn count<C: Counting>(
    counting: &C,
    runner: &Runner<Metered<Store>>,
    delivery: &Delivery<String>,
) -> Result<(), BoxError> {
    let counts = &Vec::from_iter(of_document(delivery.value()));
    let count = |tr| async move {
        delivery.ack(&tr).await?;
        counting.stage(&tr, counts).await?;
        Ok::<_, BoxError>(())
    };
    runner.run(count).await
}

fn runner<D: Database>(db: D, site: &Site) -> Runner<D> {
    let options = RunOptions::default()
        .with_ledger_subspace(site.ledger())
        .with_time_limit(TIME_LIMIT);
    Runner::with_options(db, options)
}

/// Puts all documents into a queue.
async fn fill(site: &Site, runner: &Runner<Store>, documents: &[String]) -> Queue<String> {
    let settings = hc_dequeue::Settings::default();
    let queue = Queue::open_with(runner, site.queue(), settings, OpenOptions::default())
        .await
        .expect("nothing conflicts");
    let handle = &queue;
    for documents in documents.chunks(DOCUMENTS_PER_COMMIT) {
        let enqueue = |tr| async move { handle.enqueue_all(&tr, documents).await };
        runner.run(enqueue).await.expect("nothing conflicts");
    }
    digest(documents.len() as u64).await;
    queue
}

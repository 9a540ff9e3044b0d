//! The workload `handle`: clients that complete each item together with its effect, a row.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use benches::contender::{Contender, number_of};
use benches::figures::Figures;
use benches::load::{Load, Sample, commits_of, digest};
use benches::meter::Reading;
use benches::{TempStore, processor_time, runtime_with_sockets};
use hc_dequeue::{Delivery, Error, Queue, Worker, WorkerOptions};
use keyspace::codec::Raw;
use keyspace::{
    Bytes, Environment, Isolation, RangeQuery, Runner, Store, Subspace, Transaction, Tx, read_all,
};
use tokio::select;
use tokio::sync::Notify;

/// How long the worker may take to end, which no handler delays.
const GRACE: Duration = Duration::from_secs(10);

/// A client of another system, which can complete an item together with its effect.
pub(crate) trait Peer: Contender {
    /// Takes an item, writes its row and completes it; `None` if it found none. Is called by one task at a time.
    fn handle(&self) -> impl Future<Output = Option<Bytes>> + Send;

    /// Returns how many rows all clients of the queue have written. Called once, at the end.
    fn count_rows(&self) -> impl Future<Output = u64> + Send;
}

/// A client whose pop handles the item.
struct Handling<P>(P);

impl<P: Peer> Contender for Handling<P> {
    type Site = P::Site;

    async fn open(site: &P::Site) -> Self {
        Self(P::open(site).await)
    }

    async fn enqueue(&self, items: &[Bytes]) {
        self.0.enqueue(items).await;
    }

    async fn pop(&self) -> Option<Bytes> {
        self.0.handle().await
    }
}

/// Measures the clients of another system.
pub(crate) fn bear<P: Peer>(load: &Load, site: &P::Site) -> Sample {
    runtime_with_sockets().block_on(async {
        let clients = load.prepare::<Handling<P>>(site).await;
        let sample = load.run(&clients, Reading::default).await;
        let rows = clients[0].0.count_rows().await;
        assert_eq!(rows, sample.took_micros.len() as u64, "rows and items");
        sample
    })
}

/// Measures a worker of hc-dequeue with as many handlers as the load has sessions.
///
/// The worker runs from the first backlog to the end. The queue is paused while it is filled. The clock starts before
/// the end of the pause is committed. It stops when the time is over, or when the last items of the backlog are being
/// handled: then a handler may soon lack an item. What is completed at that moment counts.
pub(crate) fn bear_worker(load: &Load) -> Figures {
    let store = TempStore::new();
    runtime_with_sockets().block_on(async {
        let jobs = Jobs::open(store.db.clone().into()).await;
        jobs.pause().await;
        let worker = jobs.work(load).await;
        let mut total = Burst::default();
        for fills in 0.. {
            jobs.fill(load.backlog, fills).await;
            if fills == 0 {
                digest(load.backlog).await;
            }
            total.add(&jobs.burst(load, load.time - total.lasted).await);
            if total.lasted >= load.time {
                break;
            }
            jobs.finish().await;
        }
        let ended = worker.shut_down(GRACE).await;
        ended.expect("the store serves");
        jobs.verify().await;
        total.figures()
    })
}

/// What was measured.
#[derive(Default)]
struct Burst {
    lasted: Duration,
    processor: Duration,
    completed: u64,
}

impl Burst {
    fn add(&mut self, other: &Self) {
        self.lasted += other.lasted;
        self.processor += other.processor;
        self.completed += other.completed;
    }

    fn figures(&self) -> Figures {
        let items = self.completed as f64;
        Figures {
            processor_micros: self.processor.as_secs_f64() * 1e6 / items,
            ..Figures::of_rate(items / self.lasted.as_secs_f64())
        }
    }
}

/// A queue, and the rows of its items.
struct Jobs {
    runner: Runner<Store>,
    queue: Queue<Bytes, Raw>,
    rows: Subspace,
    countdown: Arc<Countdown>,
}

/// Counts calls of the handler.
#[derive(Default)]
struct Countdown {
    calls_left: AtomicU64,
    is_over: Notify,
}

impl Countdown {
    fn count(&self) {
        if self.calls_left.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.is_over.notify_one();
        }
    }
}

impl Jobs {
    async fn open(db: Store) -> Self {
        let runner = Runner::new(db);
        let queue = Queue::open(&runner, "queue").await;
        Self {
            queue: queue.expect("nothing conflicts"),
            runner,
            rows: Subspace::from("rows"),
            countdown: Arc::default(),
        }
    }

    async fn work(&self, load: &Load) -> Worker<Bytes> {
        let rows = self.rows.clone();
        let countdown = self.countdown.clone();
        let handle = move |tr: Tx<_>, item: Delivery<Bytes>| {
            countdown.count();
            tr.set(&rows.pack(&number_of(item.value())), item.value());
            async { Ok::<_, Error>(()) }
        };
        let options = WorkerOptions::new().with_concurrency(load.sessions);
        let worker = self.queue.process(&self.runner, options, handle).await;
        worker.expect("nothing conflicts")
    }

    async fn pause(&self) {
        let pause = |tr: Tx<_>| async move {
            self.queue.pause(&tr);
            Ok::<_, Error>(())
        };
        self.runner.run(pause).await.expect("nothing conflicts");
    }

    async fn resume(&self) {
        let resume = |tr: Tx<_>| async move {
            self.queue.resume(&tr);
            Ok::<_, Error>(())
        };
        self.runner.run(resume).await.expect("nothing conflicts");
    }

    async fn fill(&self, backlog: u64, fills: u64) {
        for items in commits_of(backlog, fills) {
            let items = &items;
            let enqueue = |tr| async move { self.queue.enqueue_all(&tr, items).await };
            self.runner.run(enqueue).await.expect("nothing conflicts");
        }
    }

    /// Has the worker handle what is queued until the time is over, or until each handler has begun with its last item.
    async fn burst(&self, load: &Load, time_left: Duration) -> Burst {
        let last = load.sessions as u64;
        self.countdown
            .calls_left
            .store(load.backlog.saturating_sub(last).max(1), Ordering::Relaxed);
        let env = Environment::system();
        let completed = self.completed().await;
        let processor = processor_time();
        let began = env.now();
        self.resume().await;
        select! {
            () = self.countdown.is_over.notified() => {}
            () = env.sleep(time_left) => {}
        }
        Burst {
            completed: self.completed().await - completed,
            lasted: env.now() - began,
            processor: processor_time() - processor,
        }
    }

    /// Returns how many items were completed.
    async fn completed(&self) -> u64 {
        let stats = |tr| async move { self.queue.stats(&tr).await };
        let stats = self.runner.run(stats).await.expect("the store serves");
        stats.completed
    }

    /// Waits until all items are completed, and pauses the queue.
    async fn finish(&self) {
        let idle = self.queue.wait_idle(&self.runner).await;
        idle.expect("the store serves");
        self.pause().await;
    }

    /// Verifies that there is one row for each item that was completed.
    async fn verify(&self) {
        let (begin, end) = self.rows.range();
        let rows = &RangeQuery::keys(begin, end);
        let rows = |tr| async move { read_all(&tr, rows.clone(), Isolation::Snapshot).await };
        let rows = self.runner.run(rows).await.expect("the store serves");
        assert_eq!(rows.len() as u64, self.completed().await, "rows and items");
    }
}

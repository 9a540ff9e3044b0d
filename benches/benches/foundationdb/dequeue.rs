//! Consumers that dequeue one item in a transaction, from one queue: they collide at its head.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use keyspace::codec::Raw;
use keyspace::{Bytes, Database, OwnedTransaction, RunOptions, Runner, Store};
use microqueue::MicroQueue;

use crate::cluster::{Cluster, VALUE};

const CONSUMERS: [usize; 4] = [1, 4, 16, 64];
const TIME: Duration = Duration::from_secs(8);
/// More than consumers take in the time.
const ITEMS: usize = 40_000;
const ITEMS_PER_COMMIT: usize = 10_000;

type Queue = MicroQueue<Bytes, Raw>;

pub(crate) fn table(cluster: &Cluster) -> String {
    let mut table = "\
| consumers | items a second | conflicts per item | median time of a dequeue | 99th percentile |
|---|---|---|---|---|
"
    .to_owned();
    for consumers in CONSUMERS {
        let run = Run::new(cluster, consumers);
        let mut taken = cluster.runtime.block_on(run.consume(consumers));
        let items = taken.len();
        let in_time = taken.iter().filter(|taken| taken.in_time).count();
        let rate = in_time as f64 / TIME.as_secs_f64();
        let attempts = run.attempts.load(Ordering::Relaxed);
        let conflicts = attempts as f64 / items as f64 - 1.0;
        taken.sort_by_key(|taken| taken.took);
        let [median, late] =
            [items / 2, items * 99 / 100].map(|at| taken[at].took.as_secs_f64() * 1e3);
        writeln!(
            table,
            "| {consumers} | {rate:.0} | {conflicts:.2} | {median:.1} ms | {late:.1} ms |"
        )
        .expect("a string takes it");
    }
    table
}

/// A dequeue that succeeded.
struct Taken {
    took: Duration,
    /// Whether it did before the end of the run. Each consumer has one more under way then.
    in_time: bool,
}

/// What the consumers of one run share.
#[derive(Clone)]
struct Run {
    queue: Queue,
    runner: Runner<Store>,
    /// How often a transaction was begun.
    attempts: Arc<AtomicU64>,
}

impl Run {
    fn new(cluster: &Cluster, consumers: usize) -> Self {
        let queue = Queue::new(cluster.root.subspace(&("naive", consumers as u64)));
        for _ in 0..ITEMS / ITEMS_PER_COMMIT {
            let mut tr = cluster.store.begin().expect("the network runs");
            let values = vec![VALUE; ITEMS_PER_COMMIT];
            cluster.runtime.block_on(async {
                queue
                    .enqueue_all(&tr, &values)
                    .await
                    .expect("items are small");
                tr.commit().await.expect("nothing conflicts");
            });
        }
        let options = RunOptions::default().ledger_subspace(cluster.root.subspace(&"ledger"));
        Self {
            queue,
            runner: Runner::with_options(cluster.store.clone(), options),
            attempts: Arc::default(),
        }
    }

    /// Has items taken for a time.
    async fn consume(&self, consumers: usize) -> Vec<Taken> {
        let end = self.runner.environment().now() + TIME;
        let tasks: Vec<_> = (0..consumers)
            .map(|_| tokio::spawn(self.clone().consumer(end)))
            .collect();
        let mut taken = Vec::new();
        for task in tasks {
            taken.extend(task.await.expect("no consumer panics"));
        }
        taken
    }

    async fn consumer(self, end: Duration) -> Vec<Taken> {
        let (env, queue) = (self.runner.environment(), &self.queue);
        let mut taken = Vec::new();
        let mut began = env.now();
        while began < end {
            let item = self.runner.run(|tr, _| {
                self.attempts.fetch_add(1, Ordering::Relaxed);
                async move { queue.dequeue(&tr).await }
            });
            let item = item.await.expect("conflicts are retried");
            assert!(item.is_some(), "more items were enqueued than can be taken");
            let now = env.now();
            taken.push(Taken {
                took: now - began,
                in_time: now <= end,
            });
            began = now;
        }
        taken
    }
}

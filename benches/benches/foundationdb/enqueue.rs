//! The cost of an enqueue, compared with a blind set of the same size by the bare crate: 64 tasks, one item
//! in a transaction.

use std::fmt::Write as _;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use keyspace::codec::Raw;
use keyspace::{Bytes, Database, OwnedTransaction, RunOptions, Runner, Versionstamp, tuple};
use microqueue::MicroQueue;

use crate::cluster::{Cluster, VALUE};
use crate::rounds::{Cost, Pair, Transactions, median_ratio, medians};

const LOAD: Transactions = Transactions {
    rounds: 20,
    tasks: 64,
    transactions: 8_000,
    operations_per_transaction: 1,
};

type Queue = MicroQueue<Bytes, Raw>;

pub(crate) fn table(cluster: &Cluster) -> String {
    let mut table = "\
| enqueue, 64 tasks | blind sets per second | enqueues per second | ratio | target |
|---|---|---|---|---|
"
    .to_owned();
    for (name, target, pairs) in [
        (
            "composable, in a transaction of its own",
            0.9,
            composable(cluster),
        ),
        (
            "committed by a runner, exactly once",
            0.8,
            by_runner(cluster),
        ),
    ] {
        let rate = |cost: &Cost| 1e6 / cost.wall_micros;
        let [sets, enqueues] = medians(&pairs, rate);
        let ratio = median_ratio(&pairs, rate);
        writeln!(
            table,
            "| {name} | {sets:.0} | {enqueues:.0} | {ratio:.2} | at least {target} |"
        )
        .expect("a string takes it");
    }
    table
}

fn composable(cluster: &Cluster) -> Vec<Pair> {
    let queue = Queue::new(cluster.root.subspace(&"composable"));
    let db = cluster.store.clone();
    let enqueue = move |_| {
        let tr = db.begin();
        let queue = queue.clone();
        let mut tr = tr.expect("the network runs");
        async move {
            let staged = queue.enqueue(&tr, &VALUE).await;
            staged.expect("the item is small");
            tr.commit().await.expect("nothing conflicts");
        }
    };
    compare(cluster, enqueue)
}

fn by_runner(cluster: &Cluster) -> Vec<Pair> {
    let queue = Queue::new(cluster.root.subspace(&"by-runner"));
    let options = RunOptions::default().with_ledger_subspace(cluster.root.subspace(&"ledger"));
    let runner = Runner::with_options(cluster.store.clone(), options);
    let enqueue = move |_| {
        let queue = queue.clone();
        let runner = runner.clone();
        async move {
            let queue = &queue;
            runner
                .run(|tr| async move { queue.enqueue(&tr, &VALUE).await })
                .await
                .expect("nothing conflicts");
        }
    };
    compare(cluster, enqueue)
}

/// Compares with blind sets whose keys ascend, as those of a queue do, and are as long.
fn compare<F, Fut>(cluster: &Cluster, enqueue: F) -> Vec<Pair>
where
    F: Fn(u64) -> Fut + Clone + Send + 'static,
    Fut: Future<Output = ()> + Send,
{
    let db = cluster.bare.clone();
    let sets = cluster.root.subspace(&"sets");
    let last = Arc::new(AtomicU64::new(0));
    let set = move |_| {
        let number = last.fetch_add(1, Ordering::Relaxed);
        let stamp = tuple::Versionstamp::complete(
            *Versionstamp::new(number.cast_signed(), 0).as_bytes(),
            0,
        );
        let tr = db.create_trx();
        let key = sets.pack(&(stamp, number));
        let tr = tr.expect("the network runs");
        async move {
            tr.set(&key, &VALUE);
            tr.commit().await.expect("nothing conflicts");
        }
    };
    LOAD.compare(cluster, &set, &enqueue)
}

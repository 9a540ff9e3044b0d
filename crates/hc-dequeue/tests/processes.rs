//! Eight processes of thirty-two consumers each on one cluster, killed at random and started again.
//! Every item whose enqueue was acknowledged takes effect exactly once, and no other more than once.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use conformance::process::{Herd, acknowledge, misaccounted, role};
use conformance::server::Server;
use conformance::{scale, stores};
use hc_dequeue::{
    Backoff, Delivery, Error, HighContentionQueue, Result, Settings, Worker, WorkerOptions,
};
use keyspace::{
    Environment, Isolation, MutationOp, RangeQuery, Runner, Store, Subspace, Transaction, read_all,
};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

const NAME: &str = "on_fdb_every_acknowledged_item_takes_effect_exactly_once";

const PROCESSES: usize = 8;
const CONSUMERS: usize = 32;

/// How many items wait, at most, before more are enqueued.
const BACKLOG: u64 = 300;

type Queue = HighContentionQueue<String>;

async fn open(runner: &Runner<Store>) -> Result<Queue> {
    let settings = Settings::new()
        .lease(Duration::from_secs(1))
        .max_attempts(1_000);
    Queue::open(runner, Subspace::from("jobs"), settings).await
}

/// Where each item's effects are counted, in the transactions that acknowledge.
fn effects() -> Subspace {
    Subspace::from("effects")
}

/// Handles items: each has its effect in the transaction that acknowledges it.
async fn handle(queue: &Queue, runner: &Runner<Store>) -> Result<Worker<String>> {
    let store = runner.clone();
    let handler = move |delivery: Arc<Delivery<String>>| {
        let store = store.clone();
        async move {
            let delivery = &delivery;
            let acknowledge = store.run(|tr| async move {
                delivery.ack(&tr).await?;
                let effect = effects().pack(delivery.value());
                tr.atomic(MutationOp::Add, &effect, &1_u64.to_le_bytes());
                Ok::<_, Error>(())
            });
            acknowledge.await
        }
    };
    let backoff = Backoff::new(Duration::from_millis(10), Duration::from_millis(100));
    let options = WorkerOptions::default()
        .concurrency(CONSUMERS)
        .backoff(backoff);
    queue.work(runner, options, handler).await
}

/// Does a child's work until it is killed: handles what there is, and enqueues a little. Its role is
/// its name and the store's URL.
async fn work(role: &str) -> Result<()> {
    let (name, url) = role.split_once(' ').unwrap();
    let runner = Runner::new(keyspace::open(url).unwrap());
    let queue = &open(&runner).await?;
    let _worker = handle(queue, &runner).await?;
    for number in 0_u64.. {
        let depth = |tr| async move { queue.len(&tr).await };
        while runner.run(depth).await? > BACKLOG {
            runner.environment().sleep(Duration::from_millis(5)).await;
        }
        let items: Vec<_> = (0..10)
            .map(|item| format!("{name}-{number}-{item}"))
            .collect();
        let batch = &items;
        let enqueue = |tr| async move { queue.enqueue_all(&tr, batch).await.map(drop) };
        runner.run(enqueue).await?;
        for item in &items {
            acknowledge(item);
        }
    }
    Ok(())
}

async fn counted(runner: &Runner<Store>) -> BTreeMap<String, u64> {
    let (begin, end) = effects().range();
    let query = &RangeQuery::keys(begin, end);
    let read = |tr| async move { read_all(&tr, query.clone(), Isolation::Snapshot).await };
    let row = |row: keyspace::KeyValue| {
        let count = row.value()[..].try_into().unwrap();
        let item = effects().unpack(row.key()).unwrap();
        (item, u64::from_le_bytes(count))
    };
    runner
        .run(read)
        .await
        .unwrap()
        .into_iter()
        .map(row)
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn on_fdb_every_acknowledged_item_takes_effect_exactly_once() {
    if let Some(role) = role() {
        return work(&role).await.unwrap();
    }
    let server = match Server::start() {
        Ok(server) => server,
        Err(reason) => return stores::skip(NAME, reason),
    };
    let url = server.url();
    let (mut names, store) = (0.., url.clone());
    let role = move |_| format!("{} {store}", names.next().unwrap());
    let mut herd = Herd::start(NAME, PROCESSES, role);

    let env = Environment::system();
    let mut rng = StdRng::seed_from_u64(4);
    let end = env.now() + Duration::from_secs(scale(8, 600) as u64);
    while env.now() < end {
        herd.hear(1);
        // Of eight processes most live for longer than a lease, and return what the dead have left.
        let pause = Duration::from_millis(rng.random_range(0..500));
        env.sleep(pause).await;
        herd.replace(rng.random_range(0..PROCESSES));
    }
    let acknowledged = herd.end();

    let runner = Runner::new(keyspace::open(&url).unwrap());
    let queue = &open(&runner).await.unwrap();
    let worker = handle(queue, &runner).await.unwrap();
    let stats = |tr| async move { queue.stats(&tr).await };
    loop {
        let stats = runner.run(stats).await.unwrap();
        if stats.queued + stats.held + stats.delayed == 0 {
            assert_eq!(stats.dead, 0);
            break;
        }
        env.sleep(Duration::from_millis(50)).await;
    }
    worker.shut_down(Duration::from_secs(60)).await.unwrap();
    let audit = queue.audit(&runner).await.unwrap();
    assert!(audit.is_clean(), "{audit:?}");
    let effects = counted(&runner).await;
    assert_eq!(misaccounted(&acknowledged, &effects), [""; 0]);
}

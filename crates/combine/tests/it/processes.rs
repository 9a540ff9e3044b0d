//! Four processes of writers and workers on one store, a cluster or a file, killed and restarted at random. Every
//! acknowledged update is in its value exactly once, and the reports of each key are an unbroken chain.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{LONG, Log, World, settings};
use combine::hc_dequeue::Backoff;
use combine::{CombineQueue, Sum, WorkerOptions};
use conformance::process::{self, Herd, acknowledge, misaccounted, role};
use conformance::server::Server;
use conformance::{let_pass, scale, stores, until};
use futures::future::try_join_all;
use keyspace::{OpenOptions, Runner, Subspace};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

const PROCESSES: usize = 4;
const WRITERS: usize = 8;

/// The key that every transaction adds to, once for each of its other updates.
const HOT: &str = "hot";

/// A value shows how often each update of its key was folded, one hexadecimal digit per update.
const DIGITS: u32 = 32;

type Digits = World<u128, u128>;

async fn open(url: &str) -> Digits {
    let runner = Runner::new(process::open(url));
    let settings = settings(7).with_lease(Duration::from_secs(1));
    let root = Subspace::from("test");
    let queue = CombineQueue::open_with(
        &runner,
        root.subspace(&"queue"),
        settings,
        Sum,
        OpenOptions::default(),
    );
    World {
        queue: queue.await.unwrap(),
        runner,
        root,
    }
}

fn name(key: &str, digit: u32) -> String {
    format!("{key}.{digit}")
}

/// Does a child's work until it is killed: combines pending updates, and adds new ones. The role is the
/// child's name and the URL of the store.
async fn work(role: &str) {
    let (process, url) = role.split_once(' ').unwrap();
    let world = Arc::new(open(url).await);
    let log = Log::new(&world.root);
    let options = WorkerOptions::new()
        .with_backoff(Backoff::new(
            Duration::from_millis(10),
            Duration::from_millis(100),
        ))
        .with_max_batch_bytes(10_000)
        .with_takeover_after(Duration::from_millis(500));
    let _worker = world.work_with(options, log.clone()).await;
    let writers = (0..WRITERS).map(|writer| {
        let world = world.clone();
        let log = log.clone();
        let name = format!("{process}-{writer}");
        tokio::spawn(async move {
            for number in 0_u64.. {
                add(&world, &format!("{name}-{number}")).await;
                assert_eq!(*log.broken.lock().unwrap(), [""; 0]);
            }
        })
    });
    try_join_all(writers).await.unwrap();
}

/// Adds all updates of a key, several at a time, and waits until they are reported.
async fn add(world: &Digits, key: &str) {
    let mut stamp = None;
    for digits in [0..1, 1..9, 9..10, 10..DIGITS] {
        let updates = digits.clone().flat_map(|digit| {
            let update = (key.to_owned(), 1 << (4 * digit));
            [update, (HOT.to_owned(), 1)]
        });
        stamp = Some(world.add_all(updates.collect()).await);
        for digit in digits {
            acknowledge(&name(key, digit));
        }
    }
    let keys = [key.to_owned(), HOT.to_owned()];
    let settled = world
        .queue
        .await_settled(&world.runner, &keys, stamp.unwrap());
    settled.await.unwrap();
}

/// Returns how often each update was folded in.
fn effects(values: &BTreeMap<String, u128>) -> BTreeMap<String, u64> {
    let keys = values.iter().filter(|(key, _)| *key != HOT);
    let effects = keys.flat_map(|(key, value)| {
        (0..DIGITS).map(move |digit| (name(key, digit), (value >> (4 * digit)) as u64 & 0xf))
    });
    effects.filter(|(_, count)| *count > 0).collect()
}

/// Runs the processes, and checks what they have done.
async fn kill_again_and_again(test: &'static str, url: String) {
    let mut names = 0..;
    let store = url.clone();
    let role = move |_| format!("{} {store}", names.next().unwrap());
    let mut herd = Herd::start(test, PROCESSES, role);

    let mut rng = StdRng::seed_from_u64(5);
    for _ in 0..scale(16, 800) {
        herd.hear(1);
        // Most of the four processes live longer than a lease, and take over from the dead.
        let_pass(Duration::from_millis(rng.random_range(0..700))).await;
        herd.replace(rng.random_range(0..PROCESSES));
    }
    let acknowledged = herd.end();

    let world = open(&url).await;
    let log = Log::new(&world.root);
    let worker = world.work(log.clone()).await;
    world.wait_idle().await;
    until(async || world.rows("s").await.len() == 1).await;
    worker.shut_down(LONG).await.unwrap();
    world.assert_nothing_left().await;
    log.check(&world).await;
    let values = world.values().await;
    let effects = effects(&values);
    assert_eq!(misaccounted(&acknowledged, &effects), [""; 0]);
    assert_eq!(values.get(HOT).copied(), Some(effects.len() as u128));
}

#[tokio::test(flavor = "multi_thread")]
async fn on_fdb_every_acknowledged_update_is_in_its_value_exactly_once() {
    const NAME: &str = "processes::on_fdb_every_acknowledged_update_is_in_its_value_exactly_once";
    if let Some(role) = role() {
        return work(&role).await;
    }
    match Server::start() {
        Ok(server) => kill_again_and_again(NAME, server.url()).await,
        Err(reason) => stores::skip(NAME, reason),
    }
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn on_embedded_every_acknowledged_update_is_in_its_value_exactly_once() {
    const NAME: &str =
        "processes::on_embedded_every_acknowledged_update_is_in_its_value_exactly_once";
    if let Some(role) = role() {
        return work(&role).await;
    }
    let folder = tempfile::tempdir().unwrap();
    let url = format!("embedded:{}", folder.path().join("store").display());
    kill_again_and_again(NAME, url).await;
}

//! The embedded store against what it is built on, and against itself under load.
//!
//! Every group puts the yardstick and the store side by side, so that one run gives the ratio.

use std::collections::BTreeMap;
use std::sync::RwLock;
use std::time::Duration;

use benches::{TempStore, cores, fill, run_tasks, runtime};
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use keyspace::embedded::Options;
use keyspace::{
    Database, Environment, Isolation, OwnedTransaction, RangeQuery, StreamingMode, Transaction,
};
use rand::rngs::StdRng;
use rand::{Rng, RngCore, SeedableRng};

const VALUE: [u8; 100] = [7; 100];
const TABLE: redb::TableDefinition<'_, &[u8], &[u8]> = redb::TableDefinition::new("rows");

/// Returns a random key of the legal range, which ends before `\xff`.
fn random_key(rng: &mut StdRng) -> [u8; 16] {
    let mut key: [u8; 16] = rng.random();
    key[0] >>= 1;
    key
}

/// A durable commit of 100 sets: straight into redb, and through the store.
fn commit(c: &mut Criterion) {
    const SETS: u64 = 100;
    let mut group = c.benchmark_group("durable commit of 100 sets");
    group.throughput(Throughput::Elements(SETS));
    let keys = |rng: &mut StdRng| -> Vec<[u8; 16]> { (0..SETS).map(|_| random_key(rng)).collect() };

    let folder = tempfile::tempdir().expect("the system has a temporary folder");
    let db = redb::Database::create(folder.path().join("redb")).expect("a new file");
    let mut rng = StdRng::seed_from_u64(1);
    group.bench_function("redb", |b| {
        b.iter_batched(
            || keys(&mut rng),
            |keys| {
                let write = db.begin_write().expect("redb serves");
                {
                    let mut table = write.open_table(TABLE).expect("the table opens");
                    for key in &keys {
                        table.insert(&key[..], &VALUE[..]).expect("redb takes it");
                    }
                }
                write.commit().expect("the disk has room");
            },
            BatchSize::SmallInput,
        );
    });

    let store = TempStore::new();
    let runtime = runtime(cores());
    let mut rng = StdRng::seed_from_u64(1);
    group.bench_function("embedded", |b| {
        b.to_async(&runtime).iter_batched(
            || keys(&mut rng),
            |keys| {
                let mut tr = store.db.begin().expect("the store serves");
                async move {
                    for key in &keys {
                        tr.set(key, &VALUE);
                    }
                    tr.commit().await.expect("nothing conflicts")
                }
            },
            BatchSize::SmallInput,
        );
    });
    group.finish();
}

/// Durable commits of one set each, by one task and by 64.
fn commits_per_second(c: &mut Criterion) {
    let mut group = c.benchmark_group("durable commits");
    group.throughput(Throughput::Elements(1));
    group.measurement_time(Duration::from_secs(10));
    let (runtime, env) = (runtime(cores()), Environment::system());
    for tasks in [1, 64] {
        let store = TempStore::new();
        group.bench_function(format!("{tasks} tasks"), |b| {
            b.iter_custom(|count| {
                let db = store.db.clone();
                let operation = move |number: u64| {
                    let db = db.clone();
                    async move {
                        let mut tr = db.begin().expect("the store serves");
                        tr.set(&number.to_be_bytes(), &VALUE);
                        tr.commit().await.expect("nothing conflicts");
                    }
                };
                runtime.block_on(run_tasks(&env, tasks, count, operation))
            });
        });
    }
    group.finish();
}

/// Reads of random keys among a million: a `BTreeMap` behind a lock, and snapshot reads.
fn get(c: &mut Criterion) {
    const KEYS: usize = 1_000_000;
    let mut group = c.benchmark_group("get of 1,000,000 keys");
    let mut rng = StdRng::seed_from_u64(1);
    let keys: Vec<[u8; 16]> = (0..KEYS).map(|_| random_key(&mut rng)).collect();
    let value = [7; 16];

    let map: RwLock<BTreeMap<Vec<u8>, Vec<u8>>> = RwLock::new(
        keys.iter()
            .map(|key| (key.to_vec(), value.to_vec()))
            .collect(),
    );
    group.bench_function("locked BTreeMap", |b| {
        b.iter(|| {
            let key = &keys[rng.next_u64() as usize % KEYS];
            map.read().expect("nobody panics").get(&key[..]).cloned()
        });
    });

    let runtime = runtime(cores());
    let db = Options::new().memory().expect("a new store");
    runtime.block_on(fill(&db, keys.iter().map(|key| (*key, value))));
    group.bench_function("memory:", |b| {
        let mut tr = db.begin().expect("the store serves");
        let mut reads = 0;
        b.iter(|| {
            // A transaction may live for five seconds.
            reads += 1;
            if reads % 10_000 == 0 {
                tr.reset();
            }
            let key = &keys[rng.next_u64() as usize % KEYS];
            let value = tr.get(key, Isolation::Snapshot);
            futures_ready(value).expect("the store serves")
        });
    });
    group.finish();
}

/// The first key of a range before and after 200,000 keys were cleared at its head.
fn first_key(c: &mut Criterion) {
    const CLEARED: u64 = 200_000;
    const CLEARS_PER_COMMIT: u64 = 1_000;
    let mut group = c.benchmark_group("first key");
    let runtime = runtime(cores());
    let db = Options::new().memory().expect("a new store");
    let key = |number: u64| {
        let mut key = [0; 16];
        key[..8].copy_from_slice(&number.to_be_bytes());
        key
    };
    runtime.block_on(fill(
        &db,
        (0..2 * CLEARED).map(|number| (key(number), [7; 16])),
    ));
    let read = || {
        let tr = db.begin().expect("the store serves");
        let head = RangeQuery::keys(&b""[..], &b"\xff"[..])
            .limit(1)
            .mode(StreamingMode::Exact);
        futures_ready(tr.get_range(&head, Isolation::Serializable)).expect("the store serves")
    };
    group.bench_function("before", |b| b.iter(read));
    for first in (0..CLEARED).step_by(CLEARS_PER_COMMIT as usize) {
        let mut tr = db.begin().expect("the store serves");
        (first..first + CLEARS_PER_COMMIT).for_each(|number| tr.clear(&key(number)));
        runtime.block_on(tr.commit()).expect("nothing conflicts");
    }
    group.bench_function("after 200,000 clears at the head", |b| b.iter(read));
    group.finish();
}

/// Takes the answer of a read, which the embedded store has ready at the call.
fn futures_ready<T>(read: impl Future<Output = T>) -> T {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::pin!(read).poll(&mut context) {
        std::task::Poll::Ready(value) => value,
        std::task::Poll::Pending => panic!("a read of the embedded store is never pending"),
    }
}

criterion_group!(store, commit, commits_per_second, get, first_key);
criterion_main!(store);

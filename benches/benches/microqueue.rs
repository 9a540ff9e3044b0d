//! A queue under load: the cost of a dequeue with a long backlog, and of enqueues.

use std::time::Duration;

use benches::{TempStore, cores, run_tasks, runtime};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use keyspace::codec::Raw;
use keyspace::{Bytes, Database, Environment, OwnedTransaction, Runner, Subspace, Transaction};
use microqueue::{Error, MicroQueue, Order};

const VALUE: Bytes = Bytes::from_static(&[7; 100]);
const TASKS: usize = 64;

fn queue(order: Order) -> MicroQueue<Bytes, Raw> {
    MicroQueue::new(Subspace::from("bench")).with_order(order)
}

async fn enqueue<D: Database>(queue: &MicroQueue<Bytes, Raw>, runner: &Runner<D>, items: usize) {
    const ITEMS_PER_COMMIT: usize = 1_000;
    let values = &vec![VALUE; ITEMS_PER_COMMIT][..];
    for _ in 0..items / ITEMS_PER_COMMIT {
        runner
            .run(|tr| async move { queue.enqueue_all(&tr, values).await })
            .await
            .expect("nothing conflicts");
    }
}

/// One item out and one in, in a durable transaction, with a short and a long backlog.
fn dequeue(c: &mut Criterion) {
    let mut group = c.benchmark_group("dequeue and enqueue, durable");
    group.measurement_time(Duration::from_secs(10));
    let runtime = runtime(cores());
    for backlog in [1_000, 1_000_000] {
        let store = TempStore::new();
        let runner = Runner::new(store.db.clone());
        let queue = &queue(Order::Commit);
        runtime.block_on(enqueue(queue, &runner, backlog));
        group.bench_function(format!("backlog of {backlog}"), |b| {
            b.to_async(&runtime).iter(|| {
                runner.run(|tr| async move {
                    let item = queue.dequeue(&tr).await?.expect("there is a backlog");
                    queue.enqueue(&tr, &item.value).await?;
                    Ok::<_, Error>(())
                })
            });
        });
    }
    group.finish();
}

/// Enqueues by 64 tasks, one durable commit each, compared with blind sets of the same size.
fn enqueues(c: &mut Criterion) {
    let mut group = c.benchmark_group("enqueue by 64 tasks, durable");
    group.throughput(Throughput::Elements(1));
    group.measurement_time(Duration::from_secs(10));
    let runtime = runtime(cores());
    let env = Environment::system();

    let store = TempStore::new();
    group.bench_function("blind sets", |b| {
        b.iter_custom(|count| {
            let db = store.db.clone();
            let set = move |number: u64| {
                let mut tr = db.begin().expect("the store serves");
                async move {
                    let mut key = [0; 28];
                    key[..8].copy_from_slice(&number.to_be_bytes());
                    tr.set(&key, &VALUE);
                    tr.commit().await.expect("nothing conflicts");
                }
            };
            runtime.block_on(run_tasks(&env, TASKS, count, set))
        });
    });

    for order in [Order::Commit, Order::Index] {
        let store = TempStore::new();
        let queue = queue(order);
        let runner = Runner::new(store.db.clone());
        group.bench_function(format!("committed by a runner, {order:?} order"), |b| {
            b.iter_custom(|count| {
                let queue = queue.clone();
                let runner = runner.clone();
                let enqueue = move |_number| {
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
                runtime.block_on(run_tasks(&env, TASKS, count, enqueue))
            });
        });
    }
    group.finish();
}

criterion_group!(microqueue, dequeue, enqueues);
criterion_main!(microqueue);

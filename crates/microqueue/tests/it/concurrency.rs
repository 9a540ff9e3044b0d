//! Many tasks on one queue: each transaction sees what it would see if all transactions had run one after
//! the other in the order of their versionstamps.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::common::{committing, jobs, memory};
use conformance::chaos::{Chaos, Faults};
use conformance::history::Recorded;
use conformance::scale;
use conformance::stores::{Kind, TestStore};
use microqueue::keyspace::run::{RunOptions, Runner};
use microqueue::keyspace::{
    Database, Environment, Isolation, OwnedTransaction, RangeQuery, Transaction, Versionstamp,
};
use microqueue::{ItemId, MicroQueue, Order, Result, StagedId};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::task::JoinSet;

conformance::on_every_store!(threads:
    transactions_of_many_tasks_replay_in_commit_order,
    they_do_so_when_commits_fail_and_land_late,
);

/// The operations of a transaction, in order.
#[derive(Debug, Clone)]
enum Step {
    /// Took the first items. An empty list means that the queue was empty.
    Take { taken: Vec<(ItemId, u64)> },
    /// Enqueued items.
    Put { staged: Vec<(StagedId, u64)> },
}

/// Runs the transactions one after the other on a map. Returns the items that remain.
fn replay(
    order: Order,
    mut transactions: Vec<(Versionstamp, Vec<Step>)>,
) -> Result<Vec<u64>, String> {
    transactions.sort_by_key(|(versionstamp, _)| *versionstamp);
    let mut queue: BTreeMap<ItemId, u64> = BTreeMap::new();
    for (versionstamp, steps) in transactions {
        for step in steps {
            match step {
                Step::Take { taken } => {
                    if taken.is_empty() && !queue.is_empty() {
                        return Err(format!("at {versionstamp} saw an empty queue: {queue:?}"));
                    }
                    for item in taken {
                        let first = queue.pop_first();
                        if first != Some(item) {
                            return Err(format!("at {versionstamp} took {item:?}, not {first:?}"));
                        }
                    }
                }
                Step::Put { staged } => {
                    for (id, value) in staged {
                        let id = id.at(versionstamp);
                        let last = queue.last_key_value();
                        if order == Order::Commit && last.is_some_and(|(last, _)| *last > id) {
                            return Err(format!("{id:?} does not go to the end"));
                        }
                        if queue.insert(id, value).is_some() {
                            return Err(format!("{id:?} is there twice"));
                        }
                    }
                }
            }
        }
    }
    Ok(queue.into_values().collect())
}

async fn take(queue: &MicroQueue<u64>, tr: &impl Transaction, limit: usize) -> Result<Step> {
    let items = queue.dequeue_batch(tr, limit).await?;
    let taken = items
        .into_iter()
        .map(|item| (item.id, item.value))
        .collect();
    Ok(Step::Take { taken })
}

async fn put(queue: &MicroQueue<u64>, tr: &impl Transaction, values: &[u64]) -> Result<Step> {
    let ids = queue.enqueue_all(tr, values).await?;
    let staged = ids.into_iter().zip(values.iter().copied()).collect();
    Ok(Step::Put { staged })
}

/// Runs random transactions of one task, and returns their operations.
async fn work<D: Database>(
    runner: Runner<D>,
    queue: MicroQueue<u64>,
    task: u64,
    seed: u64,
    rounds: u64,
) -> Result<Vec<(Versionstamp, Vec<Step>)>> {
    let mut rng = StdRng::seed_from_u64(seed ^ (task << 32));
    let mut done = Vec::new();
    for round in 0..rounds {
        let limit = rng.random_range(1..4);
        let count = rng.random_range(0..4);
        let first = (task * rounds + round) * 10;
        let values: Vec<_> = (first..first + count).collect();
        let queue = &queue;
        let values = &values;
        let (steps, commit) = runner
            .run_committed(|tr| async move {
                // This write gives a place in the order also to a transaction that found nothing.
                tr.set(b"elsewhere", b"");
                let taken = take(queue, &tr, limit).await?;
                let enqueued = put(queue, &tr, values).await?;
                Ok::<_, microqueue::Error>(vec![taken, enqueued])
            })
            .await?;
        let versionstamp = commit
            .versionstamp
            .expect("a transaction that wrote has one");
        done.push((versionstamp, steps));
    }
    Ok(done)
}

/// Runs many tasks at once and replays their transactions.
async fn run_and_replay<D: Database>(runner: Runner<D>, queue: MicroQueue<u64>, rounds: u64) {
    const TASKS: u64 = 12;
    let seed = 0x5eed;
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        tasks.spawn(work(runner.clone(), queue.clone(), task, seed, rounds));
    }
    let mut transactions = Vec::new();
    for done in tasks.join_all().await {
        transactions.extend(done.unwrap());
    }
    assert_eq!(transactions.len() as u64, TASKS * rounds);
    let order = queue.order();
    let left = replay(order, transactions).unwrap_or_else(|difference| {
        panic!("in {order:?} order, seed {seed}: {difference}");
    });
    let listed = committing(&queue, &runner)
        .items(None, usize::MAX)
        .await
        .unwrap();
    let items: Vec<_> = listed.into_iter().map(|item| item.value.unwrap()).collect();
    assert_eq!(items, left);
}

/// The number of rounds that a task runs.
fn rounds(store: &TestStore, short: usize, long: usize) -> u64 {
    // A cluster takes milliseconds for operations that take the other stores microseconds.
    let share = if store.kind == Kind::Fdb { 4 } else { 1 };
    (scale(short, long) / share) as u64
}

async fn transactions_of_many_tasks_replay_in_commit_order(store: TestStore) {
    for order in [Order::Commit, Order::Index] {
        let db = Recorded::new(store.fresh().part()).await.unwrap();
        let runner = Runner::new(db.clone());
        run_and_replay(runner, jobs(order), rounds(&store, 40, 2_000)).await;
        db.check().await.unwrap();
    }
}

async fn they_do_so_when_commits_fail_and_land_late(store: TestStore) {
    let mut landed = 0;
    let mut refused = 0;
    for order in [Order::Commit, Order::Index] {
        let db = Recorded::new(store.fresh().part()).await.unwrap();
        let chaos = Chaos::new(db.clone(), Environment::system(), Faults::all(0.1));
        let options = RunOptions::default().with_max_retry_delay(Duration::from_millis(5));
        let runner = Runner::with_options(chaos.clone(), options);
        Box::pin(run_and_replay(
            runner,
            jobs(order),
            rounds(&store, 25, 1_000),
        ))
        .await;
        chaos.flush().await;
        db.check().await.unwrap();
        let tally = chaos.tally();
        (landed, refused) = (landed + tally.landed, refused + tally.refused);
    }
    assert!(
        landed > 0 && refused > 0,
        "{landed} landed, {refused} refused"
    );
}

#[tokio::test]
async fn the_replay_catches_a_dequeue_that_reads_the_head_by_snapshot() {
    let db = memory();
    let queue = jobs(Order::Commit);
    let mut setup = db.begin().unwrap();
    let enqueued = put(&queue, &setup, &[1, 2]).await.unwrap();
    let mut stamps = vec![setup.commit().await.unwrap().versionstamp.unwrap()];
    let head = queue.peek(&db.begin().unwrap()).await.unwrap().unwrap();

    let (begin, end) = queue.subspace().range();
    let query = RangeQuery::keys(begin, end).limit(1);
    let mut careless = [db.begin().unwrap(), db.begin().unwrap()];
    for tr in &careless {
        let batch = tr.get_range(&query, Isolation::Snapshot).await.unwrap();
        tr.clear(batch.rows[0].key());
    }
    for tr in &mut careless {
        stamps.push(tr.commit().await.unwrap().versionstamp.unwrap());
    }
    let take = Step::Take {
        taken: vec![(head.id, head.value.unwrap())],
    };
    let steps = [enqueued, take.clone(), take].map(|step| vec![step]);
    let difference = replay(Order::Commit, stamps.into_iter().zip(steps).collect());
    assert!(difference.unwrap_err().contains("took"));
}

#[tokio::test]
async fn the_replay_catches_a_key_that_two_enqueues_share() {
    let db = memory();
    let queue = jobs(Order::Commit);
    let mut tr = db.begin().unwrap();
    let staged = queue.enqueue(&tr, &1).await.unwrap();
    let versionstamp = tr.commit().await.unwrap().versionstamp.unwrap();
    let twice = Step::Put {
        staged: vec![(staged, 1), (staged, 2)],
    };
    let difference = replay(Order::Commit, vec![(versionstamp, vec![twice])]);
    assert!(difference.unwrap_err().contains("is there twice"));
}

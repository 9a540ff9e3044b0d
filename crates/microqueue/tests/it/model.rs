//! Random operations against a `VecDeque`, on a store that refuses commits, loses their results and lets
//! them land late. Every answer, and at the end every item, must match the model's.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{Committing, committing};
use conformance::chaos::{Chaos, FaultTally, Faults};
use conformance::scale;
use conformance::stores::TestStore;
use microqueue::keyspace::embedded::Options;
use microqueue::keyspace::env::ManualClock;
use microqueue::keyspace::run::{RunOptions, Runner};
use microqueue::keyspace::{self, Code, Environment, Store, Subspace};
use microqueue::{Error, Item, Listed, MicroQueue, Order, Result};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

#[derive(Debug, Clone)]
enum Op {
    Enqueue(u64),
    EnqueueAll(Vec<u64>),
    Dequeue,
    DequeueBatch(usize),
    Peek,
    IsEmpty,
    /// All items, in pages.
    Items(usize),
    Clear,
    /// Takes items and enqueues their successors in one transaction.
    Move(usize),
    /// Stages a take and an enqueue, and then fails.
    Fail,
}

fn random_op(rng: &mut StdRng, number: u64) -> Op {
    let value = number * 10;
    match rng.random_range(0..20) {
        0..5 => Op::Enqueue(value),
        5..8 => Op::EnqueueAll((value..value + rng.random_range(0..5)).collect()),
        8..12 => Op::Dequeue,
        12..14 => Op::DequeueBatch(rng.random_range(0..5)),
        14 => Op::Peek,
        15 => Op::IsEmpty,
        16 => Op::Items(rng.random_range(1..4)),
        17 => Op::Move(rng.random_range(1..4)),
        18 => Op::Fail,
        _ if rng.random_bool(0.2) => Op::Clear,
        _ => Op::Dequeue,
    }
}

/// The result of an operation as its caller sees it.
#[derive(Debug, PartialEq)]
enum Answer {
    Nothing,
    Values(Vec<u64>),
    Empty(bool),
    Failed,
}

fn apply(op: &Op, model: &mut VecDeque<u64>) -> Answer {
    let take = |limit: usize, model: &mut VecDeque<u64>| -> Vec<u64> {
        model.drain(..limit.min(model.len())).collect()
    };
    match op {
        Op::Enqueue(value) => model.push_back(*value),
        Op::EnqueueAll(values) => model.extend(values),
        Op::Dequeue => return Answer::Values(take(1, model)),
        Op::DequeueBatch(limit) => return Answer::Values(take(*limit, model)),
        Op::Peek => return Answer::Values(model.front().copied().into_iter().collect()),
        Op::IsEmpty => return Answer::Empty(model.is_empty()),
        Op::Items(_) => return Answer::Values(model.iter().copied().collect()),
        Op::Clear => model.clear(),
        Op::Move(limit) => {
            let values = take(*limit, model);
            model.extend(values.iter().map(|value| value + 1));
            return Answer::Values(values);
        }
        Op::Fail => return Answer::Failed,
    }
    Answer::Nothing
}

type Queue = Committing<u64, Chaos<Store>>;

async fn call(op: &Op, queue: &Queue, runner: &Runner<Chaos<Store>>) -> Result<Answer> {
    let items = match op {
        Op::Enqueue(value) => return queue.enqueue(value).await.map(|_| Answer::Nothing),
        Op::EnqueueAll(values) => {
            let ids = queue.enqueue_all(values).await?;
            assert_eq!(ids.len(), values.len());
            return Ok(Answer::Nothing);
        }
        Op::IsEmpty => return queue.is_empty().await.map(Answer::Empty),
        Op::Clear => return queue.clear().await.map(|()| Answer::Nothing),
        Op::Dequeue => queue.dequeue().await?.into_iter().collect(),
        Op::DequeueBatch(limit) => queue.dequeue_batch(*limit).await?,
        Op::Peek => decoded(queue.peek().await?.into_iter().collect()),
        Op::Items(limit) => all_items(queue, *limit).await?,
        Op::Move(limit) => {
            let queue = queue.queue();
            runner
                .run(|tr| async move {
                    let items = queue.dequeue_batch(&tr, *limit).await?;
                    let next: Vec<_> = items.iter().map(|item| item.value + 1).collect();
                    queue.enqueue_all(&tr, &next).await?;
                    Ok::<_, Error>(items)
                })
                .await?
        }
        Op::Fail => {
            let queue = queue.queue();
            let failed = runner.run(|tr| async move {
                queue.dequeue(&tr).await?;
                queue.enqueue(&tr, &0).await?;
                Err::<(), Error>(keyspace::Error::Store(Code::CLIENT_INVALID_OPERATION).into())
            });
            assert!(failed.await.is_err());
            return Ok(Answer::Failed);
        }
    };
    Ok(Answer::Values(
        items.into_iter().map(|item| item.value).collect(),
    ))
}

/// Returns listed items, each of which decodes.
fn decoded(listed: Vec<Listed<u64>>) -> Vec<Item<u64>> {
    let items = listed.into_iter().map(Item::try_from);
    items.collect::<Result<_, _>>().unwrap()
}

async fn all_items(queue: &Queue, limit: usize) -> Result<Vec<Item<u64>>> {
    let mut items: Vec<Item<u64>> = Vec::new();
    loop {
        let page = queue.items(items.last().map(|item| item.id), limit).await?;
        let is_last = page.len() < limit;
        items.extend(decoded(page));
        if is_last {
            return Ok(items);
        }
    }
}

/// A run of random operations.
struct Run {
    order: Order,
    seed: u64,
    faults: Faults,
    exactly_once: bool,
}

impl Run {
    /// Runs on a store in memory that depends on the seed alone.
    async fn in_memory(self) -> Result<FaultTally, String> {
        let env = self.environment();
        let db = Options::new().with_environment(env).memory().unwrap();
        self.on(db.into(), &Subspace::from("root")).await
    }

    fn environment(&self) -> Environment {
        Environment::seeded(self.seed, Arc::new(ManualClock::moved_by_sleepers()))
    }

    /// Runs operations on a queue and on the model until they differ. Returns the failures that occurred
    /// on the way.
    async fn on(self, db: Store, root: &Subspace) -> Result<FaultTally, String> {
        let env = self.environment();
        let Self {
            order,
            seed,
            faults,
            exactly_once,
        } = self;
        let mut rng = StdRng::seed_from_u64(seed);
        let chaos = Chaos::new(db, env.clone(), faults);
        let options = RunOptions::default()
            .with_environment(env.clone())
            .with_ledger_subspace(root.subspace(&"ledgers"))
            .with_exactly_once(exactly_once)
            // The clock moves little, so few transactions become too old.
            .with_max_retry_delay(Duration::from_millis(20));
        let runner = Runner::with_options(chaos.clone(), options);
        let jobs = MicroQueue::new(root.subspace(&"jobs"))
            .with_order(order)
            .with_environment(env);
        let queue = committing(&jobs, &runner);

        let mut model = VecDeque::new();
        for number in 0..40 {
            let op = random_op(&mut rng, number);
            let expected = apply(&op, &mut model);
            let answer = call(&op, &queue, &runner).await.unwrap();
            if answer != expected {
                return Err(format!(
                    "operation {number}, {op:?}: {answer:?}, not {expected:?}"
                ));
            }
        }
        chaos.flush().await;
        let left = Answer::Values(model.into());
        let found = call(&Op::Items(7), &queue, &runner).await.unwrap();
        if found != left {
            return Err(format!("in the end: {found:?}, not {left:?}"));
        }
        Ok(chaos.tally())
    }
}

#[tokio::test]
async fn random_operations_answer_as_a_deque_does_whatever_becomes_of_commits() {
    let mut late = FaultTally::default();
    for seed in 0..scale(150, 20_000) as u64 {
        for order in [Order::Commit, Order::Index] {
            let probability = [0.0, 0.02, 0.1][seed as usize % 3];
            let faults = Faults::all(probability);
            let exactly_once = true;
            let run = Run {
                order,
                seed,
                faults,
                exactly_once,
            };
            let tally = run.in_memory().await.unwrap_or_else(|difference| {
                panic!("in {order:?} order, seed {seed}: {difference}");
            });
            late.landed += tally.landed;
            late.refused += tally.refused;
        }
    }
    assert!(late.landed > 0 && late.refused > 0, "{late:?}");
}

conformance::on_every_store!(a_store_answers_as_a_deque_does_whatever_becomes_of_commits);

async fn a_store_answers_as_a_deque_does_whatever_becomes_of_commits(store: TestStore) {
    for seed in 0..scale(8, 400) as u64 {
        for order in [Order::Commit, Order::Index] {
            let faults = Faults::all(0.05);
            let exactly_once = true;
            let run = Run {
                order,
                seed,
                faults,
                exactly_once,
            };
            let store = store.fresh();
            if let Err(difference) = run.on(store.db, &store.root).await {
                panic!("in {order:?} order, seed {seed}: {difference}");
            }
        }
    }
}

#[tokio::test]
async fn the_model_catches_a_runner_without_its_ledger() {
    for faults in [
        Faults {
            unknown_applied: 0.2,
            ..Faults::default()
        },
        Faults {
            unknown_late: 0.2,
            max_landing_attempts: 2,
            ..Faults::default()
        },
    ] {
        let mut caught = 0;
        for seed in 0..10 {
            let run = Run {
                order: Order::Commit,
                seed,
                faults: faults.clone(),
                exactly_once: false,
            };
            caught += usize::from(run.in_memory().await.is_err());
        }
        assert!(caught > 5, "{faults:?}: caught in {caught} of 10 runs");
    }
}

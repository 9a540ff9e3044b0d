//! Handlers that run in the transactions that complete their items.

use std::future::pending;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::common::{LONG, World};
use conformance::chaos::{Chaos, Faults};
use conformance::stores::TestStore;
use conformance::timeout;
use hc_dequeue::testing::ManualWall;
use hc_dequeue::{Backoff, BoxError, Delivery, Error, Outcome, Settings, WorkerOptions};
use keyspace::codec::MessagePack;
use keyspace::{
    Code, Database, Environment, Isolation, MutationOp, OwnedTransaction, Transaction, Tx, typed,
};

conformance::on_every_store!(
    effects_are_committed_with_the_item_and_once,
    effects_of_what_is_not_done_are_dropped,
    a_conflict_of_the_handler_is_retried_and_costs_no_attempt,
    an_item_that_is_cancelled_meanwhile_has_no_effect,
    a_handler_that_never_commits_leaves_its_calls_and_its_last_error_as_the_reason,
    effects_happen_once_even_if_outcomes_of_commits_are_unknown,
);

type Item = Delivery<u64>;

fn quick() -> WorkerOptions {
    let soon = Duration::from_millis(1);
    WorkerOptions::new().with_backoff(Backoff::new(soon, soon))
}

/// Returns a handler that adds the value of its item to the sum.
fn adds<Tr: Transaction>(
    world: &World,
) -> impl Fn(Tx<Tr>, Item) -> std::future::Ready<Result<(), Error>> + Send + Sync + 'static {
    let key = world.store.root.pack(&"sum");
    move |tr, item| {
        tr.atomic(MutationOp::Add, &key, &item.value().to_le_bytes());
        std::future::ready(Ok(()))
    }
}

async fn sum(world: &World) -> u64 {
    let key = &world.store.root.pack(&"sum");
    let read = |tr: Tx<_>| async move {
        let sum = tr.get(key, Isolation::Snapshot).await?;
        Ok::<_, keyspace::Error>(
            sum.map_or(0, |sum| u64::from_le_bytes((&*sum).try_into().unwrap())),
        )
    };
    world.runner.run(read).await.unwrap()
}

async fn effects_are_committed_with_the_item_and_once(store: TestStore) {
    let world = World::with_defaults(&store).await;
    world.enqueue(1..=100).await;
    let worker = world
        .queue
        .process(&world.runner, quick(), adds(&world))
        .await;
    world.queue.wait_idle(&world.runner).await.unwrap();
    worker.unwrap().shut_down(LONG).await.unwrap();
    assert_eq!(sum(&world).await, 5050);
    assert_eq!(world.stats().await.completed, 100);
    world.check().await;
}

async fn effects_of_what_is_not_done_are_dropped(store: TestStore) {
    let world = World::new(&store, Settings::new().with_max_attempts(2)).await;
    world.enqueue([0, 1, 2, 3]).await;
    let key = world.store.root.pack(&"sum");
    let handle = move |tr: Tx<_>, item: Item| {
        let key = key.clone();
        async move {
            tr.atomic(MutationOp::Add, &key, &1_u64.to_le_bytes());
            match (*item.value(), item.deliveries()) {
                (0, _) => Err(io::Error::other("no disk")),
                (1, 1) => Ok(Outcome::snooze(Duration::from_millis(1))),
                (2, _) => Ok(Outcome::discard("of no use")),
                (3, _) => panic!("no luck"),
                _ => Ok(Outcome::Done),
            }
        }
    };
    let worker = world.queue.process(&world.runner, quick(), handle).await;
    world.queue.wait_idle(&world.runner).await.unwrap();
    worker.unwrap().shut_down(LONG).await.unwrap();
    assert_eq!(sum(&world).await, 1);
    let letters = world.dead_letters().await;
    let reasons = letters
        .iter()
        .map(|letter| (letter.attempts, &*letter.failure.as_ref().unwrap().reason));
    assert_eq!(
        reasons.collect::<Vec<_>>(),
        [
            (2, "no disk"),
            (0, "of no use"),
            (2, "it panicked: no luck")
        ]
    );
    world.check().await;
}

async fn a_conflict_of_the_handler_is_retried_and_costs_no_attempt(store: TestStore) {
    let world = World::new(&store, Settings::new().with_max_attempts(1)).await;
    let calls = Arc::new(AtomicU64::new(0));
    let db = world.store.db.clone();
    let counted = calls.clone();
    let key = world.store.root.pack(&"value");
    let read_key = key.clone();
    let handle = move |tr: Tx<_>, item: Item| {
        let db = db.clone();
        let key = key.clone();
        let calls = counted.clone();
        async move {
            assert_eq!(item.attempt(), 1);
            let value: u64 = typed::get(&tr, &MessagePack, &key, Isolation::Serializable)
                .await?
                .unwrap_or_default();
            if calls.fetch_add(1, Ordering::Relaxed) == 0 {
                // Another transaction writes a key that this one has read.
                let mut other = db.begin()?;
                typed::set(&other, &MessagePack, &key, &40_u64)?;
                other.commit().await?;
            }
            typed::set(&tr, &MessagePack, &key, &(value + item.value()))
        }
    };
    world.enqueue([2]).await;
    let worker = world.queue.process(&world.runner, quick(), handle).await;
    world.queue.wait_idle(&world.runner).await.unwrap();
    worker.unwrap().shut_down(LONG).await.unwrap();
    let key = &read_key;
    let read = |tr| async move { typed::get(&tr, &MessagePack, key, Isolation::Snapshot).await };
    assert_eq!(world.runner.run(read).await.unwrap(), Some(42_u64));
    assert_eq!(calls.load(Ordering::Relaxed), 2);
    let stats = world.stats().await;
    assert_eq!((stats.completed, stats.dead), (1, 0));
    world.check().await;
}

async fn an_item_that_is_cancelled_meanwhile_has_no_effect(store: TestStore) {
    let world = World::with_defaults(&store).await;
    world.enqueue([7]).await;
    let key = world.store.root.pack(&"sum");
    let runner = world.runner.clone();
    let queue = world.queue.clone();
    let handle = move |tr: Tx<_>, item: Item| {
        let key = key.clone();
        let runner = runner.clone();
        let queue = queue.clone();
        async move {
            tr.atomic(MutationOp::Add, &key, &1_u64.to_le_bytes());
            let queue = &queue;
            let item = &item.item_ref();
            let cancel = |tr| async move { queue.cancel(&tr, item).await.map(drop) };
            runner.run(cancel).await
        }
    };
    let worker = world.queue.process(&world.runner, quick(), handle).await;
    world.queue.wait_idle(&world.runner).await.unwrap();
    worker.unwrap().shut_down(LONG).await.unwrap();
    assert_eq!(sum(&world).await, 0);
    let stats = world.stats().await;
    assert_eq!((stats.cancelled, stats.completed, stats.dead), (1, 0, 0));
    world.check().await;
}

/// An error of an application that another store has caused.
#[derive(Debug, thiserror::Error)]
#[error("the other store")]
struct OfAnother(#[source] keyspace::Error);

async fn a_handler_that_never_commits_leaves_its_calls_and_its_last_error_as_the_reason(
    store: TestStore,
) {
    let world = World::new(&store, Settings::new().with_max_attempts(1)).await;
    world.enqueue([0, 1]).await;
    let calls = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
    let db = world.store.db.clone();
    let key = world.store.root.pack(&"contended");
    let handle = move |tr: Tx<_>, item: Item| {
        let db = db.clone();
        let key = key.clone();
        let value = *item.value();
        let call = calls[value as usize].fetch_add(1, Ordering::Relaxed);
        async move {
            // The time limit passes in the third call.
            item.keep_alive().unwrap();
            if call == 2 {
                pending::<()>().await;
            }
            if value == 0 {
                let error = Code::NOT_COMMITTED.into();
                return Err::<_, BoxError>(Box::new(OfAnother(error)));
            }
            tr.get(&key, Isolation::Serializable).await?;
            let mut other = db.begin()?;
            other.set(&key, b"first");
            other.commit().await?;
            Ok(())
        }
    };
    let options = quick().with_time_limit(Duration::from_secs(1));
    let worker = world.queue.process(&world.runner, options, handle).await;
    timeout(LONG, world.queue.wait_idle(&world.runner))
        .await
        .unwrap();
    worker.unwrap().shut_down(LONG).await.unwrap();
    let letters = world.dead_letters().await;
    let mut reasons: Vec<_> = letters
        .iter()
        .map(|letter| &*letter.failure.as_ref().unwrap().reason)
        .collect();
    reasons.sort_unstable();
    let calls = "its time limit has passed: none of 2 calls of its handler was committed, the last one because of: ";
    let conflict =
        "transaction not committed due to conflict with another transaction (not_committed 1020)";
    assert_eq!(
        reasons,
        [
            format!("{calls}the other store: {conflict}"),
            format!("{calls}{conflict}"),
        ]
    );
    world.check().await;
}

/// Handles items while commits fail, land late or have unknown outcomes. Returns the sum of the effects, and the number
/// of commits that had a fault.
async fn sum_under_faults(world: &World, seed: u64) -> (u64, usize) {
    let env = Environment::seeded(seed, Arc::new(ManualWall::new()));
    let chaos = Chaos::new(world.store.db.clone(), env, Faults::all(0.1));
    let runner = world.store.runner_on(chaos.clone());
    world.enqueue(1..=40).await;
    let worker = world.queue.process(&runner, quick(), adds(world)).await;
    world.queue.wait_idle(&world.runner).await.unwrap();
    worker.unwrap().shut_down(LONG).await.unwrap();
    chaos.flush().await;
    (sum(world).await, chaos.tally().commits)
}

async fn effects_happen_once_even_if_outcomes_of_commits_are_unknown(store: TestStore) {
    let mut faults = 0;
    for seed in 0..8 {
        let world = World::with_defaults(&store.fresh()).await;
        let (sum, commits) = sum_under_faults(&world, seed).await;
        assert_eq!(sum, 820, "seed {seed}");
        faults += commits;
    }
    assert!(faults > 20, "{faults}");
}

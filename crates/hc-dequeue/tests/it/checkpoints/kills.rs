//! A process is killed at each of its commits. What a stage of its work does, and the checkpoint after it, are then
//! both there or both missing.

use std::future::pending;

use crate::common::{AT_ONCE, LONG, World, open, process, settings};
use conformance::chaos::{Chaos, CommitFault, Fate, Faults, Landing, LandingPoint};
use conformance::stores::TestStore;
use conformance::until;
use futures::StreamExt;
use hc_dequeue::{Error, Worker, WorkerOptions};
use keyspace::{
    Database, Environment, Isolation, MutationOp, RangeQuery, Runner, Subspace, Transaction, Tx,
    read_all,
};
use tokio::sync::oneshot;

use super::Item;

conformance::on_every_store!(
    wherever_a_process_is_killed_each_stage_takes_effect_once,
    wherever_a_process_is_killed_each_step_takes_effect_once,
);

const ITEMS: u64 = 2;
const STAGES: u64 = 3;

/// At how many commits a process is killed before it is known whether it has more.
const COMMITS: usize = 10;

/// How a handler records a stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Recording {
    /// By a checkpoint, in the transaction of the stage.
    Checkpoint,
    /// By a step.
    Step,
    /// By a checkpoint in a transaction of its own: a mistake.
    Apart,
}

/// Starts a worker whose handler works in stages.
async fn work<D: Database>(store: &TestStore, runner: &Runner<D>, way: Recording) -> Worker<u64> {
    let queue = open(store, runner, settings()).await.unwrap();
    let own = runner.clone();
    let effects = store.root.subspace(&"effects");
    let handler = move |item: Item| {
        let runner = own.clone();
        let effects = effects.clone();
        async move { handle(&runner, &effects, &item, way).await }
    };
    let options = WorkerOptions::new().with_concurrency(1);
    queue.work(runner, options, handler).await.unwrap()
}

async fn handle<D: Database>(
    runner: &Runner<D>,
    effects: &Subspace,
    item: &Item,
    way: Recording,
) -> Result<(), Error> {
    let first: u64 = item.checkpoint_as()?.unwrap_or(0);
    for stage in first..STAGES {
        let key = &effects.pack(&(*item.value(), stage));
        let next = &(stage + 1);
        match way {
            Recording::Checkpoint => {
                let both = async |tr: Tx<_>| {
                    tr.atomic(MutationOp::Add, key, &1_u64.to_le_bytes());
                    item.set_checkpoint_as(&tr, next).await
                };
                runner.run(both).await?;
            }
            Recording::Step => {
                let step = async |tr: Tx<_>| {
                    tr.atomic(MutationOp::Add, key, &1_u64.to_le_bytes());
                    Ok::<_, Error>(())
                };
                item.step(&stage.to_string(), step).await?;
            }
            Recording::Apart => {
                let effect = async |tr: Tx<_>| {
                    tr.atomic(MutationOp::Add, key, &1_u64.to_le_bytes());
                    Ok::<_, Error>(())
                };
                runner.run(effect).await?;
                let checkpoint = async |tr| item.set_checkpoint_as(&tr, next).await;
                runner.run(checkpoint).await?;
            }
        }
    }
    Ok(())
}

/// What a process and the next one have done.
struct Run {
    /// Whether the first one was killed at a commit, and not after all of its work.
    is_killed: bool,
    /// How often each stage of each item took effect.
    counts: Vec<u64>,
}

/// Lets a process work until a commit that never gets an answer, and kills it. Another one does the rest.
async fn kill_at(store: TestStore, way: Recording, commit: usize, fate: Fate) -> Run {
    let world = World::new(&store, settings()).await;
    world.enqueue(0..ITEMS).await;
    let chaos = Chaos::new(
        world.store.db.clone(),
        Environment::system(),
        Faults::default(),
    );
    let before = std::iter::repeat_n(CommitFault::None, commit);
    chaos.script(before.chain([CommitFault::Silent(fate)]));
    let (alive, killed) = oneshot::channel::<()>();
    let doomed = {
        let store = world.store.clone();
        let runner = world.store.runner_on(chaos.clone());
        process(move || async move {
            let live = async {
                let _worker = work(&store, &runner, way).await;
                pending::<()>().await;
            };
            tokio::select! {
                () = live => {}
                _ = killed => {}
            }
        })
    };
    let is_over = async || chaos.tally().commits > 0 || world.stats().await.completed == ITEMS;
    until(is_over).await;
    let is_killed = chaos.tally().commits > 0;
    drop(alive);
    let joined = tokio::task::spawn_blocking(|| doomed.join().unwrap());
    joined.await.unwrap();
    // What it had sent arrives.
    chaos.flush().await;
    let worker = work(&world.store, &world.runner, way).await;
    until(async || world.stats().await.completed == ITEMS).await;
    worker.shut_down(LONG).await.unwrap();
    world.check().await;
    Run {
        is_killed,
        counts: counts(&world).await,
    }
}

async fn counts(world: &World) -> Vec<u64> {
    let (begin, end) = world.store.root.subspace(&"effects").range();
    let rows = &RangeQuery::keys(begin, end);
    let read = async |tr| read_all(&tr, rows.clone(), Isolation::Snapshot).await;
    let rows = world.runner.run(read).await.unwrap();
    let count = |row: &keyspace::KeyValue| u64::from_le_bytes(row.value().try_into().unwrap());
    rows.iter().map(count).collect()
}

/// Kills a process at each of its commits, in each way that the commit may end, and at last after all of its work.
/// Returns how many of the kills have let a stage take effect more than once, or not at all.
async fn kill_everywhere(store: TestStore, way: Recording) -> usize {
    let late = Fate::Late(Landing {
        attempts: 2,
        before: LandingPoint::Commit,
    });
    let mut wrong = 0;
    for first in (0..).step_by(COMMITS) {
        let kills = (first..first + COMMITS)
            .flat_map(|commit| [Fate::Applied, Fate::Lost, late].map(|fate| (commit, fate)));
        let runs = kills.map(|(commit, fate)| kill_at(store.fresh(), way, commit, fate));
        let runs = futures::stream::iter(runs).buffered(AT_ONCE);
        let runs: Vec<Run> = runs.collect().await;
        let is_wrong = |run: &&Run| run.counts != [1; (ITEMS * STAGES) as usize];
        wrong += runs.iter().filter(is_wrong).count();
        let last = runs.last().unwrap();
        if !last.is_killed {
            break;
        }
    }
    wrong
}

async fn wherever_a_process_is_killed_each_stage_takes_effect_once(store: TestStore) {
    assert_eq!(kill_everywhere(store, Recording::Checkpoint).await, 0);
}

async fn wherever_a_process_is_killed_each_step_takes_effect_once(store: TestStore) {
    assert_eq!(kill_everywhere(store, Recording::Step).await, 0);
}

#[tokio::test]
async fn a_checkpoint_in_a_transaction_of_its_own_would_repeat_a_stage() {
    assert!(kill_everywhere(TestStore::memory(), Recording::Apart).await > 0);
}

//! Runners on every store, under chaos: what many tasks add to the same keys is there once for each
//! successful operation.

use std::sync::Arc;

use conformance::chaos::{Chaos, Faults};
use conformance::scale;
use conformance::stores::TestStore;
use futures::future::join_all;
use keyspace::env::ManualClock;
use keyspace::{
    Environment, Error, Isolation, MutationOp, RunOptions, Runner, Store, Subspace, Transaction,
};

conformance::on_every_store!(
    a_runner_takes_effect_exactly_once,
    without_the_ledger_it_is_there_more_than_once,
);

const TASKS: u64 = 4;

/// The sums that the tasks added, by an atomic operation and by a read and a write, and the number of
/// successful operations.
struct Sums {
    added: u64,
    counted: u64,
    succeeded: u64,
}

fn number(value: Option<&[u8]>) -> u64 {
    value.map_or(0, |value| u64::from_le_bytes(value.try_into().unwrap()))
}

/// Adds one to two keys in each operation.
async fn add(runner: &Runner<Chaos<Store>>, root: &Subspace) -> Result<(), Error> {
    let added = &root.pack(&"added");
    let counted = &root.pack(&"counted");
    let operation = runner.run(|tr| async move {
        tr.atomic(MutationOp::Add, added, &1_u64.to_le_bytes());
        let count = number(tr.get(counted, Isolation::Serializable).await?.as_deref());
        tr.set(counted, &(count + 1).to_le_bytes());
        Ok(())
    });
    operation.await
}

/// Runs a task's operations on a store that hides outcomes of commits and lets commits land late.
async fn sums(store: &TestStore, exactly_once: bool) -> Sums {
    let operations = scale(40, 2_000) as u64;
    let tasks = (0..TASKS).map(|task| {
        let env = Environment::seeded(task, Arc::new(ManualClock::moved_by_sleepers()));
        let chaos = Chaos::new(store.db.clone(), env.clone(), Faults::all(0.05));
        let options = RunOptions::default()
            .with_environment(env)
            .with_exactly_once(exactly_once)
            .with_ledger_subspace(store.root.subspace(&"ledgers"));
        let runner = Runner::with_options(chaos.clone(), options);
        async move {
            let mut succeeded = 0;
            for _ in 0..operations {
                add(&runner, &store.root).await.unwrap();
                succeeded += 1;
            }
            chaos.flush().await;
            succeeded
        }
    });
    let succeeded = join_all(tasks).await.into_iter().sum();
    let tr = keyspace::Database::begin(&store.db).unwrap();
    let read = async |name: &str| {
        let value = tr.get(&store.root.pack(&name), Isolation::Snapshot).await;
        number(value.unwrap().as_deref())
    };
    Sums {
        added: read("added").await,
        counted: read("counted").await,
        succeeded,
    }
}

async fn a_runner_takes_effect_exactly_once(store: TestStore) {
    let sums = sums(&store, true).await;
    assert_eq!(sums.added, sums.succeeded);
    assert_eq!(sums.counted, sums.succeeded);
}

async fn without_the_ledger_it_is_there_more_than_once(store: TestStore) {
    let sums = sums(&store, false).await;
    assert!(sums.added > sums.succeeded, "the chaos showed nothing");
}

//! Many tasks on one store. Each committed transaction must have seen what it would have seen if all had
//! run one after the other, in the order of their versionstamps.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod workload;

use std::path::Path;
use std::sync::Arc;

use conformance::chaos::{Chaos, FaultTally, Faults};
use conformance::history::{Checked, HistoryError, Recorded};
use conformance::model::Model;
use conformance::plant::{Plant, Planted};
use conformance::scale;
use conformance::stores::{self, Kind};
use keyspace::embedded::Options;
use keyspace::env::ManualClock;
use keyspace::{Database, Embedded, Environment};

use crate::workload::Workload;

const FAULT_PROBABILITY: f64 = 0.05;

fn environment(seed: u64) -> Environment {
    Environment::seeded(seed, Arc::new(ManualClock::moved_by_sleepers()))
}

fn memory(seed: u64) -> Embedded {
    let options = Options::new().with_environment(environment(seed));
    options.memory().unwrap()
}

fn file(seed: u64, folder: &Path) -> Embedded {
    let options = Options::new().with_environment(environment(seed));
    options.open(folder.join("store")).unwrap()
}

/// Runs the workload of a seed and replays it.
async fn run_and_replay<D: Database>(db: D, seed: u64) -> Result<Checked, HistoryError> {
    let recorded = Recorded::new(db).await?;
    Workload { seed }.run(&recorded).await;
    recorded.check().await
}

/// Runs the workload of a seed on a store that fails, and replays it.
async fn run_and_replay_chaos<D: Database>(
    db: D,
    seed: u64,
) -> (Result<Checked, HistoryError>, FaultTally) {
    let recorded = Recorded::new(db).await.unwrap();
    let faults = Faults::all(FAULT_PROBABILITY);
    let chaos = Chaos::new(recorded.clone(), environment(seed), faults);
    Workload { seed }.run(&chaos).await;
    chaos.flush().await;
    (recorded.check().await, chaos.tally())
}

/// Returns the seeds to play: the requested one, or a number of seeds that depends on the length of the
/// run.
fn seeds(short: usize, long: usize) -> std::ops::Range<u64> {
    match std::env::var("SERIALIZABILITY_SEED") {
        Ok(seed) => {
            let seed = seed.parse().unwrap();
            seed..seed + 1
        }
        Err(_) => 0..scale(short, long) as u64,
    }
}

/// Fails unless a history was correct, and long enough to be meaningful.
#[track_caller]
fn assert_right(seed: u64, checked: Result<Checked, HistoryError>) {
    let checked = checked.unwrap_or_else(|error| {
        panic!("SERIALIZABILITY_SEED={seed} cargo test -p fdbq-keyspace --test serializability: {error}")
    });
    let all = workload::TASKS * workload::TRANSACTIONS_PER_TASK;
    assert!(checked.commits + checked.read_only >= all, "{checked:?}");
    assert!(checked.commits > all / 3, "{checked:?}");
    assert!(checked.reads > all, "{checked:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn transactions_in_memory_replay_in_commit_order() {
    for seed in seeds(20, 2_000) {
        assert_right(seed, run_and_replay(memory(seed), seed).await);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn transactions_on_a_file_replay_in_commit_order() {
    for seed in seeds(5, 300) {
        let folder = tempfile::tempdir().unwrap();
        let db = file(seed, folder.path());
        assert_right(seed, run_and_replay(db, seed).await);
    }
}

#[tokio::test]
async fn transactions_of_one_thread_replay_in_commit_order() {
    for seed in seeds(20, 2_000) {
        assert_right(seed, run_and_replay(memory(seed), seed).await);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn transactions_of_a_store_that_fails_replay_in_commit_order() {
    for seed in seeds(20, 2_000) {
        let (checked, tally) = run_and_replay_chaos(memory(seed), seed).await;
        assert_right(seed, checked);
        assert!(tally.landed > 0 && tally.reads > 0, "{tally:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn transactions_of_a_file_that_fails_replay_in_commit_order() {
    for seed in seeds(5, 300) {
        let folder = tempfile::tempdir().unwrap();
        let db = file(seed, folder.path());
        let (checked, tally) = run_and_replay_chaos(db, seed).await;
        assert_right(seed, checked);
        assert!(tally.landed > 0 && tally.reads > 0, "{tally:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn transactions_of_the_reference_model_replay_in_commit_order() {
    for seed in seeds(5, 300) {
        let model = Model::new(environment(seed));
        assert_right(seed, run_and_replay(model, seed).await);
    }
}

/// Needs a cluster without other data: the record is of the whole store.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn on_fdb_transactions_of_a_cluster_replay_in_commit_order() {
    const NAME: &str = "on_fdb_transactions_of_a_cluster_replay_in_commit_order";
    stores::run(Kind::Fdb, NAME, |store| async move {
        if !store.is_empty().await.unwrap() {
            return stores::skip(NAME, "the cluster holds keys already");
        }
        for seed in seeds(3, 100) {
            let checked = run_and_replay(store.db.clone(), seed).await;
            store.clear_all().await.unwrap();
            assert_right(seed, checked);
            let (checked, _) = run_and_replay_chaos(store.db.clone(), seed).await;
            store.clear_all().await.unwrap();
            assert_right(seed, checked);
        }
    })
    .await;
}

/// Plays seeds until the planted bug is found, and returns the error.
async fn symptom(plant: Plant) -> HistoryError {
    for seed in 0..50 {
        let planted = Planted::new(memory(seed), plant);
        if let Err(error) = run_and_replay(planted, seed).await {
            return error;
        }
    }
    panic!("{plant:?} was not caught");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn each_planted_bug_shows_in_the_replay() {
    for plant in [
        Plant::ReadsWithoutConflicts,
        Plant::WritesWithoutConflicts,
        Plant::SnapshotsWithoutOwnWrites,
        Plant::OldTransactionsUnchecked,
    ] {
        let error = symptom(plant).await;
        assert!(
            matches!(error, HistoryError::Read { .. }),
            "{plant:?}: {error}"
        );
    }
    let error = symptom(Plant::OldVersions).await;
    assert!(matches!(error, HistoryError::Order { .. }), "{error}");
    for plant in [Plant::LostCommits, Plant::RepeatedCommits] {
        let error = symptom(plant).await;
        let shows = matches!(error, HistoryError::Read { .. } | HistoryError::Row { .. });
        assert!(shows, "{plant:?}: {error}");
    }
}

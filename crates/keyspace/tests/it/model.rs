//! Random programs on a store and on the reference model, and on two stores side by side.

use std::env;

use conformance::compare::{self, Counterexample, Modeled};
use conformance::plant::{Plant, Planted};
use conformance::replay::Replay;
use conformance::scale;
use conformance::stores::{self, TestStore};
use keyspace::{Database, Environment, embedded};

/// A seed whose program reads a single key before a range that ends there: that the client knows the key decides
/// whether the range is readable.
const KNOWS_A_KEY: u64 = 11_862;

/// Compares a store with the model on many programs, or on the program of the seed in the environment
/// variable `SEED`.
async fn assert_agrees(db: impl Database, programs: usize) {
    let store = Replay::new(db, Environment::system());
    let seeds = match env::var("SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => (0..programs as u64).chain([KNOWS_A_KEY]).collect(),
    };
    for seed in seeds {
        if let Some(counterexample) = compare::check(&Modeled, &store, seed).await.unwrap() {
            panic!("SEED={seed} cargo test -p fdbq-keyspace --test it model: {counterexample}");
        }
    }
}

#[tokio::test]
async fn a_store_in_memory_agrees_with_the_model() {
    let db = keyspace::open("memory:").unwrap();
    assert_agrees(db, scale(3_000, 300_000)).await;
}

#[tokio::test]
async fn a_store_in_a_file_agrees_with_the_model() {
    let folder = tempfile::tempdir().unwrap();
    let db = embedded::Options::new().open(folder.path().join("store"));
    assert_agrees(db.unwrap(), scale(500, 20_000)).await;
}

conformance::on_every_store!(a_store_agrees_with_one_in_memory);

/// Seeds on which the embedded store and a cluster used to differ.
const ONCE_WRONG: [u64; 5] = [23_086, 47_264, 61_192, 84_954, 165_946];

async fn a_store_agrees_with_one_in_memory(store: TestStore) {
    let prefix = store.root.subspace(&"programs").bytes().to_vec();
    let under = |db| Replay::new(db, Environment::system()).under(prefix.clone());
    let memory = under(keyspace::open("memory:").unwrap());
    let store = under(store.db);
    for seed in ONCE_WRONG.into_iter().chain(0..scale(500, 100_000) as u64) {
        if let Some(found) = compare::check(&memory, &store, seed).await.unwrap() {
            panic!("{found}");
        }
    }
}

#[tokio::test]
async fn reads_under_way_together_agree_with_a_store_in_this_process() {
    let overlapping = |db| {
        let replay = Replay::new(db, Environment::system());
        replay.under(&b"place"[..]).overlapping()
    };
    let memory = overlapping(keyspace::open("memory:").unwrap());
    let (_owner, remote) = stores::remote(4).unwrap();
    let store = overlapping(remote);
    for seed in 0..scale(1_000, 100_000) as u64 {
        if let Some(found) = compare::check(&memory, &store, seed).await.unwrap() {
            panic!("{found}");
        }
    }
}

#[tokio::test]
async fn a_planted_bug_shows_between_two_stores() {
    let under = |db| Replay::new(db, Environment::system()).under(&b"place"[..]);
    let memory = || keyspace::open("memory:").unwrap();
    let sound = under(Planted::new(memory(), Plant::OldVersionsAsNew));
    let broken = under(Planted::new(memory(), Plant::ReadsWithoutConflicts));
    for seed in 0..1_000 {
        if let Some(found) = compare::check(&sound, &broken, seed).await.unwrap() {
            assert!(found.trace.program.steps.len() <= 8, "{found}");
            return;
        }
    }
    panic!("two stores of which one is broken agreed");
}

/// Compares a store with a planted bug with the model until they differ.
async fn counterexample(plant: Plant) -> Counterexample {
    let db = Planted::new(keyspace::open("memory:").unwrap(), plant);
    let store = Replay::new(db, Environment::system());
    for seed in 0..3_000 {
        if let Some(found) = compare::check(&Modeled, &store, seed).await.unwrap() {
            return found;
        }
    }
    panic!("{plant:?} was not caught");
}

#[tokio::test]
async fn each_planted_bug_shows_on_a_small_program() {
    for plant in [
        Plant::ReadsWithoutConflicts,
        Plant::WritesWithoutConflicts,
        Plant::LimitsWithoutEffect,
        Plant::SnapshotsWithoutOwnWrites,
    ] {
        let found = counterexample(plant).await;
        let steps = found.trace.program.steps.len();
        assert!(steps <= 8, "{plant:?} shows after {steps} steps: {found}");
        assert!(!found.differences.is_empty());
    }
}

//! Random programs on the embedded store and on the reference model.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::env;

use keyspace::conformance::compare;
use keyspace::conformance::replay::Replay;
use keyspace::conformance::scale;
use keyspace::{Database, Environment, embedded};

/// Compares a store with the model on many programs, or on that of the environment variable `SEED`.
async fn assert_agrees(db: impl Database, programs: usize) {
    let store = Replay::new(db, Environment::system());
    let seeds = match env::var("SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => (0..programs as u64).collect(),
    };
    for seed in seeds {
        if let Some(counterexample) = compare::check(&store, seed).await.unwrap() {
            panic!("{counterexample}");
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

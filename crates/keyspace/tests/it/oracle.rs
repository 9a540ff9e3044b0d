//! Checks each decision of a store against what the transaction would read afterwards.

use std::env;

use conformance::model::Model;
use conformance::oracle::{self, Fault, Misjudged, Tally};
use conformance::plant::{Plant, Planted};
use conformance::replay::Replay;
use conformance::scale;
use conformance::stores::{Kind, TestStore};
use keyspace::{Database, Environment};

conformance::on_every_store!(every_verdict_of_a_store_follows_from_what_was_read);

/// The seeds of a run: the given number of seeds, or the one in the environment variable `SEED`.
fn seeds(short: usize, long: usize) -> Vec<u64> {
    match env::var("SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => (0..scale(short, long) as u64).collect(),
    }
}

/// Checks the decisions of seeds up to the first wrong one.
async fn misjudged<D: Database>(store: Replay<D>, seeds: Vec<u64>) -> Option<Misjudged> {
    let mut tally = Tally::default();
    for &seed in &seeds {
        let found = oracle::check(&store, seed, &mut tally).await.unwrap();
        if found.is_some() {
            return found;
        }
    }
    let enough = seeds.len() / 10;
    assert!(
        tally.committed >= enough && tally.refused >= enough,
        "{tally:?}"
    );
    None
}

fn assert_none(found: Option<Misjudged>) {
    if let Some(misjudged) = found {
        panic!("{misjudged}");
    }
}

async fn every_verdict_of_a_store_follows_from_what_was_read(store: TestStore) {
    let seeds = match store.kind {
        Kind::Memory => seeds(10_000, 1_000_000),
        Kind::Embedded => seeds(1_000, 50_000),
        Kind::Remote => seeds(1_000, 100_000),
        Kind::Fdb => seeds(500, 50_000),
    };
    let programs = store.root.subspace(&"programs");
    let replay = Replay::new(store.db, Environment::system()).under(programs.bytes().to_vec());
    assert_none(misjudged(replay, seeds).await);
}

#[tokio::test]
async fn every_verdict_of_the_model_follows_from_what_was_read() {
    let model = Replay::new(Model::new(Environment::system()), Environment::system());
    assert_none(misjudged(model, seeds(2_000, 20_000)).await);
}

#[tokio::test]
async fn each_planted_bug_shows_in_a_verdict() {
    for (plant, fault) in [
        (Plant::ReadsWithoutConflicts, Fault::Missed),
        (Plant::WritesWithoutConflicts, Fault::Missed),
        (Plant::LimitsWithoutEffect, Fault::TooWide),
    ] {
        let planted = Planted::new(keyspace::open("memory:").unwrap(), plant);
        let db = Replay::new(planted, Environment::system());
        let found = misjudged(db, (0..1_000).collect()).await;
        assert_eq!(found.map(|found| found.fault), Some(fault), "{plant:?}");
    }
}

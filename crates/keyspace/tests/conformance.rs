//! Compares every store, and the model, with recorded answers of FoundationDB.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::time::Duration;

use conformance::let_pass;
use conformance::model::Model;
use conformance::plant::{Plant, Planted};
use conformance::program::Outcome;
use conformance::replay::{Difference, Replay};
use conformance::stores;
use conformance::trace::Trace;
use keyspace::{Database, Environment, Store, Transaction, embedded, limits};

/// The files of recorded traces, with the number of programs in each.
const FILES: [(&str, usize); 6] = [
    ("general.jsonl.gz", 400),
    ("queue.jsonl.gz", 400),
    ("atomic.jsonl.gz", 400),
    ("known.jsonl.gz", 50),
    ("limits.jsonl", 71),
    ("lifecycle.jsonl", 48),
];

/// The answers of FoundationDB's client after a commit or a cancel. The `foundationdb` crate ends the
/// transaction at that point, so the adapter cannot give them.
const ENDED: (&str, usize) = ("ended.jsonl", 43);

fn traces(file: &str) -> Vec<Trace> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../conformance/traces");
    Trace::read_file(&folder.join(file)).unwrap()
}

async fn differences(db: impl Database) -> Vec<Difference> {
    // A store in this process fires its watches before it acknowledges a commit.
    let replay = Replay::new(db, Environment::system()).watch_limit(Duration::from_millis(20));
    differences_of(&replay, FILES.into_iter().chain([ENDED])).await
}

async fn differences_of<D: Database>(
    replay: &Replay<D>,
    files: impl IntoIterator<Item = (&'static str, usize)>,
) -> Vec<Difference> {
    let mut differences = Vec::new();
    for (file, programs) in files {
        let traces = traces(file);
        assert_eq!(traces.len(), programs, "{file}");
        for trace in &traces {
            differences.extend(replay.check(trace).await.unwrap());
        }
    }
    differences
}

fn assert_none(differences: &[Difference]) {
    let lines: Vec<String> = differences.iter().map(ToString::to_string).collect();
    assert!(lines.is_empty(), "{}", lines.join("\n"));
}

#[tokio::test]
async fn the_model_answers_as_foundationdb_did() {
    let model = Model::new(Environment::system());
    assert_none(&differences(model).await);
}

#[tokio::test]
async fn a_database_of_another_type_answers_the_same_as_a_store() {
    let model = Model::new(Environment::system());
    let store = Store::of(&model);
    assert!(matches!(store, Store::Other(_)));
    assert_none(&differences(store).await);
}

#[tokio::test]
async fn a_store_in_memory_answers_as_foundationdb_did() {
    let db = keyspace::open("memory:").unwrap();
    assert_none(&differences(db).await);
}

#[tokio::test]
async fn a_store_of_another_process_answers_as_foundationdb_did() {
    // Replies of one to four rows, so that most ranges take several.
    let (_owner, db) = stores::remote(4).unwrap();
    assert_none(&differences(db).await);
}

#[tokio::test]
async fn a_store_in_a_file_answers_as_foundationdb_did() {
    let folder = tempfile::tempdir().unwrap();
    let db = embedded::Options::new().open(folder.path().join("store"));
    assert_none(&differences(db.unwrap()).await);
}

/// Needs a cluster without other data: selectors run off a program's rows.
#[tokio::test]
async fn on_fdb_a_cluster_answers_as_foundationdb_did() {
    const NAME: &str = "on_fdb_a_cluster_answers_as_foundationdb_did";
    stores::run(stores::Kind::Fdb, NAME, |store| async move {
        if !store.is_empty().await.unwrap() {
            return stores::skip(NAME, "the cluster holds keys already");
        }
        let mut tr = store.db.begin().unwrap();
        // Some traces read at a version that is too old, and a new cluster does not have such versions.
        while tr.read_version().await.unwrap() <= 2 * limits::TRANSACTION_LIFE_VERSIONS {
            let_pass(Duration::from_millis(100)).await;
            tr = store.db.begin().unwrap();
        }
        let replay = Replay::new(store.db, Environment::system());
        assert_none(&differences_of(&replay, FILES).await);
        replay.clear().await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn an_answer_that_differs_is_reported_with_its_step() {
    let mut trace = traces("limits.jsonl").remove(0);
    trace.answers.outcomes[1] = Outcome::Failed(keyspace::Code::NOT_COMMITTED);
    trace.answers.last.clear();
    let replay = Replay::new(Model::new(Environment::system()), Environment::system());
    let found = replay.check(&trace).await.unwrap();
    let steps: Vec<_> = found.iter().map(|found| found.step.clone()).collect();
    let commit = r#"[0,"commit",{}]"#.to_owned();
    assert_eq!(steps, [Some((1, commit)), None]);
    assert!(
        found
            .iter()
            .all(|difference| difference.program == trace.id)
    );
}

#[test]
fn a_trace_that_was_written_reads_as_the_same_trace() {
    for (file, _) in FILES.into_iter().chain([ENDED]) {
        for trace in traces(file) {
            assert_eq!(Trace::parse(&trace.to_line(), 1).unwrap(), trace);
        }
    }
}

#[tokio::test]
async fn a_store_that_takes_old_versions_for_new_does_not_answer_as_foundationdb_did() {
    let db = keyspace::open("memory:").unwrap();
    let found = differences(Planted::new(db, Plant::OldVersionsAsNew)).await;
    let mut programs: Vec<_> = found.into_iter().map(|found| found.program).collect();
    programs.dedup();
    let sets_a_version = |program: &String| program.contains("version");
    assert!(programs.iter().all(sets_a_version), "{programs:?}");
    assert!(programs.contains(&"limits-read-version-old-write-only".to_owned()));
}

//! The order of versions across openings of a store.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use keyspace::embedded::{Durability, Embedded, Options};
use keyspace::env::ManualClock;
use keyspace::{Commit, Database, Environment, Isolation, OwnedTransaction, Transaction};

/// Longer than the versions of a recovery's jump take to pass.
const LONG: Duration = Duration::from_secs(600);

fn options() -> (Options, ManualClock) {
    let clock = ManualClock::new();
    let environment = Environment::seeded(0, Arc::new(clock.clone()));
    (Options::new().with_environment(environment), clock)
}

async fn commit(db: &Embedded) -> Commit {
    let mut tr = db.begin().unwrap();
    tr.set(b"key", b"value");
    tr.commit().await.unwrap()
}

async fn read_version(db: &Embedded) -> i64 {
    db.begin().unwrap().read_version().await.unwrap()
}

#[tokio::test]
async fn an_opening_begins_after_every_version_given_by_one_that_was_idle_for_long() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let (options, clock) = options();
    let mut last = 0;
    for idle in [LONG, Duration::ZERO, LONG, Duration::ZERO] {
        let db = options.open(&path).unwrap();
        clock.advance(idle);
        let version = read_version(&db).await;
        assert!(version > last, "{version} after {last}");
        last = version;
    }
}

#[tokio::test]
async fn an_opening_begins_after_commits_that_were_acknowledged_and_never_flushed() {
    let folder = tempfile::tempdir().unwrap();
    let (options, clock) = options();
    let interval = Duration::MAX;
    let relaxed = options
        .clone()
        .with_durability(Durability::Relaxed { interval });
    let path = folder.path().join("store");
    let db = relaxed.open(&path).unwrap();
    let crashed = folder.path().join("crashed");
    let log = "log.0000000000000001";
    fs::copy(path.with_extension(log), crashed.with_extension(log)).unwrap();
    let mut lost = commit(&db).await;
    for _ in 0..10 {
        // Less than the time after which the clock makes the store flush a version.
        clock.advance(Duration::from_secs(2));
        lost = commit(&db).await;
    }
    fs::copy(&path, &crashed).unwrap();
    let db = options.open(&crashed).unwrap();
    let value = db
        .begin()
        .unwrap()
        .get(b"key", Isolation::Snapshot)
        .await
        .unwrap();
    assert_eq!(value, None);
    let next = commit(&db).await;
    assert!(next.versionstamp > lost.versionstamp, "{next:?}, {lost:?}");
}

#[tokio::test]
async fn a_transaction_that_began_while_the_clock_stood_still_has_its_five_seconds() {
    let (options, clock) = options();
    let db = options.memory().unwrap();
    clock.advance(LONG);
    let mut tr = db.begin().unwrap();
    tr.read_version().await.unwrap();
    tr.set(b"key", b"value");
    for _ in 0..4 {
        commit(&db).await;
        clock.advance(Duration::from_secs(1));
    }
    tr.commit().await.unwrap();
}

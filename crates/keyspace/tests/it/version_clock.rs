//! The version clock on a store whose versions jump because the store is opened again.

use std::sync::Arc;
use std::time::Duration;

use keyspace::embedded::Options;
use keyspace::env::ManualClock;
use keyspace::{Database, Environment, OwnedTransaction, Transaction, VersionClock};

const AGE: Duration = Duration::from_secs(8);
const STEP: Duration = Duration::from_secs(1);

/// Writes a heartbeat and returns its commit version.
async fn beat(db: &impl Database) -> i64 {
    let mut tr = db.begin().unwrap();
    tr.set(b"heartbeat", b"");
    tr.commit().await.unwrap().version
}

async fn observe(db: &impl Database, clock: &VersionClock) {
    let read_version = db.begin().unwrap().read_version().await.unwrap();
    clock.observe(read_version);
}

#[tokio::test]
async fn a_heartbeat_is_old_after_its_age_however_far_versions_jump() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store");
    let watch = ManualClock::new();
    let env = Environment::seeded(0, Arc::new(watch.clone()));
    let clock = VersionClock::new(env.clone(), AGE);
    let options = Options::new().with_environment(env);
    let is_old = |heartbeat: i64| clock.version_ago().is_some_and(|ago| heartbeat <= ago);

    let mut heartbeats = Vec::new();
    for opening in 0..3 {
        let db = options.open(&path).unwrap();
        for second in 0..6 {
            heartbeats.push(beat(&db).await);
            observe(&db, &clock).await;
            watch.advance(STEP);
            // At the last observation, each heartbeat was a second older than the next one.
            for (seconds, heartbeat) in (0..).zip(heartbeats.iter().rev()) {
                let age = STEP * seconds;
                assert_eq!(
                    is_old(*heartbeat),
                    age >= AGE,
                    "{opening}, {second}, {age:?}"
                );
            }
        }
    }
    let jumps = heartbeats
        .windows(2)
        .filter(|pair| pair[1] - pair[0] > 100_000_000);
    assert_eq!(jumps.count(), 2);
}

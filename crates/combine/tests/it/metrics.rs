//! The metrics of a worker.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::common::{LONG, World, settings};
use combine::{CombineQueue, Sum, Unobserved};
use conformance::stores::TestStore;
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};

/// The metrics since the last read: gauges with their values, others as sums.
fn counted(snapshotter: &Snapshotter) -> BTreeMap<String, f64> {
    let mut counted = BTreeMap::new();
    for (key, _, _, value) in snapshotter.snapshot().into_vec() {
        let bucket = key.key().labels().find(|label| label.key() == "bucket");
        let bucket = bucket.map_or(String::new(), |label| format!(" {}", label.value()));
        let value = match value {
            DebugValue::Counter(count) => count as f64,
            DebugValue::Gauge(value) => value.into_inner(),
            DebugValue::Histogram(values) => values.iter().map(|value| value.into_inner()).sum(),
        };
        counted.insert(format!("{}{bucket}", key.key().name()), value);
    }
    counted
}

/// Runs in a program of its own, since the recorder is global.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn passes_updates_changes_and_backlogs_are_counted() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    recorder.install().unwrap();

    let store = TestStore::memory();
    let runner = store.runner();
    let settings = settings(2).lease(Duration::from_millis(60));
    let queue = CombineQueue::open(&runner, store.root.subspace(&"queue"), settings, Sum).await;
    let world = World {
        queue: queue.unwrap(),
        runner,
        root: store.root.clone(),
    };
    world.add("a", 1).await;
    world.add("a", 2).await;
    world.add("b", 3).await;
    let worker = world.work(Unobserved).await;
    world.wait_idle().await;
    worker.shut_down(LONG).await.unwrap();
    let first = counted(&snapshotter);
    assert_eq!(first["combine_updates"], 3.0);
    assert_eq!(first["combine_changes"], 2.0);
    assert!(first["combine_passes"] >= 1.0);
    assert_eq!(first["combine_pass_updates"], 3.0);
    assert!(first["combine_pass_bytes"] > 0.0);
    assert!(first["combine_pass_seconds"] > 0.0);
    for none in ["set_aside", "conflicts", "failures", "takeovers"] {
        assert_eq!(first[&format!("combine_{none}")], 0.0, "{none}");
    }

    // An observer that blocks leaves updates, which the gauges show at a heartbeat.
    let worker = world.work(crate::common::Fails).await;
    world.add("a", 1).await;
    let bucket = world.queue.bucket(&"a".to_owned()).unwrap();
    let gauges = [
        format!("combine_pending_updates {bucket}"),
        format!("combine_pending_bytes {bucket}"),
        "combine_lag_seconds".to_owned(),
    ];
    let mut missing: BTreeSet<_> = gauges.iter().collect();
    while !missing.is_empty() {
        let seen = counted(&snapshotter);
        missing.retain(|gauge| seen.get(*gauge).is_none_or(|value| *value == 0.0));
        tokio::task::yield_now().await;
    }
    worker.shut_down(LONG).await.unwrap();
}

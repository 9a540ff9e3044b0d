//! The metrics of a worker.

use std::collections::{BTreeMap, BTreeSet};
use std::iter;

use crate::common::{LONG, short_lived};
use combine::Unobserved;
use conformance::stores::TestStore;
use conformance::until;
use keyspace::names::queue_name;
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};

/// The metrics of a queue since the last read: gauges with their values, others as sums. The
/// recorder is global, so it also has the metrics of the queues of other tests.
fn counted(snapshotter: &Snapshotter, queue: &str) -> BTreeMap<String, f64> {
    let mut counted = BTreeMap::new();
    for (key, _, _, value) in snapshotter.snapshot().into_vec() {
        let mut labels = key.key().labels().map(|label| label.value());
        if labels.next() != Some(queue) {
            continue;
        }
        let name: Vec<_> = iter::once(key.key().name()).chain(labels).collect();
        let value = match value {
            DebugValue::Counter(count) => count as f64,
            DebugValue::Gauge(value) => value.into_inner(),
            DebugValue::Histogram(values) => values.iter().map(|value| value.into_inner()).sum(),
        };
        counted.insert(name.join(" "), value);
    }
    counted
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn passes_updates_changes_and_backlogs_are_counted() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    recorder.install().unwrap();

    let (_, world) = short_lived(&TestStore::memory()).await;
    let counted = || counted(&snapshotter, &queue_name(world.queue.subspace()));
    world.add("a", 1).await;
    world.add("a", 2).await;
    world.add("b", 3).await;
    let worker = world.work(Unobserved).await;
    world.wait_idle().await;
    worker.shut_down(LONG).await.unwrap();
    let first = counted();
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
    until(async || {
        let seen = counted();
        missing.retain(|gauge| seen.get(*gauge).is_none_or(|value| *value == 0.0));
        missing.is_empty()
    })
    .await;
    worker.shut_down(LONG).await.unwrap();
}

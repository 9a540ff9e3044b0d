//! The metrics of a worker.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::common::{LONG, Receiver, World, no_backoff, settings};
use conformance::stores::TestStore;
use export_queue::{
    BoxError, ExportOptions, Exporter, SequencedExport, Start, WorkerOptions, async_trait,
};
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};

/// The metrics since the last read: gauges with their values, others as sums.
fn counted(snapshotter: &Snapshotter) -> BTreeMap<String, f64> {
    let mut counted = BTreeMap::new();
    for (key, _, _, value) in snapshotter.snapshot().into_vec() {
        let labels = key.key().labels().filter(|label| label.key() != "queue");
        let labels: String = labels.map(|label| format!(" {}", label.value())).collect();
        let value = match value {
            DebugValue::Counter(count) => count as f64,
            DebugValue::Gauge(value) => value.into_inner(),
            DebugValue::Histogram(values) => values.iter().map(|value| value.into_inner()).sum(),
        };
        counted.insert(format!("{}{labels}", key.key().name()), value);
    }
    counted
}

/// Refuses all batches.
struct Refuses;

#[async_trait]
impl Exporter<String, Option<i64>> for Refuses {
    async fn export(
        &self,
        _batch: &[SequencedExport<String, Option<i64>>],
    ) -> Result<(), BoxError> {
        Err("on purpose".into())
    }
}

/// Runs in a program of its own, since the recorder is global.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn batches_failures_and_backlogs_are_counted_even_without_a_worker() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    recorder.install().unwrap();

    let store = TestStore::memory();
    let settings = settings(1).lease(Duration::from_millis(60));
    let world = World::on(store.runner(), &store, settings).await;
    world.subscribe("unused", Start::Oldest).await;
    for value in 0..3 {
        world.add("key", value).await;
    }
    let worker = world
        .work(ExportOptions::default(), Receiver::default())
        .await;
    world.wait_idle().await;
    worker.shut_down(LONG).await.unwrap();
    let first = counted(&snapshotter);
    let of_reader = |name: &str| first[&format!("export_queue_{name} reader")];
    assert_eq!(of_reader("exported"), 3.0);
    assert_eq!(of_reader("batch_entries"), 3.0);
    assert!(of_reader("batch_bytes") > 0.0);
    assert!(of_reader("export_seconds") > 0.0);
    for none in ["repeats", "failures", "dead", "lost"] {
        assert_eq!(of_reader(none), 0.0, "{none}");
    }

    // Entries that no worker exports, and a subscription without a worker.
    let options = ExportOptions::new().worker(WorkerOptions::new().backoff(no_backoff()));
    let worker = world.work(options, Refuses).await;
    world.add("key", 3).await;
    let expected = [
        "export_queue_lag_seconds reader",
        "export_queue_lag_seconds unused",
        "export_queue_pending_entries reader 0",
        "export_queue_pending_bytes reader 0",
        "export_queue_failures reader",
        "export_queue_repeats reader",
    ];
    let mut missing: BTreeSet<_> = expected.into();
    while !missing.is_empty() {
        let seen = counted(&snapshotter);
        missing.retain(|name| seen.get(*name).is_none_or(|value| *value == 0.0));
        tokio::task::yield_now().await;
    }

    // A subscription that was removed does not hold the log back.
    let queue = &world.queue;
    let remove = |tr| async move { queue.unsubscribe(&tr, "unused").await };
    assert!(world.runner.run(remove).await.unwrap());
    while counted(&snapshotter).get("export_queue_lag_seconds unused") != Some(&0.0) {
        tokio::task::yield_now().await;
    }
    worker.shut_down(LONG).await.unwrap();
}

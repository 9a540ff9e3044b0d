//! The metrics of a worker.

use std::collections::{BTreeMap, BTreeSet};
use std::iter;
use std::time::Duration;

use crate::common::{LONG, Receiver, World, no_backoff, settings};
use conformance::stores::TestStore;
use conformance::until;
use export_queue::{BoxError, Exporter, SequencedExport, Start, WorkerOptions, async_trait};
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

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn batches_failures_and_backlogs_are_counted_even_without_a_worker() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    recorder.install().unwrap();

    let store = TestStore::memory();
    let settings = settings(1).with_lease(Duration::from_millis(60));
    let world = World::on(store.runner(), &store, settings).await;
    let counted = || counted(&snapshotter, &queue_name(world.queue.subspace()));
    world.subscribe("unused", Start::Oldest).await;
    for value in 0..3 {
        world.add("key", value).await;
    }
    let worker = world
        .work(WorkerOptions::default(), Receiver::default())
        .await;
    world.wait_idle().await;
    worker.shut_down(LONG).await.unwrap();
    let first = counted();
    let of_reader = |name: &str| first[&format!("export_queue_{name} reader")];
    assert_eq!(of_reader("exported"), 3.0);
    assert_eq!(of_reader("batch_entries"), 3.0);
    assert!(of_reader("batch_bytes") > 0.0);
    assert!(of_reader("export_seconds") > 0.0);
    for none in ["repeats", "failures", "dead", "lost"] {
        assert_eq!(of_reader(none), 0.0, "{none}");
    }

    // Entries that no worker exports, and a subscription without a worker.
    let options = WorkerOptions::new().with_backoff(no_backoff());
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
    until(async || {
        let seen = counted();
        missing.retain(|name| seen.get(*name).is_none_or(|value| *value == 0.0));
        missing.is_empty()
    })
    .await;

    // A pause has a gauge of its own.
    let unused = &world.subscribe("unused", export_queue::Start::Oldest).await;
    let pause = |tr: keyspace::Tx<_>| async move {
        unused.pause(&tr);
        Ok::<_, export_queue::Error>(())
    };
    world.runner.run(pause).await.unwrap();
    until(async || counted().get("export_queue_paused unused") == Some(&1.0)).await;
    assert_eq!(
        counted()
            .get("export_queue_paused reader")
            .copied()
            .unwrap_or_default(),
        0.0
    );

    // A subscription that was removed does not hold the log back.
    let queue = &world.queue;
    let remove = |tr| async move { queue.unsubscribe(&tr, "unused").await };
    assert!(world.runner.run(remove).await.unwrap());
    until(async || counted().get("export_queue_lag_seconds unused") == Some(&0.0)).await;
    worker.shut_down(LONG).await.unwrap();
}

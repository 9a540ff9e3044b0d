//! Exporters that panic or block: the batch is retried, and the worker goes on and can be shut down.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc as blocking};
use std::time::Duration;

use crate::common::{LONG, Receiver, World, no_backoff, settings};
use conformance::chaos::{Chaos, Faults};
use conformance::hostile::Place;
use conformance::stores::TestStore;
use conformance::timeout;
use export_queue::{
    BoxError, Error, ExportQueue, Exporter, NotEnded, SequencedExport, Start, WorkerOptions,
    async_trait,
};
use keyspace::{Environment, OpenOptions};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

conformance::on_every_store!(threads:
    an_exporter_that_panics_anywhere_is_called_again,
    an_entry_whose_error_panics_becomes_a_dead_letter,
    values_that_panic_when_they_are_dropped_are_exported_once,
    a_redrive_through_an_exporter_that_panics_leaves_the_letter,
    an_exporter_that_blocks_its_thread_is_left_behind_and_its_bucket_goes_on,
    a_store_that_does_not_answer_fails_the_shutdown,
);

type Batch = [SequencedExport<String, Option<i64>>];

/// Panics at each place once, and then exports.
struct Panics {
    calls: Arc<AtomicUsize>,
    receiver: Receiver,
}

#[async_trait]
impl Exporter<String, Option<i64>> for Panics {
    async fn export(&self, batch: &Batch) -> Result<(), BoxError> {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        if let Some(place) = Place::ALL.get(call) {
            place.call().await?;
        }
        self.receiver.receive(batch);
        Ok(())
    }
}

fn quick() -> WorkerOptions {
    let limit = Duration::from_millis(100);
    WorkerOptions::new()
        .with_backoff(no_backoff())
        .with_time_limit(limit)
}

async fn an_exporter_that_panics_anywhere_is_called_again(store: TestStore) {
    let world = World::new(&store, 1).await;
    let receiver = Receiver::default();
    let calls = Arc::new(AtomicUsize::new(0));
    let exporter = Panics {
        calls: calls.clone(),
        receiver: receiver.clone(),
    };
    world.add("key", 7).await;
    let worker = world.work(quick(), exporter).await;
    world.wait_idle().await;
    let report = worker.shut_down(LONG).await.unwrap();
    assert_eq!((report.restarted, receiver.values()["key"]), (0, 7));
    assert_eq!(calls.load(Ordering::Relaxed), Place::ALL.len() + 1);
    world.assert_nothing_left().await;
}

/// Fails for each key in the way of its place.
struct Refuses;

#[async_trait]
impl Exporter<String, Option<i64>> for Refuses {
    async fn export(&self, batch: &Batch) -> Result<(), BoxError> {
        for entry in batch {
            let mut places = Place::ALL.iter();
            if let Some(place) = places.find(|place| format!("{place:?}") == entry.key) {
                place.call().await?;
            }
        }
        Ok(())
    }
}

async fn an_entry_whose_error_panics_becomes_a_dead_letter(store: TestStore) {
    let world = World::new(&store, 1).await;
    let expected = [
        (
            "Display",
            "an error that panicked while it was formatted: no words",
        ),
        ("Source", "hostile"),
        ("Error", "hostile"),
        ("Payload", "the exporter panicked: without a message"),
        ("Guard", "the exporter panicked: no drop"),
    ];
    for (key, _) in expected {
        world.add(key, 7).await;
        world.add("fine", 7).await;
    }
    let options = quick().with_dead_letter_after(2);
    let worker = world.work(options, Refuses).await;
    world.wait_idle().await;
    worker.shut_down(LONG).await.unwrap();
    let letters = world.letters().await;
    let reasons = letters
        .iter()
        .map(|letter| &*letter.value.as_ref().unwrap().reason);
    let expected = expected.map(|(_, reason)| reason);
    assert_eq!(reasons.collect::<Vec<_>>(), expected);
}

/// A number that panics when it is dropped if it is 7. Its bytes are those of the number.
#[derive(Debug, Serialize, Deserialize)]
struct Touchy(i64);

impl Drop for Touchy {
    fn drop(&mut self) {
        assert_ne!(self.0, 7, "no drop of the value");
    }
}

/// Counts its calls.
struct Counts(Arc<AtomicUsize>);

#[async_trait]
impl Exporter<String, Touchy> for Counts {
    async fn export(&self, _: &[SequencedExport<String, Touchy>]) -> Result<(), BoxError> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

async fn values_that_panic_when_they_are_dropped_are_exported_once(store: TestStore) {
    let world = World::new(&store, 1).await;
    let entries = [6, 7, 8].map(|value| ("a".to_owned(), Some(value)));
    world.add_all(entries.into()).await;
    let subspace = world.queue.subspace().clone();
    let queue = ExportQueue::<String, Touchy>::open_with(
        &world.runner,
        subspace,
        settings(1),
        OpenOptions::default(),
    )
    .await;
    let reader = queue
        .unwrap()
        .subscribe(&world.runner, "reader", Start::Oldest)
        .await;
    let calls = Arc::new(AtomicUsize::new(0));
    let worker = reader
        .unwrap()
        .work(&world.runner, quick(), Counts(calls.clone()))
        .await;
    world.wait_idle().await;
    worker.unwrap().shut_down(LONG).await.unwrap();
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    world.assert_nothing_left().await;
}

async fn a_redrive_through_an_exporter_that_panics_leaves_the_letter(store: TestStore) {
    let world = World::new(&store, 1).await;
    world.add("Display", 7).await;
    let options = quick().with_dead_letter_after(1);
    let worker = world.work(options, Refuses).await;
    world.wait_idle().await;
    worker.shut_down(LONG).await.unwrap();
    let letter = world.letters().await.remove(0).id;
    let panics = Panics {
        calls: Arc::default(),
        receiver: Receiver::default(),
    };
    let refused = world
        .reader
        .redrive(&world.runner, &panics, &letter)
        .await
        .unwrap_err();
    assert!(
        matches!(refused, Error::ExporterPanicked { .. }),
        "{refused}"
    );
    assert_eq!(world.letters().await.len(), 1);
}

/// Blocks its thread in its first call until the other end of the channel is dropped.
struct Blocks {
    begun: mpsc::UnboundedSender<()>,
    release: Mutex<Option<blocking::Receiver<()>>>,
}

#[async_trait]
impl Exporter<String, Option<i64>> for Blocks {
    async fn export(&self, _: &Batch) -> Result<(), BoxError> {
        self.begun.send(())?;
        let release = self.release.lock().unwrap().take();
        if let Some(release) = release {
            // It fails when the test has ended.
            let _ = release.recv();
        }
        Ok(())
    }
}

async fn an_exporter_that_blocks_its_thread_is_left_behind_and_its_bucket_goes_on(
    store: TestStore,
) {
    let store = store.fresh();
    let world = World::on(store.runner(), &store, settings(1)).await;
    world.add("key", 7).await;
    let (begun, mut begins) = mpsc::unbounded_channel();
    let (release, released) = blocking::channel();
    let blocks = Blocks {
        begun,
        release: Mutex::new(Some(released)),
    };
    let worker = world.work(WorkerOptions::new(), blocks).await;
    assert_eq!(timeout(LONG, begins.recv()).await, Some(()));
    let ended = timeout(LONG, worker.shut_down(Duration::ZERO)).await;
    let report = ended.unwrap();
    assert_eq!((report.dropped, report.running), (0, 1));
    let receiver = Receiver::default();
    let next = world.work(WorkerOptions::new(), receiver.clone()).await;
    world.wait_idle().await;
    drop(release);
    next.shut_down(LONG).await.unwrap();
    assert_eq!(receiver.values()["key"], 7);
    world.assert_nothing_left().await;
}

async fn a_store_that_does_not_answer_fails_the_shutdown(store: TestStore) {
    let store = store.fresh();
    let db = store.db.clone();
    let chaos = Chaos::new(db, Environment::system(), Faults::default());
    let world = World::on(store.fast_runner(chaos.clone()), &store, settings(1)).await;
    let worker = world.work(quick(), Receiver::default()).await;
    chaos.stop();
    match timeout(LONG, worker.shut_down(Duration::ZERO)).await {
        Err(Error::NotEnded(NotEnded { .. })) => {}
        other => panic!("{other:?}"),
    }
    chaos.go_on();
}

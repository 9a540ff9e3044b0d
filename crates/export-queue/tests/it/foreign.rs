//! Exporters that panic or block: the batch is retried, and the worker goes on and can be shut down.

use std::fmt;
use std::future::pending;
use std::panic::panic_any;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc as blocking};
use std::time::Duration;

use crate::common::{LONG, Receiver, World, no_backoff, settings};
use conformance::stores::TestStore;
use conformance::timeout;
use export_queue::{
    BoxError, Error, ExportOptions, Exporter, NotEnded, SequencedExport, WorkerOptions, async_trait,
};
use keyspace::Environment;
use keyspace::chaos::{Chaos, Faults};
use tokio::sync::mpsc;

conformance::on_every_store!(threads:
    an_exporter_that_panics_anywhere_is_called_again,
    an_entry_whose_error_panics_becomes_a_dead_letter,
    an_exporter_that_blocks_its_thread_is_left_behind_and_its_bucket_goes_on,
    a_store_that_does_not_answer_fails_the_shutdown,
);

type Batch = [SequencedExport<String, Option<i64>>];

/// Panics when it is dropped.
#[derive(Debug)]
struct Bomb(());

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("no drop");
    }
}

/// The ways in which an exporter may panic, in the order of its calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Poll,
    Guard,
    Payload,
    TimeLimit,
    Display,
    Source,
    Error,
}

const PLACES: [Place; 7] = [
    Place::Poll,
    Place::Guard,
    Place::Payload,
    Place::TimeLimit,
    Place::Display,
    Place::Source,
    Place::Error,
];

/// An error that panics when it is used.
#[derive(Debug)]
struct Hostile(
    Place,
    #[allow(dead_code, reason = "held for its drop")] Option<Bomb>,
);

impl fmt::Display for Hostile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Place::Display => panic!("no words"),
            _ => f.write_str("hostile"),
        }
    }
}

impl std::error::Error for Hostile {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self.0 {
            Place::Source => panic!("no source"),
            _ => None,
        }
    }
}

async fn export(place: Place) -> Result<(), BoxError> {
    match place {
        Place::Poll => panic!("no poll"),
        Place::Guard => {
            let _guard = Bomb(());
            Ok(())
        }
        Place::Payload => panic_any(Bomb(())),
        Place::TimeLimit => {
            let _guard = Bomb(());
            pending().await
        }
        Place::Error => Err(Hostile(place, Some(Bomb(()))).into()),
        Place::Display | Place::Source => Err(Hostile(place, None).into()),
    }
}

/// Panics at each place once, and then exports.
struct Panics {
    calls: Arc<AtomicUsize>,
    receiver: Receiver,
}

#[async_trait]
impl Exporter<String, Option<i64>> for Panics {
    async fn export(&self, batch: &Batch) -> Result<(), BoxError> {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        if let Some(place) = PLACES.get(call) {
            export(*place).await?;
        }
        self.receiver.receive(batch);
        Ok(())
    }
}

fn quick() -> ExportOptions {
    let limit = Duration::from_millis(100);
    ExportOptions::new().worker(WorkerOptions::new().backoff(no_backoff()).time_limit(limit))
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
    assert_eq!(calls.load(Ordering::Relaxed), PLACES.len() + 1);
    world.assert_nothing_left().await;
}

/// Fails for each key in the way of its place.
struct Refuses;

#[async_trait]
impl Exporter<String, Option<i64>> for Refuses {
    async fn export(&self, batch: &Batch) -> Result<(), BoxError> {
        for entry in batch {
            let place = PLACES
                .iter()
                .find(|place| format!("{place:?}") == entry.key);
            if let Some(place) = place {
                export(*place).await?;
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
    let options = quick().dead_letter_after(2);
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
    let world = World::on(store.fast_runner(store.db.clone()), &store, settings(1)).await;
    world.add("key", 7).await;
    let (begun, mut begins) = mpsc::unbounded_channel();
    let (release, released) = blocking::channel();
    let blocks = Blocks {
        begun,
        release: Mutex::new(Some(released)),
    };
    let worker = world.work(ExportOptions::new(), blocks).await;
    assert_eq!(timeout(LONG, begins.recv()).await, Some(()));
    let ended = timeout(LONG, worker.shut_down(Duration::ZERO)).await;
    let report = ended.unwrap();
    assert_eq!((report.dropped, report.running), (0, 1));
    let receiver = Receiver::default();
    let next = world.work(ExportOptions::new(), receiver.clone()).await;
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

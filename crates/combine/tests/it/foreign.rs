//! Code of the application that panics or blocks: the bucket is retried, and the worker goes on and can be shut down.

use std::mem::ManuallyDrop;
use std::panic::panic_any;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc as blocking};
use std::time::Duration;

use crate::common::{LONG, World, set_aside};
use async_trait::async_trait;
use combine::bucket_worker::{
    Assignment, BucketWorker, BucketWorkerOptions, Job, Next, WorkerHandle, WorkerTransaction,
};
use combine::hc_dequeue::Backoff;
use combine::hc_dequeue::session::Sessions;
use combine::{
    BoxError, Bucket, Change, ChangeObserver, Combiner, Error, NotEnded, ShutdownReport, Sum,
    Unobserved, WorkerOptions,
};
use conformance::chaos::{Chaos, Faults};
use conformance::hostile::{Bomb, Place};
use conformance::stores::TestStore;
use conformance::{timeout, until};
use keyspace::{Bytes, Environment, Transaction};
use serde::{Deserialize, Deserializer, Serialize};
use tokio::sync::mpsc;

conformance::on_every_store!(threads:
    an_observer_that_panics_anywhere_is_called_again,
    values_that_panic_when_they_are_dropped_keep_nothing_from_being_combined,
    an_observer_that_panics_when_it_is_dropped_lets_its_worker_end,
    an_update_whose_decoding_panics_is_set_aside,
    a_combiner_that_panics_with_any_payload_keeps_its_own_updates_only,
    an_observer_that_blocks_its_thread_is_left_behind_and_its_bucket_goes_on,
    a_store_that_does_not_answer_fails_the_shutdown,
    a_worker_that_a_fault_of_the_library_ends_starts_again_and_is_reported,
);

/// How many calls of [`Panics`] panic: the first one before it has a future, and then one at each place.
const PANICS: usize = 1 + Place::ALL.len();

/// Panics at each place once, and then observes.
#[derive(Clone, Default)]
struct Panics(Arc<AtomicUsize>);

impl ChangeObserver<String, i64> for Panics {
    fn observe<T: Transaction>(
        &self,
        _tr: &T,
        _changes: &[Change<String, i64>],
    ) -> impl Future<Output = Result<(), BoxError>> + Send {
        let call = self.0.fetch_add(1, Ordering::Relaxed);
        assert!(call > 0, "no call");
        let place = Place::ALL.get(call - 1).copied();
        async move {
            match place {
                Some(place) => place.call().await,
                None => Ok(()),
            }
        }
    }
}

fn quick() -> WorkerOptions {
    let soon = Duration::from_millis(1);
    let options = WorkerOptions::new().with_backoff(Backoff::new(soon, soon));
    options.with_time_limit(Duration::from_millis(100))
}

async fn an_observer_that_panics_anywhere_is_called_again(store: TestStore) {
    let world = World::sums(&store, 1).await;
    let observer = Panics::default();
    let worker = world.work_with(quick(), observer.clone()).await;
    for round in 1..=2 {
        world.add("a", 1).await;
        world.wait_idle().await;
        assert_eq!(world.settled("a").await, Some(round));
    }
    let report = worker.shut_down(LONG).await.unwrap();
    assert_eq!(report.restarted, 0);
    assert_eq!(observer.0.load(Ordering::Relaxed), PANICS + 2);
    world.assert_nothing_left().await;
}

/// A number that panics when it is dropped if it is 7. Two such drops at the same time would end the process.
#[derive(Debug, Serialize, Deserialize)]
struct Touchy(i64);

impl Drop for Touchy {
    fn drop(&mut self) {
        assert_ne!(self.0, 7, "no drop of the value");
    }
}

async fn values_that_panic_when_they_are_dropped_keep_nothing_from_being_combined(
    store: TestStore,
) {
    let last = |_: &String, old: Option<Touchy>, mut updates: Vec<i64>| {
        let _old = old.map(ManuallyDrop::new);
        updates.pop().map(Touchy)
    };
    let world = World::new(&store, 1, last).await;
    let worker = world.work_with(quick(), Unobserved).await;
    for value in [7, 8, 7] {
        world.add("a", value).await;
        world.wait_idle().await;
        // The test must not drop it.
        let settled = world.settled("a").await.map(ManuallyDrop::new);
        assert_eq!(settled.map(|settled| settled.0), Some(value));
    }
    let report = worker.shut_down(LONG).await.unwrap();
    assert_eq!(report.restarted, 0);
}

/// An observer that panics when it is dropped.
struct Last(#[allow(dead_code, reason = "held for its drop")] Bomb);

impl ChangeObserver<String, i64> for Last {
    async fn observe<T: Transaction>(
        &self,
        _tr: &T,
        _changes: &[Change<String, i64>],
    ) -> Result<(), BoxError> {
        Ok(())
    }
}

async fn an_observer_that_panics_when_it_is_dropped_lets_its_worker_end(store: TestStore) {
    let world = World::sums(&store, 1).await;
    let worker = world.work_with(quick(), Last(Bomb)).await;
    world.add("a", 1).await;
    world.wait_idle().await;
    let report = worker.shut_down(LONG).await.unwrap();
    assert_eq!(report, ShutdownReport::default());
    world.assert_nothing_left().await;
}

/// A number whose decoding panics if it is 13.
#[derive(Debug, Serialize)]
struct Superstitious(i64);

impl<'de> Deserialize<'de> for Superstitious {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = i64::deserialize(deserializer)?;
        assert_ne!(number, 13, "no luck");
        Ok(Self(number))
    }
}

async fn an_update_whose_decoding_panics_is_set_aside(store: TestStore) {
    let sum = |_: &String, sum: Option<i64>, updates: Vec<Superstitious>| {
        let added: i64 = updates.iter().map(|update| update.0).sum();
        Some(sum.unwrap_or_default() + added)
    };
    let world = World::new(&store, 1, sum).await;
    let updates = [1, 13, 2].map(|number| ("a".to_owned(), Superstitious(number)));
    world.add_all(updates.into()).await;
    let worker = world.work_with(quick(), Unobserved).await;
    world.wait_idle().await;
    worker.shut_down(LONG).await.unwrap();
    assert_eq!(world.settled("a").await, Some(3));
    let queue = &world.queue;
    let read = |tr| async move { queue.set_aside(&tr, None, usize::MAX).await };
    let aside = world.runner.run(read).await.unwrap();
    let [aside] = &aside[..] else {
        panic!("{aside:?}");
    };
    let reason = &aside.value.as_ref().unwrap().reason;
    assert!(reason.contains("the codec panicked: "), "{reason}");
    assert!(reason.contains("no luck"), "{reason}");
}

async fn a_combiner_that_panics_with_any_payload_keeps_its_own_updates_only(store: TestStore) {
    let combiner = |key: &String, sum: Option<i64>, updates: Vec<i64>| -> Option<i64> {
        let _guard = if key == "guard" { Some(Bomb) } else { None };
        if key == "payload" {
            panic_any(Bomb);
        }
        Sum.fold(key, sum, updates)
    };
    let world = World::new(&store, 1, combiner).await;
    let updates = ["a", "guard", "payload", "z"].map(|key| (key.to_owned(), 1));
    world.add_all(updates.into()).await;
    let worker = world.work_with(quick(), Unobserved).await;
    world.wait_idle().await;
    worker.shut_down(LONG).await.unwrap();
    let settled = [world.settled("a").await, world.settled("z").await];
    assert_eq!(settled, [Some(1), Some(1)]);
    let aside = set_aside(&world).await;
    let mut reasons: Vec<_> = aside
        .iter()
        .map(|aside| &*aside.value.as_ref().unwrap().reason)
        .collect();
    reasons.sort_unstable();
    let expected = [
        "the combiner panicked: no drop",
        "the combiner panicked: without a message",
    ];
    assert_eq!(reasons, expected);
}

/// Blocks its thread at each call until the other end of the channel is dropped.
struct Blocks {
    begun: mpsc::UnboundedSender<()>,
    release: Mutex<Option<blocking::Receiver<()>>>,
}

impl ChangeObserver<String, i64> for Blocks {
    async fn observe<T: Transaction>(
        &self,
        _tr: &T,
        _changes: &[Change<String, i64>],
    ) -> Result<(), BoxError> {
        self.begun.send(())?;
        let release = self.release.lock().unwrap().take();
        if let Some(release) = release {
            // It fails when the test has ended.
            let _ = release.recv();
        }
        Ok(())
    }
}

async fn an_observer_that_blocks_its_thread_is_left_behind_and_its_bucket_goes_on(
    store: TestStore,
) {
    let store = store.fresh();
    let world = World::on(store.runner(), &store, 1, Sum).await;
    world.add("a", 1).await;
    let (begun, mut begins) = mpsc::unbounded_channel();
    let (release, released) = blocking::channel();
    let observer = Blocks {
        begun,
        release: Mutex::new(Some(released)),
    };
    let options = WorkerOptions::new();
    let worker = world.queue.work(&world.runner, options, observer).await;
    assert_eq!(timeout(LONG, begins.recv()).await, Some(()));
    let ended = timeout(LONG, worker.unwrap().shut_down(Duration::ZERO)).await;
    let report = ended.unwrap();
    assert_eq!((report.dropped, report.running), (0, 1));
    let next = world.work_with(quick(), Unobserved).await;
    world.wait_idle().await;
    drop(release);
    next.shut_down(LONG).await.unwrap();
    assert_eq!(world.settled("a").await, Some(1));
    world.assert_nothing_left().await;
}

async fn a_store_that_does_not_answer_fails_the_shutdown(store: TestStore) {
    let store = store.fresh();
    let chaos = Chaos::new(store.db.clone(), Environment::system(), Faults::default());
    let world: World<i64, i64, _> =
        World::on(store.fast_runner(chaos.clone()), &store, 1, Sum).await;
    let worker = world.work_with(quick(), Unobserved).await;
    chaos.stop();
    let ended = timeout(LONG, worker.shut_down(Duration::ZERO)).await;
    match ended {
        Err(Error::NotEnded(NotEnded { .. })) => {}
        other => panic!("{other:?}"),
    }
    chaos.go_on();
}

/// A job without work, whose first read panics.
#[derive(Default)]
struct Faulty {
    reads: AtomicUsize,
    restarts: AtomicUsize,
}

#[async_trait]
impl Job for Faulty {
    type Error = Error;
    type State = ();

    async fn pending(&self, _: &WorkerTransaction) -> combine::Result<Vec<Bucket>> {
        let read = self.reads.fetch_add(1, Ordering::Relaxed);
        assert_ne!(read, 0, "a planted bug");
        Ok(Vec::new())
    }

    async fn marks(&self, _: &WorkerTransaction, _: &[Bucket]) -> combine::Result<Vec<Bytes>> {
        Ok(Vec::new())
    }

    async fn step(&self, _: Assignment, (): ()) -> ((), Next) {
        ((), Next::Done)
    }

    fn restarts(&self) {
        self.restarts.fetch_add(1, Ordering::Relaxed);
    }

    async fn report(&self, _: Vec<Bucket>) -> combine::Result<()> {
        Ok(())
    }
}

async fn a_worker_that_a_fault_of_the_library_ends_starts_again_and_is_reported(store: TestStore) {
    let store = store.fresh();
    let runner = store.runner();
    let sessions = Sessions::new(store.root.subspace(&"job"));
    let wake = store.root.pack(&"w");
    let often = WorkerOptions::new().with_poll_interval(Duration::from_millis(1));
    let options = BucketWorkerOptions::new(sessions, Duration::from_secs(10), wake, &often);
    let job = Arc::new(Faulty::default());
    let opened = BucketWorker::open(job.clone(), runner.on_store(), options)
        .await
        .unwrap();
    let worker = WorkerHandle::spawn(opened, tracing::Span::none());
    until(async || job.reads.load(Ordering::Relaxed) >= 3).await;
    let report = worker.shut_down(LONG).await.unwrap();
    let restarts = job.restarts.load(Ordering::Relaxed);
    assert_eq!((report.restarted, restarts), (1, 1));
}

//! The test kit for applications.

use std::sync::Mutex;

use conformance::stores::TestStore;
use export_queue::testing::{Drained, drain, drain_with};
use export_queue::{
    Backoff, BoxError, Error, Exporter, Sequence, SequencedExport, Start, WorkerOptions,
    async_trait,
};
use keyspace::{Store, Tx};

use crate::common::{LONG, Receiver, World};

conformance::on_every_store!(
    a_drain_exports_all_entries,
    a_drain_exports_what_is_added_meanwhile,
    a_drain_exports_batches_as_its_options_say,
    a_drain_returns_the_error_of_its_exporter_and_exports_the_batch_again,
    entries_that_fail_become_dead_letters_at_once,
    a_drain_exports_nothing_of_a_paused_subscription,
    a_removed_subscription_is_an_error,
    a_drain_leaves_a_bucket_to_the_worker_that_has_its_claim,
    a_drain_whose_session_is_lost_is_an_error,
);

fn exported(exported: u64) -> Drained {
    let mut drained = Drained::default();
    drained.exported = exported;
    drained
}

async fn a_drain_exports_all_entries(store: TestStore) {
    let world = World::new(&store, 8).await;
    for value in 0..30 {
        world.add(&(value % 20).to_string(), value).await;
    }
    let receiver = Receiver::default();
    let drained = drain(&world.runner, &world.reader, receiver.clone()).await;
    assert_eq!(drained.unwrap(), exported(30));
    assert_eq!(receiver.values().len(), 20);
    assert_eq!(receiver.values()["9"], 29);
    // There is no session or claim that others would have to remove.
    world.assert_nothing_left().await;
    let drained = drain(&world.runner, &world.reader, receiver).await;
    assert_eq!(drained.unwrap(), exported(0));
    // Other subscriptions have their own positions.
    let other = world.subscribe("other", Start::Now).await;
    world.add("a", 1).await;
    let receiver = Receiver::default();
    let drained = drain(&world.runner, &other, receiver.clone()).await;
    assert_eq!(drained.unwrap(), exported(1));
    assert_eq!(world.logged().await, 1);
}

/// Adds another entry after each one, up to the tenth.
struct AddsMore(World);

#[async_trait]
impl Exporter<String, Option<i64>> for AddsMore {
    async fn export(&self, batch: &[SequencedExport<String, Option<i64>>]) -> Result<(), BoxError> {
        for entry in batch {
            let next = entry.value.unwrap_or_default() + 1;
            if next < 10 {
                self.0.add(&next.to_string(), next).await;
            }
        }
        Ok(())
    }
}

async fn a_drain_exports_what_is_added_meanwhile(store: TestStore) {
    let world = World::new(&store, 4).await;
    world.add("0", 0).await;
    let runner = world.runner.clone();
    let reader = world.reader.clone();
    let drained = drain(&runner, &reader, AddsMore(world)).await;
    assert_eq!(drained.unwrap(), exported(10));
}

async fn a_drain_exports_batches_as_its_options_say(store: TestStore) {
    let world = World::new(&store, 1).await;
    let entries = (0..9).map(|value| ("a".to_owned(), Some(value)));
    world.add_all(entries.collect()).await;
    let receiver = Receiver::default();
    let options = WorkerOptions::new().with_coalesce(true);
    let drained = drain_with(&world.runner, &world.reader, options, receiver.clone()).await;
    assert_eq!(drained.unwrap(), exported(9));
    assert_eq!(receiver.all().len(), 1);
    let entries = (0..9).map(|value| ("a".to_owned(), Some(value)));
    world.add_all(entries.collect()).await;
    let receiver = Receiver::default();
    let options = WorkerOptions::new().with_max_batch_bytes(1);
    let drained = drain_with(&world.runner, &world.reader, options, receiver.clone()).await;
    assert_eq!(drained.unwrap(), exported(9));
    assert_eq!(receiver.calls().len(), 9);
}

/// Refuses batches with some values, and counts its calls.
#[derive(Default)]
struct Refuses {
    receiver: Receiver,
    values: Vec<i64>,
    calls: Mutex<u64>,
}

#[async_trait]
impl Exporter<String, Option<i64>> for Refuses {
    async fn export(&self, batch: &[SequencedExport<String, Option<i64>>]) -> Result<(), BoxError> {
        *self.calls.lock().unwrap() += 1;
        for entry in batch {
            match entry.value {
                Some(value) if self.values.contains(&value) && value < 0 => panic!("no luck"),
                Some(value) if self.values.contains(&value) => return Err("no disk".into()),
                _ => {}
            }
        }
        self.receiver.receive(batch);
        Ok(())
    }
}

async fn a_drain_returns_the_error_of_its_exporter_and_exports_the_batch_again(store: TestStore) {
    let world = World::new(&store, 1).await;
    world.add("a", 7).await;
    let refuses = |values| Refuses {
        values,
        ..Refuses::default()
    };
    let refused = drain(&world.runner, &world.reader, refuses(vec![7])).await;
    assert!(matches!(refused, Err(Error::Exporter(_))), "{refused:?}");
    world.add("a", -7).await;
    let refused = drain(&world.runner, &world.reader, refuses(vec![-7])).await;
    let panicked = matches!(refused, Err(Error::ExporterPanicked { .. }));
    assert!(panicked, "{refused:?}");
    // The sessions of these drains have ended, so their claims are void.
    assert_eq!(world.rows("s").await, []);
    let drained = drain(&world.runner, &world.reader, Receiver::default()).await;
    assert_eq!(drained.unwrap(), exported(2));
    world.assert_nothing_left().await;
}

async fn entries_that_fail_become_dead_letters_at_once(store: TestStore) {
    let world = World::new(&store, 1).await;
    let entries = (0..40).map(|value| (value.to_string(), Some(value)));
    world.add_all(entries.collect()).await;
    let receiver = Receiver::default();
    let exporter = Refuses {
        receiver: receiver.clone(),
        values: vec![0, 17, 18, 39],
        ..Refuses::default()
    };
    let options = WorkerOptions::new()
        .with_dead_letter_after(3)
        // A drain does not wait.
        .with_backoff(Backoff::new(LONG, LONG));
    let drained = drain_with(&world.runner, &world.reader, options, exporter).await;
    let drained = drained.unwrap();
    assert_eq!((drained.exported, drained.dead), (36, 4));
    assert_eq!(receiver.values().len(), 36);
    let letters = world.letters().await;
    let sequences: Vec<Sequence> = letters.iter().map(|letter| letter.id).collect();
    assert_eq!(sequences.len(), 4);
    assert!(letters.iter().all(|letter| {
        let letter = letter.value.as_ref().unwrap();
        letter.failures == 3
    }));
}

async fn a_drain_exports_nothing_of_a_paused_subscription(store: TestStore) {
    let world = World::new(&store, 1).await;
    world.add("a", 7).await;
    let reader = &world.reader;
    let pause = |tr: Tx<_>| async move {
        reader.pause(&tr);
        Ok::<_, Error>(())
    };
    world.runner.run(pause).await.unwrap();
    let drained = drain(&world.runner, reader, Receiver::default()).await;
    assert_eq!(drained.unwrap(), exported(0));
    let resume = |tr: Tx<_>| async move {
        reader.resume(&tr);
        Ok::<_, Error>(())
    };
    world.runner.run(resume).await.unwrap();
    let drained = drain(&world.runner, reader, Receiver::default()).await;
    assert_eq!(drained.unwrap(), exported(1));
}

async fn a_removed_subscription_is_an_error(store: TestStore) {
    let world = World::new(&store, 1).await;
    let queue = &world.queue;
    let unsubscribe = |tr| async move { queue.unsubscribe(&tr, "reader").await };
    assert!(world.runner.run(unsubscribe).await.unwrap());
    let refused = drain(&world.runner, &world.reader, Receiver::default()).await;
    let is_removed = matches!(refused, Err(Error::NoSubscription { .. }));
    assert!(is_removed, "{refused:?}");
}

/// Drains the subscription during a call.
struct Drains(World);

#[async_trait]
impl Exporter<String, Option<i64>> for Drains {
    async fn export(
        &self,
        _batch: &[SequencedExport<String, Option<i64>>],
    ) -> Result<(), BoxError> {
        let world = &self.0;
        let drained = drain(&world.runner, &world.reader, Receiver::default()).await?;
        assert_eq!(drained, exported(0));
        Ok(())
    }
}

async fn a_drain_leaves_a_bucket_to_the_worker_that_has_its_claim(store: TestStore) {
    let world = World::new(&store, 1).await;
    world.add("a", 7).await;
    let runner = world.runner.clone();
    let reader = world.reader.clone();
    let outer = drain(&runner, &reader, Drains(world));
    let drained = conformance::timeout(LONG, outer).await;
    assert_eq!(drained.unwrap(), exported(1));
}

/// Removes the drain's session during a call, as a worker does after it was silent for its lease.
struct RemovesSession(World);

#[async_trait]
impl Exporter<String, Option<i64>> for RemovesSession {
    async fn export(
        &self,
        _batch: &[SequencedExport<String, Option<i64>>],
    ) -> Result<(), BoxError> {
        let sessions = &self.0.reader.sessions();
        let remove = |tr: Tx<_>| async move {
            for (session, _) in sessions.all(&tr).await? {
                sessions.remove(&tr, session);
            }
            Ok::<_, keyspace::Error>(())
        };
        Ok(self.0.runner.run(remove).await?)
    }
}

async fn a_drain_whose_session_is_lost_is_an_error(store: TestStore) {
    let world = World::new(&store, 1).await;
    world.add("a", 7).await;
    let runner = world.runner.clone();
    let reader = world.reader.clone();
    let lost = drain(&runner, &reader, RemovesSession(world)).await;
    assert!(matches!(lost, Err(Error::SessionLost { .. })), "{lost:?}");
    let drained = drain(&runner, &reader, Receiver::default()).await;
    assert_eq!(drained.unwrap(), exported(1));
}

/// Fails, and lets the end of the session fail, too.
struct ClosesStore(Store);

#[async_trait]
impl Exporter<String, Option<i64>> for ClosesStore {
    async fn export(
        &self,
        _batch: &[SequencedExport<String, Option<i64>>],
    ) -> Result<(), BoxError> {
        self.0.close()?;
        Err("no disk".into())
    }
}

#[tokio::test]
async fn a_drain_returns_the_error_of_its_exporter_even_if_its_session_does_not_end() {
    let store = TestStore::memory();
    let world = World::new(&store, 1).await;
    world.add("a", 7).await;
    let exporter = ClosesStore(world.runner.database().clone());
    let refused = drain(&world.runner, &world.reader, exporter).await;
    assert!(matches!(refused, Err(Error::Exporter(_))), "{refused:?}");
}

#[test]
fn futures_are_send() {
    fn assert_send<F: Send>(_: impl Fn(World) -> F) {}
    assert_send(|world| async move {
        drain(&world.runner, &world.reader, Receiver::default()).await?;
        let options = WorkerOptions::new();
        drain_with(&world.runner, &world.reader, options, Receiver::default()).await
    });
}

//! Settings that change while the queue is in use.

use std::time::Duration;

use crate::common::{LONG, Queue, World, open, settings};
use conformance::stores::TestStore;
use conformance::{until, with_warnings};
use hc_dequeue::session::Sessions;
use hc_dequeue::{Error, Place, Settings};
use keyspace::{Isolation, OpenOptions, Transaction};

conformance::on_every_store!(
    an_opening_keeps_the_settings_that_are_there,
    an_opening_registers_the_queue,
    settings_that_no_session_can_follow_are_refused,
    sessions_follow_and_say_so,
    a_session_whose_settings_cannot_be_read_goes_on_with_those_that_it_knows,
    a_session_adopts_settings_while_the_first_item_does_not_decode,
    a_session_is_judged_by_the_lease_that_it_has_promised,
);

impl World {
    async fn configure(&self, settings: &Settings) -> hc_dequeue::Result<()> {
        let queue = &self.queue;
        let configure = |tr| async move { queue.configure(&tr, settings).await };
        self.runner.run(configure).await
    }

    async fn stored(&self) -> Settings {
        let queue = &self.queue;
        let settings = |tr| async move { queue.settings(&tr).await };
        self.runner.run(settings).await.unwrap()
    }

    /// Returns the leases of all sessions.
    async fn leases(&self) -> Vec<Duration> {
        let sessions = &Sessions::new(self.queue.subspace().clone());
        let read = |tr| async move { sessions.all(&tr).await };
        let all = self.runner.run(read).await.unwrap();
        all.into_iter()
            .map(|(_, state)| state.unwrap().lease)
            .collect()
    }

    async fn until_promised(&self, lease: Duration) {
        until(async || self.leases().await.into_iter().all(|other| other == lease)).await;
    }
}

async fn an_opening_keeps_the_settings_that_are_there(store: TestStore) {
    let world = World::new(&store, settings()).await;
    let other = Settings::new()
        .with_lease(LONG)
        .with_max_attempts(1)
        .with_keep_done(LONG);
    for (given, expected_warnings) in [(settings(), 0), (other.clone(), 1)] {
        let open = open(&world.store, &world.runner, given);
        let (opened, warnings) = with_warnings(open).await;
        opened.unwrap();
        assert_eq!(warnings.len(), expected_warnings, "{warnings:?}");
    }
    let open = Queue::open(&world.runner, world.queue.subspace().clone());
    let (opened, warnings) = with_warnings(open).await;
    opened.unwrap();
    assert_eq!(warnings, [""; 0]);
    assert_eq!(world.stored().await, settings());
    world.configure(&other).await.unwrap();
    assert_eq!(world.stored().await, other);
    // A session of a handle that was opened with the previous settings.
    let _consumer = world.consumer().await;
    world.until_promised(LONG).await;
}

async fn an_opening_registers_the_queue(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let subspace = world.queue.subspace();
    let find = |tr| async move {
        // Search after a prefix that sorts right before the one of the queue.
        let before =
            keyspace::Subspace::from_bytes(&subspace.bytes()[..subspace.bytes().len() - 1]);
        keyspace::Ids::default()
            .recipes(&tr, Some(&before), 1)
            .await
    };
    let found = world.runner.run(find).await.unwrap();
    let found = found[0].value.as_ref().unwrap();
    assert_eq!((&found.subspace, &*found.name), (subspace, "hc-dequeue"));
    assert_eq!(found.codecs, ["MessagePack"]);
    let nested = subspace.subspace(&"nested");
    let refused = hc_dequeue::Queue::<u64>::open_with(
        &world.runner,
        nested,
        settings(),
        OpenOptions::default(),
    );
    let refused = refused.await.unwrap_err();
    assert!(matches!(
        refused,
        Error::Keyspace(keyspace::Error::Overlap { .. })
    ));
}

async fn settings_that_no_session_can_follow_are_refused(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let short = Settings::new().with_lease(Duration::from_millis(29));
    let refused = world.configure(&short).await.unwrap_err();
    assert!(matches!(refused, Error::TooShort { .. }));
    assert_eq!(world.stored().await, Settings::default());
}

async fn sessions_follow_and_say_so(store: TestStore) {
    let world = World::new(&store, settings()).await;
    let consumer = world.consumer().await;
    let next = || async { consumer.dequeue_within(LONG).await.unwrap().unwrap() };
    let item = world.enqueue_ref(7, &hc_dequeue::Enqueue::new()).await;
    next().await.nack().await.unwrap();
    for lease in [1_500, 90, 200].map(Duration::from_millis) {
        let changed = settings()
            .with_lease(lease)
            .with_max_attempts(2)
            .with_keep_done(LONG);
        world.configure(&changed).await.unwrap();
        world.until_promised(lease).await;
        assert_eq!(world.leases().await.len(), 1);
    }
    next().await.nack().await.unwrap();
    assert_eq!(world.place(&item).await, Some(Place::Dead));
    let kept = world.enqueue_ref(8, &hc_dequeue::Enqueue::new()).await;
    world.ack(&next().await).await.unwrap();
    let place = world.place(&kept).await;
    assert!(matches!(place, Some(Place::Done { .. })));
    // No session was declared dead during the change.
    assert_eq!(world.leases().await.len(), 1);
    world.check().await;
}

async fn a_session_whose_settings_cannot_be_read_goes_on_with_those_that_it_knows(
    store: TestStore,
) {
    let world = World::new(&store, settings()).await;
    let consumer = world.consumer().await;
    let key = &world.queue.subspace().pack(&"m");
    let newer = |tr: keyspace::Tx<_>| async move {
        let old = tr.get(key, Isolation::Serializable).await?.unwrap();
        tr.set(key, &[2, 1, 2, 3]);
        Ok::<_, keyspace::Error>(old)
    };
    let old = world.runner.run(newer).await.unwrap();
    let session = world.sessions().await[0];
    for _ in 0..2 {
        world.next_heartbeat(session).await;
    }
    world.enqueue([7]).await;
    let delivery = consumer.dequeue_within(LONG).await.unwrap().unwrap();
    world.ack(&delivery).await.unwrap();
    let refused = open(&world.store, &world.runner, settings()).await;
    assert!(matches!(refused.unwrap_err(), Error::Keyspace(_)));
    let old = &old;
    let restore = |tr: keyspace::Tx<_>| async move {
        tr.set(key, old);
        Ok::<_, keyspace::Error>(())
    };
    world.runner.run(restore).await.unwrap();
    assert_eq!(world.stored().await, settings());
}

async fn a_session_adopts_settings_while_the_first_item_does_not_decode(store: TestStore) {
    let world = World::new(&store, settings()).await;
    let _consumer = world.consumer().await;
    let stamp = keyspace::tuple::Versionstamp::complete([0; 10], 0);
    let first = &world.queue.subspace().pack(&("i", stamp, 1));
    let damage = |tr: keyspace::Tx<_>| async move {
        tr.set(first, b"?");
        Ok::<_, keyspace::Error>(())
    };
    world.runner.run(damage).await.unwrap();
    let lease = Duration::from_millis(200);
    world
        .configure(&settings().with_lease(lease))
        .await
        .unwrap();
    world.until_promised(lease).await;
}

async fn a_session_is_judged_by_the_lease_that_it_has_promised(store: TestStore) {
    // The session dies before it learns the shorter lease, which the next session has.
    let world = World::new(&store, settings().with_lease(LONG * 60)).await;
    world.enqueue([7]).await;
    let queue = world.queue.clone();
    let runner = world.runner.clone();
    let (holds, is_held) = tokio::sync::oneshot::channel();
    let (changed, is_changed) = tokio::sync::oneshot::channel::<()>();
    let doomed = crate::common::process(|| async move {
        let options = hc_dequeue::WorkerOptions::default();
        let consumer = queue.consumer(&runner, options).await.unwrap();
        let held = consumer.dequeue().await.unwrap().unwrap();
        holds.send(()).unwrap();
        is_changed.await.unwrap();
        std::mem::forget((consumer, held));
    });
    is_held.await.unwrap();
    let short = settings();
    world.configure(&short).await.unwrap();
    // Its next heartbeat, at which it would adopt the settings, is 20 minutes away.
    assert_eq!(world.leases().await, [LONG * 60]);
    changed.send(()).unwrap();
    doomed.join().unwrap();
    let heir = world.consumer().await;
    let none = heir.dequeue_within(short.lease() * 4).await.unwrap();
    assert!(none.is_none(), "it has promised an hour");
    assert_eq!(world.leases().await.len(), 2);
}

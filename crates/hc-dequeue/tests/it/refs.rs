//! References to items under keys of the application.

use std::time::Duration;

use conformance::stores::TestStore;
use hc_dequeue::{
    Batch, Enqueue, Enqueued, Error, ItemRef, OnRepeat, Place, Queue, Schedule, Settings,
};
use keyspace::{Isolation, Transaction, Tx};

use crate::common::{LONG, World};

conformance::on_every_store!(
    a_key_names_the_item_wherever_it_is,
    a_key_names_the_item_that_has_the_dedupe_id,
    a_key_keeps_its_value_if_the_item_of_the_dedupe_id_was_completed,
    many_enqueues_of_a_transaction_write_each_its_own_reference,
    what_is_no_reference_of_the_queue_is_refused,
    a_key_that_cannot_be_written_is_refused_before_anything_is_staged,
    schedules_and_callbacks_write_no_references,
);

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

impl World {
    /// Returns a key of the application.
    fn own_key(&self, name: &str) -> Vec<u8> {
        self.store.root.pack(&("own", name))
    }

    async fn ref_at(&self, name: &str) -> Option<ItemRef> {
        let queue = &self.queue;
        let key = &self.own_key(name);
        let read = |tr| async move { queue.ref_at(&tr, key).await };
        self.runner.run(read).await.unwrap()
    }

    /// Enqueues, and returns the reference that the commit gives the item.
    async fn enqueue_named(&self, name: &str, value: u64, options: Enqueue) -> ItemRef {
        let options = options.with_ref_key(self.own_key(name));
        self.enqueue_ref(value, &options).await
    }
}

async fn a_key_names_the_item_wherever_it_is(store: TestStore) {
    let world = World::new(&store, Settings::new().with_keep_done(LONG)).await;
    let plain = Enqueue::new();
    let of_group = Enqueue::new().with_group("a").with_priority(3);
    let later = Enqueue::new().with_delay(DAY).with_dedupe("later");
    for (name, options) in [("plain", plain), ("group", of_group), ("later", later)] {
        let item = world.enqueue_named(name, 7, options).await;
        assert_eq!(world.ref_at(name).await, Some(item));
        // The bytes are those that any program can parse.
        let key = &world.own_key(name);
        let read = |tr: Tx<_>| async move { tr.get(key, Isolation::Snapshot).await };
        let value = world.runner.run(read).await.unwrap().unwrap();
        assert_eq!(value[..], item.to_bytes());
    }
    let later = world.ref_at("later").await.unwrap();
    let place = world.place(&later).await;
    assert!(matches!(place, Some(Place::Delayed { .. })), "{place:?}");
    let queue = &world.queue;
    let expedite = |tr| async move { queue.expedite(&tr, &later).await };
    assert!(world.runner.run(expedite).await.unwrap());
    world.complete_all().await;
    for name in ["plain", "group", "later"] {
        let item = world.ref_at(name).await.unwrap();
        let place = world.place(&item).await;
        assert!(matches!(place, Some(Place::Done { .. })), "{place:?}");
    }
    assert_eq!(world.ref_at("nothing").await, None);
    world.check().await;
}

async fn a_key_names_the_item_that_has_the_dedupe_id(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let once = Enqueue::new().with_dedupe("a");
    let item = world.enqueue_named("first", 1, once.clone()).await;
    let key = world.own_key("again");
    let repeats = [OnRepeat::Keep, OnRepeat::Replace, OnRepeat::Debounce];
    for on_repeat in repeats {
        let again = once.clone().with_on_repeat(on_repeat).with_ref_key(&key);
        let enqueued = world.enqueue_with(2, &again).await.unwrap();
        assert_eq!(enqueued == Enqueued::Repeated, on_repeat == OnRepeat::Keep);
        assert_eq!(world.ref_at("again").await, Some(item), "{on_repeat:?}");
        world.write(&key, None).await;
    }
    // A session holds the item, so that another one takes the id over.
    let consumer = world.consumer().await;
    let held = consumer.dequeue_within(LONG).await.unwrap().unwrap();
    assert_eq!(held.item_ref(), item);
    let replace = once.with_on_repeat(OnRepeat::Replace);
    let other = world.enqueue_named("again", 3, replace).await;
    assert_eq!(world.ref_at("again").await, Some(other));
    assert_eq!(world.ref_at("first").await, Some(item));
    world.check().await;
}

async fn a_key_keeps_its_value_if_the_item_of_the_dedupe_id_was_completed(store: TestStore) {
    let settings = Settings::new().with_dedupe_retention(LONG);
    let world = World::new(&store, settings).await;
    let once = Enqueue::new()
        .with_dedupe("a")
        .with_ref_key(world.own_key("job"));
    let item = world.enqueue_ref(1, &once).await;
    world.complete_all().await;
    let refused = world.enqueue_with(2, &once).await.unwrap();
    assert_eq!(refused, Enqueued::Repeated);
    assert_eq!(world.ref_at("job").await, Some(item));
}

async fn many_enqueues_of_a_transaction_write_each_its_own_reference(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let queue = &world.queue;
    let names = ["a", "b", "c", "d"];
    let own = |name: &str| Enqueue::new().with_ref_key(world.own_key(name));
    // The last two have one dedupe id: both keys name the item of the first one.
    let items = &[
        (0, own("a")),
        (1, own("b").with_delay(DAY)),
        (2, own("c").with_dedupe("one")),
        (3, own("d").with_dedupe("one")),
    ];
    let (_, replaces) = &items[3];
    let replaces = &replaces.clone().with_on_repeat(OnRepeat::Replace);
    let enqueue = |tr| async move {
        let enqueued = queue.enqueue_all_with(&tr, items).await?;
        let again = queue.enqueue_with(&tr, &4, replaces).await?;
        Ok::<_, Error>((enqueued, again))
    };
    let ((enqueued, again), commit) = world.runner.run_committed(enqueue).await.unwrap();
    assert_eq!(enqueued[3], Enqueued::Repeated);
    assert_eq!(again, enqueued[2]);
    for (name, enqueued) in names
        .into_iter()
        .zip([&enqueued[0], &enqueued[1], &again, &again])
    {
        let Enqueued::Staged(staged) = enqueued else {
            panic!("{enqueued:?}");
        };
        let item = staged.at(commit.versionstamp.unwrap());
        assert_eq!(world.ref_at(name).await, Some(item), "{name}");
    }
    let item = world.ref_at("d").await.unwrap();
    assert_eq!(world.status(&item).await.unwrap().value, Ok(4));
    world.check().await;
}

async fn what_is_no_reference_of_the_queue_is_refused(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let queue = &world.queue;
    let key = &world.own_key("job");
    let read = |tr| async move { queue.ref_at(&tr, key).await };
    for wrong in [&b""[..], b"no reference", &[1; ItemRef::BYTES + 1]] {
        world.write(key, Some(wrong)).await;
        let refused = world.runner.run(read).await.unwrap_err();
        let is_corrupt = matches!(&refused, Error::Keyspace(keyspace::Error::Corrupt { .. }));
        assert!(is_corrupt, "{refused:?}");
    }
    let subspace = world.store.root.subspace(&"other");
    let other = &Queue::<u64>::open(&world.runner, subspace).await.unwrap();
    let named = &Enqueue::new().with_ref_key(key);
    let enqueue = |tr| async move { other.enqueue_with(&tr, &7, named).await };
    let enqueued = world.runner.run(enqueue).await.unwrap();
    assert!(matches!(enqueued, Enqueued::Staged(_)));
    let refused = world.runner.run(read).await.unwrap_err();
    assert!(matches!(refused, Error::ForeignRef { .. }), "{refused:?}");
    // The transaction that enqueues does not know the versionstamp.
    let at_once = |tr: Tx<_>| async move {
        let _ = queue.enqueue_with(&tr, &7, named).await?;
        queue.ref_at(&tr, key).await
    };
    let refused = world.runner.run(at_once).await.unwrap_err();
    assert!(matches!(refused, Error::ReadAfterWrite), "{refused:?}");
}

async fn a_key_that_cannot_be_written_is_refused_before_anything_is_staged(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let queue = &world.queue;
    let inside = world.key("i").pack(&"mine");
    for key in [&[7; 10_001][..], b"\xff/mine", &inside] {
        let named = &Enqueue::new().with_ref_key(key);
        let enqueue = |tr: Tx<_>| async move {
            let refused = queue.enqueue_with(&tr, &7, named).await.unwrap_err();
            assert!(matches!(refused, Error::RefKey { .. }), "{refused:?}");
            let items = [(7, Enqueue::new()), (8, named.clone())];
            let refused = queue.enqueue_all_with(&tr, &items).await.unwrap_err();
            assert!(matches!(refused, Error::RefKey { .. }), "{refused:?}");
            Ok::<_, Error>(())
        };
        world.runner.run(enqueue).await.unwrap();
    }
    assert_eq!(world.stats().await.queued, 0);
    world.check().await;
}

async fn schedules_and_callbacks_write_no_references(store: TestStore) {
    let world = World::with_defaults(&store).await;
    let queue = &world.queue;
    let named = Enqueue::new().with_ref_key(world.own_key("job"));
    let daily = &Schedule::new("0 9 * * *").with_enqueue_options(named.clone());
    let batch = &Batch::new().with_callback(7, named);
    let refuse = |tr: Tx<_>| async move {
        let schedule = queue.schedule(&tr, "daily", daily, &7).await.map(drop);
        let batch = queue.open_batch(&tr, batch).await.map(drop);
        Ok::<_, Error>([schedule, batch])
    };
    for refused in world.runner.run(refuse).await.unwrap() {
        let refused = refused.unwrap_err();
        assert!(
            matches!(refused, Error::EnqueueOptions { .. }),
            "{refused:?}"
        );
    }
}

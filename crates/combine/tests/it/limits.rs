//! The limits of the store: no pass exceeds them, however much there is to combine and to observe.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::common::{LONG, Log, World, settings};
use combine::{
    AsideId, BoxError, Change, ChangeObserver, CombineQueue, Combiner, Error, Exact,
    MAX_UPDATE_BYTES, MAX_VALUE_BYTES, Result, SetAside, Settings, Unobserved, WorkerOptions,
};
use conformance::scale;
use conformance::stores::TestStore;
use keyspace::codec::Raw;
use keyspace::{
    Bytes, Code, Isolation, Listed, OpenOptions, Runner, Store, Transaction, Tx, limits,
};
use tokio::task::JoinSet;

conformance::on_every_store!(threads:
    a_pass_takes_80_000_updates,
    a_key_with_many_updates_takes_many_passes_and_is_reported_once,
    the_largest_update_and_the_largest_value_fit,
    updates_that_make_a_value_too_large_are_set_aside_and_redriven,
    values_count_as_bytes_of_a_pass,
    keys_may_hold_any_bytes_and_begin_with_each_other,
    the_largest_key_goes_everywhere,
    any_number_of_buckets_does_the_same,
    adds_to_one_key_never_conflict,
);

/// Bytes under bytes, with nothing around them.
type Blobs = CombineQueue<Bytes, Bytes, Bytes, Raw>;

/// Appends bytes. An empty update erases the value.
fn append(_key: &Bytes, current: Option<Bytes>, updates: Vec<Bytes>) -> Option<Bytes> {
    updates.into_iter().fold(current, |current, update| {
        if update.is_empty() {
            return None;
        }
        Some([current.unwrap_or_default(), update].concat().into())
    })
}

/// A queue of bytes, with a runner.
struct Bytewise {
    runner: Runner<Store>,
    queue: Blobs,
}

impl Bytewise {
    async fn new(
        store: &TestStore,
        bucket_count: u32,
        combiner: impl Combiner<Bytes, Bytes, Bytes>,
    ) -> Self {
        let store = store.fresh();
        let runner = store.runner();
        let subspace = store.root.subspace(&"queue");
        let queue = Blobs::open_with(
            &runner,
            subspace,
            settings(bucket_count),
            combiner,
            OpenOptions::default(),
        );
        Self {
            queue: queue.await.unwrap(),
            runner,
        }
    }

    async fn add(&self, key: &Bytes, update: &Bytes) -> Result<()> {
        let queue = &self.queue;
        let add = |tr| async move { queue.add(&tr, key, update).await };
        self.runner.run(add).await
    }

    async fn initialize(&self, key: &Bytes, value: &Bytes) -> Result<()> {
        let queue = &self.queue;
        let initialize = |tr| async move { queue.initialize(&tr, key, value).await };
        self.runner.run(initialize).await
    }

    async fn combine(&self, options: WorkerOptions) {
        self.combine_and_observe(options, Unobserved).await;
    }

    async fn combine_and_observe(
        &self,
        options: WorkerOptions,
        observer: impl ChangeObserver<Bytes, Bytes>,
    ) {
        let worker = self
            .queue
            .work(&self.runner, options, observer)
            .await
            .unwrap();
        self.queue.wait_idle(&self.runner).await.unwrap();
        worker.shut_down(LONG).await.unwrap();
    }

    async fn settled(&self, key: &Bytes) -> Option<Bytes> {
        let queue = &self.queue;
        let read = |tr| async move { queue.settled(&tr, key, Isolation::Snapshot).await };
        self.runner.run(read).await.unwrap()
    }

    async fn exact(&self, key: &Bytes) -> Option<Bytes> {
        let queue = &self.queue;
        let read = |tr| async move { queue.exact(&tr, key, &Exact::default()).await };
        self.runner.run(read).await.unwrap()
    }

    async fn values(&self) -> BTreeMap<Bytes, Bytes> {
        let queue = &self.queue;
        let read = |tr| async move {
            let values = queue.values(&tr, None, usize::MAX, Isolation::Snapshot);
            values.await
        };
        let values = self.runner.run(read).await.unwrap();
        let decode = values.into_iter().map(|listed| listed.value);
        decode.collect::<std::result::Result<_, _>>().unwrap()
    }

    async fn set_aside(&self) -> Vec<Listed<AsideId, SetAside>> {
        let queue = &self.queue;
        let read = |tr| async move { queue.set_aside(&tr, None, usize::MAX).await };
        self.runner.run(read).await.unwrap()
    }

    async fn redrive(&self, aside: &AsideId) -> bool {
        let queue = &self.queue;
        let redrive = |tr| async move { queue.redrive(&tr, aside).await };
        self.runner.run(redrive).await.unwrap()
    }
}

async fn a_pass_takes_80_000_updates(store: TestStore) {
    const UPDATES: usize = 80_000;
    const UPDATES_PER_TRANSACTION: usize = 10_000;
    for keys in [1, 8] {
        let portions = Arc::new(Mutex::new(BTreeSet::new()));
        let taken = portions.clone();
        let count = move |_: &Bytes, _: Option<Bytes>, updates: Vec<Bytes>| {
            taken.lock().unwrap().insert(updates.len());
            let bytes: usize = updates.iter().map(Bytes::len).sum();
            Some(Bytes::from(bytes.to_string()))
        };
        let world = Bytewise::new(&store, 1, count).await;
        let key = |number: usize| Bytes::from(vec![b'a'; 1 + number % keys]);
        let update = Bytes::from(vec![7; 50]);
        let updates: Vec<_> = (0..UPDATES_PER_TRANSACTION)
            .map(|number| (key(number), update.clone()))
            .collect();
        let queue = &world.queue;
        let updates = &updates;
        for _ in 0..UPDATES / UPDATES_PER_TRANSACTION {
            let add = |tr| async move {
                queue
                    .add_all(&tr, updates.iter().map(|(key, value)| (key, value)))
                    .await
            };
            world.runner.run(add).await.unwrap();
        }
        world
            .combine(WorkerOptions::new().with_max_batch_bytes(usize::MAX))
            .await;
        // Each key comes with all its updates, so one pass took them.
        let per_key = UPDATES / keys;
        assert_eq!(*portions.lock().unwrap(), [per_key].into());
        let bytes = Bytes::from((50 * per_key).to_string());
        let expected = (0..keys).map(|number| (key(number), bytes.clone()));
        assert_eq!(world.values().await, expected.collect());
    }
}

async fn a_key_with_many_updates_takes_many_passes_and_is_reported_once(store: TestStore) {
    let updates = scale(20_000, 1_000_000);
    let passes = Arc::new(AtomicUsize::new(0));
    let made = passes.clone();
    let sum = move |_: &String, current: Option<i64>, updates: Vec<i64>| {
        made.fetch_add(1, Ordering::Relaxed);
        Some(current.unwrap_or(0) + updates.iter().sum::<i64>())
    };
    let world = World::new(&store, 1, sum).await;
    let ones: Vec<_> = (0..10_000).map(|_| ("a".to_owned(), 1)).collect();
    for _ in 0..updates / ones.len() {
        world.add_all(ones.clone()).await;
    }
    let log = Log::new(&world.root);
    let options = WorkerOptions::new().with_max_batch_bytes(1 << 15);
    let worker = world.work_with(options, log.clone()).await;
    // However long that takes.
    world.queue.wait_idle(&world.runner).await.unwrap();
    worker.shut_down(LONG).await.unwrap();
    let passes = passes.load(Ordering::Relaxed);
    // An update takes five bytes of a block.
    assert!(passes > updates / 20_000, "{passes} passes");
    let sum = Some(i64::try_from(updates).unwrap());
    assert_eq!(
        log.reports(&world.runner).await,
        [("a".to_owned(), (1, sum))].into()
    );
    log.check(&world).await;
    world.assert_nothing_left().await;
}

async fn the_largest_update_and_the_largest_value_fit(store: TestStore) {
    let world = Bytewise::new(&store, 1, append).await;
    let key = Bytes::from("key");
    let loaded = Bytes::from("loaded");
    let most = MAX_UPDATE_BYTES - key.len();
    let largest = Bytes::from(vec![7; most]);
    let too_large = Bytes::from(vec![7; most + 1]);
    let refused = world.add(&key, &too_large).await.unwrap_err();
    let bytes = key.len() + too_large.len();
    assert!(
        matches!(refused, Error::UpdateTooLarge { bytes: found, limit: MAX_UPDATE_BYTES, .. } if found == bytes),
        "{refused}"
    );
    assert_eq!(world.exact(&key).await, None);

    world.add(&key, &largest).await.unwrap();
    let rest = Bytes::from(vec![8; MAX_VALUE_BYTES - most]);
    world.add(&key, &rest).await.unwrap();
    let value = Bytes::from([largest, rest].concat());
    assert_eq!(world.exact(&key).await.as_ref(), Some(&value));
    // One update at a time, so that the value is also stored before it is reported.
    world
        .combine(WorkerOptions::new().with_max_batch_bytes(1))
        .await;
    assert_eq!(world.settled(&key).await.as_ref(), Some(&value));

    let too_large = Bytes::from(vec![7; MAX_VALUE_BYTES + 1]);
    let refused = world.initialize(&loaded, &too_large).await.unwrap_err();
    let bytes = too_large.len();
    assert!(
        matches!(refused, Error::ValueTooLarge { bytes: found, limit: MAX_VALUE_BYTES, .. } if found == bytes),
        "{refused}"
    );
    assert_eq!(world.settled(&loaded).await, None);
    world.initialize(&loaded, &value).await.unwrap();
    assert_eq!(world.settled(&loaded).await, Some(value));
    assert_eq!(world.set_aside().await, []);
}

async fn updates_that_make_a_value_too_large_are_set_aside_and_redriven(store: TestStore) {
    let world = Bytewise::new(&store, 1, append).await;
    let key = Bytes::from("key");
    let other = Bytes::from("other");
    let value = Bytes::from(vec![7; MAX_VALUE_BYTES]);
    let more = Bytes::from("more");
    let nothing = Bytes::new();
    world.initialize(&key, &value).await.unwrap();
    for key in [&key, &other] {
        world.add(key, &more).await.unwrap();
    }
    world.combine(WorkerOptions::default()).await;
    // The key is unchanged, and the other key continues.
    assert_eq!(world.settled(&key).await, Some(value.clone()));
    assert_eq!(world.exact(&key).await, Some(value));
    assert_eq!(world.settled(&other).await.as_ref(), Some(&more));
    let aside = world.set_aside().await;
    assert_eq!(aside.len(), 1);
    let SetAside {
        reason,
        key: of,
        update,
        ..
    } = aside[0].value.as_ref().unwrap();
    assert_eq!((of, update), (&key, &more));
    let bytes = (MAX_VALUE_BYTES + more.len()).to_string();
    assert!(reason.contains(&bytes), "{reason}");

    // As long as there is no room, it is set aside again. With room, it fits.
    assert!(world.redrive(&aside[0].id).await);
    assert!(!world.redrive(&aside[0].id).await);
    world.combine(WorkerOptions::default()).await;
    let again = world.set_aside().await;
    assert_eq!(again.len(), 1);
    assert_eq!(again[0].value, aside[0].value);
    world.add(&key, &nothing).await.unwrap();
    world.combine(WorkerOptions::default()).await;
    assert_eq!(world.settled(&key).await, None);
    assert!(world.redrive(&again[0].id).await);
    world.combine(WorkerOptions::default()).await;
    assert_eq!(world.settled(&key).await, Some(more));
    assert_eq!(world.set_aside().await, []);
}

/// Records the largest number of changes in one call.
#[derive(Clone, Default)]
struct Most(Arc<AtomicUsize>);

impl ChangeObserver<Bytes, Bytes> for Most {
    async fn observe<T: Transaction>(
        &self,
        _tr: &T,
        changes: &[Change<Bytes, Bytes>],
    ) -> Result<(), BoxError> {
        self.0.fetch_max(changes.len(), Ordering::Relaxed);
        Ok(())
    }
}

async fn values_count_as_bytes_of_a_pass(store: TestStore) {
    let world = Bytewise::new(&store, 1, append).await;
    let keys = (0..8).map(|key| Bytes::from(format!("key {key}")));
    let half = Bytes::from(vec![7; MAX_VALUE_BYTES / 2]);
    let more = Bytes::from("more");
    for key in keys.clone() {
        world.initialize(&key, &half).await.unwrap();
        world.add(&key, &more).await.unwrap();
    }
    // There is room for the updates of all of them and for two values, and at the end of the log for two
    // more values of keys that have waited.
    let most = Most::default();
    let room = 3 * half.len();
    let options = WorkerOptions::new().with_max_batch_bytes(room);
    world.combine_and_observe(options, most.clone()).await;
    assert_eq!(most.0.load(Ordering::Relaxed), 4);
    let value = Bytes::from([half, more].concat());
    let expected = keys.map(|key| (key, value.clone()));
    assert_eq!(world.values().await, expected.collect());
}

async fn keys_may_hold_any_bytes_and_begin_with_each_other(store: TestStore) {
    let keys: [&[u8]; 11] = [
        b"", b"\0", b"\0\0", b"\0\xff", b"a", b"a\0", b"a\0\0", b"a\0\x33", b"a\0\xff", b"aa",
        b"\xff",
    ];
    for (bucket_count, bytes_per_pass) in [(1, 1), (1, 1 << 20), (7, 1)] {
        let world = Bytewise::new(&store, bucket_count, append).await;
        let mut expected = BTreeMap::new();
        for (number, key) in keys.into_iter().enumerate() {
            let key = Bytes::from_static(key);
            for letter in 0..=number {
                let letter = Bytes::from(letter.to_string());
                world.add(&key, &letter).await.unwrap();
            }
            let value: String = (0..=number).map(|letter| letter.to_string()).collect();
            assert_eq!(world.exact(&key).await.unwrap(), value);
            expected.insert(key, Bytes::from(value));
        }
        world
            .combine(WorkerOptions::new().with_max_batch_bytes(bytes_per_pass))
            .await;
        assert_eq!(world.values().await, expected);
        for (key, value) in expected {
            assert_eq!(world.settled(&key).await, Some(value));
        }
    }
}

async fn the_largest_key_goes_everywhere(store: TestStore) {
    let world = Bytewise::new(&store, 1, append).await;
    let update = Bytes::from("update");
    let filled = |bytes| Bytes::from(vec![b'a'; bytes]);
    let Err(Error::KeyTooLarge { excess, .. }) = world.queue.bucket(&filled(limits::MAX_KEY_BYTES))
    else {
        panic!("it takes more than the key to make a key of the store");
    };
    let key = filled(limits::MAX_KEY_BYTES - excess);
    let too_large = filled(key.len() + 1);
    for refused in [
        world.add(&too_large, &update).await,
        world.initialize(&too_large, &update).await,
    ] {
        let refused = refused.unwrap_err();
        assert!(
            matches!(refused, Error::KeyTooLarge { excess: 1, .. }),
            "{refused}"
        );
    }
    world.add(&key, &update).await.unwrap();
    assert_eq!(world.exact(&key).await.as_ref(), Some(&update));
    world.combine(WorkerOptions::default()).await;
    assert_eq!(world.settled(&key).await.as_ref(), Some(&update));
    assert_eq!(world.values().await, [(key, update)].into());
}

async fn any_number_of_buckets_does_the_same(store: TestStore) {
    for bucket_count in [1, 7, 1_009] {
        let world = World::sums(&store, bucket_count).await;
        let log = Log::new(&world.root);
        let keys: Vec<_> = (0..300).map(|key| format!("key {key}")).collect();
        let buckets: BTreeSet<_> = keys
            .iter()
            .map(|key| world.queue.bucket(key).unwrap())
            .collect();
        assert!(buckets.len() as u32 >= bucket_count.min(200));
        assert!(buckets.iter().all(|bucket| bucket.0 < bucket_count));
        for round in 0..2 {
            let updates = keys
                .iter()
                .zip(1..)
                .map(|(key, update)| (key.clone(), update));
            world.add_all(updates.clone().collect()).await;
            world.combine(WorkerOptions::default(), &log).await;
            let expected = updates.map(|(key, update)| (key, update * (round + 1)));
            assert_eq!(world.values().await, expected.collect());
            log.check(&world).await;
            world.assert_nothing_left().await;
        }
    }
}

async fn adds_to_one_key_never_conflict(store: TestStore) {
    const WRITERS: usize = 64;
    let adds = scale(5_000, 100_000).div_ceil(WRITERS);
    let world = Arc::new(World::sums(&store, Settings::default().bucket_count()).await);
    let conflicts = Arc::new(AtomicUsize::new(0));
    // Also with the updates that are combined in the meantime.
    let log = Log::new(&world.root);
    let worker = world.work(log.clone()).await;
    let mut writers = JoinSet::new();
    for _ in 0..WRITERS {
        let world = world.clone();
        let conflicts = conflicts.clone();
        writers.spawn(async move {
            let queue = &world.queue;
            let key = &"a".to_owned();
            let conflicts = &*conflicts;
            let add = |tr: Tx<_>| async move {
                if tr.attempt().after == Some(Code::NOT_COMMITTED) {
                    conflicts.fetch_add(1, Ordering::Relaxed);
                }
                queue.add(&tr, key, &1).await
            };
            for _ in 0..adds {
                world.runner.run(add).await.unwrap();
            }
        });
    }
    writers.join_all().await;
    world.wait_idle().await;
    worker.shut_down(LONG).await.unwrap();
    assert_eq!(conflicts.load(Ordering::Relaxed), 0);
    assert_eq!(world.settled("a").await, Some((WRITERS * adds) as i64));
    log.check(&world).await;
    world.assert_nothing_left().await;
}

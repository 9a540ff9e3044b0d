//! Several workers: which of them combines which bucket, and which one continues when another stops.

use std::collections::{BTreeMap, BTreeSet};
use std::future::pending;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{LONG, Log, World, short_lived};
use combine::hc_dequeue::Backoff;
use combine::{BoxError, Change, ChangeObserver, CombineQueue, Sum, Unobserved, WorkerOptions};
use conformance::chaos::{Chaos, Faults};
use conformance::plant::{Plant, Planted};
use conformance::stores::TestStore;
use conformance::{timeout, until};
use keyspace::{Environment, RunOptions, Runner, Transaction};

conformance::on_every_store!(threads:
    a_sleeping_worker_is_woken_by_an_update,
    without_watches_the_poll_finds_updates,
    buckets_are_divided_and_taken_over_at_a_shut_down,
    the_buckets_of_a_dead_worker_continue_after_a_lease,
    the_buckets_of_a_worker_that_hangs_are_taken_over,
    an_observer_that_hangs_is_stopped_and_its_bucket_goes_on,
    an_observer_that_fails_is_called_again_and_other_buckets_go_on,
    an_observer_that_panics_is_called_again,
    an_observer_may_add_to_the_queue_that_it_observes,
    a_worker_that_was_found_dead_opens_another_session,
    after_a_restart_everything_continues,
    a_bucket_rests_between_passes_while_others_go_on,
    pending_updates_can_be_counted,
    a_session_whose_state_does_not_decode_stops_no_worker,
);

/// Options with which a worker acts only on a wake-up, or after more time than a test takes.
fn deaf_to_time() -> WorkerOptions {
    WorkerOptions::new()
        .with_poll_interval(LONG * 60)
        .with_takeover_after(LONG * 60)
}

fn no_backoff() -> Backoff {
    Backoff::new(Duration::from_millis(1), Duration::from_millis(1))
}

/// Records the keys that it received, whether or not the pass committed.
#[derive(Debug, Clone, Default)]
struct Seen(Arc<Mutex<BTreeSet<String>>>);

impl ChangeObserver<String, i64> for Seen {
    async fn observe<T: Transaction>(
        &self,
        _tr: &T,
        changes: &[Change<String, i64>],
    ) -> Result<(), BoxError> {
        let keys = changes.iter().map(|change| change.key.clone());
        self.0.lock().unwrap().extend(keys);
        Ok(())
    }
}

impl Seen {
    fn take(&self) -> BTreeSet<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

/// One update for each of several keys, enough for each of a few buckets to have some.
fn updates() -> Vec<(String, i64)> {
    (0..64).map(|key| (format!("key {key}"), 1)).collect()
}

async fn a_sleeping_worker_is_woken_by_an_update(store: TestStore) {
    let world = World::sums(&store, 4).await;
    let worker = world.work_with(deaf_to_time(), Unobserved).await;
    for round in 1..=10 {
        world.add("a", 1).await;
        world.wait_idle().await;
        assert_eq!(world.settled("a").await, Some(round));
    }
    worker.shut_down(LONG).await.unwrap();
}

async fn without_watches_the_poll_finds_updates(store: TestStore) {
    let store = store.fresh();
    let deaf = Planted::new(store.db.clone(), Plant::DeafWatches);
    let options = RunOptions::default().with_ledger_subspace(store.root.subspace(&"ledgers"));
    let runner = Runner::with_options(deaf, options);
    let world = World::on(runner, &store, 4, Sum).await;
    let often = WorkerOptions::new().with_poll_interval(Duration::from_millis(10));
    let worker = world.work_with(often, Unobserved).await;
    world.add("a", 1).await;
    world.wait_idle().await;
    assert_eq!(world.settled("a").await, Some(1));
    worker.shut_down(LONG).await.unwrap();
}

async fn buckets_are_divided_and_taken_over_at_a_shut_down(store: TestStore) {
    let world = World::sums(&store, 32).await;
    let first = Seen::default();
    let second = Seen::default();
    let first_worker = world.work_with(deaf_to_time(), first.clone()).await;
    let second_worker = world.work_with(deaf_to_time(), second.clone()).await;
    // Until both know of each other.
    loop {
        world.add_all(updates()).await;
        world.wait_idle().await;
        let first = first.take();
        let second = second.take();
        if !first.is_empty() && !second.is_empty() && first.is_disjoint(&second) {
            assert_eq!(first.len() + second.len(), updates().len());
            break;
        }
    }
    second_worker.shut_down(LONG).await.unwrap();
    second.take();
    world.add_all(updates()).await;
    world.wait_idle().await;
    assert_eq!(first.take().len(), updates().len());
    first_worker.shut_down(LONG).await.unwrap();
    assert!(second.take().is_empty());
    world.assert_nothing_left().await;
}

async fn the_buckets_of_a_dead_worker_continue_after_a_lease(store: TestStore) {
    let (_, world) = short_lived(&store).await;
    let options = WorkerOptions::new().with_takeover_after(LONG * 60);
    let dead = world.work_with(options.clone(), Unobserved).await;
    let worker = world.work_with(options, Unobserved).await;
    assert_eq!(world.rows("s").await.len(), 2);
    // Its session still exists, but has no heartbeat any more.
    drop(dead);
    world.add_all(updates()).await;
    world.wait_idle().await;
    assert_eq!(world.values().await.len(), updates().len());
    worker.shut_down(LONG).await.unwrap();
    world.assert_nothing_left().await;
}

/// Hangs until it is released.
#[derive(Clone, Default)]
struct Hangs(Arc<AtomicBool>);

impl ChangeObserver<String, i64> for Hangs {
    async fn observe<T: Transaction>(
        &self,
        _tr: &T,
        _changes: &[Change<String, i64>],
    ) -> Result<(), BoxError> {
        if !self.0.load(Ordering::Relaxed) {
            pending::<()>().await;
        }
        Ok(())
    }
}

async fn the_buckets_of_a_worker_that_hangs_are_taken_over(store: TestStore) {
    let world = World::sums(&store, 32).await;
    // It hangs for as long as the test waits, and its heartbeat continues.
    let hangs = WorkerOptions::new().with_time_limit(LONG * 60);
    let hung = world.work_with(hangs, Hangs::default()).await;
    let log = Log::new(&world.root);
    let impatient = WorkerOptions::new().with_takeover_after(Duration::from_millis(100));
    let worker = world.work_with(impatient, log.clone()).await;
    world.add_all(updates()).await;
    world.wait_idle().await;
    assert_eq!(world.values().await.len(), updates().len());
    log.check(&world).await;
    worker.shut_down(LONG).await.unwrap();
    hung.shut_down(Duration::ZERO).await.unwrap();
    world.assert_nothing_left().await;
}

async fn an_observer_that_hangs_is_stopped_and_its_bucket_goes_on(store: TestStore) {
    let world = World::sums(&store, 1).await;
    let hangs = Hangs::default();
    let options = WorkerOptions::new()
        .with_time_limit(Duration::from_millis(20))
        .with_backoff(no_backoff());
    let worker = world.work_with(options, hangs.clone()).await;
    world.add("a", 1).await;
    let idle = world.queue.wait_idle(&world.runner);
    let env = Environment::system();
    assert!(
        env.timeout(Duration::from_millis(200), idle)
            .await
            .is_none()
    );
    assert_eq!(world.exact("a").await, Some(1));
    assert_eq!(world.settled("a").await, None);
    hangs.0.store(true, Ordering::Relaxed);
    world.wait_idle().await;
    assert_eq!(world.settled("a").await, Some(1));
    worker.shut_down(LONG).await.unwrap();
}

/// Fails for a key, a given number of times and in a given way.
struct Fails {
    key: &'static str,
    times: AtomicU32,
    log: Log<i64>,
    fail: fn() -> Result<(), BoxError>,
}

impl ChangeObserver<String, i64> for Fails {
    async fn observe<T: Transaction>(
        &self,
        tr: &T,
        changes: &[Change<String, i64>],
    ) -> Result<(), BoxError> {
        self.log.observe(tr, changes).await?;
        let is_concerned = changes.iter().any(|change| change.key == self.key);
        let left = self.times.load(Ordering::Relaxed);
        if !is_concerned || left == 0 {
            return Ok(());
        }
        self.times.store(left - 1, Ordering::Relaxed);
        (self.fail)()
    }
}

async fn recovers(store: TestStore, fail: fn() -> Result<(), BoxError>) {
    let world = World::sums(&store, 8).await;
    let log = Log::new(&world.root);
    let fails = Fails {
        key: "key 3",
        times: AtomicU32::new(5),
        log: log.clone(),
        fail,
    };
    let options = WorkerOptions::new().with_backoff(no_backoff());
    let worker = world.work_with(options, fails).await;
    world.add_all(updates()).await;
    world.wait_idle().await;
    worker.shut_down(LONG).await.unwrap();
    log.check(&world).await;
    let reports = log.reports(&world.runner).await;
    let expected = updates().into_iter().map(|(key, _)| (key, (1, Some(1))));
    assert_eq!(reports, expected.collect::<BTreeMap<_, _>>());
    world.assert_nothing_left().await;
}

async fn an_observer_that_fails_is_called_again_and_other_buckets_go_on(store: TestStore) {
    recovers(store.clone(), || Err("on purpose".into())).await;

    // An observer that always fails for a key stops only that key's bucket.
    let world = World::sums(&store, 8).await;
    let always = Fails {
        key: "key 3",
        times: AtomicU32::new(u32::MAX),
        log: Log::new(&world.root),
        fail: || Err("on purpose".into()),
    };
    let worker = world.work(always).await;
    let keys: Vec<_> = updates().into_iter().map(|(key, _)| key).collect();
    let bucket_of = |key: &String| world.queue.bucket(key).unwrap();
    let kept = bucket_of(&"key 3".to_owned());
    let (stuck, others): (Vec<_>, Vec<_>) =
        keys.into_iter().partition(|key| bucket_of(key) == kept);
    let stamp = world.add_all(updates()).await;
    let settled = world.queue.await_settled(&world.runner, &others, stamp);
    timeout(LONG, settled).await.unwrap();
    for key in &stuck {
        assert_eq!(world.settled(key).await, None);
        assert_eq!(world.exact(key).await, Some(1));
    }
    worker.shut_down(LONG).await.unwrap();
}

async fn an_observer_that_panics_is_called_again(store: TestStore) {
    recovers(store, || panic!("on purpose")).await;
}

/// Adds half of each change to the key without the first letter.
struct Halves(CombineQueue<String, i64>);

impl ChangeObserver<String, i64> for Halves {
    async fn observe<T: Transaction>(
        &self,
        tr: &T,
        changes: &[Change<String, i64>],
    ) -> Result<(), BoxError> {
        for change in changes.iter().filter(|change| change.key.len() > 1) {
            let difference = change.new.unwrap_or(0) - change.old.unwrap_or(0);
            let half = (change.key[1..].to_owned(), difference / 2);
            self.0.add(tr, &half.0, &half.1).await?;
        }
        Ok(())
    }
}

async fn an_observer_may_add_to_the_queue_that_it_observes(store: TestStore) {
    for bucket_count in [1, 7] {
        let world = World::sums(&store, bucket_count).await;
        let worker = world.work(Halves(world.queue.clone())).await;
        for _ in 0..3 {
            world.add("aaaa", 16).await;
        }
        world.wait_idle().await;
        let expected = [("aaaa", 48), ("aaa", 24), ("aa", 12), ("a", 6)]
            .map(|(key, sum)| (key.to_owned(), sum));
        assert_eq!(world.values().await, expected.into());
        worker.shut_down(LONG).await.unwrap();
        world.assert_nothing_left().await;
    }
}

async fn a_worker_that_was_found_dead_opens_another_session(store: TestStore) {
    let (store, world) = short_lived(&store).await;
    let chaos = Chaos::new(store.db.clone(), Environment::system(), Faults::default());
    let options = RunOptions::default().with_ledger_subspace(store.root.subspace(&"ledgers"));
    let cut_off = Runner::with_options(chaos.clone(), options);
    let worker = world.work(Unobserved).await;
    let lost = world
        .queue
        .work(&cut_off, WorkerOptions::default(), Unobserved)
        .await
        .unwrap();
    let before: BTreeSet<_> = world
        .rows("s")
        .await
        .iter()
        .map(|row| row.to_key())
        .collect();
    assert_eq!(before.len(), 2);
    chaos.stop();
    until(async || world.rows("s").await.len() <= 1).await;
    chaos.go_on();
    until(async || world.rows("s").await.len() >= 2).await;
    let after: BTreeSet<_> = world
        .rows("s")
        .await
        .iter()
        .map(|row| row.to_key())
        .collect();
    assert_eq!(before.intersection(&after).count(), 1);
    world.add_all(updates()).await;
    world.wait_idle().await;
    worker.shut_down(LONG).await.unwrap();
    lost.shut_down(LONG).await.unwrap();
    world.assert_nothing_left().await;
}

async fn after_a_restart_everything_continues(store: TestStore) {
    let (_, world) = short_lived(&store).await;
    let log = Log::new(&world.root);
    let options = WorkerOptions::new()
        .with_max_batch_bytes(1)
        .with_takeover_after(LONG * 60);
    for _ in 0..5 {
        // The worker is dropped wherever it is, usually in the middle of its work.
        let worker = world.work_with(options.clone(), log.clone()).await;
        world.add_all(updates()).await;
        drop(worker);
    }
    let worker = world.work_with(options, log.clone()).await;
    world.wait_idle().await;
    assert!(world.values().await.values().all(|sum| *sum == 5));
    // The dead sessions are found, including those that left no bucket.
    until(async || world.rows("s").await.len() <= 1).await;
    worker.shut_down(LONG).await.unwrap();
    log.check(&world).await;
    world.assert_nothing_left().await;
}

async fn a_bucket_rests_between_passes_while_others_go_on(store: TestStore) {
    let world = World::sums(&store, 2).await;
    let bucket = |key: &&str| world.queue.bucket(&(*key).to_owned()).unwrap();
    let rests = "a";
    let goes_on = ["b", "c", "d", "e"]
        .into_iter()
        .find(|key| bucket(key) != bucket(&rests))
        .unwrap();
    let options = WorkerOptions::new().with_pass_interval(LONG * 60);
    let worker = world.work_with(options, Unobserved).await;
    world.add(rests, 1).await;
    world.wait_idle().await;
    world.add(rests, 1).await;
    // The worker sees both when it reads.
    let stamp = world.add(goes_on, 1).await;
    let keys = [goes_on.to_owned()];
    let settled = world.queue.await_settled(&world.runner, &keys, stamp);
    timeout(LONG, settled).await.unwrap();
    assert_eq!(world.settled(rests).await, Some(1));
    assert_eq!(world.exact(rests).await, Some(2));
    worker.shut_down(LONG).await.unwrap();
    // Another worker does not know of the interval.
    let worker = world.work(Unobserved).await;
    world.wait_idle().await;
    worker.shut_down(LONG).await.unwrap();
    assert_eq!(world.settled(rests).await, Some(2));
}

async fn pending_updates_can_be_counted(store: TestStore) {
    let world = World::sums(&store, 1).await;
    world.add_all(updates()).await;
    let queue = &world.queue;
    let count = |tr| async move { queue.pending(&tr, combine::Bucket(0)).await };
    let pending = world.runner.run(count).await.unwrap();
    assert_eq!(pending.count, updates().len());
    let rows = world.rows("u").await;
    let bytes: usize = rows
        .iter()
        .map(|row| row.key().len() + row.value().len())
        .sum();
    assert_eq!(pending.bytes, bytes);
    assert!(!pending.has_more);
    // About 1 MiB of blocks is counted.
    let long = "k".repeat(1_000);
    for (added, has_more) in [(1_000, false), (100, true)] {
        world.add_all(vec![(long.clone(), 1); added]).await;
        let pending = world.runner.run(count).await.unwrap();
        assert_eq!(pending.has_more, has_more);
        let all = updates().len() + 1_000 + if has_more { added } else { 0 };
        assert_eq!(pending.count < all, has_more);
    }
    world
        .combine(WorkerOptions::default(), &Log::new(&world.root))
        .await;
    assert_eq!(
        world.runner.run(count).await.unwrap(),
        combine::Pending::default()
    );
}

async fn a_session_whose_state_does_not_decode_stops_no_worker(store: TestStore) {
    let world = World::sums(&store, 4).await;
    let sessions = world.queue.sessions();
    let subspace = sessions.subspace().clone();
    let unknown = [7_u8; 16];
    let write = |tr: keyspace::Tx<_>| {
        let subspace = subspace.clone();
        async move {
            // A newer version has opened the session. The other keys are foreign.
            tr.set(&subspace.pack(&("s", &unknown[..])), &[2, 1]);
            tr.set(&subspace.pack(&("b", &unknown[..])), &[0; 18]);
            tr.set(&subspace.pack(&("s", "foreign")), b"");
            tr.set(&subspace.pack(&("b", "foreign")), b"");
            Ok::<_, keyspace::Error>(())
        }
    };
    world.runner.run(write).await.unwrap();
    let worker = world.work_with(deaf_to_time(), Unobserved).await;
    for (key, change) in updates() {
        world.add(&key, change).await;
    }
    world.wait_idle().await;
    assert_eq!(world.settled("key 0").await, Some(1));
    worker.shut_down(LONG).await.unwrap();
}

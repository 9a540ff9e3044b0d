//! The two guarantees of the recipe, one by one, and what follows from them for a cascade.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use crate::common::{LONG, Log, Queue, World};
use combine::{BoxError, Change, ChangeObserver, Unobserved, WorkerOptions};
use conformance::stores::TestStore;
use keyspace::{Subspace, Transaction};
use tokio::task::JoinSet;

conformance::on_every_store!(threads:
    a_new_value_covers_every_update_committed_before_the_pass_began,
    an_old_value_is_the_new_value_of_the_report_before,
    both_levels_of_a_cascade_are_exact_and_return_to_zero,
);

const KEYS: i64 = 3;
const WRITERS: i64 = 4;
const UPDATES: i64 = 40;

/// Records, in the transaction of the pass, the reports with their read version.
#[derive(Clone)]
struct Versions(Subspace);

impl ChangeObserver<String, i64> for Versions {
    async fn observe<T: Transaction>(
        &self,
        tr: &T,
        changes: &[Change<String, i64>],
    ) -> Result<(), BoxError> {
        let version = tr.read_version().await?;
        for Change { key, new, .. } in changes {
            tr.set(
                &self.0.pack(&(key, version)),
                &new.unwrap_or(0).to_be_bytes(),
            );
        }
        Ok(())
    }
}

/// Adds to several keys from many tasks. Returns each update with the version of its commit.
async fn write(world: &Arc<World>) -> Vec<(String, i64, i64)> {
    let mut writers = JoinSet::new();
    let written = Arc::new(Mutex::new(Vec::new()));
    for writer in 0..WRITERS {
        let world = world.clone();
        let written = written.clone();
        writers.spawn(async move {
            for number in 0..UPDATES {
                let key = format!("key {}", (writer + number) % KEYS);
                let update = 1 + writer + WRITERS * number;
                let version = world.add(&key, update).await.commit_version();
                written.lock().unwrap().push((key, update, version));
            }
        });
    }
    writers.join_all().await;
    std::mem::take(&mut *written.lock().unwrap())
}

async fn a_new_value_covers_every_update_committed_before_the_pass_began(store: TestStore) {
    // All updates in one pass, and one update per pass.
    for bytes_per_pass in [1 << 20, 1] {
        let world = Arc::new(World::sums(&store, 2).await);
        let versions = Versions(world.root.subspace(&"versions"));
        let options = WorkerOptions::new().with_max_batch_bytes(bytes_per_pass);
        let worker = world.work_with(options, versions.clone()).await;
        let written = write(&world).await;
        world.wait_idle().await;
        worker.shut_down(LONG).await.unwrap();

        let mut reports = 0;
        for row in world.rows_of(&versions.0).await {
            let (key, began): (String, i64) = versions.0.unpack(row.key()).unwrap();
            let reported = i64::from_be_bytes(row.value().try_into().unwrap());
            let before = written
                .iter()
                .filter(|(of, _, version)| *of == key && *version <= began);
            let covered: i64 = before.map(|(_, update, _)| update).sum();
            assert_eq!(reported, covered, "{key} at {began}");
            reports += 1;
        }
        assert!(reports >= KEYS, "{reports} reports");
        let mut expected = BTreeMap::new();
        for (key, update, _) in written {
            *expected.entry(key).or_insert(0) += update;
        }
        assert_eq!(world.values().await, expected);
    }
}

async fn an_old_value_is_the_new_value_of_the_report_before(store: TestStore) {
    for bytes_per_pass in [1 << 20, 1] {
        let world = Arc::new(World::sums(&store, 2).await);
        let log = Log::new(&world.root);
        let options = WorkerOptions::new().with_max_batch_bytes(bytes_per_pass);
        let worker = world.work_with(options.clone(), log.clone()).await;
        write(&world).await;
        world.wait_idle().await;
        worker.shut_down(LONG).await.unwrap();
        log.check(&world).await;
        assert_eq!(log.reports(&world.runner).await.len() as i64, KEYS);

        // A pass without the observer breaks the chain, which shows that the test would detect it.
        world.add("key 0", 1).await;
        let worker = world.work(Unobserved).await;
        world.wait_idle().await;
        worker.shut_down(LONG).await.unwrap();
        world.add("key 0", 1).await;
        world.combine(options, &log).await;
        assert_eq!(log.broken.lock().unwrap().len(), 1);
    }
}

/// Adds the changes of all keys to the key `all` of the level below.
struct RollUp(Queue);

impl ChangeObserver<String, i64> for RollUp {
    async fn observe<T: Transaction>(
        &self,
        tr: &T,
        changes: &[Change<String, i64>],
    ) -> Result<(), BoxError> {
        for Change { old, new, .. } in changes {
            let difference = new.unwrap_or(0) - old.unwrap_or(0);
            self.0.add(tr, &"all".to_owned(), &difference).await?;
        }
        Ok(())
    }
}

async fn both_levels_of_a_cascade_are_exact_and_return_to_zero(store: TestStore) {
    for bytes_per_pass in [1 << 20, 1] {
        let above = Arc::new(World::sums(&store, 2).await);
        let below = World::sums(&store, 2).await;
        let log = Log::new(&below.root);
        let options = WorkerOptions::new().with_max_batch_bytes(bytes_per_pass);
        let workers = [
            above
                .work_with(options.clone(), RollUp(below.queue.clone()))
                .await,
            below.work_with(options, log.clone()).await,
        ];
        let mut taken_back = Vec::new();
        let mut expected = BTreeMap::new();
        for (key, update, _) in write(&above).await {
            *expected.entry(key.clone()).or_insert(0) += update;
            taken_back.push((key, -update));
        }
        above.wait_idle().await;
        below.wait_idle().await;
        let all = expected.values().sum();
        assert_eq!(above.values().await, expected);
        assert_eq!(below.values().await, [("all".to_owned(), all)].into());

        above.add_all(taken_back).await;
        above.wait_idle().await;
        below.wait_idle().await;
        assert_eq!(above.values().await, BTreeMap::new());
        assert_eq!(below.values().await, BTreeMap::new());
        log.check(&below).await;
        for worker in workers {
            worker.shut_down(LONG).await.unwrap();
        }
        above.assert_nothing_left().await;
        below.assert_nothing_left().await;
    }
}

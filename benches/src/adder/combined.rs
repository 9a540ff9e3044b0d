//! The combine queue.

use std::time::Duration;

use combine::{CombineQueue, Unobserved, WorkerOptions};
use keyspace::{
    Bytes, Database, Isolation, OwnedTransaction, RunOptions, Runner, Store, Transaction,
};

use super::{Adder, Count, Key, ONE, sum};
use crate::contender::Site;
use crate::meter::Metered;

/// Longer than a pass takes.
const GRACE: Duration = Duration::from_secs(60);

/// How many values are read at a time.
const VALUES_PER_PAGE: usize = 10_000;

pub(super) type Queue = CombineQueue<Key, Count>;

/// Updates added by a runner, exactly once.
#[derive(Debug)]
pub struct Added {
    runner: Runner<Metered<Store>>,
    pub(super) queue: Queue,
}

/// Updates staged in a transaction that is committed, and not tried again.
#[derive(Debug)]
pub struct Staged(Added);

/// What combines the updates of a queue.
pub struct Worker(combine::Worker);

/// Opens the queue of a site.
pub(super) async fn open(site: &Site) -> Added {
    let options = RunOptions::default().with_ledger_subspace(site.ledger());
    let runner = Runner::with_options(site.db.clone(), options);
    let combine =
        |_: &Key, current: Option<Count>, updates: Vec<Count>| Some(sum(current, &updates));
    let queue = Queue::open(&runner, site.queue(), combine).await;
    Added {
        runner,
        queue: queue.expect("nothing conflicts"),
    }
}

/// Stages an update of each key.
async fn stage(queue: &Queue, tr: &impl Transaction, keys: &[Key]) -> combine::Result<()> {
    match keys {
        [key] => queue.add(tr, key, &ONE).await,
        keys => {
            let updates: Vec<_> = keys.iter().map(|key| (*key, ONE)).collect();
            queue
                .add_all(tr, updates.iter().map(|(key, value)| (key, value)))
                .await
        }
    }
}

impl Adder for Added {
    async fn open(site: &Site) -> Self {
        open(site).await
    }

    async fn add(&self, keys: &[Key]) {
        let queue = &self.queue;
        let add = |tr| async move { stage(queue, &tr, keys).await };
        self.runner.run(add).await.expect("nothing conflicts");
    }
}

impl Adder for Staged {
    async fn open(site: &Site) -> Self {
        Self(open(site).await)
    }

    async fn add(&self, keys: &[Key]) {
        let mut tr = self.0.runner.database().begin().expect("the store serves");
        let staged = stage(&self.0.queue, &tr, keys).await;
        staged.expect("the updates are small");
        tr.commit().await.expect("nothing conflicts");
    }
}

impl Added {
    /// Begins to combine, with so large passes.
    ///
    /// # Panics
    /// If the store fails.
    pub async fn work(&self, bytes_per_pass: usize) -> Worker {
        let options = WorkerOptions::new().with_max_batch_bytes(bytes_per_pass);
        let worker = self.queue.work(&self.runner, options, Unobserved).await;
        Worker(worker.expect("nothing conflicts"))
    }

    /// Waits until everything is combined.
    ///
    /// # Panics
    /// If the store fails.
    pub async fn settle(&self) {
        let idle = self.queue.wait_idle(&self.runner).await;
        idle.expect("the store serves");
    }

    /// Returns the count of a key, as it was last reported.
    ///
    /// # Panics
    /// If the store fails.
    pub async fn settled(&self, key: &Key) -> u64 {
        let queue = &self.queue;
        let read = |tr| async move { queue.settled(&tr, key, Isolation::Snapshot).await };
        let count = self.runner.run(read).await.expect("the store serves");
        count.map_or(0, u64::from_be_bytes)
    }

    /// Returns the sum of all counts, as they were last reported.
    ///
    /// # Panics
    /// If the store fails.
    pub async fn total(&self) -> u64 {
        let queue = &self.queue;
        let mut total = 0;
        let mut last = None::<Bytes>;
        loop {
            let after = last.as_deref();
            let page = self
                .runner
                .run(|tr| async move {
                    let isolation = Isolation::Snapshot;
                    queue.values(&tr, after, VALUES_PER_PAGE, isolation).await
                })
                .await
                .expect("the store serves");
            total += page
                .iter()
                .map(|listed| u64::from_be_bytes(listed.value.as_ref().expect("a count decodes").1))
                .sum::<u64>();
            match page.last() {
                Some(listed) if page.len() == VALUES_PER_PAGE => last = Some(listed.id.clone()),
                _ => return total,
            }
        }
    }
}

impl Worker {
    /// Stops when the passes under way have ended.
    ///
    /// # Panics
    /// If the store fails.
    pub async fn stop(self) {
        self.0.shut_down(GRACE).await.expect("the store serves");
    }
}

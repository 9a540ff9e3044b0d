//! The starts of the group whose rate never changes.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use hc_dequeue::{Delivery, Error};
use keyspace::limits::VERSIONS_PER_SECOND;
use keyspace::{Runner, Store, Transaction, Tx};

use super::groups::{PACE, PACED};
use super::{Player, SAME};

/// What has certainly started of a group since a version.
#[derive(Debug)]
pub(crate) struct Starts {
    since: i64,
    /// The values of items, each with the number of its grant: a handler may run twice for one delivery.
    grants: Mutex<BTreeSet<(u64, u64)>>,
    pops: AtomicU64,
}

impl Starts {
    pub(super) async fn since_now(runner: &Runner<Store>) -> Self {
        Self {
            since: version(runner).await,
            grants: Mutex::new(BTreeSet::new()),
            pops: AtomicU64::new(0),
        }
    }

    /// Notes that an item was granted, if it has the group.
    pub(crate) fn note(&self, delivery: &Delivery<u64>) {
        if delivery
            .group()
            .is_some_and(|group| group == PACED.as_bytes())
        {
            let grant = (delivery.value() % SAME, delivery.deliveries());
            self.grants.lock().unwrap().insert(grant);
        }
    }

    /// Notes that an item of the group was popped.
    pub(super) fn note_popped(&self) {
        self.pops.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count(&self) -> u64 {
        let grants = self.grants.lock().unwrap().len() as u64;
        grants + self.pops.load(Ordering::Relaxed)
    }
}

async fn version(runner: &Runner<Store>) -> i64 {
    let read = |tr: Tx<_>| async move { Ok::<_, Error>(tr.read_version().await?) };
    runner.run(read).await.unwrap()
}

impl Player {
    /// Checks that no item has started too early.
    pub(super) async fn check_starts(&mut self) -> Result<(), String> {
        let count = self.starts.count();
        if count == self.course.starts {
            return Ok(());
        }
        self.course.starts = count;
        // All that were counted have started since the first version and before this one.
        let versions = version(&self.store.runner()).await - self.starts.since;
        let period = PACE.period().as_secs_f64() * VERSIONS_PER_SECOND as f64;
        let more = versions as f64 * f64::from(PACE.starts()) / period;
        let most = u64::from(PACE.burst()) + more as u64;
        if count > most {
            return Err(format!(
                "{count} items have started in {versions} versions, not {most} at most"
            ));
        }
        Ok(())
    }
}

//! Counting without a queue: read the count, and write it back.

use std::time::Duration;

use keyspace::{Error, Isolation, RunOptions, Runner, Store, Subspace, Transaction, Tx};

use super::{Adder, Key, ONE, sum};
use crate::contender::Site;
use crate::meter::Metered;

/// Longer than any transaction waits for a key. A cluster's default is shorter.
const TIME_LIMIT: Duration = Duration::from_secs(600);

/// Counts that writers read and write back, exactly once, and collide.
#[derive(Debug)]
pub struct ReadModifyWrite {
    runner: Runner<Metered<Store>>,
    counts: Subspace,
}

impl Adder for ReadModifyWrite {
    async fn open(site: &Site) -> Self {
        let options = RunOptions::default()
            .with_ledger_subspace(site.ledger())
            .with_time_limit(TIME_LIMIT);
        Self {
            runner: Runner::with_options(site.db.clone(), options),
            counts: site.queue(),
        }
    }

    async fn add(&self, keys: &[Key]) {
        let counts = &self.counts;
        let add = |tr: Tx<_>| async move {
            for key in keys {
                let row = counts.pack(&(&key[..],));
                let stored = tr.get(&row, Isolation::Serializable).await?;
                let count =
                    stored.map(|bytes| bytes[..].try_into().expect("only counts are written"));
                tr.set(&row, &sum(count, &[ONE]));
            }
            Ok::<_, Error>(())
        };
        self.runner.run(add).await.expect("conflicts are retried");
    }
}

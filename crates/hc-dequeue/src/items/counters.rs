//! Reads and changes the counters of a queue.

use microqueue::keyspace::{self, Isolation, Transaction};

use crate::items::error::Result;
use crate::items::keys::{Counter, Keys};

/// Changes of counters that a transaction has not staged yet.
#[derive(Debug, Clone, Default)]
#[must_use]
pub(crate) struct Counts([i64; Counter::ALL.len()]);

impl Counts {
    pub(crate) fn add(&mut self, counter: Counter, change: i64) {
        self.0[counter as usize] += change;
    }

    pub(crate) fn of(&self, counter: Counter) -> i64 {
        self.0[counter as usize]
    }

    /// Stages the changes. The writes are blind and conflict with nothing.
    pub(crate) fn stage(self, tr: &impl Transaction, keys: &Keys) {
        for counter in Counter::ALL {
            keys.count(tr, counter, self.of(counter));
        }
    }
}

/// Reads a counter by snapshot. The value is exact at the read version.
pub(crate) async fn stored_count(
    tr: &impl Transaction,
    keys: &Keys,
    counter: Counter,
) -> Result<i64> {
    let key = keys.counter(counter);
    let Some(value) = tr.get(&key, Isolation::Snapshot).await? else {
        return Ok(0);
    };
    let count = value[..].try_into().map(i64::from_le_bytes);
    count.map_err(|_| keyspace::Error::corrupt(&key, "expected a count of eight bytes").into())
}

/// Reads a counter that cannot be negative.
pub(crate) async fn read_counter(
    tr: &impl Transaction,
    keys: &Keys,
    counter: Counter,
) -> Result<u64> {
    let count = stored_count(tr, keys, counter).await?;
    u64::try_from(count).map_err(|_| {
        let reason = format!("{count} items: `audit` finds what contradicts it");
        keyspace::Error::corrupt(&keys.counter(counter), reason).into()
    })
}

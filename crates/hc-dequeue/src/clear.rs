//! Emptying a queue.

use futures::{TryFutureExt, try_join};
use microqueue::ItemId;
use microqueue::keyspace::codec::Codec;
use microqueue::keyspace::{
    ConflictKind, Database, Isolation, RangeQuery, Runner, StreamingMode, Transaction,
};

use crate::enqueue::retire_dedupe;
use crate::error::{Error, Result};
use crate::keys::{Counter, Keys};
use crate::queue::HighContentionQueue;
use crate::record::Settings;
use crate::registry::{BYTES_PER_FULFILMENT, ITEMS_PER_FULFILMENT};

impl<T, C: Codec<T>> HighContentionQueue<T, C> {
    /// Removes the items that wait and those that are delayed, and returns how many.
    ///
    /// It takes them out as a consumer does, many in each of as many transactions as it needs, so
    /// that the counters stay exact. What is enqueued meanwhile may be among them or not; while delayed
    /// items keep coming it goes on. Items that are held and dead letters stay.
    ///
    /// # Conflicts
    /// Reads and writes the keys of the items removed.
    ///
    /// # Errors
    /// Those of [`Runner::run`]. What was removed by then stays removed.
    ///
    /// # Cancel safety
    /// Dropping the future leaves removed what was removed by then.
    pub async fn clear<D: Database>(&self, runner: &Runner<D>) -> Result<u64> {
        let (keys, settings) = (&*self.keys, &self.settings);
        let last = runner
            .run(|tr, _| async move { last(&tr, keys).await })
            .await?;
        let mut removed = 0;
        loop {
            let some = |tr, _| async move { remove_some(&tr, keys, settings, last).await };
            match runner.run(some).await? {
                0 => return Ok(removed),
                some => removed += some,
            }
        }
    }
}

/// Returns the last item that waits.
async fn last(tr: &impl Transaction, keys: &Keys) -> Result<Option<ItemId>> {
    let (begin, end) = keys.part("i");
    let last = RangeQuery::keys(begin, end).limit(1).reversed();
    let last = tr.get_range(&last, Isolation::Snapshot).await?;
    let last = last.rows.first().map(|row| keys.items.decode(row));
    Ok(last.transpose()?.map(|item| item.id))
}

/// Removes items, those that wait only up to the one named.
async fn remove_some(
    tr: &impl Transaction,
    keys: &Keys,
    settings: &Settings,
    last: Option<ItemId>,
) -> Result<u64> {
    let (begin, end) = keys.part("t");
    let delayed = RangeQuery::keys(begin, end)
        .limit(ITEMS_PER_FULFILMENT)
        .mode(StreamingMode::WantAll);
    // Safe as snapshot reads: each key that is removed is in a conflict range.
    let (items, delayed) = try_join!(
        keys.items
            .snapshot(tr, ITEMS_PER_FULFILMENT, BYTES_PER_FULFILMENT)
            .map_err(Error::from),
        tr.get_range(&delayed, Isolation::Snapshot)
            .map_err(Error::from),
    )?;
    let mut removed = 0;
    for item in items.iter().take_while(|item| Some(item.id) <= last) {
        keys.items.take(tr, &item.id)?;
        keys.count(tr, Counter::Queued, -1);
        retire_dedupe(tr, keys, settings, &item.value);
        removed += 1;
    }
    for row in &delayed.rows {
        let item = keys.delayed(keys.ready_of(row)?).decode(row)?;
        tr.add_conflict_key(ConflictKind::Read, row.key())?;
        tr.clear(row.key());
        keys.count(tr, Counter::Delayed, -1);
        retire_dedupe(tr, keys, settings, &item.value);
        removed += 1;
    }
    Ok(removed)
}

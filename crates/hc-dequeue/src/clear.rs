//! Emptying a queue.

use microqueue::keyspace::codec::Codec;
use microqueue::keyspace::transaction::key_after;
use microqueue::keyspace::{
    Bytes, Database, Isolation, RangeQuery, Runner, StreamingMode, Transaction, Tx,
};
use microqueue::{Item, ItemId};

use crate::done::end;
use crate::error::{Error, Result};
use crate::keys::{Counter, Keys};
use crate::queue::HighContentionQueue;
use crate::record::{End, Record};
use crate::registry::{BYTES_PER_FULFILLMENT, ITEMS_PER_FULFILLMENT};
use crate::settings::Settings;

impl<T, C: Codec<T>> HighContentionQueue<T, C> {
    /// Removes the items that wait and those that are delayed, and returns how many.
    ///
    /// It takes them out as a consumer does, many in each of as many transactions as it needs, so
    /// that the counters stay exact. What is enqueued after the call stays, and so do items that are
    /// held and dead letters.
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
        let keys = &*self.keys;
        let now = |tr: Tx<_>| async move {
            Ok::<_, Error>((tr.read_version().await?, self.settings(&tr).await?))
        };
        let (until, settings) = runner.run(now).await?;
        let settings = &settings;
        let mut removed = 0;
        // First, since those that come to be due meanwhile are then among those that wait.
        let mut after: Option<Vec<u8>> = None;
        loop {
            let after_last = after.as_deref();
            let some =
                |tr| async move { remove_delayed(&tr, keys, settings, until, after_last).await };
            let (some, last) = runner.run(some).await?;
            removed += some;
            if last.is_none() {
                break;
            }
            after = last;
        }
        loop {
            let some = |tr| async move { remove_waiting(&tr, keys, settings, until).await };
            match runner.run(some).await? {
                0 => return Ok(removed),
                some => removed += some,
            }
        }
    }
}

/// Removes the first items that wait and were enqueued at a version or before. Returns how many.
async fn remove_waiting(
    tr: &impl Transaction,
    keys: &Keys,
    settings: &Settings,
    until: i64,
) -> Result<u64> {
    // Safe as a snapshot read: each key that is removed is in a conflict range.
    let items = keys
        .items
        .snapshot(tr, ITEMS_PER_FULFILLMENT, BYTES_PER_FULFILLMENT)
        .await?;
    let mut removed = 0;
    for item in items.iter().filter(|item| is_of(&item.id, until)) {
        keys.items.remove(tr, &item.id)?;
        end_cleared(tr, keys, settings, item)?;
        removed += 1;
    }
    keys.count(tr, Counter::Queued, -removed);
    Ok(removed.unsigned_abs())
}

/// Removes items that are delayed and were enqueued at a version or before, among the next ones behind
/// the key `after`. Returns how many, and the last key; `None` at the end.
async fn remove_delayed(
    tr: &impl Transaction,
    keys: &Keys,
    settings: &Settings,
    until: i64,
    after: Option<&[u8]>,
) -> Result<(u64, Option<Vec<u8>>)> {
    let (begin, end) = keys.part("t");
    let page = RangeQuery::keys(after.map_or(begin, key_after), end)
        .limit(ITEMS_PER_FULFILLMENT)
        .mode(StreamingMode::WantAll);
    // Safe as a snapshot read, as above.
    let page = tr.get_range(&page, Isolation::Snapshot).await?;
    let mut removed = 0;
    for row in &page.rows {
        let ready = keys.parse_ready(row)?;
        let item = keys.delayed(ready).decode(row)?;
        if is_of(&item.id, until) {
            keys.undelay(tr, ready, &item.id)?;
            end_cleared(tr, keys, settings, &item)?;
            removed += 1;
        }
    }
    keys.count(tr, Counter::Delayed, -removed);
    let is_last = !page.more && page.rows.len() < ITEMS_PER_FULFILLMENT;
    let last = page.rows.last().filter(|_| !is_last);
    Ok((removed.unsigned_abs(), last.map(|row| row.key().to_vec())))
}

fn end_cleared(
    tr: &impl Transaction,
    keys: &Keys,
    settings: &Settings,
    item: &Item<Record>,
) -> Result<()> {
    let (id, record) = (&item.id, &item.value);
    end(tr, keys, settings, id, record, End::Removed, Bytes::new())
}

/// Returns whether an item was enqueued at a version or before.
pub(crate) fn is_of(id: &ItemId, until: i64) -> bool {
    matches!(id, ItemId::Commit { versionstamp, .. } if versionstamp.commit_version() <= until)
}

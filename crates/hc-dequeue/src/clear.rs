//! Removes all waiting items.

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
    /// Removes all queued and delayed items, and returns how many it removed.
    ///
    /// It removes them in as many transactions as necessary, and keeps the counters exact. Items that are enqueued
    /// after the call starts, held items and dead letters stay.
    ///
    /// # Conflicts
    /// Reads and writes the keys of the removed items.
    ///
    /// # Errors
    /// Those of [`Runner::run`]. Items that were already removed stay removed.
    ///
    /// # Cancel safety
    /// If the future is dropped, items that were already removed stay removed.
    pub async fn clear<D: Database>(&self, runner: &Runner<D>) -> Result<u64> {
        let keys = &*self.keys;
        let now = |tr: Tx<_>| async move {
            Ok::<_, Error>((tr.read_version().await?, self.settings(&tr).await?))
        };
        let (until, settings) = runner.run(now).await?;
        let settings = &settings;
        let mut removed = 0;
        // Delayed items come first: those that become due meanwhile are then found among the queued ones.
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

/// Removes the first waiting items that were enqueued at or before a version. Returns how many.
async fn remove_waiting(
    tr: &impl Transaction,
    keys: &Keys,
    settings: &Settings,
    until: i64,
) -> Result<u64> {
    // Safe as a snapshot read: the key of each removed item is in a conflict range.
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

/// Removes delayed items that were enqueued at or before a version, among the next ones after the key `after`.
/// Returns how many were removed, and the last key that was read, or `None` at the end.
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
    // Safe as a snapshot read: the key of each removed item is in a conflict range.
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
    let last = page.next_after().map(<[u8]>::to_vec);
    Ok((removed.unsigned_abs(), last))
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

/// Returns whether an item was enqueued at or before a version.
pub(crate) fn is_of(id: &ItemId, until: i64) -> bool {
    matches!(id, ItemId::Commit { versionstamp, .. } if versionstamp.commit_version() <= until)
}

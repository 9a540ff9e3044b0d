//! Removes all waiting items.

use std::ops::ControlFlow;

use futures::future::BoxFuture;
use microqueue::keyspace::codec::Codec;
use microqueue::keyspace::transaction::key_after;
use microqueue::keyspace::{
    Bytes, Database, Isolation, KeyValue, RangeQuery, Runner, Store, StreamingMode, Transaction,
    Tx, visit_rows,
};
use microqueue::{Item, ItemId};

use crate::items::changes::Changes;
use crate::items::end::{Ending, Rules, end};
use crate::items::error::{Error, Result};
use crate::items::find::Location;
use crate::items::key_limits::KnownLimits;
use crate::items::keys::Keys;
use crate::items::places::take_out;
use crate::items::priority::Priority;
use crate::items::record::{End, Record};
use crate::items::settings::{Settings, current_settings};
use crate::protocol::{MAX_FULFILLMENT_BYTES, MAX_FULFILLMENT_ITEMS};
use crate::queue::handle::Queue;

impl<T, C: Codec<T>> Queue<T, C> {
    /// Removes all queued and delayed items, which frees their dedupe ids. Returns how many it removed.
    ///
    /// It removes them in as many transactions as necessary, and keeps the counters exact. Items that are enqueued
    /// after the call starts, held items, dead letters and rows that do not decode stay.
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
        clear(&runner.on_store(), &self.keys).await
    }
}

/// Removes all queued and delayed items. Returns how many it removed.
fn clear<'a>(runner: &'a Runner<Store>, keys: &'a Keys) -> BoxFuture<'a, Result<u64>> {
    Box::pin(async move {
        let now = |tr: Tx<_>| async move {
            Ok::<_, Error>((tr.read_version().await?, current_settings(&tr, keys).await?))
        };
        let (until, settings) = runner.run(now).await?;
        let settings = &settings;
        let mut removed = 0;
        // Delayed items come first: those that become due meanwhile are then found among the queued ones.
        let queued = Priority::all().map(ClearedPart::Queued);
        let parts = [ClearedPart::Delayed].into_iter().chain(queued);
        for part in parts.chain([ClearedPart::Lanes]) {
            let mut after: Option<Vec<u8>> = None;
            loop {
                let page = ClearedPage {
                    part,
                    after: after.as_deref(),
                };
                let some = |tr| async move { remove_some(&tr, keys, settings, until, page).await };
                let (some, last) = runner.run(some).await?;
                removed += some;
                if last.is_none() {
                    break;
                }
                after = last;
            }
        }
        Ok(removed)
    })
}

/// The parts from which items are removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClearedPart {
    Queued(Priority),
    Lanes,
    Delayed,
}

/// The next rows of a part after a key.
#[derive(Debug, Clone, Copy)]
struct ClearedPage<'a> {
    part: ClearedPart,
    after: Option<&'a [u8]>,
}

/// Removes the items on a page that were enqueued at or before a version. Returns how many were removed, and the last
/// key that was read, or `None` at the end. Rows that do not decode stay.
async fn remove_some(
    tr: &impl Transaction,
    keys: &Keys,
    settings: &Settings,
    until: i64,
    ClearedPage { part, after }: ClearedPage<'_>,
) -> Result<(u64, Option<Vec<u8>>)> {
    let (begin, end_of_part) = match part {
        ClearedPart::Queued(priority) => keys.queued(priority).subspace().range(),
        ClearedPart::Lanes => keys.part("l"),
        ClearedPart::Delayed => keys.part("t"),
    };
    let query = RangeQuery::keys(after.map_or(begin, key_after), end_of_part)
        .limit(MAX_FULFILLMENT_ITEMS)
        .mode(StreamingMode::WantAll);
    let mut items = Vec::new();
    let mut rows = 0;
    let mut bytes = 0;
    let mut last = None;
    // Safe as a snapshot read: the key of each removed item is in a conflict range.
    let visited = visit_rows(tr, query, Isolation::Snapshot, |row: KeyValue| {
        rows += 1;
        bytes += row.key().len() + row.value().len();
        let next = if bytes < MAX_FULFILLMENT_BYTES {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        };
        last = Some(row.to_key());
        let Some((location, item)) = parse(keys, part, &row) else {
            return Ok(next);
        };
        if is_of(&item.id, until) {
            items.push((location, item));
        } else if matches!(part, ClearedPart::Queued(_)) {
            // Items of a priority are in the order of their enqueues, so all others are newer, too.
            last = None;
            return Ok(ControlFlow::Break(()));
        }
        Ok::<_, Error>(next)
    });
    visited.await?;
    if rows < MAX_FULFILLMENT_ITEMS && bytes < MAX_FULFILLMENT_BYTES {
        last = None;
    }
    let records = items.iter().map(|(_, item)| &item.value);
    let limits = &KnownLimits::of_slots(tr, keys, records).await?;
    let rules = Rules { settings, limits };
    let removed = items.len() as u64;
    let mut changes = Changes::default();
    for (location, Item { id, value: record }) in items {
        take_out(tr, keys, &id, &record, &location, &mut changes)?;
        let ending = Ending {
            id: &id,
            record: &record,
            how: End::Removed,
            result: Bytes::new(),
        };
        end(tr, keys, rules, ending, &mut changes)?;
    }
    changes.stage(tr, keys);
    Ok((removed, last.map(|key| key.to_vec())))
}

/// Returns the item of a row, and where it is.
fn parse(keys: &Keys, part: ClearedPart, row: &KeyValue) -> Option<(Location, Item<Record>)> {
    if part == ClearedPart::Delayed {
        let ready = keys.parse_ready(row).ok()?;
        let item = keys.delayed(ready).decode(row).ok()?;
        return Some((Location::Delayed(ready), item));
    }
    let spot = keys.parse_queued(row.key()).ok()?;
    Some((Location::Queued(spot), keys.decode_queued(row).ok()?))
}

/// Returns whether an item was enqueued at or before a version.
pub(crate) fn is_of(id: &ItemId, until: i64) -> bool {
    matches!(id, ItemId::Commit { versionstamp, .. } if versionstamp.commit_version() <= until)
}

#[cfg(test)]
mod tests {
    use microqueue::keyspace::{self, OpenOptions, OwnedTransaction};

    use super::*;

    #[tokio::test]
    async fn a_clear_ends_at_the_first_item_that_is_newer_and_at_the_end_of_the_queue() {
        let db = keyspace::open("memory:").unwrap();
        let runner = Runner::new(db.clone());
        let settings = Settings::new();
        let queue =
            Queue::<u64>::open_with(&runner, "queue", settings.clone(), OpenOptions::default());
        let queue = &queue.await.unwrap();
        let keys = &*queue.keys;
        let count = MAX_FULFILLMENT_ITEMS + 10;
        let values: &Vec<u64> = &(0..count as u64).collect();
        let add = |tr| async move { queue.enqueue_all(&tr, values).await.map(drop) };
        let before = db.begin().unwrap().read_version().await.unwrap();
        runner.run(add).await.unwrap();
        let step = async |until, after: Option<&[u8]>| {
            let page = ClearedPage {
                part: ClearedPart::Queued(Priority::DEFAULT),
                after,
            };
            let mut tr = db.begin().unwrap();
            let (removed, last) = remove_some(&tr, keys, &settings, until, page)
                .await
                .unwrap();
            tr.commit().await.unwrap();
            (removed, last)
        };
        assert_eq!(step(before, None).await, (0, None));
        let (removed, last) = step(i64::MAX, None).await;
        assert_eq!(removed, MAX_FULFILLMENT_ITEMS as u64);
        assert_eq!(step(i64::MAX, last.as_deref()).await, (10, None));
    }
}

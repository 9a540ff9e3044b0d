//! Removes all waiting items.

use std::ops::ControlFlow;

use futures::future::BoxFuture;
use microqueue::keyspace::codec::Codec;
use microqueue::keyspace::{
    Bytes, Database, Isolation, KeyValue, RangeQuery, Runner, Store, StreamingMode, Transaction,
    Tx, Versionstamp, visit_rows,
};
use microqueue::{Item, ItemId};

use crate::items::changes::Changes;
use crate::items::counters::read_counter;
use crate::items::end::{Ending, Rules, end};
use crate::items::error::{Error, Result};
use crate::items::group_limits::KnownLimits;
use crate::items::item_row::decode_item;
use crate::items::keys::Keys;
use crate::items::part::Counter;
use crate::items::part::Part;
use crate::items::places::take_out;
use crate::items::priority::Priority;
use crate::items::record::End;
use crate::items::settings::Settings;
use crate::items::settings_row::current_settings;
use crate::items::{MAX_STEP_BYTES, MAX_STEP_ITEMS};
use crate::queue::handle::Queue;

/// What [`clear`](Queue::clear) has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
#[non_exhaustive]
pub struct Cleared {
    /// How many items it removed.
    pub removed: u64,
    /// How many items sessions held when it ended. They stay, and wait in the queue again if they come back.
    pub held: u64,
}

impl<T, C: Codec<T>> Queue<T, C> {
    /// Removes all queued and delayed items, which frees their dedupe ids.
    ///
    /// It removes them in as many transactions as necessary, and keeps the counters exact. Items that are enqueued
    /// after the call starts, held items, dead letters and rows that do not decode stay.
    ///
    /// It begins with the items that would be granted last, and goes on until it finds none. Beside busy sessions, it
    /// removes what they have not taken before; [`Cleared::held`] says how many items they hold. To remove those that
    /// come back, too, pause the queue, wait until none is held, and clear it again.
    ///
    /// # Conflicts
    /// Reads and writes the rows of the removed items.
    ///
    /// # Errors
    /// Those of [`Runner::run`]. Items that were already removed stay removed.
    ///
    /// # Cancel safety
    /// If the future is dropped, items that were already removed stay removed.
    pub async fn clear<D: Database>(&self, runner: &Runner<D>) -> Result<Cleared> {
        clear(&runner.on_store(), &self.keys).await
    }
}

/// Removes all queued and delayed items.
fn clear<'a>(runner: &'a Runner<Store>, keys: &'a Keys) -> BoxFuture<'a, Result<Cleared>> {
    Box::pin(async move {
        let now = |tr: Tx<_>| async move {
            Ok::<_, Error>((tr.read_version().await?, current_settings(&tr, keys).await?))
        };
        let (until, settings) = runner.run(now).await?;
        let mut removed = 0;
        // An item that comes back while a pass is under way may come to a place that the pass has left.
        loop {
            let some = clear_once(runner, keys, &settings, until).await?;
            removed += some;
            if some == 0 {
                break;
            }
        }
        let held = |tr| async move { read_counter(&tr, keys, Counter::Held).await };
        let held = runner.run(held).await?;
        Ok(Cleared { removed, held })
    })
}

/// Goes through all parts once, and removes the items that were enqueued at or before a version. Returns how many.
async fn clear_once(
    runner: &Runner<Store>,
    keys: &Keys,
    settings: &Settings,
    until: i64,
) -> Result<u64> {
    let mut removed = 0;
    for (part, begin, mut end) in cleared_ranges(keys, until) {
        loop {
            let range = (&begin[..], &end[..]);
            let some = |tr: Tx<_>| async move {
                // Fewer items conflict with fewer grants, so that a busy queue lets the step commit in the end.
                let failed = tr.attempt().number.saturating_sub(1);
                let page = ClearedPage {
                    part,
                    range,
                    items: MAX_STEP_ITEMS >> failed.min(MAX_STEP_ITEMS.ilog2()),
                };
                remove_some(&tr, keys, settings, until, page).await
            };
            let (some, last) = runner.run(some).await?;
            removed += some;
            let Some(last) = last else {
                break;
            };
            end = last;
        }
    }
    Ok(removed)
}

/// Returns the parts from which items are removed, with the ranges of those that were enqueued at or before a version,
/// and perhaps of others.
fn cleared_ranges(keys: &Keys, until: i64) -> Vec<(Part, Vec<u8>, Vec<u8>)> {
    // Delayed items come first: those that become due meanwhile are then found among the queued ones.
    let (begin, end) = keys.part(Part::Delayed);
    let mut ranges = vec![(Part::Delayed, begin, end)];
    for priority in Priority::all() {
        let queued = keys.queued(priority).subspace();
        let (begin, _) = queued.range();
        // Items of a priority are in the order of their enqueues.
        let end = first_after(until).key_in(queued);
        ranges.push((Part::of_priority(priority), begin, end));
    }
    let (begin, end) = keys.part(Part::Lanes);
    ranges.push((Part::Lanes, begin, end));
    ranges
}

/// The last rows of a range of a part, up to a number of them.
#[derive(Debug, Clone, Copy)]
struct ClearedPage<'a> {
    part: Part,
    range: (&'a [u8], &'a [u8]),
    items: usize,
}

/// Removes the items on a page that were enqueued at or before a version. Returns how many were removed, and the first
/// key of the page, or `None` if it was the last page. Rows that do not decode stay.
///
/// A page is read from its end: sessions take items from the beginning.
async fn remove_some(
    tr: &impl Transaction,
    keys: &Keys,
    settings: &Settings,
    until: i64,
    page: ClearedPage<'_>,
) -> Result<(u64, Option<Vec<u8>>)> {
    let (begin, before) = page.range;
    let query = RangeQuery::keys(begin.to_vec(), before.to_vec())
        .limit(page.items)
        .reversed()
        .mode(StreamingMode::WantAll);
    let mut items = Vec::new();
    let mut rows = 0;
    let mut bytes = 0;
    let mut last = None;
    // Safe as a snapshot read: the key of each removed item is in a conflict range.
    let visited = visit_rows(tr, query, Isolation::Snapshot, |row: KeyValue| {
        rows += 1;
        bytes += row.key().len() + row.value().len();
        let next = if bytes < MAX_STEP_BYTES {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        };
        last = Some(row.to_key());
        if let Ok(Some((location, item))) = decode_item(keys, page.part, &row)
            && is_of(&item.id, until)
        {
            items.push((location, item));
        }
        Ok::<_, Error>(next)
    });
    visited.await?;
    if rows < page.items && bytes < MAX_STEP_BYTES {
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

/// Returns the first id that an item may have which was enqueued after a version.
fn first_after(version: i64) -> ItemId {
    ItemId::Commit {
        versionstamp: Versionstamp::new(version.saturating_add(1), 0),
        call: 0,
    }
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
    async fn a_clear_reads_no_newer_items_and_ends_at_the_beginning_of_the_queue() {
        let db = keyspace::open("memory:").unwrap();
        let runner = Runner::new(db.clone());
        let settings = Settings::new();
        let queue =
            Queue::<u64>::open_with(&runner, "queue", settings.clone(), OpenOptions::default());
        let queue = &queue.await.unwrap();
        let keys = &*queue.keys;
        let count = MAX_STEP_ITEMS + 10;
        let values: &Vec<u64> = &(0..count as u64).collect();
        let add = |tr| async move { queue.enqueue_all(&tr, values).await.map(drop) };
        let before = db.begin().unwrap().read_version().await.unwrap();
        runner.run(add).await.unwrap();
        let step = async |until, before: Option<&[u8]>| {
            let mut ranges = cleared_ranges(keys, until).into_iter();
            let (part, begin, end) = ranges.find(|(part, ..)| *part == Part::Queued).unwrap();
            let page = ClearedPage {
                part,
                range: (&begin, before.unwrap_or(&end)),
                items: MAX_STEP_ITEMS,
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
        assert_eq!(removed, MAX_STEP_ITEMS as u64);
        assert_eq!(step(i64::MAX, last.as_deref()).await, (10, None));
    }
}

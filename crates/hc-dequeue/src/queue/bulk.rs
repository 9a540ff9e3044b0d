//! Changes of many items, in as many transactions as necessary.
//!
//! A change begins with the items that would be granted last: sessions take items from the beginning. Fewer items
//! conflict with fewer grants, so each failed attempt of a transaction halves their number, and a busy queue lets it
//! commit in the end.

use std::ops::ControlFlow;

use microqueue::keyspace::{
    Bytes, ConflictKind, Isolation, KeyValue, RangeQuery, Runner, Store, StreamingMode,
    Transaction, Tx, Versionstamp, visit_rows,
};
use microqueue::{Item, ItemId};

use crate::items::changes::Changes;
use crate::items::end::{Ending, Rules, end};
use crate::items::error::{Error, Result};
use crate::items::find::Location;
use crate::items::group_limits::KnownLimits;
use crate::items::item_row::decode_item;
use crate::items::keys::Keys;
use crate::items::part::Part;
use crate::items::places::{Destination, put_in, take_out};
use crate::items::priority::Priority;
use crate::items::record::{End, Record};
use crate::items::settings::Settings;
use crate::items::settings_row::current_settings;
use crate::items::{MAX_STEP_BYTES, MAX_STEP_ITEMS};
use crate::queue::change::cancel_held;
use crate::queue::items_of::ItemsOf;

/// The parts with items that wait outside lanes.
const QUEUED: [Part; 3] = [Part::QueuedAbove, Part::Queued, Part::QueuedBelow];

/// What becomes of items.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// Those that wait are removed.
    Cleared,
    /// Those that no session holds are removed, and sessions let go of the others.
    Cancelled,
    /// Dead letters return to the queue.
    Redriven,
}

/// How many items a change has changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Changed {
    /// How many of those that no session held.
    pub(super) unheld: u64,
    /// How many of those that sessions hold.
    pub(super) held: u64,
}

impl Changed {
    fn add(&mut self, other: Self) {
        self.unheld += other.unheld;
        self.held += other.held;
    }
}

/// A change of many items: of those that were enqueued before it began.
#[derive(Debug)]
pub(super) struct BulkChange<'a> {
    keys: &'a Keys,
    fate: Fate,
    /// `None`: all.
    items: Option<&'a ItemsOf>,
    /// The version at which it began.
    begun: i64,
    settings: Settings,
}

impl<'a> BulkChange<'a> {
    pub(super) async fn begin(
        runner: &Runner<Store>,
        keys: &'a Keys,
        fate: Fate,
        items: Option<&'a ItemsOf>,
    ) -> Result<Self> {
        if let Some(items) = items {
            items.check(keys)?;
        }
        let now = |tr: Tx<_>| async move {
            Ok::<_, Error>((tr.read_version().await?, current_settings(&tr, keys).await?))
        };
        let (begun, settings) = runner.run(now).await?;
        Ok(Self {
            keys,
            fate,
            items,
            begun,
            settings,
        })
    }

    /// Changes items until a pass finds none.
    pub(super) async fn run(&self, runner: &Runner<Store>) -> Result<Changed> {
        let mut changed = Changed::default();
        loop {
            let some = self.pass(runner).await?;
            changed.add(some);
            // An item that is granted and comes back while a pass is under way may come to a place that the pass has
            // left. But a redriven item that dies again is not redriven again.
            if some == Changed::default() || self.fate == Fate::Redriven {
                return Ok(changed);
            }
        }
    }

    /// Goes through all parts once.
    async fn pass(&self, runner: &Runner<Store>) -> Result<Changed> {
        let mut changed = Changed::default();
        for (part, begin, mut end) in self.ranges() {
            loop {
                let range = (&begin[..], &end[..]);
                let some = |tr: Tx<_>| async move {
                    let failed = tr.attempt().number.saturating_sub(1);
                    let page = BulkPage {
                        part,
                        range,
                        items: MAX_STEP_ITEMS >> failed.min(MAX_STEP_ITEMS.ilog2()),
                    };
                    self.change_some(&tr, page).await
                };
                let (some, last) = runner.run(some).await?;
                changed.add(some);
                let Some(last) = last else {
                    break;
                };
                end = last;
            }
        }
        Ok(changed)
    }

    /// Returns the ranges of a pass, each with its part: those of the items that it is for, and perhaps of others.
    fn ranges(&self) -> Vec<(Part, Vec<u8>, Vec<u8>)> {
        let keys = self.keys;
        let mut ranges = Vec::new();
        for part in self.parts() {
            let range = match self.items {
                Some(items) => items.range_in(keys, part),
                None => Some(keys.part(part)),
            };
            let Some((begin, end)) = range else {
                continue;
            };
            if !QUEUED.contains(&part) {
                ranges.push((part, begin, end));
                continue;
            }
            for priority in Priority::all() {
                if Part::of_priority(priority) == part {
                    let queued = keys.queued(priority).subspace();
                    let (begin, _) = queued.range();
                    // Items of a priority are in the order of their enqueues.
                    let end = first_after(self.begun).key_in(queued);
                    ranges.push((part, begin, end));
                }
            }
        }
        ranges
    }

    /// Returns the parts of a pass. An item that moves on meanwhile is found in a later one: when it becomes due, is
    /// granted, or is collected.
    ///
    /// A cancellation begins with what sessions hold, which they would give back to parts that the pass has left: once
    /// it is cancelled, it does not come back. What is granted later is found at the end.
    fn parts(&self) -> Vec<Part> {
        let waiting = [&[Part::Delayed][..], &QUEUED, &[Part::Lanes]].concat();
        let held = [Part::Grants, Part::Held];
        match self.fate {
            Fate::Cleared => waiting,
            Fate::Cancelled => [&held[..], &waiting, &[Part::Dead], &held].concat(),
            Fate::Redriven => vec![Part::Dead],
        }
    }

    /// Changes the items on a page. Returns how many, and the first key of the page, or `None` if it was the last page.
    /// Rows that do not decode stay.
    ///
    /// A page is read from its end.
    async fn change_some(
        &self,
        tr: &impl Transaction,
        page: BulkPage<'_>,
    ) -> Result<(Changed, Option<Vec<u8>>)> {
        let (begin, before) = page.range;
        let query = RangeQuery::keys(begin.to_vec(), before.to_vec())
            .limit(page.items)
            .reversed()
            .mode(StreamingMode::WantAll);
        let mut items = Vec::new();
        let mut rows = 0;
        let mut bytes = 0;
        let mut last = None;
        // Safe as a snapshot read: the key of each item that is changed is in a conflict range.
        let visited = visit_rows(tr, query, Isolation::Snapshot, |row: KeyValue| {
            rows += 1;
            bytes += row.key().len() + row.value().len();
            let next = if bytes < MAX_STEP_BYTES {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            };
            last = Some(row.to_key());
            if let Ok(Some((location, item))) = decode_item(self.keys, page.part, &row)
                && self.is_for(&item)
            {
                items.push((location, item));
            }
            Ok::<_, Error>(next)
        });
        visited.await?;
        if rows < page.items && bytes < MAX_STEP_BYTES {
            last = None;
        }
        let changed = self.stage(tr, items).await?;
        Ok((changed, last.map(|key| key.to_vec())))
    }

    fn is_for(&self, item: &Item<Record>) -> bool {
        is_of(&item.id, self.begun)
            && item.value.cancelled_millis == 0
            && self.items.is_none_or(|items| items.have(&item.value))
    }

    /// Stages the changes of these items.
    ///
    /// # Conflicts
    /// Reads and writes their rows, and reads the limits of the groups of those that have slots.
    async fn stage(
        &self,
        tr: &impl Transaction,
        items: Vec<(Location, Item<Record>)>,
    ) -> Result<Changed> {
        let keys = self.keys;
        let records = items.iter().map(|(_, item)| &item.value);
        let limits = &KnownLimits::of_slots(tr, keys, records).await?;
        let settings = &self.settings;
        let rules = Rules { settings, limits };
        let mut changed = Changed::default();
        let mut changes = Changes::default();
        for (location, Item { id, value }) in items {
            let mut record = value;
            if matches!(location, Location::Held(_) | Location::Granted { .. }) {
                tr.add_conflict_key(ConflictKind::Read, &location.key(keys, &id))?;
                cancel_held(tr, keys, &id, &location, record)?;
                changed.held += 1;
                continue;
            }
            take_out(tr, keys, &id, &record, &location, &mut changes)?;
            let how = match self.fate {
                Fate::Cleared => End::Removed,
                Fate::Cancelled => End::Cancelled,
                Fate::Redriven => {
                    record.reset_counts();
                    put_in(tr, keys, &id, record, Destination::Queued, &mut changes)?;
                    changed.unheld += 1;
                    continue;
                }
            };
            let ending = Ending {
                id: &id,
                record: &record,
                how,
                result: Bytes::new(),
            };
            end(tr, keys, rules, ending, &mut changes)?;
            changed.unheld += 1;
        }
        changes.stage(tr, keys);
        Ok(changed)
    }
}

/// The last rows of a range of a part, up to a number of them.
#[derive(Debug, Clone, Copy)]
struct BulkPage<'a> {
    part: Part,
    range: (&'a [u8], &'a [u8]),
    items: usize,
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
mod tests;

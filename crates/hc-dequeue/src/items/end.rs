//! Done items: how they end, and how long they are kept.
//!
//! Every item that leaves the queue goes through [`end`]. If the settings keep done items, `end` moves the record to
//! a part of its own together with the outcome, and adds a key to an index by expiry time. Sessions sweep that index
//! at their heartbeats.

use microqueue::ItemId;
use microqueue::keyspace::record::millis;
use microqueue::keyspace::{Bytes, Isolation, RangeQuery, StreamingMode, Transaction};

use crate::items::changes::Changes;
use crate::items::dedupe::end_dedupe;
use crate::items::error::Result;
use crate::items::group_limits::KnownLimits;
use crate::items::keys::Keys;
use crate::items::part::Counter;
use crate::items::record::{Checkpoint, End, Record, StoredEnd};
use crate::items::settings::Settings;
use crate::session::wall::wall_millis;

/// The largest number of items that one transaction sweeps.
const MAX_SWEPT_ITEMS: usize = 1_000;

/// An item that ends.
pub(crate) struct Ending<'a> {
    pub(crate) id: &'a ItemId,
    pub(crate) record: &'a Record,
    pub(crate) how: End,
    pub(crate) result: Bytes,
}

/// By what an item ends: the settings of the queue, and the limits of the groups of the items that have slots.
#[derive(Clone, Copy)]
pub(crate) struct Rules<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) limits: &'a KnownLimits,
}

/// Stages the end of an item that has been removed from its place.
pub(crate) fn end(
    tr: &impl Transaction,
    keys: &Keys,
    rules: Rules<'_>,
    ending: Ending<'_>,
    changes: &mut Changes,
) -> Result<()> {
    let Ending {
        id,
        record,
        how,
        result,
    } = ending;
    let counter = match how {
        End::Completed => Counter::Completed,
        End::Cancelled => Counter::Cancelled,
        End::Removed => Counter::Removed,
    };
    changes.add(counter, 1);
    let settings = rules.settings;
    changes.end_slot(record, rules.limits);
    changes.end_member(record, how);
    end_dedupe(tr, keys, settings, id, record, how);
    if !settings.keep_done.is_zero() {
        let now = wall_millis(&keys.env);
        let until_millis = now.saturating_add(millis(settings.keep_done));
        let end = StoredEnd {
            millis: now,
            until_millis,
            how,
            result,
        };
        let mut record = record.clone();
        record.has_slot = false;
        record.spent = None;
        record.checkpoint = Checkpoint::default();
        record.end = Some(end);
        keys.done.insert(tr, id, &record)?;
        tr.set(&id.key_in(&keys.kept_until(until_millis)), b"");
    }
    Ok(())
}

/// Removes some of the done items whose time is over. Returns `true` if there may be more.
///
/// # Conflicts
/// Reads by snapshot, which is safe because a done item never comes back.
pub(crate) async fn sweep_done(tr: &impl Transaction, keys: &Keys) -> Result<bool> {
    let (begin, end) = keys.kept_at_most_until(wall_millis(&keys.env));
    let query = RangeQuery::keys(begin, end)
        .limit(MAX_SWEPT_ITEMS)
        .mode(StreamingMode::WantAll);
    let page = tr.get_range(&query, Isolation::Snapshot).await?;
    let mut removed = 0;
    for row in &page.rows {
        let Ok((_, id)) = keys.parse_kept(row.key()) else {
            continue;
        };
        tr.clear(&id.key_in(keys.done.subspace()));
        tr.clear(row.key());
        removed += 1;
    }
    Ok(removed > 0 && (page.more || page.rows.len() == MAX_SWEPT_ITEMS))
}

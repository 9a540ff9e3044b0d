//! Reads what could be granted: the stamps of lanes, the items that are in no lane, and the delayed items that are due.

use futures::try_join;
use microqueue::Item;
use microqueue::keyspace::{Bytes, KeyValue, Transaction};

use super::front::{Head, ReadLimit};
use super::{MAX_FULFILLMENT_BYTES, MAX_FULFILLMENT_PROMOTIONS, SessionContext};
use crate::items::changes::Changes;
use crate::items::error::Result;
use crate::items::find::Location;
use crate::items::keys::Keys;
use crate::items::places::{put_queued, take_out};
use crate::items::record::Record;
use crate::protocol::lanes::look::{Stamps, first_stamps};
use crate::protocol::lanes::settle::stage_fence;

/// What could be granted.
#[derive(Debug)]
pub(crate) struct Ready {
    pub(crate) stamps: Stamps,
    /// The first items that are in no lane.
    pub(crate) items: Vec<Item<Record>>,
    /// Whether the read has found as many items as wanted or possible.
    pub(crate) is_complete: bool,
}

impl Ready {
    pub(crate) fn nothing() -> Self {
        Self {
            stamps: Stamps::default(),
            items: Vec::new(),
            is_complete: true,
        }
    }

    /// Returns whether nothing was found.
    pub(crate) fn is_empty(&self) -> bool {
        self.stamps.is_empty() && self.items.is_empty()
    }
}

/// Promotes delayed items that are due, and reads what could be granted then. Adds the promotions to the changes.
pub(super) async fn ready_items(
    tr: &impl Transaction,
    context: SessionContext<'_>,
    limit: usize,
) -> Result<(Ready, Changes)> {
    let mut changes = Changes::default();
    let (promoted, ready) = try_join!(
        promote(tr, context, &mut changes),
        queued(tr, context, limit, 0)
    )?;
    let mut ready = match promoted.count {
        0 => ready,
        _ => queued(tr, context, limit, 0).await?,
    };
    ready.is_complete &= promoted.is_complete;
    Ok((ready, changes))
}

/// Reads what could be granted besides `gone` items, or nothing if a delayed item would have to be promoted first.
pub(super) async fn items_unless_due(
    tr: &impl Transaction,
    context: SessionContext<'_>,
    limit: usize,
    gone: usize,
) -> Result<Ready> {
    let max = ReadLimit {
        items: 1,
        row_bytes: MAX_FULFILLMENT_BYTES,
    };
    let due = due(tr, context, max);
    let (due, ready) = try_join!(due, queued(tr, context, limit, gone))?;
    Ok(if due.items.is_empty() && due.is_complete {
        ready
    } else {
        Ready::nothing()
    })
}

/// Reads the first stamps and the first items that are in no lane. While there are no stamps, one read of a range
/// returns the items and shows that there are none. `gone` of the items that it reads will not be granted.
pub(crate) async fn queued(
    tr: &impl Transaction,
    context: SessionContext<'_>,
    limit: usize,
    gone: usize,
) -> Result<Ready> {
    let keys = context.keys;
    let fronts = context.fronts;
    let front = &fronts.queued;
    let max = ReadLimit {
        items: limit + gone,
        row_bytes: MAX_FULFILLMENT_BYTES,
    };
    let now = keys.env.now();
    if !fronts.lanes.saw_stamps() && !front.is_known() {
        // A stamp is a row without an item.
        let decode = |row: &KeyValue| match keys.decode_queued(row) {
            Ok(item) => Some(Some(item)),
            Err(_) => keys.parse_stamp(row.key()).map(|_| None),
        };
        let range = keys.stamps_and_items();
        let head = front.read(tr, now, range, max, decode).await?;
        let rows = head.items.len();
        let items: Vec<_> = head.items.into_iter().map_while(|item| item).collect();
        if items.len() == rows {
            return Ok(Ready {
                stamps: Stamps::default(),
                items,
                is_complete: head.is_complete,
            });
        }
    }
    let decode = |row: &KeyValue| keys.decode_queued(row).ok();
    let range = keys.outside_lanes();
    let (stamps, head) = try_join!(
        first_stamps(tr, keys, &fronts.lanes, limit),
        front.read(tr, now, range, max, decode)
    )?;
    fronts.lanes.note_stamps(!stamps.is_empty());
    Ok(Ready {
        stamps,
        items: head.items,
        is_complete: head.is_complete,
    })
}

/// A delayed item, or a parked lane.
pub(crate) struct DelayedRow {
    pub(crate) ready_millis: u64,
    delayed: Delayed,
}

enum Delayed {
    Item(Box<Item<Record>>),
    /// The lane of a key.
    Lane(Bytes),
}

/// Reads the first delayed items and parked lanes between two keys.
pub(crate) async fn delayed(
    tr: &impl Transaction,
    context: SessionContext<'_>,
    range: (Vec<u8>, Vec<u8>),
    max: ReadLimit,
) -> Result<Head<DelayedRow>> {
    let keys = context.keys;
    let decode = |row: &KeyValue| {
        if let Some((ready_millis, key)) = keys.parse_parked(row.key()) {
            let delayed = Delayed::Lane(key);
            return Some(DelayedRow {
                ready_millis,
                delayed,
            });
        }
        let ready_millis = keys.parse_ready(row).ok()?;
        let item = keys.delayed(ready_millis).decode(row).ok()?;
        Some(DelayedRow {
            ready_millis,
            delayed: Delayed::Item(Box::new(item)),
        })
    };
    let front = &context.fronts.delayed;
    front.read(tr, keys.env.now(), range, max, decode).await
}

/// Reads the first rows that are due, or none if the session does not trust its clock.
async fn due(
    tr: &impl Transaction,
    context: SessionContext<'_>,
    max: ReadLimit,
) -> Result<Head<DelayedRow>> {
    match context.wall_millis() {
        Some(now) => delayed(tr, context, context.keys.due(now), max).await,
        None => Ok(Head::none()),
    }
}

/// The delayed items and parked lanes that a transaction has promoted.
struct Promoted {
    count: usize,
    is_complete: bool,
}

/// Moves delayed items that are due to their places in the queue, and ends that lanes are parked which are due.
///
/// # Conflicts
/// Reads the key of each of these items. Reads and writes the fence of each of these lanes.
async fn promote(
    tr: &impl Transaction,
    context: SessionContext<'_>,
    changes: &mut Changes,
) -> Result<Promoted> {
    let keys = context.keys;
    let max = ReadLimit {
        items: MAX_FULFILLMENT_PROMOTIONS,
        row_bytes: usize::MAX,
    };
    // Safe as a snapshot read: the key of each promoted item is in a conflict range.
    let due = due(tr, context, max).await?;
    let count = due.items.len();
    for row in due.items {
        let DelayedRow {
            ready_millis,
            delayed,
        } = row;
        let mut item = match delayed {
            Delayed::Item(item) => *item,
            Delayed::Lane(key) => {
                unpark(tr, keys, ready_millis, &key, changes)?;
                continue;
            }
        };
        item.value.become_ready(ready_millis);
        let id = &item.id;
        let from = Location::Delayed(ready_millis);
        take_out(tr, keys, id, &item.value, &from, changes)?;
        put_queued(tr, keys, id, &item.value, changes)?;
    }
    Ok(Promoted {
        count,
        // Otherwise, an item that may start may come after lanes in which nothing waits.
        is_complete: due.is_complete && count < MAX_FULFILLMENT_PROMOTIONS,
    })
}

/// Ends that a lane is parked. A look must follow.
///
/// # Conflicts
/// Reads and writes the fence of the lane: a transaction that relies on the row fails, and so does another one that
/// ends this.
fn unpark(
    tr: &impl Transaction,
    keys: &Keys,
    ready_millis: u64,
    key: &Bytes,
    changes: &mut Changes,
) -> Result<()> {
    stage_fence(tr, keys, key)?;
    tr.clear(&keys.parked(ready_millis, key));
    tr.clear(&keys.parked_until(key));
    changes.unpark(key);
    Ok(())
}

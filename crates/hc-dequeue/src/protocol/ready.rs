//! Reads what could be granted: the notices of lanes, parked lanes that are due, the items that are in no lane, and the
//! delayed items that are due.

use std::time::Duration;

use futures::try_join;
use microqueue::Item;
use microqueue::keyspace::{KeyValue, Transaction};

use super::{MAX_FULFILLMENT_PROMOTIONS, SessionContext};
use crate::items::MAX_STEP_BYTES;
use crate::items::changes::Changes;
use crate::items::error::Result;
use crate::items::find::Location;
use crate::items::places::{put_queued, take_out};
use crate::items::record::Record;
use crate::items::scan::{FirstItems, ReadLimit, Skip};
use crate::lanes::look::{Notices, first_notices};
use crate::lanes::parked::first_parked;

/// What could be granted.
#[derive(Debug)]
pub(crate) struct ReadyItems {
    pub(crate) notices: Notices,
    /// The first items that are in no lane.
    pub(crate) items: Vec<Item<Record>>,
    /// Whether the read has found as many items as wanted or possible.
    pub(crate) is_complete: bool,
    /// In which time the first parked lane is due, if none is and there is one.
    pub(crate) next_parked: Option<Duration>,
}

impl ReadyItems {
    pub(crate) fn nothing() -> Self {
        Self {
            notices: Notices::none(),
            items: Vec::new(),
            is_complete: true,
            next_parked: None,
        }
    }

    /// Returns whether nothing was found.
    pub(crate) fn is_empty(&self) -> bool {
        self.notices.is_empty() && self.items.is_empty()
    }
}

/// Promotes delayed items that are due, and reads what could be granted then. Adds the promotions to the changes.
pub(super) async fn ready_items(
    tr: &impl Transaction,
    context: SessionContext<'_>,
    limit: usize,
) -> Result<(ReadyItems, Changes)> {
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

/// Reads what could be granted besides `gone` items, or nothing if a delayed item would have to be promoted first, or
/// if a parked lane is due.
pub(super) async fn items_unless_due(
    tr: &impl Transaction,
    context: SessionContext<'_>,
    limit: usize,
    gone: usize,
) -> Result<ReadyItems> {
    let max = ReadLimit {
        items: 1,
        row_bytes: MAX_STEP_BYTES,
    };
    let due = due(tr, context, max);
    let (due, ready) = try_join!(due, queued(tr, context, limit, gone))?;
    let is_due = !due.items.is_empty() || !ready.notices.due.is_empty();
    Ok(if !is_due && due.is_complete {
        ready
    } else {
        ReadyItems::nothing()
    })
}

/// What a read of the front of the queue has found.
enum First {
    Item(Box<Item<Record>>),
    Notice,
    Parked,
}

/// Reads the first notices, the parked lanes that are due and the first items that are in no lane. While there are no
/// notices and no parked lanes, one read of a range returns the items and shows that there are none. `gone` of the
/// items that it reads will not be granted.
pub(crate) async fn queued(
    tr: &impl Transaction,
    context: SessionContext<'_>,
    limit: usize,
    gone: usize,
) -> Result<ReadyItems> {
    let keys = context.keys;
    let fronts = context.fronts;
    let front = &fronts.queued;
    let max = ReadLimit {
        items: limit + gone,
        row_bytes: MAX_STEP_BYTES,
    };
    let now = keys.env.now();
    let lanes = &fronts.lanes;
    if !lanes.saw_notices() && !lanes.saw_parked() && !front.is_known() {
        let decode = |row: &KeyValue| match keys.decode_queued(row) {
            Ok(item) => Ok(First::Item(Box::new(fronts.choose(item)?))),
            Err(_) if keys.parse_parked(row.key()).is_some() => Ok(First::Parked),
            Err(_) => {
                let notice = keys.parse_notice(row.key());
                notice.map(|_| First::Notice).ok_or(Skip::Unreadable)
            }
        };
        let range = keys.lanes_and_items();
        let found = front.read(tr, keys, range, max, decode).await?;
        let rows = found.items.len();
        lanes.note_parked(matches!(found.items.first(), Some(First::Parked)));
        let items = found.items.into_iter().map_while(|first| match first {
            First::Item(item) => Some(*item),
            First::Notice | First::Parked => None,
        });
        let items: Vec<_> = items.collect();
        if items.len() == rows {
            return Ok(ReadyItems {
                notices: Notices::none(),
                items,
                is_complete: found.is_complete,
                next_parked: None,
            });
        }
    }
    let decode = |row: &KeyValue| match keys.decode_queued(row) {
        Ok(item) => fronts.choose(item),
        Err(_) => Err(Skip::Unreadable),
    };
    let range = keys.outside_lanes();
    let (mut notices, parked, found) = try_join!(
        first_notices(tr, keys, lanes, limit),
        first_parked(tr, keys, lanes),
        front.read(tr, keys, range, max, decode)
    )?;
    lanes.note_notices(now, !notices.is_empty());
    notices.due = parked.due;
    Ok(ReadyItems {
        // Otherwise, an item that may start may come after lanes in which nothing waits.
        is_complete: found.is_complete && parked.is_complete && notices.is_complete,
        notices,
        items: found.items,
        next_parked: parked.next,
    })
}

/// A delayed item.
pub(crate) struct DelayedItem {
    pub(crate) ready_millis: u64,
    item: Item<Record>,
}

/// Reads the first delayed items between two keys.
pub(crate) async fn delayed(
    tr: &impl Transaction,
    context: SessionContext<'_>,
    range: (Vec<u8>, Vec<u8>),
    max: ReadLimit,
) -> Result<FirstItems<DelayedItem>> {
    let SessionContext { keys, fronts, .. } = context;
    let decode = |row: &KeyValue| {
        let unreadable = |_| Skip::Unreadable;
        let ready_millis = keys.parse_ready(row).map_err(unreadable)?;
        let item = keys.delayed(ready_millis).decode(row);
        let item = fronts.choose(item.map_err(|_| Skip::Unreadable)?)?;
        Ok(DelayedItem { ready_millis, item })
    };
    fronts.delayed.read(tr, keys, range, max, decode).await
}

/// Reads the first rows that are due, or none if the session does not trust its clock.
async fn due(
    tr: &impl Transaction,
    context: SessionContext<'_>,
    max: ReadLimit,
) -> Result<FirstItems<DelayedItem>> {
    match context.wall_millis() {
        Some(now) => delayed(tr, context, context.keys.due(now), max).await,
        None => Ok(FirstItems::none()),
    }
}

/// The delayed items that a transaction has promoted.
struct Promoted {
    count: usize,
    is_complete: bool,
}

/// Moves delayed items that are due to their places in the queue.
///
/// # Conflicts
/// Reads the key of each of these items.
async fn promote(
    tr: &impl Transaction,
    context: SessionContext<'_>,
    changes: &mut Changes,
) -> Result<Promoted> {
    let keys = context.keys;
    let max = ReadLimit {
        items: MAX_FULFILLMENT_PROMOTIONS,
        row_bytes: MAX_STEP_BYTES,
    };
    // Safe as a snapshot read: the key of each promoted item is in a conflict range.
    let due = due(tr, context, max).await?;
    let count = due.items.len();
    for row in due.items {
        let DelayedItem {
            ready_millis,
            mut item,
        } = row;
        item.value.become_ready(ready_millis);
        let id = &item.id;
        let from = Location::Delayed(ready_millis);
        take_out(tr, keys, id, &item.value, &from, changes)?;
        put_queued(tr, keys, id, &item.value, changes)?;
    }
    Ok(Promoted {
        count,
        is_complete: due.is_complete,
    })
}

//! Writes and removes the rows of an item in the place where it is.

use microqueue::keyspace::Transaction;
use microqueue::{Item, ItemId};

use crate::items::error::Result;
use crate::items::find::Location;
use crate::items::keys::{Counter, Keys};
use crate::items::record::{Part, Record};
use crate::session::wall::wall_millis;

/// Stages a changed record of an item, in the place where the item is.
pub(crate) fn rewrite(
    tr: &impl Transaction,
    keys: &Keys,
    id: &ItemId,
    location: &Location,
    record: Record,
) -> Result<()> {
    match location {
        Location::Queued => keys.items.insert(tr, id, &record)?,
        Location::Delayed(ready) => keys.delayed(*ready).insert(tr, id, &record)?,
        Location::Held(session) => keys.held(*session).insert(tr, id, &record)?,
        Location::Granted { key, parts, .. } => {
            let parts = *parts;
            let item = Item {
                id: *id,
                value: record,
            };
            tr.set(key, &Part { parts, item }.encode()?);
        }
        Location::Dead => keys.dead.insert(tr, id, &record)?,
        Location::Done => keys.done.insert(tr, id, &record)?,
    }
    Ok(())
}

/// Stages the removal of an item from its place, if no session holds it.
pub(crate) fn remove(
    tr: &impl Transaction,
    keys: &Keys,
    id: &ItemId,
    location: &Location,
) -> Result<()> {
    let counter = match location {
        Location::Queued => {
            keys.items.remove(tr, id)?;
            Counter::Queued
        }
        Location::Delayed(ready) => {
            keys.undelay(tr, *ready, id)?;
            Counter::Delayed
        }
        Location::Dead => {
            keys.dead.remove(tr, id)?;
            Counter::Dead
        }
        Location::Held(_) | Location::Granted { .. } | Location::Done => return Ok(()),
    };
    keys.count(tr, counter, -1);
    Ok(())
}

/// Stages that an item that has no place is queued or, with a due time, delayed.
pub(crate) fn place(
    tr: &impl Transaction,
    keys: &Keys,
    id: &ItemId,
    mut record: Record,
    ready_millis: Option<u64>,
) -> Result<()> {
    match ready_millis {
        Some(ready) => {
            keys.delay(tr, ready, id, &record)?;
            keys.count(tr, Counter::Delayed, 1);
        }
        None => {
            record.become_ready(wall_millis(&keys.env));
            keys.items.insert(tr, id, &record)?;
            keys.count(tr, Counter::Queued, 1);
        }
    }
    keys.wake_all(tr);
    Ok(())
}

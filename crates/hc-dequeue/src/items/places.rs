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
///
/// # Conflicts
/// Reads and writes the item's row.
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

/// Where an item goes that has no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Destination {
    Queued,
    /// It is queued as if it had never left the queue.
    Back,
    /// It is delayed until this wall time.
    Delayed(u64),
    Dead,
}

impl Destination {
    /// Returns the destination of an item that is due at a wall time, or ready if there is none.
    pub(crate) fn of_due(ready_millis: Option<u64>) -> Self {
        ready_millis.map_or(Self::Queued, Self::Delayed)
    }
}

/// Stages an item that has no place. The caller wakes sessions.
pub(crate) fn place(
    tr: &impl Transaction,
    keys: &Keys,
    id: &ItemId,
    mut record: Record,
    destination: Destination,
) -> Result<()> {
    let counter = match destination {
        Destination::Queued => {
            record.become_ready(wall_millis(&keys.env));
            keys.items.insert(tr, id, &record)?;
            Counter::Queued
        }
        Destination::Back => {
            keys.items.insert(tr, id, &record)?;
            Counter::Queued
        }
        Destination::Delayed(ready) => {
            keys.delay(tr, ready, id, &record)?;
            Counter::Delayed
        }
        Destination::Dead => {
            keys.dead.insert(tr, id, &record)?;
            Counter::Dead
        }
    };
    keys.count(tr, counter, 1);
    Ok(())
}

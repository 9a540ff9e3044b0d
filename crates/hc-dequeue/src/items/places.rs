//! Writes and removes the rows of items: the record in the place where the item is, the pointer to it, and the counter
//! of the place.

use microqueue::keyspace::codec::Raw;
use microqueue::keyspace::{Bytes, Transaction};
use microqueue::{Item, ItemId, MicroQueue, StagedId};

use crate::items::changes::Changes;
use crate::items::error::Result;
use crate::items::find::Location;
use crate::items::keys::Keys;
use crate::items::members::add_new_member;
use crate::items::part::Counter;
use crate::items::pointer::Pointer;
use crate::items::priority::Priority;
use crate::items::record::{GrantPart, Record};
use crate::items::spot::Spot;
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
        Location::Queued(spot) => keys.items_at(spot).insert(tr, id, &record)?,
        Location::Delayed(ready) => keys.delayed(*ready).insert(tr, id, &record)?,
        Location::Held(session) => keys.held(*session).insert(tr, id, &record)?,
        Location::Granted { key, parts, .. } => {
            let parts = *parts;
            let item = Item {
                id: *id,
                value: record,
            };
            tr.set(key, &GrantPart { parts, item }.encode()?);
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
pub(crate) fn take_out(
    tr: &impl Transaction,
    keys: &Keys,
    id: &ItemId,
    record: &Record,
    location: &Location,
    changes: &mut Changes,
) -> Result<()> {
    match location {
        Location::Queued(spot) => take_queued(tr, keys, id, spot, changes)?,
        Location::Delayed(ready) => {
            keys.delayed(*ready).remove(tr, id)?;
            tr.clear(&id.key_in(&keys.pointers()));
            changes.add(Counter::Delayed, -1);
        }
        Location::Dead => {
            keys.dead.remove(tr, id)?;
            changes.add(Counter::Dead, -1);
            changes.leave_dead(record);
        }
        Location::Held(_) | Location::Granted { .. } | Location::Done => {}
    }
    Ok(())
}

/// Stages the removal of a queued item.
///
/// # Conflicts
/// Reads and writes the item's row.
pub(crate) fn take_queued(
    tr: &impl Transaction,
    keys: &Keys,
    id: &ItemId,
    spot: &Spot,
    changes: &mut Changes,
) -> Result<()> {
    keys.items_at(spot).remove(tr, id)?;
    if *spot != Spot::DEFAULT {
        tr.clear(&id.key_in(&keys.pointers()));
    }
    changes.add(Counter::Queued, -1);
    Ok(())
}

/// Stages the move of an item that no session holds to another place, and wakes sessions.
///
/// # Conflicts
/// Reads and writes the item's row.
pub(crate) fn relocate(
    tr: &impl Transaction,
    keys: &Keys,
    id: &ItemId,
    from: &Location,
    record: Record,
    to: Destination,
) -> Result<()> {
    let mut changes = Changes::default();
    take_out(tr, keys, id, &record, from, &mut changes)?;
    put_in(tr, keys, id, record, to, &mut changes)?;
    changes.stage(tr, keys);
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

/// Stages an item that has no place.
pub(crate) fn put_in(
    tr: &impl Transaction,
    keys: &Keys,
    id: &ItemId,
    mut record: Record,
    destination: Destination,
    changes: &mut Changes,
) -> Result<()> {
    // Also for a delayed item: sessions must learn when it is due.
    changes.wake();
    match destination {
        Destination::Queued => {
            record.become_ready(wall_millis(&keys.env));
            put_queued(tr, keys, id, &record, changes)?;
        }
        Destination::Back => put_queued(tr, keys, id, &record, changes)?,
        Destination::Delayed(ready) => {
            keys.delayed(ready).insert(tr, id, &record)?;
            Pointer::Delayed(ready).set(tr, keys, id);
            changes.add(Counter::Delayed, 1);
        }
        Destination::Dead => {
            changes.become_dead(&mut record);
            keys.dead.insert(tr, id, &record)?;
            changes.add(Counter::Dead, 1);
        }
    }
    Ok(())
}

/// Stages an item at its place in the queue. The caller wakes sessions.
pub(crate) fn put_queued(
    tr: &impl Transaction,
    keys: &Keys,
    id: &ItemId,
    record: &Record,
    changes: &mut Changes,
) -> Result<()> {
    let spot = Spot::of(record);
    keys.items_at(&spot).insert(tr, id, record)?;
    if let Some(pointer) = Pointer::to_queued(&spot) {
        pointer.set(tr, keys, id);
    }
    changes.add_notice_at(&spot);
    changes.add(Counter::Queued, 1);
    Ok(())
}

/// Stages a new item: delayed until a wall time, or queued if there is none.
pub(crate) async fn put_new(
    tr: &impl Transaction,
    keys: &Keys,
    record: &Record,
    ready_millis: Option<u64>,
    changes: &mut Changes,
) -> Result<StagedId> {
    changes.wake();
    let (staged, pointer) = match ready_millis {
        Some(ready) => {
            changes.add(Counter::Delayed, 1);
            let staged = keys.delayed(ready).enqueue(tr, record).await?;
            (staged, Some(Pointer::Delayed(ready)))
        }
        None => {
            changes.add(Counter::Queued, 1);
            let spot = Spot::of(record);
            changes.add_notice_at(&spot);
            let staged = keys.items_at(&spot).enqueue(tr, record).await?;
            (staged, Pointer::to_queued(&spot))
        }
    };
    if let Some(pointer) = pointer {
        pointer.set_staged(tr, keys, staged);
    }
    add_new_member(tr, keys, staged, record.member, changes);
    Ok(staged)
}

/// Stages an item whose record does not decode at the end of its session's hold: in the queue with priority 0, whatever
/// its own is, unchanged.
pub(crate) fn put_unread(
    tr: &impl Transaction,
    keys: &Keys,
    id: &ItemId,
    record: &Bytes,
    changes: &mut Changes,
) -> Result<()> {
    let queued = keys.queued(Priority::DEFAULT).subspace();
    let items = MicroQueue::<Bytes, Raw>::new(queued.clone());
    items.insert(tr, id, record)?;
    changes.add(Counter::Queued, 1);
    Ok(())
}

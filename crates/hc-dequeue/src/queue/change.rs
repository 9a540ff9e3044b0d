//! Changes an item wherever it is.

use microqueue::ItemId;
use microqueue::keyspace::codec::Codec;
use microqueue::keyspace::{Bytes, Transaction};

use crate::items::changes::Changes;
use crate::items::dedupe::free_dedupe;
use crate::items::end::{Ending, Rules, end};
use crate::items::error::{Error, Result};
use crate::items::find::{Location, find};
use crate::items::group_limits::KnownLimits;
use crate::items::item_ref::ItemRef;
use crate::items::keys::Keys;
use crate::items::places::{Destination, relocate, rewrite, take_out};
use crate::items::priority::Priority;
use crate::items::record::{End, Record};
use crate::items::spot::Spot;
use crate::queue::handle::Queue;
use crate::session::wall::wall_millis;

/// The result of a cancellation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
#[non_exhaustive]
pub enum Cancelled {
    /// The item was queued, delayed or dead, and was removed: it is never delivered again.
    Removed,
    /// A session holds the item. Its delivery is [notified](crate::Delivery::cancelled), its acknowledgement is
    /// refused, and the item is removed as soon as the session lets go of it.
    Requested,
    /// There is no such item: it is done or was cancelled before.
    NotThere,
}

/// The result of a replacement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
#[non_exhaustive]
pub enum Replaced {
    /// The item has the new value.
    Replaced,
    /// A session holds the item. The item keeps the old value.
    IsHeld,
    /// There is no such item: it is done or was cancelled.
    NotThere,
}

impl<T, C: Codec<T>> Queue<T, C> {
    /// Stages the cancellation of an item: it is never delivered again and can no longer be acknowledged. Its dedupe id
    /// is free at once, even if a session still holds the item.
    ///
    /// # Conflicts
    /// As [`status`](Self::status); also writes the item's row and, if the item has a slot, reads the limits of its
    /// group and the default ones. Conflicts with a grant or an acknowledgement of the item: the first to commit wins.
    ///
    /// # Errors
    /// As [`status`](Self::status).
    pub async fn cancel(&self, tr: &impl Transaction, item: &ItemRef) -> Result<Cancelled> {
        let keys = &*self.keys;
        let id = item.id_in(keys)?;
        let Some((location, record)) = find(tr, keys, &id).await? else {
            return Ok(Cancelled::NotThere);
        };
        match location {
            Location::Queued(_) | Location::Delayed(_) | Location::Dead => {
                self.end_waiting(tr, &id, &location, record, End::Cancelled)
                    .await?;
                Ok(Cancelled::Removed)
            }
            Location::Held(_) | Location::Granted { .. } => {
                cancel_held(tr, keys, &id, &location, record)?;
                Ok(Cancelled::Requested)
            }
            Location::Done => Ok(Cancelled::NotThere),
        }
    }

    /// Stages that a delayed item is due at once, at its place in the queue. Returns `false` if the item is not
    /// delayed.
    ///
    /// # Conflicts
    /// As [`status`](Self::status); also writes the item's row.
    ///
    /// # Errors
    /// As [`status`](Self::status).
    pub async fn expedite(&self, tr: &impl Transaction, item: &ItemRef) -> Result<bool> {
        let keys = &*self.keys;
        let id = item.id_in(keys)?;
        match find(tr, keys, &id).await? {
            Some((location @ Location::Delayed(_), record)) => {
                relocate(tr, keys, &id, &location, record, Destination::Queued)?;
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Stages another [priority](crate::Enqueue::with_priority) for an item. An item that is queued moves to its place
    /// among those of the new priority; a delayed item or a dead letter has it when it is queued. Returns `false` if a
    /// session holds the item, or if there is no such item.
    ///
    /// # Conflicts
    /// As [`cancel`](Self::cancel). Also writes the item's row in its new place, and the wake stamp.
    ///
    /// # Errors
    /// [`Error::Priority`](crate::Error::Priority) before anything is staged, and as [`status`](Self::status).
    pub async fn set_priority(
        &self,
        tr: &impl Transaction,
        item: &ItemRef,
        priority: i8,
    ) -> Result<bool> {
        let keys = &*self.keys;
        let id = item.id_in(keys)?;
        let priority = Priority::new(priority).ok_or(Error::Priority { priority })?;
        let Some((location, mut record)) = find(tr, keys, &id).await? else {
            return Ok(false);
        };
        record.priority = priority;
        match location {
            Location::Queued(ref spot) if *spot != Spot::of(&record) => {
                relocate(tr, keys, &id, &location, record, Destination::Back)?;
            }
            Location::Queued(_) | Location::Delayed(_) | Location::Dead => {
                rewrite(tr, keys, &id, &location, record)?;
            }
            Location::Held(_) | Location::Granted { .. } | Location::Done => return Ok(false),
        }
        Ok(true)
    }

    /// Stages a new value for an item that is queued, delayed or dead. The item keeps its place, its due time and its
    /// numbers of attempts, deaths and deliveries, and loses its [checkpoint](crate::Delivery::set_checkpoint), its
    /// [steps](crate::Delivery::step) and its progress: its next delivery begins anew, also if the value is the same.
    ///
    /// # Conflicts
    /// As [`cancel`](Self::cancel).
    ///
    /// # Errors
    /// As [`status`](Self::status), and as [`enqueue`](Self::enqueue).
    pub async fn replace(
        &self,
        tr: &impl Transaction,
        item: &ItemRef,
        value: &T,
    ) -> Result<Replaced> {
        let keys = &*self.keys;
        let id = item.id_in(keys)?;
        let payload = self.payload(value)?;
        let Some((location, mut record)) = find(tr, keys, &id).await? else {
            return Ok(Replaced::NotThere);
        };
        match location {
            Location::Queued(_) | Location::Delayed(_) | Location::Dead => {}
            Location::Held(_) | Location::Granted { .. } => return Ok(Replaced::IsHeld),
            Location::Done => return Ok(Replaced::NotThere),
        }
        record.replace_payload(payload);
        rewrite(tr, keys, &id, &location, record)?;
        Ok(Replaced::Replaced)
    }

    /// Stages the end of an item that no session holds.
    pub(super) async fn end_waiting(
        &self,
        tr: &impl Transaction,
        id: &ItemId,
        location: &Location,
        record: Record,
        how: End,
    ) -> Result<()> {
        let keys = &*self.keys;
        let settings = &self.settings(tr).await?;
        let limits = &KnownLimits::of_slots(tr, keys, [&record]).await?;
        let mut changes = Changes::default();
        take_out(tr, keys, id, &record, location, &mut changes)?;
        let result = Bytes::new();
        let ending = Ending {
            id,
            record: &record,
            how,
            result,
        };
        end(tr, keys, Rules { settings, limits }, ending, &mut changes)?;
        changes.stage(tr, keys);
        Ok(())
    }
}

/// Stages that a session lets go of an item that it holds, and that the item then ends as cancelled.
pub(super) fn cancel_held(
    tr: &impl Transaction,
    keys: &Keys,
    id: &ItemId,
    location: &Location,
    mut record: Record,
) -> Result<()> {
    // Of an item that was granted, the session finds the cancellation when it collects it.
    if let Location::Held(session) = location {
        tr.set_to_versionstamp(&keys.cancels(*session));
    }
    record.cancelled_millis = wall_millis(&keys.env);
    free_dedupe(tr, keys, id, &record);
    record.token = None;
    rewrite(tr, keys, id, location, record)
}

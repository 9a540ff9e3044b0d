//! Finds an item wherever it is.
//!
//! A row of a grant that does not say which item it contains stays with its session. While there is one, operations on
//! an item that is found nowhere else fail with `Corrupt`, since the row may contain it.

use futures::future::try_join_all;
use futures::{TryFutureExt, try_join};
use microqueue::keyspace::{self, ConflictKind, Isolation, RangeQuery, Transaction, read_all};
use microqueue::{Item, ItemId};

use crate::items::error::{Error, Result};
use crate::items::item_ref::ItemRef;
use crate::items::keys::Keys;
use crate::items::part::Part;
use crate::items::pointer::Pointer;
use crate::items::priority::Priority;
use crate::items::record::{ListedGrantPart, Record, is_signal};
use crate::items::spot::Spot;
use crate::session::SessionId;

/// Where a record is stored.
#[derive(Debug, Clone)]
pub(crate) enum Location {
    Queued(Spot),
    Delayed(u64),
    Held(SessionId),
    /// It is in the row of a grant under this key. The grant has `parts` rows.
    Granted {
        session: SessionId,
        key: Vec<u8>,
        parts: u32,
    },
    Dead,
    Done,
}

impl Location {
    /// Returns the key of the item's row in this place.
    pub(crate) fn key(&self, keys: &Keys, id: &ItemId) -> Vec<u8> {
        match self {
            Self::Queued(spot) => keys.row_at(spot, id),
            Self::Delayed(ready) => id.key_in(keys.delayed(*ready).subspace()),
            Self::Held(session) => id.key_in(keys.held(*session).subspace()),
            Self::Granted { key, .. } => key.clone(),
            Self::Dead => id.key_in(keys.dead.subspace()),
            Self::Done => id.key_in(keys.done.subspace()),
        }
    }

    /// Returns whether the item is done or a dead letter.
    pub(crate) fn is_end(&self) -> bool {
        matches!(self, Self::Dead | Self::Done)
    }
}

impl ItemRef {
    /// Returns the id of the item if it belongs to the queue.
    ///
    /// # Errors
    /// [`Error::ForeignRef`] if it belongs to another queue.
    pub(crate) fn id_in(&self, keys: &Keys) -> Result<ItemId> {
        if self.queue() != keys.tag {
            return Err(Error::ForeignRef {
                queue: keys.queue.clone(),
            });
        }
        Ok(self.id())
    }
}

/// Finds an item by its id.
///
/// # Conflicts
/// Reads the keys that the item has, or would have, in each part of the queue.
pub(crate) async fn find(
    tr: &impl Transaction,
    keys: &Keys,
    id: &ItemId,
) -> Result<Option<(Location, Record)>> {
    let pointer = id.key_in(&keys.pointers());
    let default = Priority::DEFAULT;
    let (queued, dead, done, pointed) = try_join!(
        keys.queued(default).get(tr, id).map_err(Error::from),
        keys.dead.get(tr, id).map_err(Error::from),
        keys.done.get(tr, id).map_err(Error::from),
        tr.get(&pointer, Isolation::Serializable)
            .map_err(Error::from),
    )?;
    if let Some(record) = queued {
        return Ok(Some((Location::Queued(Spot::DEFAULT), record)));
    }
    if let Some(record) = dead {
        return Ok(Some((Location::Dead, record)));
    }
    if let Some(record) = done {
        return Ok(Some((Location::Done, record)));
    }
    if let Some(bytes) = pointed {
        let (location, record) = match Pointer::parse(&pointer, &bytes)? {
            Pointer::Delayed(ready) => {
                let record = keys.delayed(ready).get(tr, id).await?;
                (Location::Delayed(ready), record)
            }
            Pointer::Queued(spot) => {
                let record = keys.items_at(&spot).get(tr, id).await?;
                (Location::Queued(spot), record)
            }
        };
        let lost = || keyspace::Error::corrupt(&pointer, "expected the place of an item");
        return Ok(Some((location, record.ok_or_else(lost)?)));
    }
    match find_held(tr, keys, id).await? {
        Some((session, record)) => Ok(Some((Location::Held(session), record))),
        None => find_granted(tr, keys, id).await,
    }
}

/// Finds an item that a session holds.
async fn find_held(
    tr: &impl Transaction,
    keys: &Keys,
    id: &ItemId,
) -> Result<Option<(SessionId, Record)>> {
    let sessions = keys.sessions.all(tr).await?.into_iter();
    let held = sessions.map(|(session, _)| async move {
        let record = keys.held(session).get(tr, id).await?;
        Ok::<_, Error>(record.map(|record| (session, record)))
    });
    Ok(try_join_all(held).await?.into_iter().flatten().next())
}

/// Finds an item that was granted to a session but not collected yet.
async fn find_granted(
    tr: &impl Transaction,
    keys: &Keys,
    id: &ItemId,
) -> Result<Option<(Location, Record)>> {
    let (begin, end) = keys.part(Part::Grants);
    // Safe as a snapshot read: the row that is found is added to the read conflict ranges.
    let rows = read_all(tr, RangeQuery::keys(begin, end), Isolation::Snapshot).await?;
    // The first row that does not say which item it contains: it may contain this one.
    let mut unreadable = None;
    for row in rows.iter().filter(|row| !is_signal(row.value())) {
        let ListedGrantPart { parts, item } =
            match ListedGrantPart::decode(row.key(), row.to_value()) {
                Ok(part) => part,
                Err(error) => {
                    unreadable.get_or_insert(error);
                    continue;
                }
            };
        if item.id == *id {
            tr.add_conflict_key(ConflictKind::Read, row.key())?;
            let (session, _) = keys.parse_grant(row.key())?;
            let record = Item::try_from(item).map_err(keyspace::Error::from)?.value;
            let key = row.key().to_vec();
            let location = Location::Granted {
                session,
                key,
                parts,
            };
            return Ok(Some((location, record)));
        }
    }
    match unreadable {
        Some(error) => Err(error.into()),
        None => Ok(None),
    }
}

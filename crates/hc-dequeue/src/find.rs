//! Finds an item wherever it is.

use std::time::SystemTime;

use futures::future::try_join_all;
use futures::{TryFutureExt, try_join};
use microqueue::keyspace::codec::{self, Codec};
use microqueue::keyspace::{
    self, Bytes, ConflictKind, Isolation, RangeQuery, Transaction, Undecodable, read_all,
};
use microqueue::{Item, ItemId};

use crate::dedupe;
use crate::error::{Error, Result};
use crate::item_ref::ItemRef;
use crate::keys::Keys;
use crate::queue::Queue;
use crate::record::{End, Failure, ListedPart, Record, is_turn};
use crate::session::SessionId;
use crate::wall::unix_time;

/// The state of an item, wherever it is.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status<T> {
    /// Where it is.
    pub place: Place,
    /// The value that was enqueued, or why it does not decode.
    pub value: Result<T, Undecodable>,
    /// How often the item has failed since it was enqueued or redriven.
    pub attempts: u64,
    /// How many sessions have died with the item since then.
    pub deaths: u64,
    /// How often the item was granted since then.
    pub deliveries: u64,
    /// The item's last failure.
    pub failure: Option<Failure>,
    /// When the item was first enqueued, by the wall clock of the enqueuing process.
    pub enqueued: SystemTime,
    /// Since when the item waits in the queue, by the wall clocks: since its enqueue, or since it was due or came back
    /// the last time. If it is elsewhere, this is the last time at which it began to wait.
    pub ready: SystemTime,
    /// When the item was last granted, by the wall clock of the granting process. `None` if it never was.
    pub granted: Option<SystemTime>,
    /// The dedupe id with which the item was enqueued; empty if it was enqueued without one. An item that a session holds
    /// gives its id up to one that [replaces](crate::OnRepeat) it.
    pub dedupe: Bytes,
    /// The result that the handler of a done item [has set](crate::Delivery::set_result).
    pub result: Bytes,
}

/// Where an item is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Place {
    /// It is waiting to be granted.
    Queued,
    /// It is waiting until it is due.
    Delayed {
        /// When it is due, by the wall clocks.
        until: SystemTime,
    },
    /// A session holds it.
    Held {
        /// The session.
        session: SessionId,
        /// Whether it was cancelled. A cancelled item leaves the queue as soon as the session lets go of it.
        is_cancelled: bool,
    },
    /// It is a dead letter.
    Dead,
    /// It is done, and [kept](crate::Settings::keep_done) for some time.
    Done {
        /// How it left the queue.
        end: End,
        /// When, by the wall clock of the process that ended it.
        at: SystemTime,
    },
}

impl Place {
    /// Returns whether the item is done or a dead letter. Only a redrive changes this.
    #[must_use]
    pub fn is_end(&self) -> bool {
        matches!(self, Self::Dead | Self::Done { .. })
    }
}

/// Where a record is stored.
#[derive(Debug, Clone)]
pub(crate) enum Spot {
    Queued,
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

impl Spot {
    /// Returns the key of the item's row in this place.
    pub(crate) fn key(&self, keys: &Keys, id: &ItemId) -> Vec<u8> {
        match self {
            Self::Queued => id.key_in(keys.items.subspace()),
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
        if !self.is_of(keys) {
            return Err(Error::ForeignRef {
                queue: keys.queue.clone(),
            });
        }
        Ok(self.id())
    }
}

impl<T, C: Codec<T>> Queue<T, C> {
    /// Returns the reference to an item of this queue, given its id from a [listing](Self::items).
    #[must_use]
    pub fn item_ref(&self, id: ItemId) -> ItemRef {
        ItemRef::new(&self.keys, id)
    }

    /// Returns where an item is and how often it has failed. Returns `None` if the item is done and no longer
    /// [kept](crate::Settings::keep_done), or never existed.
    ///
    /// If a session holds the item, the search takes one read for each session.
    ///
    /// # Conflicts
    /// Reads the keys that the item has, or would have, in each part of the queue.
    ///
    /// # Errors
    /// [`Error::ForeignRef`]; [`Corrupt`](microqueue::keyspace::Error::Corrupt) if the item's record does not decode.
    /// [`Error::ReadAfterWrite`] if this transaction has enqueued, unless the item is older than the last commit that
    /// the transaction can read, and the transaction has read something before it enqueued.
    pub async fn status(&self, tr: &impl Transaction, item: &ItemRef) -> Result<Option<Status<T>>> {
        let id = item.id_in(&self.keys)?;
        let found = find(tr, &self.keys, &id).await?;
        self.status_of(&id, found)
    }

    /// Returns the item that has a dedupe id; if several items were enqueued with it, the latest one. Returns `None`
    /// if there is no such item or it is done.
    ///
    /// # Conflicts
    /// Reads the row of the dedupe id.
    ///
    /// # Errors
    /// [`Error::ReadAfterWrite`] in the transaction that enqueues the item.
    pub async fn find_deduped(
        &self,
        tr: &impl Transaction,
        dedupe: &[u8],
    ) -> Result<Option<ItemRef>> {
        let holder = dedupe::holder(tr, &self.keys, dedupe).await?;
        Ok(holder.map(|id| ItemRef::new(&self.keys, id)))
    }

    /// Returns the status of an item that was found.
    pub(crate) fn status_of(
        &self,
        id: &ItemId,
        found: Option<(Spot, Record)>,
    ) -> Result<Option<Status<T>>> {
        let Some((spot, record)) = found else {
            return Ok(None);
        };
        let key = || spot.key(&self.keys, id);
        let place = match &spot {
            Spot::Queued => Place::Queued,
            Spot::Delayed(ready) => Place::Delayed {
                until: unix_time(*ready),
            },
            Spot::Held(session) | Spot::Granted { session, .. } => Place::Held {
                session: *session,
                is_cancelled: record.cancelled_millis != 0,
            },
            Spot::Dead => Place::Dead,
            Spot::Done => {
                let end = record.end.as_ref();
                let end = end.ok_or_else(|| keyspace::Error::corrupt(&key(), "expected an end"))?;
                Place::Done {
                    end: end.how,
                    at: unix_time(end.millis),
                }
            }
        };
        let value = codec::decode(&self.codec, record.payload.clone());
        Ok(Some(Status {
            place,
            value: value.map_err(|error| Undecodable::new(key(), record.payload.clone(), error)),
            attempts: record.attempts,
            deaths: record.deaths,
            deliveries: record.recent_deliveries(),
            failure: record.failure.as_ref().map(Failure::from),
            enqueued: unix_time(record.enqueued_millis),
            ready: unix_time(record.ready_millis()),
            granted: (record.granted_millis != 0).then(|| unix_time(record.granted_millis)),
            dedupe: record.dedupe,
            result: record.end.map_or_else(Bytes::new, |end| end.result),
        }))
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
) -> Result<Option<(Spot, Record)>> {
    let pointer = id.key_in(&keys.pointers());
    let (queued, dead, done, ready) = try_join!(
        keys.items.get(tr, id).map_err(Error::from),
        keys.dead.get(tr, id).map_err(Error::from),
        keys.done.get(tr, id).map_err(Error::from),
        tr.get(&pointer, Isolation::Serializable)
            .map_err(Error::from),
    )?;
    if let Some(record) = queued {
        return Ok(Some((Spot::Queued, record)));
    }
    if let Some(record) = dead {
        return Ok(Some((Spot::Dead, record)));
    }
    if let Some(record) = done {
        return Ok(Some((Spot::Done, record)));
    }
    if let Some(ready) = ready {
        let ready = (&*ready).try_into().map(u64::from_be_bytes);
        let reason = "expected the time of a delayed item";
        let ready = ready.map_err(|_| keyspace::Error::corrupt(&pointer, reason))?;
        let record = keys.delayed(ready).get(tr, id).await?;
        let record = record.ok_or_else(|| keyspace::Error::corrupt(&pointer, reason))?;
        return Ok(Some((Spot::Delayed(ready), record)));
    }
    let held = find_held(tr, keys, id).await?;
    match held {
        Some((session, record)) => Ok(Some((Spot::Held(session), record))),
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
) -> Result<Option<(Spot, Record)>> {
    let (begin, end) = keys.part("g");
    // Safe as a snapshot read: the row that is found is added to the read conflict ranges.
    let rows = read_all(tr, RangeQuery::keys(begin, end), Isolation::Snapshot).await?;
    // The first row that does not say which item it contains: it may contain this one.
    let mut unreadable = None;
    for row in rows.iter().filter(|row| !is_turn(row.value())) {
        let ListedPart { parts, item } = match ListedPart::decode(row.key(), row.to_value()) {
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
            let spot = Spot::Granted {
                session,
                key,
                parts,
            };
            return Ok(Some((spot, record)));
        }
    }
    match unreadable {
        Some(error) => Err(error.into()),
        None => Ok(None),
    }
}

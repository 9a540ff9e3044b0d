//! The status of an item, wherever it is.

use std::time::SystemTime;

use microqueue::ItemId;
use microqueue::keyspace::codec::{self, Codec};
use microqueue::keyspace::{self, Bytes, Transaction, Undecodable};

use crate::items::batch::BatchRef;
use crate::items::error::Result;
use crate::items::find::{Location, find};
use crate::items::item_ref::ItemRef;
use crate::items::record::{End, Failure, Progress, Record};
use crate::queue::handle::Queue;
use crate::session::SessionId;
use crate::session::wall::unix_time;

/// The state of an item, wherever it is.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status<T> {
    /// Where it is.
    pub place: Place,
    /// The value that was enqueued, or why it does not decode.
    pub value: Result<T, Undecodable>,
    /// Its [priority](crate::Enqueue::with_priority).
    pub priority: i8,
    /// Its [kind](crate::Enqueue::with_kind), if it has one.
    pub kind: Option<String>,
    /// Its [group](crate::Enqueue::with_group); empty if it was enqueued without one.
    pub group: Bytes,
    /// Whether it has a slot of its group: a session holds it, or it keeps the slot until it
    /// [ends](crate::GroupLimits::with_until_end).
    pub has_slot: bool,
    /// The [batch](crate::Enqueue::with_batch) of which it is a member, or was one when it ended.
    pub batch: Option<BatchRef>,
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
    /// The dedupe id with which the item was enqueued; empty if it was enqueued without one. An item that a session
    /// holds gives its id up to one that [replaces](crate::OnRepeat) it.
    pub dedupe: Bytes,
    /// The [checkpoint](crate::Delivery::set_checkpoint) that its last delivery has left, or its present one has set;
    /// empty if there is none, as of a done item.
    pub checkpoint: Bytes,
    /// The names of the [steps](crate::Delivery::step) that are done, in their order; none of a done item.
    pub steps: Vec<String>,
    /// How far the work for it is, as its handler [has said](crate::Delivery::set_progress). It stays when the item
    /// comes back, dies or ends.
    pub progress: Option<Progress>,
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

impl<T, C: Codec<T>> Queue<T, C> {
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
    ///
    /// [`Error::ForeignRef`]: crate::Error::ForeignRef
    /// [`Error::ReadAfterWrite`]: crate::Error::ReadAfterWrite
    pub async fn status(&self, tr: &impl Transaction, item: &ItemRef) -> Result<Option<Status<T>>> {
        let id = item.id_in(&self.keys)?;
        let found = find(tr, &self.keys, &id).await?;
        self.status_of(&id, found)
    }

    /// Decodes the payload of an item whose row has this key.
    pub(crate) fn decode(
        &self,
        record: &Record,
        key: impl FnOnce() -> Vec<u8>,
    ) -> Result<T, Undecodable> {
        let payload = &record.payload;
        codec::decode(&self.codec, payload.clone())
            .map_err(|error| Undecodable::new(key(), payload.clone(), error))
    }

    /// Returns the status of an item that was found.
    pub(crate) fn status_of(
        &self,
        id: &ItemId,
        found: Option<(Location, Record)>,
    ) -> Result<Option<Status<T>>> {
        let Some((location, record)) = found else {
            return Ok(None);
        };
        let key = || location.key(&self.keys, id);
        let place = match &location {
            Location::Queued(_) => Place::Queued,
            Location::Delayed(ready) => Place::Delayed {
                until: unix_time(*ready),
            },
            Location::Held(session) | Location::Granted { session, .. } => Place::Held {
                session: *session,
                is_cancelled: record.cancelled_millis != 0,
            },
            Location::Dead => Place::Dead,
            Location::Done => {
                let Some(end) = &record.end else {
                    return Err(keyspace::Error::corrupt(&key(), "expected an end").into());
                };
                Place::Done {
                    end: end.how,
                    at: unix_time(end.millis),
                }
            }
        };
        Ok(Some(Status {
            place,
            value: self.decode(&record, key),
            priority: record.priority.get(),
            kind: record.kind.get().map(str::to_owned),
            group: record.group.clone(),
            has_slot: record.has_slot,
            batch: record
                .member
                .map(|member| self.keys.batch_ref(member.batch)),
            attempts: record.attempts,
            deaths: record.deaths,
            deliveries: record.recent_deliveries(),
            failure: record.failure.as_ref().map(Failure::from),
            enqueued: unix_time(record.enqueued_millis),
            ready: unix_time(record.ready_millis()),
            granted: match record.granted_millis {
                0 => None,
                millis => Some(unix_time(millis)),
            },
            dedupe: record.dedupe,
            steps: record.checkpoint.steps().map(str::to_owned).collect(),
            checkpoint: record.checkpoint.own().cloned().unwrap_or_default(),
            progress: record.progress.map(|progress| *progress),
            result: record.end.map_or_else(Bytes::new, |end| end.result),
        }))
    }
}

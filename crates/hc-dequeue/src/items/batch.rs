//! Batches: items whose ends are awaited together.
//!
//! A batch has a row, a row while it is open, and a counter for each [`Tally`]. The members of a batch do not lie
//! together: the record of each names its batch, and the commit that ends a member changes the counters. At every
//! version, the number of pending ones is the number of records that name the batch, and of batches whose parent it is.

use std::fmt;
use std::str::FromStr;
use std::time::SystemTime;

use microqueue::keyspace::codec::{self, Codec as _};
use microqueue::keyspace::record::Fields;
use microqueue::keyspace::{self, Bytes, Isolation, KeyValue, RangeQuery, Transaction, read_all};

use crate::items::counters::parse_count;
use crate::items::error::{Error, Result};
use crate::items::item_ref::{MalformedRef, hex, ref_from_bytes, ref_from_text, ref_to_bytes};
use crate::items::keys::{Keys, QueueTag};
use crate::items::part::BatchPart;
use crate::items::record::{Record, RecordCodec};
use crate::session::wall::unix_time;

const FORMAT: u8 = 1;

mod flag {
    pub(super) const CALLBACK: u8 = 1;
    pub(super) const DEAD_STAY: u8 = 2;
    pub(super) const CANCELLED: u8 = 4;
    pub(super) const PARENT_DEAD_STAY: u8 = 8;
}

/// The id of a batch: random bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct BatchId(pub(crate) [u8; Self::BYTES]);

impl BatchId {
    pub(crate) const BYTES: usize = 16;
}

/// A reference to a batch, which an application may store. It identifies the queue that the batch belongs to.
///
/// The bytes of a reference are: the format, 01; the first four bytes of the XXH3 hash of the prefix of the queue's
/// subspace; the batch's id, 16 random bytes. Its text is these bytes in hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BatchRef {
    queue: QueueTag,
    id: BatchId,
}

impl BatchRef {
    /// The length of a reference in bytes.
    pub const BYTES: usize = 1 + size_of::<QueueTag>() + BatchId::BYTES;

    pub(crate) fn new(keys: &Keys, id: BatchId) -> Self {
        let queue = keys.tag;
        Self { queue, id }
    }

    /// Returns the id of the batch if it belongs to the queue.
    ///
    /// # Errors
    /// [`Error::ForeignRef`] if it belongs to another queue.
    pub(crate) fn id_in(&self, keys: &Keys) -> Result<BatchId> {
        if self.queue != keys.tag {
            return Err(Error::ForeignRef {
                queue: keys.queue.clone(),
            });
        }
        Ok(self.id)
    }

    /// Returns the bytes of the reference.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        ref_to_bytes(self.queue, &self.id.0)
    }

    /// Parses the bytes of a reference.
    ///
    /// # Errors
    /// [`MalformedRef`] if the bytes are not a reference.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, MalformedRef> {
        let (queue, id) = ref_from_bytes(bytes)?;
        let id = BatchId(id);
        Ok(Self { queue, id })
    }
}

impl fmt::Display for BatchRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex(&self.to_bytes(), f)
    }
}

impl FromStr for BatchRef {
    type Err = MalformedRef;

    fn from_str(text: &str) -> Result<Self, MalformedRef> {
        Self::from_bytes(&ref_from_text(text)?)
    }
}

/// A number that a batch keeps of its members.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Tally {
    Pending,
    Completed,
    Dead,
    Cancelled,
}

impl Tally {
    pub(crate) const ALL: [Self; 4] = [Self::Pending, Self::Completed, Self::Dead, Self::Cancelled];

    /// Returns the part of the batch in which it is stored.
    pub(crate) fn part(self) -> BatchPart {
        match self {
            Self::Pending => BatchPart::Pending,
            Self::Completed => BatchPart::Completed,
            Self::Dead => BatchPart::Dead,
            Self::Cancelled => BatchPart::Cancelled,
        }
    }
}

/// What the record of an item says of its batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) batch: BatchId,
    /// Whether it stays a member when it becomes a dead letter.
    pub(crate) dead_letters_stay: bool,
}

impl Member {
    pub(crate) const BYTES: usize = BatchId::BYTES + 1;

    pub(crate) fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [self.dead_letters_stay.into(); Self::BYTES];
        bytes[..BatchId::BYTES].copy_from_slice(&self.batch.0);
        bytes
    }

    pub(crate) fn parse(field: &[u8]) -> Result<Self, String> {
        let mut fields = Fields::new(field);
        let batch = BatchId(fields.array()?);
        let [stays @ (0 | 1)] = fields.array()? else {
            return Err("a batch is followed by neither 00 nor 01".to_owned());
        };
        fields.end()?;
        Ok(Self {
            batch,
            dead_letters_stay: stays == 1,
        })
    }
}

/// How the members of a batch have ended. A batch in it counts as one member: completed, or cancelled if it was
/// [cancelled](crate::Queue::cancel_batch), and not at all if it had no members. If it has a callback, that counts
/// instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct BatchCounts {
    /// How many were completed.
    pub completed: u64,
    /// How many became dead letters, and so left the batch.
    pub dead: u64,
    /// How many were cancelled, purged or cleared.
    pub cancelled: u64,
}

impl BatchCounts {
    pub(crate) const BYTES: usize = 24;

    pub(crate) fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let counts = [self.completed, self.dead, self.cancelled];
        for (part, count) in bytes.chunks_mut(8).zip(counts) {
            part.copy_from_slice(&count.to_be_bytes());
        }
        bytes
    }

    pub(crate) fn parse(field: &[u8]) -> Result<Self, String> {
        let mut fields = Fields::new(field);
        let counts = Self {
            completed: fields.u64()?,
            dead: fields.u64()?,
            cancelled: fields.u64()?,
        };
        fields.end()?;
        Ok(counts)
    }
}

/// The item that is enqueued when a batch is complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Callback {
    /// How long it is delayed after that.
    pub(crate) delay_millis: u64,
    /// Until which wall time it is delayed in any case.
    pub(crate) due_millis: u64,
    pub(crate) record: Record,
}

impl Callback {
    /// Returns whether a wall clock decides when it is ready.
    pub(crate) fn has_time(&self) -> bool {
        self.delay_millis > 0 || self.due_millis > 0
    }
}

/// The row of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BatchRow {
    pub(crate) dead_letters_stay: bool,
    pub(crate) is_cancelled: bool,
    /// Of which batch it is a member.
    pub(crate) parent: Option<Member>,
    pub(crate) opened_millis: u64,
    pub(crate) callback: Option<Callback>,
}

impl BatchRow {
    pub(crate) fn to_bytes(&self) -> Result<Vec<u8>> {
        let mut flags = 0;
        for (is_set, flag) in [
            (self.callback.is_some(), flag::CALLBACK),
            (self.dead_letters_stay, flag::DEAD_STAY),
            (self.is_cancelled, flag::CANCELLED),
            (
                self.parent.is_some_and(|parent| parent.dead_letters_stay),
                flag::PARENT_DEAD_STAY,
            ),
        ] {
            flags |= if is_set { flag } else { 0 };
        }
        let parent = self
            .parent
            .map_or([0; BatchId::BYTES], |parent| parent.batch.0);
        let mut bytes = vec![FORMAT, flags];
        bytes.extend_from_slice(&parent);
        bytes.extend_from_slice(&self.opened_millis.to_be_bytes());
        if let Some(callback) = &self.callback {
            bytes.extend_from_slice(&callback.delay_millis.to_be_bytes());
            bytes.extend_from_slice(&callback.due_millis.to_be_bytes());
            RecordCodec.encode(&callback.record, &mut bytes)?;
        }
        Ok(bytes)
    }

    pub(crate) fn parse(key: &[u8], value: &Bytes) -> keyspace::Result<Self> {
        parse(value).map_err(|reason| keyspace::Error::corrupt(key, reason))
    }
}

fn parse(value: &Bytes) -> Result<BatchRow, String> {
    let mut fields = Fields::new(value);
    fields.format(FORMAT)?;
    let [flags] = fields.array()?;
    let has = |flag| flags & flag != 0;
    if flags > flag::CALLBACK | flag::DEAD_STAY | flag::CANCELLED | flag::PARENT_DEAD_STAY {
        return Err(format!("flags {flags:#x} are unknown"));
    }
    let parent = BatchId(fields.array()?);
    let has_parent = parent.0 != [0; BatchId::BYTES];
    if has(flag::PARENT_DEAD_STAY) && !has_parent {
        return Err("there is no parent in which dead letters stay".to_owned());
    }
    let opened_millis = fields.u64()?;
    let callback = if has(flag::CALLBACK) {
        let delay_millis = fields.u64()?;
        let due_millis = fields.u64()?;
        let record = codec::decode(&RecordCodec, value.slice_ref(fields.rest()));
        Some(Callback {
            delay_millis,
            due_millis,
            record: record.map_err(|error| error.to_string())?,
        })
    } else {
        fields.end()?;
        None
    };
    Ok(BatchRow {
        dead_letters_stay: has(flag::DEAD_STAY),
        is_cancelled: has(flag::CANCELLED),
        parent: has_parent.then_some(Member {
            batch: parent,
            dead_letters_stay: has(flag::PARENT_DEAD_STAY),
        }),
        opened_millis,
        callback,
    })
}

/// A batch as a transaction has read it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StoredBatch {
    pub(crate) row: BatchRow,
    pub(crate) is_open: bool,
    tallies: [i64; Tally::ALL.len()],
}

impl StoredBatch {
    pub(crate) fn tally(&self, tally: Tally) -> i64 {
        self.tallies[tally as usize]
    }

    /// Returns a number that cannot be negative.
    pub(crate) fn count(&self, tally: Tally) -> u64 {
        u64::try_from(self.tally(tally)).unwrap_or(0)
    }

    /// Returns whether it is closed and nothing is pending.
    pub(crate) fn is_complete(&self) -> bool {
        !self.is_open && self.tally(Tally::Pending) == 0
    }

    pub(crate) fn counts(&self) -> BatchCounts {
        BatchCounts {
            completed: self.count(Tally::Completed),
            dead: self.count(Tally::Dead),
            cancelled: self.count(Tally::Cancelled),
        }
    }

    pub(crate) fn opened(&self) -> SystemTime {
        unix_time(self.row.opened_millis)
    }
}

/// Reads a batch by snapshot.
pub(crate) async fn read_batch(
    tr: &impl Transaction,
    keys: &Keys,
    batch: BatchId,
) -> Result<Option<StoredBatch>> {
    let (begin, end) = keys.batch(batch);
    let rows = read_all(tr, RangeQuery::keys(begin, end), Isolation::Snapshot).await?;
    parse_batch(keys, batch, &rows)
}

/// Returns the batch that has these rows, if one of them is the row of a batch.
pub(crate) fn parse_batch(
    keys: &Keys,
    batch: BatchId,
    rows: &[KeyValue],
) -> Result<Option<StoredBatch>> {
    let Some((first, others)) = rows.split_first() else {
        return Ok(None);
    };
    if first.key() != keys.batch_row(batch) {
        return Ok(None);
    }
    let mut stored = StoredBatch {
        row: BatchRow::parse(first.key(), &first.to_value())?,
        is_open: false,
        tallies: [0; Tally::ALL.len()],
    };
    for row in others {
        if row.key() == keys.batch_open(batch) {
            stored.is_open = true;
            continue;
        }
        let tally = Tally::ALL
            .into_iter()
            .find(|tally| row.key() == keys.tally(batch, *tally));
        if let Some(tally) = tally {
            stored.tallies[tally as usize] = parse_count(row.key(), row.value())?;
        }
    }
    Ok(Some(stored))
}

/// Returns what the record of a new member says, after a check that the batch goes on.
///
/// # Conflicts
/// Reads the row of the batch, which only its end and its cancellation change.
///
/// # Errors
/// [`Error::ForeignRef`], [`Error::BatchOver`].
pub(crate) async fn join(tr: &impl Transaction, keys: &Keys, batch: &BatchRef) -> Result<Member> {
    let id = batch.id_in(keys)?;
    let key = keys.batch_row(id);
    let row = tr.get(&key, Isolation::Serializable).await?;
    let row = row.map(|row| BatchRow::parse(&key, &row)).transpose()?;
    match row.filter(|row| !row.is_cancelled) {
        Some(row) => Ok(Member {
            batch: id,
            dead_letters_stay: row.dead_letters_stay,
        }),
        None => Err(Error::BatchOver { batch: *batch }),
    }
}

#[cfg(test)]
mod tests {
    use microqueue::keyspace::{Environment, Subspace};

    use super::*;

    #[test]
    fn a_batch_has_the_bytes_of_the_schema() {
        let callback = Callback {
            delay_millis: 3,
            due_millis: 4,
            record: Record::new(0, Bytes::from_static(b"payload")),
        };
        let all = BatchRow {
            dead_letters_stay: true,
            is_cancelled: true,
            parent: Some(Member {
                batch: BatchId([7; 16]),
                dead_letters_stay: true,
            }),
            opened_millis: 258,
            callback: Some(callback),
        };
        let plain = BatchRow {
            dead_letters_stay: false,
            is_cancelled: false,
            parent: None,
            opened_millis: 1,
            callback: None,
        };
        let number = |number: u64| number.to_be_bytes();
        let of_all = [
            &[1, 15][..],
            &[7; 16],
            &number(258),
            &number(3),
            &number(4),
            b"\x01\0payload",
        ];
        for (row, expected) in [
            (all, of_all.concat()),
            (plain, [&[1, 0][..], &[0; 16], &number(1)].concat()),
        ] {
            assert_eq!(row.to_bytes().unwrap(), expected);
            let bytes = Bytes::from(expected);
            assert_eq!(BatchRow::parse(b"key", &bytes).unwrap(), row);
            for end in 0..26 {
                assert!(
                    BatchRow::parse(b"key", &bytes.slice(..end)).is_err(),
                    "{end}"
                );
            }
        }
        for (place, byte) in [(0, 2), (1, 16), (1, 8), (1, 1)] {
            let mut bytes = [&[1, 0][..], &[0; 24]].concat();
            bytes[place] = byte;
            assert!(BatchRow::parse(b"key", &bytes.into()).is_err(), "{place}");
        }
    }

    #[test]
    fn a_reference_to_a_batch_has_the_bytes_that_are_documented() {
        let keys =
            |queue: &'static [u8]| Keys::new(Subspace::from_bytes(queue), Environment::system());
        let own = keys(b"Q");
        let batch = BatchRef::new(&own, BatchId([8; 16]));
        let expected = [&[1], &own.tag[..], &[8; 16]].concat();
        assert_eq!(batch.to_bytes()[..], expected);
        assert_eq!(batch.to_string().parse::<BatchRef>().unwrap(), batch);
        assert!(BatchRef::from_bytes(&expected[1..]).is_err());
        assert_eq!(batch.id_in(&own).unwrap(), BatchId([8; 16]));
        assert!(matches!(
            batch.id_in(&keys(b"R")),
            Err(Error::ForeignRef { .. })
        ));
    }
}

//! What an item knows of its batch, and the numbers that a batch keeps.

use std::fmt;
use std::str::FromStr;

use microqueue::keyspace::record::Fields;

use crate::items::item_ref::{
    MalformedRef, QueueTag, hex, ref_from_bytes, ref_from_text, ref_to_bytes,
};
use crate::items::part::{BatchPart, listed};

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

    pub(crate) fn new(queue: QueueTag, id: BatchId) -> Self {
        Self { queue, id }
    }

    /// Returns the tag of the queue that the batch belongs to.
    pub(crate) fn queue(&self) -> QueueTag {
        self.queue
    }

    pub(crate) fn id(&self) -> BatchId {
        self.id
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

/// A batch that gets a new member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Joining {
    pub(crate) batch: BatchRef,
    /// Whether a member adds it, which it may do after the close.
    pub(crate) by_member: bool,
}

impl Joining {
    pub(crate) fn open(batch: &BatchRef) -> Self {
        Self {
            batch: *batch,
            by_member: false,
        }
    }
}

listed! {
    /// A number that a batch keeps of its members.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    pub(crate) enum Tally {
        Pending,
        Completed,
        Dead,
        Cancelled,
    }
}

impl Tally {
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
pub(crate) struct BatchMember {
    pub(crate) batch: BatchId,
    /// Whether it stays a member when it becomes a dead letter.
    pub(crate) dead_letters_stay: bool,
}

impl BatchMember {
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

/// What the record of a callback says of its batch, which has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CallbackOf {
    pub(crate) counts: BatchCounts,
    /// `None` in records of the first version.
    pub(crate) batch: Option<BatchId>,
}

impl CallbackOf {
    pub(crate) const BYTES: usize = BatchCounts::BYTES + BatchId::BYTES;

    pub(crate) fn to_bytes(self) -> Vec<u8> {
        let mut bytes = self.counts.to_bytes().to_vec();
        if let Some(batch) = self.batch {
            bytes.extend_from_slice(&batch.0);
        }
        bytes
    }

    pub(crate) fn parse(field: &[u8]) -> Result<Self, String> {
        let (counts, batch) = field.split_at(field.len().min(BatchCounts::BYTES));
        let mut fields = Fields::new(batch);
        let batch = if batch.is_empty() {
            None
        } else {
            Some(BatchId(fields.array()?))
        };
        fields.end()?;
        let counts = BatchCounts::parse(counts)?;
        Ok(Self { counts, batch })
    }
}

#[cfg(test)]
mod tests {
    use microqueue::keyspace::{Environment, Subspace};

    use super::*;
    use crate::items::error::Error;
    use crate::items::keys::Keys;

    #[test]
    fn a_reference_to_a_batch_has_the_bytes_that_are_documented() {
        let keys =
            |queue: &'static [u8]| Keys::new(Subspace::from_bytes(queue), Environment::system());
        let own = keys(b"Q");
        let batch = own.batch_ref(BatchId([8; 16]));
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

//! The place of an entry in the order of all commits.

use keyspace::tuple::Versionstamp as TupleVersionstamp;
use keyspace::{Subspace, Versionstamp};

use crate::item::ItemId;

/// The number of bytes in the id of an entry.
pub const ENTRY_ID_BYTES: usize = 20;

/// The index that stands for a whole block. It sorts after every entry of the block.
pub const WHOLE_BLOCK: u16 = u16::MAX;

/// The place of an entry: the id of its block and its index in the block.
///
/// Ids sort in the order of the entries, by commit, then by call, then by index. Their
/// [bytes](Self::to_bytes) sort the same way.
///
/// ```
/// use microqueue::blocks::{EntryId, WHOLE_BLOCK};
/// use microqueue::keyspace::Versionstamp;
///
/// let id = EntryId { versionstamp: Versionstamp::new(1000, 0), call: 7, index: 2 };
/// assert_eq!(EntryId::try_from(&id.to_bytes()[..])?, id);
/// assert!(id < EntryId { index: WHOLE_BLOCK, ..id });
/// # Ok::<(), microqueue::blocks::EntryIdError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryId {
    /// The versionstamp of the commit that added the block.
    pub versionstamp: Versionstamp,
    /// The call number of the block, which distinguishes blocks of the same commit.
    pub call: u64,
    /// The index in the block, from 0, or [`WHOLE_BLOCK`].
    pub index: u16,
}

/// The bytes are not the id of an entry.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected the id of an entry: {ENTRY_ID_BYTES} bytes")]
pub struct EntryIdError;

impl EntryId {
    /// Returns the id of the block.
    #[must_use]
    pub fn block(&self) -> ItemId {
        ItemId::Commit {
            versionstamp: self.versionstamp,
            call: self.call,
        }
    }

    /// Returns the id as bytes that sort as the ids do: ten bytes of versionstamp, eight of call and two
    /// of index, big-endian.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; ENTRY_ID_BYTES] {
        let mut bytes = [0; ENTRY_ID_BYTES];
        bytes[..10].copy_from_slice(self.versionstamp.as_bytes());
        bytes[10..18].copy_from_slice(&self.call.to_be_bytes());
        bytes[18..].copy_from_slice(&self.index.to_be_bytes());
        bytes
    }

    /// Returns the key that this id has in `subspace`: (versionstamp, call, index).
    #[must_use]
    pub fn key_in(&self, subspace: &Subspace) -> Vec<u8> {
        let versionstamp = TupleVersionstamp::complete(*self.versionstamp.as_bytes(), 0);
        subspace.pack(&(versionstamp, self.call, self.index))
    }

    /// Returns the id that `key` encodes in `subspace`, or `None` if it encodes none.
    #[must_use]
    pub fn of_key(subspace: &Subspace, key: &[u8]) -> Option<Self> {
        let (versionstamp, call, index): (TupleVersionstamp, u64, u16) =
            subspace.unpack(key).ok()?;
        let versionstamp = Versionstamp::try_from(versionstamp.transaction_version()).ok()?;
        let id = Self {
            versionstamp,
            call,
            index,
        };
        // Another key may unpack to the same id with a user version that is not zero. Such a key is not
        // ours.
        if id.key_in(subspace) == key {
            Some(id)
        } else {
            None
        }
    }
}

impl TryFrom<&[u8]> for EntryId {
    type Error = EntryIdError;

    fn try_from(bytes: &[u8]) -> Result<Self, EntryIdError> {
        let bytes: [u8; ENTRY_ID_BYTES] = bytes.try_into().map_err(|_| EntryIdError)?;
        let (versionstamp, rest) = bytes.split_at(10);
        let (call, index) = rest.split_at(8);
        Ok(Self {
            versionstamp: Versionstamp::try_from(versionstamp).map_err(|_| EntryIdError)?,
            call: u64::from_be_bytes(call.try_into().map_err(|_| EntryIdError)?),
            index: u16::from_be_bytes(index.try_into().map_err(|_| EntryIdError)?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_sort_by_commit_then_call_then_index_in_every_form() {
        let id = |version, batch_index, call, index| EntryId {
            versionstamp: Versionstamp::new(version, batch_index),
            call,
            index,
        };
        let ids = [
            id(1, 0, 900, 3),
            id(1, 1, 255, 0),
            id(1, 1, 255, 255),
            id(1, 1, 255, 256),
            id(1, 1, 255, WHOLE_BLOCK),
            id(1, 1, 256, 0),
            id(256, 0, 0, 0),
        ];
        let subspace = Subspace::from("Q");
        assert!(ids.is_sorted_by(|a, b| a < b));
        assert!(ids.is_sorted_by(|a, b| a.to_bytes() < b.to_bytes()));
        assert!(ids.is_sorted_by(|a, b| a.key_in(&subspace) < b.key_in(&subspace)));
        for id in ids {
            assert_eq!(EntryId::try_from(&id.to_bytes()[..]), Ok(id));
            let key = id.key_in(&subspace);
            assert_eq!(EntryId::of_key(&subspace, &key), Some(id));
            assert_eq!(EntryId::of_key(&subspace, &key[..key.len() - 1]), None);
            assert_eq!(
                EntryId::of_key(&subspace, &id.block().key_in(&subspace)),
                None
            );
        }
        for length in [0, 18, 19, 21] {
            assert_eq!(EntryId::try_from(&vec![0; length][..]), Err(EntryIdError));
        }
    }

    #[test]
    fn an_id_has_these_bytes() {
        let id = EntryId {
            versionstamp: Versionstamp::from_bytes([8; 10]),
            call: 9,
            index: 0x0102,
        };
        let bytes = [&[8; 10][..], b"\0\0\0\0\0\0\0\x09\x01\x02"].concat();
        assert_eq!(&id.to_bytes()[..], bytes);
        let key = [b"Q\x33", &[8; 10][..], b"\0\0\x15\x09\x16\x01\x02"].concat();
        assert_eq!(id.key_in(&Subspace::from_bytes(b"Q")), key);
    }
}

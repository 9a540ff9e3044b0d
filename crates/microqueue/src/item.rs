//! Items and their ids.

use keyspace::tuple::Versionstamp as TupleVersionstamp;
use keyspace::{Subspace, Undecodable, Versionstamp};

/// The number of random bytes at the end of a key in [`Order::Index`](crate::Order::Index).
pub const SUFFIX_BYTES: usize = 20;

/// An item of a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item<T> {
    /// The item's place in the queue.
    pub id: ItemId,
    /// The value that was enqueued.
    pub value: T,
}

/// An item returned by a listing, whether or not its value decodes.
pub type Listed<T> = keyspace::Listed<ItemId, T>;

impl<T> TryFrom<Listed<T>> for Item<T> {
    type Error = Undecodable;

    /// Returns the item, or the reason why its value does not decode.
    fn try_from(listed: Listed<T>) -> Result<Self, Undecodable> {
        let Listed { id, value } = listed;
        Ok(Self { id, value: value? })
    }
}

/// The place of an item in its queue. It is unique in the queue, and ids sort in the order of the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ItemId {
    /// The id of an item in [`Order::Commit`](crate::Order::Commit).
    Commit {
        /// The versionstamp of the commit that enqueued the item.
        versionstamp: Versionstamp,
        /// The call number, which distinguishes items of the same commit.
        call: u64,
    },
    /// The id of an item in [`Order::Index`](crate::Order::Index).
    Index {
        /// One more than the last index that the enqueuing transaction saw.
        index: u64,
        /// Random bytes that distinguish items with the same index.
        suffix: [u8; SUFFIX_BYTES],
    },
}

impl ItemId {
    /// Returns the key that this id has in `subspace`, for layers that store their own rows by item id.
    #[must_use]
    pub fn key_in(&self, subspace: &Subspace) -> Vec<u8> {
        match self {
            Self::Commit { versionstamp, call } => subspace.pack(&(
                TupleVersionstamp::complete(*versionstamp.as_bytes(), 0),
                call,
            )),
            Self::Index { index, suffix } => subspace.pack(&(index, suffix.as_slice())),
        }
    }

    /// Returns the id that `key` encodes in `subspace`, for an item in
    /// [`Order::Commit`](crate::Order::Commit).
    ///
    /// Returns `None` if the key is not the key of such an item.
    #[must_use]
    pub fn of_commit(subspace: &Subspace, key: &[u8]) -> Option<Self> {
        let (versionstamp, call): (TupleVersionstamp, u64) = subspace.unpack(key).ok()?;
        let versionstamp = Versionstamp::try_from(versionstamp.transaction_version()).ok()?;
        // A number has only one packed form, and the user version is zero. Any other key that unpacks
        // to the same id is not one of ours.
        Some(Self::Commit { versionstamp, call }).filter(|id| id.key_in(subspace) == key)
    }

    /// Returns the id that `key` encodes in `subspace`, for an item in
    /// [`Order::Index`](crate::Order::Index).
    pub(crate) fn of_index(subspace: &Subspace, key: &[u8]) -> Option<Self> {
        let (index, suffix): (u64, Vec<u8>) = subspace.unpack(key).ok()?;
        let suffix = suffix.try_into().ok()?;
        Some(Self::Index { index, suffix }).filter(|id| id.key_in(subspace) == key)
    }
}

/// The id of an item that is staged. The commit completes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StagedId(pub(crate) ItemId);

impl StagedId {
    /// Returns the id of an item that is staged with this call number in commit order, for layers that have kept the
    /// number.
    #[must_use]
    pub fn of_call(call: u64) -> Self {
        Self(ItemId::Commit {
            versionstamp: Versionstamp::INCOMPLETE,
            call,
        })
    }

    /// Returns the item's id, given the versionstamp of the commit that enqueued it.
    #[must_use]
    pub fn at(self, versionstamp: Versionstamp) -> ItemId {
        match self.0 {
            ItemId::Commit { call, .. } => ItemId::Commit { versionstamp, call },
            index @ ItemId::Index { .. } => index,
        }
    }

    /// Returns the key that this id will have in `subspace`, as
    /// [`SetVersionstampedKey`](keyspace::MutationOp::SetVersionstampedKey) takes it, for layers that
    /// store their own rows by item id.
    ///
    /// Returns `None` in [`Order::Index`](crate::Order::Index), where the id is already complete.
    #[must_use]
    pub fn key_template_in(self, subspace: &Subspace) -> Option<Vec<u8>> {
        match self.0 {
            ItemId::Commit { call, .. } => {
                Some(subspace.pack_with_versionstamp(&(TupleVersionstamp::incomplete(0), call)))
            }
            ItemId::Index { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commit_completes_a_staged_id() {
        let staged = StagedId(ItemId::Commit {
            versionstamp: Versionstamp::INCOMPLETE,
            call: 7,
        });
        let versionstamp = Versionstamp::new(5, 1);
        assert_eq!(
            staged.at(versionstamp),
            ItemId::Commit {
                versionstamp,
                call: 7
            }
        );

        let index = ItemId::Index {
            index: 3,
            suffix: [1; SUFFIX_BYTES],
        };
        assert_eq!(StagedId(index).at(versionstamp), index);
    }

    #[test]
    fn ids_sort_by_commit_then_call_and_by_index_then_suffix() {
        let commit = |version, batch_index, call| ItemId::Commit {
            versionstamp: Versionstamp::new(version, batch_index),
            call,
        };
        let index = |index, first| ItemId::Index {
            index,
            suffix: [first; SUFFIX_BYTES],
        };
        assert!(
            [
                commit(1, 0, 900),
                commit(1, 1, 255),
                commit(1, 1, 256),
                commit(256, 0, 0)
            ]
            .is_sorted_by(|a, b| a < b)
        );
        assert!(
            [index(1, 2), index(255, 1), index(255, 9), index(256, 0)].is_sorted_by(|a, b| a < b)
        );
    }
}

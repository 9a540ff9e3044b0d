//! The keys and values of a queue. `queue` is the prefix of its subspace, in which no other key is ever written.
//!
//! # Layout
//!
//! ```text
//! Order::Commit
//!   (queue, versionstamp, call)  =  format, value
//!
//!   versionstamp  tuple versionstamp: the ten bytes of the commit, user version 0
//!   call          tuple integer: number of the call, from a counter of the process
//!   format        a byte, 01
//!   value         the codec's bytes
//!
//! Order::Index
//!   (queue, index, suffix)  =  value
//!
//!   index         tuple integer: 1 in an empty queue, else the last index seen and 1
//!   suffix        tuple byte string: 20 random bytes
//!   value         the codec's bytes, without a format byte
//! ```

use std::marker::PhantomData;

use keyspace::codec::{self, Codec, DecodeError};
use keyspace::record::Fields;
use keyspace::tuple::Versionstamp as TupleVersionstamp;
use keyspace::{KeyValue, Subspace, Undecodable, Versionstamp, limits};

use crate::error::{Error, Result};
use crate::item::{Item, ItemId, Listed, SUFFIX_BYTES};
use crate::order::Order;

/// The format number of a value in commit order.
pub(crate) const FORMAT: u8 = 1;

/// The most bytes of a key after its prefix: an index of nine bytes, then a suffix of zeros, each of
/// which packs into two bytes, between a type code and an end.
const MAX_KEY_REST_BYTES: usize = 9 + 1 + 2 * SUFFIX_BYTES + 1;

/// The longest prefix that a queue's subspace can have, in bytes.
pub const MAX_PREFIX_BYTES: usize = limits::MAX_KEY_BYTES - MAX_KEY_REST_BYTES;

/// Returns what a key is in a queue with this prefix, in words: `item`. Returns `None` if it is no
/// key of a queue.
///
/// The words are for people, and may change. To look at a key takes no read and no open queue.
#[must_use]
pub fn describe_key(queue: &Subspace, key: &[u8]) -> Option<&'static str> {
    let id = ItemId::of_commit(queue, key).or_else(|| ItemId::of_index(queue, key));
    id.map(|_| "item")
}

/// The keys and values of one queue.
pub(crate) struct Layout<T, C> {
    pub(crate) subspace: Subspace,
    pub(crate) order: Order,
    codec: C,
    value: PhantomData<fn() -> T>,
}

impl<T, C> Layout<T, C> {
    pub(crate) fn new(subspace: Subspace, order: Order, codec: C) -> Self {
        Self {
            // A prefix that contains an incomplete versionstamp is treated as plain bytes.
            subspace: Subspace::from_bytes(subspace.into_bytes()),
            order,
            codec,
            value: PhantomData,
        }
    }

    /// Returns the layout of the same queue with another codec.
    pub(crate) fn codec<Other>(self, codec: Other) -> Layout<T, Other> {
        Layout {
            subspace: self.subspace,
            order: self.order,
            codec,
            value: PhantomData,
        }
    }

    /// Fails if the prefix is too long for the key of an item.
    pub(crate) fn check_prefix(&self) -> Result<()> {
        let bytes = self.subspace.bytes().len();
        if bytes > MAX_PREFIX_BYTES {
            return Err(Error::PrefixTooLong {
                bytes,
                limit: MAX_PREFIX_BYTES,
            });
        }
        Ok(())
    }

    /// Returns the key of an item.
    pub(crate) fn key(&self, id: &ItemId) -> Vec<u8> {
        id.key_in(&self.subspace)
    }

    /// Returns the key of an item in commit order, as `SetVersionstampedKey` takes it.
    pub(crate) fn key_template(&self, call: u64) -> Vec<u8> {
        self.subspace
            .pack_with_versionstamp(&(TupleVersionstamp::incomplete(0), call))
    }

    /// Returns the id of the item with this key.
    pub(crate) fn id(&self, key: &[u8]) -> Result<ItemId> {
        let id = match self.order {
            Order::Commit => ItemId::of_commit(&self.subspace, key),
            Order::Index => ItemId::of_index(&self.subspace, key),
        };
        id.ok_or_else(|| self.foreign(key))
    }

    /// Returns the index in a key, from which the next enqueue counts.
    pub(crate) fn index(&self, key: &[u8]) -> Result<u64> {
        let (index, _suffix): (u64, Vec<u8>) =
            self.subspace.unpack(key).map_err(|_| self.foreign(key))?;
        Ok(index)
    }

    fn foreign(&self, key: &[u8]) -> Error {
        let expected = match self.order {
            Order::Commit => "expected a key of a queue in commit order, (versionstamp, call)",
            Order::Index => "expected a key of a queue in index order, (index, 20 random bytes)",
        };
        keyspace::Error::corrupt(key, expected).into()
    }

    /// Returns a key that no item has, inside the range where any stamped write to the queue may land. It
    /// contains the last versionstamp but one, cut off after its ten bytes.
    pub(crate) fn probe(&self) -> Vec<u8> {
        let mut probe = self.subspace.pack(&TupleVersionstamp::complete(
            *Versionstamp::INCOMPLETE.as_bytes(),
            0,
        ));
        let user_version_bytes = 2;
        probe.truncate(probe.len() - user_version_bytes);
        *probe
            .last_mut()
            .expect("a packed versionstamp is not empty") -= 1;
        probe
    }
}

impl<T, C: Codec<T>> Layout<T, C> {
    /// Returns the stored bytes of a value.
    pub(crate) fn encode(&self, value: &T) -> Result<Vec<u8>> {
        let mut bytes = match self.order {
            Order::Commit => vec![FORMAT],
            Order::Index => Vec::new(),
        };
        codec::encode(&self.codec, value, &mut bytes)?;
        if bytes.len() > limits::MAX_VALUE_BYTES {
            return Err(Error::ItemTooLarge {
                queue: self.subspace.clone(),
                bytes: bytes.len(),
                limit: limits::MAX_VALUE_BYTES,
            });
        }
        Ok(bytes)
    }

    /// Decodes the item in a row.
    pub(crate) fn decode(&self, row: &KeyValue) -> Result<Item<T>> {
        let item = Item::try_from(self.parse_listed(row)?);
        Ok(item.map_err(keyspace::Error::from)?)
    }

    /// Decodes the item in a row as listings do: an item that does not decode is returned with the
    /// reason.
    pub(crate) fn parse_listed(&self, row: &KeyValue) -> Result<Listed<T>> {
        let id = self.id(row.key())?;
        let mut fields = Fields::new(row.value());
        let format = match self.order {
            Order::Index => Ok(()),
            Order::Commit => fields.format(FORMAT),
        };
        let (bytes, decoded) = match format {
            Ok(()) => {
                let bytes = row.to_value().slice_ref(fields.rest());
                (bytes.clone(), codec::decode(&self.codec, bytes))
            }
            Err(reason) => {
                let codec = "a queue's record";
                (row.to_value(), Err(DecodeError { codec, reason }))
            }
        };
        let value = decoded.map_err(|error| Undecodable::new(row.to_key(), bytes, error));
        Ok(Listed { id, value })
    }
}

impl<T, C: Clone> Clone for Layout<T, C> {
    fn clone(&self) -> Self {
        Self {
            subspace: self.subspace.clone(),
            order: self.order,
            codec: self.codec.clone(),
            value: PhantomData,
        }
    }
}

#[cfg(test)]
mod tests {
    use keyspace::Bytes;
    use keyspace::codec::{Bincode, Raw, Tuple};

    use super::*;

    const STAMP: [u8; 10] = *b"\x00\x00\x01\x02\x03\x04\x05\x06\x00\x07";

    /// Bytes from 1 to 20, with a zero in place of the third.
    const SUFFIX: [u8; SUFFIX_BYTES] = *b"\x01\x02\x00\x04\x05\x06\x07\x08\x09\x0a\
        \x0b\x0c\x0d\x0e\x0f\x10\x11\x12\x13\x14";

    /// The suffix as the tuple layer packs it: a type code, the zero escaped, an end.
    const PACKED_SUFFIX: &[u8] = b"\x01\x01\x02\x00\xff\x04\x05\x06\x07\x08\x09\x0a\
        \x0b\x0c\x0d\x0e\x0f\x10\x11\x12\x13\x14\x00";

    fn layout<T, C: Default>(order: Order) -> Layout<T, C> {
        Layout::new(Subspace::from("Q"), order, C::default())
    }

    fn commit_id(call: u64) -> ItemId {
        ItemId::Commit {
            versionstamp: Versionstamp::from_bytes(STAMP),
            call,
        }
    }

    fn index_id(index: u64) -> ItemId {
        ItemId::Index {
            index,
            suffix: SUFFIX,
        }
    }

    fn row(key: impl AsRef<[u8]>, value: &'static [u8]) -> KeyValue {
        KeyValue::new(key.as_ref(), value)
    }

    #[track_caller]
    fn assert_corrupt<T: std::fmt::Debug>(result: Result<T>, at: &[u8], expected: &str) {
        match result.unwrap_err() {
            Error::Keyspace(keyspace::Error::Corrupt { key, reason }) => {
                assert_eq!(key, at);
                assert!(reason.contains(expected), "{reason}");
            }
            other => panic!("expected a corrupt record, got {other:?}"),
        }
    }

    #[test]
    fn keys_in_commit_order_have_these_bytes() {
        let layout: Layout<(), Bincode> = layout(Order::Commit);
        for (call, packed_call) in [
            (0, &b"\x14"[..]),
            (7, b"\x15\x07"),
            (255, b"\x15\xff"),
            (256, b"\x16\x01\x00"),
            (65_536, b"\x17\x01\x00\x00"),
            (u64::MAX, b"\x1c\xff\xff\xff\xff\xff\xff\xff\xff"),
        ] {
            let key = [b"\x02Q\x00\x33", &STAMP[..], b"\x00\x00", packed_call].concat();
            assert_eq!(layout.key(&commit_id(call)), key);
            assert_eq!(layout.id(&key).unwrap(), commit_id(call));

            let stamp_offset = b"\x04\x00\x00\x00";
            let template = [
                b"\x02Q\x00\x33",
                &[0xff; 10][..],
                b"\x00\x00",
                packed_call,
                stamp_offset,
            ];
            assert_eq!(layout.key_template(call), template.concat());
        }
    }

    #[test]
    fn keys_in_index_order_have_these_bytes() {
        let layout: Layout<(), Bincode> = layout(Order::Index);
        for (index, packed_index) in [
            (1, &b"\x15\x01"[..]),
            (255, b"\x15\xff"),
            (256, b"\x16\x01\x00"),
            (65_535, b"\x16\xff\xff"),
            (65_536, b"\x17\x01\x00\x00"),
        ] {
            let key = Bytes::from([b"\x02Q\x00", packed_index, PACKED_SUFFIX].concat());
            assert_eq!(layout.key(&index_id(index)), key);
            assert_eq!(layout.id(&key).unwrap(), index_id(index));
            assert_eq!(layout.index(&key).unwrap(), index);
        }
    }

    #[test]
    fn values_in_commit_order_begin_with_their_format() {
        let layout: Layout<String, Bincode> = layout(Order::Commit);
        assert_eq!(layout.encode(&"job".to_owned()).unwrap(), b"\x01\x03job");
        let item = layout.decode(&row(layout.key(&commit_id(1)), b"\x01\x03job"));
        assert_eq!(item.unwrap().value, "job");
    }

    #[test]
    fn values_in_index_order_are_the_codecs_bytes_alone() {
        let python: Layout<Bytes, Raw> = layout(Order::Index);
        let value = Bytes::from_static(b"job\x00");
        assert_eq!(python.encode(&value).unwrap(), b"job\x00");
        let item = python.decode(&row(python.key(&index_id(1)), b"job\x00"));
        assert_eq!(item.unwrap().value, value);

        let java: Layout<String, Tuple> = layout(Order::Index);
        assert_eq!(java.encode(&"Alice".to_owned()).unwrap(), b"\x02Alice\x00");
        let item = java.decode(&row(java.key(&index_id(1)), b"\x02Alice\x00"));
        assert_eq!(item.unwrap().value, "Alice");
    }

    #[test]
    fn the_probe_lies_where_stamped_keys_may_land_and_is_no_items_key() {
        let layout: Layout<(), Bincode> = layout(Order::Commit);
        let probe = layout.probe();
        assert_eq!(
            probe,
            b"\x02Q\x00\x33\xff\xff\xff\xff\xff\xff\xff\xff\xff\xfe"
        );
        let highest = ItemId::Commit {
            versionstamp: Versionstamp::new(i64::MAX, u16::MAX),
            call: u64::MAX,
        };
        let placeholder = ItemId::Commit {
            versionstamp: Versionstamp::INCOMPLETE,
            call: 0,
        };
        assert!(layout.key(&highest) < probe);
        assert!(probe < layout.key(&placeholder));
        assert_corrupt(layout.id(&probe), &probe, "commit order");
    }

    #[test]
    fn the_longest_prefix_leaves_room_for_the_longest_key() {
        let zeros = [0; SUFFIX_BYTES];
        for (order, id) in [
            (Order::Commit, commit_id(u64::MAX)),
            (
                Order::Index,
                ItemId::Index {
                    index: u64::MAX,
                    suffix: zeros,
                },
            ),
        ] {
            let prefix = vec![b'x'; MAX_PREFIX_BYTES];
            let layout: Layout<(), Bincode> =
                Layout::new(Subspace::from_bytes(prefix), order, Bincode);
            layout.check_prefix().unwrap();
            assert!(layout.key(&id).len() <= limits::MAX_KEY_BYTES);
            assert!(layout.key_template(u64::MAX).len() <= limits::MAX_KEY_BYTES);
        }
        let prefix = Subspace::from_bytes(vec![b'x'; MAX_PREFIX_BYTES + 1]);
        let layout: Layout<(), Bincode> = Layout::new(prefix, Order::Index, Bincode);
        assert!(matches!(
            layout.check_prefix(),
            Err(Error::PrefixTooLong {
                bytes: 9_950,
                limit: 9_949
            })
        ));
    }

    #[test]
    fn the_largest_value_fits_and_one_byte_more_does_not() {
        for (order, framing) in [(Order::Commit, 1), (Order::Index, 0)] {
            let layout: Layout<Bytes, Raw> = layout(order);
            let largest = Bytes::from(vec![0; limits::MAX_VALUE_BYTES - framing]);
            assert_eq!(
                layout.encode(&largest).unwrap().len(),
                limits::MAX_VALUE_BYTES
            );
            let larger = Bytes::from(vec![0; limits::MAX_VALUE_BYTES - framing + 1]);
            assert!(matches!(
                layout.encode(&larger),
                Err(Error::ItemTooLarge {
                    bytes: 100_001,
                    limit: 100_000,
                    ..
                })
            ));
        }
    }

    #[test]
    fn a_key_that_is_no_items_key_is_corrupt() {
        let commit: Layout<(), Bincode> = layout(Order::Commit);
        let index: Layout<(), Bincode> = layout(Order::Index);
        let stamped = commit.key(&commit_id(5));
        let indexed = index.key(&index_id(5));
        let user_version = {
            let mut key = stamped.clone();
            key[15] = 1;
            key
        };
        let with = |rest: &[u8]| [b"\x02Q\x00", rest].concat();
        for key in [
            indexed.clone(),
            user_version,
            [&stamped[..], b"\x14"].concat(),
            stamped[..stamped.len() - 1].to_vec(),
            // A call number in more bytes than it needs.
            [&stamped[..16], b"\x16\x00\x05"].concat(),
            with(b""),
            b"\x02R\x00\x33".to_vec(),
        ] {
            assert_corrupt(commit.id(&key), &key, "commit order");
        }
        for key in [
            stamped,
            with(b"\x15\x01\x01short\x00"),
            with(b"\x15\x01"),
            [&with(b"\x16\x00\x05")[..], PACKED_SUFFIX].concat(),
            // A negative index.
            [&with(b"\x13\xfe")[..], PACKED_SUFFIX].concat(),
        ] {
            assert_corrupt(index.id(&key), &key, "index order");
        }
    }

    #[test]
    fn a_value_that_is_no_items_value_is_corrupt() {
        let layout: Layout<String, Bincode> = layout(Order::Commit);
        let key = layout.key(&commit_id(1));
        for (value, expected) in [
            (&b""[..], "ends 1 bytes early"),
            (b"\x02\x03job", "upgrade the library"),
            (b"\0\x03job", "there is no format 0"),
            (b"\x01\x03jo", "expected Bincode"),
            (b"\x01\x03jobs", "1 bytes left over"),
            (b"\x01\x02\xff\xff", "expected Bincode"),
        ] {
            assert_corrupt(layout.decode(&row(&key, value)), &key, expected);
        }
    }

    #[test]
    fn an_incomplete_versionstamp_in_the_prefix_is_taken_as_bytes() {
        let prefix = Subspace::from(TupleVersionstamp::incomplete(0));
        let layout: Layout<(), Bincode> = Layout::new(prefix, Order::Commit, Bincode);
        let template = layout.key_template(1);
        assert_eq!(template[..13], layout.subspace.bytes()[..]);
        assert_eq!(template[template.len() - 4..], 14_u32.to_le_bytes());
    }
}

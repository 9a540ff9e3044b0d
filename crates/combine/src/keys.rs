//! The keys of a combine queue.
//!
//! ```text
//! (queue, "m")                              = settings
//! (queue, "w")                              = wake stamp: versionstamp of the newest commit that
//!                                             added something, or with which a worker came or went
//! (queue, "u", generation, bucket, key, id) = update: 01, then the codec's bytes
//! (queue, "n", generation, bucket)          = notification: versionstamp of the newest commit that
//!                                             added to the bucket; absent: nothing is left to do
//! (queue, "v", generation, bucket, key)     = value as it was last reported
//! (queue, "c", generation, bucket, key)     = current value, while it is not reported yet
//! (queue, "x", generation, bucket)          = sweep
//! (queue, "q", bucket, key, id)             = update that was set aside
//! (queue, "s", session)                     = worker's session: 01, then 01 alive or 00 dead
//! (queue, "b", session)                     = its heartbeat: versionstamp
//!
//! generation  tuple integer: 0
//! bucket      tuple integer: XXH3 (64 bits, no seed) of the key's bytes, modulo the bucket count
//! key         tuple byte string: the codec's bytes
//! id          two tuple elements: versionstamp, call
//! session     tuple byte string: 16 random bytes
//!
//! value, current value
//!     0       format, 01
//!     1       1 if there is a value, plus 2 if "c" has a newer one that is not reported yet
//!     2..     value: the codec's bytes
//! sweep
//!     0       format, 01
//!     1..9    read version at which the last complete sweep began; 0 if there was none
//!     9..     nothing, or of the sweep in progress:
//!             8 bytes   read version at which it began
//!             10 bytes  notification at that version
//!             the rest  key at which it goes on
//! update that was set aside
//!     0       format, 01
//!     1       length of the reason
//!     2..     reason in UTF-8, then the update as it was under "u"
//! settings
//!     0       format, 01
//!     1..5    generation
//!     5..9    bucket count
//!     9..17   lease of a worker's session in milliseconds
//!     17..    codecs of key, update and value: for each a length of one byte, and its name
//! ```
//!
//! `queue` is the prefix of the queue's subspace. Integers in values are big-endian. No other key of
//! the subspace is ever written.

use std::fmt;

use hc_dequeue::keyspace::tuple::Versionstamp as TupleVersionstamp;
use hc_dequeue::keyspace::{self, Subspace, Transaction};
use hc_dequeue::microqueue::{ItemId, MAX_PREFIX_BYTES};
use hc_dequeue::session::{SessionId, Sessions};
use xxhash_rust::xxh3::xxh3_64;

use crate::error::{Error, Result};
use crate::settings::GENERATION;

/// The type code of a versionstamp in a packed tuple.
const VERSIONSTAMP_CODE: u8 = 0x33;

/// A part of a queue's keys, by number from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bucket(pub u32);

impl Bucket {
    /// Returns the bucket of a key, given its encoded bytes: their XXH3 modulo the count of buckets,
    /// which is at least one.
    #[must_use]
    pub fn of(key: &[u8], bucket_count: u32) -> Self {
        let bucket = xxh3_64(key) % u64::from(bucket_count);
        Self(u32::try_from(bucket).expect("less than a count of 32 bits"))
    }
}

impl fmt::Display for Bucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The parts of a queue's subspace. A `key` is always the codec's bytes.
#[derive(Debug, Clone)]
pub(crate) struct Keys {
    pub(crate) queue: Subspace,
    pub(crate) sessions: Sessions,
    pub(crate) bucket_count: u32,
    updates: Subspace,
    notifications: Subspace,
    values: Subspace,
    currents: Subspace,
    sweeps: Subspace,
    aside: Subspace,
}

impl Keys {
    pub(crate) fn new(queue: Subspace, bucket_count: u32) -> Self {
        let part = |name| queue.subspace(&(name, GENERATION));
        Self {
            updates: part("u"),
            notifications: part("n"),
            values: part("v"),
            currents: part("c"),
            sweeps: part("x"),
            aside: queue.subspace(&"q"),
            sessions: Sessions::new(queue.clone()),
            bucket_count,
            queue,
        }
    }

    /// Returns the bucket of a key.
    pub(crate) fn bucket(&self, key: &[u8]) -> Bucket {
        Bucket::of(key, self.bucket_count)
    }

    /// Returns all buckets.
    pub(crate) fn buckets(&self) -> impl Iterator<Item = Bucket> + use<> {
        (0..self.bucket_count).map(Bucket)
    }

    /// Refuses a key with which some key of the store would be too long.
    pub(crate) fn check(&self, key: &[u8]) -> Result<()> {
        // Of all keys that contain it, those of its updates are the longest. These are a microqueue.
        let prefix_bytes = self.updates_of(self.bucket(key), key).bytes().len();
        if prefix_bytes > MAX_PREFIX_BYTES {
            let excess = prefix_bytes - MAX_PREFIX_BYTES;
            return Err(Error::KeyTooLarge {
                queue: self.queue.clone(),
                bytes: key.len(),
                excess,
            });
        }
        Ok(())
    }

    pub(crate) fn settings(&self) -> Vec<u8> {
        self.queue.pack(&"m")
    }

    pub(crate) fn wake(&self) -> Vec<u8> {
        self.queue.pack(&"w")
    }

    /// The updates of a bucket.
    pub(crate) fn updates(&self, bucket: Bucket) -> Subspace {
        self.updates.subspace(&bucket.0)
    }

    /// The updates of a key, a microqueue.
    pub(crate) fn updates_of(&self, bucket: Bucket, key: &[u8]) -> Subspace {
        self.updates.subspace(&(bucket.0, key))
    }

    pub(crate) fn notification(&self, bucket: Bucket) -> Vec<u8> {
        self.notifications.pack(&bucket.0)
    }

    pub(crate) fn notifications(&self) -> (Vec<u8>, Vec<u8>) {
        self.notifications.range()
    }

    /// Returns the bucket that a key under `(queue, "n")` names.
    pub(crate) fn parse_notification(&self, key: &[u8]) -> Result<Bucket> {
        bucket_of(&self.notifications, key)
    }

    pub(crate) fn value(&self, bucket: Bucket, key: &[u8]) -> Vec<u8> {
        self.values.pack(&(bucket.0, key))
    }

    /// The range of all values.
    pub(crate) fn values(&self) -> (Vec<u8>, Vec<u8>) {
        self.values.range()
    }

    pub(crate) fn values_of(&self, bucket: Bucket) -> Subspace {
        self.values.subspace(&bucket.0)
    }

    /// Returns the key whose value lies under a key of the store.
    pub(crate) fn parse_value(&self, row: &[u8]) -> Result<Vec<u8>> {
        let unpacked: Result<(u32, Vec<u8>), _> = self.values.unpack(row);
        let (_, key) =
            unpacked.map_err(|_| keyspace::Error::corrupt(row, "expected the key of a value"))?;
        Ok(key)
    }

    pub(crate) fn current(&self, bucket: Bucket, key: &[u8]) -> Vec<u8> {
        self.currents.pack(&(bucket.0, key))
    }

    pub(crate) fn sweep(&self, bucket: Bucket) -> Vec<u8> {
        self.sweeps.pack(&bucket.0)
    }

    pub(crate) fn aside(&self, key: &[u8], id: &ItemId) -> Vec<u8> {
        id.key_in(&self.aside_of(self.bucket(key), key))
    }

    pub(crate) fn all_aside(&self) -> (Vec<u8>, Vec<u8>) {
        self.aside.range()
    }

    /// Returns the key and the id that a key under `(queue, "q")` names.
    pub(crate) fn parse_aside(&self, row: &[u8]) -> Result<(Vec<u8>, ItemId)> {
        let unpacked: Result<(u32, Vec<u8>, TupleVersionstamp, u64), _> = self.aside.unpack(row);
        let named = unpacked.ok().and_then(|(bucket, key, ..)| {
            let id = ItemId::of_commit(&self.aside_of(Bucket(bucket), &key), row)?;
            Some((key, id))
        });
        named.ok_or_else(|| {
            keyspace::Error::corrupt(row, "expected the key of an update set aside").into()
        })
    }

    fn aside_of(&self, bucket: Bucket, key: &[u8]) -> Subspace {
        self.aside.subspace(&(bucket.0, key))
    }

    pub(crate) fn update(&self, key: &[u8], id: &ItemId) -> Vec<u8> {
        id.key_in(&self.updates_of(self.bucket(key), key))
    }

    /// Returns the subspace of the updates of the key that an update under `row` is of, and the key.
    pub(crate) fn parse_update(&self, bucket: Bucket, row: &[u8]) -> Result<(Subspace, Vec<u8>)> {
        let unpacked: Result<(Vec<u8>, TupleVersionstamp, u64), _> =
            self.updates(bucket).unpack(row);
        let (key, ..) =
            unpacked.map_err(|_| keyspace::Error::corrupt(row, "expected the key of an update"))?;
        Ok((self.updates_of(bucket, &key), key))
    }

    /// Stages that somebody has added to a bucket. Writes blindly: nobody conflicts.
    pub(crate) fn notify(&self, tr: &impl Transaction, bucket: Bucket) {
        tr.set_to_versionstamp(&self.notification(bucket));
    }

    /// Stages that the workers look again. Writes blindly: nobody conflicts.
    pub(crate) fn wake_all(&self, tr: &impl Transaction) {
        tr.set_to_versionstamp(&self.wake());
    }
}

/// Returns whether a row is of an update of the same key as another one whose key ends at `prefix`.
pub(crate) fn is_update_of(row: &[u8], prefix: &[u8]) -> bool {
    // A longer key may begin with the same bytes, and then goes on with an escape.
    row.strip_prefix(prefix)
        .is_some_and(|id| id.first() == Some(&VERSIONSTAMP_CODE))
}

/// Returns how strongly a session is bound to a bucket: the one that is bound most owns it. This is
/// rendezvous hashing: whoever comes or goes changes the owner of its own buckets only.
pub(crate) fn bond(session: SessionId, bucket: Bucket) -> u64 {
    let mut bytes = session.0.to_vec();
    bytes.extend_from_slice(&bucket.0.to_be_bytes());
    xxh3_64(&bytes)
}

fn bucket_of(part: &Subspace, key: &[u8]) -> Result<Bucket> {
    let bucket: Result<u32, _> = part.unpack(key);
    match bucket {
        Ok(bucket) => Ok(Bucket(bucket)),
        Err(_) => Err(keyspace::Error::corrupt(key, "expected the number of a bucket").into()),
    }
}

#[cfg(test)]
mod tests {
    use hc_dequeue::keyspace::{Versionstamp, limits};

    use super::*;

    /// The tuple integer of a bucket or a generation.
    fn number(number: u8) -> Vec<u8> {
        match number {
            0 => vec![0x14],
            _ => vec![0x15, number],
        }
    }

    #[test]
    fn keys_have_the_bytes_of_the_schema() {
        let keys = Keys::new(Subspace::from_bytes(b"Q"), 7);
        let key = b"a\0b";
        let bucket = keys.bucket(key);
        let id = ItemId::Commit {
            versionstamp: Versionstamp::from_bytes([8; 10]),
            call: 9,
        };
        let name = |name: &str| [b"Q\x02", name.as_bytes(), b"\0"].concat();
        let bucket_byte = number(u8::try_from(bucket.0).unwrap());
        let part = |part| [name(part), number(0), bucket_byte.clone()].concat();
        let packed_key = b"\x01a\0\xffb\0".to_vec();
        let packed_id = [b"\x33", &[8; 10][..], b"\0\0\x15\x09"].concat();
        let keyed = |prefix: Vec<u8>| [prefix, packed_key.clone()].concat();
        let update = [keyed(part("u")), packed_id.clone()].concat();
        let aside = [keyed([name("q"), bucket_byte.clone()].concat()), packed_id].concat();
        let table = [
            (keys.settings(), name("m")),
            (keys.wake(), name("w")),
            (keys.updates(bucket).into_bytes(), part("u")),
            (keys.updates_of(bucket, key).into_bytes(), keyed(part("u"))),
            (keys.update(key, &id), update.clone()),
            (keys.notification(bucket), part("n")),
            (keys.value(bucket, key), keyed(part("v"))),
            (keys.current(bucket, key), keyed(part("c"))),
            (keys.sweep(bucket), part("x")),
            (keys.aside(key, &id), aside.clone()),
        ];
        for (key, expected) in table {
            assert_eq!(key, expected);
        }
        let (updates, updated) = keys.parse_update(bucket, &update).unwrap();
        assert_eq!(updated, key);
        assert!(is_update_of(&update, updates.bytes()));
        assert_eq!(keys.parse_aside(&aside).unwrap(), (key.to_vec(), id));
        assert_eq!(keys.parse_notification(&part("n")).unwrap(), bucket);
        assert_eq!(keys.parse_value(&keyed(part("v"))).unwrap(), key);
        for row in [&b"Q"[..], &part("u"), &keyed(part("u"))] {
            assert!(keys.parse_update(bucket, row).is_err());
            assert!(keys.parse_aside(row).is_err());
            assert!(keys.parse_notification(row).is_err());
            assert!(keys.parse_value(row).is_err());
        }
    }

    #[test]
    fn keys_fall_into_these_buckets() {
        // XXH3 of nothing is 2d06800538d394c2, of "a" e6c632b61e964e1f.
        for (key, hash) in [
            (&b""[..], 0x2d06_8005_38d3_94c2_u64),
            (b"a", 0xe6c6_32b6_1e96_4e1f),
        ] {
            for bucket_count in [1, 7, 1009, 65_536] {
                let keys = Keys::new(Subspace::all(), bucket_count);
                let bucket = hash % u64::from(bucket_count);
                assert_eq!(u64::from(keys.bucket(key).0), bucket);
            }
        }
    }

    #[test]
    fn a_key_that_begins_with_another_one_is_another_one() {
        let keys = Keys::new(Subspace::all(), 1);
        let id = ItemId::Commit {
            versionstamp: Versionstamp::from_bytes([0xff; 10]),
            call: u64::MAX,
        };
        let bucket = Bucket(0);
        let prefix = keys.updates_of(bucket, b"a").into_bytes();
        assert!(is_update_of(&keys.update(b"a", &id), &prefix));
        for other in [&b"a\0"[..], b"a\0\x33", b"aa", b""] {
            assert!(!is_update_of(&keys.update(other, &id), &prefix));
        }
        assert!(keys.update(b"a", &id) < keys.update(b"a\0", &id));
    }

    #[test]
    fn the_longest_key_fits_wherever_it_comes_to() {
        let keys = Keys::new(Subspace::from_bytes(b"Q"), 65_536);
        let longest = (1..).find(|bytes| keys.check(&vec![b'a'; *bytes]).is_err());
        let longest = vec![b'a'; longest.unwrap() - 1];
        let id = ItemId::Commit {
            versionstamp: Versionstamp::INCOMPLETE,
            call: u64::MAX,
        };
        let bucket = keys.bucket(&longest);
        for key in [
            keys.update(&longest, &id),
            keys.aside(&longest, &id),
            keys.value(bucket, &longest),
            keys.current(bucket, &longest),
        ] {
            assert!(key.len() <= limits::KEY_BYTES);
        }
        let updates = keys.updates_of(bucket, &longest);
        assert_eq!(updates.bytes().len(), MAX_PREFIX_BYTES);
    }
}

//! The keys and values of a combine queue. `queue` is the prefix of its subspace, in which no other key is ever
//! written. Integers in values are big-endian.
//!
//! # Layout
//!
//! ```text
//! (queue, "m")                            = settings
//! (queue, "w")                            = wake stamp: versionstamp of the newest commit that added something, or
//!                                           with which a worker came or went
//! (queue, "u", 0, bucket, block)          = block of updates: pairs of key and update
//! (queue, "v", 0, hash, key)              = value as last reported
//! (queue, "c", 0, hash, key)              = current value, if and only if it differs from that
//! (queue, "x", 0, bucket)                 = state of the passes
//! (queue, "q", bucket, "u", block, index) = update that was set aside, or with index 65,535 a block
//! (queue, "q", bucket, "k", key)          = why the reports of a key are withheld
//! (queue, "s", session)                   = worker's session, as in hc-dequeue
//! (queue, "b", session)                   = its heartbeat, likewise
//!
//! hash        tuple integer: the first 16 bits of XXH3 (64 bits, no seed) of the key's bytes
//! bucket      tuple integer: hash * bucket count / 65,536, rounded down
//! key         tuple byte string: the codec's bytes
//! block       two tuple elements, versionstamp and call, of a row in microqueue's log of blocks
//! index       tuple integer
//! session     tuple byte string: 16 random bytes
//!
//! value
//!     0       format, 01
//!     1..     the codec's bytes
//! current value
//!     0       format, 01
//!     1       1 if there is a value, plus 2 if its reports are withheld
//!     2..     value: the codec's bytes
//! state of the passes
//!     0       format, 01
//!     1       1 if there are current values, plus 2 if some of them can be reported
//!     2..10   read version of the last pass
//!     10..18  that of the last one that left nothing to report, or 0
//!     18..    if a block is partly folded, of its first update that is not: versionstamp in 10 bytes, call in 8,
//!             index in 2
//! what is set aside, and why reports are withheld
//!     0       format, 01
//!     1       length of the reason
//!     2..     reason in UTF-8
//!     next    of an update: length of the key in 4 bytes, key, update
//!             of a block: how many of its first updates were folded before in 2 bytes, block
//! settings
//!     0       format, 01
//!     1..5    zeros
//!     5..9    bucket count
//!     9..17   lease of a worker's session in milliseconds
//!     17..    codecs of key, update and value: for each the length of its name in a byte, name
//! ```
//!
//! A block that does not fit in a value together with its reason is truncated. The recipe never writes such a block.

use std::ops::Range;

use hc_dequeue::keyspace::parts::Part as _;
use hc_dequeue::keyspace::{self, Environment, Subspace, Transaction, limits, parts};
use hc_dequeue::microqueue::blocks::{BlockLogs, EntryId};
use hc_dequeue::session::{SessionId, Sessions};
use xxhash_rust::xxh3::xxh3_64;

use crate::bucket::{Bucket, KeyHash};
use crate::error::{Error, Result};
use crate::settings::RESERVED;

/// The most bytes of a stored key in addition to the queue's prefix and the packed key: the name of a
/// part, and a hash or a bucket with what is next to it.
const MAX_BESIDE_KEY: usize = 9;

parts! {
    /// The parts of a queue.
    pub(crate) enum Part {
        Heartbeats "b" "heartbeat",
        Currents "c" "current value",
        Settings "m" "settings",
        Aside "q" "set aside",
        Sessions "s" "session",
        Updates "u" "block of updates",
        Values "v" "reported value",
        Wake "w" "wake stamp",
        Passes "x" "state of the passes",
    }
}

/// Returns what a key is in a queue with this prefix, in words: `current value`, for example. Returns `None` if it is
/// no key of a queue.
///
/// The words are for people, and may change. To look at a key takes no read and no open queue.
#[must_use]
pub fn describe_key(queue: &Subspace, key: &[u8]) -> Option<&'static str> {
    Part::of(queue, key).map(Part::text)
}

/// The parts of a queue's subspace. A `key` is always the codec's bytes.
#[derive(Debug, Clone)]
pub(crate) struct Keys {
    pub(crate) queue: Subspace,
    pub(crate) sessions: Sessions,
    pub(crate) bucket_count: u32,
    /// The updates, one log for each bucket.
    pub(crate) logs: BlockLogs,
    values: Subspace,
    currents: Subspace,
    passes: Subspace,
    aside: Subspace,
}

impl Keys {
    pub(crate) fn new(queue: Subspace, bucket_count: u32, env: Environment) -> Self {
        let part = |part: Part| queue.subspace(&(part, RESERVED));
        Self {
            logs: BlockLogs::new(part(Part::Updates), bucket_count, env),
            values: part(Part::Values),
            currents: part(Part::Currents),
            passes: part(Part::Passes),
            aside: queue.subspace(&Part::Aside),
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

    /// Fails if a key of the store would be too long for this key.
    pub(crate) fn check(&self, key: &[u8]) -> Result<()> {
        let zeros = key.iter().filter(|byte| **byte == 0).count();
        // A tuple packs each zero as two bytes, and adds one byte before the others and one after them.
        let packed = key.len() + zeros + 2;
        let bytes = self.queue.bytes().len() + MAX_BESIDE_KEY + packed;
        match bytes.checked_sub(limits::MAX_KEY_BYTES) {
            None | Some(0) => Ok(()),
            Some(excess) => Err(Error::KeyTooLarge {
                queue: self.queue.clone(),
                bytes: key.len(),
                excess,
            }),
        }
    }

    pub(crate) fn wake(&self) -> Vec<u8> {
        self.queue.pack(&Part::Wake)
    }

    pub(crate) fn value(&self, key: &[u8]) -> Vec<u8> {
        self.values.pack(&(KeyHash::of(key).0, key))
    }

    /// The range of all values.
    pub(crate) fn values(&self) -> (Vec<u8>, Vec<u8>) {
        self.values.range()
    }

    /// The range of the values of a bucket.
    pub(crate) fn values_of(&self, bucket: Bucket) -> (Vec<u8>, Vec<u8>) {
        self.hashes(&self.values, bucket)
    }

    /// Returns the key whose value is stored under a key of the store.
    pub(crate) fn parse_value(&self, row: &[u8]) -> Result<Vec<u8>> {
        key_of(&self.values, row, "expected the key of a value")
    }

    pub(crate) fn current(&self, key: &[u8]) -> Vec<u8> {
        self.currents.pack(&(KeyHash::of(key).0, key))
    }

    /// The range of all current values.
    pub(crate) fn currents(&self) -> (Vec<u8>, Vec<u8>) {
        self.currents.range()
    }

    /// The range of the current values of a bucket.
    pub(crate) fn currents_of(&self, bucket: Bucket) -> (Vec<u8>, Vec<u8>) {
        self.hashes(&self.currents, bucket)
    }

    /// The current values of a bucket as two ranges, to be read one after the other: from the hash that `turn`
    /// chooses to the end, and from the beginning to that hash.
    pub(crate) fn currents_in_turn(&self, bucket: Bucket, turn: u64) -> [(Vec<u8>, Vec<u8>); 2] {
        let (begin, end) = self.currents_of(bucket);
        let hashes = bucket.hashes(self.bucket_count);
        let first_hash = hashes.start + turn % (hashes.end - hashes.start);
        let first = self.currents.pack(&first_hash);
        [(first.clone(), end), (begin, first)]
    }

    /// Returns the key whose current value is stored under a key of the store.
    pub(crate) fn parse_current(&self, row: &[u8]) -> Result<Vec<u8>> {
        key_of(&self.currents, row, "expected the key of a current value")
    }

    /// The state of the passes over a bucket.
    pub(crate) fn pass(&self, bucket: Bucket) -> Vec<u8> {
        self.passes.pack(&bucket.0)
    }

    /// The range of the states of all passes.
    pub(crate) fn passes(&self) -> (Vec<u8>, Vec<u8>) {
        self.passes.range()
    }

    /// An update or a block that was set aside.
    pub(crate) fn aside(&self, bucket: Bucket, id: &EntryId) -> Vec<u8> {
        id.key_in(&self.updates_aside(bucket))
    }

    /// The reason why the reports of a key are withheld.
    pub(crate) fn withheld(&self, key: &[u8]) -> Vec<u8> {
        self.aside.pack(&(self.bucket(key).0, "k", key))
    }

    pub(crate) fn all_aside(&self) -> (Vec<u8>, Vec<u8>) {
        self.aside.range()
    }

    /// Returns the id in a key under `(queue, "q")`: of an update or a block, or of a key.
    pub(crate) fn parse_aside(&self, row: &[u8]) -> Result<AsideKey> {
        let corrupt =
            || keyspace::Error::corrupt(row, "expected the key of a record that was set aside");
        let withheld: Result<(u32, String, Vec<u8>), _> = self.aside.unpack(row);
        if let Ok((_, part, key)) = withheld
            && part == "k"
            && self.withheld(&key) == row
        {
            return Ok(AsideKey::Key(key));
        }
        let bucket = self.bucket_of_aside(row).ok_or_else(corrupt)?;
        let id = EntryId::of_key(&self.updates_aside(bucket), row).ok_or_else(corrupt)?;
        Ok(AsideKey::Update(bucket, id))
    }

    fn bucket_of_aside(&self, row: &[u8]) -> Option<Bucket> {
        let id: (u32, String, keyspace::tuple::Versionstamp, u64, u16) =
            self.aside.unpack(row).ok()?;
        self.checked(Bucket(id.0))
    }

    /// Returns a bucket unless there is none of that number.
    fn checked(&self, bucket: Bucket) -> Option<Bucket> {
        if bucket.0 >= self.bucket_count {
            return None;
        }
        Some(bucket)
    }

    fn updates_aside(&self, bucket: Bucket) -> Subspace {
        self.aside.subspace(&(bucket.0, "u"))
    }

    /// The rows of a bucket in a part that is sorted by hash.
    fn hashes(&self, part: &Subspace, bucket: Bucket) -> (Vec<u8>, Vec<u8>) {
        let Range { start, end } = bucket.hashes(self.bucket_count);
        (part.pack(&start), part.pack(&end))
    }

    /// Returns the first bucket whose current values end after a row, or `None` if those of all buckets end
    /// before it. The row need not be the key of a current value.
    pub(crate) fn bucket_at_or_after(&self, row: &[u8]) -> Option<Bucket> {
        let mut low = 0;
        let mut high = self.bucket_count;
        while low < high {
            let middle = low + (high - low) / 2;
            if self.currents_of(Bucket(middle)).1[..] <= *row {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        self.checked(Bucket(low))
    }

    /// Stages a change of the wake stamp, so that workers look for work. The write is blind, so it never
    /// conflicts.
    pub(crate) fn wake_all(&self, tr: &impl Transaction) {
        tr.set_to_versionstamp(&self.wake());
    }
}

/// Returns the key of the settings. Reading it is the first step of opening a queue.
pub(crate) fn settings_key(queue: &Subspace) -> Vec<u8> {
    queue.pack(&Part::Settings)
}

/// The id of an update, a block or a key that was set aside, as its stored key contains it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum AsideKey {
    Update(Bucket, EntryId),
    Key(Vec<u8>),
}

/// Returns how strongly a session is bound to a bucket. The session with the strongest bond holds the
/// bucket. This is rendezvous hashing: a session that comes or goes changes only the holders of its own
/// buckets.
pub(crate) fn bond(session: SessionId, bucket: Bucket) -> u64 {
    let mut bytes = session.0.to_vec();
    bytes.extend_from_slice(&bucket.0.to_be_bytes());
    xxh3_64(&bytes)
}

/// Returns the key in a row of a part that is sorted by hash.
fn key_of(part: &Subspace, row: &[u8], expected: &str) -> Result<Vec<u8>> {
    let unpacked: Result<(u16, Vec<u8>), _> = part.unpack(row);
    match unpacked {
        Ok((hash, key)) if KeyHash::of(&key).0 == hash => Ok(key),
        _ => Err(keyspace::Error::corrupt(row, expected).into()),
    }
}

#[cfg(test)]
mod tests {
    use hc_dequeue::keyspace::Versionstamp;
    use hc_dequeue::microqueue::blocks::WHOLE_BLOCK;

    use super::*;

    fn keys(bucket_count: u32) -> Keys {
        Keys::new(
            Subspace::from_bytes(b"Q"),
            bucket_count,
            Environment::system(),
        )
    }

    #[test]
    fn the_parts_are_those_of_the_layout_in_the_order_of_their_keys() {
        let names: Vec<_> = Part::ALL.iter().map(|part| part.name()).collect();
        let layout = conformance::documents::parts_of_layout(include_str!("keys.rs"));
        assert!(layout.into_iter().eq(names));
    }

    #[test]
    fn keys_have_the_bytes_of_the_schema() {
        let keys = keys(7);
        let key = b"a\0b";
        let bucket = keys.bucket(key);
        let id = EntryId {
            versionstamp: Versionstamp::from_bytes([8; 10]),
            call: 9,
            index: WHOLE_BLOCK,
        };
        let number = |number: u32| Subspace::all().pack(&number);
        let name = |name: &str| [b"Q\x02", name.as_bytes(), b"\0"].concat();
        let of_bucket = |part| [name(part), number(0), number(bucket.0)].concat();
        let hash = xxh3_64(key) >> 48;
        let packed_key = b"\x01a\0\xffb\0";
        let of_hash = |part| {
            [
                name(part),
                number(0),
                number(hash.try_into().unwrap()),
                packed_key.to_vec(),
            ]
            .concat()
        };
        let aside = [name("q"), number(bucket.0)].concat();
        let update = [
            &aside[..],
            b"\x02u\0\x33",
            &[8; 10],
            b"\0\0\x15\x09\x16\xff\xff",
        ]
        .concat();
        let withheld = [&aside[..], b"\x02k\0", packed_key].concat();
        let table = [
            (settings_key(&keys.queue), name("m")),
            (keys.wake(), name("w")),
            (keys.logs.subspace(bucket.0).into_bytes(), of_bucket("u")),
            (keys.value(key), of_hash("v")),
            (keys.current(key), of_hash("c")),
            (keys.pass(bucket), of_bucket("x")),
            (keys.aside(bucket, &id), update.clone()),
            (keys.withheld(key), withheld.clone()),
        ];
        for (key, expected) in table {
            assert_eq!(key, expected);
        }
        assert_eq!(
            keys.parse_aside(&update).unwrap(),
            AsideKey::Update(bucket, id)
        );
        assert_eq!(
            keys.parse_aside(&withheld).unwrap(),
            AsideKey::Key(key.to_vec())
        );
        assert_eq!(keys.parse_value(&of_hash("v")).unwrap(), key);
        assert_eq!(keys.parse_current(&of_hash("c")).unwrap(), key);
        let at_or_after = |row: &[u8]| keys.bucket_at_or_after(row);
        assert_eq!(at_or_after(&of_hash("c")), Some(bucket));
        assert_eq!(at_or_after(&name("c")), Some(Bucket(0)));
        assert_eq!(at_or_after(&keys.currents_of(bucket).0), Some(bucket));
        assert_eq!(at_or_after(&keys.currents().1), None);
        let of_another_hash = [name("v"), number(0), number(1), packed_key.to_vec()].concat();
        for row in [&b"Q"[..], &of_bucket("u"), &aside, &of_another_hash] {
            assert!(keys.parse_aside(row).is_err());
            assert!(keys.parse_value(row).is_err());
            assert!(keys.parse_current(row).is_err());
        }
    }

    #[test]
    fn the_rows_of_a_bucket_are_in_its_range() {
        for bucket_count in [1, 7, 1009] {
            let keys = keys(bucket_count);
            for key in 0..200_u32 {
                let key = key.to_be_bytes();
                for bucket in keys.buckets() {
                    let is_its = bucket == keys.bucket(&key);
                    let (begin, end) = keys.values_of(bucket);
                    assert_eq!((begin..end).contains(&keys.value(&key)), is_its);
                    let (begin, end) = keys.currents_of(bucket);
                    assert_eq!((begin..end).contains(&keys.current(&key)), is_its);
                    for turn in [0, 1, 77_777, u64::MAX] {
                        let ranges = keys.currents_in_turn(bucket, turn);
                        let row = keys.current(&key);
                        let within = ranges.map(|(begin, end)| (begin..end).contains(&row));
                        assert_eq!(
                            within.into_iter().filter(|is| *is).count(),
                            usize::from(is_its)
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn the_longest_key_fits_wherever_it_comes_to() {
        let keys = keys(65_536);
        for byte in *b"\0a" {
            let too_long = (1..).find(|bytes| keys.check(&vec![byte; *bytes]).is_err());
            let longest = vec![byte; too_long.unwrap() - 1];
            assert!(keys.value(&longest).len() <= limits::MAX_KEY_BYTES);
            assert!(keys.current(&longest).len() <= limits::MAX_KEY_BYTES);
            let longest_row = keys.withheld(&longest).len();
            assert!((limits::MAX_KEY_BYTES - 1..=limits::MAX_KEY_BYTES).contains(&longest_row));
        }
    }
}

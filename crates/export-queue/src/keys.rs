//! The keys and values of an export queue. `queue` is the prefix of its subspace, in which no other key is ever
//! written. Integers in values are big-endian.
//!
//! # Layout
//!
//! ```text
//! (queue, "m")                            = settings
//! (queue, "w")                            = wake stamp: versionstamp of the newest commit that added something, or
//!                                           with which a worker or a pause came or went
//! (queue, "e", bucket, block)             = block of entries: pairs of key and value
//! (queue, "p", subscription, bucket)      = position: the last entry that is exported
//! (queue, "c", subscription, bucket)      = claim: the session that exports
//! (queue, "o", subscription)              = empty; while it exists, nothing is exported
//! (queue, "d", subscription, block, index) = dead letter, or with index 65,535 that of a whole block
//! (queue, "s", subscription, "s", session) = worker's session, as in hc-dequeue
//! (queue, "s", subscription, "b", session) = its heartbeat, likewise
//!
//! bucket, block, session
//!               as in combine
//! index         tuple integer: place of the entry in the block, from 0
//! subscription  tuple string: its name
//!
//! position
//!     0       format, 01
//!     1..11   versionstamp of the block
//!     11..19  its call
//!     19..21  index of the entry, or 65,535 if all of the block is exported
//! claim
//!     0       format, 01
//!     1..17   session
//! dead letter
//!     0       format, 01
//!     1..5    how often it has failed
//!     5       length of the reason
//!     6..     reason in UTF-8
//!     next    of an entry: length of the key in 4 bytes, key, value: the codec's bytes
//!             of a whole block: how many of its first entries were exported before in 2 bytes, block
//! settings
//!     0       format, 01
//!     1..5    bucket count
//!     5..13   lease of a worker's session in milliseconds
//!     13..    codecs of key and value, then subscriptions: for each the length of its name in a byte, name
//! ```

use combine::Bucket;
use combine::hc_dequeue::session::Sessions;
use combine::keyspace::parts::Part as _;
use combine::keyspace::{Environment, Subspace, Transaction, parts};
use combine::microqueue::blocks::{BlockLogs, EntryId};

use crate::sequence::Sequence;

parts! {
    /// The parts of a queue.
    pub(crate) enum Part {
        Claims "c" "claim",
        DeadLetters "d" "dead letter",
        Entries "e" "block of entries",
        Settings "m" "settings",
        Pauses "o" "pause",
        Positions "p" "position",
        Sessions "s" "session",
        Wake "w" "wake stamp",
    }
}

impl Part {
    /// Returns whether the names of subscriptions follow the name of the part.
    fn is_per_subscription(self) -> bool {
        match self {
            Self::Claims | Self::DeadLetters | Self::Pauses | Self::Positions | Self::Sessions => {
                true
            }
            Self::Entries | Self::Settings | Self::Wake => false,
        }
    }
}

/// Returns what a key is in a queue with this prefix, in words: `position`, for example. Returns `None` if it is no
/// key of a queue.
///
/// The words are for people, and may change. To look at a key takes no read and no open queue.
#[must_use]
pub fn describe_key(queue: &Subspace, key: &[u8]) -> Option<&'static str> {
    Part::of(queue, key).map(Part::text)
}

/// The parts of a queue's subspace.
#[derive(Debug, Clone)]
pub(crate) struct Keys {
    pub(crate) queue: Subspace,
    pub(crate) bucket_count: u32,
    /// The entries, one log for each bucket.
    pub(crate) logs: BlockLogs,
}

impl Keys {
    pub(crate) fn new(queue: Subspace, bucket_count: u32, env: Environment) -> Self {
        Self {
            logs: BlockLogs::new(queue.subspace(&Part::Entries), bucket_count, env),
            queue,
            bucket_count,
        }
    }

    pub(crate) fn bucket(&self, key: &[u8]) -> Bucket {
        Bucket::of(key, self.bucket_count)
    }

    pub(crate) fn buckets(&self) -> impl Iterator<Item = Bucket> + use<> {
        (0..self.bucket_count).map(Bucket)
    }

    pub(crate) fn settings(&self) -> Vec<u8> {
        settings_key(&self.queue)
    }

    pub(crate) fn wake(&self) -> Vec<u8> {
        self.queue.pack(&Part::Wake)
    }

    /// The positions of all subscriptions.
    pub(crate) fn positions(&self) -> Subspace {
        self.queue.subspace(&Part::Positions)
    }

    pub(crate) fn position(&self, subscription: &str, bucket: Bucket) -> Vec<u8> {
        self.queue.pack(&(Part::Positions, subscription, bucket.0))
    }

    pub(crate) fn claim(&self, subscription: &str, bucket: Bucket) -> Vec<u8> {
        self.queue.pack(&(Part::Claims, subscription, bucket.0))
    }

    pub(crate) fn pause(&self, subscription: &str) -> Vec<u8> {
        self.queue.pack(&(Part::Pauses, subscription))
    }

    /// The dead letters of a subscription.
    pub(crate) fn dead_letters(&self, subscription: &str) -> Subspace {
        self.queue.subspace(&(Part::DeadLetters, subscription))
    }

    pub(crate) fn dead_letter(&self, subscription: &str, sequence: &Sequence) -> Vec<u8> {
        sequence.id().key_in(&self.dead_letters(subscription))
    }

    /// Returns the sequence in the key of a dead letter.
    pub(crate) fn parse_dead_letter(&self, subscription: &str, row: &[u8]) -> Option<Sequence> {
        EntryId::of_key(&self.dead_letters(subscription), row).map(Sequence::of)
    }

    /// The sessions of the workers of a subscription.
    pub(crate) fn sessions(&self, subscription: &str) -> Sessions {
        Sessions::new(self.queue.subspace(&(Part::Sessions, subscription)))
    }

    /// The parts of the subspace that belong to one subscription.
    pub(crate) fn of_subscription(&self, subscription: &str) -> impl Iterator<Item = Subspace> {
        let parts = Part::ALL
            .iter()
            .copied()
            .filter(|part| part.is_per_subscription());
        parts.map(move |part| self.queue.subspace(&(part, subscription)))
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

#[cfg(test)]
mod tests {
    use combine::keyspace::Versionstamp;

    use super::*;

    #[test]
    fn the_parts_are_those_of_the_layout_in_the_order_of_their_keys() {
        let names: Vec<_> = Part::ALL.iter().map(|part| part.name()).collect();
        let layout = conformance::documents::parts_of_layout(include_str!("keys.rs"));
        assert!(layout.into_iter().eq(names));
    }

    #[test]
    fn keys_have_the_bytes_of_the_schema() {
        let keys = Keys::new(Subspace::from_bytes(b"Q"), 7, Environment::system());
        let sequence = Sequence::of(EntryId {
            versionstamp: Versionstamp::from_bytes([8; 10]),
            call: 9,
            index: 0x0102,
        });
        let name = |name: &str| [b"Q\x02", name.as_bytes(), b"\0"].concat();
        let of_reader = |part| [name(part), b"\x02reader\0".to_vec()].concat();
        let bucket = |prefix: Vec<u8>| [prefix, b"\x15\x03".to_vec()].concat();
        let packed = [b"\x33", &[8; 10][..], b"\0\0\x15\x09"].concat();
        let letter = [of_reader("d"), packed.clone(), b"\x16\x01\x02".to_vec()].concat();
        let log = keys.logs.subspace(3);
        let table = [
            (keys.settings(), name("m")),
            (keys.wake(), name("w")),
            (log.bytes().to_vec(), bucket(name("e"))),
            (
                sequence.id().block().key_in(&log),
                [bucket(name("e")), packed.clone()].concat(),
            ),
            (keys.position("reader", Bucket(3)), bucket(of_reader("p"))),
            (keys.claim("reader", Bucket(3)), bucket(of_reader("c"))),
            (keys.pause("reader"), of_reader("o")),
            (keys.dead_letter("reader", &sequence), letter.clone()),
            (
                keys.sessions("reader").subspace().bytes().to_vec(),
                of_reader("s"),
            ),
        ];
        for (key, expected) in table {
            assert_eq!(key, expected);
        }
        assert_eq!(keys.parse_dead_letter("reader", &letter), Some(sequence));
        assert_eq!(keys.parse_dead_letter("other", &letter), None);
        let without_index = [of_reader("d"), packed].concat();
        assert_eq!(keys.parse_dead_letter("reader", &without_index), None);
        let parts = keys.of_subscription("reader").map(Subspace::into_bytes);
        assert!(parts.eq(["c", "d", "o", "p", "s"].map(of_reader)));
    }
}

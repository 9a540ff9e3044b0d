//! Which keys were written at which version: what the resolver decides conflicts by.
//!
//! The history is a step function over the keyspace, as in FoundationDB's resolver: each boundary
//! says when the keys from it to the next boundary were last written. Point and short ranges cost
//! O(log n); only a wide range over many recent writes takes longer, and mostly conflicts early.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Included, Unbounded};

use crate::limits::TRANSACTION_LIFE_VERSIONS;

/// What a boundary costs beside its key: its version, and its share of a tree node.
const BOUNDARY_BYTES: usize = 48;

/// The write versions of the last five seconds, or of less when memory is short.
pub(super) struct History {
    /// The version from which each boundary's keys were last written. A key below the first
    /// boundary was last written before `oldest`.
    boundaries: BTreeMap<Box<[u8]>, i64>,
    /// Transactions that read below this version are too old: what they would conflict with may
    /// be forgotten.
    oldest: i64,
    /// The memory that `boundaries` take, about.
    bytes: usize,
    /// The most that `bytes` may be after a batch.
    limit_bytes: usize,
    /// Where the next sweep goes on.
    sweep_from: Box<[u8]>,
    /// How many ranges were added since the last sweep.
    added: usize,
}

impl History {
    /// Begins with nothing known before `oldest`.
    pub(super) fn new(oldest: i64, limit_bytes: usize) -> Self {
        Self {
            boundaries: BTreeMap::new(),
            oldest,
            bytes: 0,
            limit_bytes,
            sweep_from: Box::default(),
            added: 0,
        }
    }

    /// Returns true if a transaction that read at `read_version` can no longer be judged.
    pub(super) fn is_too_old(&self, read_version: i64) -> bool {
        read_version < self.oldest
    }

    /// Returns true if a key `begin <= key < end` was written after `read_version`.
    pub(super) fn written_after(&self, begin: &[u8], end: &[u8], read_version: i64) -> bool {
        self.version_at(begin) > read_version
            || self
                .boundaries
                .range::<[u8], _>((Excluded(begin), Excluded(end)))
                .any(|(_, &version)| version > read_version)
    }

    /// Records that the keys `begin <= key < end` were written at `version`, the newest so far.
    pub(super) fn add(&mut self, begin: &[u8], end: &[u8], version: i64) {
        if begin >= end {
            return;
        }
        let version_at_end = self.version_at(end);
        while let Some((boundary, _)) = self
            .boundaries
            .range::<[u8], _>((Included(begin), Included(end)))
            .next()
        {
            let boundary = boundary.clone();
            self.remove(&boundary);
        }
        if self.version_at(begin) != version {
            self.insert(begin, version);
        }
        self.insert(end, version_at_end);
        self.added += 1;
    }

    /// Forgets what no transaction can conflict with any more once `version` is being committed,
    /// and more than that if the history takes too much memory.
    pub(super) fn age(&mut self, version: i64) {
        self.oldest = self.oldest.max(version - TRANSACTION_LIFE_VERSIONS);
        // Three visits for each range added outrun the two boundaries that a range adds.
        let visits = 3 * self.added + 10;
        self.added = 0;
        self.sweep(visits);
        while self.bytes > self.limit_bytes && self.oldest < version {
            self.oldest += (version - self.oldest + 1) / 2;
            self.sweep_from = Box::default();
            self.sweep(usize::MAX);
        }
    }

    /// Visits boundaries from where the last sweep stopped and drops those that separate nothing:
    /// a boundary older than `oldest` whose predecessor is older too.
    fn sweep(&mut self, visits: usize) {
        let mut predecessor = self
            .boundaries
            .range::<[u8], _>((Unbounded, Excluded(&*self.sweep_from)))
            .next_back()
            .map_or(self.oldest, |(_, &version)| version);
        let mut dropped = Vec::new();
        let mut rest = self
            .boundaries
            .range::<[u8], _>((Included(&*self.sweep_from), Unbounded));
        for (boundary, &version) in rest.by_ref().take(visits) {
            if version <= self.oldest && predecessor <= self.oldest {
                dropped.push(boundary.clone());
            }
            predecessor = version;
        }
        self.sweep_from = rest
            .next()
            .map_or_else(Box::default, |(boundary, _)| boundary.clone());
        for boundary in dropped {
            self.remove(&boundary);
        }
    }

    fn version_at(&self, key: &[u8]) -> i64 {
        self.boundaries
            .range::<[u8], _>((Unbounded, Included(key)))
            .next_back()
            .map_or(self.oldest, |(_, &version)| version)
    }

    fn insert(&mut self, key: &[u8], version: i64) {
        if self.boundaries.insert(key.into(), version).is_none() {
            self.bytes += key.len() + BOUNDARY_BYTES;
        }
    }

    fn remove(&mut self, key: &[u8]) {
        if self.boundaries.remove(key).is_some() {
            self.bytes -= key.len() + BOUNDARY_BYTES;
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    const LIFE: i64 = TRANSACTION_LIFE_VERSIONS;

    /// The history as a plain list of writes.
    #[derive(Default)]
    struct Model(Vec<(Vec<u8>, Vec<u8>, i64)>);

    impl Model {
        fn written_after(&self, begin: &[u8], end: &[u8], read_version: i64) -> bool {
            self.0.iter().any(|(b, e, version)| {
                *version > read_version && b.as_slice() < end && begin < e.as_slice()
            })
        }
    }

    fn random_range(rng: &mut StdRng) -> (Vec<u8>, Vec<u8>) {
        let mut key = || {
            let len = rng.random_range(0..3);
            (0..len)
                .map(|_| rng.random_range(b'a'..b'd'))
                .collect::<Vec<u8>>()
        };
        let (a, b) = (key(), key());
        if a < b {
            (a, b)
        } else {
            (b, [&a[..], b"\0"].concat())
        }
    }

    #[test]
    fn conflicts_are_those_of_a_list_of_all_writes() {
        for seed in 0..200 {
            let mut rng = StdRng::seed_from_u64(seed);
            let mut history = History::new(0, 2_000);
            let mut model = Model::default();
            let mut version = 0;
            for _ in 0..100 {
                version += rng.random_range(1..LIFE / 4);
                history.age(version);
                for _ in 0..rng.random_range(0..4) {
                    let (begin, end) = random_range(&mut rng);
                    history.add(&begin, &end, version);
                    model.0.push((begin, end, version));
                }
                for _ in 0..10 {
                    let read_version = rng.random_range(version - LIFE..=version);
                    if history.is_too_old(read_version) {
                        continue;
                    }
                    let (begin, end) = random_range(&mut rng);
                    assert_eq!(
                        history.written_after(&begin, &end, read_version),
                        model.written_after(&begin, &end, read_version),
                        "seed {seed}: {begin:?}..{end:?} after {read_version} at {version}"
                    );
                }
            }
        }
    }

    #[test]
    fn five_seconds_can_be_judged_and_no_more() {
        let mut history = History::new(0, usize::MAX);
        history.age(LIFE + 10);
        assert!(!history.is_too_old(10));
        assert!(history.is_too_old(9));
    }

    #[test]
    fn what_is_out_of_date_is_forgotten_while_other_keys_are_written() {
        let mut history = History::new(0, usize::MAX);
        for step in 0..50_000_i64 {
            let version = step * LIFE / 100;
            history.age(version);
            let key = step.to_be_bytes();
            history.add(&key, &[&key[..], b"\0"].concat(), version);
        }
        assert!(
            history.boundaries.len() < 1_000,
            "{}",
            history.boundaries.len()
        );
    }

    #[test]
    fn short_memory_makes_transactions_too_old_early_and_stays_within_its_limit() {
        const LIMIT: usize = 100_000;
        let mut history = History::new(0, LIMIT);
        for version in 1..100_000_i64 {
            history.age(version);
            assert!(history.bytes <= LIMIT);
            let key = version.to_be_bytes();
            history.add(&key, &[&key[..], b"\0"].concat(), version);
        }
        assert!(history.is_too_old(1));
        assert!(!history.is_too_old(99_999));
        let counted: usize = history
            .boundaries
            .keys()
            .map(|key| key.len() + BOUNDARY_BYTES)
            .sum();
        assert_eq!(history.bytes, counted);
    }
}

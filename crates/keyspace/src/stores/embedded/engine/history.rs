//! The conflict history: at which version each key was written. The resolver decides conflicts by it.
//!
//! The history is divided into slices by version. A slice maps each key that was written on its own to the
//! version of its last write. For ranges it has a step function over the keyspace, as FoundationDB's
//! resolver has over all versions: each boundary says when the keys from it to the next boundary were last
//! written as parts of a range. A key was last written at the later of the two versions.
//!
//! A transaction looks at the slices that end after its read version. In a slice that begins after its read
//! version, any write in a range is a conflict, so one look-up is enough, however wide the range is and
//! however much was written in it. (A read of the head of a queue covers all items that were dequeued
//! before.) Only the slice that contains the read version is searched, and slices are small. Forgetting
//! means dropping the oldest slice.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound::{Excluded, Included, Unbounded};

use crate::contract::limits::TRANSACTION_LIFE_VERSIONS;
use crate::stores::embedded::collections::arena::Arena;
use crate::stores::embedded::collections::ranges::KeyRange;
use crate::stores::embedded::collections::sorted_map::SortedMap;

/// The number of keys and boundaries in a slice at which the next one begins.
const SLICE_ENTRIES: usize = 1024;

/// The number of versions in a slice at which the next one begins.
const SLICE_VERSIONS: i64 = TRANSACTION_LIFE_VERSIONS / 16;

/// The memory of a key or a boundary besides its bytes: its version, and its share of a map.
const ENTRY_BYTES: usize = 64;

/// The version of keys that were not written within a slice.
const NEVER: i64 = 0;

/// The write versions of the last five seconds, or of less when memory is short.
pub(super) struct History {
    /// The slices, oldest first.
    slices: VecDeque<Slice>,
    /// Transactions with a read version below this one are too old: the writes that they would conflict
    /// with may be forgotten.
    oldest: i64,
    /// The approximate memory of the slices.
    bytes: usize,
    /// The most that `bytes` may be when a batch begins.
    limit_bytes: usize,
}

/// The writes between two versions.
struct Slice {
    /// The version at which each key was last written on its own.
    keys: SortedMap<i64>,
    /// The memory of `keys`. Only new keys are added, so writing a key again takes no memory.
    key_memory: Arena,
    /// The version at which the keys from each boundary to the next one were last written as parts
    /// of a range.
    boundaries: BTreeMap<Box<[u8]>, i64>,
    /// The memory of the entries, without `key_memory`.
    entry_bytes: usize,
    oldest: i64,
    newest: i64,
}

impl History {
    /// Returns a history that knows nothing before `oldest`.
    pub(super) fn new(oldest: i64, limit_bytes: usize) -> Self {
        Self {
            slices: VecDeque::new(),
            oldest,
            bytes: 0,
            limit_bytes,
        }
    }

    /// Returns true if a transaction with this read version is too old to be checked.
    pub(super) fn is_too_old(&self, read_version: i64) -> bool {
        read_version < self.oldest
    }

    /// Returns true if any key of a range was written after `read_version`.
    pub(super) fn written_after(&self, range: &KeyRange, read_version: i64) -> bool {
        let slices = self.slices.iter().rev();
        slices
            .take_while(|slice| slice.newest > read_version)
            .any(|slice| slice.written_after(range, read_version))
    }

    /// Records that the keys of a range were written at `version`, the newest so far.
    pub(super) fn add(&mut self, range: &KeyRange, version: i64) {
        if range.is_empty() {
            return;
        }
        if self
            .slices
            .back()
            .is_none_or(|slice| slice.is_full(version))
        {
            self.slices.push_back(Slice::new(version));
        }
        let slice = self.slices.back_mut().expect("there is one now");
        self.bytes -= slice.bytes();
        slice.add(range, version);
        self.bytes += slice.bytes();
    }

    /// Forgets all writes that are too old for conflicts, once `version` is being committed, and more if
    /// the history takes too much memory.
    pub(super) fn age(&mut self, version: i64) {
        self.oldest = self.oldest.max(version - TRANSACTION_LIFE_VERSIONS);
        while let Some(slice) = self.slices.front()
            && (slice.newest <= self.oldest || self.bytes > self.limit_bytes)
        {
            self.oldest = self.oldest.max(slice.newest);
            self.bytes -= slice.bytes();
            self.slices.pop_front();
        }
    }
}

impl Slice {
    fn new(version: i64) -> Self {
        Self {
            keys: SortedMap::default(),
            key_memory: Arena::default(),
            boundaries: BTreeMap::new(),
            entry_bytes: 0,
            oldest: version,
            newest: version,
        }
    }

    fn entries(&self) -> usize {
        self.keys.len() + self.boundaries.len()
    }

    fn bytes(&self) -> usize {
        self.key_memory.allocated_bytes() + self.entry_bytes
    }

    fn is_full(&self, version: i64) -> bool {
        self.entries() >= SLICE_ENTRIES || version - self.oldest >= SLICE_VERSIONS
    }

    fn written_after(&self, range: &KeyRange, read_version: i64) -> bool {
        match range.parts() {
            (key, None) => {
                let by_itself = self.keys.get(key).copied().unwrap_or(NEVER);
                by_itself.max(self.version_at(key)) > read_version
            }
            (begin, Some(end)) => {
                let keys = self.keys.iter_from(self.keys.at_or_after(begin));
                keys.take_while(|(key, _)| *key < end)
                    .any(|(_, &version)| version > read_version)
                    || self.range_written_after(begin, end, read_version)
            }
        }
    }

    fn range_written_after(&self, begin: &[u8], end: &[u8], read_version: i64) -> bool {
        let before_end = self.boundaries.range::<[u8], _>((Unbounded, Excluded(end)));
        for (boundary, &version) in before_end.rev() {
            if version > read_version {
                return true;
            }
            if **boundary <= *begin {
                break;
            }
        }
        false
    }

    fn add(&mut self, range: &KeyRange, version: i64) {
        match range.parts() {
            (key, None) => self.add_key(key, version),
            (begin, Some(end)) => self.add_range(begin, end, version),
        }
        self.newest = version;
    }

    fn add_key(&mut self, key: &[u8], version: i64) {
        match self.keys.find(key) {
            Ok(place) => *self.keys.value_mut(place) = version,
            Err(place) => {
                self.keys.insert(place, self.key_memory.copy(key), version);
                self.entry_bytes += ENTRY_BYTES;
            }
        }
    }

    fn add_range(&mut self, begin: &[u8], end: &[u8], version: i64) {
        let version_at_end = self.version_at(end);
        while let Some((boundary, _)) = self
            .boundaries
            .range::<[u8], _>((Included(begin), Included(end)))
            .next()
        {
            let boundary = boundary.clone();
            self.boundaries.remove(&boundary);
            self.entry_bytes -= boundary.len() + ENTRY_BYTES;
        }
        if self.version_at(begin) != version {
            self.insert(begin, version);
        }
        if version_at_end != version {
            self.insert(end, version_at_end);
        }
    }

    /// Returns the version at which a key was last written as a part of a range.
    fn version_at(&self, key: &[u8]) -> i64 {
        self.boundaries
            .range::<[u8], _>((Unbounded, Included(key)))
            .next_back()
            .map_or(NEVER, |(_, &version)| version)
    }

    fn insert(&mut self, key: &[u8], version: i64) {
        if self.boundaries.insert(key.into(), version).is_none() {
            self.entry_bytes += key.len() + ENTRY_BYTES;
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    const LIFE: i64 = TRANSACTION_LIFE_VERSIONS;

    /// The history as a plain list of writes.
    #[derive(Default)]
    struct ListOfWrites(Vec<(Vec<u8>, Vec<u8>, i64)>);

    impl ListOfWrites {
        fn written_after(&self, begin: &[u8], end: &[u8], read_version: i64) -> bool {
            self.0.iter().any(|(b, e, version)| {
                *version > read_version && b.as_slice() < end && begin < e.as_slice()
            })
        }
    }

    fn counted_bytes(history: &History) -> usize {
        let bytes = |slice: &Slice| {
            let boundary_bytes: usize = slice.boundaries.keys().map(|key| key.len()).sum();
            let key_bytes: usize = slice.keys.iter().map(|(key, _)| key.len()).sum();
            assert!(key_bytes <= slice.key_memory.allocated_bytes());
            slice.key_memory.allocated_bytes() + boundary_bytes + slice.entries() * ENTRY_BYTES
        };
        history.slices.iter().map(bytes).sum()
    }

    fn key(key: &[u8]) -> KeyRange {
        KeyRange::key(Bytes::copy_from_slice(key))
    }

    fn range(begin: &[u8], end: &[u8]) -> KeyRange {
        KeyRange::new(Bytes::copy_from_slice(begin), Bytes::copy_from_slice(end))
    }

    fn random_range(rng: &mut StdRng) -> (Vec<u8>, Vec<u8>) {
        let mut key = || {
            let len = rng.random_range(0..3);
            (0..len)
                .map(|_| rng.random_range(b'a'..b'd'))
                .collect::<Vec<u8>>()
        };
        let a = key();
        let b = key();
        if a < b {
            (a, b)
        } else {
            (b, [&a[..], b"\0"].concat())
        }
    }

    fn random_write(rng: &mut StdRng) -> (Vec<u8>, Vec<u8>) {
        let (begin, end) = random_range(rng);
        if rng.random() {
            (begin, end)
        } else {
            let after = [&begin[..], b"\0"].concat();
            (begin, after)
        }
    }

    #[test]
    fn conflicts_are_those_of_a_list_of_all_writes() {
        for seed in 0..200 {
            let mut rng = StdRng::seed_from_u64(seed);
            let mut history = History::new(0, 4_000);
            let mut model = ListOfWrites::default();
            let mut version = 0;
            for _ in 0..100 {
                version += rng.random_range(1..LIFE / 4);
                history.age(version);
                for _ in 0..rng.random_range(0..4) {
                    let (begin, end) = random_write(&mut rng);
                    history.add(&range(&begin, &end), version);
                    model.0.push((begin, end, version));
                }
                assert_eq!(history.bytes, counted_bytes(&history), "seed {seed}");
                for _ in 0..10 {
                    let read_version = rng.random_range(version - LIFE..=version);
                    if history.is_too_old(read_version) {
                        continue;
                    }
                    let (begin, end) = random_write(&mut rng);
                    assert_eq!(
                        history.written_after(&range(&begin, &end), read_version),
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
    fn old_writes_are_forgotten_while_other_keys_are_written() {
        let mut history = History::new(0, usize::MAX);
        for step in 0..50_000_i64 {
            let version = step * LIFE / 100;
            history.age(version);
            history.add(&key(&step.to_be_bytes()), version);
        }
        let entries: usize = history.slices.iter().map(Slice::entries).sum();
        assert!(entries < 125, "{entries}");
    }

    #[test]
    fn keys_that_are_written_repeatedly_take_little_memory() {
        for again in [key(b"k"), range(b"k", b"l")] {
            let mut history = History::new(0, usize::MAX);
            for step in 1..10_000 {
                history.add(&again, step * LIFE / 10_000);
            }
            assert!(history.slices.len() <= 17);
            assert!(history.bytes < 17 * 1000, "{}", history.bytes);
        }
    }

    #[test]
    fn short_memory_makes_transactions_too_old_early_and_stays_within_its_limit() {
        const LIMIT: usize = 100_000;
        let mut history = History::new(0, LIMIT);
        for version in 1..100_000_i64 {
            history.age(version);
            assert!(history.bytes <= LIMIT);
            history.add(&key(&version.to_be_bytes()), version);
        }
        assert!(history.is_too_old(1));
        assert!(!history.is_too_old(99_999));
        assert_eq!(history.bytes, counted_bytes(&history));
    }
}

//! Which keys were written at which version: what the resolver decides conflicts by.
//!
//! The history is cut into slices by version. A slice is a step function over the keyspace, as
//! FoundationDB's resolver keeps one over all versions: each boundary says when the keys from it to
//! the next boundary were last written within the slice.
//!
//! A transaction asks the slices that are newer than its read version. In a slice that is newer as
//! a whole, the first write found in a range decides, so the cost is a look-up however wide the
//! range is and however much was written in it: a read of the head of a queue covers everything
//! that was dequeued before. Only the slice that its read version falls into is searched, and
//! slices are small. Forgetting is dropping the oldest slice.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound::{Excluded, Included, Unbounded};

use crate::limits::TRANSACTION_LIFE_VERSIONS;

/// How many boundaries a slice may have before the next one begins.
const SLICE_BOUNDARIES: usize = 1024;

/// How many versions a slice may span before the next one begins.
const SLICE_VERSIONS: i64 = TRANSACTION_LIFE_VERSIONS / 16;

/// What a boundary costs beside its key: its version, and its share of a tree node.
const BOUNDARY_BYTES: usize = 48;

/// The version of keys that were not written within a slice.
const NEVER: i64 = 0;

/// The write versions of the last five seconds, or of less when memory is short.
pub(super) struct History {
    /// The slices, oldest first.
    slices: VecDeque<Slice>,
    /// Transactions that read below this version are too old: what they would conflict with may
    /// be forgotten.
    oldest: i64,
    /// The memory that the slices take, about.
    bytes: usize,
    /// The most that `bytes` may be when a batch begins.
    limit_bytes: usize,
}

/// The writes between two versions.
struct Slice {
    /// The version at which the keys from each boundary to the next one were written last.
    boundaries: BTreeMap<Box<[u8]>, i64>,
    oldest: i64,
    newest: i64,
    bytes: usize,
}

impl History {
    /// Begins with nothing known before `oldest`.
    pub(super) fn new(oldest: i64, limit_bytes: usize) -> Self {
        Self {
            slices: VecDeque::new(),
            oldest,
            bytes: 0,
            limit_bytes,
        }
    }

    /// Returns true if a transaction that read at `read_version` can no longer be judged.
    pub(super) fn is_too_old(&self, read_version: i64) -> bool {
        read_version < self.oldest
    }

    /// Returns true if a key `begin <= key < end` was written after `read_version`.
    pub(super) fn written_after(&self, begin: &[u8], end: &[u8], read_version: i64) -> bool {
        let slices = self.slices.iter().rev();
        slices
            .take_while(|slice| slice.newest > read_version)
            .any(|slice| slice.written_after(begin, end, read_version))
    }

    /// Records that the keys `begin <= key < end` were written at `version`, the newest so far.
    pub(super) fn add(&mut self, begin: &[u8], end: &[u8], version: i64) {
        if begin >= end {
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
        self.bytes -= slice.bytes;
        slice.add(begin, end, version);
        self.bytes += slice.bytes;
    }

    /// Forgets what no transaction can conflict with any more once `version` is being committed,
    /// and more than that if the history takes too much memory.
    pub(super) fn age(&mut self, version: i64) {
        self.oldest = self.oldest.max(version - TRANSACTION_LIFE_VERSIONS);
        while let Some(slice) = self.slices.front()
            && (slice.newest <= self.oldest || self.bytes > self.limit_bytes)
        {
            self.oldest = self.oldest.max(slice.newest);
            self.bytes -= slice.bytes;
            self.slices.pop_front();
        }
    }
}

impl Slice {
    fn new(version: i64) -> Self {
        Self {
            boundaries: BTreeMap::new(),
            oldest: version,
            newest: version,
            bytes: 0,
        }
    }

    fn is_full(&self, version: i64) -> bool {
        self.boundaries.len() >= SLICE_BOUNDARIES || version - self.oldest >= SLICE_VERSIONS
    }

    fn written_after(&self, begin: &[u8], end: &[u8], read_version: i64) -> bool {
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

    fn add(&mut self, begin: &[u8], end: &[u8], version: i64) {
        let version_at_end = self.version_at(end);
        while let Some((boundary, _)) = self
            .boundaries
            .range::<[u8], _>((Included(begin), Included(end)))
            .next()
        {
            let boundary = boundary.clone();
            self.boundaries.remove(&boundary);
            self.bytes -= boundary.len() + BOUNDARY_BYTES;
        }
        if self.version_at(begin) != version {
            self.insert(begin, version);
        }
        if version_at_end != version {
            self.insert(end, version_at_end);
        }
        self.newest = version;
    }

    fn version_at(&self, key: &[u8]) -> i64 {
        self.boundaries
            .range::<[u8], _>((Unbounded, Included(key)))
            .next_back()
            .map_or(NEVER, |(_, &version)| version)
    }

    fn insert(&mut self, key: &[u8], version: i64) {
        if self.boundaries.insert(key.into(), version).is_none() {
            self.bytes += key.len() + BOUNDARY_BYTES;
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

    fn counted_bytes(history: &History) -> usize {
        let slices = history.slices.iter();
        let keys = slices.flat_map(|slice| slice.boundaries.keys());
        keys.map(|key| key.len() + BOUNDARY_BYTES).sum()
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
                assert_eq!(history.bytes, counted_bytes(&history), "seed {seed}");
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
        let boundaries: usize = history
            .slices
            .iter()
            .map(|slice| slice.boundaries.len())
            .sum();
        assert!(boundaries < 250, "{boundaries}");
    }

    #[test]
    fn a_key_that_is_written_again_and_again_takes_little_room() {
        let mut history = History::new(0, usize::MAX);
        for step in 1..10_000 {
            history.add(b"k", b"k\0", step * LIFE / 10_000);
        }
        assert!(history.slices.len() <= 17);
        assert!(history.bytes < 17 * 2 * (BOUNDARY_BYTES + 2));
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
        assert_eq!(history.bytes, counted_bytes(&history));
    }
}

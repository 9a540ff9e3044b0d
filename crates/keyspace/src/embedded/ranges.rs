//! A set of keys, kept as disjoint half-open ranges.

use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::Bytes;

/// A set of keys as the sorted, disjoint, non-touching ranges `begin <= key < end` that cover it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct RangeSet {
    /// Maps each range's begin to its end.
    ranges: BTreeMap<Bytes, Bytes>,
}

impl RangeSet {
    pub(super) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Returns the ranges in key order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Bytes, &Bytes)> {
        self.ranges.iter()
    }

    /// Adds a range; an empty or inverted one adds nothing.
    pub(super) fn insert(&mut self, begin: Bytes, end: Bytes) {
        if begin >= end {
            return;
        }
        let (mut begin, mut end) = (begin, end);
        // Everything that overlaps or touches the new range becomes part of it.
        while let Some((b, e)) = self.last_at_or_before(&end) {
            if *e < begin {
                break;
            }
            if *b <= begin && end <= *e {
                return;
            }
            begin = begin.min(b.clone());
            end = end.max(e.clone());
            let merged = b.clone();
            self.ranges.remove(&merged);
        }
        self.ranges.insert(begin, end);
    }

    /// Adds one key.
    pub(super) fn insert_key(&mut self, key: &[u8]) {
        let (begin, end) = key_range(key);
        self.insert(begin, end);
    }

    /// Removes a range of keys.
    pub(super) fn remove(&mut self, begin: &Bytes, end: &Bytes) {
        if begin >= end {
            return;
        }
        while let Some((b, e)) = self.last_before(end) {
            if e <= begin {
                break;
            }
            let (b, e) = (b.clone(), e.clone());
            self.ranges.remove(&b);
            if *end < e {
                self.ranges.insert(end.clone(), e);
            }
            if b < *begin {
                self.ranges.insert(b, begin.clone());
                break;
            }
        }
    }

    pub(super) fn contains(&self, key: &[u8]) -> bool {
        self.last_at_or_before(key)
            .is_some_and(|(_, end)| key < &end[..])
    }

    /// Returns the first range that has a key at or after `key`.
    pub(super) fn first_from(&self, key: &[u8]) -> Option<(&Bytes, &Bytes)> {
        match self.last_at_or_before(key) {
            Some((begin, end)) if key < &end[..] => Some((begin, end)),
            _ => self
                .ranges
                .range::<[u8], _>((Bound::Excluded(key), Bound::Unbounded))
                .next(),
        }
    }

    /// Returns the last range that has a key before `key`.
    pub(super) fn last_before(&self, key: &[u8]) -> Option<(&Bytes, &Bytes)> {
        self.ranges
            .range::<[u8], _>((Bound::Unbounded, Bound::Excluded(key)))
            .next_back()
    }

    /// Returns whether a range begins or ends at `key`.
    pub(super) fn has_bound(&self, key: &Bytes) -> bool {
        self.ranges.contains_key(key) || self.bound_before(&key_range(key).1) == Some(key)
    }

    /// Returns the last key before `key` at which a range begins or ends.
    pub(super) fn bound_before(&self, key: &Bytes) -> Option<&Bytes> {
        let (begin, end) = self.last_before(key)?;
        Some(if end < key { end } else { begin })
    }

    /// Returns the first key after `key` at which a range begins or ends.
    pub(super) fn bound_after(&self, key: &Bytes) -> Option<&Bytes> {
        let (begin, end) = self.first_from(key)?;
        Some(if begin > key { begin } else { end })
    }

    fn last_at_or_before(&self, key: &[u8]) -> Option<(&Bytes, &Bytes)> {
        self.ranges
            .range::<[u8], _>((Bound::Unbounded, Bound::Included(key)))
            .next_back()
    }
}

/// Returns the range that holds exactly `key`: from `key` to `key` followed by a zero byte.
pub(super) fn key_range(key: &[u8]) -> (Bytes, Bytes) {
    let end = Bytes::from(crate::transaction::key_after(key));
    (end.slice(..key.len()), end)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    fn key(number: u8) -> Bytes {
        Bytes::copy_from_slice(&[number])
    }

    #[test]
    fn agrees_with_a_set_of_keys_under_random_changes() {
        const KEYS: u8 = 24;
        for seed in 0..200 {
            let mut rng = StdRng::seed_from_u64(seed);
            let (mut set, mut model) = (RangeSet::default(), BTreeSet::new());
            for _ in 0..40 {
                let (begin, end) = (rng.random_range(0..KEYS), rng.random_range(0..KEYS));
                if rng.random_bool(0.6) {
                    set.insert(key(begin), key(end));
                    model.extend(begin..end);
                } else {
                    set.remove(&key(begin), &key(end));
                    (begin..end).for_each(|number| {
                        model.remove(&number);
                    });
                }
                let covered: BTreeSet<u8> = (0..KEYS)
                    .filter(|&number| set.contains(&key(number)))
                    .collect();
                assert_eq!(covered, model, "seed {seed}");
                let ends: Vec<_> = set.iter().collect();
                assert!(
                    ends.windows(2).all(|pair| pair[0].1 < pair[1].0),
                    "seed {seed}: touching"
                );
                assert!(
                    ends.iter().all(|(begin, end)| begin < end),
                    "seed {seed}: empty range"
                );
            }
        }
    }

    #[test]
    fn neighbors_are_found_in_both_directions() {
        let mut set = RangeSet::default();
        set.insert(key(2), key(4));
        set.insert(key(6), key(8));
        let begin = |range: Option<(&Bytes, &Bytes)>| range.map(|(begin, _)| begin[0]);
        assert_eq!(begin(set.first_from(&key(1))), Some(2));
        assert_eq!(begin(set.first_from(&key(3))), Some(2));
        assert_eq!(begin(set.first_from(&key(4))), Some(6));
        assert_eq!(begin(set.first_from(&key(8))), None);
        assert_eq!(begin(set.last_before(&key(2))), None);
        assert_eq!(begin(set.last_before(&key(3))), Some(2));
        assert_eq!(begin(set.last_before(&key(9))), Some(6));
    }
}

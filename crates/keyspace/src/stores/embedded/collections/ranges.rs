//! Ranges of keys, and sets of keys as disjoint ranges.
//!
//! Most ranges hold a single key, which a transaction reads or writes. They are stored as that key, so the
//! key after it, at which the range ends, is never materialized.

use std::cmp::Ordering;

use bytes::Bytes;
use serde::{Deserialize, Serialize, Serializer};

use super::sorted_map::{MapPlace, SortedMap};
use crate::contract::transaction::key_after;

/// The keys `begin <= key < end`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeyRange {
    begin: Bytes,
    end: RangeEnd,
}

/// The end of a range: a key, or `None` if the range holds only its begin. A range of one key has the end
/// `None` even if it was made from two keys.
type RangeEnd = Option<Bytes>;

impl KeyRange {
    /// Returns the range between two keys, which is empty if they are not in order.
    pub(crate) fn new(begin: Bytes, end: Bytes) -> Self {
        if is_after(&begin, &end) {
            return Self::key(begin);
        }
        Self {
            begin,
            end: Some(end),
        }
    }

    /// Returns the range of one key.
    pub(crate) fn key(key: Bytes) -> Self {
        Self {
            begin: key,
            end: None,
        }
    }

    /// Returns the begin, and the end unless the range holds only the begin.
    pub(crate) fn parts(&self) -> (&Bytes, Option<&Bytes>) {
        (&self.begin, self.end.as_ref())
    }

    /// Converts into the begin, and the end unless the range holds only the begin.
    pub(crate) fn into_parts(self) -> (Bytes, Option<Bytes>) {
        (self.begin, self.end)
    }

    /// Converts into the two keys that bound the range.
    pub(crate) fn into_bounds(self) -> (Bytes, Bytes) {
        let end = self.end.unwrap_or_else(|| key_after(&self.begin).into());
        (self.begin, end)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.end.as_ref().is_some_and(|end| *end <= self.begin)
    }

    pub(crate) fn contains(&self, key: &[u8]) -> bool {
        match &self.end {
            Some(end) => *self.begin <= *key && *key < **end,
            None => self.begin == key,
        }
    }
}

/// Returns whether `end` is the first key after `key`.
fn is_after(key: &[u8], end: &[u8]) -> bool {
    end.len() == key.len() + 1 && end.strip_prefix(key) == Some(b"\0")
}

fn bounds_bytes(begin: &[u8], end: Option<&Bytes>) -> usize {
    begin.len() + end.map_or(begin.len() + 1, Bytes::len)
}

/// Compares the end of a range with a key.
fn compare_end(begin: &[u8], end: &RangeEnd, key: &[u8]) -> Ordering {
    match end {
        Some(end) => end[..].cmp(key),
        None if begin >= key => Ordering::Greater,
        None if is_after(begin, key) => Ordering::Equal,
        None => Ordering::Less,
    }
}

/// A set of keys as the sorted, disjoint, non-touching ranges that cover it.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(from = "Vec<(Bytes, RangeEnd)>")]
pub(crate) struct RangeSet {
    /// Maps each range's begin to its end.
    ranges: SortedMap<RangeEnd>,
}

impl Serialize for RangeSet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.ranges.iter())
    }
}

impl From<Vec<(Bytes, RangeEnd)>> for RangeSet {
    fn from(ranges: Vec<(Bytes, RangeEnd)>) -> Self {
        let mut set = Self::default();
        for (begin, end) in ranges {
            set.insert(match end {
                Some(end) => KeyRange::new(begin, end),
                None => KeyRange::key(begin),
            });
        }
        set
    }
}

impl RangeSet {
    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Returns the number of ranges.
    pub(crate) fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Returns the ranges in key order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = KeyRange> {
        self.ranges.iter().map(range)
    }

    /// Converts into the ranges, in key order.
    pub(crate) fn into_ranges(self) -> impl Iterator<Item = KeyRange> {
        let ranges = self.ranges.into_entries();
        ranges.map(|(begin, end)| KeyRange { begin, end })
    }

    /// Returns the total length of the bounds of all ranges.
    pub(crate) fn bounds_bytes(&self) -> usize {
        let ranges = self.ranges.iter();
        ranges
            .map(|(begin, end)| bounds_bytes(begin, end.as_ref()))
            .sum()
    }

    /// Adds a range. Does nothing if it is empty.
    pub(crate) fn insert(&mut self, new: KeyRange) {
        if new.is_empty() {
            return;
        }
        // All ranges that overlap or touch the new one become part of it.
        let from = self.first_reaching(&new.begin, Ordering::is_ge);
        let mut to = from;
        while let Some((begin, _)) = self.ranges.at(to)
            && compare_end(&new.begin, &new.end, begin).is_ge()
        {
            to = self.ranges.after(to);
        }
        if from == to {
            self.ranges.insert(from, new.begin, new.end);
        } else {
            self.merge(from, to, new);
        }
    }

    /// Merges a range with the ranges between two places, which it overlaps or touches.
    fn merge(&mut self, from: MapPlace, to: MapPlace, new: KeyRange) {
        if self.ranges.after(from) == to
            && let Some((begin, end)) = self.ranges.at(from)
            && *begin <= new.begin
            && covers_end((begin, end), &new)
        {
            return;
        }
        let (mut begin, mut end) = new.into_bounds();
        for (b, e) in self.ranges.remove(from, to) {
            let (b, e) = KeyRange { begin: b, end: e }.into_bounds();
            begin = begin.min(b);
            end = end.max(e);
        }
        self.put(KeyRange::new(begin, end));
    }

    /// Removes a range of keys.
    pub(crate) fn remove(&mut self, old: &KeyRange) {
        if old.is_empty() || self.is_empty() {
            return;
        }
        let from = self.first_reaching(&old.begin, Ordering::is_gt);
        let mut to = from;
        while let Some((begin, _)) = self.ranges.at(to)
            && compare_end(&old.begin, &old.end, begin).is_gt()
        {
            to = self.ranges.after(to);
        }
        let removed = self.ranges.remove(from, to);
        let (Some(first), Some(last)) = (removed.first(), removed.last()) else {
            return;
        };
        if first.0 < old.begin {
            self.put(KeyRange::new(first.0.clone(), old.begin.clone()));
        }
        let last = range((&last.0, &last.1));
        if !covers_end((&old.begin, &old.end), &last) {
            let (_, begin) = old.clone().into_bounds();
            let (_, end) = last.into_bounds();
            self.put(KeyRange::new(begin, end));
        }
    }

    pub(crate) fn contains(&self, key: &[u8]) -> bool {
        match self.ranges.find(key) {
            Ok(_) => true,
            Err(place) => self.ends_before(place, key, Ordering::is_gt).is_some(),
        }
    }

    /// Returns the first range that has a key at or after `key`.
    pub(crate) fn first_from(&self, key: &[u8]) -> Option<KeyRange> {
        let place = self.first_reaching(key, Ordering::is_gt);
        self.ranges.at(place).map(range)
    }

    /// Returns the last range that has a key before `key`.
    pub(crate) fn last_before(&self, key: &[u8]) -> Option<KeyRange> {
        let place = self.ranges.before(self.ranges.at_or_after(key))?;
        self.ranges.at(place).map(range)
    }

    /// Returns whether a range begins or ends at `key`.
    pub(crate) fn has_bound(&self, key: &[u8]) -> bool {
        match self.ranges.find(key) {
            Ok(_) => true,
            Err(place) => self.ends_before(place, key, Ordering::is_eq).is_some(),
        }
    }

    /// Returns the last key before `key` at which a range begins or ends.
    pub(crate) fn bound_before(&self, key: &[u8]) -> Option<Bytes> {
        let (begin, end) = self.last_before(key)?.into_bounds();
        Some(if *end < *key { end } else { begin })
    }

    /// Returns the first key after `key` at which a range begins or ends.
    pub(crate) fn bound_after(&self, key: &[u8]) -> Option<Bytes> {
        let (begin, end) = self.first_from(key)?.into_bounds();
        Some(if *begin > *key { begin } else { end })
    }

    /// Inserts a range that neither overlaps nor touches another one.
    fn put(&mut self, new: KeyRange) {
        let place = self.ranges.at_or_after(&new.begin);
        self.ranges.insert(place, new.begin, new.end);
    }

    /// Returns the place of the last range that begins before `key`, if the comparison of its end with
    /// `key` satisfies `compares`. Otherwise returns the place of the first range that begins at or after
    /// `key`.
    fn first_reaching(&self, key: &[u8], compares: fn(Ordering) -> bool) -> MapPlace {
        match self.ranges.find(key) {
            Ok(place) => place,
            Err(place) => self.ends_before(place, key, compares).unwrap_or(place),
        }
    }

    /// Returns the place before `place`, if the comparison of its range's end with `key` satisfies
    /// `compares`.
    fn ends_before(
        &self,
        place: MapPlace,
        key: &[u8],
        compares: fn(Ordering) -> bool,
    ) -> Option<MapPlace> {
        let before = self.ranges.before(place)?;
        let (begin, end) = self.ranges.at(before)?;
        if compares(compare_end(begin, end, key)) {
            Some(before)
        } else {
            None
        }
    }
}

fn range((begin, end): (&Bytes, &RangeEnd)) -> KeyRange {
    let begin = begin.clone();
    let end = end.clone();
    KeyRange { begin, end }
}

/// Returns whether a range from `begin` to `end` ends at or after the end of another one.
fn covers_end((begin, end): (&Bytes, &RangeEnd), other: &KeyRange) -> bool {
    match &other.end {
        Some(other) => compare_end(begin, end, other).is_ge(),
        None => compare_end(begin, end, &other.begin).is_gt(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    /// Returns the keys `00`, `00 00`, `01`, `01 00`, ...: the range from an even number to the next holds
    /// one key.
    fn key(number: u8) -> Bytes {
        Bytes::copy_from_slice(&[number / 2, 0][..1 + usize::from(number % 2)])
    }

    fn key_range(begin: u8, end: u8) -> KeyRange {
        KeyRange::new(key(begin), key(end))
    }

    /// Returns the maximal runs of numbers.
    fn runs(numbers: &BTreeSet<u8>) -> Vec<(Bytes, Bytes)> {
        let mut runs: Vec<(u8, u8)> = Vec::new();
        for &number in numbers {
            match runs.last_mut() {
                Some((_, end)) if *end == number => *end += 1,
                _ => runs.push((number, number + 1)),
            }
        }
        let bounds = runs.into_iter().map(|(begin, end)| (key(begin), key(end)));
        bounds.collect()
    }

    fn check(set: &RangeSet, model: &BTreeSet<u8>, keys: u8) {
        let runs = runs(model);
        let bounds: Vec<_> = set.iter().map(KeyRange::into_bounds).collect();
        assert_eq!(bounds, runs);
        assert_eq!(set.len(), runs.len());
        assert_eq!(set.is_empty(), runs.is_empty());
        let bytes: usize = runs
            .iter()
            .map(|(begin, end)| begin.len() + end.len())
            .sum();
        assert_eq!(set.bounds_bytes(), bytes);
        let ends = || runs.iter().flat_map(|(begin, end)| [begin, end]);
        for number in 0..=keys {
            let key = key(number);
            assert_eq!(set.contains(&key), model.contains(&number));
            let first = runs.iter().find(|(_, end)| key < *end);
            assert_eq!(
                set.first_from(&key).map(KeyRange::into_bounds).as_ref(),
                first
            );
            let last = runs.iter().rev().find(|(begin, _)| *begin < key);
            assert_eq!(
                set.last_before(&key).map(KeyRange::into_bounds).as_ref(),
                last
            );
            assert_eq!(set.has_bound(&key), ends().any(|bound| *bound == key));
            let before = ends().rfind(|bound| **bound < key);
            assert_eq!(set.bound_before(&key).as_ref(), before);
            let after = ends().find(|bound| **bound > key);
            assert_eq!(set.bound_after(&key).as_ref(), after);
        }
    }

    #[test]
    fn agrees_with_a_set_of_keys_under_random_changes() {
        const KEYS: u8 = 24;
        for seed in 0..200 {
            println!("seed {seed}");
            let mut rng = StdRng::seed_from_u64(seed);
            let mut set = RangeSet::default();
            let mut model = BTreeSet::new();
            for _ in 0..40 {
                let begin = rng.random_range(0..KEYS);
                let end = match rng.random_range(0..3) {
                    0 => rng.random_range(0..KEYS),
                    _ => begin + 1,
                };
                if rng.random_bool(0.6) {
                    set.insert(key_range(begin, end));
                    model.extend(begin..end);
                } else {
                    set.remove(&key_range(begin, end));
                    model.retain(|number| !(begin..end).contains(number));
                }
                check(&set, &model, KEYS);
            }
            assert!(set.iter().eq(set.clone().into_ranges()));
        }
    }

    #[test]
    fn the_range_of_one_key_is_the_same_however_it_was_made() {
        assert_eq!(key_range(2, 3), KeyRange::key(key(2)));
        assert_ne!(key_range(1, 2), KeyRange::key(key(1)));
        let up_to_one = KeyRange::new("k".into(), "k\u{1}".into());
        assert!(up_to_one.contains(b"k\0"), "a key between its bounds");
        assert_eq!(KeyRange::key(key(2)).into_bounds(), (key(2), key(3)));
        for number in 0..6 {
            assert_eq!(KeyRange::key(key(2)).contains(&key(number)), number == 2);
            assert_eq!(
                key_range(2, 5).contains(&key(number)),
                (2..5).contains(&number)
            );
        }
        assert!(key_range(3, 3).is_empty() && key_range(3, 2).is_empty());
        assert!(!key_range(2, 3).is_empty());
    }
}

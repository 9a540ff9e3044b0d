//! A summary of sorted keys, which are far apart in memory: it tells where among them a key belongs.

use std::cmp::Ordering;

use crate::stores::embedded::entries::Position;

/// What some sorted keys begin with.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Heads {
    /// The length of the bytes with which all keys begin.
    prefix: usize,
    /// The next four bytes of each key, as a number.
    heads: Box<[u32]>,
}

impl Heads {
    /// Returns the heads of sorted keys, of which there is at least one.
    pub(super) fn of<'a>(keys: impl DoubleEndedIterator<Item = &'a [u8]> + Clone) -> Self {
        let mut ends = keys.clone();
        let first = ends.next().unwrap_or_default();
        let prefix = common_bytes(first, ends.next_back().unwrap_or(first));
        Self {
            prefix,
            heads: keys.map(|key| head(&key[prefix..])).collect(),
        }
    }

    pub(super) fn new(prefix: usize, heads: Box<[u32]>) -> Self {
        Self { prefix, heads }
    }

    pub(super) fn len(&self) -> usize {
        self.heads.len()
    }

    /// Returns the bytes that they take in memory.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.heads)
    }

    /// Returns how many of the keys are before a position. `key` returns a key by its index.
    pub(super) fn count_before<'a>(
        &self,
        position: Position<'_>,
        key: impl Fn(usize) -> &'a [u8],
    ) -> usize {
        let sought = position.key();
        let prefix = &key(0)[..self.prefix];
        let shared = prefix.len().min(sought.len());
        match sought[..shared].cmp(&prefix[..shared]) {
            Ordering::Less => return 0,
            Ordering::Equal if sought.len() < prefix.len() => return 0,
            Ordering::Equal => {}
            Ordering::Greater => return self.len(),
        }
        let head = head(&sought[prefix.len()..]);
        let mut begin = self.heads.partition_point(|other| *other < head);
        if self.heads.get(begin) != Some(&head) {
            return begin;
        }
        let same = self.heads[begin..].partition_point(|other| *other == head);
        let mut end = begin + same;
        while begin < end {
            let middle = usize::midpoint(begin, end);
            if position.follows(key(middle)) {
                begin = middle + 1;
            } else {
                end = middle;
            }
        }
        begin
    }
}

/// Returns how many bytes two keys have in common at their begins.
pub(super) fn common_bytes(one: &[u8], other: &[u8]) -> usize {
    let pairs = one.iter().zip(other);
    pairs.take_while(|(one, other)| one == other).count()
}

/// Returns the first four bytes of a key as a number. Missing ones are zeros, so the numbers of two keys may be the
/// same, and are otherwise in the order of the keys.
pub(super) fn head(key: &[u8]) -> u32 {
    if let Some(head) = key.first_chunk() {
        return u32::from_be_bytes(*head);
    }
    let mut head = [0; 4];
    head[..key.len()].copy_from_slice(key);
    u32::from_be_bytes(head)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    /// Returns a key of few different bytes, so that many keys have the same head.
    fn some_key(rng: &mut StdRng) -> Vec<u8> {
        let len = rng.random_range(0..8);
        (0..len)
            .map(|_| [0, 1, 0xff][rng.random_range(0..3)])
            .collect()
    }

    #[test]
    fn positions_are_found_as_by_looking_at_all_keys() {
        let mut rng = StdRng::seed_from_u64(0);
        for _ in 0..2_000 {
            let prefix = some_key(&mut rng);
            let count = rng.random_range(1..40);
            let keys: BTreeSet<Vec<u8>> = (0..count)
                .map(|_| [&prefix[..], &some_key(&mut rng)].concat())
                .collect();
            let keys: Vec<_> = keys.into_iter().collect();
            let heads = Heads::of(keys.iter().map(Vec::as_slice));
            assert_eq!(heads.len(), keys.len());
            for _ in 0..20 {
                let mut sought = some_key(&mut rng);
                if rng.random() {
                    sought = [prefix.clone(), sought].concat();
                }
                for position in [Position::before(&sought), Position::after(&sought)] {
                    let expected = keys.iter().filter(|key| position.follows(key)).count();
                    let found = heads.count_before(position, |index| &keys[index]);
                    assert_eq!(found, expected, "{position:?} among {keys:?}");
                }
            }
        }
    }
}

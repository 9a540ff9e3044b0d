//! A map in key order, optimized for keys that arrive in ascending order.

use std::cmp::Ordering;

use bytes::Bytes;

/// The largest number of entries in a chunk.
const MAX_CHUNK_ENTRIES: usize = 64;

/// The number of entries that the first chunk has room for at first. Most maps need no more.
const FIRST_CHUNK_ENTRIES: usize = 4;

/// A map from keys to values: a sorted list of chunks, each with sorted entries.
///
/// A key after all others is found with one comparison and appended: no entry moves, and memory is
/// allocated once per chunk. Any other key takes a binary search and moves a part of a chunk.
#[derive(Debug, Clone)]
pub(crate) struct SortedMap<V> {
    /// No chunk is empty.
    chunks: Vec<Vec<(Bytes, V)>>,
}

/// A place in a map: that of an entry, or the one after all entries. It is valid until the map changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MapPlace {
    chunk: usize,
    index: usize,
}

impl<V> Default for SortedMap<V> {
    fn default() -> Self {
        Self { chunks: Vec::new() }
    }
}

impl<V> SortedMap<V> {
    pub(crate) fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Returns the number of entries.
    pub(crate) fn len(&self) -> usize {
        self.chunks.iter().map(Vec::len).sum()
    }

    /// Finds a key. `Ok` is its place. `Err` is the place of the first greater key, where the key belongs.
    pub(crate) fn find(&self, key: &[u8]) -> Result<MapPlace, MapPlace> {
        let after_all = MapPlace {
            chunk: self.chunks.len(),
            index: 0,
        };
        let Some((last, _)) = self.chunks.last().and_then(|chunk| chunk.last()) else {
            return Err(after_all);
        };
        match key.cmp(last) {
            Ordering::Greater => Err(after_all),
            Ordering::Equal => Ok(self.before(after_all).expect("there is a last entry")),
            Ordering::Less => {
                let is_before =
                    |chunk: &Vec<(Bytes, V)>| chunk.last().is_some_and(|(k, _)| k < key);
                let chunk = self.chunks.partition_point(is_before);
                let place = |index| MapPlace { chunk, index };
                let found = self.chunks[chunk].binary_search_by(|(k, _)| k[..].cmp(key));
                found.map(place).map_err(place)
            }
        }
    }

    /// Returns the place of the first key at or after `key`.
    pub(crate) fn at_or_after(&self, key: &[u8]) -> MapPlace {
        self.find(key).unwrap_or_else(|place| place)
    }

    /// Returns the place after that of an entry.
    pub(crate) fn after(&self, place: MapPlace) -> MapPlace {
        let MapPlace { chunk, index } = place;
        if index + 1 < self.chunks[chunk].len() {
            let index = index + 1;
            MapPlace { chunk, index }
        } else {
            let chunk = chunk + 1;
            let index = 0;
            MapPlace { chunk, index }
        }
    }

    /// Returns the place before another one, if there is one.
    pub(crate) fn before(&self, place: MapPlace) -> Option<MapPlace> {
        let MapPlace { chunk, index } = place;
        if index > 0 {
            let index = index - 1;
            return Some(MapPlace { chunk, index });
        }
        let chunk = chunk.checked_sub(1)?;
        let index = self.chunks[chunk].len() - 1;
        Some(MapPlace { chunk, index })
    }

    /// Returns the entry at a place, `None` at the place after all entries.
    pub(crate) fn at(&self, place: MapPlace) -> Option<(&Bytes, &V)> {
        let (key, value) = self.chunks.get(place.chunk)?.get(place.index)?;
        Some((key, value))
    }

    /// Returns the value of the entry at a place.
    pub(crate) fn value_mut(&mut self, place: MapPlace) -> &mut V {
        &mut self.chunks[place.chunk][place.index].1
    }

    pub(crate) fn get(&self, key: &[u8]) -> Option<&V> {
        let place = self.find(key).ok()?;
        self.at(place).map(|(_, value)| value)
    }

    /// Adds an entry at the place where its key [belongs](Self::find).
    pub(crate) fn insert(&mut self, place: MapPlace, key: Bytes, value: V) {
        let MapPlace {
            mut chunk,
            mut index,
        } = place;
        if chunk == self.chunks.len() {
            // Chunks of ascending keys are filled completely, not split.
            match self.chunks.last_mut() {
                Some(last) if last.len() < MAX_CHUNK_ENTRIES => last.push((key, value)),
                Some(_) => {
                    let mut last = Vec::with_capacity(MAX_CHUNK_ENTRIES);
                    last.push((key, value));
                    self.chunks.push(last);
                }
                None => {
                    let mut first = Vec::with_capacity(FIRST_CHUNK_ENTRIES);
                    first.push((key, value));
                    self.chunks.push(first);
                }
            }
            return;
        }
        if self.chunks[chunk].len() == MAX_CHUNK_ENTRIES {
            let half = self.chunks[chunk].split_off(MAX_CHUNK_ENTRIES / 2);
            self.chunks.insert(chunk + 1, half);
            if index > MAX_CHUNK_ENTRIES / 2 {
                (chunk, index) = (chunk + 1, index - MAX_CHUNK_ENTRIES / 2);
            }
        }
        self.chunks[chunk].insert(index, (key, value));
    }

    /// Removes and returns the entries from one place up to, but not including, another.
    pub(crate) fn remove(&mut self, from: MapPlace, to: MapPlace) -> Vec<(Bytes, V)> {
        if from == to {
            return Vec::new();
        }
        let first = &mut self.chunks[from.chunk];
        let removed = if from.chunk == to.chunk {
            first.drain(from.index..to.index).collect()
        } else {
            let mut removed = first.split_off(from.index);
            removed.extend(self.chunks.drain(from.chunk + 1..to.chunk).flatten());
            if to.index > 0 {
                removed.extend(self.chunks[from.chunk + 1].drain(..to.index));
            }
            removed
        };
        if self.chunks[from.chunk].is_empty() {
            self.chunks.remove(from.chunk);
        }
        removed
    }

    /// Returns the entries from a place on, in key order.
    pub(crate) fn iter_from(&self, place: MapPlace) -> impl Iterator<Item = (&Bytes, &V)> {
        let chunks = self.chunks.get(place.chunk..).unwrap_or_default();
        let entries = chunks.iter().flatten().skip(place.index);
        entries.map(|(key, value)| (key, value))
    }

    /// Returns the entries in key order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Bytes, &V)> {
        self.chunks
            .iter()
            .flatten()
            .map(|(key, value)| (key, value))
    }

    /// Converts into the entries, in key order.
    pub(crate) fn into_entries(self) -> impl Iterator<Item = (Bytes, V)> {
        self.chunks.into_iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    fn key(number: u16) -> Bytes {
        Bytes::copy_from_slice(&number.to_be_bytes())
    }

    fn insert(map: &mut SortedMap<u32>, number: u16, value: u32) {
        match map.find(&key(number)) {
            Ok(place) => *map.value_mut(place) = value,
            Err(place) => map.insert(place, key(number), value),
        }
    }

    /// Compares a map with a model of it, entry by entry in both directions and from every key.
    fn check(map: &SortedMap<u32>, model: &BTreeMap<Bytes, u32>, keys: u16) {
        assert!(map.iter().eq(model), "entries");
        assert_eq!(map.len(), model.len());
        assert_eq!(map.is_empty(), model.is_empty());
        assert!(
            map.chunks
                .iter()
                .all(|chunk| (1..=MAX_CHUNK_ENTRIES).contains(&chunk.len()))
        );
        for number in 0..keys {
            let key = key(number);
            assert_eq!(map.get(&key), model.get(&key));
            assert_eq!(map.find(&key).is_ok(), model.contains_key(&key));
            let place = map.at_or_after(&key);
            assert_eq!(map.at(place), model.range::<Bytes, _>(&key..).next());
            assert!(map.iter_from(place).eq(model.range::<Bytes, _>(&key..)));
            let before = map.before(place);
            let entry_before = before.and_then(|before| map.at(before));
            assert_eq!(entry_before, model.range::<Bytes, _>(..&key).next_back());
            assert!(before.is_none_or(|before| map.after(before) == place));
        }
    }

    #[test]
    fn agrees_with_a_tree_under_random_changes() {
        const KEYS: u16 = 300;
        for seed in 0..20 {
            let mut rng = StdRng::seed_from_u64(seed);
            let mut map = SortedMap::default();
            let mut model = BTreeMap::new();
            for _ in 0..30 {
                let first = rng.random_range(0..KEYS);
                let count = rng.random_range(0..KEYS / 2);
                match rng.random_range(0..4) {
                    0 => {
                        let end = key(first.saturating_add(count));
                        let from = map.at_or_after(&key(first));
                        let to = map.at_or_after(&end);
                        let removed = map.remove(from, to);
                        let expected: Vec<_> =
                            model.extract_if(key(first)..end, |_, _| true).collect();
                        assert_eq!(removed, expected, "seed {seed}");
                    }
                    1 => (first..KEYS.min(first + count)).for_each(|number| {
                        insert(&mut map, number, rng.random());
                        model.insert(key(number), *map.get(&key(number)).unwrap());
                    }),
                    _ => (0..count).for_each(|_| {
                        let number = rng.random_range(0..KEYS);
                        let value = rng.random();
                        insert(&mut map, number, value);
                        model.insert(key(number), value);
                    }),
                }
                check(&map, &model, KEYS + 1);
            }
            assert!(map.into_entries().eq(model), "seed {seed}");
        }
    }

    #[test]
    fn keys_in_ascending_order_fill_their_chunks() {
        let mut map = SortedMap::default();
        (0..1000).for_each(|number| insert(&mut map, number, 0));
        assert_eq!(map.chunks.len(), 1000_usize.div_ceil(MAX_CHUNK_ENTRIES));
    }
}

//! The keys that a transaction knows from its reads of the store.

use std::collections::BTreeMap;

use bytes::Bytes;
use keyspace::limits::END_OF_KEYSPACE;
use keyspace::{KeySelector, key_after};

/// The ranges of keys, stored or not, whose values in the store a transaction knows.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Known(Vec<(Bytes, Bytes)>);

impl Known {
    pub(super) fn add(&mut self, begin: Bytes, end: Bytes) {
        self.0.push((begin, end));
    }

    pub(super) fn knows(&self, key: &[u8]) -> bool {
        self.0.iter().any(|(begin, end)| begin <= key && key < end)
    }

    pub(super) fn boundaries(&self) -> impl Iterator<Item = Bytes> {
        self.0
            .iter()
            .flat_map(|(begin, end)| [begin.clone(), end.clone()])
    }

    /// Reads a range from the store between selectors that do not point into it.
    ///
    /// Reads at least the number of rows between a selector and its key.
    pub(super) fn load(
        &mut self,
        stored: &BTreeMap<Bytes, Bytes>,
        begin: &KeySelector,
        end: &KeySelector,
        limit: Option<usize>,
        reverse: bool,
    ) {
        let keys: Vec<&Bytes> = stored.keys().collect();
        let find = |selector: &KeySelector| {
            let base = keys.partition_point(|key| **key < selector.key);
            base.checked_add_signed(selector.offset as isize - 1)
        };
        let from = find(begin);
        let to = find(end).unwrap_or(0);
        let to_end = to > keys.len();
        let to = to.min(keys.len());
        let mut inside = &keys[from.unwrap_or(0).min(to)..to];
        let back = if reverse {
            end.offset
        } else {
            2 - begin.offset
        };
        let least = usize::try_from(back).unwrap_or(1);
        let limit = limit.map_or(usize::MAX, |limit| limit.max(least).max(1));
        let more = inside.len() >= limit;
        if more && reverse {
            inside = &inside[inside.len() - limit..];
        } else if more {
            inside = &inside[..limit];
        }
        let mut low = if from.is_some() {
            begin.key.clone()
        } else {
            Bytes::new()
        };
        let mut high = end.key.clone();
        if to_end {
            high = Bytes::from_static(END_OF_KEYSPACE);
        }
        if let (Some(first), Some(last)) = (inside.first(), inside.last()) {
            let after = Bytes::from(key_after(last));
            low = if more && reverse {
                (*first).clone()
            } else {
                low.min((*first).clone())
            };
            high = if more && !reverse {
                after
            } else {
                high.max(after)
            };
        }
        self.add(low, high);
    }
}

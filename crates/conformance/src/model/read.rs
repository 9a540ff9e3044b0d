//! Reads: a key, a key selector, a range.

use std::collections::BTreeMap;

use bytes::Bytes;
use keyspace::limits::END_OF_KEYSPACE;
use keyspace::{Code, KeySelector, RangeQuery, key_after};

use super::known::Known;
use super::range::{FoundRows, RangeRead};
use super::view::{Seen, Stretch, View};
use super::writes::Writes;

/// Reads the store and the transaction's own writes.
pub(super) struct Reader<'a> {
    pub(super) stored: &'a BTreeMap<Bytes, Bytes>,
    pub(super) writes: &'a Writes,
    /// The write conflict ranges. Unknown stretches are also divided at their bounds.
    pub(super) conflicts: &'a [(Bytes, Bytes)],
    pub(super) known: &'a mut Known,
    /// Whether a read of a single key may read an unreadable key.
    pub(super) bypass: bool,
}

/// Converts a selector into one without `or_equal`.
pub(super) fn plain(selector: &KeySelector) -> KeySelector {
    let mut plain = selector.clone();
    if selector.or_equal {
        plain.key = key_after(&selector.key).into();
        plain.or_equal = false;
    }
    plain
}

impl Reader<'_> {
    pub(super) fn value(&mut self, key: &Bytes) -> Result<Option<Bytes>, Code> {
        let staged = self.writes.at(key);
        if staged.unreadable && !self.bypass {
            return Err(Code::ACCESSED_UNREADABLE);
        }
        if !staged.is_independent() {
            self.known.add(key.clone(), key_after(key).into());
        }
        Ok(staged.value(self.stored.get(key)))
    }

    /// Resolves a selector to its key: the first row from there on, or the last row up to there.
    pub(super) fn key(&mut self, selector: &KeySelector) -> Result<Bytes, Code> {
        let forward = selector.offset > 0;
        let query = if forward {
            let end = KeySelector::first_greater_or_equal(END_OF_KEYSPACE);
            RangeQuery::selectors(selector.clone(), end)
        } else {
            let mut end = selector.clone();
            end.offset += 1;
            let begin = KeySelector::first_greater_or_equal(&b""[..]);
            RangeQuery::selectors(begin, end).reversed()
        };
        let found = self.range(&query.limit(1))?;
        let end = Bytes::from_static(END_OF_KEYSPACE);
        Ok(match found.rows.into_iter().next() {
            _ if forward && found.ran_to_begin => Bytes::new(),
            _ if found.ran_to_end => end,
            _ if found.ran_to_begin => Bytes::new(),
            Some(row) => row.to_key(),
            None if forward => end,
            None => Bytes::new(),
        })
    }

    /// Reads one batch of a range between selectors without `or_equal`.
    pub(super) fn range(&mut self, query: &RangeQuery) -> Result<FoundRows, Code> {
        RangeRead::new(query).run(self)
    }

    /// Returns a view of the whole keyspace. The keys in `asked` are separated from their neighbors.
    pub(super) fn view(&self, asked: [&Bytes; 2]) -> View {
        let end = Bytes::from_static(END_OF_KEYSPACE);
        let mut boundaries = self.writes.boundaries();
        boundaries.extend(self.known.boundaries());
        let conflicts = self.conflicts.iter();
        boundaries.extend(conflicts.flat_map(|(begin, end)| [begin.clone(), end.clone()]));
        for key in self.stored.keys().filter(|key| self.known.knows(key)) {
            boundaries.extend([key.clone(), key_after(key).into()]);
        }
        let only_asked = asked.map(|key| !boundaries.contains(key));
        let is_only_asked = |key: &Bytes| {
            let mut asked = asked.iter().zip(only_asked);
            asked.any(|(asked, only)| only && *asked == key)
        };
        boundaries.extend(asked.into_iter().chain([&end]).cloned());
        let boundaries: Vec<_> = boundaries.range(..=end).cloned().collect();
        let stretches = boundaries.windows(2).filter_map(|bounds| {
            let begin = bounds[0].clone();
            let end = bounds[1].clone();
            let seen = self.seen(&begin)?;
            let continues = is_only_asked(&begin) && seen == Seen::Unknown;
            Some(Stretch {
                begin,
                end,
                seen,
                continues,
            })
        });
        View(stretches.collect())
    }

    /// Returns what the transaction sees at a key, `None` if there is nothing.
    fn seen(&self, key: &Bytes) -> Option<Seen> {
        let staged = self.writes.at(key);
        if staged.unreadable {
            return Some(Seen::Unreadable);
        }
        if !staged.is_independent() && !self.known.knows(key) {
            return Some(Seen::Unknown);
        }
        match staged.value(self.stored.get(key)) {
            Some(value) => Some(Seen::Row(value)),
            None if !staged.ops.is_empty() => Some(Seen::Ghost),
            None => None,
        }
    }
}

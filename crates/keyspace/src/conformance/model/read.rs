//! Reads: a key, a key selector, a range.
//!
//! FoundationDB's client keeps what a transaction has read from the store and walks over that and
//! over the transaction's own writes. Whether a walk meets a key that nobody may read, and whether
//! a selector is seen to run off an end, follows from what the client knows at that moment. So the
//! model walks the same way: it stops where it would leave what is [`Known`], loads what the client
//! would load, and walks again from the beginning.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::known::Known;
use super::view::{Place, Resolved, Seen, Stop, Stretch, View};
use super::writes::Writes;
use crate::limits::END_OF_KEYSPACE;
use crate::{Code, KeySelector, KeyValue, RangeQuery, key_after};

/// Reads the store and the transaction's own writes.
pub(super) struct Reader<'a> {
    pub(super) stored: &'a BTreeMap<Bytes, Bytes>,
    pub(super) writes: &'a Writes,
    pub(super) known: &'a mut Known,
    /// Whether keys that nobody may read are read all the same.
    pub(super) bypass: bool,
}

/// What a range read gave.
#[derive(Debug, Default)]
pub(super) struct Rows {
    pub(super) rows: Vec<KeyValue>,
    pub(super) more: bool,
    ran_to_begin: bool,
    ran_to_end: bool,
}

/// Writes a selector without `or_equal`.
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

    /// Resolves a selector: it is the first row from it on, or the last row up to it.
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
            Some(row) => row.key,
            None if forward => end,
            None => Bytes::new(),
        })
    }

    /// Reads one batch of a range between selectors without `or_equal`.
    pub(super) fn range(&mut self, query: &RangeQuery) -> Result<Rows, Code> {
        let mut rows = Rows::default();
        let mut first = true;
        loop {
            let view = self.view(query);
            let (begin, end) = (view.resolve(&query.begin), view.resolve(&query.end));
            rows.ran_to_begin |= [begin.place, end.place].contains(&Place::Begin);
            rows.ran_to_end |= [begin.place, end.place].contains(&Place::End);
            if begin.is_inverted(&end) {
                return Ok(Rows::default());
            }
            if begin.place == Place::End || end.place == Place::Begin {
                return Ok(rows);
            }
            let far = if query.reverse { &begin } else { &end };
            if std::mem::take(&mut first) && far.is_stuck() && begin.key > end.key {
                let found = self.key(&far.rest())?;
                rows.ran_to_begin |= found.is_empty();
                rows.ran_to_end |= found == END_OF_KEYSPACE;
                match is_empty(query.reverse, &begin, &end, &found) {
                    Some(Emptiness::Inverted) => return Ok(Rows::default()),
                    Some(Emptiness::Outside) => return Ok(rows),
                    None => continue,
                }
            }
            match view.walk(query, &begin, &end) {
                Ok((found, more)) => {
                    rows.rows = found;
                    rows.more = more;
                    rows.ran_to_begin &= !(query.reverse && more);
                    rows.ran_to_end &= query.reverse || !more;
                    return Ok(rows);
                }
                Err(Stop::Failed(code)) => return Err(code),
                Err(Stop::Unknown { at, wanted }) => {
                    let (begin, end) = view.request(query.reverse, &begin, &end, at);
                    self.known
                        .load(self.stored, &begin, &end, wanted, query.reverse);
                }
            }
        }
    }

    fn view(&self, query: &RangeQuery) -> View {
        let end = Bytes::from_static(END_OF_KEYSPACE);
        let mut boundaries = self.writes.boundaries();
        boundaries.extend(self.known.boundaries());
        boundaries.extend([query.begin.key.clone(), query.end.key.clone(), end.clone()]);
        for key in self.stored.keys().filter(|key| self.known.knows(key)) {
            boundaries.extend([key.clone(), key_after(key).into()]);
        }
        let boundaries: Vec<_> = boundaries.range(..=end).cloned().collect();
        let stretches = boundaries.windows(2).filter_map(|bounds| {
            let (begin, end) = (bounds[0].clone(), bounds[1].clone());
            let seen = self.seen(&begin)?;
            Some(Stretch { begin, end, seen })
        });
        View(stretches.collect())
    }

    /// What the transaction sees at a key, `None` if there is nothing.
    fn seen(&self, key: &Bytes) -> Option<Seen> {
        let staged = self.writes.at(key);
        if staged.unreadable && !self.bypass {
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

/// Why a range between crossed selectors is empty.
enum Emptiness {
    /// It ends before it begins.
    Inverted,
    /// Its far selector ran off an end.
    Outside,
}

/// Judges a range whose selectors are crossed, once the far one has been found.
fn is_empty(reverse: bool, begin: &Resolved, end: &Resolved, found: &Bytes) -> Option<Emptiness> {
    let (inverted, outside) = if reverse {
        let inverted = *found >= end.key && end.rest().offset <= 1;
        (inverted, found == END_OF_KEYSPACE)
    } else {
        let inverted = begin.key >= *found && begin.rest().offset >= 1;
        (inverted, found.is_empty())
    };
    match (inverted, outside) {
        (true, _) => Some(Emptiness::Inverted),
        (false, true) => Some(Emptiness::Outside),
        (false, false) => None,
    }
}

impl Rows {
    /// The range that a serializable read conflicts with, before what the transaction has written
    /// is taken out.
    pub(super) fn conflict(&self, query: &RangeQuery) -> (Bytes, Bytes) {
        let (begin, end) = (&query.begin, &query.end);
        let (lowest, highest) = match query.reverse {
            true => (self.rows.last(), self.rows.first()),
            false => (self.rows.first(), self.rows.last()),
        };
        let (mut low, mut high) = (begin.key.clone(), end.key.clone());
        if low >= high {
            (low, high) = (high, low);
        } else if self.more && !query.reverse && end.offset > 0 {
            high = low.clone();
        } else if self.more && query.reverse && begin.offset <= 1 {
            low = high.clone();
        }
        if self.ran_to_begin && begin.offset <= 0 {
            low = Bytes::new();
        }
        if self.ran_to_end && end.offset > 0 {
            high = Bytes::from_static(END_OF_KEYSPACE);
        }
        if let Some(row) = lowest
            && (query.reverse || begin.offset <= 0)
        {
            low = low.min(row.key.clone());
        }
        if let Some(row) = highest
            && (!query.reverse || end.offset > 0)
        {
            high = high.max(key_after(&row.key).into());
        }
        (low, high)
    }
}

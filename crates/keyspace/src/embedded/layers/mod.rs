//! The layers of one state of the store: parts of the window over the tree.
//!
//! ```text
//! active part, as a batch left it
//! frozen parts, newest first
//! base: the tree's snapshot that belongs to them
//! ```
//!
//! The newest layer that has an entry for a key decides: a Set gives its value, and a Gap means that it has
//! none.

mod merge;
#[cfg(test)]
mod tests;
mod window;

use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use redb::StorageError;

use self::merge::Merge;
use crate::embedded::tree::damage::Damage;
use crate::embedded::tree::{TreeRange, TreeRows, ValueGuard};
use crate::embedded::window::{Below, Lookup, PartSnapshot, Position};
use crate::limits::END_OF_KEYSPACE;
use crate::selector::KeyValue;

pub(crate) use self::window::{Checkpointed, FrozenPart, PartId, Parts, Window};

/// The lowest layer: rows that do not change.
pub(crate) trait Base {
    /// The error of a failed read, or of damage that a read has found.
    type Error: From<Damage>;
    /// A row of a range.
    type Row: BaseRow;
    /// The rows of a range in key order.
    type Range<'a>: DoubleEndedIterator<Item = Result<Self::Row, Self::Error>>
    where
        Self: 'a;

    /// Reads a key.
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, Self::Error>;

    /// Returns the rows between two bounds. The first bound must be before the second. Damage may put rows
    /// out of place.
    fn range(&self, begin: Bound<&[u8]>, end: Bound<&[u8]>)
    -> Result<Self::Range<'_>, Self::Error>;
}

/// A row of a [`Base`].
pub(crate) trait BaseRow {
    /// Returns the key.
    fn key(&self) -> &[u8];
    /// Returns the value.
    fn value(&self) -> &[u8];
}

/// One state of an open store.
pub(crate) type StoreLayers = Layers<Arc<TreeRows>>;

/// One state of the store, for reading.
#[derive(Clone)]
pub(crate) struct Layers<B> {
    /// Newest first.
    parts: Vec<PartSnapshot>,
    base: B,
}

impl<B: Base> Layers<B> {
    /// Returns the layers of parts, newest first, over a base.
    pub(crate) fn new(parts: Vec<PartSnapshot>, base: B) -> Self {
        Self { parts, base }
    }

    /// Returns the parts, newest first.
    pub(crate) fn parts(&self) -> &[PartSnapshot] {
        &self.parts
    }

    /// Returns the base, below all parts.
    pub(crate) fn base(&self) -> &B {
        &self.base
    }

    /// Puts a part on top of all others.
    pub(crate) fn push(&mut self, part: PartSnapshot) {
        self.parts.insert(0, part);
    }

    /// Keeps the newest `count` parts. `base` must contain the others.
    pub(crate) fn rebase(&mut self, count: usize, base: B) {
        self.parts.truncate(count);
        self.base = base;
    }

    /// Reads a key.
    ///
    /// # Errors
    ///
    /// Those of the base.
    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Bytes>, B::Error> {
        for part in &self.parts {
            match part.lookup(key) {
                Lookup::Value(value) => return Ok(Some(Bytes::copy_from_slice(value))),
                Lookup::Cleared => return Ok(None),
                Lookup::Unknown => {}
            }
        }
        self.base.get(key)
    }

    /// Reads up to `max_rows` rows `begin <= key < end`, from the end backward if `reverse`.
    ///
    /// # Errors
    ///
    /// Those of the base. Damage, if its rows are not in order.
    pub(crate) fn scan(
        &self,
        begin: &[u8],
        end: &[u8],
        reverse: bool,
        max_rows: usize,
    ) -> Result<Vec<KeyValue>, B::Error> {
        if begin >= end {
            return Ok(Vec::new());
        }
        let range = Position::before(begin)..Position::before(end);
        let mut merge = Merge::new(&self.parts, &self.base, range, reverse);
        let mut rows: Vec<KeyValue> = Vec::new();
        while rows.len() < max_rows
            && let Some(row) = merge.next()?
        {
            let is_behind = |last: &KeyValue| {
                if reverse {
                    row.key() >= last.key()
                } else {
                    row.key() <= last.key()
                }
            };
            if rows.last().is_some_and(is_behind) {
                return Err(Damage::of_order().into());
            }
            rows.push(KeyValue::new(row.key(), row.value()));
        }
        // The first row is not before the range, so with the last one, all are in it.
        if rows
            .last()
            .is_some_and(|last| !(begin..end).contains(&last.key()))
        {
            return Err(Damage::of_order().into());
        }
        Ok(rows)
    }
}

/// The content below the active part, for layers that do not include the active part.
impl<B: Base> Below for Layers<B> {
    type Error = B::Error;

    fn first_live_from(&self, key: &[u8]) -> Result<Option<Bytes>, B::Error> {
        if key >= END_OF_KEYSPACE {
            return Ok(None);
        }
        let range = Position::before(key)..Position::before(END_OF_KEYSPACE);
        let row = Merge::new(&self.parts, &self.base, range, false).next()?;
        Ok(row.map(|row| Bytes::copy_from_slice(row.key())))
    }
}

/// The states between two checkpoints share one snapshot of the tree.
impl Base for Arc<TreeRows> {
    type Error = StorageError;
    type Row = (ValueGuard, ValueGuard);
    type Range<'a> = TreeRange;

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StorageError> {
        let value = TreeRows::get(self, key)?;
        Ok(value.map(|value| Bytes::copy_from_slice(value.value())))
    }

    fn range(
        &self,
        begin: Bound<&[u8]>,
        end: Bound<&[u8]>,
    ) -> Result<Self::Range<'_>, StorageError> {
        TreeRows::range(self, begin, end)
    }
}

impl BaseRow for (ValueGuard, ValueGuard) {
    fn key(&self) -> &[u8] {
        self.0.value()
    }

    fn value(&self) -> &[u8] {
        self.1.value()
    }
}

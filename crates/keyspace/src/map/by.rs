//! Finds rows by an index.

use std::fmt;
use std::ops::{Bound, RangeBounds};

use foundationdb_tuple::{Subspace, TuplePack};

use super::index::{Definition, records};
use super::key::{Key, KeyRef};
use super::rows::{Entries, Rows};
use super::{Index, Map};
use crate::contract::error::{MapError, Result};
use crate::contract::selector::RangeQuery;
use crate::contract::transaction::{Isolation, Transaction};
use crate::text::names::tuple_text;
use crate::values::codec::{Codec, MessagePack};

/// The rows of a [`Map`] in the order of an index: by the keys of the index, and then by their own. A row is found
/// under each of its keys.
pub struct By<'a, K, V, I, C = MessagePack> {
    map: &'a Map<K, V, C>,
    index: &'a Index<V, I>,
    entries: Subspace,
}

impl<K, V, I, C> fmt::Debug for By<'_, K, V, I, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("By")
            .field("map", self.map)
            .field("entries", &self.entries)
            .finish_non_exhaustive()
    }
}

impl<K: Key, V: 'static, C: Codec<V>> Map<K, V, C> {
    /// Returns the rows in the order of an index, by which they are found.
    ///
    /// What is read through it first reads the record of the index, and is refused with
    /// [`MapError::IndexNotBuilt`] until the index is built, and with [`MapError::IndexChanged`],
    /// [`MapError::IndexRemoved`] if it is another one than the map's.
    ///
    /// # Conflicts
    /// Every read of an index also reads its record, and the rows that it finds.
    #[must_use]
    pub fn by<'a, I: Key>(&'a self, index: &'a Index<V, I>) -> By<'a, K, V, I, C> {
        By {
            map: self,
            index,
            entries: index.definition().entries(&self.subspace),
        }
    }
}

impl<'a, K: Key, V: 'static, I: Key, C: Codec<V>> By<'a, K, V, I, C> {
    /// Returns all rows that have a key in the index.
    #[must_use]
    pub fn rows(&self) -> Rows<'a, K, V, C> {
        let (begin, end) = self.entries.range();
        self.between(begin, end)
    }

    /// Returns the rows with a key.
    #[must_use]
    pub fn equal_to(&self, key: impl KeyRef<I>) -> Rows<'a, K, V, C> {
        let (begin, end) = self.under(&key.pack_element());
        self.between(begin, end)
    }

    /// Returns the rows whose keys are within bounds, none if the bounds are inverted.
    #[must_use]
    pub fn range(&self, bounds: impl RangeBounds<I>) -> Rows<'a, K, V, C> {
        let (first, last) = self.entries.range();
        let begin = match bounds.start_bound() {
            Bound::Included(key) => self.under(&(key,).pack_to_vec()).0,
            Bound::Excluded(key) => self.under(&(key,).pack_to_vec()).1,
            Bound::Unbounded => first,
        };
        let end = match bounds.end_bound() {
            Bound::Included(key) => self.under(&(key,).pack_to_vec()).1,
            Bound::Excluded(key) => self.under(&(key,).pack_to_vec()).0,
            Bound::Unbounded => last,
        };
        self.between(begin.clone(), end.max(begin))
    }

    /// Returns the range of the entries of a packed key.
    fn under(&self, key: &[u8]) -> (Vec<u8>, Vec<u8>) {
        under(&self.entries, key)
    }

    fn between(&self, begin: Vec<u8>, end: Vec<u8>) -> Rows<'a, K, V, C> {
        let entries = Entries {
            index: self.index.definition().clone(),
            subspace: self.entries.clone(),
        };
        Rows::of_entries(self.map, entries, begin, end)
    }
}

/// Returns the range of the entries of a packed key.
fn under(entries: &Subspace, key: &[u8]) -> (Vec<u8>, Vec<u8>) {
    Subspace::from_bytes([entries.bytes(), key].concat()).range()
}

impl<V> Definition<V> {
    /// Refuses a key that another row has.
    ///
    /// # Conflicts
    /// Reads the entries of the key.
    pub(super) async fn check_unique(
        &self,
        tr: &impl Transaction,
        entries: &Subspace,
        key: &[u8],
        row: &[u8],
    ) -> Result<()> {
        let (begin, end) = under(entries, key);
        let of_key = RangeQuery::keys(begin, end).limit(2);
        let batch = tr.get_range(&of_key, Isolation::Serializable).await?;
        let prefix = entries.bytes().len() + key.len();
        let mut others = batch.rows.iter().map(|entry| &entry.key()[prefix..]);
        let Some(other) = others.find(|other| *other != row) else {
            return Ok(());
        };
        let text = |packed: &[u8]| tuple_text(packed).unwrap_or_default();
        Err(MapError::Taken {
            index: self.name().to_owned(),
            key: text(key),
            row: text(other),
        }
        .into())
    }

    /// Checks that the index of a map is this one, and was built.
    pub(super) async fn check_built(
        &self,
        tr: &impl Transaction,
        map: &Subspace,
        isolation: Isolation,
    ) -> Result<()> {
        let stored = records(tr, map, isolation).await?;
        let record = stored.iter().find(|(name, _)| name == self.name());
        self.check(record.map(|(_, record)| *record), true)
    }
}

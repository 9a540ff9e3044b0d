//! Maps: an application's own data as typed rows, in the transactions of its queues.
//!
//! A [`Map`] stages in the caller's transaction, as every recipe does. Its keys are tuples, which keep their order, so
//! ranges of keys are ranges of the store. Its values go through a [`codec`].
//!
//! # Layout
//!
//! ```text
//! map = the subspace of the map
//!
//! (map, "b", index) = progress, while the index is being built
//!     index   the name of the index
//! (map, "i", index) = record of an index
//! (map, "m") = settings, written when the map is first opened
//! (map, "r", key..) = the value, as the codec writes it
//!     key     the elements of the key
//! (map, "x", index, value, key) = empty: an entry of an index
//!     value   what the index finds the row by, one element: a nested tuple if it has several
//!     key     the key of the row, one element, too
//!
//! progress
//!     0       format, 01
//!     1..9    how many rows were looked at
//!     next    where the next row is: its key without the prefix of the map's rows, empty at the begin
//!
//! record of an index
//!     0       format, 01
//!     1..5    version of its function
//!     5       01 if it is unique, else 00
//!     6       01 if it was built, else 00
//!
//! settings
//!     0       format, 01
//!     next    length of the name of the codec in a byte, then the name, UTF-8
//! ```

mod build;
mod by;
mod cursor;
mod index;
mod inspect;
mod key;
mod options;
mod rows;
mod settings;
mod verify;

use std::collections::BTreeSet;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

use bytes::Bytes;
use foundationdb_tuple::{self as tuple, Subspace, TuplePack};
use futures::future::try_join_all;

pub use self::by::By;
pub use self::cursor::Cursor;
use self::index::Definition;
pub use self::index::{Index, MAX_INDEX_NAME_BYTES};
pub use self::inspect::{Building, IndexStatus, MapState, describe_key, inspect, is_row};
pub use self::key::{Key, KeyRef};
pub use self::options::MapOptions;
pub use self::rows::{Page, Rows};
pub use self::verify::{Difference, MAX_DIFFERENCES, MapReport};
pub use crate::contract::error::MapError;
use crate::contract::error::{Code, Error, Result};
use crate::contract::limits::{MAX_KEY_BYTES, MAX_VALUE_BYTES};
use crate::contract::transaction::{Database, Isolation, Transaction, key_after};
use crate::run::Runner;
use crate::values::codec::{self, Codec, MessagePack};

crate::parts! {
    /// The parts of a map.
    pub(crate) enum MapPart {
        Progress "b" "progress of building an index",
        Indexes "i" "record of an index",
        Settings "m" "settings of a map",
        Rows "r" "row of a map",
        Entries "x" "entry of an index",
    }
}

/// A map of an application's own data: rows of a key and a value each, in the order of their keys.
///
/// Clones are the same map. No other key may be written in its subspace.
///
/// ```
/// use keyspace::{Error, Map, Runner};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Debug, PartialEq, Serialize, Deserialize)]
/// struct Order {
///     customer: String,
///     cents: u64,
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let runner = Runner::new(keyspace::open("memory:")?);
/// let orders = &Map::<(String, u64), Order>::open(&runner, "orders").await?;
/// runner
///     .run(async |tr| {
///         for number in 1..=3 {
///             let order = Order { customer: "ann".into(), cents: 100 * number };
///             orders.set(&tr, &("ann".into(), number), &order).await?;
///         }
///         Ok::<_, Error>(())
///     })
///     .await?;
/// let last = runner.run(async |tr| orders.beginning_with(&("ann",)).last(&tr).await).await?;
/// assert_eq!(last.unwrap().1.cents, 300);
/// # Ok(())
/// # }
/// ```
pub struct Map<K, V, C = MessagePack> {
    subspace: Subspace,
    rows: Subspace,
    codec: C,
    isolation: Isolation,
    /// By their names.
    indexes: Arc<[Arc<Definition<V>>]>,
    types: PhantomData<fn() -> (K, V)>,
}

impl<K, V, C: Clone> Clone for Map<K, V, C> {
    fn clone(&self) -> Self {
        Self {
            subspace: self.subspace.clone(),
            rows: self.rows.clone(),
            codec: self.codec.clone(),
            isolation: self.isolation,
            indexes: self.indexes.clone(),
            types: PhantomData,
        }
    }
}

impl<K, V, C> fmt::Debug for Map<K, V, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Map")
            .field("subspace", &self.subspace)
            .field("isolation", &self.isolation)
            .finish_non_exhaustive()
    }
}

/// The packed keys of a value in each index of a map.
type IndexKeys = Vec<BTreeSet<Vec<u8>>>;

/// What [`Map::update`] has staged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// Nothing: the value has the same bytes as before, or there is none as before.
    None,
    /// A row that was missing.
    Added,
    /// Another value of a row.
    Replaced,
    /// The removal of a row.
    Removed,
}

impl<K: Key, V, C: Codec<V>> Map<K, V, C> {
    /// Opens the map in `subspace`, without indexes, with the codec `C` and the default registry of ids. Creates it if
    /// it does not exist.
    ///
    /// # Conflicts
    /// As [`open_with`](Self::open_with).
    ///
    /// # Errors
    /// As [`open_with`](Self::open_with).
    pub async fn open<D: Database>(
        runner: &Runner<D>,
        subspace: impl Into<Subspace>,
    ) -> Result<Self>
    where
        V: 'static,
        C: Default,
    {
        let options = MapOptions::new().with_codec(C::default());
        Self::open_with(runner, subspace, options).await
    }

    /// Returns the subspace of the map.
    #[must_use]
    pub fn subspace(&self) -> &Subspace {
        &self.subspace
    }

    /// Returns a handle whose reads are snapshot reads: they add no read conflict range, so what they return may have
    /// changed by the time of the commit. [`update`](Self::update) reads as before.
    #[must_use]
    pub fn snapshot(&self) -> Self {
        Self {
            isolation: Isolation::Snapshot,
            ..self.clone()
        }
    }

    /// Returns the value of a row, or `None` if there is no row.
    ///
    /// # Conflicts
    /// Reads the row.
    ///
    /// # Errors
    /// [`Error::Corrupt`] with the key if the value does not decode, and those of [`Transaction::get`].
    ///
    /// # Cancel safety
    /// Dropping the future leaves at most a conflict range.
    pub async fn get(&self, tr: &impl Transaction, key: impl KeyRef<K>) -> Result<Option<V>> {
        let key = self.key(&key);
        let value = tr.get(&key, self.isolation).await?;
        value.map(|value| self.decode(&key, value)).transpose()
    }

    /// Returns the values of rows, in the order of these keys, `None` for those that are missing. All reads are under
    /// way at the same time.
    ///
    /// # Conflicts
    /// Reads the rows.
    ///
    /// # Errors
    /// As [`get`](Self::get), of the first row that has one.
    ///
    /// # Cancel safety
    /// Dropping the future leaves at most conflict ranges.
    pub async fn get_many(
        &self,
        tr: &impl Transaction,
        keys: impl IntoIterator<Item = impl KeyRef<K>>,
    ) -> Result<Vec<Option<V>>> {
        let keys: Vec<_> = keys.into_iter().map(|key| self.key(&key)).collect();
        let values = keys.iter().map(|key| tr.get(key, self.isolation));
        let values = try_join_all(values).await?;
        let rows = keys.iter().zip(values);
        rows.map(|(key, value)| value.map(|value| self.decode(key, value)).transpose())
            .collect()
    }

    /// Returns whether there is a row. Its value need not decode.
    ///
    /// # Conflicts
    /// Reads the row.
    ///
    /// # Errors
    /// Those of [`Transaction::get`].
    ///
    /// # Cancel safety
    /// Dropping the future leaves at most a conflict range.
    pub async fn contains(&self, tr: &impl Transaction, key: impl KeyRef<K>) -> Result<bool> {
        let value = tr.get(&self.key(&key), self.isolation).await?;
        Ok(value.is_some())
    }

    /// Stages a row, whether or not there is one with this key.
    ///
    /// # Conflicts
    /// Writes the row. A map without indexes reads nothing: two transactions that set the same row do not conflict, and
    /// the later one holds. With indexes, reads the row, their records and, of a unique one, the entries with the keys
    /// that are new, and writes the entries that change.
    ///
    /// # Errors
    /// Before anything is staged:
    /// - [`Error::Encode`], [`Error::ValueTooLarge`] and [`MapError::KeyTooLarge`]
    /// - [`MapError::Taken`] if another row has a key in a unique index
    /// - [`MapError::IndexChanged`], [`MapError::IndexRemoved`] and [`MapError::IndexUnknown`] if another process has
    ///   changed the indexes of the map
    /// - those of the reads
    ///
    /// A present value that does not decode is replaced. Its entries are not known, and stay: [`verify`](Self::verify)
    /// names them, and an index that is [built](Self::build) again has none of them.
    ///
    /// # Cancel safety
    /// Dropping the future stages nothing, or all of it. It may leave conflict ranges.
    pub async fn set(&self, tr: &impl Transaction, key: impl KeyRef<K>, value: &V) -> Result<()> {
        let place = self.writable(&key)?;
        let bytes = self.encode(&place, value)?;
        if self.indexes.is_empty() {
            tr.set(&place, &bytes);
            return Ok(());
        }
        let (_, old) = self.read_to_write(tr, &place).await?;
        let old = self.index_keys(old.unwrap_or(None).as_ref());
        let new = self.index_keys(Some(value));
        self.write(tr, &place, &key, Some(bytes), (old, new)).await
    }

    /// Reads a row, changes it, and returns what this has staged. `change` gets the value, or `None` if there is no
    /// row, and returns the new value, or `None` for none.
    ///
    /// ```
    /// use keyspace::{Map, Runner};
    /// use keyspace::map::Change;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let runner = Runner::new(keyspace::open("memory:")?);
    /// let visits = &Map::<String, u64>::open(&runner, "visits").await?;
    /// let visit = async |tr| visits.update(&tr, "ann", |count| Some(count.unwrap_or(0) + 1)).await;
    /// assert_eq!(runner.run(visit).await?, Change::Added);
    /// assert_eq!(runner.run(visit).await?, Change::Replaced);
    /// assert_eq!(runner.run(async |tr| visits.get(&tr, "ann").await).await?, Some(2));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Conflicts
    /// Reads the row, also on a handle of [`snapshot`](Self::snapshot), and writes it if it changes. With indexes, as
    /// [`set`](Self::set).
    ///
    /// # Errors
    /// As [`get`](Self::get) and [`set`](Self::set). Nothing is staged then.
    ///
    /// # Cancel safety
    /// As [`set`](Self::set).
    pub async fn update(
        &self,
        tr: &impl Transaction,
        key: impl KeyRef<K>,
        change: impl FnOnce(Option<V>) -> Option<V> + Send,
    ) -> Result<Change>
    where
        V: Send,
    {
        let place = self.writable(&key)?;
        let (stored, old) = self.read_to_write(tr, &place).await?;
        let old = old?;
        let keys = self.index_keys(old.as_ref());
        let new = change(old);
        let keys = (keys, self.index_keys(new.as_ref()));
        let bytes = new.map(|new| self.encode(&place, &new)).transpose()?;
        let change = match (&stored, &bytes) {
            (None, None) => Change::None,
            (Some(stored), Some(bytes)) if stored == bytes => Change::None,
            (None, Some(_)) => Change::Added,
            (Some(_), Some(_)) => Change::Replaced,
            (Some(_), None) => Change::Removed,
        };
        if change != Change::None {
            self.write(tr, &place, &key, bytes, keys).await?;
        }
        Ok(change)
    }

    /// Stages the removal of a row, whether or not there is one with this key.
    ///
    /// # Conflicts
    /// Writes the row. A map without indexes reads nothing; with indexes, as [`set`](Self::set).
    ///
    /// # Errors
    /// As [`set`](Self::set).
    ///
    /// # Cancel safety
    /// As [`set`](Self::set).
    pub async fn remove(&self, tr: &impl Transaction, key: impl KeyRef<K>) -> Result<()> {
        let place = self.writable(&key)?;
        if self.indexes.is_empty() {
            tr.clear(&place);
            return Ok(());
        }
        let (_, old) = self.read_to_write(tr, &place).await?;
        let old = self.index_keys(old.unwrap_or(None).as_ref());
        let none = self.index_keys(None);
        self.write(tr, &place, &key, None, (old, none)).await
    }

    /// Reads what a write of a row must know: its stored bytes, and its value unless it does not decode. Checks that
    /// the handle knows the indexes of the map.
    async fn read_to_write(
        &self,
        tr: &impl Transaction,
        place: &[u8],
    ) -> Result<(Option<Bytes>, Result<Option<V>>)> {
        let stored = tr.get(place, Isolation::Serializable);
        if !self.indexes.is_empty() {
            self.check_indexes(tr).await?;
        }
        let stored = stored.await?;
        let value = stored.clone().map(|stored| self.decode(place, stored));
        Ok((stored, value.transpose()))
    }

    /// Returns the packed keys of a value in each index.
    fn index_keys(&self, value: Option<&V>) -> IndexKeys {
        let indexes = self.indexes.iter();
        let keys = indexes.map(|index| value.map(|value| index.keys_of(value)));
        keys.map(Option::unwrap_or_default).collect()
    }

    /// Stages the change of a row, and that of its entries from those of the old value to those of the new one.
    async fn write(
        &self,
        tr: &impl Transaction,
        place: &[u8],
        key: &impl KeyRef<K>,
        value: Option<Vec<u8>>,
        (old, new): (IndexKeys, IndexKeys),
    ) -> Result<()> {
        let row = &key.pack_element();
        let mut added = Vec::new();
        let mut removed = Vec::new();
        for ((index, old), new) in self.indexes.iter().zip(&old).zip(&new) {
            let entries = &index.entries(&self.subspace);
            for key in new.difference(old) {
                if index.is_unique() {
                    index.check_unique(tr, entries, key, row).await?;
                }
                added.push(entry(entries, key, row)?);
            }
            let removed_keys = old.difference(new);
            removed.extend(removed_keys.map(|key| [entries.bytes(), key, row].concat()));
        }
        removed.iter().for_each(|entry| tr.clear(entry));
        added.iter().for_each(|entry| tr.set(entry, b""));
        match value {
            Some(value) => tr.set(place, &value),
            None => tr.clear(place),
        }
        Ok(())
    }

    /// Returns all rows, which [`Rows`] reads in one or the other direction, at once or in pages.
    #[must_use]
    pub fn rows(&self) -> Rows<'_, K, V, C> {
        let (begin, end) = self.rows.range();
        Rows::between(self, begin, end)
    }

    /// Returns the rows whose keys are within bounds, none if the bounds are inverted.
    #[must_use]
    pub fn range(&self, bounds: impl RangeBounds<K>) -> Rows<'_, K, V, C> {
        let (first, last) = self.rows.range();
        let begin = match bounds.start_bound() {
            Bound::Included(key) => self.rows.pack(key),
            Bound::Excluded(key) => key_after(&self.rows.pack(key)),
            Bound::Unbounded => first,
        };
        let end = match bounds.end_bound() {
            Bound::Included(key) => key_after(&self.rows.pack(key)),
            Bound::Excluded(key) => self.rows.pack(key),
            Bound::Unbounded => last,
        };
        Rows::between(self, begin.clone(), end.max(begin))
    }

    /// Returns the rows whose keys begin with the elements of a tuple.
    #[must_use]
    pub fn beginning_with(&self, elements: &impl TuplePack) -> Rows<'_, K, V, C> {
        let (begin, end) = self.rows.subspace(elements).range();
        Rows::between(self, begin, end)
    }

    fn key(&self, key: &impl KeyRef<K>) -> Vec<u8> {
        key.pack_in(&self.rows)
    }

    /// Returns the key of a row, unless it is too large.
    fn writable(&self, key: &impl KeyRef<K>) -> Result<Vec<u8>> {
        bounded(self.key(key))
    }

    /// Returns the key of a row as one packed element.
    fn element(&self, place: &[u8]) -> Result<Vec<u8>> {
        let key = self.rows.unpack::<K>(place);
        let key = key.map_err(|error| Error::corrupt(place, error.to_string()))?;
        Ok((key,).pack_to_vec())
    }

    /// Returns the key of a row whose packed element this is.
    fn place(&self, element: &[u8]) -> Result<Vec<u8>> {
        let key = tuple::unpack::<(K,)>(element);
        let (key,) = key.map_err(|error| Error::corrupt(element, error.to_string()))?;
        Ok(self.rows.pack(&key))
    }

    fn encode(&self, key: &[u8], value: &V) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        codec::encode(&self.codec, value, &mut bytes)?;
        if bytes.len() > MAX_VALUE_BYTES {
            return Err(Error::ValueTooLarge {
                key: Bytes::copy_from_slice(key),
                bytes: bytes.len(),
                code: Code::VALUE_TOO_LARGE,
            });
        }
        Ok(bytes)
    }

    fn decode(&self, key: &[u8], value: Bytes) -> Result<V> {
        let decoded = codec::decode(&self.codec, value);
        decoded.map_err(|error| error.at(key.to_vec()))
    }
}

/// Returns the key of an entry of a row, unless it is too large. The key of the index and that of the row are packed.
fn entry(entries: &Subspace, key: &[u8], row: &[u8]) -> Result<Vec<u8>> {
    bounded([entries.bytes(), key, row].concat())
}

fn bounded(key: Vec<u8>) -> Result<Vec<u8>> {
    if key.len() > MAX_KEY_BYTES {
        let code = Code::KEY_TOO_LARGE;
        let bytes = key.len();
        return Err(MapError::KeyTooLarge { bytes, code }.into());
    }
    Ok(key)
}

//! Maps: an application's own data as typed rows, in the transactions of its queues.
//!
//! A [`Map`] stages in the caller's transaction, as every recipe does. Its keys are tuples, which keep their order, so
//! ranges of keys are ranges of the store. Its values go through a [codec](crate::codec).
//!
//! # Layout
//!
//! ```text
//! map = the subspace of the map
//!
//! (map, "m") = settings, written when the map is first opened
//! (map, "r", key..) = the value, as the codec writes it
//!     key     the elements of the key
//!
//! settings
//!     0       format, 01
//!     next    length of the name of the codec in a byte, then the name, UTF-8
//! ```

mod cursor;
mod key;
mod rows;
mod settings;

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Bound, RangeBounds};

use bytes::Bytes;
use foundationdb_tuple::{Subspace, TuplePack};
use futures::future::try_join_all;

pub use self::cursor::Cursor;
pub use self::key::{Key, KeyRef};
pub use self::rows::{Page, Rows};
use self::settings::MapSettings;
pub use crate::contract::error::MapError;
use crate::contract::error::{Code, Error, Result};
use crate::contract::limits::{MAX_KEY_BYTES, MAX_VALUE_BYTES};
use crate::contract::transaction::{Database, Isolation, Transaction, key_after};
use crate::recipes::recipe::{OpenOptions, SettingsDiffer};
use crate::run::Runner;
use crate::values::codec::{self, Codec, MessagePack};

crate::parts! {
    /// The parts of a map.
    pub(crate) enum MapPart {
        Settings "m" "settings of a map",
        Rows "r" "row of a map",
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
///             orders.set(&tr, &("ann".into(), number), &order)?;
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
    types: PhantomData<fn() -> (K, V)>,
}

impl<K, V, C: Clone> Clone for Map<K, V, C> {
    fn clone(&self) -> Self {
        Self {
            subspace: self.subspace.clone(),
            rows: self.rows.clone(),
            codec: self.codec.clone(),
            isolation: self.isolation,
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
    /// Opens the map in `subspace` with the codec `C` and the default registry of ids. Creates it if it does not exist.
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
        C: Default,
    {
        let options = OpenOptions::new().with_codec(C::default());
        Self::open_with(runner, subspace, options).await
    }

    /// Opens the map in `subspace`, and creates it if it does not exist. The options contain the codec, and a registry
    /// of ids in which the map is registered as a `map`.
    ///
    /// # Conflicts
    /// As [`Ids::register`](crate::Ids::register). Also reads the settings, and writes them if there are none.
    ///
    /// # Errors
    /// - [`MapError::Codec`] if the map was created with another codec
    /// - [`Error::Overlap`] if the subspace overlaps that of a recipe; nothing was changed
    /// - [`Error::Corrupt`] if the settings do not decode
    /// - those of [`Runner::run`]
    ///
    /// # Cancel safety
    /// If the future is dropped, the map may or may not have been created.
    pub async fn open_with<D: Database>(
        runner: &Runner<D>,
        subspace: impl Into<Subspace>,
        options: OpenOptions<C>,
    ) -> Result<Self> {
        let subspace = subspace.into();
        let settings = MapSettings::new(C::NAME);
        let key = subspace.pack(&MapPart::Settings);
        let opened: Result<_, OpenMapError> =
            options.open(runner, &subspace, &key, &settings).await;
        opened.map_err(|OpenMapError(error)| error)?;
        Ok(Self {
            rows: subspace.subspace(&MapPart::Rows),
            codec: options.codec().clone(),
            isolation: Isolation::Serializable,
            subspace,
            types: PhantomData,
        })
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
    /// Writes the row, and reads nothing: two transactions that set the same row do not conflict, and the later one
    /// holds.
    ///
    /// # Errors
    /// Before anything is staged: [`Error::Encode`], [`Error::ValueTooLarge`], and [`MapError::KeyTooLarge`].
    pub fn set(&self, tr: &impl Transaction, key: impl KeyRef<K>, value: &V) -> Result<()> {
        let key = self.writable(&key)?;
        let value = self.encode(&key, value)?;
        tr.set(&key, &value);
        Ok(())
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
    /// Reads the row, also on a handle of [`snapshot`](Self::snapshot), and writes it if it changes.
    ///
    /// # Errors
    /// As [`get`](Self::get) and [`set`](Self::set). Nothing is staged then.
    ///
    /// # Cancel safety
    /// Dropping the future leaves at most a conflict range.
    pub async fn update(
        &self,
        tr: &impl Transaction,
        key: impl KeyRef<K>,
        change: impl FnOnce(Option<V>) -> Option<V>,
    ) -> Result<Change> {
        let key = self.writable(&key)?;
        let old = tr.get(&key, Isolation::Serializable).await?;
        let value = old.clone().map(|old| self.decode(&key, old)).transpose()?;
        let Some(new) = change(value) else {
            if old.is_none() {
                return Ok(Change::None);
            }
            tr.clear(&key);
            return Ok(Change::Removed);
        };
        let new = self.encode(&key, &new)?;
        let change = match old {
            None => Change::Added,
            Some(old) if old == new => return Ok(Change::None),
            Some(_) => Change::Replaced,
        };
        tr.set(&key, &new);
        Ok(change)
    }

    /// Stages the removal of a row, whether or not there is one with this key.
    ///
    /// # Conflicts
    /// Writes the row, and reads nothing.
    ///
    /// # Errors
    /// [`MapError::KeyTooLarge`].
    pub fn remove(&self, tr: &impl Transaction, key: impl KeyRef<K>) -> Result<()> {
        tr.clear(&self.writable(&key)?);
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
        let key = self.key(key);
        if key.len() > MAX_KEY_BYTES {
            let code = Code::KEY_TOO_LARGE;
            let bytes = key.len();
            return Err(MapError::KeyTooLarge { bytes, code }.into());
        }
        Ok(key)
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

/// An error of opening a map, which is one of this crate.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
struct OpenMapError(#[from] Error);

impl From<Box<SettingsDiffer<MapSettings>>> for OpenMapError {
    fn from(differ: Box<SettingsDiffer<MapSettings>>) -> Self {
        let SettingsDiffer {
            subspace,
            stored,
            given,
        } = *differ;
        let error = MapError::Codec {
            subspace,
            stored: stored.codec,
            given: given.codec,
        };
        Self(error.into())
    }
}

//! Opening a map.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use foundationdb_tuple::Subspace;

use super::index::{Definition, IndexRecord, MAX_INDEX_NAME_BYTES, records};
use super::key::Key;
use super::settings::MapSettings;
use super::{Index, Map, MapPart};
use crate::contract::error::{Error, MapError, Result};
use crate::contract::selector::RangeQuery;
use crate::contract::transaction::{Database, Isolation, Transaction};
use crate::recipes::ids::Ids;
use crate::recipes::recipe::{OpenOptions, SettingsDiffer};
use crate::run::{Runner, Tx};
use crate::values::codec::{Codec, MessagePack};

/// The codec, the registry of ids and the indexes that a map is opened with.
pub struct MapOptions<V, C = MessagePack> {
    open: OpenOptions<C>,
    indexes: Vec<Arc<Definition<V>>>,
    builds_changed: bool,
}

impl<V, C: fmt::Debug> fmt::Debug for MapOptions<V, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let indexes: Vec<_> = self.indexes.iter().map(|index| index.name()).collect();
        f.debug_struct("MapOptions")
            .field("open", &self.open)
            .field("indexes", &indexes)
            .finish_non_exhaustive()
    }
}

impl<V> Default for MapOptions<V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<V> MapOptions<V> {
    /// Returns options with [`MessagePack`], the [default registry](Ids::default), and no index.
    #[must_use]
    pub fn new() -> Self {
        Self {
            open: OpenOptions::new(),
            indexes: Vec::new(),
            builds_changed: false,
        }
    }
}

impl<V, C> MapOptions<V, C> {
    /// Sets the codec of values.
    #[must_use]
    pub fn with_codec<Other>(self, codec: Other) -> MapOptions<V, Other> {
        MapOptions {
            open: self.open.with_codec(codec),
            indexes: self.indexes,
            builds_changed: self.builds_changed,
        }
    }

    /// Sets the registry of ids.
    #[must_use]
    pub fn with_ids(mut self, ids: Ids) -> Self {
        self.open = self.open.with_ids(ids);
        self
    }

    /// Adds an index.
    #[must_use]
    pub fn with_index<I: Key>(mut self, index: &Index<V, I>) -> Self
    where
        V: 'static,
    {
        self.indexes.push(index.definition().clone());
        self
    }

    /// Clears the indexes whose stored version is another one, or that are unique now and were not, or the other way
    /// round. They must be [built](Map::build) again. Without this, opening them is refused.
    #[must_use]
    pub fn with_changed_indexes(mut self) -> Self {
        self.builds_changed = true;
        self
    }

    /// Checks the names of the indexes.
    fn check(&self) -> Result<()> {
        for (position, index) in self.indexes.iter().enumerate() {
            let name = index.name();
            if name.is_empty() || name.len() > MAX_INDEX_NAME_BYTES {
                let bytes = name.len();
                return Err(MapError::IndexName { bytes }.into());
            }
            let mut before = self.indexes[..position].iter();
            if before.any(|other| other.name() == name) {
                let index = name.to_owned();
                return Err(MapError::IndexTwice { index }.into());
            }
        }
        Ok(())
    }

    /// Stages the records of indexes that are new or changed.
    async fn stage_indexes(&self, tr: &impl Transaction, map: &Subspace) -> Result<()> {
        let stored = records(tr, map, Isolation::Serializable).await?;
        let is_known = |name: &String| self.indexes.iter().any(|index| index.name() == name);
        if let Some((unknown, _)) = stored.iter().find(|(name, _)| !is_known(name)) {
            let index = unknown.clone();
            return Err(MapError::IndexUnknown { index }.into());
        }
        let (begin, end) = map.subspace(&MapPart::Rows).range();
        for index in &self.indexes {
            let record = stored.iter().find(|(name, _)| name == index.name());
            let record = record.map(|(_, record)| *record);
            if record.is_some() {
                match index.check(record, false) {
                    Err(Error::Map(_)) if self.builds_changed => {}
                    checked => {
                        checked?;
                        continue;
                    }
                }
            }
            let (first, last) = index.entries(map).range();
            tr.clear_range(&first, &last);
            tr.clear(&map.pack(&(MapPart::Progress, index.name())));
            let row = RangeQuery::keys(begin.clone(), end.clone()).limit(1);
            let rows = tr.get_range(&row, Isolation::Serializable).await?.rows;
            // An index of a map without rows has all entries.
            let key = IndexRecord::key(map, index.name());
            tr.set(&key, &index.record(rows.is_empty()).encode());
        }
        Ok(())
    }
}

impl<K: Key, V, C: Codec<V>> Map<K, V, C> {
    /// Opens the map in `subspace`, and creates it if it does not exist. The options contain the codec, the indexes,
    /// and a registry of ids in which the map is registered as a `map`.
    ///
    /// An index of a map that has rows must be [built](Self::build) before it finds any. A process that has opened the
    /// map before, without indexes, does not know it, and writes no entries: deploy the index to all processes that
    /// write, and build it then.
    ///
    /// # Conflicts
    /// As [`Ids::register`](crate::Ids::register). Also reads the settings and the records of the indexes, and writes
    /// those that are missing. For a new index, reads whether the map has rows.
    ///
    /// # Errors
    /// Nothing was changed:
    /// - [`MapError::Codec`] if the map was created with another codec
    /// - [`MapError::IndexName`] and [`MapError::IndexTwice`] for the name of an index
    /// - [`MapError::IndexUnknown`] if the map has an index that is not given
    /// - [`MapError::IndexChanged`] if an index was built with another version of its function
    /// - [`Error::Overlap`] if the subspace overlaps that of a recipe
    /// - [`Error::Corrupt`] if a record does not decode
    /// - those of [`Runner::run`]
    ///
    /// # Cancel safety
    /// If the future is dropped, the map may or may not have been created.
    pub async fn open_with<D: Database>(
        runner: &Runner<D>,
        subspace: impl Into<Subspace>,
        options: MapOptions<V, C>,
    ) -> Result<Self>
    where
        V: 'static,
    {
        options.check()?;
        let subspace = subspace.into();
        let settings = MapSettings::new(C::NAME);
        let key = subspace.pack(&MapPart::Settings);
        let opened = options.open.open(runner, &subspace, &key, &settings);
        let opened: Result<_, OpenMapError> = opened.await;
        opened.map_err(|OpenMapError(error)| error)?;
        let stage = |tr: Tx<D::Transaction>| {
            let options = &options;
            let subspace = &subspace;
            async move { options.stage_indexes(&tr, subspace).await }
        };
        runner.run(stage).await?;
        let mut indexes = options.indexes;
        indexes.sort_by(|one, other| one.name().cmp(other.name()));
        Ok(Self {
            rows: subspace.subspace(&MapPart::Rows),
            codec: options.open.codec().clone(),
            isolation: Isolation::Serializable,
            indexes: indexes.into(),
            subspace,
            types: PhantomData,
        })
    }

    /// Checks that the map has exactly the indexes that the handle knows.
    pub(super) async fn check_indexes(&self, tr: &impl Transaction) -> Result<()> {
        let mut stored = records(tr, &self.subspace, Isolation::Serializable).await?;
        for index in &*self.indexes {
            let found = stored.iter().position(|(name, _)| name == index.name());
            let record = found.map(|found| stored.swap_remove(found).1);
            index.check(record, false)?;
        }
        match stored.pop() {
            None => Ok(()),
            Some((index, _)) => Err(MapError::IndexUnknown { index }.into()),
        }
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

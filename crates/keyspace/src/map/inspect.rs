//! How a map stands, also for tools that know neither its types nor its indexes.

use foundationdb_tuple::Subspace;

use super::build::Progress;
use super::index::records;
use super::key::Key;
use super::settings::MapSettings;
use super::{Map, MapPart};
use crate::contract::error::Result;
use crate::contract::transaction::{Isolation, RowCount, Transaction, count_rows};
use crate::recipes::parts::Part;
use crate::recipes::recipe::stored_settings;
use crate::values::codec::Codec;

/// How a map stands.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MapState {
    /// The name of the codec of its values.
    pub codec: String,
    /// How many rows it has, as far as they were counted.
    pub rows: RowCount,
    /// Its indexes, by their names.
    pub indexes: Vec<IndexStatus>,
}

/// The state of an index of a map.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct IndexStatus {
    /// The name of the index.
    pub name: String,
    /// The version of its function.
    pub version: u32,
    /// Whether at most one row has a key.
    pub is_unique: bool,
    /// How far it is built, or `None` if it is built.
    pub building: Option<Building>,
}

/// How far an index is built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Building {
    /// How many rows were looked at.
    pub rows: u64,
}

/// Returns how the map in a subspace stands, or `None` if there is no map. Counts its rows up to one with which keys
/// and values reach `max_bytes`.
///
/// # Conflicts
/// Reads by snapshot.
///
/// # Errors
/// [`Error::Corrupt`](crate::Error::Corrupt) if a record does not decode, and those of the reads.
///
/// # Cancel safety
/// Dropping the future changes nothing.
pub async fn inspect(
    tr: &impl Transaction,
    map: &Subspace,
    max_bytes: usize,
) -> Result<Option<MapState>> {
    let key = map.pack(&MapPart::Settings);
    let Some(settings) = stored_settings::<MapSettings>(tr, &key, Isolation::Snapshot).await?
    else {
        return Ok(None);
    };
    let (begin, end) = map.subspace(&MapPart::Rows).range();
    Ok(Some(MapState {
        codec: settings.codec,
        rows: count_rows(tr, begin, end, max_bytes).await?,
        indexes: statuses(tr, map, Isolation::Snapshot).await?,
    }))
}

/// Returns what a map keeps under a key, in words, or `None` if it keeps nothing there.
#[must_use]
pub fn describe_key(map: &Subspace, key: &[u8]) -> Option<&'static str> {
    MapPart::of(map, key).map(MapPart::text)
}

/// Returns whether the value under a key of a map is one of the application, as the map's codec has written it.
#[must_use]
pub fn is_row(map: &Subspace, key: &[u8]) -> bool {
    MapPart::of(map, key) == Some(MapPart::Rows)
}

async fn statuses(
    tr: &impl Transaction,
    map: &Subspace,
    isolation: Isolation,
) -> Result<Vec<IndexStatus>> {
    let mut statuses = Vec::new();
    for (name, record) in records(tr, map, isolation).await? {
        let mut building = None;
        if !record.is_ready {
            let key = map.pack(&(MapPart::Progress, &*name));
            let Progress { rows, .. } = Progress::read(tr, &key, isolation).await?;
            building = Some(Building { rows });
        }
        statuses.push(IndexStatus {
            name,
            version: record.version,
            is_unique: record.is_unique,
            building,
        });
    }
    Ok(statuses)
}

impl<K: Key, V, C: Codec<V>> Map<K, V, C> {
    /// Returns the state of each index, by their names.
    ///
    /// # Conflicts
    /// Reads the records of the indexes, and their progress.
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::Error::Corrupt) if one of them does not decode, and those of the reads.
    ///
    /// # Cancel safety
    /// Dropping the future leaves at most conflict ranges.
    pub async fn index_statuses(&self, tr: &impl Transaction) -> Result<Vec<IndexStatus>> {
        statuses(tr, &self.subspace, self.isolation).await
    }
}

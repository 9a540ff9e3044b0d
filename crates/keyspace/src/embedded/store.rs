//! The rows on redb: one write transaction per batch of commits, one shared read table per state.
//!
//! | table | key | value |
//! |---|---|---|
//! | `keyspace.rows` | a key of the keyspace | its value |
//! | `keyspace.meta` | `store` | [`Meta`]: format (4 bytes), last commit version (8), store id (16), big-endian |

use std::panic::{self, AssertUnwindSafe};
use std::path::Path;

use bytes::Bytes;
use redb::{Database, ReadableDatabase, StorageBackend, Table, TableDefinition};

use super::effect::{Effect, Values};
use super::refusal::refusal;
use crate::error::{Error, OpenError};
use crate::limits::RECOVERY_VERSIONS;

const ROWS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("keyspace.rows");
const META: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("keyspace.meta");
const META_KEY: &str = "store";

/// The rows of one state.
pub(super) type Rows = redb::ReadOnlyTable<&'static [u8], &'static [u8]>;

/// What a store knows of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Meta {
    /// The newest commit version, or the version the clock began at when the store was opened.
    last_version: i64,
    /// What tells this store from every other.
    id: [u8; 16],
}

impl Meta {
    /// The newest format that this version reads, and the one it writes.
    const FORMAT: u32 = 1;

    /// The last version from which a store can go on: no clock gets that far.
    const MAX_VERSION: i64 = i64::MAX / 2;

    fn encode(&self) -> [u8; 28] {
        let mut bytes = [0; 28];
        bytes[..4].copy_from_slice(&Self::FORMAT.to_be_bytes());
        bytes[4..12].copy_from_slice(&self.last_version.to_be_bytes());
        bytes[12..].copy_from_slice(&self.id);
        bytes
    }

    fn decode(bytes: &[u8], path: &Path) -> Result<Self, OpenError> {
        let corrupt =
            |reason: String| OpenError::Store(Error::corrupt(META_KEY.as_bytes(), reason));
        let (format, rest) = bytes
            .split_first_chunk()
            .ok_or_else(|| corrupt(format!("expected a format number, found {bytes:02x?}")))?;
        match u32::from_be_bytes(*format) {
            Self::FORMAT => {}
            0 => {
                return Err(corrupt(
                    "expected a format number from 1, found 0".to_owned(),
                ));
            }
            found => {
                return Err(OpenError::NewerFormat {
                    path: path.to_owned(),
                    found,
                    supported: Self::FORMAT,
                });
            }
        }
        let (last_version, id) = rest.split_first_chunk().unwrap_or((&[0xff; 8], &[]));
        let last_version = i64::from_be_bytes(*last_version);
        match id.try_into() {
            Ok(id) if (0..=Self::MAX_VERSION).contains(&last_version) => {
                Ok(Self { last_version, id })
            }
            _ => Err(corrupt(format!(
                "expected a version and an id in 24 bytes, found {rest:02x?}"
            ))),
        }
    }
}

/// How far a batch has come when [`Store::apply`] returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flush {
    /// In memory: the next batch that is flushed takes it along.
    Later,
    /// On disk, after one flush that data and commit record share; checksums tell whether both
    /// arrived.
    Once,
    /// On disk, after one flush for the data and one for the commit record, with what a recovery
    /// needs to be instant.
    Twice,
}

/// Calls redb, which panics on some pages that do not hold what it wrote. That is a damaged file,
/// and no reason to take the process down.
///
/// What the panic leaves behind is not used again: a file that was being opened is closed, a store
/// that was open ends.
pub(super) fn guarded<T>(call: impl FnOnce() -> Result<T, redb::Error>) -> Result<T, redb::Error> {
    panic::catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        let text = text.unwrap_or("a page does not hold what was written");
        Err(redb::Error::Corrupted(text.to_owned()))
    })
}

/// The tables of a store.
pub(super) struct Store {
    database: Database,
    meta: Meta,
}

impl Store {
    /// Makes a store in an empty backend.
    pub(super) fn create(
        backend: impl StorageBackend,
        cache_bytes: usize,
        id: [u8; 16],
    ) -> Result<Self, redb::Error> {
        let last_version = RECOVERY_VERSIONS;
        let mut store = Self {
            database: open_database(backend, cache_bytes)?,
            meta: Meta { last_version, id },
        };
        store.apply(last_version, &[], Flush::Twice)?;
        Ok(store)
    }

    /// Opens the store in a backend, and leaves behind every version that an earlier opening may
    /// have given, also to commits that were acknowledged and then lost for want of a flush.
    pub(super) fn open(
        backend: impl StorageBackend,
        cache_bytes: usize,
        path: &Path,
    ) -> Result<Self, OpenError> {
        let refused = |error| refusal(path, error);
        let opened = guarded(|| {
            let database = open_database(backend, cache_bytes)?;
            let meta = read_meta(&database)?;
            Ok((database, meta))
        });
        let (database, meta) = opened.map_err(refused)?;
        let meta = Meta::decode(&meta, path)?;
        let mut store = Self { database, meta };
        let base = meta.last_version + RECOVERY_VERSIONS;
        store.apply(base, &[], Flush::Once).map_err(refused)?;
        Ok(store)
    }

    /// Returns the version given to the last [`apply`](Self::apply).
    pub(super) fn last_version(&self) -> i64 {
        self.meta.last_version
    }

    /// Applies effects in order, and makes `version` the newest commit version.
    pub(super) fn apply(
        &mut self,
        version: i64,
        effects: &[Effect],
        flush: Flush,
    ) -> Result<(), redb::Error> {
        self.meta.last_version = version;
        guarded(|| {
            let mut transaction = self.database.begin_write()?;
            match flush {
                Flush::Later => transaction.set_durability(redb::Durability::None)?,
                Flush::Once => {}
                Flush::Twice => transaction.set_quick_repair(true),
            }
            let mut rows = transaction.open_table(ROWS)?;
            for effect in effects {
                write(&mut rows, effect)?;
            }
            drop(rows);
            let meta = self.meta.encode();
            transaction.open_table(META)?.insert(META_KEY, &meta[..])?;
            Ok(transaction.commit()?)
        })
    }

    /// Reads the values of keys as the last batch left them.
    pub(super) fn values<'a>(
        &self,
        keys: impl Iterator<Item = &'a Bytes>,
    ) -> Result<Values, redb::Error> {
        let mut keys = keys.peekable();
        if keys.peek().is_none() {
            return Ok(Values::new());
        }
        guarded(|| {
            let rows = self.rows()?;
            keys.map(|key| {
                let value = rows.get(&key[..])?;
                let value = value.map(|value| Bytes::copy_from_slice(value.value()));
                Ok((key.clone(), value))
            })
            .collect()
        })
    }

    /// Returns the rows as the last batch left them.
    pub(super) fn rows(&self) -> Result<Rows, redb::Error> {
        Ok(self.database.begin_read()?.open_table(ROWS)?)
    }
}

fn open_database(
    backend: impl StorageBackend,
    cache_bytes: usize,
) -> Result<Database, redb::Error> {
    let mut builder = Database::builder();
    builder.set_cache_size(cache_bytes);
    Ok(builder.create_with_backend(backend)?)
}

fn read_meta(database: &Database) -> Result<Vec<u8>, redb::Error> {
    let table = database.begin_read()?.open_table(META)?;
    let meta = table.get(META_KEY)?;
    Ok(meta.map_or_else(Vec::new, |meta| meta.value().to_vec()))
}

fn write(rows: &mut Table<'_, &[u8], &[u8]>, effect: &Effect) -> Result<(), redb::StorageError> {
    match effect {
        Effect::Set { key, value } => {
            rows.insert(&key[..], &value[..])?;
        }
        // Removing one row is much cheaper than walking a range that holds one.
        Effect::Clear { key } => {
            rows.remove(&key[..])?;
        }
        Effect::ClearRange { begin, end } => {
            rows.retain_in(&begin[..]..&end[..], |_, _| false)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const META: Meta = Meta {
        last_version: 0x0102,
        id: [0xee; 16],
    };

    fn decode(bytes: &[u8]) -> std::result::Result<Meta, OpenError> {
        Meta::decode(bytes, Path::new("queue.redb"))
    }

    #[test]
    fn the_record_of_a_store_has_these_bytes() {
        let golden = [&[0, 0, 0, 1][..], &[0, 0, 0, 0, 0, 0, 1, 2], &[0xee; 16]].concat();
        assert_eq!(META.encode()[..], golden);
        assert_eq!(decode(&golden).unwrap(), META);
    }

    #[test]
    fn a_record_of_any_other_shape_is_corrupt() {
        let good = META.encode();
        let mut negative = good;
        negative[4] = 0x80;
        let mut no_version_left = good;
        no_version_left[4] = 0x7f;
        let mut no_format = good;
        no_format[3] = 0;
        let too_long = [&good[..], &[0]].concat();
        let mut bad: Vec<&[u8]> = vec![&negative, &no_version_left, &no_format, &too_long];
        bad.extend((0..good.len()).map(|len| &good[..len]));
        for bytes in bad {
            let error = decode(bytes).unwrap_err();
            assert!(
                matches!(&error, OpenError::Store(Error::Corrupt { reason, .. }) if reason.starts_with("expected")),
                "{bytes:02x?}: {error}"
            );
        }
    }

    #[test]
    fn a_newer_format_is_named_whatever_follows_it() {
        let error = decode(&[0, 0, 0, 2, 99]).unwrap_err();
        let text = "store queue.redb has format 2, this version reads up to 1: upgrade the library";
        assert_eq!(error.to_string(), text);
    }
}

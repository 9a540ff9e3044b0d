//! The rows on redb.
//!
//! | table | key | value |
//! |---|---|---|
//! | `keyspace.rows` | a key of the keyspace | its value |
//! | `keyspace.meta` | `store` | [what the store knows of itself](super::meta) |

use std::panic::{self, AssertUnwindSafe};
use std::path::Path;

use bytes::Bytes;
use redb::{Database, ReadableDatabase, StorageBackend, Table, TableDefinition, WriteTransaction};

use super::effect::Values;
use super::log::effect::Effect;
use super::meta::{META_KEY, Meta};
use super::refusal::refusal;
use crate::error::OpenError;

const ROWS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("keyspace.rows");
const META: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("keyspace.meta");

/// The rows of one state.
pub(super) type Rows = redb::ReadOnlyTable<&'static [u8], &'static [u8]>;

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
pub(super) struct Tree {
    database: Database,
}

impl Tree {
    /// Makes the tree of a new store in an empty backend.
    pub(super) fn create(
        backend: impl StorageBackend,
        cache_bytes: usize,
        meta: &Meta,
    ) -> Result<Self, redb::Error> {
        let database = open_database(backend, cache_bytes)?;
        let tree = Self { database };
        tree.checkpoint(meta)?;
        Ok(tree)
    }

    /// Opens a tree, and reads what the store at `path` knows of itself.
    pub(super) fn open(
        backend: impl StorageBackend,
        cache_bytes: usize,
        path: &Path,
    ) -> Result<(Self, Meta), OpenError> {
        let opened = guarded(|| {
            let database = open_database(backend, cache_bytes)?;
            let meta = read_meta(&database)?;
            Ok((database, meta))
        });
        let (database, meta) = opened.map_err(|error| refusal(path, error))?;
        Ok((Self { database }, Meta::decode(&meta, path)?))
    }

    /// Applies effects in order and writes `meta`. With no durability, the next
    /// [checkpoint](Self::checkpoint) makes them durable; redb may do so earlier, hence the record.
    pub(super) fn apply<'a>(
        &self,
        effects: impl IntoIterator<Item = Effect<'a>>,
        meta: &Meta,
        durability: redb::Durability,
    ) -> Result<(), redb::Error> {
        self.commit(effects, meta, |transaction| {
            Ok(transaction.set_durability(durability)?)
        })
    }

    /// Writes `meta` and everything that was applied to the file, with what it takes to open it at once after
    /// a crash.
    pub(super) fn checkpoint(&self, meta: &Meta) -> Result<(), redb::Error> {
        self.commit([], meta, |transaction| {
            transaction.set_quick_repair(true);
            Ok(())
        })
    }

    fn commit<'a>(
        &self,
        effects: impl IntoIterator<Item = Effect<'a>>,
        meta: &Meta,
        prepare: impl FnOnce(&mut WriteTransaction) -> Result<(), redb::Error>,
    ) -> Result<(), redb::Error> {
        guarded(|| {
            let mut transaction = self.database.begin_write()?;
            prepare(&mut transaction)?;
            let mut rows = transaction.open_table(ROWS)?;
            for effect in effects {
                write(&mut rows, effect)?;
            }
            drop(rows);
            let meta = meta.encode();
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

fn write(rows: &mut Table<'_, &[u8], &[u8]>, effect: Effect<'_>) -> Result<(), redb::StorageError> {
    match effect {
        Effect::Set { key, value } => {
            rows.insert(key, value)?;
        }
        // Removing one row is much cheaper than walking a range that holds one.
        Effect::Clear { key } => {
            rows.remove(key)?;
        }
        Effect::ClearRange { begin, end } => {
            rows.retain_in(begin..end, |_, _| false)?;
        }
    }
    Ok(())
}

//! The rows on redb.
//!
//! | table | key | value |
//! |---|---|---|
//! | `keyspace.rows` | a key of the keyspace | its value |
//! | `keyspace.meta` | `store` | [the store's own record](super::meta) |

use std::panic::{self, AssertUnwindSafe};
use std::path::Path;

use redb::{
    CompactionError, Database, ReadableDatabase, ReadableTable, StorageBackend, Table,
    TableDefinition,
};

use super::meta::{META_KEY, Meta};
use super::refusal::refusal;
use super::window::{Entry, Part, PartSnapshot};
use crate::error::OpenError;

const ROWS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("keyspace.rows");
const META: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("keyspace.meta");

/// The rows of one state.
pub(super) type Rows = redb::ReadOnlyTable<&'static [u8], &'static [u8]>;

/// Calls redb, and turns its panics into errors.
///
/// redb panics on some pages that are damaged. A damaged file must not take the process down. State that a
/// panic leaves behind is not used again: a file that was being opened is closed, and an open store ends.
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
    /// Creates the tree of a new store in an empty backend.
    pub(super) fn create(
        backend: impl StorageBackend,
        cache_bytes: usize,
        meta: &mut Meta,
    ) -> Result<Self, redb::Error> {
        let database = open_database(backend, cache_bytes)?;
        let tree = Self { database };
        guarded(|| tree.apply(&Part::new().freeze(), meta))?;
        Ok(tree)
    }

    /// Opens a tree, and reads the record of the store at `path`.
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

    /// Writes a part and `meta` durably, in a way that the file opens quickly after a crash. Updates the
    /// size of the rows in `meta`.
    pub(super) fn apply(&self, part: &PartSnapshot, meta: &mut Meta) -> Result<(), redb::Error> {
        let mut transaction = self.database.begin_write()?;
        transaction.set_quick_repair(true);
        let mut rows = transaction.open_table(ROWS)?;
        let mut live_bytes = match meta.live_bytes {
            Some(bytes) => bytes,
            None => bytes_of(&rows)?,
        };
        for entry in part.entries() {
            write(&mut rows, entry, &mut live_bytes)?;
        }
        drop(rows);
        meta.live_bytes = Some(live_bytes);
        transaction
            .open_table(META)?
            .insert(META_KEY, &meta.encode()[..])?;
        Ok(transaction.commit()?)
    }

    /// Compacts the file as far as possible. Does nothing while a backup reads the rows.
    pub(super) fn compact(&mut self) -> Result<(), redb::Error> {
        guarded(|| match self.database.compact() {
            Ok(_) | Err(CompactionError::TransactionInProgress) => Ok(()),
            Err(error) => Err(error.into()),
        })
    }

    /// Returns the rows after the last part that was written.
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

/// Returns the total bytes of the keys and values.
fn bytes_of(rows: &Table<'_, &[u8], &[u8]>) -> Result<u64, redb::StorageError> {
    rows.iter()?.try_fold(0, |bytes, row| {
        let (key, value) = row?;
        Ok(bytes + row_bytes(key.value(), value.value()))
    })
}

fn row_bytes(key: &[u8], value: &[u8]) -> u64 {
    (key.len() + value.len()) as u64
}

/// Writes an entry, and updates the size of the rows.
fn write(
    rows: &mut Table<'_, &[u8], &[u8]>,
    entry: Entry<'_>,
    live_bytes: &mut u64,
) -> Result<(), redb::StorageError> {
    match entry {
        Entry::Set { key, value } => {
            let old = rows.insert(key, value)?;
            *live_bytes += row_bytes(key, value);
            *live_bytes -= old.map_or(0, |old| row_bytes(key, old.value()));
        }
        Entry::Gap { begin, end } => {
            rows.retain_in(begin..end, |key, value| {
                *live_bytes -= row_bytes(key, value);
                false
            })?;
        }
    }
    Ok(())
}

/// Rewrites the store's record.
#[cfg(test)]
pub(super) fn rewrite_meta(
    backend: &(impl StorageBackend + Clone),
    change: impl FnOnce(&mut Vec<u8>),
) {
    let database = open_database(backend.clone(), 0).expect("it is a store");
    let mut meta = read_meta(&database).expect("it is a store");
    change(&mut meta);
    let transaction = database.begin_write().expect("the store works");
    let mut table = transaction.open_table(META).expect("it is a store");
    table.insert(META_KEY, &meta[..]).expect("the store works");
    drop(table);
    transaction.commit().expect("the store works");
}

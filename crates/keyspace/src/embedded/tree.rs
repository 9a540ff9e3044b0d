//! The rows on redb.
//!
//! | table | key | value |
//! |---|---|---|
//! | `keyspace.rows` | a key of the keyspace | its value |
//! | `keyspace.meta` | `store` | [the store's own record](super::meta) |

use std::panic::{self, AssertUnwindSafe};
use std::path::Path;

use redb::{
    Database, Durability, ReadableDatabase, ReadableTable, StorageBackend, Table, TableDefinition,
    WriteTransaction,
};

use super::held::HeldBackend;
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
    cache_bytes: usize,
    /// The file of an opened store, `None` for a store that was created here.
    file: Option<HeldBackend>,
}

/// The bytes of pages that a row changes at most, without its own bytes: a page of rows, and its share of
/// the pages above.
const CHANGED_BYTES_PER_ROW: usize = 8 << 10;

/// The least number of bytes of pages that a transaction may change.
const MIN_CHANGED_BYTES: usize = 4 * CHANGED_BYTES_PER_ROW;

impl Tree {
    /// Creates the tree of a new store in an empty backend.
    pub(super) fn create(
        backend: impl StorageBackend,
        cache_bytes: usize,
        meta: &mut Meta,
    ) -> Result<Self, redb::Error> {
        let tree = Self {
            database: open_database(backend, cache_bytes)?,
            cache_bytes,
            file: None,
        };
        guarded(|| tree.apply(&Part::new().freeze(), meta, |_| ()))?;
        Ok(tree)
    }

    /// Opens a tree, and reads the record of the store at `path`.
    pub(super) fn open(
        file: HeldBackend,
        cache_bytes: usize,
        path: &Path,
    ) -> Result<(Self, Meta), OpenError> {
        let opened = guarded(|| {
            let database = open_database(file.clone(), cache_bytes)?;
            let meta = read_meta(&database)?;
            Ok((database, meta))
        });
        let (database, meta) = opened.map_err(|error| refusal(path, error))?;
        let tree = Self {
            database,
            cache_bytes,
            file: Some(file),
        };
        Ok((tree, Meta::decode(&meta, path)?))
    }

    /// Returns how many bytes of pages a transaction may change.
    ///
    /// redb keeps changed pages in half of its cache. It writes the pages that do not fit before the
    /// transaction ends, and then reads and writes them again to compute their checksums.
    fn changed_bytes(&self) -> usize {
        (self.cache_bytes / 2).max(MIN_CHANGED_BYTES)
    }

    /// Writes a part and the store's record durably, in a way that the file opens quickly after a crash.
    /// Updates the size of the rows in the record. `finish` makes the record that of a store with the part.
    ///
    /// A part that changes many pages takes several transactions. Only the last one is durable, so a crash
    /// undoes all of them.
    pub(super) fn apply(
        &self,
        part: &PartSnapshot,
        meta: &mut Meta,
        finish: impl FnOnce(&mut Meta),
    ) -> Result<(), redb::Error> {
        let mut live_bytes = match meta.live_bytes {
            Some(bytes) => bytes,
            None => bytes_of(&self.rows()?)?,
        };
        let mut entries = part.entries().peekable();
        while entries.peek().is_some() {
            let mut transaction = self.database.begin_write()?;
            transaction.set_durability(Durability::None)?;
            let mut rows = transaction.open_table(ROWS)?;
            let mut left = self.changed_bytes();
            while left > 0
                && let Some(entry) = entries.next()
            {
                left = left.saturating_sub(CHANGED_BYTES_PER_ROW + entry.bytes());
                write(&mut rows, entry, &mut live_bytes)?;
            }
            drop(rows);
            // If a later transaction fails, redb may make this one durable as it closes the file. The
            // record must match the rows then. The part is still in the log, and is written again.
            meta.live_bytes = Some(live_bytes);
            write_meta(&transaction, meta)?;
            transaction.commit()?;
        }
        meta.live_bytes = Some(live_bytes);
        finish(meta);
        let mut transaction = self.database.begin_write()?;
        transaction.set_quick_repair(true);
        // A new store has no table of rows yet.
        transaction.open_table(ROWS)?;
        write_meta(&transaction, meta)?;
        Ok(transaction.commit()?)
    }

    /// Closes the file. Compacts it if it is longer than `max_bytes` after that.
    ///
    /// redb cuts off free pages at the end of the file when it closes it, so only then is it known whether
    /// pages have to be moved.
    pub(super) fn close(self, max_bytes: u64) -> Result<(), redb::Error> {
        let Self {
            database,
            cache_bytes,
            file,
        } = self;
        guarded(|| Ok(database.close()?))?;
        match file {
            Some(file) if file.len()? > max_bytes => compact(file, cache_bytes),
            _ => Ok(()),
        }
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

/// Compacts a closed file, unless it was opened again in the meantime.
fn compact(file: HeldBackend, cache_bytes: usize) -> Result<(), redb::Error> {
    guarded(|| match open_database(file, cache_bytes) {
        Err(redb::Error::DatabaseAlreadyOpen) => Ok(()),
        Err(error) => Err(error),
        Ok(mut database) => {
            database.compact()?;
            Ok(database.close()?)
        }
    })
}

fn read_meta(database: &Database) -> Result<Vec<u8>, redb::Error> {
    let table = database.begin_read()?.open_table(META)?;
    let meta = table.get(META_KEY)?;
    Ok(meta.map_or_else(Vec::new, |meta| meta.value().to_vec()))
}

fn write_meta(transaction: &WriteTransaction, meta: &Meta) -> Result<(), redb::Error> {
    let mut table = transaction.open_table(META)?;
    table.insert(META_KEY, &meta.encode()[..])?;
    Ok(())
}

/// Returns the total bytes of the keys and values.
fn bytes_of(rows: &Rows) -> Result<u64, redb::StorageError> {
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

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::ops::Range;

    use bytes::Bytes;
    use conformance::scale;
    use rand::SeedableRng;
    use rand::rngs::StdRng;
    use redb::backends::FileBackend;

    use super::*;
    use crate::embedded::tests::disk::{Disk, Fault};
    use crate::embedded::window::Below;

    /// A layer in which every key has a value.
    struct EveryKey;

    impl Below for EveryKey {
        type Error = Infallible;

        fn first_live_from(&self, key: &[u8]) -> Result<Option<Bytes>, Infallible> {
            Ok(Some(Bytes::copy_from_slice(key)))
        }
    }

    fn meta() -> Meta {
        Meta {
            last_version: 1,
            id: [0; 16],
            live_bytes: Some(0),
            log: None,
        }
    }

    fn of_rows(numbers: Range<u32>) -> PartSnapshot {
        let mut part = Part::new();
        for number in numbers {
            part.set(&number.to_be_bytes(), b"value");
        }
        part.freeze()
    }

    const CACHE_BYTES: usize = 1 << 20;

    fn open(disk: &Disk) -> Tree {
        let file = HeldBackend::new(disk.clone());
        let (tree, _) = Tree::open(file.clone(), CACHE_BYTES, Path::new("store")).unwrap();
        file.release().unwrap();
        tree
    }

    /// Returns an open tree of which most rows were removed, but not the last ones.
    fn sparse() -> (Disk, Tree) {
        let disk = Disk::new(Vec::new());
        let mut meta = meta();
        drop(Tree::create(disk.clone(), CACHE_BYTES, &mut meta).unwrap());
        let tree = open(&disk);
        tree.apply(&of_rows(0..10_000), &mut meta, |_| ()).unwrap();
        let mut part = Part::new();
        let [begin, end] = [0_u32, 9_900].map(u32::to_be_bytes);
        let Ok(()) = part.clear_range(&begin, &end, &EveryKey);
        tree.apply(&part.freeze(), &mut meta, |_| ()).unwrap();
        (disk, tree)
    }

    fn assert_has_the_last_rows(disk: &Disk) {
        let tree = open(disk);
        let rows = tree.rows().unwrap();
        let keys = rows.iter().unwrap().map(|row| row.unwrap().0);
        let keys: Vec<_> = keys.map(|key| key.value().to_vec()).collect();
        assert!(
            keys.into_iter()
                .eq((9_900..10_000_u32).map(u32::to_be_bytes))
        );
    }

    #[test]
    fn a_file_that_is_too_long_after_its_end_was_cut_off_is_compacted() {
        let close = |max_bytes| {
            let (disk, tree) = sparse();
            let before = disk.len().unwrap();
            tree.close(max_bytes).unwrap();
            let after = disk.len().unwrap();
            assert_has_the_last_rows(&disk);
            (before, after)
        };
        let (before, cut) = close(u64::MAX);
        assert!(cut < before, "{cut} of {before} bytes");
        assert_eq!(close(cut).1, cut);
        let (_, compacted) = close(cut - 1);
        assert!(compacted < cut / 2, "{compacted} of {cut} bytes");
    }

    /// Lets each call of a close that compacts fail in turn. Calls `check` with the disk after that.
    fn fail_while_compacting(fault: Fault, check: impl Fn(usize, &Disk)) {
        let (disk, tree) = sparse();
        tree.close(u64::MAX).unwrap();
        let closed = disk.image();
        for calls in 1.. {
            let disk = Disk::with(closed.clone());
            let tree = open(&disk);
            disk.fail_after(calls, fault);
            let ended = tree.close(0);
            if !disk.has_failed() {
                assert!(ended.is_ok() && disk.image().main.len() < closed.main.len() / 2);
                break;
            }
            // A full disk still flushes.
            assert!(
                ended.is_err() || fault == Fault::Full,
                "{fault:?} after {calls} calls"
            );
            check(calls, &disk);
        }
    }

    #[test]
    fn a_power_loss_while_a_file_is_compacted_loses_no_row() {
        fail_while_compacting(Fault::PowerLoss, |calls, disk| {
            let mut rng = StdRng::seed_from_u64(calls as u64);
            for _ in 0..scale(4, 100) {
                let left = disk.image_after_power_loss(&mut rng);
                assert_has_the_last_rows(&Disk::with(left));
            }
        });
    }

    #[test]
    fn a_disk_that_fails_while_a_file_is_compacted_loses_no_row() {
        for fault in [Fault::Error, Fault::Full, Fault::ShortWrite] {
            fail_while_compacting(fault, |_, disk| {
                disk.go_on();
                assert_has_the_last_rows(disk);
            });
        }
    }

    #[test]
    fn a_file_that_was_opened_again_is_not_compacted() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let open = || {
            let file = file.reopen().unwrap();
            HeldBackend::new(FileBackend::new(file).unwrap())
        };
        let opened = open();
        let tree = Tree::create(opened, 0, &mut meta()).unwrap();
        compact(open(), 0).unwrap();
        drop(tree);
    }

    #[test]
    fn a_part_of_which_only_some_transactions_became_durable_is_not_in_the_record() {
        let disk = Disk::new(Vec::new());
        let mut meta = meta();
        let tree = Tree::create(disk.clone(), 0, &mut meta).unwrap();
        // The panic comes after all transactions but the last.
        let applied = guarded(|| {
            tree.apply(&of_rows(0..100), &mut meta, |meta| {
                meta.last_version = 2;
                panic!("it is planned");
            })
        });
        assert!(applied.is_err());
        drop(tree);
        let disk = HeldBackend::new(disk);
        let (tree, meta) = Tree::open(disk, 0, Path::new("store")).unwrap();
        assert_eq!(bytes_of(&tree.rows().unwrap()).unwrap(), 100 * 9);
        assert_eq!((meta.last_version, meta.live_bytes), (1, Some(100 * 9)));
    }
}

//! The file of a store: the rows, on redb.
//!
//! # Layout
//!
//! The file is a [redb](https://docs.rs/redb) database with two tables:
//!
//! | table | key | value |
//! |---|---|---|
//! | `keyspace.rows` | a key of the keyspace | its value |
//! | `keyspace.meta` | `store` | the store's own record |

pub(super) mod damage;
pub(super) mod deferred;
pub(super) mod guard;
pub(super) mod meta;
pub(super) mod open_errors;

use std::ops::{Bound, ControlFlow};
use std::path::Path;
use std::sync::Arc;

use redb::{
    Builder, Database, Durability, ReadableDatabase, ReadableTableMetadata, StorageBackend,
    StorageError, Table, TableDefinition, WriteTransaction,
};

use self::damage::Damage;
use self::deferred::{DeferredBackend, Health};
use self::guard::guarded;
use self::meta::{META_KEY, Meta, Totals};
use self::open_errors::unreadable;
use crate::embedded::window::{Entry, Part, PartSnapshot};
use crate::error::OpenError;

const ROWS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("keyspace.rows");
const META: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("keyspace.meta");

/// The rows of one state.
pub(crate) struct TreeRows {
    table: redb::ReadOnlyTable<&'static [u8], &'static [u8]>,
    /// The totals of the rows, as the store's record has them.
    totals: Totals,
}

/// A key or a value.
pub(crate) type ValueGuard = redb::AccessGuard<'static, &'static [u8]>;

/// Rows in the order of their keys.
pub(crate) type TreeRange = redb::Range<'static, &'static [u8], &'static [u8]>;

impl TreeRows {
    /// Reads a key.
    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<ValueGuard>, StorageError> {
        self.table.get(key)
    }

    /// Returns the rows between two bounds. They are not checked.
    pub(crate) fn range(
        &self,
        begin: Bound<&[u8]>,
        end: Bound<&[u8]>,
    ) -> Result<TreeRange, StorageError> {
        self.table.range::<&[u8]>((begin, end))
    }

    /// Reads all rows, and checks that they are those that were written: in order, and with the totals of
    /// the store's record. Calls `visit` with each, until it breaks.
    ///
    /// # Errors
    /// The first damage that is found.
    pub(crate) fn read_all(
        &self,
        mut visit: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<Totals, redb::Error> {
        let mut totals = Totals::default();
        let mut last: Option<ValueGuard> = None;
        let mut rows = guarded(|| Ok(self.range(Bound::Unbounded, Bound::Unbounded)?))?;
        let mut next = |last: Option<&ValueGuard>| {
            let Some((key, value)) = rows.next().transpose()? else {
                return Ok(None);
            };
            if last.is_some_and(|last| last.value() >= key.value()) {
                return Err(Damage::of_order().into());
            }
            totals.add(key.value(), value.value());
            Ok(Some((key, value)))
        };
        // `visit` is not guarded: a panic in it is not damage.
        while let Some((key, value)) = guarded(|| next(last.as_ref()))? {
            if visit(key.value(), value.value()).is_break() {
                return Ok(totals);
            }
            last = Some(key);
        }
        totals.check(&self.totals)?;
        Ok(totals)
    }

    /// Returns how many rows there are, as the store's record has it.
    pub(crate) fn len(&self) -> u64 {
        self.totals.rows
    }
}

/// The tables of a store.
pub(crate) struct Tree {
    /// `None` once the tree was closed.
    database: Option<Database>,
    cache_bytes: usize,
    /// The file of an opened store, `None` for a store that was created here.
    file: Option<DeferredBackend>,
}

/// The bytes of pages that a row changes at most, without its own bytes: a page of rows, and its share of
/// the pages above.
const CHANGED_BYTES_PER_ROW: usize = 8 << 10;

/// The least number of bytes of pages that a transaction may change.
const MIN_CHANGED_BYTES: usize = 4 * CHANGED_BYTES_PER_ROW;

impl Tree {
    /// Creates the tree of a new store in an empty backend.
    pub(crate) fn create(
        backend: impl StorageBackend,
        cache_bytes: usize,
        meta: &mut Meta,
    ) -> Result<Self, redb::Error> {
        let tree = Self {
            database: Some(open_database(backend, cache_bytes)?),
            cache_bytes,
            file: None,
        };
        guarded(|| tree.apply(&Part::new().freeze(), meta, |_| ()))?;
        Ok(tree)
    }

    /// Opens a tree, and reads the record of the store at `path`.
    pub(crate) fn open(
        file: DeferredBackend,
        cache_bytes: usize,
        path: &Path,
    ) -> Result<(Self, Meta), OpenError> {
        Self::open_with(file, cache_bytes, path, Pages::Trusted)
    }

    /// Opens a tree as [`open`](Self::open) does, after the checksums of all its pages were checked.
    pub(crate) fn open_checked(
        file: DeferredBackend,
        cache_bytes: usize,
        path: &Path,
    ) -> Result<(Self, Meta), OpenError> {
        Self::open_with(file, cache_bytes, path, Pages::Checked)
    }

    fn open_with(
        file: DeferredBackend,
        cache_bytes: usize,
        path: &Path,
        pages: Pages,
    ) -> Result<(Self, Meta), OpenError> {
        let mut builder = builder(cache_bytes);
        builder.set_check_integrity_on_open(pages == Pages::Checked);
        let opened = guarded(|| Ok(builder.create_with_backend(file.clone())?));
        let database = opened.map_err(|error| unreadable(path, &file, error))?;
        let tree = Self {
            database: Some(database),
            cache_bytes,
            file: Some(file),
        };
        let meta =
            guarded(|| read_meta(tree.database())).map_err(|error| tree.unreadable(path, error))?;
        let meta = Meta::decode(&meta, path)?;
        // Finds a table that does not belong to the record.
        guarded(|| tree.rows(&meta)).map_err(|error| tree.unreadable(path, error))?;
        Ok((tree, meta))
    }

    fn unreadable(&self, path: &Path, error: redb::Error) -> OpenError {
        let file = self.file.as_ref().expect("an opened tree has a file");
        unreadable(path, file, error)
    }

    fn database(&self) -> &Database {
        self.database.as_ref().expect("the tree is open")
    }

    /// Returns what will be found wrong with the file.
    pub(crate) fn health(&self) -> Arc<Health> {
        self.file
            .as_ref()
            .map(DeferredBackend::health)
            .unwrap_or_default()
    }

    /// Returns how many bytes of pages a transaction may change.
    ///
    /// redb keeps changed pages in half of its cache. It writes the pages that do not fit before the
    /// transaction ends, and then reads and writes them again to compute their checksums.
    fn changed_bytes(&self) -> usize {
        (self.cache_bytes / 2).max(MIN_CHANGED_BYTES)
    }

    /// Writes a part and the store's record durably, in a way that the file opens quickly after a crash.
    /// Updates the totals in the record. `finish` makes the record that of a store with the part.
    ///
    /// A part that changes many pages takes several transactions. Only the last one is durable, so a crash
    /// undoes all of them.
    pub(crate) fn apply(
        &self,
        part: &PartSnapshot,
        meta: &mut Meta,
        finish: impl FnOnce(&mut Meta),
    ) -> Result<(), redb::Error> {
        let mut totals = meta.totals;
        let mut entries = part.entries().peekable();
        while entries.peek().is_some() {
            let mut transaction = self.database().begin_write()?;
            transaction.set_durability(Durability::None)?;
            let mut rows = transaction.open_table(ROWS)?;
            let mut left = self.changed_bytes();
            while left > 0
                && let Some(entry) = entries.next()
            {
                left = left.saturating_sub(CHANGED_BYTES_PER_ROW + entry.bytes());
                write(&mut rows, entry, &mut totals)?;
            }
            drop(rows);
            // If a later transaction fails, redb may make this one durable as it closes the file. The
            // record must match the rows then. The part is still in the log, and is written again.
            meta.totals = totals;
            write_meta(&transaction, meta)?;
            transaction.commit()?;
        }
        finish(meta);
        let mut transaction = self.database().begin_write()?;
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
    pub(crate) fn close(mut self, max_bytes: u64) -> Result<(), redb::Error> {
        let database = self.database.take().expect("the tree is open");
        guarded(|| Ok(database.close()?))?;
        match self.file.take() {
            Some(file) if file.len()? > max_bytes => compact(file, self.cache_bytes),
            _ => Ok(()),
        }
    }

    /// Returns the rows after the last part that was written. `meta` is the record since then.
    pub(crate) fn rows(&self, meta: &Meta) -> Result<TreeRows, redb::Error> {
        let table = self.database().begin_read()?.open_table(ROWS)?;
        let rows = table.len()?;
        if rows != meta.totals.rows {
            let said = meta.totals.rows;
            let reason = format!("it holds {rows} rows, and its record says {said} rows");
            return Err(Damage::new(reason).into());
        }
        Ok(TreeRows {
            table,
            totals: meta.totals,
        })
    }
}

/// redb writes when it closes a file, and reads damaged pages to do so.
impl Drop for Tree {
    fn drop(&mut self) {
        if let Some(database) = self.database.take() {
            // The store has ended, and all commits are in the log or in the last checkpoint.
            let _ = guarded(|| {
                drop(database);
                Ok(())
            });
        }
    }
}

/// Whether the checksums of pages are checked when a tree is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pages {
    Trusted,
    Checked,
}

fn builder(cache_bytes: usize) -> Builder {
    let mut builder = Database::builder();
    builder.set_cache_size(cache_bytes);
    builder
}

fn open_database(
    backend: impl StorageBackend,
    cache_bytes: usize,
) -> Result<Database, redb::Error> {
    Ok(builder(cache_bytes).create_with_backend(backend)?)
}

/// Compacts a closed file, unless it was opened again in the meantime.
fn compact(file: DeferredBackend, cache_bytes: usize) -> Result<(), redb::Error> {
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

/// Writes an entry, and updates the totals of the rows.
fn write(
    rows: &mut Table<'_, &[u8], &[u8]>,
    entry: Entry<'_>,
    totals: &mut Totals,
) -> Result<(), StorageError> {
    match entry {
        Entry::Set { key, value } => {
            let old = rows.insert(key, value)?;
            totals.add(key, value);
            if let Some(old) = old {
                totals.remove(key, old.value())?;
            }
        }
        Entry::Gap { begin, end } => {
            let mut removed = Ok(());
            rows.retain_in(begin..end, |key, value| {
                let is_within = begin <= key && key < end;
                if !is_within {
                    removed = Err(Damage::of_order());
                }
                if removed.is_ok() {
                    removed = totals.remove(key, value);
                }
                // After damage was found, the transaction is not committed.
                removed.is_err()
            })?;
            removed?;
        }
    }
    Ok(())
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
            totals: Totals::default(),
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
        let file = DeferredBackend::new(disk.clone());
        let (tree, _) = open_with_meta(file.clone());
        file.release().unwrap();
        tree
    }

    fn open_with_meta(file: DeferredBackend) -> (Tree, Meta) {
        Tree::open(file, CACHE_BYTES, Path::new("store")).unwrap()
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
        let (tree, meta) = open_with_meta(DeferredBackend::new(disk.clone()));
        let mut keys = Vec::new();
        let read = tree.rows(&meta).unwrap().read_all(|key, _| {
            keys.push(key.to_vec());
            ControlFlow::Continue(())
        });
        assert_eq!(read.unwrap(), meta.totals);
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
            DeferredBackend::new(FileBackend::new(file).unwrap())
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
        let (tree, meta) = open_with_meta(DeferredBackend::new(disk));
        let rows = tree.rows(&meta).unwrap();
        let totals = rows.read_all(|_, _| ControlFlow::Continue(())).unwrap();
        assert_eq!((meta.last_version, meta.totals), (1, totals));
        assert_eq!((totals.rows, totals.bytes), (100, 100 * 9));
    }
}

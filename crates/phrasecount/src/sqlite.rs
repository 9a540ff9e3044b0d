//! The SQLite file of counts. It accepts exports that come several times or late.
//!
//! Each row has the sequence of its export, and a phrase that is gone leaves its sequence in the table `gone`. So an
//! export changes the file only if it is newer than the file's own row.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use export_queue::SEQUENCE_BYTES;
use parking_lot::{Mutex, MutexGuard};
use rusqlite::{Connection, ErrorCode, Transaction, TransactionBehavior, params};

use crate::corpus::Count;
use crate::error::{Error, Result, folder_of};
use crate::keyspace::embedded;
use crate::keyspace::url::StoreUrl;

/// The application id that marks a SQLite file as one of phrasecount: `phrs`.
const APPLICATION_ID: i32 = 0x7068_7273;

/// The version of the tables.
const USER_VERSION: i32 = 1;

/// How long to wait if another program has the file locked.
const BUSY_TIMEOUT: Duration = Duration::from_secs(1);

const TABLES: &str = "
    CREATE TABLE phrases (phrase TEXT PRIMARY KEY, documents INTEGER, occurrences INTEGER,
        sequence BLOB) WITHOUT ROWID;
    CREATE TABLE gone (phrase TEXT PRIMARY KEY, sequence BLOB) WITHOUT ROWID;
    CREATE TABLE origin (store TEXT, subscription TEXT, is_filled INTEGER);
";

/// A row that the store considers exported must survive a power failure. The cache holds a batch, so that a page is
/// written once per batch. The log holds several batches.
const PRAGMAS: &str = "
    PRAGMA journal_mode = WAL;
    PRAGMA synchronous = FULL;
    PRAGMA cache_size = -16384;
    PRAGMA wal_autocheckpoint = 10000;
";

const UPSERT: &str = "
    INSERT INTO phrases VALUES (?1, ?2, ?3, ?4)
    ON CONFLICT (phrase) DO UPDATE SET documents = excluded.documents,
        occurrences = excluded.occurrences, sequence = excluded.sequence
        WHERE excluded.sequence > phrases.sequence";

const HAS_GONE: &str = "SELECT EXISTS (SELECT 1 FROM gone)";

const IS_GONE: &str = "SELECT 1 FROM gone WHERE phrase = ?1 AND sequence >= ?2";

/// Removes a tombstone when a newer row is there.
const FORGET_GONE: &str = "DELETE FROM gone WHERE phrase = ?1 AND sequence < ?2";

const DELETE: &str = "DELETE FROM phrases WHERE phrase = ?1 AND sequence < ?2";

const REMEMBER_GONE: &str = "
    INSERT INTO gone SELECT ?1, ?2
        WHERE NOT EXISTS (SELECT 1 FROM phrases WHERE phrase = ?1 AND sequence >= ?2)
    ON CONFLICT (phrase) DO UPDATE SET sequence = excluded.sequence
        WHERE excluded.sequence > gone.sequence";

/// The bytes of a sequence, which sort in the order of sequences.
pub(crate) type SequenceBytes = [u8; SEQUENCE_BYTES];

/// A row to be written. A count of `None` means that the phrase is gone.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) phrase: String,
    pub(crate) count: Option<Count>,
    pub(crate) sequence: SequenceBytes,
}

/// The source of a file's counts.
#[derive(Debug, Clone)]
pub(crate) struct Origin {
    /// The name of the file's subscription: the file's own id.
    pub(crate) subscription: String,
    /// Whether the file has the counts from before its subscription began.
    pub(crate) is_filled: bool,
}

/// Checks that a path may be that of a SQLite file beside a store. SQLite's own errors would not say what is wrong.
///
/// # Errors
/// [`Error::OutIsStore`], [`Error::OutIsNoFile`] and [`Error::NoFolder`].
pub(crate) fn check(path: &Path, db: &str) -> Result<()> {
    let folder = folder_of(path).to_owned();
    if !folder.is_dir() {
        return Err(Error::NoFolder { path: folder });
    }
    let path = path.to_owned();
    // Before it is looked at: the socket of a store is no regular file.
    if let Ok(StoreUrl::Embedded { path: store }) = db.parse()
        && is_of_store(&path, &store)
    {
        return Err(Error::OutIsStore { path });
    }
    if fs::metadata(&path).is_ok_and(|metadata| !metadata.is_file()) {
        return Err(Error::OutIsNoFile { path });
    }
    Ok(())
}

/// What SQLite adds to the name of a file for those that it has beside it.
const SIDE_FILES: [&str; 3] = ["-wal", "-shm", "-journal"];

/// Returns whether a SQLite file, or one that SQLite has beside it, is a file of an embedded store. No file needs to be
/// there yet.
fn is_of_store(path: &Path, store: &Path) -> bool {
    let with_end = |end: &str| {
        let mut path = path.as_os_str().to_owned();
        path.push(end);
        PathBuf::from(path)
    };
    let mut ends = SIDE_FILES.into_iter().chain([""]);
    ends.any(|end| embedded::is_file_of(&with_end(end), store))
}

/// A SQLite file with counts. Clones share the connection.
#[derive(Clone)]
pub(crate) struct Table {
    path: Arc<PathBuf>,
    connection: Arc<Mutex<Connection>>,
}

impl Table {
    /// Opens the file for a store. If there is none, creates it with the given id.
    ///
    /// # Errors
    /// [`Error::NotOurs`], [`Error::OtherStore`] and [`Error::Locked`], which leave the file unchanged.
    pub(crate) fn open(path: &Path, store: &str, new_id: &str) -> Result<(Self, Origin)> {
        let failed = |cause| failed(path, cause);
        let mut connection = Connection::open(path).map_err(failed)?;
        connection.busy_timeout(BUSY_TIMEOUT).map_err(failed)?;
        let tr = connection
            .transaction_with_behavior(TransactionBehavior::Immediate)
            .map_err(failed)?;
        if !is_ours(path, &tr)? {
            tr.execute_batch(TABLES).map_err(failed)?;
            tr.pragma_update(None, "application_id", APPLICATION_ID)
                .map_err(failed)?;
            tr.pragma_update(None, "user_version", USER_VERSION)
                .map_err(failed)?;
            tr.execute("INSERT INTO origin VALUES (?, ?, 0)", [store, new_id])
                .map_err(failed)?;
        }
        let origin = "SELECT store, subscription, is_filled FROM origin";
        let (stored, origin) = tr
            .query_row(origin, [], |row| {
                let origin = Origin {
                    subscription: row.get(1)?,
                    is_filled: row.get(2)?,
                };
                Ok((row.get::<_, String>(0)?, origin))
            })
            .map_err(failed)?;
        if stored != store {
            return Err(Error::OtherStore {
                path: path.to_owned(),
            });
        }
        tr.commit().map_err(failed)?;
        connection.execute_batch(PRAGMAS).map_err(failed)?;
        let table = Self {
            path: Arc::new(path.to_owned()),
            connection: Arc::new(Mutex::new(connection)),
        };
        Ok((table, origin))
    }

    /// Writes rows in one transaction of SQLite.
    pub(crate) fn take(&self, rows: &[Row]) -> Result<()> {
        self.write(|tr| {
            // Mostly nothing is gone, and then the table of what is gone need not be searched for every row.
            let has_gone = rows.iter().any(|row| row.count.is_none())
                || tr.query_row(HAS_GONE, [], |row| row.get(0))?;
            let [
                mut upsert,
                mut is_gone,
                mut forget,
                mut delete,
                mut remember,
            ] = [
                tr.prepare_cached(UPSERT)?,
                tr.prepare_cached(IS_GONE)?,
                tr.prepare_cached(FORGET_GONE)?,
                tr.prepare_cached(DELETE)?,
                tr.prepare_cached(REMEMBER_GONE)?,
            ];
            for Row {
                phrase,
                count,
                sequence,
            } in rows
            {
                match count {
                    Some(Count {
                        documents,
                        occurrences,
                    }) => {
                        if has_gone && is_gone.exists(params![phrase, sequence])? {
                            continue;
                        }
                        let documents = *documents as i64;
                        let occurrences = *occurrences as i64;
                        upsert.execute(params![phrase, documents, occurrences, sequence])?;
                        if has_gone {
                            forget.execute(params![phrase, sequence])?;
                        }
                    }
                    None => {
                        remember.execute(params![phrase, sequence])?;
                        delete.execute(params![phrase, sequence])?;
                    }
                }
            }
            Ok(())
        })
    }

    /// Records that the file lacks the counts from before its subscription.
    pub(crate) fn begin_to_fill(&self) -> Result<()> {
        self.write(|tr| tr.execute("UPDATE origin SET is_filled = 0", []).map(drop))
    }

    /// Records that the file is complete. A row older than `begin` was not found again, so its phrase is gone.
    pub(crate) fn end_to_fill(&self, begin: &SequenceBytes) -> Result<()> {
        self.write(|tr| {
            let remember = "INSERT OR REPLACE INTO gone SELECT phrase, ?1 FROM phrases
                WHERE sequence < ?1";
            tr.execute(remember, [begin])?;
            tr.execute("DELETE FROM phrases WHERE sequence < ?1", [begin])?;
            tr.execute("UPDATE origin SET is_filled = 1", []).map(drop)
        })
    }

    /// Returns the phrases that occur most often.
    pub(crate) fn top(&self, limit: usize) -> Result<Vec<(String, Count)>> {
        let connection = self.lock();
        let top = "SELECT phrase, documents, occurrences FROM phrases
            ORDER BY occurrences DESC, phrase LIMIT ?";
        let read = || {
            let mut top = connection.prepare(top)?;
            let rows = top.query_map([limit as i64], |row| {
                let count = Count {
                    documents: row.get::<_, i64>(1)? as u64,
                    occurrences: row.get::<_, i64>(2)? as u64,
                };
                Ok((row.get(0)?, count))
            })?;
            rows.collect::<rusqlite::Result<_>>()
        };
        read().map_err(|cause| failed(&self.path, cause))
    }

    fn write(&self, write: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<()>) -> Result<()> {
        let mut connection = self.lock();
        let run = || {
            let tr = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            write(&tr)?;
            tr.commit()
        };
        run().map_err(|cause| failed(&self.path, cause))
    }

    /// Locks the connection. A poisoned lock is harmless, because SQLite rolled back the transaction that panicked.
    fn lock(&self) -> MutexGuard<'_, Connection> {
        self.connection.lock()
    }
}

/// Returns whether the file has our tables. `false` means that it is empty.
fn is_ours(path: &Path, tr: &Transaction<'_>) -> Result<bool> {
    let number = |sql| tr.query_row(sql, [], |row| row.get::<_, i32>(0));
    let read = || {
        let version = number("PRAGMA user_version")?;
        let tables = number("SELECT count(*) FROM sqlite_schema")?;
        Ok((number("PRAGMA application_id")?, version, tables))
    };
    let reason = match read().map_err(|cause| failed(path, cause))? {
        (APPLICATION_ID, USER_VERSION, _) => return Ok(true),
        (0, 0, 0) => return Ok(false),
        (APPLICATION_ID, version, _) => format!("its tables have version {version}"),
        _ => "it has the tables of another program".to_owned(),
    };
    let path = path.to_owned();
    Err(Error::NotOurs { path, reason })
}

fn failed(path: &Path, cause: rusqlite::Error) -> Error {
    let path = path.to_owned();
    match cause.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Error::Locked { path },
        Some(ErrorCode::NotADatabase) => Error::NotOurs {
            path,
            reason: "it is not a SQLite file".to_owned(),
        },
        Some(ErrorCode::CannotOpen | ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => {
            Error::Unwritable { path, cause }
        }
        Some(ErrorCode::DiskFull) => Error::DiskFull { path, cause },
        _ => Error::Sqlite { path, cause },
    }
}

#[cfg(test)]
mod tests {
    use export_queue::Sequence;
    use tempfile::TempDir;

    use super::*;
    use crate::keyspace::error::chain;

    const STORE: &str = "store";

    fn open(place: &TempDir) -> Table {
        let path = place.path().join("counts.sqlite");
        Table::open(&path, STORE, "file").unwrap().0
    }

    fn row(phrase: &str, occurrences: Option<u64>, version: i64) -> Row {
        Row {
            phrase: phrase.to_owned(),
            count: occurrences.map(|occurrences| Count {
                documents: 1,
                occurrences,
            }),
            sequence: sequence_after(version),
        }
    }

    fn sequence_after(version: i64) -> SequenceBytes {
        Sequence::after_version(version).to_bytes()
    }

    fn phrases(table: &Table) -> Vec<(String, u64)> {
        let top = table.top(10).unwrap().into_iter();
        top.map(|(phrase, count)| (phrase, count.occurrences))
            .collect()
    }

    #[test]
    fn in_whatever_order_and_however_often_rows_come_the_newest_stays() {
        let place = TempDir::new().unwrap();
        let table = open(&place);
        let newest_exists = [(1, Some(1)), (2, None), (3, Some(3))];
        let newest_is_gone = [(1, Some(1)), (2, Some(2)), (3, None)];
        let orders = [
            [0, 1, 2],
            [0, 2, 1],
            [1, 0, 2],
            [1, 2, 0],
            [2, 0, 1],
            [2, 1, 0],
        ];
        for (number, order) in orders.iter().enumerate() {
            let stays = format!("stays {number}");
            let goes = format!("goes {number}");
            for index in order.iter().chain(order) {
                let (at, there) = newest_exists[*index];
                let (_, gone) = newest_is_gone[*index];
                let rows = [row(&stays, there, at), row(&goes, gone, at)];
                table.take(&rows).unwrap();
            }
            let found = phrases(&table);
            assert!(found.contains(&(stays, 3)), "{order:?}: {found:?}");
            assert_eq!(found.len(), number + 1, "{order:?}: {found:?}");
        }
    }

    #[test]
    fn what_is_not_found_while_it_is_filled_is_gone_and_stays_so() {
        let place = TempDir::new().unwrap();
        let table = open(&place);
        table
            .take(&[row("old", Some(1), 1), row("both", Some(1), 1)])
            .unwrap();
        table.begin_to_fill().unwrap();
        table.take(&[row("both", Some(2), 5)]).unwrap();
        table.end_to_fill(&sequence_after(5)).unwrap();
        table.take(&[row("old", Some(1), 4)]).unwrap();
        assert_eq!(phrases(&table), [("both".to_owned(), 2)]);
        table.take(&[row("old", Some(6), 6)]).unwrap();
        assert_eq!(phrases(&table)[0], ("old".to_owned(), 6));
    }

    #[test]
    fn a_file_knows_where_it_is_from_and_whether_it_is_filled() {
        let place = TempDir::new().unwrap();
        let path = place.path().join("counts.sqlite");
        let is_filled = || {
            let (_, origin) = Table::open(&path, STORE, "another id").unwrap();
            assert_eq!(origin.subscription, "file");
            origin.is_filled
        };
        let table = open(&place);
        assert!(!is_filled());
        table.end_to_fill(&sequence_after(0)).unwrap();
        assert!(is_filled());
        table.begin_to_fill().unwrap();
        assert!(!is_filled());
        let other = Table::open(&path, "other store", "id");
        assert!(matches!(other, Err(Error::OtherStore { .. })));
    }

    #[test]
    fn files_of_the_store_are_those_with_the_names_of_its_files() {
        let place = TempDir::new().unwrap();
        let store = place.path().join("counts-wal");
        for (out, is_its) in [
            ("counts-wal", true),
            ("counts-wal.log.0000000000000001", true),
            ("counts-wal.log.00000000000000af", true),
            ("counts-wal.lock", true),
            ("counts-wal.socket", true),
            (".keyspace-a1B2", true),
            ("counts", true),
            ("counts-wal.log.sqlite", false),
            ("counts-wal.log.", false),
            ("counts-wal.log.1", false),
            ("counts-wal.log.00000000000000010", false),
            ("counts-wal.log.000000000000000g", false),
            ("counts-wal.sqlite", false),
            ("count", false),
            ("counts-wal-wal", false),
        ] {
            assert_eq!(
                is_of_store(&place.path().join(out), &store),
                is_its,
                "{out}"
            );
        }
        for store in ["counts-shm", "counts-journal"] {
            let out = place.path().join("counts");
            assert!(is_of_store(&out, &place.path().join(store)), "{store}");
        }
    }

    #[test]
    fn an_error_of_the_disk_keeps_what_sqlite_says() {
        for code in [rusqlite::ffi::SQLITE_CANTOPEN, rusqlite::ffi::SQLITE_FULL] {
            let reason = "no such luck";
            let cause = rusqlite::Error::SqliteFailure(
                rusqlite::ffi::Error::new(code),
                Some(reason.to_owned()),
            );
            let text = chain(&failed(Path::new("counts"), cause)).to_string();
            assert!(text.starts_with("cannot write counts: "), "{text}");
            assert!(text.contains(reason), "{text}");
        }
    }
}

//! SQLite as a queue: a table in a file that the clients of one process share.
//!
//! Each client has a connection and runs its statements on a thread of its own, so that nothing stands
//! between it and the library. WAL with `synchronous=FULL`: an acknowledged statement is on disk. One
//! connection writes at a time; the others wait with SQLite's own busy handler, and try again when it
//! gives up.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use benches::contender::{Contender, number_of};
use keyspace::Bytes;
use rusqlite::{Connection, ErrorCode, Transaction, TransactionBehavior};
use tempfile::TempDir;
use tokio::task::block_in_place;

use crate::handle::Peer;

/// A common setting, and the default of the library for Rust.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS queue (id INTEGER PRIMARY KEY, value BLOB NOT NULL);
    CREATE TABLE IF NOT EXISTS handled (number INTEGER PRIMARY KEY, value BLOB NOT NULL)";
const INSERT: &str = "INSERT INTO queue (value) VALUES (?)";
const TAKE: &str = "DELETE FROM queue WHERE id = (SELECT id FROM queue ORDER BY id LIMIT 1) \
                    RETURNING value";
const INSERT_ROW: &str = "INSERT INTO handled (number, value) VALUES (?, ?)";
const COUNT_ROWS: &str = "SELECT count(*) FROM handled";

/// A new file, in a folder beside those of the embedded stores.
pub(crate) struct File {
    path: PathBuf,
    _folder: TempDir,
}

impl File {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().expect("the system has a temporary folder");
        Self {
            path: folder.path().join("queue.sqlite"),
            _folder: folder,
        }
    }
}

/// A connection. Each statement is a transaction, unless an item is handled.
pub(crate) struct Sqlite {
    /// Its client alone locks it.
    connection: Mutex<Connection>,
}

/// Returns the library's name and version.
pub(crate) fn version() -> String {
    format!("SQLite {}", rusqlite::version())
}

fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    let mode: String =
        connection.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0))?;
    assert_eq!(mode, "wal");
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.execute_batch(TABLES)?;
    Ok(connection)
}

/// Takes an item.
fn take(connection: &Connection) -> rusqlite::Result<Option<Vec<u8>>> {
    let mut take = connection.prepare_cached(TAKE)?;
    let mut rows = take.query([])?;
    let value = rows.next()?.map(|row| row.get(0)).transpose()?;
    // Outside a transaction, the statement commits at its end.
    assert!(rows.next()?.is_none());
    Ok(value)
}

impl Sqlite {
    /// Runs statements, again and again while another connection has the file locked for longer than the
    /// busy handler waits.
    fn run<T>(&self, statements: impl Fn(&Connection) -> rusqlite::Result<T>) -> T {
        let connection = self.connection.lock().expect("no client panics");
        let attempt = || loop {
            match statements(&connection) {
                Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => {}
                result => return result.expect("the disk has room"),
            }
        };
        block_in_place(attempt)
    }
}

impl Contender for Sqlite {
    type Site = File;

    async fn open(file: &File) -> Self {
        let connection = connect(&file.path).expect("a new file can be made there");
        Self {
            connection: Mutex::new(connection),
        }
    }

    async fn enqueue(&self, items: &[Bytes]) {
        self.run(|connection| {
            let mut insert = connection.prepare_cached(INSERT)?;
            if let [item] = items {
                return insert.execute([&item[..]]).map(drop);
            }
            let tr = connection.unchecked_transaction()?;
            for item in items {
                insert.execute([&item[..]])?;
            }
            tr.commit()
        });
    }

    async fn pop(&self) -> Option<Bytes> {
        self.run(take).map(Bytes::from)
    }
}

impl Peer for Sqlite {
    async fn handle(&self) -> Option<Bytes> {
        let handled = self.run(|connection| {
            // A transaction that begins with a read could not write after another one has written.
            let tr = Transaction::new_unchecked(connection, TransactionBehavior::Immediate)?;
            let value = take(connection)?;
            if let Some(value) = &value {
                let mut insert = connection.prepare_cached(INSERT_ROW)?;
                insert.execute((number_of(value).cast_signed(), value))?;
            }
            tr.commit()?;
            Ok(value)
        });
        handled.map(Bytes::from)
    }

    async fn count_rows(&self) -> u64 {
        let count: i64 =
            self.run(|connection| connection.query_row(COUNT_ROWS, [], |row| row.get(0)));
        count.try_into().expect("no count is negative")
    }
}

//! SQLite as a queue: a table in a file that the clients of one process share.
//!
//! Each client has a connection and runs its statements on a thread of its own, so that nothing stands
//! between it and the library. WAL with `synchronous=FULL`: an acknowledged statement is on disk. One
//! connection writes at a time; the others wait with SQLite's own busy handler, and try again when it
//! gives up.

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use benches::contender::Contender;
use keyspace::Bytes;
use rusqlite::{Connection, ErrorCode};
use tempfile::TempDir;
use tokio::task::block_in_place;

/// A common setting, and the default of the library for Rust.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

const TABLE: &str =
    "CREATE TABLE IF NOT EXISTS queue (id INTEGER PRIMARY KEY, value BLOB NOT NULL)";
const INSERT: &str = "INSERT INTO queue (value) VALUES (?)";
const TAKE: &str = "DELETE FROM queue WHERE id = (SELECT id FROM queue ORDER BY id LIMIT 1) \
                    RETURNING value";

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

/// A connection. Each statement is a transaction.
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
    connection.execute(TABLE, [])?;
    Ok(connection)
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
        let value: Option<Vec<u8>> = self.run(|connection| {
            let mut take = connection.prepare_cached(TAKE)?;
            let mut rows = take.query([])?;
            let value = rows.next()?.map(|row| row.get(0)).transpose()?;
            // The statement commits at its end.
            assert!(rows.next()?.is_none());
            Ok(value)
        });
        value.map(Bytes::from)
    }
}

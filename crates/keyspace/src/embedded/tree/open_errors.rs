//! The errors of opening a store.

use std::error::Error as StdError;
use std::io;
use std::path::Path;
use std::sync::Arc;

use redb::StorageBackend;

use super::damage::{reason_in, reason_of};
use super::deferred::DeferredBackend;
use crate::embedded::log::files::{Files, Slot};
use crate::embedded::log::recover::LogError;
use crate::error::OpenError;

/// The first bytes of a file of redb.
const DATABASE_START: &[u8] = b"redb";

/// The names of a store's tables, as they stand in its file. A file that contains them or begins as a store's file is
/// taken for a damaged store, and not for a file of another program. A file of which neither is left, such as one of
/// zeros, is [`OpenError::NotAStore`], and so is an empty file without a log beside it.
const NAMES: &[u8] = b"keyspace.metakeyspace.rows";

/// Returns the error for a path that is not a store.
pub(crate) fn not_a_store(path: &Path, found: &str) -> OpenError {
    OpenError::NotAStore {
        path: path.to_owned(),
        reason: format!("expected a file written by this library, found {found}"),
    }
}

/// Returns the error for a file that the operating system or redb cannot open.
pub(crate) fn open_error(path: &Path, cause: impl StdError + Send + Sync + 'static) -> OpenError {
    OpenError::Open {
        path: path.to_owned(),
        cause: Arc::new(cause),
    }
}

/// Returns the error for a store's file that does not hold what was written to it.
pub(crate) fn damaged(path: &Path, reason: impl Into<String>) -> OpenError {
    OpenError::Damaged {
        path: path.to_owned(),
        reason: reason.into(),
    }
}

/// Returns the error for a store on which redb fails.
pub(crate) fn refusal(path: &Path, error: redb::Error) -> OpenError {
    if let Some(reason) = reason_of(&error) {
        return damaged(path, reason);
    }
    match error {
        redb::Error::DatabaseAlreadyOpen => OpenError::StoreInUse {
            path: path.to_owned(),
        },
        redb::Error::Io(cause) => open_error(path, cause),
        error => open_error(path, error),
    }
}

/// Returns the error for a file that redb cannot read: a damaged store, or no store.
pub(crate) fn unreadable(path: &Path, file: &DeferredBackend, error: redb::Error) -> OpenError {
    if reason_of(&error).is_none() {
        return refusal(path, error);
    }
    match (identify(file.file()), &error) {
        (Err(cause), _) => open_error(path, cause),
        (Ok(Identity::Unknown), _) => not_a_store(path, "another one"),
        (Ok(Identity::Database), redb::Error::TableDoesNotExist(table)) => {
            not_a_store(path, &format!("a database without the table {table}"))
        }
        (Ok(Identity::Database), redb::Error::UpgradeRequired(_)) => {
            not_a_store(path, "a database of another version")
        }
        (Ok(Identity::Database | Identity::Store), _) => refusal(path, error),
    }
}

/// What a file that cannot be read was.
enum Identity {
    Store,
    /// A database of redb, of any application.
    Database,
    Unknown,
}

/// Finds out what a file was, from the bytes that damage has left.
fn identify(file: &dyn StorageBackend) -> io::Result<Identity> {
    const CHUNK_BYTES: u64 = 1 << 20;
    const OVERLAP_BYTES: u64 = 64;
    let len = file.len()?;
    let mut is_database = false;
    for from in (0..len).step_by(CHUNK_BYTES as usize) {
        let to = len.min(from + CHUNK_BYTES + OVERLAP_BYTES);
        let mut bytes = vec![0; usize::try_from(to - from).map_err(io::Error::other)?];
        file.read(from, &mut bytes)?;
        is_database |= from == 0 && bytes.starts_with(DATABASE_START);
        if bytes.windows(NAMES.len()).any(|window| window == NAMES) {
            return Ok(Identity::Store);
        }
    }
    Ok(if is_database {
        Identity::Database
    } else {
        Identity::Unknown
    })
}

/// Returns the error for a store whose log, in `files`, cannot be used.
pub(crate) fn log_refusal(path: &Path, files: &dyn Files, error: LogError) -> OpenError {
    let of = |slot: Slot| files.path(slot);
    let path = path.to_owned();
    match error {
        LogError::Missing { .. } => OpenError::LogMissing { path },
        LogError::Newer { .. } => OpenError::LogNewer { path },
        LogError::Foreign { slot } => OpenError::LogForeign { path: of(slot) },
        LogError::Corrupt { slot, .. } => OpenError::LogDamaged {
            path: of(slot),
            reason: error.to_string(),
        },
        LogError::NewerFormat {
            slot,
            found,
            supported,
        } => OpenError::NewerFormat {
            path: of(slot),
            found,
            supported,
        },
        LogError::Io(cause) => match reason_in(&cause) {
            Some(reason) => damaged(&path, reason),
            None => open_error(&path, cause),
        },
    }
}

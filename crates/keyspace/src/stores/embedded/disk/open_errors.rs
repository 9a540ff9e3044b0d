//! The errors of opening a store.

use std::error::Error as StdError;
use std::io;
use std::path::Path;

use crate::contract::error::OpenError;
use crate::stores::embedded::backend::is_limit_of_files;
use crate::stores::embedded::log::files::{Files, Slot};
use crate::stores::embedded::log::recover::LogError;
use crate::stores::embedded::runs::OpenRunsError;
use crate::stores::embedded::runs::damage::FileError;
use crate::stores::embedded::runs::manifest::FORMAT;

/// Returns the error for a path that is not a store.
pub(crate) fn not_a_store(path: &Path, found: &str) -> OpenError {
    OpenError::NotAStore {
        path: path.to_owned(),
        reason: format!("expected a file written by this library, found {found}"),
    }
}

/// What an error of the system does not say.
#[derive(Debug, thiserror::Error)]
#[error("too many open files: raise the limit (`ulimit -n`)")]
struct TooManyFiles(#[source] io::Error);

/// Returns the error for a file that the operating system cannot open.
pub(crate) fn open_error(path: &Path, cause: impl StdError + Send + Sync + 'static) -> OpenError {
    let cause: Box<dyn StdError + Send + Sync> = Box::new(cause);
    let cause = match cause.downcast::<io::Error>() {
        Ok(error) if is_limit_of_files(&error) => {
            let kind = error.kind();
            io::Error::new(kind, TooManyFiles(*error)).into()
        }
        Ok(error) => error,
        Err(cause) => cause,
    };
    OpenError::Open {
        path: path.to_owned(),
        cause: cause.into(),
    }
}

/// Returns the error for a store's file that does not hold what was written to it.
pub(crate) fn damaged(path: &Path, reason: impl Into<String>) -> OpenError {
    OpenError::Damaged {
        path: path.to_owned(),
        reason: reason.into(),
    }
}

/// Returns the error for a store whose file cannot be read or written.
pub(crate) fn refusal(path: &Path, error: FileError) -> OpenError {
    match error {
        FileError::Damage(damage) => damaged(path, damage.to_string()),
        FileError::Io(cause) => open_error(path, cause),
    }
}

/// Returns the error for a file that is no store, or one that cannot be read.
pub(crate) fn runs_refusal(path: &Path, error: OpenRunsError) -> OpenError {
    match error {
        OpenRunsError::NotAStore => not_a_store(path, "another one"),
        OpenRunsError::NewerFormat(found) => OpenError::NewerFormat {
            path: path.to_owned(),
            found,
            supported: FORMAT,
        },
        OpenRunsError::File(error) => refusal(path, error),
    }
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
        LogError::Io(cause) => refusal(&path, FileError::from_io(cause)),
    }
}

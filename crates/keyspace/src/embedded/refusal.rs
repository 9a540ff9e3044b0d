//! The errors of opening a store.

use std::error::Error as StdError;
use std::io;
use std::path::Path;
use std::sync::Arc;

use super::files::{Slot, slot_path};
use super::log::recover::LogError;
use crate::error::OpenError;

/// Returns the error for a path that is not a store.
pub(super) fn not_a_store(path: &Path, found: &str) -> OpenError {
    OpenError::NotAStore {
        path: path.to_owned(),
        reason: format!("expected a file written by this library, found {found}"),
    }
}

/// Returns the error for a file that the operating system or redb cannot open.
pub(super) fn open_error(path: &Path, cause: impl StdError + Send + Sync + 'static) -> OpenError {
    OpenError::Open {
        path: path.to_owned(),
        cause: Arc::new(cause),
    }
}

/// Returns the error for a file that redb refuses.
pub(super) fn refusal(path: &Path, error: redb::Error) -> OpenError {
    let is_foreign = match &error {
        redb::Error::DatabaseAlreadyOpen => {
            return OpenError::StoreInUse {
                path: path.to_owned(),
            };
        }
        redb::Error::Corrupted(_)
        | redb::Error::UpgradeRequired(_)
        | redb::Error::TableDoesNotExist(_)
        | redb::Error::TableTypeMismatch { .. }
        | redb::Error::TableIsMultimap(_)
        | redb::Error::TypeDefinitionChanged { .. } => true,
        redb::Error::Io(cause) => matches!(
            cause.kind(),
            io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof
        ),
        _ => false,
    };
    match error {
        error if is_foreign => not_a_store(path, &format!("another one: {error}")),
        redb::Error::Io(cause) => open_error(path, cause),
        error => open_error(path, error),
    }
}

/// Returns the error for a store whose log cannot be used.
pub(super) fn log_refusal(path: &Path, error: LogError) -> OpenError {
    let of = |slot: Slot| slot_path(path, slot);
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
        LogError::Io(cause) => open_error(&path, cause),
    }
}

//! What can go wrong with a store's file.

use std::io;

/// What is wrong with the store's file: it does not hold what was written to it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Damage(String);

impl Damage {
    pub(crate) fn new(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }

    pub(crate) fn of_block() -> Self {
        Self::new("a block does not hold what was written to it")
    }

    pub(crate) fn of_order() -> Self {
        Self::new("its rows are not in the order of their keys")
    }

    pub(crate) fn of_length() -> Self {
        Self::new("it ends too early")
    }
}

/// Why the store's file cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FileError {
    /// The operating system says so.
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Damage(#[from] Damage),
}

impl FileError {
    /// Returns what is damaged, if an error of the system contains damage.
    pub(crate) fn from_io(error: io::Error) -> Self {
        let damage = error
            .get_ref()
            .and_then(|cause| cause.downcast_ref::<Damage>());
        match damage {
            Some(damage) => Self::Damage(damage.clone()),
            None => Self::Io(error),
        }
    }
}

/// For callers that pass on errors of the system.
impl From<FileError> for io::Error {
    fn from(error: FileError) -> Self {
        match error {
            FileError::Io(error) => error,
            FileError::Damage(damage) => Self::new(io::ErrorKind::InvalidData, damage),
        }
    }
}

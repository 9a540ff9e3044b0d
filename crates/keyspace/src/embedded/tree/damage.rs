//! Damage: the store's file does not hold what was written to it.

use std::io;

use redb::StorageError;

/// What is wrong with the store's file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Damage(String);

impl Damage {
    pub(crate) fn new(reason: impl Into<String>) -> Self {
        Self(reason.into())
    }

    pub(crate) fn of_page() -> Self {
        Self::new("a page does not hold what was written to it")
    }

    pub(crate) fn of_order() -> Self {
        Self::new("its rows are not in the order of their keys")
    }
}

/// The calls of redb return it as an error of the storage.
impl From<Damage> for StorageError {
    fn from(damage: Damage) -> Self {
        Self::Io(io::Error::new(io::ErrorKind::InvalidData, damage))
    }
}

impl From<Damage> for redb::Error {
    fn from(damage: Damage) -> Self {
        StorageError::from(damage).into()
    }
}

/// Returns what is damaged, if an error of redb reports damage. Errors of the system are not damage.
pub(crate) fn reason_of(error: &redb::Error) -> Option<String> {
    let damage = match error {
        redb::Error::Io(cause) => return reason_of_io(cause),
        redb::Error::Corrupted(_) => Damage::of_page(),
        redb::Error::TableDoesNotExist(_)
        | redb::Error::TableTypeMismatch { .. }
        | redb::Error::TableIsMultimap(_)
        | redb::Error::TableIsNotMultimap(_)
        | redb::Error::TypeDefinitionChanged { .. } => Damage::new("a table is missing"),
        redb::Error::UpgradeRequired(_) => Damage::new("its header is not that of a store"),
        _ => return None,
    };
    tracing::debug!(%error, "a page is damaged");
    Some(damage.0)
}

fn reason_of_io(cause: &io::Error) -> Option<String> {
    let damage = cause.get_ref().and_then(|cause| cause.downcast_ref());
    match (damage, cause.kind()) {
        (Some(Damage(reason)), _) => Some(reason.clone()),
        (None, io::ErrorKind::UnexpectedEof) => Some("it ends too early".to_owned()),
        (None, io::ErrorKind::InvalidData) => Some(Damage::of_page().0),
        _ => None,
    }
}

/// Returns what is damaged, if an error of the system contains one of redb that reports damage.
pub(crate) fn reason_in(error: &io::Error) -> Option<String> {
    error.get_ref()?.downcast_ref().and_then(reason_of)
}

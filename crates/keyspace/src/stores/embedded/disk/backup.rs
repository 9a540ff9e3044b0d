//! Copies an open store to a file of its own.

use std::path::Path;

use super::open_errors::refusal;
use crate::contract::error::OpenError;
use crate::stores::embedded::backend::File;
use crate::stores::embedded::entries::Entry;
use crate::stores::embedded::runs::damage::FileError;
use crate::stores::embedded::runs::manifest::Meta;
use crate::stores::embedded::runs::{RunStoreOptions, Runs};

/// Why a copy has ended early.
pub(crate) enum CopyError {
    Read(OpenError),
    Write(FileError),
}

impl From<FileError> for CopyError {
    fn from(error: FileError) -> Self {
        Self::Write(error)
    }
}

/// Takes the next row of a copy, its key and its value.
pub(crate) type AddRow<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> Result<(), FileError>;

/// Writes rows in key order to an empty file, as a closed store with the record `meta`, in one run. `read` passes them
/// on.
pub(crate) fn write(
    file: File,
    path: &Path,
    options: RunStoreOptions,
    meta: Meta,
    read: impl FnOnce(AddRow<'_>) -> Result<(), CopyError>,
) -> Result<(), OpenError> {
    let refused = |error| refusal(path, error);
    let mut read_error = None;
    let created = Runs::create(file, options, meta, |writer| {
        let copied = read(&mut |key, value| writer.add(Entry::Set { key, value }));
        match copied {
            Ok(()) => Ok(()),
            Err(CopyError::Write(error)) => Err(error),
            Err(CopyError::Read(error)) => {
                read_error = Some(error);
                Ok(())
            }
        }
    });
    if let Some(error) = read_error {
        return Err(error);
    }
    created.and_then(|runs| runs.close()).map_err(refused)
}

//! Checks a store without changing it.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::open::{OpenedStore, Setup};
use super::open_errors::refusal;
use crate::contract::error::OpenError;
use crate::stores::embedded::backend::File;
use crate::stores::embedded::log::files::Files;
use crate::stores::embedded::runs::RunList;
use crate::stores::embedded::runs::damage::FileError;

/// What a check has read and found in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Verified {
    /// The number of rows in the store's file.
    pub rows: u64,
    /// The bytes of their keys and values.
    pub bytes: u64,
    /// The number of batches of commits that are only in the log. Zero for an open store, whose log was
    /// checked when it was opened.
    pub log_batches: u64,
}

/// Reads all blocks of runs, and checks them.
pub(crate) fn runs(runs: &RunList, progress: impl FnMut(u64, u64)) -> Result<Verified, FileError> {
    let found = runs.verify(progress)?;
    Ok(Verified {
        rows: found.rows,
        bytes: found.bytes,
        log_batches: 0,
    })
}

/// Checks the store in a file, whose log is in `files`.
pub(crate) fn store(
    file: File,
    files: &dyn Files,
    path: &Path,
    setup: &Setup,
    progress: impl FnMut(u64, u64),
) -> Result<Verified, OpenError> {
    let (store, _) = OpenedStore::read(file, files, path, setup)?;
    let verified = runs(&store.files.runs.list(), progress);
    let verified = verified.map_err(|error| refusal(path, error))?;
    Ok(Verified {
        log_batches: store.log_batches,
        ..verified
    })
}

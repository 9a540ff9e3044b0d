//! Copies an open store to a file of its own.

use std::path::Path;

use super::open_errors::refusal;
use crate::embedded::backend::File;
use crate::embedded::entries::Entry;
use crate::embedded::layers::Layers;
use crate::embedded::runs::damage::FileError;
use crate::embedded::runs::manifest::Meta;
use crate::embedded::runs::{RunOptions, Runs};
use crate::error::OpenError;

/// Writes the rows of one state to an empty file, as a closed store with the record `meta`, in one run. `failed`
/// converts the error of a failed read.
///
/// Reads the rows from the store's file, and not from the cache, so that damage is found.
pub(crate) fn write(
    file: File,
    path: &Path,
    options: RunOptions,
    meta: Meta,
    rows: &Layers,
    failed: impl Fn(FileError) -> OpenError,
) -> Result<(), OpenError> {
    let refused = |error| refusal(path, error);
    let mut merge = rows.all_rows();
    let mut read_error = None;
    let created = Runs::create(file, options, meta, |writer| {
        loop {
            match merge.next_row() {
                Ok(Some((key, value))) => writer.add(Entry::Set { key, value })?,
                Ok(None) => return Ok(()),
                Err(error) => {
                    read_error = Some(error);
                    return Ok(());
                }
            }
        }
    });
    if let Some(error) = read_error {
        return Err(failed(error));
    }
    created.and_then(|runs| runs.close()).map_err(refused)
}

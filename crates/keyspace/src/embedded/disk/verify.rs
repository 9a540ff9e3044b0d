//! Checks a store without changing it.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use redb::StorageBackend;

use super::open::{OpenedStore, Setup};
use crate::embedded::log::files::Files;
use crate::embedded::tree::deferred::DeferredBackend;
use crate::embedded::tree::open_errors::refusal;
use crate::embedded::tree::{Tree, TreeRows};
use crate::error::OpenError;

/// How many rows are read between two calls of a callback.
const STEP_ROWS: u64 = 1024;

/// What a check has read and found in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

/// Reads all rows, and compares them with the store's record.
pub(crate) fn rows(
    rows: &TreeRows,
    mut progress: impl FnMut(u64, u64),
) -> Result<Verified, redb::Error> {
    let mut read = 0;
    let found = rows.read_all(|_, _| {
        read += 1;
        if u64::is_multiple_of(read, STEP_ROWS) {
            progress(read, rows.len());
        }
        ControlFlow::Continue(())
    })?;
    progress(found.rows, found.rows);
    Ok(Verified {
        rows: found.rows,
        bytes: found.bytes,
        log_batches: 0,
    })
}

/// Checks the store whose file is in a backend and whose log is in `files`. `open` opens the backend.
///
/// The pages, the rows and the log are read once. After that, the store is opened in memory, because the
/// pages that only an opening reads are rebuilt by the check of the others.
pub(crate) fn store<B: StorageBackend>(
    mut open: impl FnMut() -> Result<B, OpenError>,
    files: &Arc<dyn Files>,
    path: &Path,
    setup: &Setup,
    progress: impl FnMut(u64, u64),
) -> Result<Verified, OpenError> {
    let file = open()?;
    OpenedStore::check_not_empty(&file, &**files, path)?;
    let (tree, meta) = Tree::open_checked(DeferredBackend::new(file), setup.cache_bytes, path)?;
    let (store, _) = OpenedStore::read(tree, meta, &**files, path, setup)?;
    let verified = rows(store.tree.rows(), progress).map_err(|error| refusal(path, error))?;
    let log_batches = store.log_batches;
    drop(store);
    let opened = OpenedStore::prepare(DeferredBackend::new(open()?), &**files, path, setup);
    opened.map(drop)?;
    Ok(Verified {
        log_batches,
        ..verified
    })
}

//! Copies an open store to a file of its own.

use std::path::Path;

use redb::StorageBackend;

use super::layers::Snapshot;
use super::meta::Meta;
use super::refusal::refusal;
use super::tree::{Tree, guarded};
use super::window::Part;
use crate::error::OpenError;
use crate::limits::END_OF_KEYSPACE;
use crate::transaction::key_after;

/// The bytes that are written at once.
const WRITE_BYTES: usize = 8 << 20;

/// The rows that are read at once: with values of the largest size, about as many bytes as are written at
/// once.
const READ_ROWS: usize = 64;

const CACHE_BYTES: usize = 1 << 20;

/// Writes the rows of one state to an empty backend, as a closed store with the record `meta`. `failed`
/// converts the error of a failed read.
pub(super) fn write(
    backend: impl StorageBackend,
    path: &Path,
    mut meta: Meta,
    rows: &Snapshot,
    failed: impl Fn(redb::Error) -> OpenError,
) -> Result<(), OpenError> {
    let refused = |error| refusal(path, error);
    let tree = Tree::create(backend, CACHE_BYTES, &mut meta).map_err(refused)?;
    let mut part = Part::new();
    let mut begin = Vec::new();
    loop {
        let read = guarded(|| Ok(rows.scan(&begin, END_OF_KEYSPACE, false, READ_ROWS)?));
        let read = read.map_err(&failed)?;
        for row in &read {
            part.set(row.key(), row.value());
        }
        if read.is_empty() || part.content_bytes() >= WRITE_BYTES {
            let full = std::mem::replace(&mut part, Part::new()).freeze();
            guarded(|| tree.apply(&full, &mut meta, |_| ())).map_err(refused)?;
        }
        match read.last() {
            Some(last) => begin = key_after(last.key()),
            None => return tree.close(u64::MAX).map_err(refused),
        }
    }
}

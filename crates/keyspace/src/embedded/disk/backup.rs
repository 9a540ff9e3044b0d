//! Copies an open store to a file of its own.

use std::mem;
use std::ops::ControlFlow;
use std::path::Path;

use redb::StorageBackend;

use crate::embedded::layers::StoreLayers;
use crate::embedded::tree::Tree;
use crate::embedded::tree::guard::guarded;
use crate::embedded::tree::meta::Meta;
use crate::embedded::tree::open_errors::refusal;
use crate::embedded::window::{Part, PartSnapshot};
use crate::error::OpenError;

/// The bytes that are written at once.
const WRITE_BYTES: usize = 8 << 20;

const CACHE_BYTES: usize = 1 << 20;

/// Writes the rows of one state to an empty backend, as a closed store with the record `meta`. `failed`
/// converts the error of a failed read.
///
/// Copies the tree and moves the parts of the window to the copy, as checkpoints do. So the rows of the tree
/// can be checked against its record while they are copied.
pub(crate) fn write(
    backend: impl StorageBackend,
    path: &Path,
    mut meta: Meta,
    rows: &StoreLayers,
    failed: impl Fn(redb::Error) -> OpenError,
) -> Result<(), OpenError> {
    let refused = |error| refusal(path, error);
    let tree = Tree::create(backend, CACHE_BYTES, &mut meta).map_err(refused)?;
    let mut apply = |part: &PartSnapshot| guarded(|| tree.apply(part, &mut meta, |_| ()));
    let mut part = Part::new();
    let mut written = Ok(());
    let read = rows.base().read_all(|key, value| {
        part.set(key, value);
        if part.content_bytes() >= WRITE_BYTES {
            written = apply(&mem::replace(&mut part, Part::new()).freeze());
        }
        match written {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    });
    written.map_err(refused)?;
    read.map_err(failed)?;
    apply(&part.freeze()).map_err(refused)?;
    for part in rows.parts().iter().rev() {
        apply(part).map_err(refused)?;
    }
    tree.close(u64::MAX).map_err(refused)
}

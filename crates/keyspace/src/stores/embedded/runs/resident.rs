//! Blocks of an index and of a filter that stay in memory while their table is in use.
//!
//! Most lookups need them, so they are not looked for in the cache. Beyond a number of bytes, they are in the cache,
//! like all other blocks.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use super::block::Block;
use super::chunks::ChunkFile;

/// The blocks of one table that stay in memory.
pub(super) struct Resident {
    file: Arc<ChunkFile>,
    /// Tells the table from all others that were open, in the cache. Its id does not: a seeded source of randomness may
    /// repeat ids.
    pub(super) number: u64,
    /// The blocks of the index.
    pub(super) middles: Box<[OnceLock<Arc<Block>>]>,
    /// The blocks of the filter.
    pub(super) filters: Box<[OnceLock<Arc<[u8]>>]>,
    /// Their bytes.
    bytes: AtomicUsize,
}

impl Resident {
    pub(super) fn new(file: &Arc<ChunkFile>, middles: usize, filters: u32) -> Arc<Self> {
        Arc::new(Self {
            file: file.clone(),
            number: file.next_table.fetch_add(1, Ordering::Relaxed),
            middles: (0..middles).map(|_| OnceLock::new()).collect(),
            filters: (0..filters).map(|_| OnceLock::new()).collect(),
            bytes: AtomicUsize::new(0),
        })
    }

    /// Returns whether a block of this many bytes may stay.
    pub(super) fn reserve(&self, bytes: usize) -> bool {
        let has_room = self.file.cache.reserve(bytes);
        if has_room {
            self.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        has_room
    }
}

impl Drop for Resident {
    fn drop(&mut self) {
        self.file.cache.release(*self.bytes.get_mut());
    }
}

//! Blocks that were read lately.

use std::sync::Arc;

use parking_lot::Mutex;
use quick_cache::Weighter;
use quick_cache::sync::Cache;

use super::block::Block;

/// A block of the file: the number of its table, and where it begins in it.
pub(super) type BlockPlace = (u64, u64);

/// What a block holds, once it was checked.
#[derive(Debug, Clone)]
pub(super) enum Cached {
    Entries(Arc<Block>),
    Filter(Arc<[u8]>),
}

impl Cached {
    fn bytes(&self) -> usize {
        match self {
            Self::Entries(block) => block.bytes(),
            Self::Filter(bits) => bits.len(),
        }
    }
}

/// What an entry of the cache takes besides its block, approximately, in bytes.
const OVERHEAD_BYTES: usize = 100;

#[derive(Debug, Clone)]
struct ByBytes;

impl Weighter<BlockPlace, Cached> for ByBytes {
    fn weight(&self, _: &BlockPlace, block: &Cached) -> u64 {
        (block.bytes() + OVERHEAD_BYTES) as u64
    }
}

/// The share of the memory for blocks in which indexes and filters may stay.
const RESIDENT_SHARE: usize = 4;

/// The blocks in memory, up to a number of bytes. Those that are used more often stay.
pub(super) struct BlockCache {
    blocks: Cache<BlockPlace, Cached, ByBytes>,
    bytes: usize,
    /// How many of the bytes are those of blocks that stay outside of the cache.
    resident_bytes: Mutex<usize>,
}

impl BlockCache {
    pub(super) fn new(bytes: usize) -> Self {
        let blocks = bytes / super::block::BLOCK_BYTES;
        Self {
            blocks: Cache::with_weighter(blocks, bytes as u64, ByBytes),
            bytes,
            resident_bytes: Mutex::new(0),
        }
    }

    /// Returns a block. Reads it with `read` if it is not there.
    pub(super) fn get<E>(
        &self,
        place: BlockPlace,
        read: impl FnOnce() -> Result<Cached, E>,
    ) -> Result<Cached, E> {
        if let Some(block) = self.blocks.get(&place) {
            return Ok(block);
        }
        let block = read()?;
        self.blocks.insert(place, block.clone());
        Ok(block)
    }

    /// Makes room for a block that stays. Returns false if those already have their share.
    pub(super) fn reserve(&self, bytes: usize) -> bool {
        let mut resident = self.resident_bytes.lock();
        let has_room = *resident + bytes <= self.bytes / RESIDENT_SHARE;
        if has_room {
            *resident += bytes;
            self.blocks.set_capacity((self.bytes - *resident) as u64);
        }
        has_room
    }

    /// Gives back the room of blocks that stayed.
    pub(super) fn release(&self, bytes: usize) {
        let mut resident = self.resident_bytes.lock();
        *resident -= bytes;
        self.blocks.set_capacity((self.bytes - *resident) as u64);
    }
}

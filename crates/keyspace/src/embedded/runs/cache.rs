//! Blocks that were read lately.

use std::sync::Arc;

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

/// Blocks up to a number of bytes. Those that are used more often stay.
pub(super) struct BlockCache(Cache<BlockPlace, Cached, ByBytes>);

impl BlockCache {
    pub(super) fn new(bytes: usize) -> Self {
        let blocks = bytes / super::block::BLOCK_BYTES;
        Self(Cache::with_weighter(blocks, bytes as u64, ByBytes))
    }

    /// Returns a block. Reads it with `read` if it is not there.
    pub(super) fn get<E>(
        &self,
        place: BlockPlace,
        read: impl FnOnce() -> Result<Cached, E>,
    ) -> Result<Cached, E> {
        if let Some(block) = self.0.get(&place) {
            return Ok(block);
        }
        let block = read()?;
        self.0.insert(place, block.clone());
        Ok(block)
    }
}

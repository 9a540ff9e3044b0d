//! A Bloom filter, in blocks: says of most keys without a Set in a table that they have none.
//!
//! The filter of a table has about 10 bits for each Set, and 6 of them are set for a key, in one line of 64 bytes that
//! the key's hash chooses. So a lookup reads one block of the file, and one line of the processor's cache. About 1.5%
//! of the absent keys pass. (F. Putze, P. Sanders, J. Singler, "Cache-, hash- and space-efficient Bloom filters",
//! 2007.)
//!
//! # Layout
//!
//! ```text
//! lines     63 lines of 64 bytes; if there is only one block, as many as are needed
//! u64       checksum: as that of a block of entries
//! ```
//!
//! The hash of a key is its XXH3 (64 bits). With `n` lines in all blocks together, the key's line is
//! `(hash >> 32) * n >> 32`. Its bits in the line are the six groups of 9 bits of `hash * 0x9e3779b97f4a7c15`, from the
//! highest bit on. Bit `i` is in byte `i / 8`, with the value `1 << i % 8`.

use xxhash_rust::xxh3::xxh3_64;

use super::block::{BLOCK_BYTES, CHECKSUM_BYTES, sign};

const BITS_PER_KEY: usize = 10;

const PROBES: u32 = 6;

const LINE_BYTES: usize = 64;

/// The number of lines of a full block.
const LINES: usize = (BLOCK_BYTES - CHECKSUM_BYTES) / LINE_BYTES;

/// The hash of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KeyHash(u64);

impl KeyHash {
    pub(super) fn of(key: &[u8]) -> Self {
        Self(xxh3_64(key))
    }

    /// Returns the block of the key, and its line in it.
    fn place(self, size: FilterSize) -> (u32, usize) {
        let lines = u64::from(size.blocks) * size.lines() as u64;
        let line = (((self.0 >> 32) * lines) >> 32) as usize;
        ((line / size.lines()) as u32, line % size.lines())
    }

    /// Returns which block the key belongs to.
    pub(super) fn block(self, size: FilterSize) -> u32 {
        self.place(size).0
    }

    /// Returns the byte of each of its bits in a line, and the bit's value.
    fn bits(self) -> impl Iterator<Item = (usize, u8)> {
        let mixed = self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (1..=PROBES).map(move |probe| {
            let bit = (mixed >> (64 - 9 * probe)) as usize % (8 * LINE_BYTES);
            (bit / 8, 1 << (bit % 8))
        })
    }
}

/// The size of a filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct FilterSize {
    /// The number of blocks. Zero if there are no keys.
    pub(super) blocks: u32,
    /// The length of each, in bytes.
    pub(super) block_bytes: u32,
}

impl FilterSize {
    fn of(keys: usize) -> Self {
        let lines = (keys * BITS_PER_KEY).div_ceil(8 * LINE_BYTES);
        let blocks = lines.div_ceil(LINES);
        let block_bytes = lines.min(LINES) * LINE_BYTES + CHECKSUM_BYTES;
        Self {
            blocks: u32::try_from(blocks).expect("a table is far smaller"),
            block_bytes: u32::try_from(block_bytes).expect("a block is small"),
        }
    }

    /// Returns the number of lines of a block.
    fn lines(self) -> usize {
        (self.block_bytes as usize / LINE_BYTES).max(1)
    }
}

/// Returns the size of the filter of some keys, and its blocks. `seed` returns the seed of a block from where it begins
/// in the filter.
pub(super) fn build(keys: &[KeyHash], seed: impl Fn(u64) -> u64) -> (FilterSize, Vec<Vec<u8>>) {
    let size = FilterSize::of(keys.len());
    let mut blocks = vec![vec![0; size.lines() * LINE_BYTES]; size.blocks as usize];
    for key in keys {
        let (block, line) = key.place(size);
        let line = &mut blocks[block as usize][line * LINE_BYTES..][..LINE_BYTES];
        for (byte, bit) in key.bits() {
            line[byte] |= bit;
        }
    }
    for (number, block) in (0..).zip(&mut blocks) {
        sign(block, seed(number * u64::from(size.block_bytes)));
    }
    (size, blocks)
}

/// Returns whether a key may be one of those of its block.
pub(super) fn may_contain(block: &[u8], size: FilterSize, key: KeyHash) -> bool {
    let (_, line) = key.place(size);
    let line = block.get(line * LINE_BYTES..(line + 1) * LINE_BYTES);
    line.is_some_and(|line| key.bits().all(|(byte, bit)| line[byte] & bit != 0))
}

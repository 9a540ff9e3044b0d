//! Tables: sorted entries in the chunks of a store's file, which never change.
//!
//! # Layout
//!
//! A table is a sequence of bytes, in one chunk after the other. Places are offsets from its begin.
//!
//! ```text
//! leaves    blocks of entries, in key order; after some of them, the block of the index that leads to them:
//!             key    a separator: after all entries of the leaf before, and at most the first key of the leaf
//!             value  a reference to the leaf
//! filter    the blocks of the Bloom filter of the keys of all Sets
//! root      16 bytes  "fdbq-keyspace-t\n"
//!           u64       number of Sets
//!           u64       number of Gaps
//!           u64       bytes of all keys and values, and of the begins and ends of Gaps
//!           u64       where the filter begins
//!           u32       number of its blocks
//!           u32       length of each, in bytes
//!           u16       length of the key before which the last entry ends, then the key
//!           u32       number of blocks of the index, then for each:
//!             u16     length of its first separator, then the separator
//!             ref     a reference to the block
//!           u64       checksum: XXH3 (64 bits) of all bytes of the root before, seeded as that of a block
//!
//! reference u64       where the block begins
//!           u32       its length, in bytes
//!           u8        1 if there are Gaps in the leaf, or in a leaf below
//! ```
//!
//! The first separator is the first key. A table ends after about 64 MiB of entries, or when its root has 256 KiB.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;

use super::block::{Block, checked, seed};
use super::cache::Cached;
use super::chunks::{Chunk, ChunkFile};
use super::damage::{Damage, FileError};
use super::filter::{FilterSize, KeyHash, may_contain};
use super::heads::Heads;
use super::resident::Resident;
use crate::stores::embedded::entries::{Entry, Lookup, Position};
use crate::values::record::Fields;

/// The first bytes of a root. Damaged files are known by them.
pub(super) const MAGIC: &[u8; 16] = b"fdbq-keyspace-t\n";

/// A reference to a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BlockRef {
    pub(super) offset: u64,
    pub(super) bytes: u32,
    pub(super) has_gaps: bool,
}

impl BlockRef {
    pub(super) fn encode(self) -> [u8; 13] {
        let mut bytes = [0; 13];
        bytes[..8].copy_from_slice(&self.offset.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.bytes.to_be_bytes());
        bytes[12] = self.has_gaps.into();
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Damage> {
        let mut fields = Fields::new(bytes);
        let read = Self::read(&mut fields).and_then(|block| fields.end().map(|()| block));
        read.map_err(|_| Damage::of_block())
    }

    fn read(fields: &mut Fields<'_>) -> Result<Self, String> {
        Ok(Self {
            offset: fields.u64()?,
            bytes: fields.u32()?,
            has_gaps: match fields.array()? {
                [0] => false,
                [1] => true,
                [found] => return Err(format!("{found} is no flag")),
            },
        })
    }
}

/// What a table holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Counts {
    pub(crate) sets: u64,
    pub(crate) gaps: u64,
    /// The bytes of keys, values, and begins and ends of Gaps.
    pub(crate) bytes: u64,
}

impl Counts {
    pub(super) fn count(&mut self, entry: Entry<'_>) {
        match entry {
            Entry::Set { .. } => self.sets += 1,
            Entry::Gap { .. } => self.gaps += 1,
        }
        self.bytes += (entry.key().len() + entry.tail().len()) as u64;
    }

    pub(super) fn entries(self) -> u64 {
        self.sets + self.gaps
    }
}

/// The root of a table. It stays in memory while the table is in use.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Root {
    pub(super) counts: Counts,
    pub(super) filter_start: u64,
    pub(super) filter: FilterSize,
    /// The key before which the last entry ends.
    pub(super) end: Vec<u8>,
    pub(super) index: RootIndex,
}

/// The blocks of an index, each with its first separator.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RootIndex {
    /// There is at least one.
    blocks: Vec<(Box<[u8]>, BlockRef)>,
    heads: Heads,
}

impl RootIndex {
    /// Returns the index of blocks, which are sorted by their separators.
    pub(super) fn new(blocks: Vec<(Box<[u8]>, BlockRef)>) -> Self {
        let heads = Heads::of(blocks.iter().map(|(separator, _)| &**separator));
        Self { blocks, heads }
    }

    pub(super) fn blocks(&self) -> &[(Box<[u8]>, BlockRef)] {
        &self.blocks
    }

    /// Returns the last block whose first separator is before a position.
    fn find(&self, position: Position<'_>) -> Option<usize> {
        let separator = |block: usize| &*self.blocks[block].0;
        self.heads.count_before(position, separator).checked_sub(1)
    }
}

impl Root {
    /// Returns the root without its checksum.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        let Counts {
            sets,
            gaps,
            bytes: content,
        } = self.counts;
        for number in [sets, gaps, content, self.filter_start] {
            bytes.extend_from_slice(&number.to_be_bytes());
        }
        for number in [self.filter.blocks, self.filter.block_bytes] {
            bytes.extend_from_slice(&number.to_be_bytes());
        }
        push_key(&mut bytes, &self.end);
        let count = u32::try_from(self.index.blocks.len()).expect("a root is small");
        bytes.extend_from_slice(&count.to_be_bytes());
        for (separator, block) in &self.index.blocks {
            push_key(&mut bytes, separator);
            bytes.extend_from_slice(&block.encode());
        }
        bytes
    }

    /// Decodes a root without its checksum.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, Damage> {
        let read = || {
            let mut fields = Fields::new(bytes);
            if fields.array()? != *MAGIC {
                return Err("it is no root".to_owned());
            }
            let counts = Counts {
                sets: fields.u64()?,
                gaps: fields.u64()?,
                bytes: fields.u64()?,
            };
            let filter_start = fields.u64()?;
            let filter = FilterSize {
                blocks: fields.u32()?,
                block_bytes: fields.u32()?,
            };
            let end = read_key(&mut fields)?;
            let mut index: Vec<(Box<[u8]>, _)> = Vec::new();
            for _ in 0..fields.u32()? {
                let separator = read_key(&mut fields)?;
                index.push((separator.into(), BlockRef::read(&mut fields)?));
            }
            fields.end()?;
            let is_ascending = index.is_sorted_by(|(one, _), (next, _)| one < next);
            if !is_ascending || index.first().is_none_or(|(first, _)| *end <= **first) {
                return Err("its keys have no order".to_owned());
            }
            Ok(Self {
                counts,
                filter_start,
                filter,
                end,
                index: RootIndex::new(index),
            })
        };
        read().map_err(|_| Damage::of_block())
    }
}

pub(super) fn push_key(bytes: &mut Vec<u8>, key: &[u8]) {
    let len = u16::try_from(key.len()).expect("a key has at most 10,001 bytes");
    bytes.extend_from_slice(&len.to_be_bytes());
    bytes.extend_from_slice(key);
}

pub(super) fn read_key(fields: &mut Fields<'_>) -> Result<Vec<u8>, String> {
    let len = u16::from_be_bytes(fields.array()?);
    Ok(fields.take(len.into())?.to_vec())
}

/// How a reader treats blocks that it reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Caching {
    /// They come from the cache, and go to it.
    Cached,
    /// They come from the file: a merge reads each only once, and a check must not be satisfied by a copy in memory.
    Direct,
}

/// A table, or the part of one that a merge has left.
pub(super) struct Table {
    pub(super) id: u64,
    /// The length of the whole table, in bytes.
    pub(super) bytes: u64,
    pub(super) root_bytes: u32,
    pub(super) root: Arc<Root>,
    pub(super) resident: Arc<Resident>,
    pub(super) file: Arc<ChunkFile>,
    /// The number of its chunks that were freed.
    pub(super) first_chunk: u32,
    /// The other chunks.
    pub(super) chunks: Vec<Arc<Chunk>>,
}

/// The leaf that a position leads to, and the block of the index that leads to it.
pub(super) struct Descent<'a> {
    /// The index of the block of the index.
    pub(super) top: usize,
    pub(super) middle: Cow<'a, Arc<Block>>,
    /// The index of the leaf in it.
    pub(super) leaf: usize,
}

impl Table {
    /// Reads the root of a table whose other fields are known.
    pub(super) fn open(
        file: &Arc<ChunkFile>,
        id: u64,
        bytes: u64,
        root_bytes: u32,
        first_chunk: u32,
        chunks: Vec<Arc<Chunk>>,
    ) -> Result<Self, FileError> {
        let mut table = Self {
            id,
            bytes,
            root_bytes,
            root: Arc::new(Root {
                counts: Counts::default(),
                filter_start: 0,
                filter: FilterSize::default(),
                end: Vec::new(),
                index: RootIndex::new(Vec::new()),
            }),
            resident: Resident::new(file, 0, 0),
            file: file.clone(),
            first_chunk,
            chunks,
        };
        let all_chunks = u64::from(first_chunk) + table.chunks.len() as u64;
        if bytes.div_ceil(file.layout.chunk_bytes.into()) != all_chunks {
            return Err(Damage::of_block().into());
        }
        let start = bytes
            .checked_sub(root_bytes.into())
            .ok_or_else(Damage::of_block)?;
        let root = table.read(start, root_bytes)?;
        let root = Root::decode(checked(&root, seed(id, start))?)?;
        let FilterSize {
            blocks,
            block_bytes,
        } = root.filter;
        let filter_bytes = u64::from(blocks) * u64::from(block_bytes);
        let filter_end = root.filter_start.checked_add(filter_bytes);
        let is_empty = blocks > 0 && block_bytes == 0;
        let places = root.index.blocks.iter().map(|(_, block)| block.offset);
        let is_ascending = places.clone().is_sorted() && places.max() <= Some(root.filter_start);
        if is_empty || !is_ascending || filter_end.is_none_or(|end| start < end) {
            return Err(Damage::of_block().into());
        }
        table.resident = Resident::new(file, root.index.blocks.len(), root.filter.blocks);
        table.root = Arc::new(root);
        Ok(table)
    }

    pub(super) fn first_key(&self) -> &[u8] {
        &self.root.index.blocks[0].0
    }

    /// Returns about how many bytes of entries a Gap hides, without reading entries.
    pub(super) fn bytes_in_gap(&self, begin: &[u8], end: &[u8]) -> Result<u64, FileError> {
        let leaf_of = |key| -> Result<u64, FileError> {
            let descent = self.descend(Position::before(key), Caching::Cached)?;
            descent.map_or(Ok(0), |descent| Ok(descent.leaf_ref()?.offset))
        };
        let last = if *self.root.end <= *end {
            self.root.filter_start
        } else {
            leaf_of(end)?
        };
        let bytes = last.saturating_sub(leaf_of(begin)?);
        if bytes > 0 {
            return Ok(bytes);
        }
        // A Gap within a leaf usually begins with the key that it hides.
        let counts = self.root.counts;
        let hides_begin = self.may_be_set(KeyHash::of(begin))?;
        Ok(if hides_begin {
            counts.bytes / counts.entries().max(1)
        } else {
            0
        })
    }

    /// Returns where the last byte of its chunks ends in the file.
    pub(super) fn end_in_file(&self) -> u64 {
        let chunk_bytes = u64::from(self.file.layout.chunk_bytes);
        let begins = (self.first_chunk..).map(|chunk| self.file.start(chunk));
        let ends = self.chunks.iter().zip(begins).map(|(chunk, begin)| {
            let used = self.bytes.saturating_sub(begin).min(chunk_bytes);
            self.file.start(chunk.number()) + used
        });
        ends.max().unwrap_or(0)
    }

    /// Returns the bytes that it takes in the file.
    pub(super) fn bytes_left(&self) -> u64 {
        self.bytes - self.file.start(self.first_chunk)
    }

    /// Returns the same table without the chunks that only hold entries before `key`.
    pub(super) fn without_before(&self, key: &[u8]) -> Result<Self, FileError> {
        let first_chunk = match self.descend(Position::before(key), Caching::Cached)? {
            Some(descent) => self.chunk_of(descent.leaf_ref()?.offset),
            None => 0,
        };
        let freed = first_chunk.saturating_sub(self.first_chunk);
        let chunks = self.chunks.get(freed as usize..);
        Ok(Self {
            first_chunk: self.first_chunk + freed,
            ..self.with_chunks(chunks.ok_or_else(Damage::of_block)?.to_vec())
        })
    }

    /// Returns the table in other chunks.
    pub(super) fn with_chunks(&self, chunks: Vec<Arc<Chunk>>) -> Self {
        Self {
            root: self.root.clone(),
            resident: self.resident.clone(),
            file: self.file.clone(),
            chunks,
            ..*self
        }
    }

    fn chunk_of(&self, offset: u64) -> u32 {
        (offset / u64::from(self.file.layout.chunk_bytes)) as u32
    }

    /// Reads bytes of the table.
    fn read(&self, offset: u64, bytes: u32) -> Result<Vec<u8>, FileError> {
        let end = offset.checked_add(bytes.into());
        if end.is_none_or(|end| end > self.bytes) {
            return Err(Damage::of_block().into());
        }
        let chunk_bytes = u64::from(self.file.layout.chunk_bytes);
        let mut out = vec![0; bytes as usize];
        let mut at = offset;
        let mut rest = &mut out[..];
        while !rest.is_empty() {
            let index = self.chunk_of(at).checked_sub(self.first_chunk);
            let chunk = index.and_then(|index| self.chunks.get(index as usize));
            let chunk = chunk.ok_or_else(Damage::of_block)?;
            let in_chunk = at % chunk_bytes;
            let len = rest.len().min((chunk_bytes - in_chunk) as usize);
            let (piece, after) = rest.split_at_mut(len);
            self.file
                .read(self.file.start(chunk.number()) + in_chunk, piece)?;
            at += len as u64;
            rest = after;
        }
        Ok(out)
    }

    /// Reads a block of entries, which begins at or after `low` and ends at or before `high`.
    pub(super) fn block(
        &self,
        block: BlockRef,
        low: &[u8],
        high: Option<&[u8]>,
        caching: Caching,
    ) -> Result<Arc<Block>, FileError> {
        let read = || {
            let bytes = self.read(block.offset, block.bytes)?;
            let read = Block::decode(bytes, seed(self.id, block.offset))?;
            let end = read.entry(read.len() - 1).end();
            let is_within =
                low <= read.entry(0).key() && high.is_none_or(|high| end <= Position::before(high));
            if !is_within {
                return Err(Damage::of_order().into());
            }
            Ok(Arc::new(read))
        };
        if caching == Caching::Direct {
            return read();
        }
        let cached = self
            .file
            .cache
            .get((self.resident.number, block.offset), || {
                read().map(Cached::Entries)
            })?;
        match cached {
            Cached::Entries(block) => Ok(block),
            Cached::Filter(_) => Err(Damage::of_block().into()),
        }
    }

    /// Reads a block of the index.
    pub(super) fn middle(
        &self,
        top: usize,
        caching: Caching,
    ) -> Result<Cow<'_, Arc<Block>>, FileError> {
        let (low, block) = &self.root.index.blocks[top];
        if caching == Caching::Direct {
            return self.block(*block, low, None, caching).map(Cow::Owned);
        }
        let slot = &self.resident.middles[top];
        if let Some(middle) = slot.get() {
            return Ok(Cow::Borrowed(middle));
        }
        let middle = self.block(*block, low, None, caching)?;
        if self.resident.reserve(middle.bytes()) {
            // If another thread was faster, the bytes are counted twice, for as long as the table is in use.
            let _ = slot.set(middle.clone());
        }
        Ok(Cow::Owned(middle))
    }

    /// Reads a leaf.
    pub(super) fn leaf(
        &self,
        top: usize,
        middle: &Block,
        leaf: usize,
        caching: Caching,
    ) -> Result<Arc<Block>, FileError> {
        let entry = middle.entry(leaf);
        let next = if leaf + 1 < middle.len() {
            Some(middle.entry(leaf + 1).key())
        } else {
            self.root.index.blocks.get(top + 1).map(|(key, _)| &key[..])
        };
        let block = BlockRef::decode(entry.tail())?;
        let end = next.unwrap_or(&self.root.end);
        self.block(block, entry.key(), Some(end), caching)
    }

    /// Finds the last leaf that begins before a position. `None` if the table does not.
    pub(super) fn descend(
        &self,
        position: Position<'_>,
        caching: Caching,
    ) -> Result<Option<Descent<'_>>, FileError> {
        match self.root.index.find(position) {
            Some(top) => self.descend_from(top, position, caching).map(Some),
            None => Ok(None),
        }
    }

    fn descend_from(
        &self,
        top: usize,
        position: Position<'_>,
        caching: Caching,
    ) -> Result<Descent<'_>, FileError> {
        let middle = self.middle(top, caching)?;
        // Its first separator is the one in the root.
        let leaf = middle.count_before(position).saturating_sub(1);
        Ok(Descent { top, middle, leaf })
    }

    /// Returns what the table knows about a key.
    pub(super) fn lookup(&self, key: &[u8], hash: KeyHash) -> Result<Lookup<Bytes>, FileError> {
        let may_be_set = self.may_be_set(hash)?;
        if !may_be_set && (self.root.counts.gaps == 0 || *self.root.end <= *key) {
            return Ok(Lookup::Unknown);
        }
        let position = Position::after(key);
        let Some(top) = self.root.index.find(position) else {
            return Ok(Lookup::Unknown);
        };
        if !may_be_set && !self.root.index.blocks[top].1.has_gaps {
            return Ok(Lookup::Unknown);
        }
        let descent = self.descend_from(top, position, Caching::Cached)?;
        if !may_be_set && !descent.leaf_ref()?.has_gaps {
            return Ok(Lookup::Unknown);
        }
        let leaf = self.leaf(top, &descent.middle, descent.leaf, Caching::Cached)?;
        // Without an entry before the key, a Gap of the leaf before does not reach this one.
        let Some(floor) = leaf.count_before(position).checked_sub(1) else {
            return Ok(Lookup::Unknown);
        };
        Ok(match leaf.entry(floor) {
            Entry::Set { key: found, value } if found == key => {
                Lookup::Value(Bytes::copy_from_slice(value))
            }
            Entry::Gap { end, .. } if key < end => Lookup::Cleared,
            _ => Lookup::Unknown,
        })
    }

    fn may_be_set(&self, hash: KeyHash) -> Result<bool, FileError> {
        let size = self.root.filter;
        if size.blocks == 0 {
            return Ok(false);
        }
        let number = hash.block(size);
        let slot = &self.resident.filters[number as usize];
        if let Some(block) = slot.get() {
            return Ok(may_contain(block, size, hash));
        }
        let place = (self.resident.number, self.filter_offset(number));
        let cached = self.file.cache.get(place, || {
            let block = self.filter_block(number)?;
            Ok::<_, FileError>(Cached::Filter(block.into()))
        })?;
        match cached {
            Cached::Filter(block) => {
                if self.resident.reserve(block.len()) {
                    let _ = slot.set(block.clone());
                }
                Ok(may_contain(&block, size, hash))
            }
            Cached::Entries(_) => Err(Damage::of_block().into()),
        }
    }

    pub(super) fn filter_offset(&self, number: u32) -> u64 {
        let FilterSize { block_bytes, .. } = self.root.filter;
        self.root.filter_start + u64::from(number) * u64::from(block_bytes)
    }

    /// Reads a block of the filter from the file.
    pub(super) fn filter_block(&self, number: u32) -> Result<Vec<u8>, FileError> {
        let offset = self.filter_offset(number);
        let block = self.read(offset, self.root.filter.block_bytes)?;
        checked(&block, seed(self.id, offset))?;
        Ok(block)
    }
}

impl Descent<'_> {
    pub(super) fn leaf_ref(&self) -> Result<BlockRef, Damage> {
        BlockRef::decode(self.middle.entry(self.leaf).tail())
    }
}

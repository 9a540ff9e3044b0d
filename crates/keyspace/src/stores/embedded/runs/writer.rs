//! Writes tables and runs.

use std::mem;
use std::sync::Arc;

use super::block::{BlockBuilder, seed, sign};
use super::chunks::{Chunk, ChunkFile};
use super::damage::FileError;
use super::filter::{self, KeyHash};
use super::heads::common_bytes;
use super::resident::Resident;
use super::store::Runs;
use super::table::{BlockRef, Counts, Root, RootIndex, Table};
use crate::stores::embedded::entries::Entry;

/// The fewest entries of a block of the index, which bounds the index of long keys.
const MIN_FAN_OUT: usize = 4;

/// The bytes of separators at which a table ends.
const MAX_ROOT_BYTES: usize = 256 << 10;

/// How many chunks of a table are written before they are flushed. Flushed all at once, those of a merge would hold up
/// the flushes of the log for as long as the disk takes.
const FLUSH_CHUNKS: usize = 8;

/// Writes one table.
struct TableWriter {
    file: Arc<ChunkFile>,
    id: u64,
    leaf: BlockBuilder,
    leaf_has_gaps: bool,
    middle: BlockBuilder,
    middle_has_gaps: bool,
    /// The first separator of `middle`.
    middle_key: Vec<u8>,
    /// The first key of `leaf`, or a shorter separator.
    leaf_key: Vec<u8>,
    /// The end of the last entry of the leaf before.
    last: Vec<u8>,
    index: Vec<(Box<[u8]>, BlockRef)>,
    index_bytes: usize,
    hashes: Vec<KeyHash>,
    counts: Counts,
    /// The bytes before `buffer`.
    written: u64,
    /// The bytes that are not written yet, less than a chunk.
    buffer: Vec<u8>,
    chunks: Vec<Arc<Chunk>>,
}

impl TableWriter {
    /// Begins a table with an id that no other table has.
    pub(super) fn new(file: Arc<ChunkFile>, id: u64) -> Self {
        Self {
            file,
            id,
            leaf: BlockBuilder::default(),
            leaf_has_gaps: false,
            middle: BlockBuilder::default(),
            middle_has_gaps: false,
            middle_key: Vec::new(),
            leaf_key: Vec::new(),
            last: Vec::new(),
            index: Vec::new(),
            index_bytes: 0,
            hashes: Vec::new(),
            counts: Counts::default(),
            written: 0,
            buffer: Vec::new(),
            chunks: Vec::new(),
        }
    }

    /// Adds an entry, which must be after all before.
    pub(super) fn add(&mut self, entry: Entry<'_>) -> Result<(), FileError> {
        if self.leaf.len() == 0 {
            let separator = if self.counts.entries() == 0 {
                entry.key()
            } else {
                separator(&self.last, entry.key())
            };
            self.leaf_key.clear();
            self.leaf_key.extend_from_slice(separator);
        }
        self.leaf.push(entry);
        self.counts.count(entry);
        let last = match entry {
            Entry::Set { key, .. } => {
                self.hashes.push(KeyHash::of(key));
                key
            }
            Entry::Gap { end, .. } => {
                self.leaf_has_gaps = true;
                end
            }
        };
        if self.leaf.is_full() {
            self.last.clear();
            self.last.extend_from_slice(last);
            self.end_leaf()?;
        }
        Ok(())
    }

    /// Returns whether the table should end.
    pub(super) fn is_full(&self) -> bool {
        self.counts.bytes >= self.file.layout.table_bytes || self.index_bytes >= MAX_ROOT_BYTES
    }

    fn end_leaf(&mut self) -> Result<(), FileError> {
        if self.leaf.len() == 0 {
            return Ok(());
        }
        let has_gaps = mem::take(&mut self.leaf_has_gaps);
        let block = self.leaf.finish(seed(self.id, self.len()));
        let leaf = self.write(&block, has_gaps)?;
        if self.middle.len() == 0 {
            self.middle_key.clone_from(&self.leaf_key);
        }
        self.middle_has_gaps |= has_gaps;
        self.middle.push(Entry::Set {
            key: &self.leaf_key,
            value: &leaf.encode(),
        });
        if self.middle.is_full() && self.middle.len() >= MIN_FAN_OUT {
            self.end_middle()?;
        }
        Ok(())
    }

    fn end_middle(&mut self) -> Result<(), FileError> {
        if self.middle.len() == 0 {
            return Ok(());
        }
        let has_gaps = mem::take(&mut self.middle_has_gaps);
        let block = self.middle.finish(seed(self.id, self.len()));
        let middle = self.write(&block, has_gaps)?;
        self.index_bytes += self.middle_key.len();
        self.index.push((self.middle_key[..].into(), middle));
        Ok(())
    }

    /// Writes the rest of the table. `end` is the key before which the last entry ends. The last bytes are not flushed.
    pub(super) fn finish(mut self, end: Vec<u8>) -> Result<Table, FileError> {
        self.end_leaf()?;
        self.end_middle()?;
        let filter_start = self.len();
        let hashes = mem::take(&mut self.hashes);
        let id = self.id;
        let (filter, blocks) = filter::build(&hashes, |offset| seed(id, filter_start + offset));
        for block in blocks {
            self.append(&block)?;
        }
        let root = Root {
            counts: self.counts,
            filter_start,
            filter,
            end,
            index: RootIndex::new(mem::take(&mut self.index)),
        };
        let start = self.len();
        let mut bytes = root.encode();
        sign(&mut bytes, seed(id, start));
        self.append(&bytes)?;
        let buffer = mem::take(&mut self.buffer);
        self.write_chunk(&buffer)?;
        Ok(Table {
            id,
            bytes: self.written,
            root_bytes: u32::try_from(bytes.len()).expect("a root is small"),
            resident: Resident::new(&self.file, root.index.blocks().len(), root.filter.blocks),
            root: Arc::new(root),
            file: self.file,
            first_chunk: 0,
            chunks: self.chunks,
        })
    }

    fn len(&self) -> u64 {
        self.written + self.buffer.len() as u64
    }

    fn write(&mut self, block: &[u8], has_gaps: bool) -> Result<BlockRef, FileError> {
        let offset = self.len();
        self.append(block)?;
        Ok(BlockRef {
            offset,
            bytes: u32::try_from(block.len()).expect("a block is small"),
            has_gaps,
        })
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), FileError> {
        let chunk_bytes = self.file.layout.chunk_bytes as usize;
        let mut rest = bytes;
        loop {
            let room = chunk_bytes - self.buffer.len();
            let (piece, after) = rest.split_at(room.min(rest.len()));
            self.buffer.extend_from_slice(piece);
            if self.buffer.len() < chunk_bytes {
                return Ok(());
            }
            let mut buffer = mem::take(&mut self.buffer);
            self.write_chunk(&buffer)?;
            buffer.clear();
            self.buffer = buffer;
            rest = after;
        }
    }

    fn write_chunk(&mut self, bytes: &[u8]) -> Result<(), FileError> {
        if bytes.is_empty() {
            return Ok(());
        }
        let chunk = self.file.take();
        self.file.write(self.file.start(chunk.number()), bytes)?;
        self.written += bytes.len() as u64;
        self.chunks.push(Arc::new(chunk));
        if self.chunks.len().is_multiple_of(FLUSH_CHUNKS) {
            self.file.flush()?;
        }
        Ok(())
    }
}

/// Writes the tables of a run. The last bytes are not flushed.
pub(crate) struct RunWriter<'a> {
    runs: &'a Runs,
    tables: Vec<Arc<Table>>,
    table: Option<TableWriter>,
    /// The key before which the last entry ends.
    end: Vec<u8>,
    /// About how many bytes of older runs the Gaps hide.
    pub(super) hidden_bytes: u64,
}

impl<'a> RunWriter<'a> {
    pub(super) fn new(runs: &'a Runs) -> Self {
        Self {
            runs,
            tables: Vec::new(),
            table: None,
            end: Vec::new(),
            hidden_bytes: 0,
        }
    }

    /// Adds an entry, which must be after all before.
    pub(crate) fn add(&mut self, entry: Entry<'_>) -> Result<(), FileError> {
        let runs = self.runs;
        let table = self.table.get_or_insert_with(|| {
            let id = u64::from_be_bytes(runs.options.env.random_bytes());
            TableWriter::new(runs.file.clone(), id)
        });
        table.add(entry)?;
        let is_full = table.is_full();
        self.end.clear();
        match entry {
            Entry::Set { key, .. } => {
                self.end.extend_from_slice(key);
                self.end.push(0);
            }
            Entry::Gap { end, .. } => self.end.extend_from_slice(end),
        }
        if is_full { self.end_table() } else { Ok(()) }
    }

    fn end_table(&mut self) -> Result<(), FileError> {
        if let Some(table) = self.table.take() {
            self.tables.push(Arc::new(table.finish(self.end.clone())?));
        }
        Ok(())
    }

    /// Returns the key before which the last entry ends.
    pub(super) fn end(&self) -> &[u8] {
        &self.end
    }

    /// Returns whether a table has ended.
    pub(super) fn has_table(&self) -> bool {
        !self.tables.is_empty()
    }

    pub(super) fn finish(mut self) -> Result<Vec<Arc<Table>>, FileError> {
        self.end_table()?;
        Ok(self.tables)
    }
}

/// Returns the shortest begin of `key` that is not before `last`, which is at most `key`.
pub(super) fn separator<'a>(last: &[u8], key: &'a [u8]) -> &'a [u8] {
    &key[..key.len().min(common_bytes(last, key) + 1)]
}

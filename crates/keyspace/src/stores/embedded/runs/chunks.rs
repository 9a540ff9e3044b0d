//! The file of a store: its chunks, and what reads and writes them.
//!
//! A chunk is used again only after a manifest without it was flushed, and after the last reader of the table has
//! ended.
//!
//! # Layout
//!
//! The file consists of chunks of 1 MiB. The first two hold a manifest each. Each of the others belongs to one table,
//! or is free. The last one in use may be shorter.
//!
//! The manifest lists runs. A run is entries in key order, in tables that do not overlap: a *Set* is a row, and in a
//! *Gap* (begin <= key < end) no key exists. Entries of newer runs hide those of older ones.

use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::{MappedRwLockReadGuard, Mutex, RwLock, RwLockReadGuard};

use super::cache::BlockCache;
use super::damage::{Damage, FileError};
use crate::stores::embedded::backend::File;

/// The sizes of a store's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    /// The length of a chunk, in bytes. A part of the format; only tests choose another one.
    pub(crate) chunk_bytes: u32,
    /// The length of its entries at which a table ends, in bytes.
    pub(crate) table_bytes: u64,
}

impl Default for Layout {
    fn default() -> Self {
        Self {
            chunk_bytes: 1 << 20,
            table_bytes: 64 << 20,
        }
    }
}

/// The number of chunks of the manifest.
pub(super) const MANIFEST_CHUNKS: u32 = 2;

/// A store's file, whose chunks are taken and freed.
pub(crate) struct ChunkFile {
    /// `None` once the store was closed.
    file: RwLock<Option<File>>,
    pub(super) layout: Layout,
    pub(super) cache: BlockCache,
    /// The number of the next table that is opened or written.
    pub(super) next_table: AtomicU64,
    free: Mutex<FreeChunks>,
    /// Whether what was found in the file was flushed: a process that was killed may have left writes in a cache.
    is_flushed: AtomicBool,
    /// Locked during a flush.
    flushing: Mutex<()>,
    has_failed_flush: AtomicBool,
    /// What is damaged. The file is not written again then: that might damage it further.
    damage: OnceLock<Damage>,
}

#[derive(Debug)]
struct FreeChunks {
    /// The free chunks before `end`.
    free: BTreeSet<u32>,
    end: u32,
}

/// A chunk that is in use. It is free once this is dropped.
pub(super) struct Chunk {
    number: u32,
    file: Arc<ChunkFile>,
}

impl Chunk {
    pub(super) fn number(&self) -> u32 {
        self.number
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        self.file.free.lock().free.insert(self.number);
    }
}

impl ChunkFile {
    pub(super) fn new(file: File, layout: Layout, cache_bytes: usize) -> Arc<Self> {
        Arc::new(Self {
            file: RwLock::new(Some(file)),
            layout,
            cache: BlockCache::new(cache_bytes),
            next_table: AtomicU64::new(0),
            free: Mutex::new(FreeChunks {
                free: BTreeSet::new(),
                end: MANIFEST_CHUNKS,
            }),
            is_flushed: AtomicBool::new(false),
            flushing: Mutex::new(()),
            has_failed_flush: AtomicBool::new(false),
            damage: OnceLock::new(),
        })
    }

    /// Takes the lowest free chunk.
    pub(super) fn take(self: &Arc<Self>) -> Chunk {
        let mut chunks = self.free.lock();
        let number = chunks.free.pop_first().unwrap_or_else(|| {
            chunks.end += 1;
            chunks.end - 1
        });
        drop(chunks);
        self.chunk(number)
    }

    /// Takes the lowest free chunk, if it is before `other`.
    pub(super) fn take_before(self: &Arc<Self>, other: u32) -> Option<Chunk> {
        let mut chunks = self.free.lock();
        let first = chunks
            .free
            .first()
            .copied()
            .filter(|&first| first < other)?;
        chunks.free.remove(&first);
        drop(chunks);
        Some(self.chunk(first))
    }

    /// Copies the bytes of a chunk to another one.
    pub(super) fn copy(&self, from: u32, to: u32) -> Result<(), FileError> {
        let start = self.start(from);
        let left = self.len()?.saturating_sub(start);
        let mut bytes = vec![0; left.min(self.layout.chunk_bytes.into()) as usize];
        self.read(start, &mut bytes)?;
        self.write(self.start(to), &bytes)
    }

    /// Takes a chunk that the manifest names.
    ///
    /// # Errors
    /// If another table has it.
    pub(super) fn claim(self: &Arc<Self>, number: u32) -> Result<Chunk, Damage> {
        let mut chunks = self.free.lock();
        let is_free = if number >= chunks.end {
            let skipped = chunks.end..number;
            chunks.free.extend(skipped);
            chunks.end = number + 1;
            true
        } else {
            chunks.free.remove(&number)
        };
        drop(chunks);
        if is_free {
            Ok(self.chunk(number))
        } else {
            Err(Damage::new("two tables have the same chunk"))
        }
    }

    fn chunk(self: &Arc<Self>, number: u32) -> Chunk {
        Chunk {
            number,
            file: self.clone(),
        }
    }

    /// Returns the number of free chunks before the last one in use.
    pub(super) fn free_chunks(&self) -> usize {
        let mut chunks = self.free.lock();
        while chunks.end > MANIFEST_CHUNKS && chunks.free.last() == Some(&(chunks.end - 1)) {
            chunks.free.pop_last();
            chunks.end -= 1;
        }
        chunks.free.len()
    }

    /// Puts a chunk among the free ones, although it may be in use.
    #[cfg(test)]
    pub(super) fn free_early(&self, number: u32) {
        self.free.lock().free.insert(number);
    }

    /// Returns the free chunks, and where the last chunk ends.
    #[cfg(test)]
    pub(super) fn free_numbers(&self) -> (BTreeSet<u32>, u32) {
        let chunks = self.free.lock();
        (chunks.free.clone(), chunks.end)
    }

    /// Cuts off the free chunks at the end.
    pub(super) fn cut(&self) -> Result<(), FileError> {
        self.free_chunks();
        // Locked, because the next chunk that is taken lies there.
        let chunks = self.free.lock();
        let end = self.start(chunks.end);
        if end < self.len()? {
            self.set_len(end)?;
        }
        drop(chunks);
        Ok(())
    }

    /// Cuts off what is not used of the last chunk, which ends at `end`, unless a reader still has a later one.
    pub(super) fn cut_last(&self, end: u64) -> Result<(), FileError> {
        self.cut()?;
        let chunks = self.free.lock();
        if self.start(chunks.end.saturating_sub(1)) < end && end < self.len()? {
            self.set_len(end)?;
        }
        drop(chunks);
        self.flush()
    }

    /// Returns where a chunk begins in the file.
    pub(super) fn start(&self, chunk: u32) -> u64 {
        u64::from(chunk) * u64::from(self.layout.chunk_bytes)
    }

    /// Closes the file, also for readers of runs.
    pub(super) fn release(&self) {
        *self.file.write() = None;
    }

    fn file(&self) -> Result<MappedRwLockReadGuard<'_, File>, FileError> {
        let file = RwLockReadGuard::try_map(self.file.read(), Option::as_ref);
        file.map_err(|_| io::Error::other("the store is closed").into())
    }

    pub(super) fn len(&self) -> Result<u64, FileError> {
        Ok(self.file()?.len()?)
    }

    pub(super) fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), FileError> {
        self.file()?.read(offset, out).map_err(|error| {
            if error.kind() == io::ErrorKind::UnexpectedEof {
                Damage::of_length().into()
            } else {
                error.into()
            }
        })
    }

    pub(super) fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), FileError> {
        self.check()?;
        self.flush_found()?;
        Ok(self.file()?.write(offset, bytes)?)
    }

    pub(super) fn set_len(&self, len: u64) -> Result<(), FileError> {
        self.check()?;
        self.flush_found()?;
        Ok(self.file()?.set_len(len)?)
    }

    /// Flushes the file before the first change. Otherwise, a power loss could leave the change without the manifest
    /// that allows it.
    fn flush_found(&self) -> Result<(), FileError> {
        if !self.is_flushed.load(Ordering::Acquire) {
            self.flush()?;
            self.is_flushed.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Makes all writes survive a power loss.
    ///
    /// If that fails, all later changes and flushes fail, too: the system reports the failure only once, also if it was
    /// a write of another thread that failed, and what was written may be lost.
    pub(super) fn flush(&self) -> Result<(), FileError> {
        self.check()?;
        let _one_at_a_time = self.flushing.lock();
        self.check()?;
        self.file()?.sync_data().map_err(|error| {
            self.has_failed_flush.store(true, Ordering::Release);
            // Not for want of room, for which a merge would wait.
            FileError::Io(io::Error::other(error))
        })
    }

    /// Makes all later writes fail.
    pub(crate) fn give_up(&self, damage: Damage) {
        self.damage.get_or_init(|| damage);
    }

    /// Fails if the file must not be changed any more.
    fn check(&self) -> Result<(), FileError> {
        if let Some(damage) = self.damage.get() {
            return Err(damage.clone().into());
        }
        if self.has_failed_flush.load(Ordering::Acquire) {
            return Err(io::Error::other("an earlier flush has failed").into());
        }
        Ok(())
    }
}

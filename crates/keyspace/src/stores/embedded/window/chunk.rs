//! The bytes of a part's entries.
//!
//! The writes of a batch are appended to one buffer. When the batch is published, the buffer becomes a
//! chunk, which never changes or moves again. For each entry, a chunk holds the key, directly followed by
//! the *tail*: the value of a Set, or the end of a Gap. Chunks live as long as their part, even if no entry
//! refers to them any more.

use std::sync::{Arc, OnceLock};

use crate::stores::embedded::entries::Entry;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Kind {
    #[default]
    Set,
    Gap,
}

impl Kind {
    fn of(entry: Entry<'_>) -> Self {
        match entry {
            Entry::Set { .. } => Self::Set,
            Entry::Gap { .. } => Self::Gap,
        }
    }
}

/// Refers to the bytes of an entry. Takes 16 bytes, however long the entry is.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct EntryRef {
    chunk: u32,
    offset: u32,
    tail_bytes: u32,
    key_bytes: u16,
    kind: Kind,
}

impl EntryRef {
    /// Returns the length of the key and the tail.
    pub(super) fn content_bytes(self) -> usize {
        usize::from(self.key_bytes) + self.tail_bytes as usize
    }
}

/// The published chunks of a part, shared by the part and its snapshots. Chunks are only added.
///
/// Bucket `b` holds `2^b` chunks, so that adding one moves none and readers need no lock.
#[derive(Default)]
pub(super) struct Chunks {
    buckets: [OnceLock<Box<[ChunkCell]>>; 32],
}

type ChunkCell = OnceLock<Box<[u8]>>;

impl Chunks {
    /// Returns a chunk, `None` if it was not added yet.
    fn get(&self, chunk: u32) -> Option<&[u8]> {
        let (bucket, slot) = Self::place(chunk);
        let chunk = self.buckets[bucket].get()?[slot].get()?;
        Some(chunk)
    }

    fn add(&self, chunk: u32, bytes: Box<[u8]>) {
        let (bucket, slot) = Self::place(chunk);
        let bucket = self.buckets[bucket]
            .get_or_init(|| (0..1_u64 << bucket).map(|_| OnceLock::new()).collect());
        let added = bucket[slot].set(bytes);
        added.expect("a part has one writer, which numbers its chunks in order");
    }

    fn place(chunk: u32) -> (usize, usize) {
        let number = chunk + 1;
        let bucket = number.ilog2();
        (bucket as usize, (number - (1 << bucket)) as usize)
    }
}

/// The size of a batch, in bytes, up to which its buffer is copied and used again. A larger one becomes the
/// chunk.
const MAX_REUSED_BYTES: usize = 1 << 20;

/// The writer's side of a part's chunks.
#[derive(Default)]
pub(super) struct ChunkWriter {
    published: Arc<Chunks>,
    published_count: u32,
    published_bytes: usize,
    /// The writes of the current batch: the chunk with the number `published_count`.
    open: Vec<u8>,
}

impl ChunkWriter {
    /// Copies an entry to the open chunk.
    pub(super) fn append(&mut self, entry: Entry<'_>) -> EntryRef {
        let key = entry.key();
        let tail = entry.tail();
        let offset = self.open.len();
        self.open.extend_from_slice(key);
        self.open.extend_from_slice(tail);
        EntryRef {
            chunk: self.published_count,
            offset: u32::try_from(offset).expect("a batch is far smaller than 4 GiB"),
            tail_bytes: u32::try_from(tail.len()).expect("a value has at most 100,000 bytes"),
            key_bytes: u16::try_from(key.len()).expect("a key has at most 10,001 bytes"),
            kind: Kind::of(entry),
        }
    }

    /// Ends the batch, and makes its writes available to readers.
    pub(super) fn publish(&mut self) -> Arc<Chunks> {
        if !self.open.is_empty() {
            self.published_bytes += self.open.len();
            let bytes = if self.open.len() <= MAX_REUSED_BYTES {
                let copy = self.open[..].into();
                self.open.clear();
                copy
            } else {
                std::mem::take(&mut self.open).into_boxed_slice()
            };
            self.published.add(self.published_count, bytes);
            self.published_count += 1;
        }
        Arc::clone(&self.published)
    }

    /// Returns the total size of the chunks in bytes.
    pub(super) fn held_bytes(&self) -> usize {
        self.published_bytes + self.open.len()
    }

    pub(super) fn source(&self) -> Source<'_> {
        Source {
            published: &self.published,
            open: &self.open,
        }
    }
}

/// Resolves references to bytes.
#[derive(Clone, Copy)]
pub(super) struct Source<'a> {
    published: &'a Chunks,
    /// The open chunk. All other chunks that references lead to are published.
    open: &'a [u8],
}

impl<'a> Source<'a> {
    /// Resolves references to published chunks.
    pub(super) fn published(chunks: &'a Chunks) -> Self {
        Self {
            published: chunks,
            open: &[],
        }
    }

    pub(super) fn key(self, entry: EntryRef) -> &'a [u8] {
        let offset = entry.offset as usize;
        &self.chunk(entry)[offset..offset + usize::from(entry.key_bytes)]
    }

    pub(super) fn entry(self, entry: EntryRef) -> Entry<'a> {
        let offset = entry.offset as usize;
        let bytes = &self.chunk(entry)[offset..offset + entry.content_bytes()];
        let (key, tail) = bytes.split_at(usize::from(entry.key_bytes));
        match entry.kind {
            Kind::Set => Entry::Set { key, value: tail },
            Kind::Gap => Entry::Gap {
                begin: key,
                end: tail,
            },
        }
    }

    fn chunk(self, entry: EntryRef) -> &'a [u8] {
        self.published.get(entry.chunk).unwrap_or(self.open)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_takes_16_bytes() {
        assert_eq!(size_of::<EntryRef>(), 16);
    }

    #[test]
    fn chunks_are_found_by_number_before_and_after_they_are_published() {
        let mut writer = ChunkWriter::default();
        let entries: Vec<_> = (0..1000_u32)
            .map(|number| {
                let key = number.to_be_bytes();
                let entry = writer.append(Entry::Set {
                    key: &key,
                    value: b"v",
                });
                assert_eq!(writer.source().key(entry), key);
                writer.publish();
                entry
            })
            .collect();
        let published = writer.publish();
        for (number, entry) in (0..1000_u32).zip(entries) {
            assert_eq!(
                Source::published(&published).entry(entry),
                Entry::Set {
                    key: &number.to_be_bytes(),
                    value: b"v",
                }
            );
        }
        assert_eq!(writer.held_bytes(), 5000);
    }
}

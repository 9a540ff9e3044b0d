//! Blocks of sorted entries.
//!
//! A block ends with the entry that makes its entries at least 4,096 bytes long. A block of an index has at least 4
//! entries.
//!
//! # Layout
//!
//! ```text
//! entries:  u16  length of the key; bit 15 is set for a Gap
//!                key of a Set, or begin of a Gap
//!                tail: value of a Set, or end of a Gap
//! ...
//! u16 ...   where each entry begins; it ends where the next one begins
//! u16       number of entries, at least 1
//! u64       checksum: XXH3 (64 bits) of all bytes before, seeded with the place of the block
//! ```
//!
//! The seed is the XXH3 of the table's id and of the block's offset in the table, a u64 each, big-endian.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::damage::Damage;
use super::heads::{Heads, common_bytes, head};
use crate::stores::embedded::entries::{Entry, Position};

/// The length of its entries at which a block ends, in bytes.
pub(super) const BLOCK_BYTES: usize = 4096;

pub(super) const CHECKSUM_BYTES: usize = 8;

const GAP: u16 = 1 << 15;

/// Returns the seed of the checksum of the block at `offset` of a table. A block that lies at another place than the
/// one for which it was written is therefore damage.
pub(super) fn seed(table: u64, offset: u64) -> u64 {
    let mut place = [0; 16];
    place[..8].copy_from_slice(&table.to_be_bytes());
    place[8..].copy_from_slice(&offset.to_be_bytes());
    xxh3_64(&place)
}

/// Appends the checksum of `bytes` to them.
pub(super) fn sign(bytes: &mut Vec<u8>, seed: u64) {
    let checksum = xxh3_64_with_seed(bytes, seed);
    bytes.extend_from_slice(&checksum.to_be_bytes());
}

/// Returns the bytes before a checksum, which must be right.
pub(super) fn checked(bytes: &[u8], seed: u64) -> Result<&[u8], Damage> {
    match bytes.split_last_chunk() {
        Some((content, checksum))
            if xxh3_64_with_seed(content, seed) == u64::from_be_bytes(*checksum) =>
        {
            Ok(content)
        }
        _ => Err(Damage::of_block()),
    }
}

/// Writes blocks.
#[derive(Debug, Default)]
pub(super) struct BlockBuilder {
    bytes: Vec<u8>,
    starts: Vec<u16>,
}

impl BlockBuilder {
    /// Adds an entry, whose key must be larger than all before.
    pub(super) fn push(&mut self, entry: Entry<'_>) {
        let start = u16::try_from(self.bytes.len()).expect("a block ends before");
        let key = entry.key();
        let key_bytes = u16::try_from(key.len()).expect("a key has at most 10,001 bytes");
        let kind = match entry {
            Entry::Set { .. } => 0,
            Entry::Gap { .. } => GAP,
        };
        let head = (key_bytes | kind).to_be_bytes();
        self.starts.push(start);
        self.bytes.extend_from_slice(&head);
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(entry.tail());
    }

    pub(super) fn len(&self) -> usize {
        self.starts.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.bytes.len() >= BLOCK_BYTES
    }

    /// Returns the block, and leaves an empty builder.
    pub(super) fn finish(&mut self, seed: u64) -> Vec<u8> {
        let mut bytes = std::mem::take(&mut self.bytes);
        for start in &self.starts {
            bytes.extend_from_slice(&start.to_be_bytes());
        }
        let count = u16::try_from(self.starts.len()).expect("an entry has two bytes");
        bytes.extend_from_slice(&count.to_be_bytes());
        self.starts.clear();
        sign(&mut bytes, seed);
        bytes
    }
}

/// A block in memory. It was checked when it was read.
#[derive(Debug)]
pub(super) struct Block {
    bytes: Box<[u8]>,
    /// Where the entries end, and their starts begin.
    end: usize,
    heads: Heads,
}

impl Block {
    /// Checks a block: its checksum, and the order of its entries.
    pub(super) fn decode(bytes: Vec<u8>, seed: u64) -> Result<Self, Damage> {
        let content = checked(&bytes, seed)?;
        let (rest, count) = content.split_last_chunk().ok_or_else(Damage::of_block)?;
        let count = usize::from(u16::from_be_bytes(*count));
        let end = rest.len().checked_sub(2 * count);
        let end = end.ok_or_else(Damage::of_block)?;
        let (entries, starts) = rest.split_at(end);
        let heads = check(entries, starts.as_chunks().0)?;
        Ok(Self {
            bytes: bytes.into(),
            end,
            heads,
        })
    }

    pub(super) fn len(&self) -> usize {
        self.heads.len()
    }

    /// Returns the bytes that it takes in memory.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.len() + self.heads.bytes()
    }

    /// Returns an entry.
    pub(super) fn entry(&self, index: usize) -> Entry<'_> {
        let (entries, rest) = self.bytes.split_at(self.end);
        let (starts, _) = rest.as_chunks();
        let entry = entry(entries, &starts[..self.len()], index);
        entry.expect("the block was checked")
    }

    /// Returns the number of entries whose keys are before a position.
    pub(super) fn count_before(&self, position: Position<'_>) -> usize {
        self.heads
            .count_before(position, |index| self.entry(index).key())
    }
}

/// Returns an entry of a block. `starts` says where each begins.
fn entry<'a>(entries: &'a [u8], starts: &[[u8; 2]], index: usize) -> Option<Entry<'a>> {
    let start = |index: usize| starts.get(index).map(|it| u16::from_be_bytes(*it).into());
    let end = start(index + 1).unwrap_or(entries.len());
    let (head, rest) = entries.get(start(index)?..end)?.split_first_chunk()?;
    let head = u16::from_be_bytes(*head);
    let (key, tail) = rest.split_at_checked(usize::from(head & !GAP))?;
    Some(if head & GAP == 0 {
        Entry::Set { key, value: tail }
    } else {
        Entry::Gap {
            begin: key,
            end: tail,
        }
    })
}

/// Checks entries: their form and their order. Returns the heads of their keys.
fn check(entries: &[u8], starts: &[[u8; 2]]) -> Result<Heads, Damage> {
    let entry = |index| entry(entries, starts, index).ok_or_else(Damage::of_block);
    if starts.first() != Some(&[0; 2]) {
        return Err(Damage::of_block());
    }
    let (first, last) = (entry(0)?.key(), entry(starts.len() - 1)?.key());
    let prefix = &first[..common_bytes(first, last)];
    let mut heads = Vec::with_capacity(starts.len());
    let mut last: Option<(Entry<'_>, u32)> = None;
    for index in 0..starts.len() {
        let entry = entry(index)?;
        let rest = entry.key().strip_prefix(prefix);
        let head = head(rest.ok_or_else(Damage::of_order)?);
        // Most keys differ in their heads already.
        let is_after = match last {
            Some((Entry::Set { .. }, last)) if last < head => is_sound(entry),
            last => is_after(entry, last.map(|(last, _)| last)),
        };
        if !is_after {
            return Err(Damage::of_order());
        }
        heads.push(head);
        last = Some((entry, head));
    }
    Ok(Heads::new(prefix.len(), heads.into()))
}

fn is_sound(entry: Entry<'_>) -> bool {
    match entry {
        Entry::Set { .. } => true,
        Entry::Gap { begin, end } => begin < end,
    }
}

/// Returns whether an entry is sound, and begins where `last` ends or after that.
fn is_after(entry: Entry<'_>, last: Option<Entry<'_>>) -> bool {
    is_sound(entry)
        && match last {
            Some(Entry::Set { key, .. }) => key < entry.key(),
            Some(Entry::Gap { end, .. }) => end <= entry.key(),
            None => true,
        }
}

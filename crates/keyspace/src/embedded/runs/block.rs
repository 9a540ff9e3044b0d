//! Blocks of sorted entries.
//!
//! # Layout
//!
//! ```text
//! entries:  u16  the length of the key; bit 15 is set for a Gap
//!                the key of a Set, or the begin of a Gap
//!                the tail: the value of a Set, or the end of a Gap
//! ...
//! u16 ...   where each entry begins
//! u16       the number of entries, at least 1
//! u64       checksum: XXH3 (64 bits) of all bytes before, seeded with the place of the block
//! ```
//!
//! The seed is the XXH3 of the table's id and of the offset at which the block begins in the table, a u64 each. Numbers
//! are big-endian. An entry ends where the next one begins. A block ends with the entry that makes its entries
//! at least 4,096 bytes long; a block of an index has at least 4 entries.

use std::cmp::Ordering;

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::damage::Damage;
use crate::embedded::entries::{Entry, Position};

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
    /// The length of the bytes with which all keys begin.
    prefix: usize,
    /// The next four bytes of each key, as a number. To find a key, these few bytes are looked at, and not those of the
    /// entries, which are far apart.
    heads: Box<[u32]>,
}

impl Block {
    /// Checks a block: its checksum, and the order of its entries.
    pub(super) fn decode(bytes: Vec<u8>, seed: u64) -> Result<Self, Damage> {
        let content = checked(&bytes, seed)?;
        let (rest, count) = content.split_last_chunk().ok_or_else(Damage::of_block)?;
        let count = usize::from(u16::from_be_bytes(*count));
        let starts = rest.len().checked_sub(2 * count);
        let mut block = Self {
            end: starts.ok_or_else(Damage::of_block)?,
            prefix: 0,
            heads: vec![0; count].into(),
            bytes: bytes.into(),
        };
        block.check()?;
        Ok(block)
    }

    /// Checks the order of the entries, and fills `prefix` and `heads`.
    fn check(&mut self) -> Result<(), Damage> {
        let count = self.heads.len();
        if count == 0 || self.start(0) != 0 {
            return Err(Damage::of_block());
        }
        let last = self.get(count - 1).ok_or_else(Damage::of_block)?.key();
        let first = self.get(0).ok_or_else(Damage::of_block)?.key();
        let prefix = common_bytes(first, last);
        let mut heads = Vec::with_capacity(count);
        let mut last: Option<Entry<'_>> = None;
        for index in 0..count {
            let entry = self.get(index).ok_or_else(Damage::of_block)?;
            let key = entry.key();
            if !key.starts_with(&first[..prefix]) || !is_after(entry, last) {
                return Err(Damage::of_order());
            }
            heads.push(head(&key[prefix..]));
            last = Some(entry);
        }
        self.prefix = prefix;
        self.heads = heads.into();
        Ok(())
    }

    pub(super) fn len(&self) -> usize {
        self.heads.len()
    }

    /// Returns the bytes that it takes in memory.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.len() + size_of_val(&*self.heads)
    }

    fn start(&self, index: usize) -> usize {
        let at = self.end + 2 * index;
        usize::from(u16::from_be_bytes([self.bytes[at], self.bytes[at + 1]]))
    }

    fn get(&self, index: usize) -> Option<Entry<'_>> {
        let end = if index + 1 < self.heads.len() {
            self.start(index + 1)
        } else {
            self.end
        };
        let entry = self.bytes[..self.end].get(self.start(index)..end)?;
        let (head, rest) = entry.split_first_chunk()?;
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

    /// Returns an entry.
    pub(super) fn entry(&self, index: usize) -> Entry<'_> {
        self.get(index).expect("the block was checked")
    }

    /// Returns the number of entries whose keys are before a position.
    pub(super) fn count_before(&self, position: Position<'_>) -> usize {
        let key = position.key();
        let prefix = &self.entry(0).key()[..self.prefix];
        let shared = prefix.len().min(key.len());
        match key[..shared].cmp(&prefix[..shared]) {
            Ordering::Less => return 0,
            Ordering::Equal if key.len() < prefix.len() => return 0,
            Ordering::Equal => {}
            Ordering::Greater => return self.len(),
        }
        let head = head(&key[prefix.len()..]);
        let mut count = self.heads.partition_point(|other| *other < head);
        while count < self.len()
            && self.heads[count] == head
            && position.follows(self.entry(count).key())
        {
            count += 1;
        }
        count
    }
}

/// Returns how many bytes two keys have in common at their begins.
pub(super) fn common_bytes(one: &[u8], other: &[u8]) -> usize {
    let pairs = one.iter().zip(other);
    pairs.take_while(|(one, other)| one == other).count()
}

/// Returns the first four bytes of a key as a number. Missing ones are zeros, so the numbers of two keys may be the
/// same, and are otherwise in the order of the keys.
fn head(key: &[u8]) -> u32 {
    if let Some(head) = key.first_chunk() {
        return u32::from_be_bytes(*head);
    }
    let mut head = [0; 4];
    head[..key.len()].copy_from_slice(key);
    u32::from_be_bytes(head)
}

/// Returns whether an entry is sound, and begins where `last` ends or after that.
fn is_after(entry: Entry<'_>, last: Option<Entry<'_>>) -> bool {
    let is_sound = match entry {
        Entry::Set { .. } => true,
        Entry::Gap { begin, end } => begin < end,
    };
    is_sound
        && match last {
            Some(Entry::Set { key, .. }) => key < entry.key(),
            Some(Entry::Gap { end, .. }) => end <= entry.key(),
            None => true,
        }
}

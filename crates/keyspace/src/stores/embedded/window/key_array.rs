//! The sorted references in one node of the tree.
//!
//! A comparison of keys follows a reference into a chunk, which often misses the processor's cache. An
//! array therefore stores the length of a prefix that all its keys share, and the *head* of each key: the 4
//! bytes after that prefix, big-endian, with zeros where the key is shorter. Heads decide most comparisons
//! (Graefe, "Modern B-Tree Techniques", 3.5: poor man's normalized keys).

use std::ops::Range;

use super::chunk::{EntryRef, Source};
use crate::stores::embedded::entries::Position;

/// The number of references at which an array is full. A node with a full array is split.
pub(super) const FANOUT: usize = 32;

/// Up to [`FANOUT`] references in key order.
#[derive(Clone)]
pub(super) struct KeyArray {
    len: usize,
    /// The length of a prefix that all keys share.
    prefix_bytes: usize,
    heads: [u32; FANOUT],
    entries: [EntryRef; FANOUT],
}

impl KeyArray {
    pub(super) fn new() -> Self {
        Self {
            len: 0,
            prefix_bytes: 0,
            heads: [0; FANOUT],
            entries: [EntryRef::default(); FANOUT],
        }
    }

    pub(super) fn entries(&self) -> &[EntryRef] {
        &self.entries[..self.len]
    }

    /// Returns how many keys are before a position.
    pub(super) fn count_before(&self, source: Source<'_>, position: Position<'_>) -> usize {
        let Some(&first) = self.entries().first() else {
            return 0;
        };
        let prefix = &source.key(first)[..self.prefix_bytes];
        let key = position.key();
        if !key.starts_with(prefix) {
            return if key < prefix { 0 } else { self.len };
        }
        let head = head(key, self.prefix_bytes);
        let heads = &self.heads[..self.len];
        let begin = heads.partition_point(|&other| other < head);
        let same_count = heads[begin..].partition_point(|&other| other == head);
        let same = &self.entries[begin..begin + same_count];
        begin + same.partition_point(|&entry| position.follows(source.key(entry)))
    }

    /// Inserts a reference where its key belongs. There must be room.
    pub(super) fn insert(&mut self, source: Source<'_>, index: usize, entry: EntryRef) {
        self.heads.copy_within(index..self.len, index + 1);
        self.entries.copy_within(index..self.len, index + 1);
        self.entries[index] = entry;
        self.len += 1;
        let key = source.key(entry);
        let neighbor = self.entries[usize::from(index == 0)];
        // With fewer keys, the prefix may be too short: other keys were removed.
        if self.len > 2 && key.starts_with(&source.key(neighbor)[..self.prefix_bytes]) {
            self.heads[index] = head(key, self.prefix_bytes);
        } else {
            self.find_prefix(source);
        }
    }

    /// Replaces a reference with another one to the same key.
    pub(super) fn replace(&mut self, index: usize, entry: EntryRef) {
        self.entries[index] = entry;
    }

    pub(super) fn remove(&mut self, removed: Range<usize>) {
        self.heads.copy_within(removed.end..self.len, removed.start);
        self.entries
            .copy_within(removed.end..self.len, removed.start);
        self.len -= removed.len();
    }

    /// Moves the right part of a full array to a new one. `inserted` is the index of the reference that
    /// made it full. A reference at the end is moved alone, so that ascending keys leave full nodes.
    pub(super) fn split_if_full(&mut self, source: Source<'_>, inserted: usize) -> Option<Self> {
        if self.len < FANOUT {
            return None;
        }
        let last = FANOUT - 1;
        let cut = if inserted == last { last } else { FANOUT / 2 };
        let mut right = Self::new();
        right.len = self.len - cut;
        right.entries[..right.len].copy_from_slice(&self.entries[cut..]);
        self.len = cut;
        self.find_prefix(source);
        right.find_prefix(source);
        Some(right)
    }

    /// Finds the longest prefix that all keys share.
    fn find_prefix(&mut self, source: Source<'_>) {
        let entries = &self.entries[..self.len];
        let (Some(&first), Some(&last)) = (entries.first(), entries.last()) else {
            return;
        };
        let both = source.key(first).iter().zip(source.key(last));
        self.prefix_bytes = both.take_while(|(one, other)| one == other).count();
        for (head_of_key, &entry) in self.heads.iter_mut().zip(entries) {
            *head_of_key = head(source.key(entry), self.prefix_bytes);
        }
    }
}

fn head(key: &[u8], prefix_bytes: usize) -> u32 {
    let rest = &key[prefix_bytes..];
    match rest.first_chunk() {
        Some(head) => u32::from_be_bytes(*head),
        None => {
            let mut head = [0; 4];
            head[..rest.len()].copy_from_slice(rest);
            u32::from_be_bytes(head)
        }
    }
}

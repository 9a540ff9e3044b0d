//! A part of the window: the writes of one stretch of versions.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use super::chunk::{ChunkWriter, Chunks, EntryRef, Source};
use super::cursor::Cursor;
use super::node::EntryTree;
use crate::contract::limits::END_OF_KEYSPACE;
use crate::contract::transaction::key_after;
use crate::stores::embedded::collections::direction::Direction;
use crate::stores::embedded::entries::Position;
use crate::stores::embedded::entries::{Entry, Lookup};

/// The layers below the active part: the frozen parts and the runs.
///
/// Their content does not change while the part is active. A checkpoint only moves it.
pub(crate) trait Below {
    /// The error of a failed read.
    type Error;

    /// Returns whether a key has a value.
    fn has(&self, key: &[u8]) -> Result<bool, Self::Error>;

    /// Returns whether any key in `begin <= key < end` has a value.
    fn has_any(&self, begin: &[u8], end: &[u8]) -> Result<bool, Self::Error>;

    /// Returns the first key at or after `key` that has a value.
    fn first_live_from(&self, key: &[u8]) -> Result<Option<Bytes>, Self::Error>;
}

/// The active part, which takes writes. It has one owner; others read [snapshots](Self::snapshot).
///
/// - Entries are in key order and do not overlap; two Gaps never touch.
/// - A Gap extends as far to the right as possible: it ends at a Set, at a key that lives below, or at the
///   end of the keyspace. Clears of neighboring keys therefore become one Gap.
pub(crate) struct WindowPart {
    pub(super) tree: EntryTree,
    pub(super) chunks: ChunkWriter,
}

impl WindowPart {
    pub(crate) fn new() -> Self {
        Self {
            tree: EntryTree::new(),
            chunks: ChunkWriter::default(),
        }
    }

    /// Returns the total content of all entries, in bytes: keys, values, and ends of Gaps.
    pub(crate) fn content_bytes(&self) -> usize {
        self.tree.content_bytes()
    }

    /// Returns the number of bytes that were written to the part, including those that later writes
    /// replaced. The part and its snapshots keep all of them in memory.
    pub(crate) fn held_bytes(&self) -> usize {
        self.chunks.held_bytes()
    }

    /// Returns what the part knows about a key, including all writes so far.
    pub(crate) fn lookup(&self, key: &[u8]) -> Lookup<&[u8]> {
        lookup(&self.tree, self.chunks.source(), key)
    }

    /// Sets a key. A Gap around it is split.
    pub(crate) fn set(&mut self, key: &[u8], value: &[u8]) {
        let floor = self.insert(Entry::Set { key, value });
        let Some((begin, end)) = self.as_gap(floor, |end| end > key) else {
            return;
        };
        let begin = begin.to_vec();
        let end = end.to_vec();
        if *begin < *key {
            self.insert(Entry::Gap {
                begin: &begin,
                end: key,
            });
        }
        let rest = key_after(key);
        if rest < end {
            self.insert(Entry::Gap {
                begin: &rest,
                end: &end,
            });
        }
    }

    /// Clears a key.
    ///
    /// # Errors
    ///
    /// Those of `below`. The part has not changed in that case.
    pub(crate) fn clear<B: Below>(&mut self, key: &[u8], below: &B) -> Result<(), B::Error> {
        let source = self.chunks.source();
        let (entry, before) = self.tree.find(source, key);
        let meets_gap = self.as_gap(entry, |_| true).is_some()
            || self.as_gap(before, |end| end >= key).is_some();
        // Most keys are neither in a Gap nor next to one, and do not live below.
        if meets_gap || below.has(key)? {
            return self.clear_range(key, &key_after(key), below);
        }
        if entry.is_some() {
            self.tree.remove(source, key);
        }
        Ok(())
    }

    /// Clears the keys `begin <= key < end`. An empty or inverted range clears nothing.
    ///
    /// Reads at most two keys of `below`. Leaves a Gap only if a key that lives below was cleared, or if
    /// the range touches a Gap.
    ///
    /// # Errors
    ///
    /// Those of `below`. The part has not changed in that case.
    pub(crate) fn clear_range<B: Below>(
        &mut self,
        begin: &[u8],
        end: &[u8],
        below: &B,
    ) -> Result<(), B::Error> {
        let is_cleared = |gap_end: &[u8]| gap_end >= end;
        if begin >= end
            || self
                .gap_before(Position::after(begin), is_cleared)
                .is_some()
        {
            return Ok(());
        }
        let gap = self.gap_left_by_clear(begin, end, below)?;
        let (erase_begin, erase_end) = match &gap {
            Some(gap) => (&gap.start[..], &gap.end[..]),
            None => (begin, end),
        };
        self.erase(erase_begin, erase_end);
        if let Some(Range { start, end }) = &gap {
            self.insert(Entry::Gap { begin: start, end });
        }
        Ok(())
    }

    /// Publishes all writes so far, and returns the part as it is then.
    pub(crate) fn snapshot(&mut self) -> PartSnapshot {
        PartSnapshot {
            chunks: self.chunks.publish(),
            tree: self.tree.clone(),
        }
    }

    /// Ends the part, which takes no more writes.
    pub(crate) fn freeze(mut self) -> PartSnapshot {
        self.snapshot()
    }
}

impl WindowPart {
    /// Returns the Gap that a clear of `begin <= key < end` leaves, or `None` if it leaves none. The range
    /// must not lie within one Gap.
    fn gap_left_by_clear<B: Below>(
        &self,
        begin: &[u8],
        end: &[u8],
        below: &B,
    ) -> Result<Option<Range<Vec<u8>>>, B::Error> {
        let left = self.gap_before(Position::before(begin), |gap_end| gap_end >= begin);
        let (gap_begin, covered) = left.unwrap_or((begin, begin));
        let over_end = self.gap_before(Position::before(end), |gap_end| gap_end > end);
        if let Some((_, gap_end)) = over_end {
            return Ok(Some(gap_begin.to_vec()..gap_end.to_vec()));
        }
        if left.is_none() && !below.has_any(covered, end)? {
            return Ok(None);
        }
        let live = below.first_live_from(end)?;
        let live = live.as_deref().unwrap_or(END_OF_KEYSPACE.max(end));
        let mut cursor = Cursor::new(&self.tree, self.chunks.source());
        cursor.seek(Position::before(end));
        let gap_end = match cursor.next() {
            Some(Entry::Gap { begin, end }) if begin <= live => end,
            Some(entry) => live.min(entry.key()),
            None => live,
        };
        Ok(Some(gap_begin.to_vec()..gap_end.to_vec()))
    }

    /// Returns the last entry before a position, if it is a Gap with a suitable end.
    fn gap_before(
        &self,
        position: Position<'_>,
        suits: impl FnOnce(&[u8]) -> bool,
    ) -> Option<(&[u8], &[u8])> {
        let entry = self.tree.last_before(self.chunks.source(), position);
        self.as_gap(entry, suits)
    }

    /// Returns begin and end of an entry, if it is a Gap with a suitable end.
    fn as_gap(
        &self,
        entry: Option<EntryRef>,
        suits: impl FnOnce(&[u8]) -> bool,
    ) -> Option<(&[u8], &[u8])> {
        match self.chunks.source().entry(entry?) {
            Entry::Gap { begin, end } if suits(end) => Some((begin, end)),
            _ => None,
        }
    }

    /// Inserts an entry, and replaces one with the same key. Returns the replaced entry, or otherwise the
    /// last entry before.
    fn insert(&mut self, entry: Entry<'_>) -> Option<EntryRef> {
        let entry = self.chunks.append(entry);
        self.tree.insert(self.chunks.source(), entry)
    }

    fn erase(&mut self, begin: &[u8], end: &[u8]) {
        self.tree.erase(self.chunks.source(), begin, end);
    }
}

/// A part as one batch left it, or a frozen part. It never changes, and a clone is O(1).
#[derive(Clone)]
pub(crate) struct PartSnapshot {
    tree: EntryTree,
    chunks: Arc<Chunks>,
}

impl PartSnapshot {
    /// Returns what the part knows about a key.
    pub(crate) fn lookup(&self, key: &[u8]) -> Lookup<&[u8]> {
        lookup(&self.tree, Source::published(&self.chunks), key)
    }

    /// Returns a cursor before the first entry.
    pub(crate) fn cursor(&self) -> Cursor<'_> {
        Cursor::new(&self.tree, Source::published(&self.chunks))
    }

    /// Returns a track of the entries.
    pub(crate) fn track(&self) -> PartTrack<'_> {
        PartTrack {
            cursor: self.cursor(),
            head: None,
        }
    }

    /// Returns all entries in key order.
    pub(crate) fn entries(&self) -> impl Iterator<Item = Entry<'_>> {
        let mut cursor = self.cursor();
        std::iter::from_fn(move || cursor.next())
    }
}

/// Reads the entries of a part. A read cannot fail.
pub(crate) struct PartTrack<'a> {
    /// On the far side of the head.
    cursor: Cursor<'a>,
    head: Option<Entry<'a>>,
}

impl PartTrack<'_> {
    pub(crate) fn seek(&mut self, at: Position<'_>, direction: Direction) {
        self.cursor.seek(at);
        if direction == Direction::Forward {
            // A Gap that begins before the position may extend beyond it.
            match self.cursor.prev() {
                Some(entry) if at < entry.end() => {}
                Some(_) => {
                    self.cursor.next();
                }
                None => {}
            }
        }
        self.step(direction);
    }

    pub(crate) fn step(&mut self, direction: Direction) {
        self.head = match direction {
            Direction::Forward => self.cursor.next(),
            Direction::Backward => self.cursor.prev(),
        };
    }

    pub(crate) fn head(&self) -> Option<Entry<'_>> {
        self.head
    }
}

fn lookup<'a>(tree: &EntryTree, source: Source<'a>, key: &[u8]) -> Lookup<&'a [u8]> {
    let entry = tree.last_before(source, Position::after(key));
    match entry.map(|entry| source.entry(entry)) {
        Some(Entry::Set { key: found, value }) if found == key => Lookup::Value(value),
        Some(Entry::Gap { end, .. }) if key < end => Lookup::Cleared,
        _ => Lookup::Unknown,
    }
}

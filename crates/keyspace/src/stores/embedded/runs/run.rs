//! Runs: tables one after the other, and the list of all runs.

use std::sync::Arc;

use bytes::Bytes;

use super::block::Block;
use super::damage::FileError;
use super::filter::KeyHash;
use super::table::{Caching, Descent, Table};
use crate::stores::embedded::collections::direction::Direction;
use crate::stores::embedded::entries::{Entry, Lookup, Position, Track};

/// The number of a run. No two runs of a store have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RunId(pub(super) u64);

/// Entries in key order, in tables that do not overlap. It never changes; a merge that has taken its first keys
/// replaces it.
pub(crate) struct SortedRun {
    pub(super) id: RunId,
    /// The run into which this one is being merged. It has taken all keys before `begins`.
    pub(super) into: Option<RunId>,
    /// About how many bytes of older runs its Gaps hide.
    pub(super) hidden_bytes: u64,
    /// Where the entries begin. What the tables hold before that does not count.
    pub(super) begins: Vec<u8>,
    /// In key order. There is at least one, except in the run of a merge that has just begun.
    pub(super) tables: Vec<Arc<Table>>,
}

impl SortedRun {
    /// Returns what the run knows about a key.
    fn lookup(&self, key: &[u8], hash: KeyHash) -> Result<Lookup<Bytes>, FileError> {
        let after = self
            .tables
            .partition_point(|table| table.first_key() <= key);
        match after.checked_sub(1) {
            Some(table) if !self.begins_after(key) => self.tables[table].lookup(key, hash),
            _ => Ok(Lookup::Unknown),
        }
    }

    /// Returns whether what the tables hold at a key does not count.
    fn begins_after(&self, key: &[u8]) -> bool {
        // Compared with an empty vector, which has no memory, a key takes 75 ns on processors with AVX-512: the C
        // library reads from its address, with a mask.
        !self.begins.is_empty() && *key < *self.begins
    }

    /// Returns the bytes that it takes in the file.
    pub(super) fn bytes(&self) -> u64 {
        self.tables.iter().map(|table| table.bytes_left()).sum()
    }

    /// Returns about how many bytes of entries a Gap hides, without reading entries.
    pub(super) fn bytes_in_gap(&self, begin: &[u8], end: &[u8]) -> Result<u64, FileError> {
        // The blocks of what does not count may have been freed.
        let begin = begin.max(&self.begins);
        if begin >= end {
            return Ok(0);
        }
        let first = self
            .tables
            .partition_point(|table| *table.root.end <= *begin);
        let tables = self.tables[first..].iter();
        let tables = tables.take_while(|table| table.first_key() < end);
        tables.map(|table| table.bytes_in_gap(begin, end)).sum()
    }

    /// Returns the run without its entries before `key`. `None` if nothing is left.
    pub(super) fn without_before(
        &self,
        key: &[u8],
        into: RunId,
    ) -> Result<Option<Self>, FileError> {
        let mut tables = Vec::new();
        for table in &self.tables {
            if *table.root.end <= *key {
                continue;
            }
            if key <= table.first_key() {
                tables.push(table.clone());
            } else {
                tables.push(Arc::new(table.without_before(key)?));
            }
        }
        if tables.is_empty() {
            return Ok(None);
        }
        Ok(Some(Self {
            into: Some(into),
            begins: key.to_vec(),
            ..self.with_tables(tables)
        }))
    }

    /// Returns the run with other tables.
    pub(super) fn with_tables(&self, tables: Vec<Arc<Table>>) -> Self {
        Self {
            begins: self.begins.clone(),
            tables,
            ..*self
        }
    }
}

/// The runs of one state, newest first.
#[derive(Clone, Default)]
pub(crate) struct RunList {
    pub(super) runs: Vec<Arc<SortedRun>>,
}

impl RunList {
    /// Reads a key.
    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Bytes>, FileError> {
        let hash = KeyHash::of(key);
        for run in &self.runs {
            match run.lookup(key, hash)? {
                Lookup::Value(value) => return Ok(Some(value)),
                Lookup::Cleared => return Ok(None),
                Lookup::Unknown => {}
            }
        }
        Ok(None)
    }

    /// Returns the bytes that the runs take in the file.
    pub(super) fn bytes(&self) -> u64 {
        self.runs.iter().map(|run| run.bytes()).sum()
    }

    /// Returns the tables of all runs.
    pub(super) fn tables(&self) -> impl Iterator<Item = &Arc<Table>> {
        self.runs.iter().flat_map(|run| &run.tables)
    }

    /// Returns the entries of each run, newest first.
    pub(crate) fn tracks(&self, caching: Caching) -> impl Iterator<Item = RunTrack<'_>> {
        self.runs.iter().map(move |run| RunTrack::new(run, caching))
    }
}

/// Reads the entries of a run.
pub(crate) struct RunTrack<'a> {
    run: &'a SortedRun,
    caching: Caching,
    /// The current entry, `None` after the last one.
    place: Option<EntryPlace>,
}

struct EntryPlace {
    table: usize,
    /// The leaf's block of the index.
    top: usize,
    middle: Arc<Block>,
    /// The index of the leaf in it.
    leaf: usize,
    block: Arc<Block>,
    /// Whether there may be entries in the leaf that do not count, because the run begins after them.
    has_begin: bool,
    /// The index of the entry in the leaf.
    entry: usize,
}

impl<'a> RunTrack<'a> {
    pub(super) fn new(run: &'a SortedRun, caching: Caching) -> Self {
        Self {
            run,
            caching,
            place: None,
        }
    }

    /// Returns the first or the last entry of a leaf.
    fn enter(
        &self,
        table: usize,
        top: usize,
        middle: Arc<Block>,
        leaf: usize,
        direction: Direction,
    ) -> Result<EntryPlace, FileError> {
        let block = self.run.tables[table].leaf(top, &middle, leaf, self.caching)?;
        let entry = match direction {
            Direction::Forward => 0,
            Direction::Backward => block.len() - 1,
        };
        Ok(EntryPlace {
            table,
            top,
            middle,
            leaf,
            has_begin: self.run.begins_after(block.entry(0).key()),
            block,
            entry,
        })
    }

    /// Returns the first or the last entry of a block of the index.
    fn enter_middle(
        &self,
        table: usize,
        top: usize,
        direction: Direction,
    ) -> Result<EntryPlace, FileError> {
        let middle = self.run.tables[table]
            .middle(top, self.caching)?
            .into_owned();
        let leaf = match direction {
            Direction::Forward => 0,
            Direction::Backward => middle.len() - 1,
        };
        self.enter(table, top, middle, leaf, direction)
    }

    /// Returns the first entry of the leaf after a place.
    fn next_leaf(&self, place: &EntryPlace) -> Result<Option<EntryPlace>, FileError> {
        let forward = Direction::Forward;
        let &EntryPlace {
            table, top, leaf, ..
        } = place;
        Ok(Some(if leaf + 1 < place.middle.len() {
            self.enter(table, top, place.middle.clone(), leaf + 1, forward)?
        } else if top + 1 < self.run.tables[table].root.index.blocks().len() {
            self.enter_middle(table, top + 1, forward)?
        } else if table + 1 < self.run.tables.len() {
            self.enter_middle(table + 1, 0, forward)?
        } else {
            return Ok(None);
        }))
    }

    /// Returns the last entry of the leaf before a place.
    fn previous_leaf(&self, place: &EntryPlace) -> Result<Option<EntryPlace>, FileError> {
        let backward = Direction::Backward;
        let &EntryPlace {
            table, top, leaf, ..
        } = place;
        // The leaf before ends at or before the separator. If nothing of it counts, it may have been freed.
        if place.middle.entry(leaf).key() <= &*self.run.begins {
            return Ok(None);
        }
        Ok(Some(if leaf > 0 {
            self.enter(table, top, place.middle.clone(), leaf - 1, backward)?
        } else if top > 0 {
            self.enter_middle(table, top - 1, backward)?
        } else if table > 0 {
            let last = self.run.tables[table - 1].root.index.blocks().len() - 1;
            self.enter_middle(table - 1, last, backward)?
        } else {
            return Ok(None);
        }))
    }

    fn find(&mut self, at: Position<'_>, direction: Direction) -> Result<(), FileError> {
        let run = self.run;
        let before = run
            .tables
            .partition_point(|table| at.follows(table.first_key()));
        let Some(table) = before.checked_sub(1) else {
            if direction == Direction::Forward && !run.tables.is_empty() {
                self.place = Some(self.enter_middle(0, 0, direction)?);
            }
            return Ok(());
        };
        let Some(Descent { top, middle, leaf }) = run.tables[table].descend(at, self.caching)?
        else {
            return Ok(());
        };
        let middle = middle.into_owned();
        let mut place = self.enter(table, top, middle, leaf, Direction::Forward)?;
        let count = place.block.count_before(at);
        place.entry = count.saturating_sub(1);
        let is_there = match direction {
            // Without an entry before `at`, no Gap of the leaf before reaches this one.
            Direction::Forward => count == 0 || at < place.block.entry(place.entry).end(),
            Direction::Backward => count > 0,
        };
        self.place = Some(place);
        if is_there {
            Ok(())
        } else {
            self.step(direction)
        }
    }
}

impl Track for RunTrack<'_> {
    type Error = FileError;

    fn seek(&mut self, at: Position<'_>, direction: Direction) -> Result<(), FileError> {
        self.place = None;
        if self.run.begins.is_empty() {
            return self.find(at, direction);
        }
        let begin = Position::before(&self.run.begins);
        match direction {
            Direction::Forward => self.find(at.max(begin), direction),
            Direction::Backward if at <= begin => Ok(()),
            Direction::Backward => self.find(at, direction),
        }
    }

    fn step(&mut self, direction: Direction) -> Result<(), FileError> {
        let Some(place) = &mut self.place else {
            return Ok(());
        };
        match direction {
            Direction::Forward if place.entry + 1 < place.block.len() => place.entry += 1,
            Direction::Backward if place.entry > 0 => place.entry -= 1,
            _ => {
                let left = self.place.take();
                self.place = match (&left, direction) {
                    (Some(left), Direction::Forward) => self.next_leaf(left)?,
                    (Some(left), Direction::Backward) => self.previous_leaf(left)?,
                    (None, _) => None,
                };
            }
        }
        Ok(())
    }

    fn head(&self) -> Option<Entry<'_>> {
        let place = self.place.as_ref()?;
        let entry = place.block.entry(place.entry);
        let begins = &*self.run.begins;
        if !place.has_begin || begins <= entry.key() {
            return Some(entry);
        }
        match entry {
            Entry::Gap { end, .. } if begins < end => Some(Entry::Gap { begin: begins, end }),
            _ => None,
        }
    }
}

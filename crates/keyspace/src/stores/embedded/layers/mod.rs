//! The layers of one state of the store: parts of the window over runs.
//!
//! ```text
//! active part, as a batch left it
//! frozen parts, newest first
//! the runs that belong to them, newest first
//! ```
//!
//! The newest layer that has an entry for a key decides: a Set gives its value, and a Gap means that it has
//! none.

#[cfg(test)]
mod tests;
mod window;

use std::sync::Arc;

use bytes::Bytes;

use crate::contract::limits::END_OF_KEYSPACE;
use crate::contract::selector::KeyValue;
use crate::stores::embedded::collections::direction::Direction;
use crate::stores::embedded::entries::{Entry, Lookup, Merge, Position, Track};
use crate::stores::embedded::runs::damage::FileError;
use crate::stores::embedded::runs::{Caching, RunList, RunTrack};
use crate::stores::embedded::window::{Below, PartSnapshot, PartTrack};

pub(crate) use self::window::{Checkpointed, FrozenPart, PartId, Parts, Window};

/// One state of the store, for reading.
#[derive(Clone)]
pub(crate) struct Layers {
    /// Newest first.
    parts: Vec<PartSnapshot>,
    /// Below all parts. The states between two changes of the list share it.
    runs: Arc<RunList>,
}

impl Layers {
    /// Returns the layers of parts, newest first, over runs.
    pub(crate) fn new(parts: Vec<PartSnapshot>, runs: Arc<RunList>) -> Self {
        Self { parts, runs }
    }

    /// Returns the parts, newest first.
    pub(crate) fn parts(&self) -> &[PartSnapshot] {
        &self.parts
    }

    /// Returns the runs, below all parts.
    pub(crate) fn runs(&self) -> &Arc<RunList> {
        &self.runs
    }

    /// Puts a part on top of all others.
    pub(crate) fn push(&mut self, part: PartSnapshot) {
        self.parts.insert(0, part);
    }

    /// Keeps the newest `count` parts. `runs` must contain the others.
    pub(crate) fn rebase(&mut self, count: usize, runs: Arc<RunList>) {
        self.parts.truncate(count);
        self.runs = runs;
    }

    /// Reads a key.
    ///
    /// # Errors
    ///
    /// Those of reads of the store's file.
    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Bytes>, FileError> {
        for part in &self.parts {
            match part.lookup(key) {
                Lookup::Value(value) => return Ok(Some(Bytes::copy_from_slice(value))),
                Lookup::Cleared => return Ok(None),
                Lookup::Unknown => {}
            }
        }
        self.runs.get(key)
    }

    /// Reads up to `max_rows` rows `begin <= key < end`, from the end backward if `reverse`.
    ///
    /// # Errors
    ///
    /// Those of reads of the store's file.
    pub(crate) fn scan(
        &self,
        begin: &[u8],
        end: &[u8],
        reverse: bool,
        max_rows: usize,
    ) -> Result<Vec<KeyValue>, FileError> {
        let mut rows = Vec::new();
        let mut merge = self.merge(begin, end, reverse, Caching::Cached);
        while rows.len() < max_rows
            && let Some((key, value)) = merge.next_row()?
        {
            rows.push(KeyValue::new(key, value));
        }
        Ok(rows)
    }

    /// Returns all rows in key order, which are read from the store's file and not from the cache.
    pub(crate) fn all_rows(&self) -> Merge<'_, LayerTrack<'_>> {
        self.merge(b"", END_OF_KEYSPACE, false, Caching::Direct)
    }

    /// Returns the first rows from a key on, about `max_bytes` bytes of them, and whether there are more. Reads as
    /// [`all_rows`](Self::all_rows) does.
    pub(crate) fn rows_from(
        &self,
        begin: &[u8],
        max_bytes: usize,
    ) -> Result<(Vec<KeyValue>, bool), FileError> {
        let mut merge = self.merge(begin, END_OF_KEYSPACE, false, Caching::Direct);
        let mut rows = Vec::new();
        let mut bytes = 0;
        while let Some((key, value)) = merge.next_row()? {
            bytes += key.len() + value.len();
            rows.push(KeyValue::new(key, value));
            if bytes >= max_bytes {
                return Ok((rows, true));
            }
        }
        Ok((rows, false))
    }

    fn merge<'a>(
        &'a self,
        begin: &'a [u8],
        end: &'a [u8],
        reverse: bool,
        caching: Caching,
    ) -> Merge<'a, LayerTrack<'a>> {
        let parts = self.parts.iter().map(PartSnapshot::track);
        let runs = self.runs.tracks(caching);
        let tracks = parts
            .map(LayerTrack::WindowPart)
            .chain(runs.map(LayerTrack::SortedRun));
        Merge::new(
            tracks,
            Position::before(begin),
            Position::before(end),
            reverse,
        )
    }
}

/// The content below the active part, for layers that do not include the active part.
impl Below for Layers {
    type Error = FileError;

    fn has(&self, key: &[u8]) -> Result<bool, FileError> {
        Ok(self.get(key)?.is_some())
    }

    fn has_any(&self, begin: &[u8], end: &[u8]) -> Result<bool, FileError> {
        self.merge(begin, end, false, Caching::Cached).has_row()
    }

    fn first_live_from(&self, key: &[u8]) -> Result<Option<Bytes>, FileError> {
        let mut merge = self.merge(key, END_OF_KEYSPACE, false, Caching::Cached);
        let row = merge.next_row()?;
        Ok(row.map(|(key, _)| Bytes::copy_from_slice(key)))
    }
}

/// The entries of a layer.
pub(crate) enum LayerTrack<'a> {
    WindowPart(PartTrack<'a>),
    SortedRun(RunTrack<'a>),
}

impl Track for LayerTrack<'_> {
    type Error = FileError;

    fn seek(&mut self, at: Position<'_>, direction: Direction) -> Result<(), FileError> {
        match self {
            Self::WindowPart(part) => part.seek(at, direction),
            Self::SortedRun(run) => run.seek(at, direction)?,
        }
        Ok(())
    }

    fn step(&mut self, direction: Direction) -> Result<(), FileError> {
        match self {
            Self::WindowPart(part) => part.step(direction),
            Self::SortedRun(run) => run.step(direction)?,
        }
        Ok(())
    }

    fn head(&self) -> Option<Entry<'_>> {
        match self {
            Self::WindowPart(part) => part.head(),
            Self::SortedRun(run) => run.head(),
        }
    }
}

//! Keeps the file short.
//!
//! Merges leave free chunks between others. If there are many in a store at rest, and when a store is closed, the last
//! chunks of the file are moved to the first free ones, and the rest is cut off.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::chunks::{Chunk, MANIFEST_CHUNKS};
use super::damage::FileError;
use super::run::{RunList, SortedRun};
use super::store::Runs;
use super::table::Table;
use crate::stores::embedded::backend::is_shortage;

/// How many chunks of the file may be free, and the share of those in use that may be free in addition.
const MAX_FREE_CHUNKS: usize = 4;
const MAX_FREE_SHARE: usize = 10;

/// How many chunks are moved in one step of a store at rest.
const STEP_CHUNKS: usize = 64;

impl Runs {
    /// Moves some chunks, if many are free, or cuts off what is free at the end. Returns whether there may be more to
    /// move. Calls `installed` with the new list, before any later change.
    pub(super) fn shrink_step(
        &self,
        installed: impl FnOnce(&Arc<RunList>),
    ) -> Result<bool, FileError> {
        let has_moved = self.move_chunks(STEP_CHUNKS, installed)?;
        if !has_moved {
            self.file.cut()?;
        }
        Ok(has_moved)
    }

    /// Makes the file as short as its content allows. Both manifests are the same then. No thread merges runs any more.
    pub(crate) fn close(&self) -> Result<(), FileError> {
        self.stops_merging.store(false, Ordering::Relaxed);
        match self.shorten() {
            // A long file is as good as a short one.
            Err(FileError::Io(cause)) if is_shortage(&cause) => {}
            shortened => shortened?,
        }
        let mut state = self.state();
        // The newest manifest names the same runs. From now on, the other one does so, too.
        let list = state.list.clone();
        self.install(&mut state, list, |_| ())?;
        let end = state.list.tables().map(|table| table.end_in_file()).max();
        let end = end.unwrap_or(self.file.start(MANIFEST_CHUNKS));
        self.file.cut_last(end)
    }

    /// Merges what is hidden, and moves chunks to free places, if there is much of either.
    fn shorten(&self) -> Result<(), FileError> {
        self.merge_hidden()?;
        while self.move_chunks(usize::MAX, |_| ())? {}
        Ok(())
    }

    /// Cuts off the free chunks at the end, for other files that need the room.
    pub(crate) fn cut(&self) -> Result<(), FileError> {
        self.file.cut()
    }

    /// Moves up to `max` chunks from the end of the file to free places, if there are many. Returns whether it has.
    fn move_chunks(
        &self,
        max: usize,
        installed: impl FnOnce(&Arc<RunList>),
    ) -> Result<bool, FileError> {
        let list = self.list();
        let chunks = list.tables().flat_map(|table| &table.chunks);
        let mut numbers: Vec<u32> = chunks.map(|chunk| chunk.number()).collect();
        if self.file.free_chunks() <= MAX_FREE_CHUNKS + numbers.len() / MAX_FREE_SHARE {
            return Ok(false);
        }
        numbers.sort_unstable();
        let mut moved = BTreeMap::new();
        while moved.len() < max
            && let Some(last) = numbers.pop()
            && let Some(chunk) = self.file.take_before(last)
        {
            self.file.copy(last, chunk.number())?;
            moved.insert(last, Arc::new(chunk));
        }
        if moved.is_empty() {
            return Ok(false);
        }
        self.file.flush()?;
        let mut state = self.state();
        let list = with_moved(&state.list, &moved);
        self.install(&mut state, Arc::new(list), |_| ())?;
        installed(&state.list);
        Ok(true)
    }
}

/// Returns the same runs with other chunks, by the numbers of those that were moved.
fn with_moved(list: &RunList, moved: &BTreeMap<u32, Arc<Chunk>>) -> RunList {
    let place = |chunk: &Arc<Chunk>| moved.get(&chunk.number()).unwrap_or(chunk).clone();
    let table = |table: &Arc<Table>| {
        let chunks = table.chunks.iter().map(place);
        Arc::new(table.with_chunks(chunks.collect()))
    };
    let run = |run: &Arc<SortedRun>| {
        let tables = run.tables.iter().map(table);
        Arc::new(run.with_tables(tables.collect()))
    };
    RunList {
        runs: list.runs.iter().map(run).collect(),
    }
}

//! Reads everything that a store's file holds, and checks it.

use super::damage::{Damage, FileError};
use super::filter::{KeyHash, may_contain};
use super::run::{RunList, RunTrack, SortedRun};
use super::table::{Caching, Counts, Table};
use crate::contract::limits::END_OF_KEYSPACE;
use crate::stores::embedded::collections::direction::Direction;
use crate::stores::embedded::entries::{Entry, Merge, Position, Track};

/// How many entries are read between two calls of a callback.
const STEP_ENTRIES: u64 = 1024;

/// The rows of a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct VerifiedRows {
    pub(crate) rows: u64,
    /// The bytes of their keys and values.
    pub(crate) bytes: u64,
}

impl RunList {
    /// Reads all blocks from the file, and checks their checksums, the order of the entries, their number, and the
    /// filters. Calls `progress` with the number of entries that were read, and of all. Then counts the rows, which
    /// takes another look at the entries if there are several runs, or Gaps.
    ///
    /// # Errors
    /// The first damage that is found.
    pub(crate) fn verify(
        &self,
        mut progress: impl FnMut(u64, u64),
    ) -> Result<VerifiedRows, FileError> {
        let entries: u64 = self.tables().map(|table| table.root.counts.entries()).sum();
        let mut read = 0;
        let mut step = || {
            read += 1;
            if u64::is_multiple_of(read, STEP_ENTRIES) {
                progress(read.min(entries), entries);
            }
        };
        for run in &self.runs {
            verify_run(run, &mut step)?;
        }
        progress(entries, entries);
        self.count_rows()
    }

    fn count_rows(&self) -> Result<VerifiedRows, FileError> {
        if let [run] = &self.runs[..]
            && run.begins.is_empty()
            && run.tables.iter().all(|table| table.root.counts.gaps == 0)
        {
            let counts = run.tables.iter().map(|table| table.root.counts);
            return Ok(
                counts.fold(VerifiedRows::default(), |rows, counts| VerifiedRows {
                    rows: rows.rows + counts.sets,
                    bytes: rows.bytes + counts.bytes,
                }),
            );
        }
        let mut rows = VerifiedRows::default();
        let end = Position::before(END_OF_KEYSPACE);
        let mut merge = Merge::new(
            self.tracks(Caching::Direct),
            Position::before(b""),
            end,
            false,
        );
        while let Some((key, value)) = merge.next_row()? {
            rows.rows += 1;
            rows.bytes += (key.len() + value.len()) as u64;
        }
        Ok(rows)
    }
}

fn verify_run(run: &SortedRun, step: &mut impl FnMut()) -> Result<(), FileError> {
    for table in &run.tables {
        let filter = (0..table.root.filter.blocks).map(|number| table.filter_block(number));
        let filter: Vec<Vec<u8>> = filter.collect::<Result<_, _>>()?;
        let is_in_filter = |key: &[u8]| {
            let hash = KeyHash::of(key);
            let block = filter.get(hash.block(table.root.filter) as usize);
            block.is_some_and(|block| may_contain(block, table.root.filter, hash))
        };
        let alone = run.with_tables(vec![table.clone()]);
        let mut track = RunTrack::new(&alone, Caching::Direct);
        let mut counts = Counts::default();
        track.seek(Position::before(b""), Direction::Forward)?;
        while let Some(entry) = track.head() {
            counts.count(entry);
            if let Entry::Set { key, .. } = entry
                && !is_in_filter(key)
            {
                return Err(Damage::new("a filter lacks a key").into());
            }
            step();
            track.step(Direction::Forward)?;
        }
        check_counts(table, run, counts)?;
    }
    Ok(())
}

fn check_counts(table: &Table, run: &SortedRun, found: Counts) -> Result<(), Damage> {
    let expected = table.root.counts;
    let is_whole = *run.begins <= *table.first_key();
    if is_whole && found != expected {
        return Err(Damage::new(format!(
            "a table holds {found:?}, and its root says {expected:?}"
        )));
    }
    Ok(())
}

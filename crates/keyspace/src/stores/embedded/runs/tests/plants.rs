//! Bugs that are planted in the runs of a random program, which the program's checks must find.

use std::ops::Range;
use std::sync::Arc;

use conformance::scale;

use super::super::Runs;
use super::super::block::{CHECKSUM_BYTES, seed, sign};
use super::super::damage::FileError;
use super::super::filter::KeyHash;
use super::super::run::{RunList, RunTrack, SortedRun};
use super::super::table::{Caching, Table};
use super::Written;
use super::program::Program;
use crate::stores::embedded::backend::File;
use crate::stores::embedded::entries::{Merge, Position};

/// The bug of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flaw {
    /// A merge leaves out Gaps that hide older runs.
    GapsLost,
    /// Of entries with the same key, a merge keeps the oldest.
    OlderWins,
    /// A step of a merge ends one key after what it has copied.
    StepTooLong,
    /// A step of a merge ends before the last key that it has copied, so the next one copies it again.
    StepTooShort,
    /// The filter of a run lacks a key.
    KeyNotInFilter,
    /// What a merge replaces is free, although a snapshot still has it.
    FreedBeforeReader,
    /// What a merge replaces is free before the merge has read it.
    FreedBeforeMerge,
}

impl Flaw {
    /// Does a step of a merge, with the bug.
    pub(super) fn merge(
        self,
        runs: &Runs,
        list: &Arc<RunList>,
        range: Range<usize>,
    ) -> Result<bool, FileError> {
        let replaced = |list: &RunList| -> Vec<u32> {
            let tables = list.runs[range.clone()].iter().flat_map(|run| &run.tables);
            let chunks = tables.flat_map(|table| &table.chunks);
            chunks.map(|chunk| chunk.number()).collect()
        };
        match self {
            Self::GapsLost | Self::OlderWins | Self::StepTooLong | Self::StepTooShort => {
                self.merge_by_hand(runs, list, range)
            }
            Self::KeyNotInFilter => runs.merge_runs(list, range, |_| ()),
            Self::FreedBeforeMerge => {
                let early = replaced(list);
                early
                    .into_iter()
                    .for_each(|chunk| runs.file.free_early(chunk));
                runs.merge_runs(list, range, |_| ())
            }
            Self::FreedBeforeReader => {
                let before = replaced(list);
                let merged = runs.merge_runs(list, range, |_| ())?;
                let newest = runs.list();
                let chunks = newest.tables().flat_map(|table| &table.chunks);
                let in_use: Vec<u32> = chunks.map(|chunk| chunk.number()).collect();
                let early = before.iter().filter(|chunk| !in_use.contains(chunk));
                early.for_each(|&chunk| runs.file.free_early(chunk));
                Ok(merged)
            }
        }
    }

    fn merge_by_hand(
        self,
        runs: &Runs,
        list: &RunList,
        range: Range<usize>,
    ) -> Result<bool, FileError> {
        let inputs = &list.runs[range.clone()];
        let output = inputs[0].into;
        let older = range.end + usize::from(output.is_some());
        let has_older = older < list.runs.len() && self != Self::GapsLost;
        let mut copied = inputs.to_vec();
        if self == Self::OlderWins {
            copied.reverse();
        }
        let mut stepped = runs.copy(&copied, has_older)?.expect("merges go on");
        if let Some(next) = &mut stepped.next {
            match self {
                Self::StepTooLong => *next = key_after(inputs, next)?,
                // The last entry is a Set, or a Gap that is not only `next`.
                Self::StepTooShort => drop(next.pop()),
                _ => {}
            }
        }
        runs.install_step(&mut runs.state(), inputs, output, stepped)?;
        Ok(true)
    }

    /// Plants what is wrong with a run that was just added.
    pub(super) fn after_add(
        self,
        runs: &Runs,
        file: &File,
        entries: &[Written],
    ) -> Result<(), String> {
        let Some(Written::Set(key, _)) = entries.first() else {
            return Ok(());
        };
        if self == Self::KeyNotInFilter {
            forget(&runs.list().runs[0].tables[0], file, key).map_err(super::text)?;
        }
        Ok(())
    }
}

/// Returns the key after the first one from `key` on.
fn key_after(inputs: &[Arc<SortedRun>], key: &[u8]) -> Result<Vec<u8>, FileError> {
    let tracks = inputs.iter().map(|run| RunTrack::new(run, Caching::Direct));
    let end = Position::before(b"\xff");
    let mut merge = Merge::new(tracks, Position::before(key), end, false);
    let row = merge.next_row()?;
    Ok(row.map_or(key.to_vec(), |(key, _)| [key, b"\0"].concat()))
}

/// Clears the bits of the block of a filter that a key belongs to.
fn forget(table: &Table, file: &File, key: &[u8]) -> Result<(), FileError> {
    let number = KeyHash::of(key).block(table.root.filter);
    let offset = table.filter_offset(number);
    let bits = table.root.filter.block_bytes as usize - CHECKSUM_BYTES;
    let mut block = vec![0; bits];
    sign(&mut block, seed(table.id, offset));
    for (at, byte) in (offset..).zip(block) {
        file.write(place_in_file(table, at), &[byte])?;
    }
    Ok(())
}

/// Returns where a byte of a table lies in the file.
pub(super) fn place_in_file(table: &Table, offset: u64) -> u64 {
    let chunk_bytes = u64::from(table.file.layout.chunk_bytes);
    let index = offset / chunk_bytes - u64::from(table.first_chunk);
    let chunk = table.chunks[index as usize].number();
    table.file.start(chunk) + offset % chunk_bytes
}

/// Checks that a bug is found, by a report that contains one of these texts.
fn check_found(flaw: Flaw, texts: &[&str]) {
    let mut others = Vec::new();
    for seed in 0..scale(100, 1_000) as u64 {
        let Err(failure) = Program::new(seed, Some(flaw)).run(60) else {
            continue;
        };
        if texts.iter().any(|text| failure.contains(text)) {
            return;
        }
        others.push(failure);
    }
    panic!("{flaw:?} was not found: {others:#?}");
}

#[test]
fn the_check_finds_a_gap_that_a_merge_loses() {
    check_found(Flaw::GapsLost, &["wrong rows", "wrong value"]);
}

#[test]
fn the_check_finds_an_older_entry_that_wins() {
    check_found(Flaw::OlderWins, &["wrong rows", "wrong value"]);
}

#[test]
fn the_check_finds_a_step_that_skips_a_key() {
    check_found(Flaw::StepTooLong, &["wrong rows", "wrong value"]);
}

#[test]
fn the_check_finds_a_step_that_copies_a_key_twice() {
    // Reads give each key once all the same, but two tables of the output overlap.
    check_found(Flaw::StepTooShort, &["not in the order of their keys"]);
}

#[test]
fn the_check_finds_a_key_that_a_filter_lacks() {
    check_found(Flaw::KeyNotInFilter, &["wrong value", "lacks a key"]);
}

#[test]
fn the_check_finds_chunks_that_are_freed_before_a_reader_ends() {
    check_found(Flaw::FreedBeforeReader, &["a snapshot"]);
}

#[test]
fn the_check_finds_chunks_that_are_freed_before_a_merge_has_read_them() {
    check_found(Flaw::FreedBeforeMerge, &["a block does not hold"]);
}

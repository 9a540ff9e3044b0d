//! Merges of runs, step by step.
//!
//! A step merges the next keys of the inputs into one table. The manifest after it has the table as the last one of the
//! output, an older run than the inputs, and the inputs begin after it: what was merged of them does not count any
//! more, and chunks that hold nothing else are free. So a step needs room for one table, however large the runs, and a
//! crash or a lack of room between two steps loses nothing.
//!
//! What a step reads is copied, except for a table whose keys no other input has: the output takes it over.
//!
//! Gaps hide what is below. A merge of the oldest run leaves them out.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::damage::FileError;
use super::policy::{self, MergeRole, RunSize};
use super::run::{RunId, RunList, RunTrack, SortedRun};
use super::store::{Runs, RunsState};
use super::table::{Caching, Table};
use super::writer::RunWriter;
use crate::contract::limits::END_OF_KEYSPACE;
use crate::stores::embedded::entries::{Entry, Merge, Position};

/// A table that is at least this share of a full one is not copied.
const WORTH_KEEPING: u64 = 4;

/// What a step of a merge has made.
pub(super) struct Stepped {
    pub(super) table: Option<Arc<Table>>,
    /// Where the next step begins. `None` if nothing is left.
    pub(super) next: Option<Vec<u8>>,
}

impl Runs {
    /// Returns whether another run must wait for a merge.
    pub(crate) fn is_full(&self) -> bool {
        policy::is_full(&sizes(&self.list()), self.options.limits)
    }

    /// Merges runs until little of the file is hidden.
    pub(super) fn merge_hidden(&self) -> Result<(), FileError> {
        loop {
            let list = self.list();
            let Some(range) = policy::hidden(&sizes(&list), self.options.limits) else {
                return Ok(());
            };
            if !self.merge_runs(&list, range, |_| ())? {
                return Ok(());
            }
        }
    }

    /// Does the next step of a merge, or, in a store at rest, makes the file shorter. Returns false if there is nothing
    /// to do. Only one thread may call this at a time. Calls `installed` with the new list, before any later change.
    pub(crate) fn merge_step(
        &self,
        is_at_rest: bool,
        installed: impl FnOnce(&Arc<RunList>),
    ) -> Result<bool, FileError> {
        let list = self.list();
        let sizes = sizes(&list);
        match policy::next_merge(&sizes, self.options.limits, is_at_rest) {
            Some(range) => self.merge_runs(&list, range, installed),
            None if is_at_rest => self.shrink_step(installed),
            None => Ok(false),
        }
    }

    /// Does the next step of the merge of some runs of the newest list. Returns false if merges have ended.
    pub(super) fn merge_runs(
        &self,
        list: &RunList,
        range: Range<usize>,
        installed: impl FnOnce(&Arc<RunList>),
    ) -> Result<bool, FileError> {
        let inputs = &list.runs[range.clone()];
        let output = inputs[0].into;
        let older = range.end + usize::from(output.is_some());
        let has_older = older < list.runs.len();
        let stepped = match table_of_one(inputs, has_older) {
            Some((table, next)) => Stepped {
                table: Some(table),
                next,
            },
            None => match self.copy(inputs, has_older)? {
                Some(stepped) => stepped,
                None => return Ok(false),
            },
        };
        let mut state = self.state();
        self.install_step(&mut state, inputs, output, stepped)?;
        installed(&state.list);
        Ok(true)
    }

    /// Merges the next keys of the inputs into a table. Returns `None` if merges have ended.
    pub(super) fn copy(
        &self,
        inputs: &[Arc<SortedRun>],
        has_older: bool,
    ) -> Result<Option<Stepped>, FileError> {
        let tracks = inputs.iter().map(|run| RunTrack::new(run, Caching::Direct));
        let begin = Position::before(begin_of(inputs));
        let mut merge = Merge::new(tracks, begin, Position::before(END_OF_KEYSPACE), false);
        let mut writer = RunWriter::new(self);
        // The last entry, if it is a Gap: the next one may touch it.
        let mut gap = GapBuffer::default();
        let mut is_over = false;
        while !writer.has_table() && !is_over {
            if self.stops_merging.load(Ordering::Relaxed) {
                return Ok(None);
            }
            match merge.next_entry()? {
                Some(Entry::Gap { begin, end }) if has_older => {
                    gap.extend(begin, end, &mut writer)?;
                }
                Some(Entry::Gap { .. }) => {}
                Some(set) => {
                    gap.write(&mut writer)?;
                    // Otherwise, the next step reads it again.
                    if !writer.has_table() {
                        writer.add(set)?;
                    }
                }
                None => {
                    gap.write(&mut writer)?;
                    is_over = true;
                }
            }
        }
        let next = if is_over {
            None
        } else {
            Some(writer.end().to_vec())
        };
        let table = writer.finish()?.pop();
        self.file.flush()?;
        Ok(Some(Stepped { table, next }))
    }

    pub(super) fn install_step(
        &self,
        state: &mut RunsState,
        inputs: &[Arc<SortedRun>],
        output: Option<RunId>,
        stepped: Stepped,
    ) -> Result<(), FileError> {
        let id = output.unwrap_or_else(|| state.next_run());
        let mut runs = Vec::new();
        for run in &state.list.runs {
            let is_input = inputs.iter().any(|input| input.id == run.id);
            if !is_input {
                runs.push(run.clone());
            } else if let Some(next) = &stepped.next {
                runs.extend(run.without_before(next, id)?.map(Arc::new));
            }
        }
        // The inputs follow each other, and after the last one comes the output.
        let newer = state
            .list
            .runs
            .iter()
            .take_while(|run| run.id != inputs[0].id)
            .count();
        let left = runs[newer..].iter().take_while(|run| run.into == Some(id));
        let at = newer + left.count();
        let (mut tables, hidden_before) = match output {
            Some(_) => {
                let output = runs.remove(at);
                (output.tables.clone(), output.hidden_bytes)
            }
            None => (Vec::new(), 0),
        };
        tables.extend(stepped.table);
        if !tables.is_empty() || stepped.next.is_some() {
            let hidden: u64 = inputs.iter().map(|input| input.hidden_bytes).sum();
            // What the merge has left out is not hidden any more.
            let older = runs[at..].iter().map(|run| run.bytes()).sum();
            let output = SortedRun {
                id,
                into: None,
                hidden_bytes: hidden.max(hidden_before).min(older),
                begins: Vec::new(),
                tables,
            };
            runs.insert(at, Arc::new(output));
        }
        self.install(state, Arc::new(RunList { runs }), |_| ())
    }
}

/// A Gap that is not written yet.
#[derive(Default)]
struct GapBuffer {
    begin: Vec<u8>,
    /// Empty if there is no Gap.
    end: Vec<u8>,
}

impl GapBuffer {
    /// Adds a Gap. Writes the one before, unless the new one touches it.
    fn extend(
        &mut self,
        begin: &[u8],
        end: &[u8],
        writer: &mut RunWriter<'_>,
    ) -> Result<(), FileError> {
        if self.end != begin || self.end.is_empty() {
            self.write(writer)?;
            self.begin.clear();
            self.begin.extend_from_slice(begin);
        }
        self.end.clear();
        self.end.extend_from_slice(end);
        Ok(())
    }

    fn write(&mut self, writer: &mut RunWriter<'_>) -> Result<(), FileError> {
        if self.end.is_empty() {
            return Ok(());
        }
        writer.add(Entry::Gap {
            begin: &self.begin,
            end: &self.end,
        })?;
        self.end.clear();
        Ok(())
    }
}

/// Returns where the next step of a merge begins.
fn begin_of(inputs: &[Arc<SortedRun>]) -> &[u8] {
    inputs
        .first()
        .filter(|input| input.into.is_some())
        .map_or(&[], |input| &input.begins)
}

/// Returns the first table of the inputs that are left, and where the next step begins, if no other input has keys
/// before the end of that table, and it need not be copied for another reason.
fn table_of_one(
    inputs: &[Arc<SortedRun>],
    has_older: bool,
) -> Option<(Arc<Table>, Option<Vec<u8>>)> {
    let from = begin_of(inputs);
    let tables_left = |run: &'_ Arc<SortedRun>| {
        let done = run.tables.partition_point(|table| *table.root.end <= *from);
        run.tables[done..].to_vec()
    };
    let left: Vec<Vec<Arc<Table>>> = inputs.iter().map(tables_left).collect();
    let firsts = left.iter().filter_map(|tables| tables.first());
    let first = firsts
        .clone()
        .min_by_key(|table| table.first_key().max(from))?;
    let end = &*first.root.end;
    let others = firsts.filter(|table| !Arc::ptr_eq(table, first));
    let is_alone = others.map(|table| table.first_key()).all(|key| end <= key);
    let counts = first.root.counts;
    let is_worth_keeping = counts.bytes >= first.file.layout.table_bytes / WORTH_KEEPING;
    let is_whole = from <= first.first_key();
    let may_stay = is_alone && is_worth_keeping && is_whole && (has_older || counts.gaps == 0);
    let is_last = left.iter().map(Vec::len).sum::<usize>() == 1;
    if !may_stay {
        return None;
    }
    let next = if is_last { None } else { Some(end.to_vec()) };
    Some((first.clone(), next))
}

fn sizes(list: &RunList) -> Vec<RunSize> {
    let runs = &list.runs;
    let is_output = |run: &SortedRun| runs.iter().any(|input| input.into == Some(run.id));
    let size = |run: &Arc<SortedRun>| RunSize {
        bytes: run.bytes(),
        hidden_bytes: run.hidden_bytes,
        role: match run.into {
            Some(_) => MergeRole::Input,
            None if is_output(run) => MergeRole::Output,
            None => MergeRole::Free,
        },
    };
    runs.iter().map(size).collect()
}

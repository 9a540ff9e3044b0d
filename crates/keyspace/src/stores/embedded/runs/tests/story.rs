//! A store on a disk that fails, and what must be on it.

use std::sync::Arc;

use super::super::damage::FileError;
use super::super::run::RunList;
use super::super::{Layout, RunStoreOptions, RunWriter, Runs};
use super::flawed_file::{FileFlaw, FlawedFile};
use super::program::{mergeable, refused};
use super::{META, Rows, Written, apply, check_all, check_verify, options, text};
use crate::stores::embedded::backend::File;
use crate::stores::embedded::layers::Layers;
use crate::stores::embedded::tests::disk::{Disk, Image};
use crate::stores::embedded::tests::each_choice;

pub(super) const LAYOUT: Layout = Layout {
    chunk_bytes: 512,
    table_bytes: 500,
};

/// A step of a script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Adds a run with these keys, and a Gap between the last two if there are three.
    Add(&'static [&'static str]),
    /// Does a step of the merge that has begun, or begins one of these runs.
    Merge(usize, usize),
    ChangeMeta,
    Close,
}

/// What a store holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct State {
    version: i64,
    rows: Rows,
}

/// A store on a disk that fails, and what must be on it.
pub(super) struct Story {
    pub(super) disk: Disk,
    file: File,
    runs: Option<Runs>,
    flaw: Option<FileFlaw>,
    /// What reads of the file see.
    current: State,
    /// The last state that certainly survives. `None` if the store was not created.
    pub(super) durable: Option<State>,
    /// Later states, which may survive.
    possible: Vec<State>,
}

fn run_options() -> RunStoreOptions {
    options(LAYOUT, 0, 0)
}

/// Returns the entries of a run, whose values depend on the version.
fn entries(keys: &[&str], version: i64) -> Vec<Written> {
    let value = |key: &str| [key.as_bytes(), &[version as u8; 180]].concat();
    let set = |key: &&str| Written::Set(key.as_bytes().to_vec(), value(key));
    let mut entries: Vec<_> = keys.iter().map(set).collect();
    if let [_, begin, end] = keys {
        let begin = [begin.as_bytes(), b"\0"].concat();
        entries.insert(2, Written::Gap(begin, end.as_bytes().to_vec()));
    }
    entries
}

impl Story {
    pub(super) fn new(flaw: Option<FileFlaw>) -> Self {
        let disk = Disk::new(Vec::new());
        Self {
            file: FlawedFile::over(disk.clone(), LAYOUT, flaw),
            disk,
            runs: None,
            flaw,
            current: State {
                version: META.last_version,
                rows: Rows::new(),
            },
            durable: None,
            possible: Vec::new(),
        }
    }

    /// Creates the store, with two rows if it is a backup.
    fn create(&mut self, script: &[Step]) -> Result<(), FileError> {
        let rows = match script {
            [Step::Close] => entries(&["a", "b"], 1),
            _ => Vec::new(),
        };
        apply(&mut self.current.rows, &rows);
        self.possible = vec![self.current.clone()];
        let write =
            |writer: &mut RunWriter<'_>| rows.iter().try_for_each(|row| writer.add(row.entry()));
        self.runs = Some(Runs::create(self.file.clone(), run_options(), META, write)?);
        self.durable = Some(self.current.clone());
        self.possible.clear();
        Ok(())
    }

    pub(super) fn step(&mut self, step: Step) -> Result<(), FileError> {
        let runs = self.runs.as_ref().expect("the store is open");
        let mut after = self.current.clone();
        match step {
            Step::Add(keys) => {
                after.version += 1;
                apply(&mut after.rows, &entries(keys, after.version));
            }
            Step::ChangeMeta => after.version += 1,
            Step::Merge(..) | Step::Close => {}
        }
        self.possible.push(after.clone());
        let version = after.version;
        match step {
            Step::Add(keys) => {
                let entries = entries(keys, version);
                let entries = entries.iter().map(Written::entry);
                runs.add_entries(entries, |meta| meta.last_version = version, |_| ())?;
            }
            Step::ChangeMeta => runs.change_meta(|meta| meta.last_version = version)?,
            Step::Merge(begin, end) => {
                if !merge(runs, begin, end, self.flaw)? {
                    self.possible.pop();
                    return Ok(());
                }
            }
            Step::Close => {
                runs.close()?;
                // A process that goes on opens the file again.
                let opened = Runs::open(self.file.clone(), run_options());
                self.runs = Some(opened.map_err(|error| std::io::Error::other(refused(error)))?);
            }
        }
        self.current = after.clone();
        self.durable = Some(after);
        self.possible.clear();
        Ok(())
    }

    /// Runs a script until a call fails. Returns whether the script ended before.
    pub(super) fn run(&mut self, script: &[Step]) -> bool {
        let mut run = || {
            self.create(script)?;
            script.iter().try_for_each(|&step| self.step(step))
        };
        let ended: Result<(), FileError> = run();
        assert!(ended.is_ok() || self.disk.has_failed(), "{ended:?}");
        ended.is_ok()
    }

    /// Opens the file in a new process, on what reads see.
    pub(super) fn reopen(&mut self) -> Result<(), String> {
        let (runs, state) = opened(self.file.clone())?;
        let states = self.durable.iter().chain(&self.possible);
        if !states.clone().any(|one| *one == state) {
            return Err("has another state after a kill".to_owned());
        }
        self.current = state;
        self.runs = Some(runs);
        Ok(())
    }

    /// Checks a content that the disk may have after a power loss, and whether a store goes on from it.
    fn check(&self, image: Image, goes_on: bool) -> Result<(), String> {
        let disk = Disk::with(image);
        let before = disk.image();
        let file: File = Arc::new(disk.clone());
        let (runs, state) = match opened(file.clone()) {
            Err(_) if self.durable.is_none() => return Ok(()),
            opened => opened?,
        };
        assert!(disk.image() == before, "opening has written");
        if !self
            .durable
            .iter()
            .chain(&self.possible)
            .any(|one| *one == state)
        {
            return Err(format!(
                "has version {} and {} rows, which is neither the state before nor the one after",
                state.version,
                state.rows.len()
            ));
        }
        if goes_on {
            go_on(runs, file, state).map_err(|error| format!("goes on: {error}"))?;
        }
        Ok(())
    }

    /// Checks all contents that the disk may have after a power loss. Returns their number.
    pub(super) fn check_all_left(
        &self,
        piece_bytes: usize,
        goes_on: bool,
    ) -> Result<usize, String> {
        let mut failure = None;
        let cases = each_choice(|choose| {
            let image = self.disk.image_left(piece_bytes, choose);
            if failure.is_none() {
                failure = self.check(image, goes_on).err();
            }
        });
        failure.map_or(Ok(cases), Err)
    }
}

/// Opens a file, and checks and returns everything in it.
fn opened(file: File) -> Result<(Runs, State), String> {
    let runs = Runs::open(file, run_options()).map_err(refused)?;
    let list = runs.list();
    let layers = Layers::new(Vec::new(), list.clone());
    let rows = layers.scan(b"", b"\xff", false, usize::MAX).map_err(text)?;
    let rows = rows.iter();
    let state = State {
        version: runs.meta().last_version,
        rows: rows
            .map(|row| (row.key().to_vec(), row.value().to_vec()))
            .collect(),
    };
    check_all(&list, &state.rows)?;
    check_verify(&list, &state.rows)?;
    Ok((runs, state))
}

/// Does a step of the merge that has begun, or begins one. Returns false if there is none.
fn merge(runs: &Runs, begin: usize, end: usize, flaw: Option<FileFlaw>) -> Result<bool, FileError> {
    let list = runs.list();
    if list.runs.is_empty() {
        return Ok(false);
    }
    let begun = mergeable(&list).into_iter().next();
    let range = match begun.filter(|range| list.runs[range.start].into.is_some()) {
        Some(begun) => begun,
        None => begin..end.min(list.runs.len()),
    };
    if flaw == Some(FileFlaw::FreedTooEarly) {
        let inputs = RunList {
            runs: list.runs[range.clone()].to_vec(),
        };
        let chunks = inputs.tables().flat_map(|table| &table.chunks);
        chunks.for_each(|chunk| runs.file.free_early(chunk.number()));
    }
    runs.merge_runs(&list, range, |_| ())
}

/// Uses a store after a crash: adds a run, merges all, closes it and opens it again.
fn go_on(runs: Runs, file: File, mut state: State) -> Result<(), String> {
    let entries = entries(&["b", "c", "e"], 99);
    runs.add_entries(entries.iter().map(Written::entry), |_| (), |_| ())
        .map_err(text)?;
    apply(&mut state.rows, &entries);
    while runs.list().runs.len() > 1 {
        merge(&runs, 0, usize::MAX, None).map_err(text)?;
    }
    runs.close().map_err(text)?;
    drop(runs);
    let (_, found) = opened(file)?;
    if found != state {
        return Err("has other rows".to_owned());
    }
    Ok(())
}

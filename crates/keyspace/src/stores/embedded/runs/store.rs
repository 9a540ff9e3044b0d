//! The runs of an open store, and their changes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::{Mutex, MutexGuard};

use super::chunks::{ChunkFile, Layout, MANIFEST_CHUNKS};
use super::damage::{Damage, FileError};
use super::manifest::{HEAD_BYTES, Manifest, ManifestError, Meta, RunRecord, TableRecord, length};
use super::policy::RunLimits;
use super::run::{RunId, RunList, SortedRun};
use super::table::Table;
use super::writer::RunWriter;
use crate::contract::env::Environment;
use crate::stores::embedded::backend::File;
use crate::stores::embedded::entries::Entry;

/// How a store's file is used.
#[derive(Debug, Clone)]
pub(crate) struct RunStoreOptions {
    pub(crate) layout: Layout,
    pub(crate) cache_bytes: usize,
    pub(crate) limits: RunLimits,
    /// The source of ids.
    pub(crate) env: Environment,
}

/// The runs in a store's file. Several threads may use it.
pub(crate) struct Runs {
    pub(super) file: Arc<ChunkFile>,
    pub(super) options: RunStoreOptions,
    state: Mutex<RunsState>,
    pub(super) stops_merging: AtomicBool,
}

/// The newest state. Locked while a manifest is written, which orders the changes.
pub(super) struct RunsState {
    pub(super) list: Arc<RunList>,
    pub(super) meta: Meta,
    sequence: u64,
    /// The chunk of the newest manifest.
    place: u32,
    last_run: u64,
    /// Lists whose manifests may be on the disk although their installation failed. Their chunks are not used again
    /// before a later manifest was flushed.
    unsettled: Vec<Arc<RunList>>,
}

/// Why a store's file cannot be opened.
#[derive(Debug)]
pub(crate) enum OpenRunsError {
    /// It begins with no manifest, and nothing in it was written by this library.
    NotAStore,
    NewerFormat(u32),
    File(FileError),
}

impl<E: Into<FileError>> From<E> for OpenRunsError {
    fn from(error: E) -> Self {
        Self::File(error.into())
    }
}

impl Runs {
    /// Creates the runs of a new store in an empty file. `write` writes its rows, in key order.
    pub(crate) fn create(
        file: File,
        options: RunStoreOptions,
        meta: Meta,
        write: impl FnOnce(&mut RunWriter<'_>) -> Result<(), FileError>,
    ) -> Result<Self, FileError> {
        let runs = Self::new(file, options, meta);
        let mut writer = RunWriter::new(&runs);
        write(&mut writer)?;
        runs.add(writer, |_| (), |_| ())?;
        runs.change_meta(|_| ())?;
        Ok(runs)
    }

    fn new(file: File, options: RunStoreOptions, meta: Meta) -> Self {
        Self {
            file: ChunkFile::new(file, options.layout, options.cache_bytes),
            options,
            state: Mutex::new(RunsState {
                list: Arc::default(),
                meta,
                sequence: 0,
                place: 1,
                last_run: 0,
                unsettled: Vec::new(),
            }),
            stops_merging: AtomicBool::new(false),
        }
    }

    /// Opens the runs of a store. Only reads the file.
    pub(crate) fn open(file: File, options: RunStoreOptions) -> Result<Self, OpenRunsError> {
        let (place, manifest) = newest_manifest(&file, options.layout)?;
        let runs = Self::new(file, options, manifest.meta);
        let mut state = runs.state();
        state.sequence = manifest.sequence;
        state.place = place;
        let list = manifest.runs.iter().map(|run| {
            state.last_run = state.last_run.max(run.id);
            runs.open_run(run).map(Arc::new)
        });
        let list: Vec<Arc<SortedRun>> = list.collect::<Result<_, _>>()?;
        check_merges(&list)?;
        state.list = Arc::new(RunList { runs: list });
        drop(state);
        Ok(runs)
    }

    fn open_run(&self, record: &RunRecord) -> Result<SortedRun, FileError> {
        let len = self.file.len()?;
        let tables = record.tables.iter().map(|table| {
            let chunks = table.chunks.iter().map(|&chunk| {
                if len <= self.file.start(chunk) {
                    return Err(Damage::of_length());
                }
                self.file.claim(chunk).map(Arc::new)
            });
            let table = Table::open(
                &self.file,
                table.id,
                table.bytes,
                table.root_bytes,
                table.first_chunk,
                chunks.collect::<Result<_, _>>()?,
            )?;
            if len < table.end_in_file() {
                return Err(Damage::of_length().into());
            }
            Ok(Arc::new(table))
        });
        let tables: Vec<Arc<Table>> = tables.collect::<Result<_, FileError>>()?;
        let ends_before = |one: &Arc<Table>, next: &Arc<Table>| *one.root.end <= *next.first_key();
        if !tables.is_sorted_by(ends_before) {
            return Err(Damage::of_order().into());
        }
        Ok(SortedRun {
            id: RunId(record.id),
            into: match record.into {
                0 => None,
                id => Some(RunId(id)),
            },
            hidden_bytes: record.hidden_bytes,
            begins: record.begins.clone(),
            tables,
        })
    }

    /// Returns how the file is used.
    pub(crate) fn options(&self) -> &RunStoreOptions {
        &self.options
    }

    pub(super) fn state(&self) -> MutexGuard<'_, RunsState> {
        self.state.lock()
    }

    /// Returns the newest runs.
    pub(crate) fn list(&self) -> Arc<RunList> {
        self.state().list.clone()
    }

    /// Returns the store's own record.
    pub(crate) fn meta(&self) -> Meta {
        self.state().meta
    }

    /// Changes the store's own record, durably.
    pub(crate) fn change_meta(&self, change: impl FnOnce(&mut Meta)) -> Result<(), FileError> {
        let mut state = self.state();
        let list = state.list.clone();
        self.install(&mut state, list, change)
    }

    /// Adds a run, which is newer than all others, and changes the store's own record, durably. Calls `installed` with
    /// the new list, before any later change.
    pub(crate) fn add_entries<'a>(
        &self,
        entries: impl Iterator<Item = Entry<'a>>,
        change: impl FnOnce(&mut Meta),
        installed: impl FnOnce(&Arc<RunList>),
    ) -> Result<(), FileError> {
        let mut writer = RunWriter::new(self);
        let list = self.list();
        for entry in entries {
            if let Entry::Gap { begin, end } = entry {
                for run in &list.runs {
                    writer.hidden_bytes += run.bytes_in_gap(begin, end)?;
                }
            }
            writer.add(entry)?;
        }
        self.add(writer, change, installed)
    }

    fn add(
        &self,
        writer: RunWriter<'_>,
        change: impl FnOnce(&mut Meta),
        installed: impl FnOnce(&Arc<RunList>),
    ) -> Result<(), FileError> {
        // Of what several Gaps hide, each counts all.
        let hidden_bytes = writer.hidden_bytes.min(self.list().bytes());
        let tables = writer.finish()?;
        if !tables.is_empty() {
            self.file.flush()?;
        }
        let mut state = self.state();
        let mut runs = state.list.runs.clone();
        if !tables.is_empty() {
            let run = SortedRun {
                id: state.next_run(),
                into: None,
                hidden_bytes,
                begins: Vec::new(),
                tables,
            };
            runs.insert(0, Arc::new(run));
        }
        self.install(&mut state, Arc::new(RunList { runs }), change)?;
        installed(&state.list);
        Ok(())
    }

    /// Writes a manifest with these runs, and makes them the newest ones.
    pub(super) fn install(
        &self,
        state: &mut RunsState,
        list: Arc<RunList>,
        change: impl FnOnce(&mut Meta),
    ) -> Result<(), FileError> {
        let mut meta = state.meta;
        change(&mut meta);
        let manifest = Manifest {
            sequence: state.sequence + 1,
            meta,
            chunk_bytes: self.options.layout.chunk_bytes,
            runs: list.runs.iter().map(|run| record(run)).collect(),
        };
        let bytes = manifest.encode();
        if bytes.len() > self.options.layout.chunk_bytes as usize {
            let full = std::io::Error::new(
                std::io::ErrorKind::StorageFull,
                "the store has reached its largest size, of about 250 GB",
            );
            return Err(full.into());
        }
        let place = 1 - state.place;
        state.unsettled.push(list.clone());
        self.file.write(self.file.start(place), &bytes)?;
        self.file.flush()?;
        state.sequence += 1;
        state.place = place;
        state.meta = meta;
        state.list = list;
        state.unsettled.clear();
        Ok(())
    }

    /// Makes all later writes fail, because what is written to a damaged file might damage it further.
    pub(crate) fn give_up(&self, damage: Damage) {
        self.file.give_up(damage);
    }

    /// Makes a step of a merge that is under way end without effect, and all later ones do nothing.
    pub(crate) fn stop_merging(&self) {
        self.stops_merging.store(true, Ordering::Relaxed);
    }

    /// Closes the file, also for readers of runs.
    pub(crate) fn release(&self) {
        self.file.release();
    }
}

impl RunsState {
    pub(super) fn next_run(&mut self) -> RunId {
        self.last_run += 1;
        RunId(self.last_run)
    }
}

/// Checks that the inputs of each merge follow each other, and that its output follows them.
fn check_merges(runs: &[Arc<SortedRun>]) -> Result<(), Damage> {
    for (index, run) in runs.iter().enumerate() {
        let Some(into) = run.into else { continue };
        let follows =
            |next: &Arc<SortedRun>| next.into == Some(into) || (next.id, next.into) == (into, None);
        if !runs.get(index + 1).is_some_and(follows) {
            return Err(Damage::new("a merge lacks its output"));
        }
    }
    Ok(())
}

fn record(run: &SortedRun) -> RunRecord {
    RunRecord {
        id: run.id.0,
        into: run.into.map_or(0, |into| into.0),
        hidden_bytes: run.hidden_bytes,
        begins: run.begins.clone(),
        tables: run
            .tables
            .iter()
            .map(|table| TableRecord {
                id: table.id,
                bytes: table.bytes,
                root_bytes: table.root_bytes,
                first_chunk: table.first_chunk,
                chunks: table.chunks.iter().map(|chunk| chunk.number()).collect(),
            })
            .collect(),
    }
}

/// Reads both manifests. Returns the newer one of those that are valid, and its chunk.
fn newest_manifest(file: &File, layout: Layout) -> Result<(u32, Manifest), OpenRunsError> {
    let mut newest: Option<(u32, Manifest)> = None;
    for place in 0..MANIFEST_CHUNKS {
        let Some(manifest) = read_manifest(file, place, layout)? else {
            continue;
        };
        if newest
            .as_ref()
            .is_none_or(|(_, newest)| newest.sequence < manifest.sequence)
        {
            newest = Some((place, manifest));
        }
    }
    let newest = newest.filter(|(_, manifest)| manifest.chunk_bytes == layout.chunk_bytes);
    match newest {
        Some(newest) => Ok(newest),
        None if is_of_store(file)? => Err(Damage::new("it has no valid manifest").into()),
        None => Err(OpenRunsError::NotAStore),
    }
}

/// Reads a manifest. `None` if it is damaged.
fn read_manifest(
    file: &File,
    place: u32,
    layout: Layout,
) -> Result<Option<Manifest>, OpenRunsError> {
    let start = u64::from(place) * u64::from(layout.chunk_bytes);
    let left = file.len()?.saturating_sub(start);
    let mut head = [0; HEAD_BYTES];
    if left < HEAD_BYTES as u64 {
        return Ok(None);
    }
    file.read(start, &mut head)?;
    let Some(length) = length(&head) else {
        return Ok(None);
    };
    if length > layout.chunk_bytes || u64::from(length) > left {
        return Ok(None);
    }
    let mut bytes = vec![0; length as usize];
    file.read(start, &mut bytes)?;
    match Manifest::decode(&bytes) {
        Ok(manifest) => Ok(Some(manifest)),
        Err(ManifestError::NewerFormat(format)) => Err(OpenRunsError::NewerFormat(format)),
        Err(ManifestError::Damaged) => Ok(None),
    }
}

/// Returns whether a file that has no valid manifest was one of a store, from what damage has left.
fn is_of_store(file: &File) -> Result<bool, FileError> {
    const PIECE_BYTES: u64 = 1 << 20;
    const OVERLAP_BYTES: u64 = 64;
    let len = file.len()?;
    for from in (0..len).step_by(PIECE_BYTES as usize) {
        let to = len.min(from + PIECE_BYTES + OVERLAP_BYTES);
        let mut bytes = vec![0; (to - from) as usize];
        file.read(from, &mut bytes)?;
        let magics = [super::manifest::MAGIC, super::table::MAGIC];
        let is_magic = |window: &[u8]| magics.iter().any(|magic| *magic == window);
        if bytes.windows(16).any(is_magic) {
            return Ok(true);
        }
    }
    Ok(false)
}

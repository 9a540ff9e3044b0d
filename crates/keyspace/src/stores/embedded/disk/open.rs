//! A store: the runs, their log, and the window over them.
//!
//! A commit is durable once it is in the log. Its rows go to the window. A checkpoint moves them from there
//! to the runs and frees the log.
//!
//! # Steps of opening
//!
//! 1. Read the manifest, and the root of each table.
//! 2. Read the log from its first segment on, check every frame, and apply the commits that are not in the runs to the
//!    window. Nothing was written to a file until then.
//! 3. Flush the segments that were read: after a killed process, they may be only in the operating system's cache.
//! 4. Begin the next segment of the log, and advance the clock, so that no version is assigned twice. Then write a
//!    manifest that names the log.
//! 5. The store is open. A checkpoint moves the rows from the log to the runs in the background.
//!
//! An opening that fails in steps 3 or 4 may have begun to recover, and the next one continues from there: files of the
//! log that are not needed may be gone, and a store that was to be created may be there, without rows. A new file of
//! the log is removed again, unless the log had already begun: then the disk failed while the store's file was written.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[cfg(unix)]
use super::applications::Hold;
use super::checkpoint::{Checkpoint, StoreFiles};
use super::journal::Journal;
use super::open_errors::{damaged, log_refusal, not_a_store, open_error, refusal, runs_refusal};
#[cfg(unix)]
use super::presence::Presence;
use crate::contract::env::Environment;
use crate::contract::error::OpenError;
use crate::contract::limits::RECOVERY_VERSIONS;
use crate::stores::embedded::backend::File;
use crate::stores::embedded::backend::place::{IN_MEMORY, Identity, replaced};
use crate::stores::embedded::layers::{Checkpointed, FrozenPart, Window};
use crate::stores::embedded::log::files::{Files, Slot};
use crate::stores::embedded::log::frame::Record;
use crate::stores::embedded::log::recover::{LogError, Recovered, Replayed, leftovers, recover};
use crate::stores::embedded::log::segment::{LogId, Sizes};
use crate::stores::embedded::log::slots::{Slots, has_segment};
use crate::stores::embedded::options::{Durability, Options, Sharing};
#[cfg(test)]
use crate::stores::embedded::runs::RunList;
use crate::stores::embedded::runs::damage::FileError;
use crate::stores::embedded::runs::manifest::{LogStart, Meta};
use crate::stores::embedded::runs::{Layout, OpenRunsError, RunLimits, RunStoreOptions, Runs};

/// The parameters of opening a store.
#[derive(Debug, Clone)]
pub(crate) struct Setup {
    pub(crate) cache_bytes: usize,
    pub(crate) window_bytes: usize,
    pub(crate) limits: RunLimits,
    pub(crate) layout: Layout,
    pub(crate) log: Sizes,
    /// Whether writes of the log bypass the page cache.
    pub(crate) is_log_direct: bool,
    /// Whether the opening must not keep applications from owning the store.
    pub(crate) is_viewer: bool,
    /// The store that this process goes on with. An opening leaves another one as it is. `None` for any.
    pub(crate) expected: Option<Identity>,
    pub(crate) env: Environment,
}

/// An open store, before the engine starts.
pub(crate) struct OpenedStore {
    /// The version at which the clock starts, later than all versions that were ever assigned.
    pub(crate) version: i64,
    /// The path of the store, for errors.
    pub(crate) path: PathBuf,
    /// The part in those who have the store open. `None` if it is not a file.
    #[cfg(unix)]
    pub(crate) presence: Option<Presence>,
    /// Keeps viewers from owning the store, or applications if this is a viewer. `None` if it is not a file.
    #[cfg(unix)]
    pub(crate) hold: Option<Hold>,
    pub(crate) files: StoreFiles,
    pub(crate) journal: Option<Journal>,
    pub(crate) checkpointed: Checkpointed,
    pub(crate) window: Window,
    /// The parts that were only in the log.
    pub(crate) replayed: Vec<Checkpoint>,
    /// The number of their batches.
    pub(crate) log_batches: u64,
}

impl Setup {
    /// Returns what the options say of an opening, for any store.
    pub(crate) fn of(options: &Options) -> Self {
        Self {
            cache_bytes: options.cache_bytes,
            window_bytes: options.window_bytes,
            limits: options.limits,
            layout: Layout::default(),
            log: Sizes::default(),
            is_log_direct: options.durability() == Durability::Immediate,
            is_viewer: options.sharing == Sharing::Yield,
            expected: None,
            env: options.environment.clone(),
        }
    }

    pub(crate) fn run_options(&self) -> RunStoreOptions {
        RunStoreOptions {
            layout: self.layout,
            cache_bytes: self.cache_bytes,
            limits: self.limits,
            env: self.env.clone(),
        }
    }
}

impl OpenedStore {
    /// Creates a store in an empty file, without a log.
    pub(crate) fn create(file: File, setup: &Setup) -> Result<Self, FileError> {
        let meta = Meta {
            last_version: RECOVERY_VERSIONS,
            id: setup.env.random_bytes(),
            log: None,
        };
        let runs = Runs::create(file, setup.run_options(), meta, |_| Ok(()))?;
        Ok(Self::over(runs, Path::new(IN_MEMORY), setup))
    }

    #[cfg(unix)]
    pub(crate) fn take_presence(mut self) -> (Option<(Presence, Hold)>, Self) {
        (self.presence.take().zip(self.hold.take()), self)
    }

    fn over(runs: Runs, path: &Path, setup: &Setup) -> Self {
        let checkpointed = Checkpointed::new(runs.list());
        Self {
            path: path.to_owned(),
            #[cfg(unix)]
            presence: None,
            #[cfg(unix)]
            hold: None,
            version: runs.meta().last_version,
            window: Window::new(&checkpointed, setup.window_bytes),
            checkpointed,
            files: StoreFiles {
                place: None,
                runs: Arc::new(runs),
                slots: None,
            },
            journal: None,
            replayed: Vec::new(),
            log_batches: 0,
        }
    }

    /// Opens the store at `path`, whose rows are in `file` and whose log is in `files`.
    ///
    /// Replays the commits that are only in the log. Continues after every version that an earlier opening
    /// may have assigned, including those of commits that were acknowledged and then lost because they were
    /// not flushed.
    ///
    /// Nothing is written to the files before everything was read, so every refusal leaves all files unchanged.
    pub(crate) fn open(
        file: File,
        files: Arc<dyn Files>,
        path: &Path,
        setup: &Setup,
    ) -> Result<Self, OpenError> {
        let (mut store, recovered) = Self::read(file, &*files, path, setup)?;
        let id = store.files.runs.meta().id;
        if setup.expected.is_some_and(|expected| expected.store != id) {
            return Err(open_error(path, replaced(path)));
        }
        let log = store.files.runs.meta().log.unwrap_or_else(|| LogStart {
            id: setup.env.random_bytes(),
            start: recovered.end.next_start(),
        });
        let journal = store
            .start_log(files, log, recovered, setup)
            .map_err(|error| open_error(path, error))?;
        // Only after the log has begun.
        let named = store.files.runs.change_meta(|meta| meta.log = Some(log));
        named.map_err(|error| refusal(path, error))?;
        store.files.slots = Some(journal.slots());
        store.journal = Some(journal);
        Ok(store)
    }

    /// Refuses an empty file.
    pub(crate) fn check_not_empty(
        file: &File,
        files: &dyn Files,
        path: &Path,
    ) -> Result<(), OpenError> {
        let len = file.len();
        if len.map_err(|error| open_error(path, error))? > 0 {
            return Ok(());
        }
        let slots = files.list().map_err(|error| open_error(path, error))?;
        if slots.is_empty() {
            return Err(not_a_store(path, "an empty file"));
        }
        Err(damaged(path, "it is empty, and its log is beside it"))
    }

    /// Reads the files of the store at `path`, without writing to any. Returns what its log was, too.
    pub(crate) fn read(
        file: File,
        files: &dyn Files,
        path: &Path,
        setup: &Setup,
    ) -> Result<(Self, Recovered), OpenError> {
        Self::check_not_empty(&file, files, path)?;
        let runs = Runs::open(file, setup.run_options());
        let runs = runs.map_err(|error| match error {
            OpenRunsError::NotAStore if has_segment(files).unwrap_or(false) => {
                damaged(path, "it is not a store, and the log of one is beside it")
            }
            error => runs_refusal(path, error),
        })?;
        let mut store = Self::over(runs, path, setup);
        let recovered = store
            .recover(files)
            .map_err(|error| log_refusal(path, files, error))?;
        Ok((store, recovered))
    }

    /// Reads the log, and applies the commits that are not in the runs to the window.
    fn recover(&mut self, files: &dyn Files) -> Result<Recovered, LogError> {
        let meta = self.files.runs.meta();
        let Some(log) = meta.log else {
            return leftovers(files, meta.id, meta.last_version);
        };
        let id = LogId {
            store: meta.id,
            log: log.id,
        };
        let recovered = recover(files, id, log.start, meta.last_version, |batch| {
            self.replay(batch, log)
        })?;
        let newest = recovered.end.newest_version;
        if newest.is_some_and(|newest| newest < meta.last_version) {
            // The runs are never ahead of its log, so this log is an older copy.
            let segment = recovered.end.segment;
            return Err(LogError::Missing { segment });
        }
        if recovered.end.last_frame < log.start.frame
            && let Some(&slot) = recovered.segments.get(&log.start.segment)
        {
            // The record names a segment only after its first frame was flushed.
            return Err(LogError::without_frames(slot));
        }
        self.version = self.version.max(newest.unwrap_or(0));
        Ok(recovered)
    }

    fn replay(&mut self, batch: Replayed<'_>, log: LogStart) -> Result<(), LogError> {
        if self.window.is_due() {
            let part = self.window.freeze();
            self.add_replayed(part, log);
        }
        let mut effects = batch.effects;
        let applied = effects.try_for_each(|effect| self.window.apply(effect));
        applied.map_err(|error| LogError::Io(error.into()))?;
        self.version = batch.version;
        self.log_batches += 1;
        Ok(())
    }

    fn add_replayed(&mut self, part: FrozenPart, log: LogStart) {
        self.replayed.push(Checkpoint {
            part,
            last_version: self.version,
            log: Some(log),
        });
    }

    /// Begins to log, in a new segment after the recovered ones, at a version that was never assigned. If
    /// that fails, no new file is left.
    fn start_log(
        &mut self,
        files: Arc<dyn Files>,
        log: LogStart,
        recovered: Recovered,
        setup: &Setup,
    ) -> io::Result<Journal> {
        let id = LogId {
            store: self.files.runs.meta().id,
            log: log.id,
        };
        let created = Slot(recovered.end.segment + 1);
        // A file that was renamed may have the name of the next segment and hold another one.
        let is_in_use =
            recovered.next.is_some() || recovered.segments.values().any(|&slot| slot == created);
        let started = self.start_journal(files.clone(), id, recovered, setup);
        if started.is_err() && !is_in_use {
            // If it cannot be removed, the next opening does that.
            let _ = files.remove(created);
        }
        started
    }

    fn start_journal(
        &mut self,
        files: Arc<dyn Files>,
        id: LogId,
        recovered: Recovered,
        setup: &Setup,
    ) -> io::Result<Journal> {
        let end = recovered.end;
        let slots = Slots::start(files, id, setup.log, recovered)?;
        let mut journal = Journal::start(id, slots, setup.log, setup.env.clone(), &end)?;
        let part = self.window.freeze();
        self.add_replayed(part, journal.place());
        self.version += RECOVERY_VERSIONS;
        journal.append(&mut Record::clock(self.version))?;
        journal.flush()?;
        Ok(journal)
    }
}

#[cfg(test)]
impl OpenedStore {
    /// Commits a batch without the engine.
    pub(crate) fn commit(
        &mut self,
        effects: &[crate::stores::embedded::log::effect::Effect<'_>],
    ) -> Result<(), FileError> {
        self.version += 1;
        let mut record = Record::batch(self.version);
        for &effect in effects {
            self.window.apply(effect)?;
            record.push(effect);
        }
        if let Some(journal) = &mut self.journal {
            journal.append(&mut record).map_err(io::Error::other)?;
            journal.flush()?;
        }
        Ok(())
    }

    /// Moves all commits to the runs.
    pub(crate) fn checkpoint(&mut self) -> Result<(), FileError> {
        let part = self.window.freeze();
        let log = self.journal.as_ref().map(Journal::place);
        self.replayed.push(Checkpoint {
            part,
            last_version: self.version,
            log,
        });
        self.move_replayed()
    }

    /// Moves the replayed parts to the runs.
    pub(crate) fn move_replayed(&mut self) -> Result<(), FileError> {
        for checkpoint in self.replayed.drain(..) {
            let id = checkpoint.part.id;
            let newest = &mut self.checkpointed;
            let installed = |runs: &Arc<RunList>| *newest = Checkpointed::after(runs.clone(), id);
            self.files.checkpoint(&checkpoint, installed)?;
        }
        self.window.rebase(&self.checkpointed);
        Ok(())
    }
}

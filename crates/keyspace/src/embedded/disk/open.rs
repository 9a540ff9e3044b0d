//! A store: the tree, its log, and the window over them.
//!
//! A commit is durable once it is in the log. Its rows go to the window. A checkpoint moves them from there
//! to the tree and frees the log.
//!
//! # Steps of opening
//!
//! 1. Read the log from its first segment on, check every frame, and apply the commits that are not in the tree to the
//!    window.
//! 2. Make the first change of the tree in memory. Nothing was written to a file until then.
//! 3. Flush the segments that were read: after a killed process, they may be only in the operating system's cache.
//! 4. Begin the next segment of the log, and advance the clock, so that no version is assigned twice. Then write the
//!    change of the tree to the file.
//! 5. The store is open. A checkpoint moves the rows from the log to the tree in the background.
//!
//! An opening that fails in steps 3 or 4 may have begun to recover, and the next one continues from there: files of the
//! log that are not needed may be gone, and a store that was to be created may be there, without rows. A new file of
//! the log is removed again, unless the log had already begun: then the disk failed while the store's file was written.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use redb::StorageBackend;

use super::checkpoint::{Checkpoint, StoreFiles};
use super::journal::Journal;
use super::location::IN_MEMORY;
use crate::embedded::layers::{Checkpointed, FrozenPart, Window};
use crate::embedded::log::files::{Files, Slot};
use crate::embedded::log::frame::Record;
use crate::embedded::log::recover::{LogError, Recovered, Replayed, leftovers, recover};
use crate::embedded::log::segment::{LogId, Sizes};
use crate::embedded::log::slots::Slots;
use crate::embedded::tree::Tree;
use crate::embedded::tree::deferred::DeferredBackend;
use crate::embedded::tree::guard::guarded;
use crate::embedded::tree::meta::{LogStart, Meta, Totals};
use crate::embedded::tree::open_errors::{damaged, log_refusal, not_a_store, open_error, refusal};
use crate::env::Environment;
use crate::error::OpenError;
use crate::limits::RECOVERY_VERSIONS;

/// The parameters of opening a store.
#[derive(Debug, Clone)]
pub(crate) struct Setup {
    pub(crate) cache_bytes: usize,
    pub(crate) window_bytes: usize,
    pub(crate) log: Sizes,
    /// Whether writes of the log bypass the page cache.
    pub(crate) is_log_direct: bool,
    pub(crate) env: Environment,
}

/// An open store, before the engine starts.
pub(crate) struct OpenedStore {
    /// The version at which the clock starts, later than all versions that were ever assigned.
    pub(crate) version: i64,
    /// The path of the store, for errors.
    pub(crate) path: PathBuf,
    pub(crate) files: StoreFiles,
    pub(crate) journal: Option<Journal>,
    pub(crate) tree: Checkpointed,
    pub(crate) window: Window,
    /// The parts that were only in the log.
    pub(crate) replayed: Vec<Checkpoint>,
    /// The number of their batches.
    pub(crate) log_batches: u64,
}

impl OpenedStore {
    /// Creates a store in an empty backend, without a log.
    pub(crate) fn create(backend: impl StorageBackend, setup: &Setup) -> Result<Self, redb::Error> {
        let mut meta = Meta {
            last_version: RECOVERY_VERSIONS,
            id: setup.env.random_bytes(),
            totals: Totals::default(),
            log: None,
        };
        let tree = Tree::create(backend, setup.cache_bytes, &mut meta)?;
        Self::over(tree, meta, Path::new(IN_MEMORY), setup)
    }

    fn over(tree: Tree, meta: Meta, path: &Path, setup: &Setup) -> Result<Self, redb::Error> {
        let checkpointed = Checkpointed::new(guarded(|| tree.rows(&meta))?);
        Ok(Self {
            path: path.to_owned(),
            version: meta.last_version,
            window: Window::new(&checkpointed, setup.window_bytes),
            tree: checkpointed,
            files: StoreFiles {
                tree,
                meta,
                slots: None,
            },
            journal: None,
            replayed: Vec::new(),
            log_batches: 0,
        })
    }

    /// Opens the store at `path`, whose rows are in a backend and whose log is in `files`.
    ///
    /// Replays the commits that are only in the log. Continues after every version that an earlier opening
    /// may have assigned, including those of commits that were acknowledged and then lost because they were
    /// not flushed.
    ///
    /// Nothing is written to the files before everything was read and the first write to the tree has
    /// succeeded in memory, so every refusal leaves all files unchanged.
    pub(crate) fn open(
        backend: impl StorageBackend,
        files: Arc<dyn Files>,
        path: &Path,
        setup: &Setup,
    ) -> Result<Self, OpenError> {
        let failed = |error: io::Error| open_error(path, error);
        Self::check_not_empty(&backend, &*files, path)?;
        let backend = DeferredBackend::new(backend);
        let (mut store, id, recovered) = Self::prepare(backend.clone(), &*files, path, setup)?;
        let journal = store
            .start_log(files, id, recovered, setup)
            .map_err(failed)?;
        backend.release().map_err(failed)?;
        store.files.slots = Some(journal.slots());
        store.journal = Some(journal);
        Ok(store)
    }

    /// Refuses an empty file.
    pub(crate) fn check_not_empty(
        backend: &impl StorageBackend,
        files: &dyn Files,
        path: &Path,
    ) -> Result<(), OpenError> {
        let len = backend.len();
        if len.map_err(|error| open_error(path, error))? > 0 {
            return Ok(());
        }
        let slots = files.list().map_err(|error| open_error(path, error))?;
        if slots.is_empty() {
            return Err(not_a_store(path, "an empty file"));
        }
        Err(damaged(path, "it is empty, and its log is beside it"))
    }

    /// Opens the store at `path` in memory: reads its files, and holds back what is to be written to them.
    /// Returns the id of its log, and what the log was.
    pub(crate) fn prepare(
        backend: DeferredBackend,
        files: &dyn Files,
        path: &Path,
        setup: &Setup,
    ) -> Result<(Self, LogId, Recovered), OpenError> {
        let (tree, meta) = Tree::open(backend, setup.cache_bytes, path)?;
        let (mut store, recovered) = Self::read(tree, meta, files, path, setup)?;
        let id = store
            .begin_log(&recovered, setup)
            .map_err(|error| refusal(path, error))?;
        Ok((store, id, recovered))
    }

    /// Reads the log of an opened tree, without writing to any file.
    pub(crate) fn read(
        tree: Tree,
        meta: Meta,
        files: &dyn Files,
        path: &Path,
        setup: &Setup,
    ) -> Result<(Self, Recovered), OpenError> {
        let opened = Self::over(tree, meta, path, setup);
        let mut store = opened.map_err(|error| refusal(path, error))?;
        let recovered = store
            .recover(files)
            .map_err(|error| log_refusal(path, files, error))?;
        Ok((store, recovered))
    }

    /// Reads the log, and applies the commits that are not in the tree to the window.
    fn recover(&mut self, files: &dyn Files) -> Result<Recovered, LogError> {
        let meta = self.files.meta;
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
            // The tree is never ahead of its log, so this log is an older copy.
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
        let applied = guarded(|| {
            let mut effects = batch.effects;
            effects.try_for_each(|effect| Ok(self.window.apply(effect)?))
        });
        applied.map_err(|error| LogError::Io(io::Error::other(error)))?;
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

    /// Makes the store's record name the log. Returns the id of the log.
    ///
    /// The record is written in memory until the file is released, which must not happen before the log
    /// has begun.
    fn begin_log(&mut self, recovered: &Recovered, setup: &Setup) -> Result<LogId, redb::Error> {
        let meta = &mut self.files.meta;
        let log = meta.log.get_or_insert_with(|| LogStart {
            id: setup.env.random_bytes(),
            start: recovered.end.next_start(),
        });
        let id = LogId {
            store: meta.id,
            log: log.id,
        };
        self.files.write_meta()?;
        Ok(id)
    }

    /// Begins to log, in a new segment after the recovered ones, at a version that was never assigned. If
    /// that fails, no new file is left.
    fn start_log(
        &mut self,
        files: Arc<dyn Files>,
        id: LogId,
        recovered: Recovered,
        setup: &Setup,
    ) -> io::Result<Journal> {
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
        effects: &[crate::embedded::log::effect::Effect<'_>],
    ) -> Result<(), redb::Error> {
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

    /// Moves all commits to the tree.
    pub(crate) fn checkpoint(&mut self) -> Result<(), redb::Error> {
        let part = self.window.freeze();
        let log = self.journal.as_ref().map(Journal::place);
        self.replayed.push(Checkpoint {
            part,
            last_version: self.version,
            log,
        });
        self.move_replayed()
    }

    /// Moves the replayed parts to the tree.
    pub(crate) fn move_replayed(&mut self) -> Result<(), redb::Error> {
        for checkpoint in self.replayed.drain(..) {
            self.tree = self.files.checkpoint(&checkpoint)?;
        }
        self.window.rebase(&self.tree);
        Ok(())
    }
}

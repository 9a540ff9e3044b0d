//! A store: the tree, its log, and the window over them.
//!
//! A commit is durable once it is in the log. Its rows go to the window. A checkpoint moves them from there
//! to the tree and frees the log.

use std::io;
use std::path::Path;
use std::sync::Arc;

use redb::StorageBackend;

use super::checkpoint::{Checkpoint, StoreFiles};
use super::files::Files;
use super::held::HeldBackend;
use super::journal::Journal;
use super::layers::{Checkpointed, FrozenPart, Window};
use super::log::frame::Record;
use super::log::recover::{LogError, Recovered, Replayed, leftovers, recover};
use super::log::segment::{LogId, Sizes};
use super::log::slots::Slots;
use super::meta::{LogStart, Meta};
use super::refusal::{log_refusal, not_a_store, open_error, refusal};
use super::tree::{Tree, guarded};
use crate::env::Environment;
use crate::error::OpenError;
use crate::limits::RECOVERY_VERSIONS;

/// The parameters of opening a store.
#[derive(Debug, Clone)]
pub(super) struct Setup {
    pub(super) cache_bytes: usize,
    pub(super) window_bytes: usize,
    pub(super) log: Sizes,
    /// Whether writes of the log bypass the page cache.
    pub(super) is_log_direct: bool,
    pub(super) env: Environment,
}

/// An open store, before the engine starts.
pub(super) struct Store {
    /// The version at which the clock starts, later than all versions that were ever assigned.
    pub(super) version: i64,
    pub(super) files: StoreFiles,
    pub(super) journal: Option<Journal>,
    pub(super) tree: Checkpointed,
    pub(super) window: Window,
    /// The parts that were only in the log.
    pub(super) replayed: Vec<Checkpoint>,
}

impl Store {
    /// Creates a store in an empty backend, without a log.
    pub(super) fn create(backend: impl StorageBackend, setup: &Setup) -> Result<Self, redb::Error> {
        let mut meta = Meta {
            last_version: RECOVERY_VERSIONS,
            id: setup.env.random_bytes(),
            live_bytes: Some(0),
            log: None,
        };
        let tree = Tree::create(backend, setup.cache_bytes, &mut meta)?;
        Self::over(tree, meta, setup)
    }

    fn over(tree: Tree, meta: Meta, setup: &Setup) -> Result<Self, redb::Error> {
        let checkpointed = Checkpointed::new(guarded(|| tree.rows())?);
        Ok(Self {
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
        })
    }

    /// Opens the store at `path`, whose rows are in a backend and whose log is in `files`.
    ///
    /// Replays the commits that are only in the log. Continues after every version that an earlier opening
    /// may have assigned, including those of commits that were acknowledged and then lost because they were
    /// not flushed.
    ///
    /// Nothing is written before everything was read, so every refusal leaves all files unchanged.
    pub(super) fn open(
        backend: impl StorageBackend,
        files: Arc<dyn Files>,
        path: &Path,
        setup: &Setup,
    ) -> Result<Self, OpenError> {
        let failed = |error: io::Error| open_error(path, error);
        if backend.len().map_err(failed)? == 0 {
            return Err(not_a_store(path, "an empty file"));
        }
        let backend = HeldBackend::new(backend);
        let (tree, meta) = Tree::open(backend.clone(), setup.cache_bytes, path)?;
        let opened = Self::over(tree, meta, setup);
        let mut store = opened.map_err(|error| refusal(path, error))?;
        let recovered = store.recover(&*files);
        let recovered = recovered.map_err(|error| log_refusal(path, error))?;
        backend.release().map_err(failed)?;
        let started = store.start_log(files, recovered, setup);
        started.map_err(|error| refusal(path, error))?;
        Ok(store)
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
        Ok(())
    }

    fn add_replayed(&mut self, part: FrozenPart, log: LogStart) {
        self.replayed.push(Checkpoint {
            part,
            last_version: self.version,
            log: Some(log),
        });
    }

    /// Begins to log, in a new segment after the recovered ones, at a version that was never assigned.
    fn start_log(
        &mut self,
        files: Arc<dyn Files>,
        recovered: Recovered,
        setup: &Setup,
    ) -> Result<(), redb::Error> {
        let meta = &mut self.files.meta;
        let log = match &meta.log {
            Some(log) => log.id,
            None => setup.env.random_bytes(),
        };
        let id = LogId {
            store: meta.id,
            log,
        };
        let end = recovered.end;
        let slots = Slots::start(files, id, setup.log, recovered)?;
        let mut journal = Journal::start(id, slots, setup.log, setup.env.clone(), &end)?;
        if meta.log.is_none() {
            // Record the log in the tree before anything is written to the log.
            meta.log = Some(journal.place());
            self.files.write_meta()?;
        }
        let part = self.window.freeze();
        self.add_replayed(part, journal.place());
        self.version += RECOVERY_VERSIONS;
        journal
            .append(&mut Record::clock(self.version))
            .map_err(io::Error::other)?;
        journal.flush()?;
        self.files.slots = Some(journal.slots());
        self.journal = Some(journal);
        Ok(())
    }
}

#[cfg(test)]
impl Store {
    /// Commits a batch without the engine.
    pub(super) fn commit(
        &mut self,
        effects: &[super::log::effect::Effect<'_>],
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
    pub(super) fn checkpoint(&mut self) -> Result<(), redb::Error> {
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
    pub(super) fn move_replayed(&mut self) -> Result<(), redb::Error> {
        for checkpoint in self.replayed.drain(..) {
            self.tree = self.files.checkpoint(&checkpoint)?;
        }
        self.window.rebase(&self.tree);
        Ok(())
    }
}

//! A store: the tree and, if it is in a file, the log before it.
//!
//! A commit is durable once it is in the log. The rows follow at once in the tree's memory, so that they
//! can be read, and reach its file with the next checkpoint, which frees the log.

use std::io;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use redb::StorageBackend;

use super::effect::{Effect, Values};
use super::files::Files;
use super::held::HeldBackend;
use super::log::frame::Record;
use super::log::recover::{End, LogError, Recovered, Start, leftovers, recover};
use super::log::segment::{LogId, Sizes};
use super::log::slots::Slots;
use super::log::writer::{AppendError, Writer};
use super::meta::{LogStart, Meta};
use super::refusal::{log_refusal, not_a_store, open_error, refusal};
use super::tree::{Rows, Tree};
use crate::env::Environment;
use crate::error::OpenError;
use crate::limits::RECOVERY_VERSIONS;

/// How many batches may be in the log and not in the tree's file. redb keeps the pages that batches in
/// memory have replaced until then.
const BATCHES_PER_CHECKPOINT: u32 = 1024;

/// How a store is opened.
#[derive(Debug, Clone)]
pub(super) struct Setup {
    pub(super) cache_bytes: usize,
    pub(super) log: Sizes,
    pub(super) env: Environment,
}

/// Whether a batch is on disk when [`Store::apply`] returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flush {
    /// It is in the log's file: it survives the end of the process, and a power loss after the next flush.
    Later,
    /// It is on disk.
    Now,
}

/// The rows of a store, and what makes them durable.
pub(super) struct Store {
    tree: Tree,
    meta: Meta,
    /// `None`: in memory, or closed.
    log: Option<Log>,
}

struct Log {
    id: LogId,
    slots: Slots,
    writer: Writer,
    /// The segment that is written.
    start: Start,
    env: Environment,
    /// How many batches were appended since the last checkpoint.
    batches: u32,
}

impl Store {
    /// Makes a store in an empty backend, without a log.
    pub(super) fn create(backend: impl StorageBackend, setup: &Setup) -> Result<Self, redb::Error> {
        let meta = Meta {
            last_version: RECOVERY_VERSIONS,
            id: setup.env.random_bytes(),
            log: None,
        };
        let tree = Tree::create(backend, setup.cache_bytes, &meta)?;
        let log = None;
        Ok(Self { tree, meta, log })
    }

    /// Opens the store at `path`, whose rows are in a backend and whose log is in `files`. Replays what is
    /// in the log alone, and leaves behind every version that an earlier opening may have given, also to
    /// commits that were acknowledged and then lost for want of a flush.
    ///
    /// Nothing is written before everything was read: every refusal leaves all files as they were.
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
        let (tree, mut meta) = Tree::open(backend.clone(), setup.cache_bytes, path)?;
        let recovered = match &meta.log {
            Some(log) => log.recover(&*files, &meta, |_| Ok(())),
            None => leftovers(&*files, meta.id, meta.last_version),
        };
        let recovered = recovered.map_err(|error| log_refusal(path, error))?;

        backend.release().map_err(failed)?;
        if let Some(log) = &meta.log {
            let replayed = log.recover(&*files, &meta, |batch| {
                let meta = Meta {
                    last_version: batch.version,
                    ..meta
                };
                let applied = tree.apply(batch.effects, &meta, redb::Durability::None);
                applied.map_err(|error| LogError::Io(io::Error::other(error)))
            });
            replayed.map_err(|error| log_refusal(path, error))?;
        }
        let newest = recovered.end.newest_version.unwrap_or(0);
        meta.last_version = meta.last_version.max(newest) + RECOVERY_VERSIONS;
        let mut store = Self {
            tree,
            meta,
            log: None,
        };
        let started = store.start_log(files, recovered, setup);
        started.map_err(|error| refusal(path, error))?;
        Ok(store)
    }

    /// Begins to log, in a segment of its own after what was recovered.
    fn start_log(
        &mut self,
        files: Arc<dyn Files>,
        recovered: Recovered,
        setup: &Setup,
    ) -> Result<(), redb::Error> {
        let log = match &self.meta.log {
            Some(log) => log.id,
            None => setup.env.random_bytes(),
        };
        let id = LogId {
            store: self.meta.id,
            log,
        };
        let end = recovered.end;
        let slots = Slots::start(files, id, setup.log, recovered)?;
        let mut log = Log::start(id, slots, setup, &end)?;
        // The first opening names the log, before anything is in it; later ones make durable what was
        // replayed.
        self.meta.log = Some(log.place());
        self.tree.checkpoint(&self.meta)?;
        log.slots.free_before(log.start.segment)?;
        log.append(&mut Record::clock(self.meta.last_version))?;
        log.writer.flush()?;
        self.log = Some(log);
        Ok(())
    }

    /// Returns the version given to the last [`apply`](Self::apply).
    pub(super) fn last_version(&self) -> i64 {
        self.meta.last_version
    }

    /// Applies effects in order, and makes `version` the newest commit version.
    pub(super) fn apply(
        &mut self,
        version: i64,
        effects: &[Effect],
        flush: Flush,
    ) -> Result<(), redb::Error> {
        self.meta.last_version = version;
        let logged = || effects.iter().map(Effect::as_logged);
        let Some(log) = &mut self.log else {
            return self
                .tree
                .apply(logged(), &self.meta, redb::Durability::Immediate);
        };
        let mut record = Record::batch(version);
        logged().for_each(|effect| record.push(effect));
        log.append(&mut record)?;
        log.batches += 1;
        if flush == Flush::Now {
            log.writer.flush()?;
        }
        self.tree
            .apply(logged(), &self.meta, redb::Durability::None)
    }

    /// Makes what was applied survive a power loss.
    pub(super) fn flush(&mut self) -> Result<(), redb::Error> {
        match &mut self.log {
            Some(log) => Ok(log.writer.flush()?),
            None => Ok(()),
        }
    }

    /// Writes the rows to the tree's file and frees the log, if it has become long.
    pub(super) fn checkpoint_if_due(&mut self) -> Result<(), redb::Error> {
        let Some(log) = &mut self.log else {
            return Ok(());
        };
        let place = log.place();
        let has_full_segments = self.meta.log != Some(place);
        if !has_full_segments && log.batches < BATCHES_PER_CHECKPOINT {
            return Ok(());
        }
        self.meta.log = Some(place);
        self.tree.checkpoint(&self.meta)?;
        log.batches = 0;
        Ok(log.slots.free_before(log.start.segment)?)
    }

    /// Writes everything to the tree's file and removes the log.
    pub(super) fn close(&mut self) -> Result<(), redb::Error> {
        let Some(log) = self.log.take() else {
            return Ok(());
        };
        self.meta.log = None;
        self.tree.checkpoint(&self.meta)?;
        // While the tree's file is still locked: it may be the next opener's log otherwise.
        Ok(log.slots.remove_all()?)
    }

    /// Reads the values of keys as the last batch left them.
    pub(super) fn values<'a>(
        &self,
        keys: impl Iterator<Item = &'a Bytes>,
    ) -> Result<Values, redb::Error> {
        self.tree.values(keys)
    }

    /// Returns the rows as the last batch left them.
    pub(super) fn rows(&self) -> Result<Rows, redb::Error> {
        self.tree.rows()
    }
}

impl LogStart {
    /// Reads the log of a store, and visits what is not in the tree.
    fn recover(
        &self,
        files: &dyn Files,
        meta: &Meta,
        visit: impl FnMut(super::log::recover::Replayed<'_>) -> Result<(), LogError>,
    ) -> Result<Recovered, LogError> {
        let id = LogId {
            store: meta.id,
            log: self.id,
        };
        recover(files, id, self.start, meta.last_version, visit)
    }
}

impl Log {
    fn start(id: LogId, mut slots: Slots, setup: &Setup, end: &End) -> io::Result<Self> {
        let env = setup.env.clone();
        let spare = slots.prepare(salt(&env))?;
        Ok(Self {
            id,
            slots,
            writer: Writer::start(setup.log, spare, end),
            start: Start {
                segment: end.segment + 1,
                frame: end.last_frame + 1,
            },
            env,
            batches: 0,
        })
    }

    /// Returns where the log would begin if all before the segment that is written were gone.
    fn place(&self) -> LogStart {
        LogStart {
            id: self.id.log,
            start: self.start,
        }
    }

    /// Appends a frame. The log goes on in a new segment if the frame needs one.
    fn append(&mut self, record: &mut Record) -> io::Result<()> {
        let appended = match self.writer.append(record) {
            Err(AppendError::NoSpare) => {
                let spare = self.slots.prepare(salt(&self.env))?;
                self.writer.give_spare(spare);
                self.writer.append(record)
            }
            appended => appended,
        };
        appended.map_err(|error| match error {
            AppendError::Io(error) => error,
            error => io::Error::other(error),
        })?;
        let segment = self.writer.segment();
        if segment != self.start.segment {
            // It begins with a Begin, and this frame is the second one.
            let frame = self.writer.next_frame() - 2;
            self.start = Start { segment, frame };
        }
        Ok(())
    }
}

fn salt(env: &Environment) -> u64 {
    u64::from_be_bytes(env.random_bytes())
}

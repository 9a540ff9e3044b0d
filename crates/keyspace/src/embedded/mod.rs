//! The embedded store: FoundationDB's transactions in one process, in a file or in memory.
//!
//! # Guarantees
//!
//! - Transactions are strictly serializable, with FoundationDB's conflict rules, limits and codes.
//! - An acknowledged commit survives the end of the process, also by `kill -9`, and, unless
//!   [`Durability::Relaxed`] was chosen, a power loss. A commit is there whole or not at all, and those
//!   there are all up to some point of the commit order.
//! - Versionstamps grow with the commit order, also from one opening to the next.
//! - One opener at a time: a second one, in this process or another, gets [`OpenError::StoreInUse`].
//! - After an I/O failure nothing is built on what may not be on disk: the store refuses all
//!   further work with [`Error::Poisoned`](crate::Error::Poisoned), and opening it again recovers what was
//!   acknowledged and flushed. If only its log finds no room on the disk, commits wait until there is room;
//!   the store fails only if it is closed meanwhile.
//!
//! # What the caller must do
//!
//! - Keep the file on a local disk that does not acknowledge a flush it has not done.
//! - Restart the machine after a flush has failed for a device error, before opening the store again:
//!   the operating system may go on serving pages that never reached the disk.
//! - Keep backups: a row damaged on the disk is noticed where the file no longer makes sense, and
//!   the store stops then, but values are not checked at each read.
//! - Copy a store's files only while it is closed; copy an open store with [`Embedded::backup`].
//!
//! # Layers
//!
//! The transaction keeps its own writes and conflict ranges; the engine gives versions, judges
//! commits and keeps the history that conflicts are found in; the log makes commits durable, with one
//! write and one flush for a batch; the window keeps their rows in memory, and a checkpoint moves them
//! from there to the tree, a [redb](https://docs.rs/redb) database in the store's file. A store in memory is
//! the same store on redb's memory backend, without a log.
//!
//! # Files
//!
//! An open store `path` has its log beside it, in files `path.log.*`: each begins with 4 MiB and grows to
//! 64 MiB at most. They belong together: a copy of `path` alone is no copy of an open store. A store that was
//! closed with [`Embedded::close`] is the one file `path`.

mod arena;
mod atomic;
mod backup;
mod checkpoint;
mod engine;
mod file;
mod files;
mod held;
mod history;
mod journal;
mod layers;
mod log;
mod meta;
mod pipeline;
mod publisher;
mod queue;
mod ranges;
mod read;
mod refusal;
mod resolver;
mod snapshot;
mod sorted_map;
mod state;
mod store;
mod stored;
#[cfg(test)]
mod tests;
mod timeline;
mod transaction;
mod tree;
mod view;
mod watch;
mod window;
mod write_map;

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

pub use self::transaction::EmbeddedTransaction;

use self::engine::Engine;
use self::log::segment::Sizes;
use self::state::Defaults;
use self::store::Setup;
use crate::env::Environment;
use crate::error::{Code, OpenError, Result};
use crate::limits::MAX_WATCHES;
use crate::transaction::{Database, DatabaseOption};

/// When a commit is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Durability {
    /// Once it is on disk, after one flush that the commits of a batch share. Acknowledged commits survive
    /// a power loss.
    #[default]
    Immediate,
    /// Once it is written to the log's file. A flush follows within `interval`. Acknowledged commits
    /// survive the end of the process, also by `kill -9`. **A power loss or a crash of the operating system
    /// may lose what was acknowledged since the last flush**: the latest commits, and never one without those
    /// after it.
    Relaxed {
        /// How long an acknowledged commit may stay unflushed.
        interval: Duration,
    },
}

/// How to open an embedded store.
///
/// ```
/// use keyspace::embedded::Options;
///
/// # fn main() -> Result<(), keyspace::OpenError> {
/// let db = Options::new().cache_bytes(16 << 20).memory()?;
/// # drop(db);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Options {
    durability: Durability,
    cache_bytes: usize,
    window_bytes: usize,
    history_bytes: usize,
    queue_bytes: usize,
    environment: Environment,
}

impl Default for Options {
    fn default() -> Self {
        Self::new()
    }
}

impl Options {
    /// Begins with [`Durability::Immediate`], 64 MiB each for cache, window, history and queue, and the
    /// machine's own environment.
    #[must_use]
    pub fn new() -> Self {
        const DEFAULT_BYTES: usize = 64 << 20;
        Self {
            durability: Durability::default(),
            cache_bytes: DEFAULT_BYTES,
            window_bytes: DEFAULT_BYTES,
            history_bytes: DEFAULT_BYTES,
            queue_bytes: DEFAULT_BYTES,
            environment: Environment::system(),
        }
    }

    /// Chooses when a commit is acknowledged. Makes no difference to a store in memory.
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// Sets how much memory the pages of the tree may take that are kept for later reads.
    #[must_use]
    pub fn cache_bytes(mut self, bytes: usize) -> Self {
        self.cache_bytes = bytes;
        self
    }

    /// Sets how many bytes of recent writes, which are in the log, may wait to be moved to the tree. They
    /// are moved in parts of at most about a quarter of it. While more are waiting, commits wait. With the part
    /// that takes writes, up to twice as many bytes are in memory, and an index of them.
    #[must_use]
    pub fn window_bytes(mut self, bytes: usize) -> Self {
        self.window_bytes = bytes;
        self
    }

    /// Sets how much memory the conflict history may take. When five seconds of writes do not fit,
    /// older transactions fail with `transaction_too_old`.
    #[must_use]
    pub fn history_bytes(mut self, bytes: usize) -> Self {
        self.history_bytes = bytes;
        self
    }

    /// Sets how much memory the commits that wait may take. When it is used up, further commits
    /// fail with `commit_proxy_memory_limit_exceeded`, which the retry loop answers with a backoff.
    #[must_use]
    pub fn queue_bytes(mut self, bytes: usize) -> Self {
        self.queue_bytes = bytes;
        self
    }

    /// Sets where time and randomness come from.
    #[must_use]
    pub fn environment(mut self, environment: Environment) -> Self {
        self.environment = environment;
        self
    }

    /// Opens the store in the file at `path`. If there is no file, it is made, readable by its
    /// owner only; its folder must exist. Blocks while a store that was not closed in good order
    /// is recovered. A process that is killed while it makes a store may leave a file
    /// `.keyspace-*` in that folder, which can be removed.
    ///
    /// # Errors
    /// [`OpenError::StoreInUse`], [`OpenError::NotAStore`], [`OpenError::NewerFormat`], [`Error::Corrupt`](crate::Error::Corrupt)
    /// as its source; of its log [`OpenError::LogMissing`], [`OpenError::LogWithoutStore`],
    /// [`OpenError::LogNewer`], [`OpenError::LogForeign`], [`OpenError::LogDamaged`]: no file was changed.
    /// [`OpenError::Open`] for what the operating system reports.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<Embedded, OpenError> {
        let path = path.as_ref();
        let store = file::open(path, &self.setup())?;
        self.start(store, path)
    }

    /// Opens the store in the file at `path` as [`open`](Self::open) does, and makes none.
    ///
    /// # Errors
    /// [`OpenError::NoStore`] if there is no file, else those of [`open`](Self::open).
    pub fn open_existing(&self, path: impl AsRef<Path>) -> Result<Embedded, OpenError> {
        let path = path.as_ref();
        let store = file::open_existing(path, &self.setup())?;
        self.start(store, path)
    }

    /// Makes a new store in memory. It ends with its last handle and its last transaction.
    ///
    /// # Errors
    /// [`OpenError::Open`] if the system cannot start a thread.
    pub fn memory(&self) -> Result<Embedded, OpenError> {
        let store = file::memory(&self.setup())?;
        self.start(store, Path::new(file::IN_MEMORY))
    }

    fn setup(&self) -> Setup {
        Setup {
            cache_bytes: self.cache_bytes,
            window_bytes: self.window_bytes,
            log: Sizes::default(),
            env: self.environment.clone(),
        }
    }

    fn start(&self, store: store::Store, path: &Path) -> Result<Embedded, OpenError> {
        let engine =
            Engine::start(store, self).map_err(|cause| refusal::open_error(path, cause))?;
        Ok(Embedded {
            engine: Arc::new(engine),
            defaults: Arc::default(),
        })
    }
}

/// An open embedded store. Clones share it.
///
/// The store closes when its last handle and its last transaction are dropped: what was sent to it is
/// committed and acknowledged, the threads end, and the file may be opened again. That blocks for some
/// flushes. If more than 8 MiB of writes are in the log alone, they stay there, beside the file, and the
/// next opening replays them; [`close`](Self::close) leaves one file.
#[derive(Clone)]
pub struct Embedded {
    engine: Arc<Engine>,
    defaults: Arc<Mutex<Defaults>>,
}

impl Embedded {
    /// Closes the store for all its handles: waits until what was sent is committed, moves it to the
    /// store's file, removes the log and releases the file. A file that is far longer than its rows need is
    /// made shorter: it has at most twice the bytes of its keys and values then, what redb needs beside
    /// them, and 64 MiB. Everything later gives `transaction_cancelled`.
    ///
    /// Blocks until that is done, which takes seconds if there is much to move. Does not wait for
    /// transactions that are still held.
    ///
    /// # Errors
    /// [`Error::Poisoned`](crate::Error::Poisoned) if the store had failed or fails now, also for commits
    /// that still find no room in the log on a full disk. What was acknowledged is in the log then.
    pub fn close(&self) -> Result<()> {
        self.engine.shut_down()
    }

    /// Copies the store, as it is at one version, to a new file at `path`, which can be opened as a store that
    /// was closed. The copy contains every commit that was acknowledged before the call. It is on disk when
    /// the call returns. The folder must exist.
    ///
    /// Blocks until all rows were read and written. Transactions go on meanwhile; the parts of the window and
    /// the pages of the tree that belong to the copied version are kept until then. A process that is killed
    /// meanwhile may leave a file `.keyspace-*` in that folder, which can be removed.
    ///
    /// ```
    /// use keyspace::embedded::Options;
    ///
    /// # fn main() -> Result<(), keyspace::OpenError> {
    /// # let folder = std::env::temp_dir().join(format!("backup-{}", std::process::id()));
    /// # std::fs::create_dir_all(&folder).unwrap();
    /// let db = Options::new().open(folder.join("store"))?;
    /// db.backup(folder.join("copy"))?;
    /// # drop(db);
    /// # std::fs::remove_dir_all(&folder).unwrap();
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`OpenError::Open`] if a file is already at `path`, which stays as it is, or if the copy cannot be
    /// written; [`OpenError::LogWithoutStore`] if the log of another store is beside it;
    /// [`OpenError::Store`] if this store was closed or has failed.
    pub fn backup(&self, path: impl AsRef<Path>) -> Result<(), OpenError> {
        self.engine.backup(path.as_ref())
    }
}

impl Database for Embedded {
    type Transaction = EmbeddedTransaction;

    fn begin(&self) -> Result<Self::Transaction> {
        let defaults = self.defaults.lock().clone();
        Ok(EmbeddedTransaction::new(self.engine.clone(), defaults))
    }

    fn set_option(&self, option: DatabaseOption) -> Result<()> {
        let mut defaults = self.defaults.lock();
        match option {
            DatabaseOption::TransactionTimeout(timeout) => {
                defaults.timeout = Some(timeout).filter(|timeout| !timeout.is_zero());
            }
            DatabaseOption::TransactionRetryLimit(limit) => defaults.retry_limit = limit,
            DatabaseOption::TransactionMaxRetryDelay(delay) => defaults.max_retry_delay = delay,
            DatabaseOption::TransactionSizeLimit(bytes) if state::is_size_limit(bytes) => {
                defaults.size_limit = bytes;
            }
            DatabaseOption::MaxWatches(count) if count <= MAX_WATCHES => {
                defaults.max_watches = count;
            }
            DatabaseOption::TransactionSizeLimit(_) | DatabaseOption::MaxWatches(_) => {
                return Err(Code::INVALID_OPTION_VALUE.into());
            }
        }
        Ok(())
    }

    fn owned_since(&self) -> Option<i64> {
        Some(self.engine.opened_at())
    }
}

impl fmt::Debug for Embedded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Embedded").finish_non_exhaustive()
    }
}

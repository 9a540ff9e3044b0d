//! The options of an embedded store.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::runs::RunLimits;
use crate::contract::env::Environment;

/// When a commit is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Durability {
    /// After its flush to disk, which all commits of a batch share. Acknowledged commits survive a power
    /// loss.
    #[default]
    Immediate,
    /// After it is written to the log's file. A flush begins within `interval`. Acknowledged commits
    /// survive the end of the process, even by `kill -9`. **A power loss or a crash of the operating system
    /// may lose commits that were acknowledged since the last flush.** These are always the latest commits:
    /// a commit is never lost without all those after it.
    Relaxed {
        /// The longest time from writing a commit to the begin of its flush. While the log waits for room on
        /// the disk, that may be a second longer.
        interval: Duration,
    },
}

/// How a process shares a store with others of its machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Sharing {
    /// The first process that opens the store owns it. Others become clients of the owner. When it ends, one of its
    /// clients becomes the next owner.
    #[default]
    Share,
    /// This process owns the store, or fails to open it. It has no clients: other openings fail with
    /// [`OpenError::StoreInUse`](crate::OpenError::StoreInUse).
    Refuse,
    /// This process is always a client of the process that owns the store. If there is none, it waits. Only when it is
    /// the last one that leaves does it open the store, to end it.
    ClientOnly,
    /// This process is a viewer, such as a tool of operators: it owns the store only as long as nothing but viewers has
    /// it open. As soon as another process opens the store, the viewer hands it over, becomes a client and goes on. It
    /// never takes a store over that an application has open, and waits for an application to do so.
    Yield,
}

/// The options of an embedded store, and the ways to open it.
///
/// ```
/// use keyspace::embedded::Options;
///
/// # fn main() -> Result<(), keyspace::OpenError> {
/// let db = Options::new().with_cache_bytes(16 << 20).memory()?;
/// # drop(db);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Options {
    /// `None` if it was not given: that of the owner.
    pub(super) durability: Option<Durability>,
    pub(super) sharing: Sharing,
    pub(super) patience: Duration,
    pub(super) cache_bytes: usize,
    pub(super) window_bytes: usize,
    pub(super) limits: RunLimits,
    pub(super) history_bytes: usize,
    pub(super) queue_bytes: usize,
    pub(super) environment: Environment,
}

/// How long an opening waits for an owner.
pub(super) const DEFAULT_PATIENCE: Duration = Duration::from_secs(10);

impl Default for Options {
    fn default() -> Self {
        Self::new()
    }
}

impl Options {
    /// Returns the default options: [`Durability::Immediate`], 64 MiB each for cache, window, history and
    /// queue, and the machine's environment.
    #[must_use]
    pub fn new() -> Self {
        const DEFAULT_BYTES: usize = 64 << 20;
        Self {
            durability: None,
            sharing: Sharing::default(),
            patience: DEFAULT_PATIENCE,
            cache_bytes: DEFAULT_BYTES,
            window_bytes: DEFAULT_BYTES,
            limits: RunLimits::default(),
            history_bytes: DEFAULT_BYTES,
            queue_bytes: DEFAULT_BYTES,
            environment: Environment::system(),
        }
    }

    /// Sets when a commit is acknowledged. Has no effect on a store in memory. The processes that share a store have
    /// one durability.
    #[must_use]
    pub fn with_durability(mut self, durability: Durability) -> Self {
        self.durability = Some(durability);
        self
    }

    /// Returns the durability of a store that is opened with these options.
    pub(super) fn durability(&self) -> Durability {
        self.durability.unwrap_or_default()
    }

    /// Sets how this process shares the store with others. On Windows, each store is as with [`Sharing::Refuse`].
    #[must_use]
    pub fn with_sharing(mut self, sharing: Sharing) -> Self {
        self.sharing = sharing;
        self
    }

    /// Sets how long an opening waits for the owner of a shared store to answer: 10 seconds by default.
    #[must_use]
    pub fn with_patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Sets how much memory the store may use to cache blocks of rows, of indexes and of filters.
    #[must_use]
    pub fn with_cache_bytes(mut self, bytes: usize) -> Self {
        self.cache_bytes = bytes;
        self
    }

    /// Sets the size of the window: the bytes of recent writes that are in the log and wait to be moved to
    /// runs.
    ///
    /// The store moves them in parts of about a quarter of this size at most, and in smaller ones when writes
    /// pause. While more bytes than this wait, commits wait. Together with the part that takes new writes, the
    /// window holds up to twice this size, plus an index.
    #[must_use]
    pub fn with_window_bytes(mut self, bytes: usize) -> Self {
        self.window_bytes = bytes;
        self
    }

    /// Sets how many runs a read may have to look into while the store is busy: 8 by default, at least 3. Fewer make
    /// reads faster, and merges write more. While there are as many, the window is not moved to runs.
    #[must_use]
    pub fn with_max_runs(mut self, runs: usize) -> Self {
        const MIN_RUNS: usize = 3;
        self.limits.max_runs = runs.max(MIN_RUNS);
        self
    }

    /// Sets how many bytes of the file replaced and cleared rows may take while the store is busy, in addition to as
    /// many as the other rows take: 64 MiB by default.
    #[must_use]
    pub fn with_garbage_bytes(mut self, bytes: u64) -> Self {
        self.limits.garbage_bytes = bytes;
        self
    }

    /// Sets how much memory the conflict history may use. If five seconds of writes do not fit, older
    /// transactions fail with `transaction_too_old`.
    #[must_use]
    pub fn with_history_bytes(mut self, bytes: usize) -> Self {
        self.history_bytes = bytes;
        self
    }

    /// Sets how much memory waiting commits may use. When it is used up, further commits fail with
    /// `commit_proxy_memory_limit_exceeded`, which a runner retries after a backoff.
    #[must_use]
    pub fn with_queue_bytes(mut self, bytes: usize) -> Self {
        self.queue_bytes = bytes;
        self
    }

    /// Sets the source of time and randomness.
    #[must_use]
    pub fn with_environment(mut self, environment: Environment) -> Self {
        self.environment = environment;
        self
    }
}

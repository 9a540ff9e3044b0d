//! The embedded store: FoundationDB's transactions on one machine, in a file or in memory.
//!
//! # Guarantees
//!
//! - Transactions are strictly serializable, with FoundationDB's conflict rules, limits and error codes.
//! - An acknowledged commit survives the end of the process, even by `kill -9`. It also survives a power
//!   loss, unless [`Durability::Relaxed`] was chosen. Each commit is there whole or not at all, and it is
//!   never there without all commits before it.
//! - Versionstamps grow in commit order, across openings too.
//! - One process at a time owns the store: the one that holds the lock of its file. Every other opening, in this
//!   process or another, becomes a client of the owner, unless one of the two has [`Sharing::Refuse`]. When the owner
//!   ends, a client becomes the next one. A viewer, which has [`Sharing::Yield`], owns the store only while nothing but
//!   viewers has it open.
//! - After an I/O failure, the store refuses all further work with
//!   [`Error::Poisoned`](crate::Error::Poisoned), so that nothing builds on data that may not be on disk.
//!   Opening it again recovers the commits that were acknowledged and flushed.
//! - If only the log finds no room on a full disk, or no file descriptor, commits wait until there is one. The
//!   store then fails only if it is closed while they wait.
//! - A file that does not hold what was written to it is refused, or the store stops with
//!   [`Error::Damaged`](crate::Error::Damaged) when it reads the damage: no read returns damaged rows. Only damage to
//!   the last flush of the log, and zeros up to its end, may look like its end. An opening that is refused changes no
//!   file.
//! - If the file is moved, removed or replaced while the store is open, the store stops and keeps its log.
//!
//! # What the caller must do
//!
//! - Keep the file on a local disk that does not acknowledge a flush before it is done.
//! - If a flush has failed because of a device error, restart the machine before opening the store again.
//!   The operating system may still have pages in memory that never reached the disk.
//! - Keep backups. Damage on the disk is noticed only when it is read. [`verify`] and [`Embedded::backup`] read all
//!   rows.
//! - Copy the files of a store only while it is closed. Copy an open store with [`Embedded::backup`].
//!
//! # Layers
//!
//! - The transaction holds its own writes and conflict ranges.
//! - The engine assigns versions, decides on commits, and keeps the history of writes that it checks for
//!   conflicts.
//! - The log makes commits durable, with one write and one flush per batch.
//! - The window keeps the rows of recent commits in memory.
//! - A checkpoint writes rows of the window as a sorted run to the store's file. Merges make fewer runs of many, in
//!   the background.
//!
//! A store in memory is the same store, with its file in memory and without a log.
//!
//! # Files
//!
//! The file `path` holds the runs. It is sparse: its manifests, which list the runs, are in two places of 1 MiB, and
//! then come the chunks of the runs. It has at most about twice the bytes of the rows, plus 64 MiB, and less at rest.
//!
//! An open store `path` has its log beside it, in files `path.log.*`. Each starts with 4 MiB and grows to
//! at most 64 MiB. A copy of `path` without these files is not a copy of an open store. A store that was
//! closed with [`Embedded::close`] is the single file `path`. The files `path.lock`, `path.apps` and `path.socket` show
//! other processes that it is open. They hold no data.

mod backend;
mod checks;
mod client;
mod collections;
mod disk;
mod engine;
mod entries;
mod layers;
mod link;
mod log;
mod options;
mod owner;
mod processes;
#[cfg(unix)]
mod repeats;
mod runs;
#[cfg(test)]
mod tests;
mod threads;
mod window;
mod wire;

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;

pub use self::client::transaction::EmbeddedTransaction;
pub use self::disk::names::is_file_of;
pub use self::disk::verify::Verified;
pub use self::options::{Durability, Options, Sharing};
pub use self::processes::{Process, Role};

use self::backend::place::IN_MEMORY;
use self::client::seat::Seat;
use self::client::transaction_state::{self, Defaults};
use self::disk::location::{self, Open};
use self::disk::open::Setup;
use self::disk::open_errors::open_error;
#[cfg(unix)]
use self::link::Joined;
use self::link::Link;
#[cfg(unix)]
use self::link::candidate::Candidate;
use self::owner::Owner;
use self::wire::greeting::Unreachable;
use crate::contract::error::{Code, OpenError, Result};
use crate::contract::limits::MAX_WATCHES;
use crate::contract::transaction::{Database, DatabaseOption};

impl Options {
    /// Opens the store in the file at `path`, and creates the file if it does not exist.
    ///
    /// Only the user of this process can read a new file. Files beside it have its permissions. Its folder must exist.
    /// If the store was not closed properly, the call blocks until it is recovered. A process that is killed while it
    /// creates a store may leave a file `.keyspace-*` in the folder, which can be removed.
    ///
    /// # Errors
    /// No file is changed, except possibly with `Open`.
    ///
    /// - [`OpenError::StoreInUse`] if the owner of the store does not serve this process, and [`OpenError::NoOwner`]
    ///   with [`Sharing::ClientOnly`]
    /// - [`OpenError::NotAStore`], [`OpenError::NewerFormat`], [`OpenError::Damaged`]
    /// - for its log, [`OpenError::LogMissing`], [`OpenError::LogWithoutStore`], [`OpenError::LogNewer`],
    ///   [`OpenError::LogForeign`], [`OpenError::LogDamaged`]
    /// - [`OpenError::NameTaken`] for the other files beside it
    /// - [`OpenError::Open`] for errors of the operating system
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    ///
    /// use keyspace::embedded::{Durability, Options};
    ///
    /// # fn main() -> Result<(), keyspace::OpenError> {
    /// # let folder = std::env::temp_dir().join(format!("open-{}", std::process::id()));
    /// # std::fs::create_dir_all(&folder).unwrap();
    /// let durability = Durability::Relaxed { interval: Duration::from_millis(100) };
    /// let db = Options::new().with_durability(durability).open(folder.join("store"))?;
    /// db.close()?;
    /// # std::fs::remove_dir_all(&folder).unwrap();
    /// # Ok(())
    /// # }
    /// ```
    pub fn open(&self, path: impl AsRef<Path>) -> Result<Embedded, OpenError> {
        self.open_with(path.as_ref(), location::open)
    }

    /// Opens the store in the file at `path` as [`open`](Self::open) does, but never creates a file.
    ///
    /// # Errors
    /// [`OpenError::NoStore`] if there is no file, otherwise the errors of [`open`](Self::open).
    pub fn open_existing(&self, path: impl AsRef<Path>) -> Result<Embedded, OpenError> {
        self.open_with(path.as_ref(), location::open_existing)
    }

    /// Creates a new store in memory. It ends with its last handle and its last transaction.
    ///
    /// # Errors
    /// [`OpenError::Open`] if the system cannot start a thread.
    pub fn memory(&self) -> Result<Embedded, OpenError> {
        let store = location::memory(&Setup::of(self))?;
        let owner = Owner::start(store, Path::new(IN_MEMORY), self, None)?;
        Ok(Embedded::new(Seat::Owner(Arc::new(owner))))
    }

    /// Opens the store in a file, or becomes a client of its owner.
    fn open_with(&self, path: &Path, open: Open) -> Result<Embedded, OpenError> {
        let seat = match self.sharing {
            #[cfg(unix)]
            Sharing::ClientOnly | Sharing::Yield => self.join(path, open)?,
            _ => match open(path, &Setup::of(self)) {
                Ok(store) => Seat::Owner(Arc::new(Owner::start(store, path, self, None)?)),
                #[cfg(unix)]
                Err(OpenError::StoreInUse { .. }) => self.join(path, open)?,
                Err(error) => return Err(error),
            },
        };
        Ok(Embedded::new(seat))
    }

    /// Becomes a client of the owner of a store, or its owner if there is none any more.
    #[cfg(unix)]
    fn join(&self, path: &Path, open: Open) -> Result<Seat, OpenError> {
        let candidate = Candidate::new(path, self, open);
        Ok(match Link::join(candidate, self.patience)? {
            Joined::Client(link) => Seat::Client(Arc::new(link)),
            Joined::Owner(owner) => Seat::Owner(owner),
        })
    }
}

/// An open embedded store. Clones share it.
///
/// The store closes when its last handle and its last transaction are dropped. All commits that were sent
/// are then committed and acknowledged, the threads end, and the file can be opened again. That blocks for
/// a few flushes. If the log alone holds more than 8 MiB of writes, the log's files stay beside the store's
/// file, and the next opening replays them. [`close`](Self::close) leaves a single file if no other process has the
/// store open.
#[derive(Clone)]
pub struct Embedded {
    seat: Seat,
    defaults: Arc<Mutex<Defaults>>,
}

impl Embedded {
    fn new(seat: Seat) -> Self {
        Self {
            seat,
            defaults: Arc::default(),
        }
    }

    /// Closes the store for all its handles.
    ///
    /// Waits until all commits that were sent are done, those of clients too, moves them to the store's file, removes
    /// the log and releases the file. If cleared rows take about as much room in the file as the others and 32 MiB,
    /// merges all runs before. Then moves chunks to free places, if many are free, and cuts off the end. If another
    /// process owns the store, only ends the connection to it. If the last owner has left the store and no other
    /// process has it open, opens it to do the same. Every later call fails with `transaction_cancelled`.
    ///
    /// Blocks until the store is closed, which takes seconds if there is much to move, and the time to copy the rows
    /// if it merges. Does not wait for transactions that are not committing.
    ///
    /// # Errors
    /// [`Error::Poisoned`](crate::Error::Poisoned) if the store has failed, or fails while it closes. The
    /// store also fails if commits still find no room in the log on a full disk, or if its file was moved, removed or
    /// replaced. Acknowledged commits are
    /// then in the store's file or in the log, and the next opening finds them.
    pub fn close(&self) -> Result<()> {
        match &self.seat {
            Seat::Owner(owner) => owner.close(),
            Seat::Client(link) => link.close(),
        }
    }

    /// Copies the store, as it is at one version, to a new file at `path`. The copy can be opened like a
    /// store that was closed.
    ///
    /// The copy contains every commit that was acknowledged before the call, and is on disk when the call
    /// returns. The folder of `path` must exist.
    ///
    /// Blocks until all rows are copied. Transactions continue in the meantime. The store keeps the parts
    /// of the window and the runs that belong to the copied version until the copy is done. A
    /// process that is killed during the copy may leave a file `.keyspace-*` in the folder, which can be
    /// removed.
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
    /// - [`OpenError::Open`] if there is already a file at `path`, which is not changed, or if the copy
    ///   cannot be written
    /// - [`OpenError::LogWithoutStore`] if the log of another store is beside `path`
    /// - [`OpenError::Store`] if this store was closed or has failed, or is found to be damaged: its file does not
    ///   hold what was written to it. It then refuses all further work.
    /// - [`OpenError::Store`] with `transaction_too_old` if another process owned the store, and has ended: try again
    pub fn backup(&self, path: impl AsRef<Path>) -> Result<(), OpenError> {
        match self.seat.present() {
            Seat::Owner(owner) => owner.engine().backup(path.as_ref()),
            Seat::Client(link) => link.backup(path.as_ref()),
        }
    }

    /// Checks the rows in the store's file, as the last checkpoint left them, and says what is damaged.
    ///
    /// Reads all blocks of the runs from the disk, and checks their checksums, the order and the number of their
    /// entries, and the filters. The log was checked when the store was opened.
    ///
    /// Calls `progress` with the number of entries that were read and their number in total, from time to time
    /// and at the end. An entry is a row, one that a newer run hides, or a range that was cleared. Blocks until all
    /// were read. Transactions continue in the meantime.
    ///
    /// # Errors
    /// - [`Error::Damaged`](crate::Error::Damaged), for the first damage that was found. The store then
    ///   refuses all further work, as after any damage.
    /// - the error of every operation if this store was closed or has failed
    /// - `transaction_too_old` if another process owned the store, and has ended: try again
    pub fn verify(&self, progress: impl FnMut(u64, u64)) -> Result<Verified> {
        match self.seat.present() {
            Seat::Owner(owner) => owner.engine().verify(progress),
            Seat::Client(link) => link.verify(progress),
        }
    }

    /// Returns whether this process owns the store at the moment.
    #[must_use]
    pub fn role(&self) -> Role {
        match self.seat.present() {
            Seat::Owner(_) => Role::Owner,
            Seat::Client(link) if link.is_viewed_here() => Role::Owner,
            Seat::Client(_) => Role::Client,
        }
    }

    /// Returns the processes that have the store open: its owner first, and then those that are connected to it.
    ///
    /// # Errors
    /// - `transaction_too_old` if another process owned the store, and has ended: try again
    /// - the error of every operation if this store was closed or has failed
    ///
    /// # Examples
    /// ```
    /// use keyspace::embedded::{Options, Role};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let db = Options::new().memory()?;
    /// assert_eq!(db.role(), Role::Owner);
    /// let processes = db.processes().await?;
    /// assert_eq!(processes[0].pid, std::process::id());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn processes(&self) -> Result<Vec<Process>> {
        match self.seat.present() {
            Seat::Owner(owner) => Ok(owner.hosts().processes()),
            Seat::Client(link) => link.processes().await,
        }
    }

    /// Returns a handle that reaches the store as another process would: over a pipe, which is in memory. Each reply
    /// has at most `reply_rows()` rows. For tests.
    ///
    /// # Errors
    /// [`OpenError::Open`] if the system cannot start a thread.
    #[doc(hidden)]
    pub fn over_a_pipe(
        &self,
        reply_rows: impl FnMut() -> usize + Send + 'static,
    ) -> Result<Self, OpenError> {
        let owner = self.owner()?;
        let (client, stream) = tokio::io::duplex(link::PIPE_BYTES);
        let served = owner.hosts().serve(|| Ok(stream), reply_rows);
        let env = owner.engine().environment().clone();
        let link = served
            .map_err(Unreachable::Io)
            .and_then(|()| Link::over(client, env))
            .map_err(|cause| open_error(Path::new(IN_MEMORY), cause))?;
        Ok(Self::new(Seat::Client(Arc::new(link))))
    }

    /// Returns the store, if this process owns it.
    fn owner(&self) -> Result<Arc<Owner>> {
        match self.seat.present() {
            Seat::Owner(owner) => Ok(owner),
            Seat::Client(_) => Err(Code::UNSUPPORTED_OPERATION.into()),
        }
    }
}

/// Checks the store in the file at `path` without changing it, and says what is damaged. Needs no permission to
/// write.
///
/// Reads the manifests and all blocks of the runs, and checks their checksums, the order and the number of their
/// entries, and the filters. Reads the whole log if the store was not closed, and applies it in memory, as
/// [`Options::open`] would.
///
/// Calls `progress` with the number of entries that were read and their number in total, from time to time and
/// at the end. An entry is a row, one that a newer run hides, or a range that was cleared. Blocks until the store was
/// read.
///
/// # Errors
/// - [`OpenError::Damaged`] or [`OpenError::LogDamaged`], for the first damage that was found
/// - [`OpenError::StoreInUse`] if the store is open: use [`Embedded::verify`]
/// - [`OpenError::NoStore`] if there is no file, otherwise the errors of [`Options::open`]
///
/// # Examples
/// ```
/// use keyspace::embedded::{self, Options};
///
/// # fn main() -> Result<(), keyspace::OpenError> {
/// # let folder = std::env::temp_dir().join(format!("verify-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder).unwrap();
/// Options::new().open(folder.join("store"))?.close()?;
/// let verified = embedded::verify(folder.join("store"), |_rows, _of| ())?;
/// assert_eq!(verified.rows, 0);
/// # std::fs::remove_dir_all(&folder).unwrap();
/// # Ok(())
/// # }
/// ```
pub fn verify(
    path: impl AsRef<Path>,
    progress: impl FnMut(u64, u64),
) -> Result<Verified, OpenError> {
    location::verify(path.as_ref(), &Setup::of(&Options::new()), progress)
}

impl Database for Embedded {
    type Transaction = EmbeddedTransaction;

    fn begin(&self) -> Result<Self::Transaction> {
        let defaults = self.defaults.lock().clone();
        Ok(EmbeddedTransaction::new(self.seat.present(), defaults))
    }

    fn set_option(&self, option: DatabaseOption) -> Result<()> {
        let mut defaults = self.defaults.lock();
        match option {
            DatabaseOption::TransactionTimeout(timeout) => {
                defaults.timeout = transaction_state::timeout_of(timeout);
            }
            DatabaseOption::TransactionRetryLimit(limit) => defaults.retry_limit = limit,
            DatabaseOption::TransactionMaxRetryDelay(delay) => defaults.max_retry_delay = delay,
            DatabaseOption::TransactionSizeLimit(bytes)
                if transaction_state::is_size_limit(bytes) =>
            {
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
        match &self.seat {
            Seat::Owner(owner) => owner.alone_since(),
            Seat::Client(link) => link.alone_since(),
        }
    }
}

impl fmt::Debug for Embedded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Embedded").finish_non_exhaustive()
    }
}

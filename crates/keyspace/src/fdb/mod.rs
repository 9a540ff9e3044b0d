//! FoundationDB: the contract on a cluster, through the `foundationdb` crate.
//!
//! Compiled with exactly one of the features `fdb-7_1`, `fdb-7_3` and `fdb-7_4`. The number is the
//! API version that the client library is asked for; the library itself may be newer.
//!
//! # Two ways in
//!
//! - [`Fdb`] is an owning handle, opened from `fdb:` or `fdb:<cluster file>`. A
//!   [`Runner`](crate::Runner) on it commits exactly once.
//! - [`Transaction`](crate::Transaction) is implemented for [`foundationdb::Transaction`] itself.
//!   Code that has one, from `foundationdb::Database::run` for instance, calls a recipe inside of
//!   it: nothing is wrapped, and what the recipe stages commits with everything else. There is no
//!   ledger there; see [`Receipt`](crate::Receipt) for how to compose with one. microqueue's example
//!   `own_transactions` shows it.
//!
//! # The network
//!
//! The client library has one network thread for each process. The first [`Fdb::open`] starts it,
//! and it is stopped when the process exits, also while handles are alive. A process must not fork
//! after that. An application that started the network by itself makes its handle with
//! [`Fdb::new`].
//!
//! # Time
//!
//! FoundationDB's client waits for an unreachable cluster forever. A handle therefore has a
//! [default time limit](DEFAULT_TIMEOUT) for its transactions, which
//! [`DatabaseOption::TransactionTimeout`] changes. A transaction that got no answer at all within
//! its limit fails with [`Error::Unreachable`].

mod cluster_file;
mod network;
mod read;
mod transaction;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use foundationdb::options;

/// The crate behind this module, so that an application uses the same version of it.
pub use foundationdb;

pub use self::transaction::FdbTransaction;

use crate::error::{Code, Error, OpenError, Result};
use crate::transaction::{Database, DatabaseOption};

/// How long a transaction of an [`Fdb`] may take, retries included, unless an option says
/// otherwise: 30 seconds.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);

/// A handle of a FoundationDB cluster. Clones share it.
///
/// ```no_run
/// use keyspace::fdb::Fdb;
///
/// # fn main() -> Result<(), keyspace::OpenError> {
/// let default_cluster = Fdb::open(None)?;
/// let other_cluster = Fdb::open(Some("other.cluster".as_ref()))?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Fdb {
    cluster: Arc<Cluster>,
}

/// What the transactions of a handle share.
struct Cluster {
    database: Arc<foundationdb::Database>,
    /// The cluster file, `None` if the application connected by itself.
    file: Option<PathBuf>,
}

impl Fdb {
    /// Opens the cluster that a cluster file names: the file given, or else the client's default,
    /// which is `$FDB_CLUSTER_FILE`, `fdb.cluster` in the working directory or that of the
    /// installation, the first of them that is there.
    ///
    /// Starts the network if no handle has been opened before, which blocks for some milliseconds.
    /// Does not wait for the cluster: the first transaction does.
    ///
    /// # Errors
    /// [`OpenError::ClusterFile`] if the file is missing, unreadable or malformed;
    /// [`OpenError::ClientVersion`] if the client library is too old for this build.
    ///
    /// # Panics
    /// If the application has selected the API version by itself: use [`Fdb::new`] then.
    pub fn open(cluster_file: Option<&Path>) -> Result<Self, OpenError> {
        let file = cluster_file::find(cluster_file)?;
        let path = cluster_file::check(&file)?;
        network::start()?;
        let database = foundationdb::Database::new(Some(path)).map_err(|error| {
            let reason = format!("the client library refused it: {}", error.message());
            cluster_file::refused(&file, reason)
        })?;
        network::finish_startup(&database)?;
        let handle = Self {
            cluster: Arc::new(Cluster {
                database: Arc::new(database),
                file: Some(file),
            }),
        };
        handle.set_option(DatabaseOption::TransactionTimeout(DEFAULT_TIMEOUT))?;
        Ok(handle)
    }

    /// Makes a handle of a database that the application opened, on a network that it started. Its
    /// options stay as they are, the time limit included.
    #[must_use]
    pub fn new(database: Arc<foundationdb::Database>) -> Self {
        Self {
            cluster: Arc::new(Cluster {
                database,
                file: None,
            }),
        }
    }
}

impl Database for Fdb {
    type Transaction = FdbTransaction;

    fn begin(&self) -> Result<Self::Transaction> {
        FdbTransaction::new(self.cluster.clone())
    }

    fn set_option(&self, option: DatabaseOption) -> Result<()> {
        let option = match option {
            DatabaseOption::TransactionTimeout(timeout) => {
                options::DatabaseOption::TransactionTimeout(milliseconds(timeout)?)
            }
            DatabaseOption::TransactionRetryLimit(limit) => {
                options::DatabaseOption::TransactionRetryLimit(retry_limit(limit)?)
            }
            DatabaseOption::TransactionMaxRetryDelay(delay) => {
                options::DatabaseOption::TransactionMaxRetryDelay(milliseconds(delay)?)
            }
            DatabaseOption::TransactionSizeLimit(bytes) => {
                options::DatabaseOption::TransactionSizeLimit(number(bytes)?)
            }
            DatabaseOption::MaxWatches(count) => {
                options::DatabaseOption::MaxWatches(number(count)?)
            }
        };
        self.cluster.database.set_option(option).map_err(error)
    }
}

impl fmt::Debug for Fdb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fdb")
            .field("cluster_file", &self.cluster.file)
            .finish_non_exhaustive()
    }
}

/// States an error of the client library in this crate's terms.
fn error(error: foundationdb::FdbError) -> Error {
    Error::Store(Code::from_number(error.code()))
}

/// Returns a time as an option states it. A part of a millisecond counts as one: zero would turn
/// the option off.
fn milliseconds(time: Duration) -> Result<i32> {
    number(time.as_micros().div_ceil(1_000))
}

/// Returns a retry limit as an option states it, -1 for none.
fn retry_limit(limit: Option<u32>) -> Result<i32> {
    limit.map_or(Ok(-1), number)
}

fn number(number: impl TryInto<i32>) -> Result<i32> {
    let number = number.try_into();
    number.map_err(|_| Code::INVALID_OPTION_VALUE.into())
}

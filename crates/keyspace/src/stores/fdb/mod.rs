//! FoundationDB: the transaction contract on a cluster, through the `foundationdb` crate.
//!
//! Compiled with exactly one of the features `fdb-7_1`, `fdb-7_3` and `fdb-7_4`. The number is the API
//! version that this crate requests from the client library. The library itself may be newer.
//!
//! # Two ways to use it
//!
//! - [`Fdb`] is a handle that opens a cluster, from `fdb:` or `fdb:<cluster file>`. A
//!   [`Runner`](crate::Runner) on it commits exactly once.
//! - [`Transaction`](crate::Transaction) is implemented for [`foundationdb::Transaction`] itself. Code that
//!   has such a transaction, for instance inside `foundationdb::Database::run`, can pass it to a recipe.
//!   The recipe's writes then commit together with all others of the transaction. There is no ledger in
//!   this case; [`Receipt`](crate::Receipt) adds one. The example `own_transactions` shows
//!   how.
//!
//! # The network
//!
//! The client library has one network thread per process. The first [`Fdb::open`] starts it, and it stops
//! when the process exits, even if handles are still alive. The process must not fork after the thread has
//! started. An application that starts the network itself creates its handle with [`Fdb::new`].
//!
//! # Time limits
//!
//! FoundationDB's client waits forever for an unreachable cluster. A handle therefore sets a [default time
//! limit](DEFAULT_TIMEOUT) for its transactions, which [`DatabaseOption::TransactionTimeout`] changes. A
//! transaction that got no answer at all within its limit fails with [`Error::Unreachable`].

mod cluster_file;
mod network;
mod read;
mod transaction;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use foundationdb::options;

/// The `foundationdb` crate that this module uses, so that applications can use the same version.
pub use foundationdb;

pub use self::transaction::FdbTransaction;

use crate::contract::error::{Code, Error, OpenError, Result};
use crate::contract::transaction::{Database, DatabaseOption};

/// The default time limit of a transaction of an [`Fdb`], retries included: 30 seconds.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);

/// A handle on a FoundationDB cluster. Clones share it.
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

/// The state that the clones of a handle share.
struct Cluster {
    database: Arc<foundationdb::Database>,
    /// The cluster file, `None` if the application opened the database.
    file: Option<PathBuf>,
}

impl Fdb {
    /// Opens a cluster by its cluster file.
    ///
    /// `None` stands for the client's default: the first that exists of `$FDB_CLUSTER_FILE`, `fdb.cluster`
    /// in the working directory, and the file of the installation.
    ///
    /// The first call in a process starts the network, which blocks for some milliseconds. The call does
    /// not wait for the cluster; the first transaction does.
    ///
    /// # Errors
    /// - [`OpenError::ClusterFile`] if the file is missing, unreadable or malformed
    /// - [`OpenError::ClientVersion`] if the client library is too old for this build
    ///
    /// # Panics
    /// If the application has already selected the API version. Use [`Fdb::new`] in that case.
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

    /// Returns a handle on a database that the application opened, on a network that it started. The
    /// options of the database are not changed, so it has no time limit unless the application sets one.
    ///
    /// The options belong to the database: [`set_option`](Database::set_option) on this handle also changes
    /// the defaults of the transactions that the application begins on the database itself.
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

/// Converts an error of the client library.
fn error(error: foundationdb::FdbError) -> Error {
    Error::Store(Code::from_number(error.code()))
}

/// Returns a time as an option takes it, rounded up to whole milliseconds: zero would disable the option.
fn milliseconds(time: Duration) -> Result<i32> {
    number(time.as_micros().div_ceil(1_000))
}

/// Returns a retry limit as an option takes it, -1 for no limit.
fn retry_limit(limit: Option<u32>) -> Result<i32> {
    limit.map_or(Ok(-1), number)
}

fn number(number: impl TryInto<i32>) -> Result<i32> {
    let number = number.try_into();
    number.map_err(|_| Code::INVALID_OPTION_VALUE.into())
}

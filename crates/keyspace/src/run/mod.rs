//! The retry loop: a closure becomes a transaction that commits exactly once.
//!
//! # Contract
//!
//! - The closure may run several times. Everything it does must go through the transaction it is
//!   given, and ids must be made outside it.
//! - It returns `Ok`: the transaction is committed, and the value is returned once that is certain.
//! - It returns an error with a code that FoundationDB calls retryable, or the commit does: the
//!   transaction is made new after FoundationDB's own backoff, and the closure runs again.
//! - It returns any other error: nothing is committed, and the error is returned once it is certain
//!   that no earlier attempt has committed either.
//! - The commit's outcome is unknown: the [ledger](crate::ledger) decides. The closure's value from
//!   the attempt that did commit is the one that is returned.

mod operation;
mod tx;
mod upkeep;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use foundationdb_tuple::Subspace;

use self::operation::Operation;
pub use self::tx::Tx;
use crate::env::Environment;
use crate::error::{Code, RunError};
use crate::ledger::Ledger;
use crate::transaction::{Commit, Database};

/// Runs closures as transactions that commit exactly once. Clones are cheap and share the database,
/// the options and the ledger.
///
/// The [module documentation](self) states the contract.
pub struct Runner<D: Database>(Arc<Shared<D>>);

struct Shared<D> {
    db: D,
    options: RunOptions,
    ledger: Arc<Ledger>,
}

/// How a [`Runner`] works.
///
/// ```
/// use std::time::Duration;
///
/// use keyspace::{RunOptions, Runner};
///
/// # fn main() -> Result<(), keyspace::OpenError> {
/// let db = keyspace::open("memory:")?;
/// let options = RunOptions::default().time_limit(Duration::from_secs(10));
/// let runner = Runner::with_options(db, options);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct RunOptions {
    environment: Environment,
    ledgers: Subspace,
    exactly_once: bool,
    time_limit: Option<Duration>,
    attempt_limit: Option<u32>,
    max_retry_delay: Option<Duration>,
}

impl Default for RunOptions {
    /// The system's environment, the ledger on, no limits.
    fn default() -> Self {
        Self {
            environment: Environment::system(),
            ledgers: Subspace::from(("keyspace.ledger",)),
            exactly_once: true,
            time_limit: None,
            attempt_limit: None,
            max_retry_delay: None,
        }
    }
}

impl RunOptions {
    /// Sets where time and randomness come from.
    #[must_use]
    pub fn environment(mut self, environment: Environment) -> Self {
        self.environment = environment;
        self
    }

    /// Sets the subspace that ledgers lie in, by default the tuple `("keyspace.ledger",)`. All
    /// users of a database may share one.
    #[must_use]
    pub fn ledger_subspace(mut self, ledgers: Subspace) -> Self {
        self.ledgers = ledgers;
        self
    }

    /// Turns the ledger off or on.
    ///
    /// Off, a closure may run again although an earlier attempt has committed: right for work that
    /// is idempotent anyway, and one small write cheaper.
    #[must_use]
    pub fn exactly_once(mut self, exactly_once: bool) -> Self {
        self.exactly_once = exactly_once;
        self
    }

    /// Limits the time of an operation, all attempts together. Without a limit it lasts until the
    /// store answers. An operation that has to make a new slot in the ledger first, as one does that
    /// finds all others in use, has this time for the slot and again for itself.
    #[must_use]
    pub fn time_limit(mut self, limit: Duration) -> Self {
        self.time_limit = Some(limit);
        self
    }

    /// Limits how many attempts an operation makes. Zero means one.
    #[must_use]
    pub fn attempt_limit(mut self, attempts: u32) -> Self {
        self.attempt_limit = Some(attempts);
        self
    }

    /// Limits how long the wait between two attempts grows, one second by default.
    #[must_use]
    pub fn max_retry_delay(mut self, delay: Duration) -> Self {
        self.max_retry_delay = Some(delay);
        self
    }
}

/// The attempt that a closure runs in, as [`Tx::attempt`] returns it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Attempt {
    /// The number of the attempt, from 1. An attempt that fails before the closure would run counts
    /// too.
    pub number: u32,
    /// The code that the previous attempt failed with; `None` in the first.
    pub after: Option<Code>,
}

impl<D: Database> Runner<D> {
    /// Returns a runner with the default options.
    #[must_use]
    pub fn new(db: D) -> Self {
        Self::with_options(db, RunOptions::default())
    }

    /// Returns a runner with the given options.
    #[must_use]
    pub fn with_options(db: D, options: RunOptions) -> Self {
        let ledger = Ledger::new(options.ledgers.clone(), options.environment.clone());
        Self(Arc::new(Shared {
            db,
            options,
            ledger: Arc::new(ledger),
        }))
    }

    /// Returns the database that the transactions run on.
    #[must_use]
    pub fn database(&self) -> &D {
        &self.0.db
    }

    /// Returns where time and randomness come from.
    #[must_use]
    pub fn environment(&self) -> &Environment {
        &self.0.options.environment
    }

    /// Runs a closure in a transaction and commits it, exactly once.
    ///
    /// # Conflicts
    /// Those of the closure. The ledger adds a slot that no other operation uses meanwhile.
    ///
    /// # Retries
    /// As the [module documentation](self) states. The closure's own [`Timeout`] and [`RetryLimit`]
    /// hold too; it cannot set the read version, which is there when it begins. A watch that it
    /// returns fails with the commit's error if that left the outcome unknown.
    ///
    /// # Errors
    /// - The closure's own error: nothing was committed.
    /// - [`Error::OutcomeUnknown`](crate::Error::OutcomeUnknown): the limits ran out, the store failed, or a sweep came between,
    ///   before it was certain whether an attempt had committed.
    /// - [`Error::HandleKept`](crate::Error::HandleKept): a clone of the transaction outlived the closure. Nothing was committed.
    /// - `transaction_timed_out` or the last error when the limits run out, and what the store
    ///   answers for good, such as `transaction_too_large`: nothing was committed.
    ///
    /// # Cancel safety
    /// Dropping it before the commit leaves nothing. Dropping it at the commit leaves the outcome
    /// unknown; the next operation of this runner that returns makes it final.
    ///
    /// # Examples
    ///
    /// ```
    /// use keyspace::{Error, Isolation, Runner, Transaction};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let runner = Runner::new(keyspace::open("memory:")?);
    /// let count = runner
    ///     .run(|tr| async move {
    ///         let old = tr.get(b"count", Isolation::Serializable).await?;
    ///         let count = old.map_or(1, |digit| digit[0] + 1);
    ///         tr.set(b"count", &[count]);
    ///         Ok::<_, Error>(count)
    ///     })
    ///     .await?;
    /// assert_eq!(count, 1);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// [`Timeout`]: crate::TransactionOption::Timeout
    /// [`RetryLimit`]: crate::TransactionOption::RetryLimit
    pub async fn run<R, E, F, Fut, Kind>(&self, closure: F) -> Result<R, E>
    where
        F: Fn(Tx<D::Transaction>) -> Fut + Send + Sync,
        Fut: Future<Output = Result<R, E>> + Send,
        R: Send,
        E: RunError<Kind>,
    {
        let (value, _commit) = self.run_committed(closure).await?;
        Ok(value)
    }

    /// Runs a closure as [`run`](Self::run) does and also returns what the commit left behind: the
    /// versionstamp, for whoever made stamped keys in it. [`Transaction::versionstamp`] fails where
    /// the commit's outcome was unknown at first; this does not.
    ///
    /// [`Transaction::versionstamp`]: crate::Transaction::versionstamp
    ///
    /// # Errors
    /// As [`run`](Self::run).
    ///
    /// # Cancel safety
    /// As [`run`](Self::run).
    pub async fn run_committed<R, E, F, Fut, Kind>(&self, closure: F) -> Result<(R, Commit), E>
    where
        F: Fn(Tx<D::Transaction>) -> Fut + Send + Sync,
        Fut: Future<Output = Result<R, E>> + Send,
        R: Send,
        E: RunError<Kind>,
    {
        let receipt = if self.0.options.exactly_once {
            Some(self.receipt().await?)
        } else {
            None
        };
        Operation::begin(&self.0.db, &self.0.options, receipt, E::code)?
            .run(closure)
            .await
    }

    /// Runs a closure that may commit twice.
    pub(crate) async fn run_idempotent<R, E, F, Fut, Kind>(&self, closure: F) -> Result<R, E>
    where
        F: Fn(Tx<D::Transaction>) -> Fut + Send + Sync,
        Fut: Future<Output = Result<R, E>> + Send,
        R: Send,
        E: RunError<Kind>,
    {
        let operation = Operation::begin(&self.0.db, &self.0.options, None, E::code)?;
        let (value, _commit) = operation.run(closure).await?;
        Ok(value)
    }

    pub(crate) fn ledger(&self) -> &Arc<Ledger> {
        &self.0.ledger
    }
}

impl<D: Database> Clone for Runner<D> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<D: Database> fmt::Debug for Runner<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runner")
            .field("options", &self.0.options)
            .finish_non_exhaustive()
    }
}

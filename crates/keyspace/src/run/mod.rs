//! The retry loop: runs a closure as a transaction that commits exactly once.
//!
//! # Contract
//!
//! The closure may run several times. It must do everything through the transaction that it is given, and
//! the caller must make ids outside of it. An attempt ends in one of these ways:
//!
//! - The closure returns `Ok`: the runner commits the transaction, and returns the value once the commit is
//!   certain.
//! - The closure or the commit fails with a code that FoundationDB calls retryable: the runner waits for
//!   FoundationDB's backoff, resets the transaction and runs the closure again.
//! - The closure fails with any other error: nothing is committed. The runner returns the error once it is
//!   certain that no earlier attempt has committed.
//! - The outcome of the commit is unknown: the [ledger](crate::ledger) shows which attempt committed, if
//!   one did. The runner returns the value that the closure returned in that attempt.

mod closure;
mod operation;
mod tx;
mod upkeep;

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use foundationdb_tuple::Subspace;
use futures::future::BoxFuture;

use self::closure::{AnyClosure, Closure};
use self::operation::Operation;
pub use self::tx::Tx;
use crate::contract::env::Environment;
use crate::contract::error::{Code, Error, RunError};
use crate::contract::transaction::{Commit, Database};
use crate::ledger::{Ledger, Receipt};
use crate::stores::store::{Store, StoreTransaction};

/// Runs closures as transactions that commit exactly once. Clones are cheap and share the database,
/// the options and the ledger.
///
/// The [module documentation](self) states the contract.
///
/// # Errors
/// Every method that commits can fail as [`run`](Self::run) does.
pub struct Runner<D: Database> {
    db: D,
    shared: Arc<RunnerShared>,
}

/// What does not depend on the type of the database, so that its code is compiled once.
struct RunnerShared {
    store: Store,
    options: RunOptions,
    ledger: Arc<Ledger>,
}

/// The options of a [`Runner`].
///
/// ```
/// use std::time::Duration;
///
/// use keyspace::{RunOptions, Runner};
///
/// # fn main() -> Result<(), keyspace::OpenError> {
/// let db = keyspace::open("memory:")?;
/// let options = RunOptions::default().with_time_limit(Duration::from_secs(10));
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
    /// The system's environment, the ledger enabled, no limits.
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
    /// Sets the source of time and randomness.
    #[must_use]
    pub fn with_environment(mut self, environment: Environment) -> Self {
        self.environment = environment;
        self
    }

    /// Sets the subspace of the ledgers, by default the tuple `("keyspace.ledger",)`. All applications on a
    /// database may share one subspace.
    #[must_use]
    pub fn with_ledger_subspace(mut self, ledgers: Subspace) -> Self {
        self.ledgers = ledgers;
        self
    }

    /// Enables or disables the ledger. It is enabled by default.
    ///
    /// Without the ledger, a closure may run again although an earlier attempt has committed. That is safe
    /// for idempotent closures, and saves one small write per commit.
    #[must_use]
    pub fn with_exactly_once(mut self, exactly_once: bool) -> Self {
        self.exactly_once = exactly_once;
        self
    }

    /// Limits the time of an operation, all attempts together. Without a limit, an operation retries until
    /// the store answers.
    ///
    /// An operation that finds no free slot in the ledger first creates one. That step has the same limit
    /// of its own, so the operation may take up to twice the limit.
    #[must_use]
    pub fn with_time_limit(mut self, limit: Duration) -> Self {
        self.time_limit = Some(limit);
        self
    }

    /// Limits the number of attempts of an operation. Zero means one.
    #[must_use]
    pub fn with_attempt_limit(mut self, attempts: u32) -> Self {
        self.attempt_limit = Some(attempts);
        self
    }

    /// Sets the longest wait between two attempts, one second by default.
    #[must_use]
    pub fn with_max_retry_delay(mut self, delay: Duration) -> Self {
        self.max_retry_delay = Some(delay);
        self
    }
}

/// One attempt of a closure, as [`Tx::attempt`] returns it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Attempt {
    /// The number of the attempt, from 1. It also counts attempts that failed before the closure ran.
    pub number: u32,
    /// The code that the previous attempt failed with, or `None` in the first attempt.
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
        let shared = RunnerShared {
            store: Store::of(&db),
            options,
            ledger: Arc::new(ledger),
        };
        Self {
            db,
            shared: Arc::new(shared),
        }
    }

    /// Returns this runner for code that is compiled once for all databases. It shares the database, the
    /// options and the ledger.
    #[doc(hidden)]
    #[must_use]
    pub fn on_store(&self) -> Runner<Store> {
        Runner {
            db: self.shared.store.clone(),
            shared: self.shared.clone(),
        }
    }

    /// Returns a runner with the same options but for one: it is not [exactly
    /// once](RunOptions::with_exactly_once), so that it writes nothing but what its closures write.
    ///
    /// Use it for reads and for idempotent closures, such as those that set a key to a fixed value. After a
    /// commit whose outcome is unknown, it runs the closure again although the commit may have happened. A
    /// closure that adds to a counter may then add twice, and one that enqueues an item may enqueue two.
    #[must_use]
    pub fn idempotent(&self) -> Self {
        let options = self.shared.options.clone().with_exactly_once(false);
        Self::with_options(self.db.clone(), options)
    }

    /// Returns the database that the transactions run on.
    #[must_use]
    pub fn database(&self) -> &D {
        &self.db
    }

    /// Returns the source of time and randomness.
    #[must_use]
    pub fn environment(&self) -> &Environment {
        &self.shared.options.environment
    }

    /// Runs a closure in a transaction and commits it, exactly once.
    ///
    /// # Conflicts
    /// Those of the closure. The ledger adds one slot, which no other operation uses at the same time.
    ///
    /// # Retries
    /// The [module documentation](self) states when the closure runs again. A [`Timeout`] or [`RetryLimit`]
    /// that the closure sets also applies. The closure cannot set the read version, because the transaction
    /// has one before the closure starts. A watch that the closure returns fails with the commit's error if
    /// the outcome of the commit was unknown at first.
    ///
    /// # Errors
    /// Nothing was committed, except possibly with `OutcomeUnknown`.
    ///
    /// - The closure's own error.
    /// - [`Error::OutcomeUnknown`]: a limit was reached, the store failed, or
    ///   a sweep cleared the ledger before the runner knew whether an attempt had committed.
    /// - [`Error::HandleKept`]: a clone of the transaction outlived the closure.
    /// - `transaction_timed_out` or the last error: a limit was reached.
    /// - Errors of the store that a retry cannot fix, such as `transaction_too_large`.
    ///
    /// # Cancel safety
    /// If the future is dropped before the commit, none of the closure's writes happen. If it is dropped
    /// during the commit, the outcome is unknown until the next operation of this runner returns. After that,
    /// the commit has either happened or never will.
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
    ///     .run(async |tr| {
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
        let mut closure = Closure::new(closure, E::code);
        self.shared.run(&mut closure).await?;
        closure.into_result()
    }

    /// Runs a closure as [`run`](Self::run) does, and also returns the version and the versionstamp of its
    /// commit.
    ///
    /// Callers need the versionstamp to know the stamped keys that the closure wrote. It is also available
    /// if the outcome of the commit was unknown at first; [`Transaction::versionstamp`] fails then.
    ///
    /// [`Transaction::versionstamp`]: crate::Transaction::versionstamp
    ///
    /// # Examples
    /// ```
    /// use keyspace::{Error, Isolation, Runner, Transaction};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let runner = Runner::new(keyspace::open("memory:")?);
    /// let ((), commit) = runner
    ///     .run_committed(async |tr| {
    ///         tr.set_to_versionstamp(b"changed");
    ///         Ok::<_, Error>(())
    ///     })
    ///     .await?;
    /// let stored = runner.run(async |tr| tr.get(b"changed", Isolation::Snapshot).await).await?;
    /// let versionstamp = commit.versionstamp.expect("the closure wrote a key");
    /// assert_eq!(stored.as_deref(), Some(&versionstamp.as_bytes()[..]));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn run_committed<R, E, F, Fut, Kind>(&self, closure: F) -> Result<(R, Commit), E>
    where
        F: Fn(Tx<D::Transaction>) -> Fut + Send + Sync,
        Fut: Future<Output = Result<R, E>> + Send,
        R: Send,
        E: RunError<Kind>,
    {
        let mut closure = Closure::new(closure, E::code);
        let commit = self.shared.run(&mut closure).await?;
        let value = closure.into_result()?;
        Ok((value, commit.expect("a value is returned after its commit")))
    }
}

impl RunnerShared {
    /// Runs a closure as the options say. Returns the commit, or `None` if the result is the closure's error.
    ///
    /// The future is in a box: the code of an `async fn` would be compiled in every crate that awaits it.
    fn run<'a>(
        &'a self,
        closure: &'a mut dyn AnyClosure,
    ) -> BoxFuture<'a, Result<Option<Commit>, Error>> {
        Box::pin(async move {
            let receipt = if self.options.exactly_once {
                Some(self.take_receipt().await?)
            } else {
                None
            };
            self.operate(receipt, closure).await
        })
    }

    /// Runs a closure that may commit twice.
    async fn run_idempotent<R, F, Fut>(&self, closure: F) -> Result<R, Error>
    where
        F: Fn(Tx<StoreTransaction>) -> Fut + Send + Sync,
        Fut: Future<Output = Result<R, Error>> + Send,
        R: Send,
    {
        let mut closure = Closure::new(closure, Error::code);
        self.operate(None, &mut closure).await?;
        closure.into_result()
    }

    async fn operate(
        &self,
        receipt: Option<Receipt>,
        closure: &mut dyn AnyClosure,
    ) -> Result<Option<Commit>, Error> {
        let operation = Operation::begin(&self.store, &self.options, receipt, closure)?;
        operation.run().await
    }
}

impl<D: Database> Clone for Runner<D> {
    fn clone(&self) -> Self {
        Self {
            db: self.db.clone(),
            shared: self.shared.clone(),
        }
    }
}

impl<D: Database> fmt::Debug for Runner<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runner")
            .field("options", &self.shared.options)
            .finish_non_exhaustive()
    }
}

//! The transaction contract: [`Transaction`] for recipes, [`OwnedTransaction`] for retry loops,
//! [`Database`] to begin transactions.
//!
//! # Contract
//!
//! - Every read is *issued at the call*: `let f = tr.get(k); tr.set(k, v); f.await` returns the value from
//!   before the set. Futures borrow nothing. They can be awaited in any order, or dropped.
//! - Await reads before the transaction is dropped, committed or reset. A read that has no answer by then
//!   may fail with `transaction_cancelled` or `used_during_commit`.
//! - Reads see the store at the transaction's read version, overlaid with the transaction's own writes in
//!   program order. Snapshot reads see those writes too, unless [`TransactionOption::SnapshotRywDisable`]
//!   is set.
//! - Writes return nothing. An invalid write is reported by the next read and by the commit.
//! - Only the owner of a transaction can commit it. A recipe holds `&impl Transaction` and cannot.
//!
//! Conflict ranges depend on the order of calls, as in FoundationDB. A read of a key that the transaction
//! has already written adds no read conflict, and [`Transaction::add_conflict_range`] skips such keys too.
//! So add a read conflict *before* the write.

use std::future::Future;
use std::ops::ControlFlow;
use std::time::Duration;

use bytes::Bytes;
use futures::TryFutureExt;

use crate::contract::error::{Error, Result};
use crate::contract::mutation::{MutationOp, Versionstamp};
use crate::contract::selector::{KeySelector, KeyValue, RangeBatch, RangeQuery, StreamingMode};

/// Whether a read adds a read conflict range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Isolation {
    /// The commit fails if the result of the read has changed since the read version.
    Serializable,
    /// The read adds no conflict range. The result may have changed by the time of the commit.
    Snapshot,
}

/// Which conflict range to add.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ConflictKind {
    /// As if the transaction had read the range.
    Read,
    /// As if the transaction had written the range.
    Write,
}

/// A transaction option, with FoundationDB's name and meaning.
///
/// `Timeout`, `RetryLimit` and `MaxRetryDelay` survive [`OwnedTransaction::on_error`]. All other options
/// are reset at each retry, and each attempt that needs them must set them again.
///
/// Two of FoundationDB's options are left out on purpose. `read_your_writes_disable` would break
/// assumptions that recipes make. `automatic_idempotency` is not needed under a [`Runner`](crate::Runner),
/// which also covers the outcomes that this option does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum TransactionOption {
    /// Fails all operations with `transaction_timed_out` once this much time has passed since the
    /// transaction began or was reset, retries included. Zero disables the timeout.
    Timeout(Duration),
    /// The number of retries that `on_error` allows. `None` sets no limit.
    RetryLimit(Option<u32>),
    /// The longest backoff before a retry.
    MaxRetryDelay(Duration),
    /// The largest size of the transaction in bytes, from 32 to 10,000,000.
    SizeLimit(usize),
    /// Lets snapshot reads see the transaction's own writes, which is the default. Disables are counted:
    /// each needs an enable to cancel it.
    SnapshotRywEnable,
    /// Hides the transaction's own writes from snapshot reads.
    SnapshotRywDisable,
    /// Makes the next set, clear or atomic operation add no write conflict range.
    NextWriteNoWriteConflictRange,
    /// Makes [`get`](Transaction::get) return the value of a versionstamped operation with its stamp not
    /// filled in, instead of failing with `accessed_unreadable`. Selectors and ranges still fail.
    BypassUnreadable,
    /// Lets a cluster skip a check at commit that keeps commits in order during a recovery. The embedded
    /// store accepts the option and ignores it.
    CausalWriteRisky,
}

/// A default for the transactions of a database handle.
///
/// The clones of a handle share their options. On FoundationDB the options belong to the client library's
/// database. If the application opened that database itself and made the handle with `Fdb::new`, setting an
/// option here changes the application's own transactions, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum DatabaseOption {
    /// The default of [`TransactionOption::Timeout`].
    TransactionTimeout(Duration),
    /// The default of [`TransactionOption::RetryLimit`].
    TransactionRetryLimit(Option<u32>),
    /// The default of [`TransactionOption::MaxRetryDelay`].
    TransactionMaxRetryDelay(Duration),
    /// The default of [`TransactionOption::SizeLimit`].
    TransactionSizeLimit(usize),
    /// The number of watches that may be outstanding, up to 1,000,000.
    MaxWatches(usize),
}

/// The version and the versionstamp of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Commit {
    /// The commit version, -1 if the transaction was read-only.
    pub version: i64,
    /// The versionstamp, `None` if the transaction was read-only.
    pub versionstamp: Option<Versionstamp>,
}

impl Commit {
    /// The result of committing a read-only transaction.
    pub const READ_ONLY: Self = Self {
        version: -1,
        versionstamp: None,
    };
}

/// Reads and stages writes, and cannot commit: the view of a transaction that recipes get.
///
/// The [module documentation](self) states the contract that every store keeps.
///
/// # Errors
/// Every read can fail as [`get`](Self::get) does.
pub trait Transaction: Send + Sync + 'static {
    /// Reads a key.
    ///
    /// # Conflicts
    /// A serializable read conflicts on the key, unless the transaction has already set or cleared it.
    ///
    /// # Errors
    /// - `accessed_unreadable` if the value depends on the versionstamp of this transaction
    /// - `key_outside_legal_range` if the key is `\xff` or after it
    /// - `transaction_too_old` if the read version is older than five seconds
    fn get(
        &self,
        key: &[u8],
        isolation: Isolation,
    ) -> impl Future<Output = Result<Option<Bytes>>> + Send + use<Self>;

    /// Resolves a key selector. The result lies between the empty key and `\xff`.
    ///
    /// # Conflicts
    /// A serializable read conflicts on the range between the selector's key and the key found.
    fn get_key(
        &self,
        selector: &KeySelector,
        isolation: Isolation,
    ) -> impl Future<Output = Result<Bytes>> + Send + use<Self>;

    /// Reads one batch of a range. [`RangeQuery::after`] and [`read_all`] read the rest. An inverted range is
    /// empty.
    ///
    /// # Conflicts
    /// A serializable read conflicts on the part of the range that it read. That is the whole range, unless
    /// the read stopped at its limit: then it is the part up to and including the last row returned.
    fn get_range(
        &self,
        query: &RangeQuery,
        isolation: Isolation,
    ) -> impl Future<Output = Result<RangeBatch>> + Send + use<Self>;

    /// Returns the read version, and obtains it if the transaction has none yet.
    ///
    /// Every commit that was acknowledged before the call that obtains it is visible.
    fn read_version(&self) -> impl Future<Output = Result<i64>> + Send + use<Self>;

    /// Waits until the read version is certain to be older than each commit that this handle sends after the wait. A
    /// store that takes the commits of a handle in the order in which they were sent need not be asked for it.
    #[doc(hidden)]
    fn fix_read_version(&self) -> impl Future<Output = Result<()>> + Send + use<Self> {
        self.read_version().map_ok(drop)
    }

    /// Sets the read version to one obtained elsewhere. The next read reports an error, if there is one.
    fn set_read_version(&self, version: i64);

    /// Sets a key.
    ///
    /// # Conflicts
    /// Writes the key.
    fn set(&self, key: &[u8], value: &[u8]);

    /// Clears a key.
    ///
    /// # Conflicts
    /// Writes the key.
    fn clear(&self, key: &[u8]);

    /// Clears the keys `begin <= key < end`.
    ///
    /// # Conflicts
    /// Writes the range.
    fn clear_range(&self, begin: &[u8], end: &[u8]);

    /// Stages an atomic operation.
    ///
    /// # Conflicts
    /// Writes the key. `SetVersionstampedKey` writes the key with the versionstamp filled in.
    fn atomic(&self, op: MutationOp, key: &[u8], param: &[u8]);

    /// Adds a conflict range without reading or writing it.
    ///
    /// A read conflict range skips the keys that the transaction has already written.
    ///
    /// # Errors
    /// `inverted_range`, immediately.
    fn add_conflict_range(&self, kind: ConflictKind, begin: &[u8], end: &[u8]) -> Result<()>;

    /// Sets an option. The next read or the commit reports an invalid value.
    ///
    /// # Errors
    /// The errors of FoundationDB's client for a value that it cannot accept.
    fn set_option(&self, option: TransactionOption) -> Result<()>;

    /// Watches a key: the future resolves when its value differs from the value that this transaction sees.
    ///
    /// A successful commit arms the watch, which outlives the transaction. It may fire although the value
    /// has not changed, and it may miss a change that was undone. Read the key again when it fires.
    ///
    /// # Conflicts
    /// A serializable read of the key.
    ///
    /// # Errors
    /// - the error of the commit
    /// - `transaction_cancelled` if the transaction is reset or dropped without a commit
    /// - `too_many_watches`
    fn watch(&self, key: &[u8]) -> impl Future<Output = Result<()>> + Send + use<Self>;

    /// Returns the versionstamp of the commit. Call it before the commit; the future resolves after the
    /// commit.
    ///
    /// # Errors
    /// `no_commit_version` if the transaction was read-only, and `transaction_invalid_version` if the
    /// commit failed.
    fn versionstamp(&self) -> impl Future<Output = Result<Versionstamp>> + Send + use<Self>;

    /// Returns the approximate size of the commit in bytes: all writes and conflict ranges added until the
    /// call.
    fn approximate_size(&self) -> impl Future<Output = Result<usize>> + Send + use<Self>;

    /// Sets a key to the ten bytes of the commit's versionstamp. [`Versionstamp::try_from`] parses them.
    ///
    /// # Conflicts
    /// Writes the key.
    fn set_to_versionstamp(&self, key: &[u8]) {
        let mut value = Versionstamp::INCOMPLETE.as_bytes().to_vec();
        let place = 0_u32;
        value.extend_from_slice(&place.to_le_bytes());
        self.atomic(MutationOp::SetVersionstampedValue, key, &value);
    }

    /// Adds a conflict range of one key, as [`add_conflict_range`](Self::add_conflict_range) does.
    fn add_conflict_key(&self, kind: ConflictKind, key: &[u8]) -> Result<()> {
        self.add_conflict_range(kind, key, &key_after(key))
    }
}

/// A transaction that its owner can commit, retry, reset and cancel.
///
/// The life cycle is FoundationDB's. After a successful commit, every call fails with `used_during_commit`
/// until [`reset`](Self::reset). After [`cancel`](Self::cancel), and after an `on_error` that did not
/// retry, every call fails with `transaction_cancelled` until a reset.
pub trait OwnedTransaction: Transaction + Sized {
    /// Commits the transaction.
    ///
    /// # Errors
    /// The first error of an invalid write or a failed read, otherwise the error of the commit. If its code
    /// [leaves the commit unknown](crate::Code::leaves_commit_unknown), the commit may have happened or may
    /// still happen.
    ///
    /// # Cancel safety
    /// Dropping the future does not stop a commit that was already sent. Its outcome is unknown.
    fn commit(&mut self) -> impl Future<Output = Result<Commit>> + Send;

    /// Waits for FoundationDB's backoff and resets the transaction for a retry.
    ///
    /// # Errors
    /// Returns `error` if it is not retryable or the retry limit is reached. The transaction is then
    /// cancelled.
    fn on_error(&mut self, error: Error) -> impl Future<Output = Result<()>> + Send;

    /// Resets the transaction to a new one, with the default options, backoff and retry count.
    fn reset(&mut self);

    /// Makes every call, including those under way, fail with `transaction_cancelled` until a reset.
    fn cancel(&mut self);
}

/// A store that transactions run on. Clones are cheap and share the store.
pub trait Database: Clone + Send + Sync + 'static {
    /// The store's transactions.
    type Transaction: OwnedTransaction;

    /// Begins a transaction, without any I/O.
    ///
    /// # Errors
    /// Any error that prevents the store from beginning transactions at all.
    fn begin(&self) -> Result<Self::Transaction>;

    /// Sets a default for the transactions that this handle and its clones begin after the call.
    ///
    /// # Errors
    /// `invalid_option_value`.
    fn set_option(&self, option: DatabaseOption) -> Result<()>;

    /// Returns a version, if one is known: each writer of another process whose last write is older has ended.
    fn owned_since(&self) -> Option<i64> {
        None
    }
}

/// Reads a range to its end, batch after batch.
///
/// # Conflicts
/// Those of [`Transaction::get_range`], for each batch.
///
/// # Errors
/// As for [`Transaction::get`].
///
/// # Cancel safety
/// Dropping the future leaves the conflict ranges of the batches that were read.
///
/// # Examples
/// ```
/// use keyspace::{Database, Isolation, OwnedTransaction, RangeQuery, Transaction, read_all};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let db = keyspace::open("memory:")?;
/// let mut tr = db.begin()?;
/// tr.set(b"jobs/1", b"one");
/// tr.set(b"jobs/2", b"two");
/// tr.commit().await?;
///
/// let tr = db.begin()?;
/// let jobs = RangeQuery::keys(&b"jobs/"[..], &b"jobs0"[..]);
/// let rows = read_all(&tr, jobs, Isolation::Serializable).await?;
/// assert_eq!(rows.len(), 2);
/// assert_eq!((rows[0].key(), rows[0].value()), (&b"jobs/1"[..], &b"one"[..]));
/// # Ok(())
/// # }
/// ```
pub async fn read_all(
    tr: &impl Transaction,
    query: RangeQuery,
    isolation: Isolation,
) -> Result<Vec<KeyValue>> {
    let mut rows = Vec::new();
    visit_rows(tr, query, isolation, |row| {
        rows.push(row);
        Ok::<_, Error>(ControlFlow::Continue(()))
    })
    .await?;
    Ok(rows)
}

/// Reads a range row by row, batch after batch, to its end or until `visit` breaks.
///
/// # Conflicts
/// Those of [`Transaction::get_range`], for each batch. The last batch may extend beyond the row at which
/// `visit` breaks.
///
/// # Errors
/// As for [`Transaction::get`], and the first error that `visit` returns.
///
/// # Cancel safety
/// Dropping the future leaves the conflict ranges of the batches that were read.
pub async fn visit_rows<E: From<Error>>(
    tr: &impl Transaction,
    query: RangeQuery,
    isolation: Isolation,
    mut visit: impl FnMut(KeyValue) -> Result<ControlFlow<()>, E>,
) -> Result<(), E> {
    let mut next = Some(query);
    while let Some(query) = next {
        let batch = tr.get_range(&query, isolation).await?;
        next = query.after(&batch);
        for row in batch.rows {
            if visit(row)?.is_break() {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// How many rows a range has, as far as they were counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct RowCount {
    /// The number of rows counted.
    pub count: usize,
    /// Whether there are more rows, which were not counted.
    pub has_more: bool,
}

/// Counts the rows between two keys, up to the one with which keys and values reach `max_bytes`.
///
/// # Conflicts
/// Reads by snapshot.
///
/// # Errors
/// As for [`Transaction::get`].
pub async fn count_rows(
    tr: &impl Transaction,
    begin: impl Into<Bytes>,
    end: impl Into<Bytes>,
    max_bytes: usize,
) -> Result<RowCount> {
    let query = RangeQuery::keys(begin, end).mode(StreamingMode::WantAll);
    let mut counted = RowCount::default();
    let mut row_bytes = 0;
    // A snapshot read is safe: the caller acts on no row.
    visit_rows(tr, query, Isolation::Snapshot, |row| {
        if row_bytes >= max_bytes {
            counted.has_more = true;
            return Ok(ControlFlow::Break(()));
        }
        counted.count += 1;
        row_bytes += row.key().len() + row.value().len();
        Ok::<_, Error>(ControlFlow::Continue(()))
    })
    .await?;
    Ok(counted)
}

/// Returns the first key after `key`: `key` followed by a zero byte.
#[must_use]
pub fn key_after(key: &[u8]) -> Vec<u8> {
    let mut after = Vec::with_capacity(key.len() + 1);
    after.extend_from_slice(key);
    after.push(0);
    after
}

/// Implements methods of [`Transaction`] or [`OwnedTransaction`] by calling those of a wrapped transaction.
///
/// Use it for a type that wraps a transaction and changes some of its methods. The macro takes the generic
/// parameters of the type, which the futures of reads capture, the wrapped transaction, and the names of
/// the methods to forward.
///
/// ```
/// use keyspace::{ConflictKind, Isolation, KeySelector, MutationOp, RangeBatch, RangeQuery};
/// use keyspace::{Bytes, Result, Transaction, TransactionOption, Versionstamp};
///
/// /// A transaction that never clears a key.
/// struct Keeping<T>(T);
///
/// impl<T: Transaction> Transaction for Keeping<T> {
///     keyspace::forward_transaction!([T] self => self.0;
///         get, get_key, get_range, read_version, set_read_version, set, atomic,
///         add_conflict_range, set_option, watch, versionstamp, approximate_size);
///
///     fn clear(&self, _key: &[u8]) {}
///
///     fn clear_range(&self, _begin: &[u8], _end: &[u8]) {}
/// }
/// ```
#[macro_export]
macro_rules! forward_transaction {
    ([$($generic:ident),*] $self:ident => $inner:expr; $first:ident $(, $rest:ident)* $(,)?) => {
        $crate::forward_transaction!(@ $first [$($generic),*] $self $inner);
        $crate::forward_transaction!([$($generic),*] $self => $inner; $($rest),*);
    };
    ([$($generic:ident),*] $self:ident => $inner:expr;) => {};
    (@ get [$($generic:ident),*] $self:ident $inner:expr) => {
        fn get(
            &$self,
            key: &[u8],
            isolation: $crate::Isolation,
        ) -> impl ::std::future::Future<Output = $crate::Result<Option<$crate::Bytes>>>
        + Send
        + use<$($generic),*> {
            $inner.get(key, isolation)
        }
    };
    (@ get_key [$($generic:ident),*] $self:ident $inner:expr) => {
        fn get_key(
            &$self,
            selector: &$crate::KeySelector,
            isolation: $crate::Isolation,
        ) -> impl ::std::future::Future<Output = $crate::Result<$crate::Bytes>>
        + Send
        + use<$($generic),*> {
            $inner.get_key(selector, isolation)
        }
    };
    (@ get_range [$($generic:ident),*] $self:ident $inner:expr) => {
        fn get_range(
            &$self,
            query: &$crate::RangeQuery,
            isolation: $crate::Isolation,
        ) -> impl ::std::future::Future<Output = $crate::Result<$crate::RangeBatch>>
        + Send
        + use<$($generic),*> {
            $inner.get_range(query, isolation)
        }
    };
    (@ read_version [$($generic:ident),*] $self:ident $inner:expr) => {
        fn read_version(
            &$self,
        ) -> impl ::std::future::Future<Output = $crate::Result<i64>> + Send + use<$($generic),*> {
            $inner.read_version()
        }
    };
    (@ fix_read_version [$($generic:ident),*] $self:ident $inner:expr) => {
        fn fix_read_version(
            &$self,
        ) -> impl ::std::future::Future<Output = $crate::Result<()>> + Send + use<$($generic),*> {
            $inner.fix_read_version()
        }
    };
    (@ set_read_version [$($generic:ident),*] $self:ident $inner:expr) => {
        fn set_read_version(&$self, version: i64) {
            $inner.set_read_version(version);
        }
    };
    (@ set [$($generic:ident),*] $self:ident $inner:expr) => {
        fn set(&$self, key: &[u8], value: &[u8]) {
            $inner.set(key, value);
        }
    };
    (@ clear [$($generic:ident),*] $self:ident $inner:expr) => {
        fn clear(&$self, key: &[u8]) {
            $inner.clear(key);
        }
    };
    (@ clear_range [$($generic:ident),*] $self:ident $inner:expr) => {
        fn clear_range(&$self, begin: &[u8], end: &[u8]) {
            $inner.clear_range(begin, end);
        }
    };
    (@ atomic [$($generic:ident),*] $self:ident $inner:expr) => {
        fn atomic(&$self, op: $crate::MutationOp, key: &[u8], param: &[u8]) {
            $inner.atomic(op, key, param);
        }
    };
    (@ add_conflict_range [$($generic:ident),*] $self:ident $inner:expr) => {
        fn add_conflict_range(
            &$self,
            kind: $crate::ConflictKind,
            begin: &[u8],
            end: &[u8],
        ) -> $crate::Result<()> {
            $inner.add_conflict_range(kind, begin, end)
        }
    };
    (@ set_option [$($generic:ident),*] $self:ident $inner:expr) => {
        fn set_option(&$self, option: $crate::TransactionOption) -> $crate::Result<()> {
            $inner.set_option(option)
        }
    };
    (@ watch [$($generic:ident),*] $self:ident $inner:expr) => {
        fn watch(
            &$self,
            key: &[u8],
        ) -> impl ::std::future::Future<Output = $crate::Result<()>> + Send + use<$($generic),*> {
            $inner.watch(key)
        }
    };
    (@ versionstamp [$($generic:ident),*] $self:ident $inner:expr) => {
        fn versionstamp(
            &$self,
        ) -> impl ::std::future::Future<Output = $crate::Result<$crate::Versionstamp>>
        + Send
        + use<$($generic),*> {
            $inner.versionstamp()
        }
    };
    (@ approximate_size [$($generic:ident),*] $self:ident $inner:expr) => {
        fn approximate_size(
            &$self,
        ) -> impl ::std::future::Future<Output = $crate::Result<usize>> + Send + use<$($generic),*> {
            $inner.approximate_size()
        }
    };
    (@ commit [$($generic:ident),*] $self:ident $inner:expr) => {
        async fn commit(&mut $self) -> $crate::Result<$crate::Commit> {
            $inner.commit().await
        }
    };
    (@ on_error [$($generic:ident),*] $self:ident $inner:expr) => {
        async fn on_error(&mut $self, error: $crate::Error) -> $crate::Result<()> {
            $inner.on_error(error).await
        }
    };
    (@ reset [$($generic:ident),*] $self:ident $inner:expr) => {
        fn reset(&mut $self) {
            $inner.reset();
        }
    };
    (@ cancel [$($generic:ident),*] $self:ident $inner:expr) => {
        fn cancel(&mut $self) {
            $inner.cancel();
        }
    };
}

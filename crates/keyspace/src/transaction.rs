//! The transaction contract: what a recipe receives, what a retry loop owns, what opens both.
//!
//! # Contract
//!
//! - Every read is *issued at the call*: `let f = tr.get(k); tr.set(k, v); f.await` gives the value
//!   from before the set. Futures borrow nothing and may be awaited in any order, or dropped. What
//!   is asked of a transaction that is dropped, committed or reset before the answer is there may
//!   fail with `transaction_cancelled` or `used_during_commit`: await reads first.
//! - Reads see the store at the transaction's read version, overlaid with the transaction's own
//!   writes in program order. Snapshot reads do too, until the transaction turns that off.
//! - Writes return nothing. A bad write is reported by the next read and by the commit.
//! - Nothing is committed until the owner of the transaction commits it. A recipe that holds
//!   `&impl Transaction` cannot.
//!
//! The order in which a serializable read adds its conflict range and a write removes the need for
//! one is FoundationDB's: a read of a key that the transaction has already written adds none, and
//! [`Transaction::add_conflict_range`] skips such keys too. Add a conflict *before* the write.

use std::future::Future;
use std::ops::ControlFlow;
use std::time::Duration;

use bytes::Bytes;

use crate::error::{Error, Result};
use crate::mutation::{MutationOp, Versionstamp};
use crate::selector::{KeySelector, KeyValue, RangeBatch, RangeQuery};

/// Whether a read adds a read conflict range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Isolation {
    /// The commit fails if what was read has changed since the read version.
    Serializable,
    /// The read adds no conflict range: what was read may have changed by the commit.
    Snapshot,
}

/// Which conflict range to add.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ConflictKind {
    /// As if the range had been read.
    Read,
    /// As if the range had been written.
    Write,
}

/// A transaction option, with FoundationDB's name and meaning.
///
/// FoundationDB has more. `read_your_writes_disable` would break what recipes rely on, and a
/// [`Runner`](crate::Runner) does what `automatic_idempotency` is for, also for the outcomes that it does
/// not cover.
///
/// `Timeout`, `RetryLimit` and `MaxRetryDelay` survive [`OwnedTransaction::on_error`]; everything
/// else is forgotten at each retry and must be set again by the attempt that needs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum TransactionOption {
    /// Fails everything with `transaction_timed_out` this long after the transaction began or was
    /// reset, retries included. Zero turns it off.
    Timeout(Duration),
    /// How often `on_error` may retry; `None` means without limit.
    RetryLimit(Option<u32>),
    /// The longest backoff of a retry.
    MaxRetryDelay(Duration),
    /// The largest size of the transaction in bytes, from 32 to 10,000,000.
    SizeLimit(usize),
    /// Lets snapshot reads see the transaction's own writes, which they do unless turned off.
    /// Counted: as many enables as disables are needed to turn it on again.
    SnapshotRywEnable,
    /// Hides the transaction's own writes from snapshot reads.
    SnapshotRywDisable,
    /// The next set, clear or atomic operation adds no write conflict range.
    NextWriteNoWriteConflictRange,
    /// A [`get`](Transaction::get) sees a versionstamped operation as a set whose stamp is not filled
    /// in, instead of failing with `accessed_unreadable`. Selectors and ranges still fail.
    BypassUnreadable,
    /// Lets a cluster commit without the check that makes sure of the order of commits during a
    /// recovery. The embedded store takes it and always makes sure.
    CausalWriteRisky,
}

/// A default for the transactions of a database handle.
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
    /// How many watches may be outstanding, up to 1,000,000.
    MaxWatches(usize),
}

/// What a commit left behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Commit {
    /// The commit version, -1 if the transaction was read-only.
    pub version: i64,
    /// The versionstamp, `None` if the transaction was read-only.
    pub versionstamp: Option<Versionstamp>,
}

impl Commit {
    /// What the commit of a read-only transaction gives.
    pub const READ_ONLY: Self = Self {
        version: -1,
        versionstamp: None,
    };
}

/// A transaction in the hands of a recipe: it reads and stages, and cannot commit.
///
/// The [module documentation](self) states the contract that every store keeps.
pub trait Transaction: Send + Sync + 'static {
    /// Reads a key.
    ///
    /// # Conflicts
    /// Serializable: the key, unless the transaction has written it independently of its old value.
    ///
    /// # Errors
    /// `accessed_unreadable` if the key's value depends on the versionstamp of this transaction;
    /// `key_outside_legal_range` from `\xff` on; `transaction_too_old` after five seconds.
    fn get(
        &self,
        key: &[u8],
        isolation: Isolation,
    ) -> impl Future<Output = Result<Option<Bytes>>> + Send + use<Self>;

    /// Resolves a key selector. The result is clamped to the empty key and `\xff`.
    ///
    /// # Conflicts
    /// Serializable: from the selector's key to the key found, whichever comes first.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    fn get_key(
        &self,
        selector: &KeySelector,
        isolation: Isolation,
    ) -> impl Future<Output = Result<Bytes>> + Send + use<Self>;

    /// Reads one batch of a range. [`RangeQuery::after`] and [`read_all`] read the rest.
    ///
    /// # Conflicts
    /// Serializable: the part of the range that was read. A read that stopped at its limit
    /// conflicts from the begin to its last row; an exhausted or empty one with the whole range.
    ///
    /// # Errors
    /// As [`get`](Self::get); an inverted range is empty, not an error.
    fn get_range(
        &self,
        query: &RangeQuery,
        isolation: Isolation,
    ) -> impl Future<Output = Result<RangeBatch>> + Send + use<Self>;

    /// Returns the read version, obtaining it if the transaction has none.
    ///
    /// Every commit acknowledged before the call that obtains it is visible.
    fn read_version(&self) -> impl Future<Output = Result<i64>> + Send + use<Self>;

    /// Reads at a version obtained elsewhere. An error is reported by the next read.
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
    /// Writes the key; `SetVersionstampedKey` writes the key as it will be.
    fn atomic(&self, op: MutationOp, key: &[u8], param: &[u8]);

    /// Adds a conflict range without reading or writing it. Of a read range, keys that the
    /// transaction has already written are skipped.
    ///
    /// # Errors
    /// `inverted_range`, at once.
    fn add_conflict_range(&self, kind: ConflictKind, begin: &[u8], end: &[u8]) -> Result<()>;

    /// Sets an option. An invalid value is reported by the next read or the commit.
    ///
    /// # Errors
    /// Those of FoundationDB's client, for a value that it cannot take.
    fn set_option(&self, option: TransactionOption) -> Result<()>;

    /// Watches a key: the future resolves when its value changes from what this transaction sees.
    ///
    /// The watch is armed by a successful commit, outlives the transaction, and may fire without
    /// a change or miss a change that was undone: read again when it fires.
    ///
    /// # Conflicts
    /// Reads the key.
    ///
    /// # Errors
    /// The commit's error; `transaction_cancelled` if the transaction is reset or dropped without
    /// a commit; `too_many_watches`.
    fn watch(&self, key: &[u8]) -> impl Future<Output = Result<()>> + Send + use<Self>;

    /// Returns the versionstamp of the commit. Must be called before the commit; resolves after it.
    ///
    /// # Errors
    /// `no_commit_version` if the transaction was read-only, `transaction_invalid_version` if it
    /// failed.
    fn versionstamp(&self) -> impl Future<Output = Result<Versionstamp>> + Send + use<Self>;

    /// Returns the approximate size of the commit in bytes: writes and conflict ranges so far.
    fn approximate_size(&self) -> impl Future<Output = Result<usize>> + Send + use<Self>;

    /// Sets a key to the versionstamp of the commit, ten bytes. [`Versionstamp::try_from`] reads it.
    ///
    /// # Conflicts
    /// Writes the key.
    fn set_to_versionstamp(&self, key: &[u8]) {
        let mut value = Versionstamp::INCOMPLETE.as_bytes().to_vec();
        let place = 0_u32;
        value.extend_from_slice(&place.to_le_bytes());
        self.atomic(MutationOp::SetVersionstampedValue, key, &value);
    }

    /// Adds a conflict on one key. See [`add_conflict_range`](Self::add_conflict_range).
    fn add_conflict_key(&self, kind: ConflictKind, key: &[u8]) -> Result<()> {
        self.add_conflict_range(kind, key, &key_after(key))
    }
}

/// A transaction in the hands of its owner, who commits it.
///
/// The life cycle is FoundationDB's: after a successful commit everything answers
/// `used_during_commit` until [`reset`](Self::reset); after [`cancel`](Self::cancel), and after an
/// `on_error` that did not retry, everything answers `transaction_cancelled` until then.
pub trait OwnedTransaction: Transaction + Sized {
    /// Commits.
    ///
    /// # Errors
    /// The first error of a write or of a read that failed, else the store's verdict. After a
    /// code that [leaves the commit unknown](crate::Code::leaves_commit_unknown) the commit may
    /// have happened or may still happen.
    ///
    /// # Cancel safety
    /// Dropping the future does not stop a commit that was sent: its outcome is unknown.
    fn commit(&mut self) -> impl Future<Output = Result<Commit>> + Send;

    /// Waits as long as FoundationDB would before a retry and makes the transaction new.
    ///
    /// # Errors
    /// Gives `error` back if it is not retryable or the retry limit is reached; the transaction
    /// is cancelled then.
    fn on_error(&mut self, error: Error) -> impl Future<Output = Result<()>> + Send;

    /// Makes the transaction new, options, backoff and retry count included.
    fn reset(&mut self);

    /// Makes everything, now and later, answer `transaction_cancelled` until a reset.
    fn cancel(&mut self);
}

/// A store that transactions run on. Clones are cheap and share the store.
pub trait Database: Clone + Send + Sync + 'static {
    /// The store's transactions.
    type Transaction: OwnedTransaction;

    /// Begins a transaction. Reads nothing yet.
    ///
    /// # Errors
    /// What keeps the store from serving at all.
    fn begin(&self) -> Result<Self::Transaction>;

    /// Sets a default for the transactions that this handle and its clones begin from now on.
    ///
    /// # Errors
    /// `invalid_option_value`.
    fn set_option(&self, option: DatabaseOption) -> Result<()>;

    /// Returns a version since which nobody has written to the store but this process, if it is a
    /// store that one process owns: whoever has written last before then is gone.
    fn owned_since(&self) -> Option<i64> {
        None
    }
}

/// Reads a range to its end, batch after batch.
///
/// # Conflicts
/// Those of [`Transaction::get_range`] for each batch: together, the part of the range read.
///
/// # Errors
/// As [`Transaction::get`].
///
/// # Cancel safety
/// Reads only: dropping it leaves the conflict ranges of the batches read.
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
/// Those of [`Transaction::get_range`] for each batch read: the last one may go beyond the row at which
/// `visit` breaks.
///
/// # Errors
/// As [`Transaction::get`], and the first that `visit` returns.
///
/// # Cancel safety
/// Reads only: dropping it leaves the conflict ranges of the batches read.
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

/// Returns the first key after `key`: `key` followed by a zero byte.
#[must_use]
pub fn key_after(key: &[u8]) -> Vec<u8> {
    let mut after = Vec::with_capacity(key.len() + 1);
    after.extend_from_slice(key);
    after.push(0);
    after
}

/// Implements methods of [`Transaction`] or [`OwnedTransaction`] by those of a transaction inside, for a
/// type that changes what some of the others do.
///
/// Takes the generic parameters of the type, which the futures of reads capture, the transaction
/// inside, and the names of the methods.
///
/// ```
/// use keyspace::{ConflictKind, Isolation, KeySelector, MutationOp, RangeBatch, RangeQuery};
/// use keyspace::{Bytes, Result, Transaction, TransactionOption, Versionstamp};
///
/// /// A transaction that clears nothing.
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

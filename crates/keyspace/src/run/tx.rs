//! The transaction handle that a closure receives.

use std::fmt;
use std::future::Future;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;

use super::Attempt;
use crate::contract::error::{Code, Error, Result};
use crate::contract::mutation::{MutationOp, Versionstamp};
use crate::contract::selector::{KeySelector, RangeBatch, RangeQuery};
use crate::contract::transaction::{ConflictKind, Isolation, Transaction, TransactionOption};
use crate::stores::store::StoreTransaction;

/// The handle of a transaction that [`Runner::run`](crate::Runner::run) commits.
///
/// Clones are the same transaction, and several tasks may use them at once. Drop all of them before the
/// closure's future ends. Otherwise nothing is committed, `run` returns [`Error::HandleKept`], and the
/// remaining handles fail with `transaction_cancelled`. The futures of reads and watches are not handles,
/// and may be kept.
pub struct Tx<T> {
    shared: Arc<TxShared>,
    transaction: PhantomData<fn() -> T>,
}

#[derive(Debug)]
struct TxShared {
    /// The transaction, which is or wraps one of `T`.
    tr: StoreTransaction,
    /// The attempt that the transaction belongs to.
    attempt: Attempt,
    /// Whether the attempt has staged a write, so that its commit is not read-only.
    wrote: AtomicBool,
    /// Whether the closure ended while a clone was alive.
    cancelled: AtomicBool,
}

impl<T> Clone for Tx<T> {
    fn clone(&self) -> Self {
        Self {
            shared: self.shared.clone(),
            transaction: PhantomData,
        }
    }
}

impl<T> fmt::Debug for Tx<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Tx").field(&self.shared).finish()
    }
}

impl<T> Tx<T> {
    /// Returns the number of the attempt that the closure runs in, and the code that the previous one
    /// failed with.
    #[must_use]
    pub fn attempt(&self) -> Attempt {
        self.shared.attempt
    }
}

impl Tx<StoreTransaction> {
    pub(super) fn new(tr: StoreTransaction) -> Self {
        let shared = TxShared {
            tr,
            attempt: Attempt {
                number: 0,
                after: None,
            },
            wrote: AtomicBool::new(false),
            cancelled: AtomicBool::new(false),
        };
        Self {
            shared: Arc::new(shared),
            transaction: PhantomData,
        }
    }

    /// Returns the handle with the type of transactions of the database that the runner was made with.
    ///
    /// # Panics
    /// The first call of the handle panics if `T` is the transaction of another database.
    #[doc(hidden)]
    #[must_use]
    pub fn typed<T: Transaction>(self) -> Tx<T> {
        Tx {
            shared: self.shared,
            transaction: PhantomData,
        }
    }

    /// Returns the transaction to its owner. If there are clones, cancels them and fails.
    pub(super) fn reclaim(&mut self) -> Result<&mut StoreTransaction> {
        if Arc::get_mut(&mut self.shared).is_none() {
            self.shared.cancelled.store(true, Ordering::Release);
            return Err(Error::HandleKept);
        }
        let shared =
            Arc::get_mut(&mut self.shared).expect("there is no other handle to clone from");
        Ok(&mut shared.tr)
    }

    pub(super) fn wrote(&self) -> bool {
        self.shared.wrote.load(Ordering::Relaxed)
    }

    /// Begins an attempt, and forgets whether the previous one wrote.
    pub(super) fn begin_attempt(&mut self, attempt: Attempt) {
        let shared =
            Arc::get_mut(&mut self.shared).expect("the previous attempt reclaimed the handle");
        shared.attempt = attempt;
        *shared.wrote.get_mut() = false;
    }
}

impl<T: Transaction> Tx<T> {
    fn live(&self) -> Result<&T> {
        if self.shared.cancelled.load(Ordering::Acquire) {
            return Err(Code::TRANSACTION_CANCELLED.into());
        }
        Ok(self.shared.tr.typed())
    }

    fn write(&self) -> Result<&T> {
        self.shared.wrote.store(true, Ordering::Relaxed);
        self.live()
    }
}

/// Awaits a read that was issued without an error.
///
/// Reads of an embedded store never pend. Each read therefore consumes a part of the task's budget, so that
/// a closure with many reads lets other tasks run.
async fn answer<V>(issued: Result<impl Future<Output = Result<V>>>) -> Result<V> {
    let answer = issued?.await;
    tokio::task::coop::consume_budget().await;
    answer
}

impl<T: Transaction> Transaction for Tx<T> {
    fn get(
        &self,
        key: &[u8],
        isolation: Isolation,
    ) -> impl Future<Output = Result<Option<Bytes>>> + Send + use<T> {
        answer(self.live().map(|tr| tr.get(key, isolation)))
    }

    fn get_key(
        &self,
        selector: &KeySelector,
        isolation: Isolation,
    ) -> impl Future<Output = Result<Bytes>> + Send + use<T> {
        answer(self.live().map(|tr| tr.get_key(selector, isolation)))
    }

    fn get_range(
        &self,
        query: &RangeQuery,
        isolation: Isolation,
    ) -> impl Future<Output = Result<RangeBatch>> + Send + use<T> {
        answer(self.live().map(|tr| tr.get_range(query, isolation)))
    }

    fn read_version(&self) -> impl Future<Output = Result<i64>> + Send + use<T> {
        answer(self.live().map(T::read_version))
    }

    fn fix_read_version(&self) -> impl Future<Output = Result<()>> + Send + use<T> {
        answer(self.live().map(T::fix_read_version))
    }

    fn set_read_version(&self, version: i64) {
        if let Ok(tr) = self.live() {
            tr.set_read_version(version);
        }
    }

    fn set(&self, key: &[u8], value: &[u8]) {
        if let Ok(tr) = self.write() {
            tr.set(key, value);
        }
    }

    fn clear(&self, key: &[u8]) {
        if let Ok(tr) = self.write() {
            tr.clear(key);
        }
    }

    fn clear_range(&self, begin: &[u8], end: &[u8]) {
        if let Ok(tr) = self.write() {
            tr.clear_range(begin, end);
        }
    }

    fn atomic(&self, op: MutationOp, key: &[u8], param: &[u8]) {
        if let Ok(tr) = self.write() {
            tr.atomic(op, key, param);
        }
    }

    fn add_conflict_range(&self, kind: ConflictKind, begin: &[u8], end: &[u8]) -> Result<()> {
        let tr = match kind {
            ConflictKind::Read => self.live()?,
            ConflictKind::Write => self.write()?,
        };
        tr.add_conflict_range(kind, begin, end)
    }

    fn set_option(&self, option: TransactionOption) -> Result<()> {
        self.live()?.set_option(option)
    }

    fn watch(&self, key: &[u8]) -> impl Future<Output = Result<()>> + Send + use<T> {
        answer(self.live().map(|tr| tr.watch(key)))
    }

    fn versionstamp(&self) -> impl Future<Output = Result<Versionstamp>> + Send + use<T> {
        answer(self.live().map(T::versionstamp))
    }

    fn approximate_size(&self) -> impl Future<Output = Result<usize>> + Send + use<T> {
        answer(self.live().map(T::approximate_size))
    }
}

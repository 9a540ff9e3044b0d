//! A transaction that can be committed, retried and reset any number of times.

use std::fmt;
use std::future::Future;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use foundationdb::{FdbError, TransactionCancelled, TransactionCommitError, TransactionCommitted};

use super::{Cluster, error, network};
use crate::contract::error::{Code, Error, Result};
use crate::contract::mutation::{MutationOp, Versionstamp};
use crate::contract::selector::{KeySelector, RangeBatch, RangeQuery};
use crate::contract::transaction::{
    Commit, ConflictKind, Isolation, OwnedTransaction, Transaction, TransactionOption,
};

/// A transaction of a FoundationDB cluster.
///
/// After a failed commit, pass that commit's error to [`on_error`](OwnedTransaction::on_error), which then
/// continues the retry count and the backoff of the client library. With another error, both start over.
pub struct FdbTransaction {
    cluster: Arc<Cluster>,
    /// Whether the cluster has answered at all in this attempt.
    answered: Arc<AtomicBool>,
    state: FdbState,
}

/// The state of a transaction's life. The `foundationdb` crate has a type for each.
enum FdbState {
    Live(foundationdb::Transaction),
    /// A commit was sent, and its future is not done or was dropped.
    Sent,
    Committed(TransactionCommitted),
    Failed(TransactionCommitError),
    Cancelled(TransactionCancelled),
    /// An `on_error` did not retry, or its future was dropped.
    Lost,
}

impl FdbTransaction {
    pub(super) fn new(cluster: Arc<Cluster>) -> Result<Self> {
        if network::is_exiting() {
            return Err(Code::TRANSACTION_CANCELLED.into());
        }
        let tr = cluster.database.create_trx().map_err(error)?;
        Ok(Self {
            cluster,
            answered: Arc::default(),
            state: FdbState::Live(tr),
        })
    }

    fn live(&self) -> Result<&foundationdb::Transaction> {
        if network::is_exiting() {
            return Err(Code::TRANSACTION_CANCELLED.into());
        }
        match &self.state {
            FdbState::Live(tr) => Ok(tr),
            FdbState::Sent | FdbState::Committed(_) | FdbState::Failed(_) => {
                Err(Code::USED_DURING_COMMIT.into())
            }
            FdbState::Cancelled(_) | FdbState::Lost => Err(Code::TRANSACTION_CANCELLED.into()),
        }
    }

    /// Awaits a request that was issued without an error, and records that the cluster has answered.
    fn answer<F, V>(&self, issued: Result<F>) -> impl Future<Output = Result<V>> + Send + use<F, V>
    where
        F: Future<Output = Result<V>> + Send,
        V: Send,
    {
        let cluster = self.cluster.clone();
        let answered = self.answered.clone();
        async move { cluster.note(&answered, issued?.await) }
    }

    /// Resets the transaction and returns it.
    fn renew(&mut self) -> Result<foundationdb::Transaction> {
        self.answered = Arc::default();
        Ok(match mem::replace(&mut self.state, FdbState::Lost) {
            FdbState::Live(mut tr) => {
                tr.reset();
                tr
            }
            FdbState::Committed(committed) => committed.reset(),
            FdbState::Failed(failed) => failed.reset(),
            FdbState::Cancelled(cancelled) => cancelled.reset(),
            FdbState::Sent | FdbState::Lost => self.cluster.database.create_trx().map_err(error)?,
        })
    }
}

impl Drop for FdbTransaction {
    fn drop(&mut self) {
        if network::is_exiting() {
            mem::forget(mem::replace(&mut self.state, FdbState::Lost));
        }
    }
}

impl Cluster {
    /// Distinguishes a time limit in an attempt without any answer from other time limits.
    fn note<V>(&self, answered: &AtomicBool, result: Result<V>) -> Result<V> {
        let timed_out = |error: &Error| error.code() == Some(Code::TRANSACTION_TIMED_OUT);
        match (&result, &self.file) {
            (Ok(_), _) => answered.store(true, Ordering::Relaxed),
            (Err(error), Some(file)) if timed_out(error) && !answered.load(Ordering::Relaxed) => {
                return Err(Error::Unreachable {
                    cluster_file: file.clone(),
                    code: Code::TRANSACTION_TIMED_OUT,
                });
            }
            _ => {}
        }
        result
    }
}

impl fmt::Debug for FdbTransaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            FdbState::Live(_) => "live",
            FdbState::Sent => "sent",
            FdbState::Committed(_) => "committed",
            FdbState::Failed(_) => "failed",
            FdbState::Cancelled(_) => "cancelled",
            FdbState::Lost => "lost",
        };
        f.debug_struct("FdbTransaction")
            .field("state", &state)
            .finish_non_exhaustive()
    }
}

impl Transaction for FdbTransaction {
    fn get(
        &self,
        key: &[u8],
        isolation: Isolation,
    ) -> impl Future<Output = Result<Option<Bytes>>> + Send + use<> {
        self.answer(self.live().map(|tr| Transaction::get(tr, key, isolation)))
    }

    fn get_key(
        &self,
        selector: &KeySelector,
        isolation: Isolation,
    ) -> impl Future<Output = Result<Bytes>> + Send + use<> {
        self.answer(
            self.live()
                .map(|tr| Transaction::get_key(tr, selector, isolation)),
        )
    }

    fn get_range(
        &self,
        query: &RangeQuery,
        isolation: Isolation,
    ) -> impl Future<Output = Result<RangeBatch>> + Send + use<> {
        self.answer(
            self.live()
                .map(|tr| Transaction::get_range(tr, query, isolation)),
        )
    }

    fn read_version(&self) -> impl Future<Output = Result<i64>> + Send + use<> {
        self.answer(self.live().map(Transaction::read_version))
    }

    fn set_read_version(&self, version: i64) {
        if let Ok(tr) = self.live() {
            tr.set_read_version(version);
        }
    }

    fn set(&self, key: &[u8], value: &[u8]) {
        if let Ok(tr) = self.live() {
            tr.set(key, value);
        }
    }

    fn clear(&self, key: &[u8]) {
        if let Ok(tr) = self.live() {
            tr.clear(key);
        }
    }

    fn clear_range(&self, begin: &[u8], end: &[u8]) {
        if let Ok(tr) = self.live() {
            tr.clear_range(begin, end);
        }
    }

    fn atomic(&self, op: MutationOp, key: &[u8], param: &[u8]) {
        if let Ok(tr) = self.live() {
            tr.atomic(op, key, param);
        }
    }

    fn add_conflict_range(&self, kind: ConflictKind, begin: &[u8], end: &[u8]) -> Result<()> {
        Transaction::add_conflict_range(self.live()?, kind, begin, end)
    }

    fn set_option(&self, option: TransactionOption) -> Result<()> {
        Transaction::set_option(self.live()?, option)
    }

    fn watch(&self, key: &[u8]) -> impl Future<Output = Result<()>> + Send + use<> {
        self.answer(self.live().map(|tr| Transaction::watch(tr, key)))
    }

    fn versionstamp(&self) -> impl Future<Output = Result<Versionstamp>> + Send + use<> {
        self.answer(self.live().map(Transaction::versionstamp))
    }

    fn approximate_size(&self) -> impl Future<Output = Result<usize>> + Send + use<> {
        // The client library computes the size itself, so the answer says nothing about the cluster.
        let size = self.live().map(Transaction::approximate_size);
        async move { size?.await }
    }
}

impl OwnedTransaction for FdbTransaction {
    async fn commit(&mut self) -> Result<Commit> {
        self.live()?;
        let FdbState::Live(tr) = mem::replace(&mut self.state, FdbState::Sent) else {
            unreachable!("`live` has just said so");
        };
        let versionstamp = tr.versionstamp();
        match tr.commit().await {
            Ok(committed) => {
                let version = committed.committed_version();
                self.state = FdbState::Committed(committed);
                let version = version.map_err(error)?;
                if version < 0 {
                    return Ok(Commit::READ_ONLY);
                }
                let versionstamp = Some(versionstamp.await?);
                Ok(Commit {
                    version,
                    versionstamp,
                })
            }
            Err(failed) => {
                let refusal = error(*failed);
                self.state = FdbState::Failed(failed);
                self.cluster.note(&self.answered, Err(refusal))
            }
        }
    }

    async fn on_error(&mut self, given: Error) -> Result<()> {
        let Some(code) = given.code() else {
            self.cancel();
            return Err(given);
        };
        let native = FdbError::from_code(code.number());
        let recovered = match mem::replace(&mut self.state, FdbState::Lost) {
            FdbState::Live(tr) => tr.on_error(native).await,
            FdbState::Failed(failed) if failed.code() == native.code() => failed.on_error().await,
            cancelled @ (FdbState::Cancelled(_) | FdbState::Lost) => {
                self.state = cancelled;
                return Err(Code::TRANSACTION_CANCELLED.into());
            }
            ended => {
                self.state = ended;
                self.renew()?.on_error(native).await
            }
        };
        match recovered {
            Ok(tr) => {
                self.answered = Arc::default();
                self.state = FdbState::Live(tr);
                Ok(())
            }
            Err(refusal) if refusal.code() == native.code() => Err(given),
            Err(refusal) => Err(error(refusal)),
        }
    }

    fn reset(&mut self) {
        if let Ok(tr) = self.renew() {
            self.state = FdbState::Live(tr);
        }
    }

    fn cancel(&mut self) {
        self.state = match mem::replace(&mut self.state, FdbState::Lost) {
            FdbState::Live(tr) => FdbState::Cancelled(tr.cancel()),
            FdbState::Committed(committed) => FdbState::Cancelled(committed.reset().cancel()),
            FdbState::Failed(failed) => FdbState::Cancelled(failed.reset().cancel()),
            ended => ended,
        };
        if let FdbState::Sent = self.state {
            self.state = FdbState::Lost;
        }
    }
}

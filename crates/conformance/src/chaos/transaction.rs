//! The transaction of a store with faults.

use std::fmt;
use std::future::{Future, pending};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use keyspace::{
    Code, Commit, ConflictKind, Database, Error, Isolation, KeySelector, MutationOp,
    OwnedTransaction, RangeBatch, RangeQuery, Result, Transaction, TransactionOption, Versionstamp,
};
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;

use super::{Chaos, CommitFault, Fate, LandingPoint, WatchFault};

/// A transaction of a [`Chaos`] database.
pub struct ChaosTransaction<D: Database> {
    chaos: Chaos<D>,
    /// Empty while its commit is running, and after a commit that took the transaction away.
    tr: Arc<RwLock<Option<D::Transaction>>>,
    /// The options that survive `on_error`. A transaction that replaces one that was taken away gets them.
    options: Mutex<Vec<TransactionOption>>,
    wrote: AtomicBool,
    /// The first read that was made to fail. As in FoundationDB, the commit fails with the same code.
    failed_read: Mutex<Option<Code>>,
    /// The result of the commit that the client got.
    verdict: watch::Sender<Option<Result<()>>>,
}

impl<D: Database> ChaosTransaction<D> {
    pub(super) fn new(chaos: Chaos<D>, tr: D::Transaction) -> Self {
        Self {
            chaos,
            tr: Arc::new(RwLock::new(Some(tr))),
            options: Mutex::default(),
            wrote: AtomicBool::new(false),
            failed_read: Mutex::default(),
            verdict: watch::Sender::new(None),
        }
    }

    /// Issues a read, unless the read is to fail.
    fn read<F>(&self, issue: impl FnOnce(&D::Transaction) -> F) -> Result<F> {
        if let Some(code) = self.chaos.draw_read_fault() {
            self.failed_read.lock().get_or_insert(code);
            return Err(code.into());
        }
        with(&self.tr, issue)
    }

    fn write(&self, stage: impl FnOnce(&D::Transaction)) {
        self.wrote.store(true, Ordering::Relaxed);
        // If a commit has taken the transaction away, that commit reports the misuse.
        let _ = with(&self.tr, stage);
    }

    fn take(&self) -> Option<D::Transaction> {
        self.tr.write().take()
    }

    fn put(&self, tr: D::Transaction) {
        *self.tr.write() = Some(tr);
    }

    async fn commit_unless_faulty(&self) -> Result<Commit> {
        let mut tr = self.take().ok_or(Code::USED_DURING_COMMIT)?;
        if self.wrote.load(Ordering::Relaxed) {
            self.chaos.answer().await;
        } else {
            self.chaos.gate().await;
        }
        self.chaos.land_before(LandingPoint::Commit).await;
        if let Some(code) = *self.failed_read.lock() {
            self.put(tr);
            return Err(code.into());
        }
        let fault = if self.wrote.load(Ordering::Relaxed) {
            self.chaos.next_commit_fault()
        } else {
            CommitFault::None
        };
        let fate = match fault {
            CommitFault::None => {
                let result = tr.commit().await;
                self.put(tr);
                return result;
            }
            CommitFault::NotCommitted => {
                self.put(tr);
                return Err(Code::NOT_COMMITTED.into());
            }
            CommitFault::TooOld => {
                self.put(tr);
                return Err(Code::TRANSACTION_TOO_OLD.into());
            }
            CommitFault::Unknown(fate) | CommitFault::Silent(fate) => fate,
        };
        match fate {
            Fate::Applied => {
                if let Err(error) = tr.commit().await {
                    self.put(tr);
                    return Err(error);
                }
            }
            Fate::Lost => self.put(tr),
            Fate::Late(landing) => self.chaos.send_late(tr, landing),
        }
        if matches!(fault, CommitFault::Silent(_)) {
            pending::<()>().await;
        }
        Err(Code::COMMIT_UNKNOWN_RESULT.into())
    }

    /// Begins the transaction that replaces one that was taken away.
    fn replacement(&self) -> Result<D::Transaction> {
        let tr = self.chaos.db.begin()?;
        for &option in self.options.lock().iter() {
            tr.set_option(option)?;
        }
        Ok(tr)
    }

    fn begin_attempt(&mut self) {
        *self.wrote.get_mut() = false;
        *self.failed_read.lock() = None;
        self.verdict = watch::Sender::new(None);
        self.chaos.attempt_begins();
    }

    /// Returns the result of the commit that the client gets, or `None` if the commit never gets an answer.
    fn verdict(&self) -> impl Future<Output = Option<Result<()>>> + Send + use<D> {
        let mut verdict = self.verdict.subscribe();
        async move {
            let known = verdict.wait_for(Option::is_some).await;
            known.map_or(None, |verdict| verdict.clone())
        }
    }
}

impl<D: Database> Transaction for ChaosTransaction<D> {
    fn get(
        &self,
        key: &[u8],
        isolation: Isolation,
    ) -> impl Future<Output = Result<Option<Bytes>>> + Send + use<D> {
        let answer = self.chaos.answer();
        let issued = self.read(|tr| tr.get(key, isolation));
        async move {
            answer.await;
            issued?.await
        }
    }

    fn get_key(
        &self,
        selector: &KeySelector,
        isolation: Isolation,
    ) -> impl Future<Output = Result<Bytes>> + Send + use<D> {
        let answer = self.chaos.answer();
        let issued = self.read(|tr| tr.get_key(selector, isolation));
        async move {
            answer.await;
            issued?.await
        }
    }

    fn get_range(
        &self,
        query: &RangeQuery,
        isolation: Isolation,
    ) -> impl Future<Output = Result<RangeBatch>> + Send + use<D> {
        let answer = self.chaos.answer();
        let issued = self.read(|tr| tr.get_range(query, isolation));
        async move {
            answer.await;
            issued?.await
        }
    }

    fn read_version(&self) -> impl Future<Output = Result<i64>> + Send + use<D> {
        let chaos = self.chaos.clone();
        let tr = self.tr.clone();
        async move {
            chaos.answer().await;
            chaos.land_before(LandingPoint::ReadVersion).await;
            with(&tr, D::Transaction::read_version)?.await
        }
    }

    fn set_read_version(&self, version: i64) {
        // After a commit, this call has no way to report an error. The next read fails with
        // `used_during_commit`.
        let _ = with(&self.tr, |tr| tr.set_read_version(version));
    }

    fn set(&self, key: &[u8], value: &[u8]) {
        self.write(|tr| tr.set(key, value));
    }

    fn clear(&self, key: &[u8]) {
        self.write(|tr| tr.clear(key));
    }

    fn clear_range(&self, begin: &[u8], end: &[u8]) {
        self.write(|tr| tr.clear_range(begin, end));
    }

    fn atomic(&self, op: MutationOp, key: &[u8], param: &[u8]) {
        self.write(|tr| tr.atomic(op, key, param));
    }

    fn add_conflict_range(&self, kind: ConflictKind, begin: &[u8], end: &[u8]) -> Result<()> {
        if kind == ConflictKind::Write {
            self.wrote.store(true, Ordering::Relaxed);
        }
        with(&self.tr, |tr| tr.add_conflict_range(kind, begin, end))?
    }

    fn set_option(&self, option: TransactionOption) -> Result<()> {
        with(&self.tr, |tr| tr.set_option(option))??;
        if matches!(
            option,
            TransactionOption::Timeout(_)
                | TransactionOption::RetryLimit(_)
                | TransactionOption::MaxRetryDelay(_)
        ) {
            self.options.lock().push(option);
        }
        Ok(())
    }

    fn watch(&self, key: &[u8]) -> impl Future<Output = Result<()>> + Send + use<D> {
        let issued = with(&self.tr, |tr| tr.watch(key));
        let verdict = self.verdict();
        let fault = self.chaos.draw_watch_fault();
        let environment = self.chaos.shared.environment.clone();
        async move {
            let change = issued?;
            verdict
                .await
                .unwrap_or(Err(Code::TRANSACTION_CANCELLED.into()))?;
            match fault {
                None => change.await,
                Some(WatchFault::Early) => Ok(()),
                Some(WatchFault::Late(delay)) => {
                    let changed = change.await;
                    environment.sleep(delay).await;
                    changed
                }
            }
        }
    }

    fn versionstamp(&self) -> impl Future<Output = Result<Versionstamp>> + Send + use<D> {
        let issued = with(&self.tr, D::Transaction::versionstamp);
        let verdict = self.verdict();
        async move {
            let versionstamp = issued?;
            match verdict.await {
                Some(Err(_)) => Err(Code::TRANSACTION_INVALID_VERSION.into()),
                Some(Ok(())) | None => versionstamp.await,
            }
        }
    }

    fn approximate_size(&self) -> impl Future<Output = Result<usize>> + Send + use<D> {
        let issued = with(&self.tr, D::Transaction::approximate_size);
        async move { issued?.await }
    }
}

impl<D: Database> OwnedTransaction for ChaosTransaction<D> {
    async fn commit(&mut self) -> Result<Commit> {
        let result = self.commit_unless_faulty().await;
        let verdict = result.as_ref().map(|_| ()).map_err(Clone::clone);
        self.verdict.send_replace(Some(verdict));
        result
    }

    async fn on_error(&mut self, error: Error) -> Result<()> {
        let mut tr = match self.take() {
            Some(tr) => tr,
            None => self.replacement()?,
        };
        let result = tr.on_error(error).await;
        self.put(tr);
        if result.is_ok() {
            self.begin_attempt();
        }
        result
    }

    fn reset(&mut self) {
        self.options.lock().clear();
        match self.take() {
            Some(mut tr) => {
                tr.reset();
                self.put(tr);
            }
            None => {
                if let Ok(tr) = self.replacement() {
                    self.put(tr);
                }
            }
        }
        self.begin_attempt();
    }

    fn cancel(&mut self) {
        if let Some(mut tr) = self.take() {
            tr.cancel();
            self.put(tr);
        }
    }
}

impl<D: Database> fmt::Debug for ChaosTransaction<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChaosTransaction").finish_non_exhaustive()
    }
}

/// Passes the transaction to `act`, unless a commit has taken it away.
fn with<T, V>(tr: &RwLock<Option<T>>, act: impl FnOnce(&T) -> V) -> Result<V> {
    let tr = tr.read();
    Ok(act(tr.as_ref().ok_or(Code::USED_DURING_COMMIT)?))
}

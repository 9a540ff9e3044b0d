//! A transaction that is recorded.

use parking_lot::{Mutex, MutexGuard};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::future::{BoxFuture, FutureExt};
use keyspace::error::{Code, Error, Result};
use keyspace::mutation::{MutationOp, Versionstamp};
use keyspace::selector::{KeySelector, RangeBatch, RangeQuery};
use keyspace::transaction::{
    Commit, ConflictKind, Database, Isolation, OwnedTransaction, Transaction, TransactionOption,
    key_after,
};

use super::{Event, History, Read, Record, Recorded, RecordedStep, RecordedWrite};

/// A transaction of a [`Recorded`] database.
///
/// If the future of a commit is dropped, the commit takes the transaction with it. After that, `on_error`
/// returns its error, and a reset begins a new transaction.
pub struct RecordedTransaction<D: Database> {
    db: Recorded<D>,
    /// Empty while its commit is running, and after a commit that was dropped.
    tr: Option<D::Transaction>,
    attempt: Arc<Mutex<RecordedAttempt>>,
}

/// The record of one attempt so far.
struct RecordedAttempt {
    number: u64,
    steps: Vec<RecordedStep>,
    version_asked: Option<Event>,
    version_given: bool,
    /// Whether an option is set that hides the transaction's own writes from reads.
    reads_unlike: bool,
}

/// The place of a read's answer.
struct Slot {
    attempt: Arc<Mutex<RecordedAttempt>>,
    index: usize,
    isolation: Isolation,
}

impl RecordedAttempt {
    fn new(history: &History) -> Arc<Mutex<Self>> {
        Arc::new(Mutex::new(Self {
            number: history.next_transaction(),
            steps: Vec::new(),
            version_asked: None,
            version_given: false,
            reads_unlike: false,
        }))
    }

    fn has_read(&self) -> bool {
        let is_read = |step: &RecordedStep| matches!(step, RecordedStep::Read(..));
        self.steps.iter().any(is_read)
    }

    fn has_written(&self) -> bool {
        let is_write = |step: &RecordedStep| matches!(step, RecordedStep::Write(_));
        self.steps.iter().any(is_write)
    }
}

impl Slot {
    /// Enters the answer of the read, unless the commit was called before.
    fn fill(self, read: Read) {
        let mut attempt = lock(&self.attempt);
        if attempt.reads_unlike {
            return;
        }
        if let Some(step) = attempt.steps.get_mut(self.index) {
            *step = RecordedStep::Read(self.isolation, read);
        }
    }
}

impl<D: Database> RecordedTransaction<D> {
    pub(super) fn new(db: Recorded<D>, tr: D::Transaction) -> Self {
        Self {
            attempt: RecordedAttempt::new(&db.history),
            tr: Some(tr),
            db,
        }
    }

    fn tr(&self) -> Result<&D::Transaction> {
        Ok(self.tr.as_ref().ok_or(Code::USED_DURING_COMMIT)?)
    }

    /// Records when the transaction asked for its read version: at the first call that may need it.
    fn version_is_asked(&self) {
        let mut attempt = lock(&self.attempt);
        attempt
            .version_asked
            .get_or_insert_with(|| self.db.history.event());
    }

    /// Issues a read and reserves its place among the steps.
    fn read<F>(
        &self,
        isolation: Isolation,
        issue: impl FnOnce(&D::Transaction) -> F,
    ) -> Result<(F, Slot)> {
        self.version_is_asked();
        let answer = issue(self.tr()?);
        let mut attempt = lock(&self.attempt);
        let index = attempt.steps.len();
        attempt.steps.push(RecordedStep::Unanswered);
        let slot = Slot {
            attempt: self.attempt.clone(),
            index,
            isolation,
        };
        Ok((answer, slot))
    }

    fn write(&self, write: RecordedWrite, stage: impl FnOnce(&D::Transaction)) {
        // If a commit has taken the transaction away, that commit reports the misuse.
        if let Ok(tr) = self.tr() {
            stage(tr);
            lock(&self.attempt).steps.push(RecordedStep::Write(write));
        }
    }

    fn begin_attempt(&mut self) {
        self.attempt = RecordedAttempt::new(&self.db.history);
    }
}

impl<D: Database> Transaction for RecordedTransaction<D> {
    fn get(
        &self,
        key: &[u8],
        isolation: Isolation,
    ) -> impl Future<Output = Result<Option<Bytes>>> + Send + use<D> {
        let issued = self.read(isolation, |tr| tr.get(key, isolation));
        let key = Bytes::copy_from_slice(key);
        async move {
            let (answer, slot) = issued?;
            let value = answer.await?;
            slot.fill(Read::Get {
                key,
                value: value.clone(),
            });
            Ok(value)
        }
    }

    fn get_key(
        &self,
        selector: &KeySelector,
        isolation: Isolation,
    ) -> impl Future<Output = Result<Bytes>> + Send + use<D> {
        let issued = self.read(isolation, |tr| tr.get_key(selector, isolation));
        let selector = selector.clone();
        async move {
            let (answer, slot) = issued?;
            let key = answer.await?;
            slot.fill(Read::GetKey {
                selector,
                key: key.clone(),
            });
            Ok(key)
        }
    }

    fn get_range(
        &self,
        query: &RangeQuery,
        isolation: Isolation,
    ) -> impl Future<Output = Result<RangeBatch>> + Send + use<D> {
        let issued = self.read(isolation, |tr| tr.get_range(query, isolation));
        let query = query.clone();
        async move {
            let (answer, slot) = issued?;
            let batch = answer.await?;
            slot.fill(Read::GetRange {
                query,
                batch: batch.clone(),
            });
            Ok(batch)
        }
    }

    fn read_version(&self) -> impl Future<Output = Result<i64>> + Send + use<D> {
        self.version_is_asked();
        let issued = self.tr().map(D::Transaction::read_version);
        async move { issued?.await }
    }

    fn set_read_version(&self, version: i64) {
        lock(&self.attempt).version_given = true;
        // After a commit, this call has no way to report an error. The next read fails with
        // `used_during_commit`.
        if let Ok(tr) = self.tr() {
            tr.set_read_version(version);
        }
    }

    fn set(&self, key: &[u8], value: &[u8]) {
        let write = RecordedWrite::Set {
            key: Bytes::copy_from_slice(key),
            value: Bytes::copy_from_slice(value),
        };
        self.write(write, |tr| tr.set(key, value));
    }

    fn clear(&self, key: &[u8]) {
        let write = RecordedWrite::ClearRange {
            begin: Bytes::copy_from_slice(key),
            end: key_after(key).into(),
        };
        self.write(write, |tr| tr.clear(key));
    }

    fn clear_range(&self, begin: &[u8], end: &[u8]) {
        let write = RecordedWrite::ClearRange {
            begin: Bytes::copy_from_slice(begin),
            end: Bytes::copy_from_slice(end),
        };
        self.write(write, |tr| tr.clear_range(begin, end));
    }

    fn atomic(&self, op: MutationOp, key: &[u8], param: &[u8]) {
        let write = RecordedWrite::Atomic {
            op,
            key: Bytes::copy_from_slice(key),
            param: Bytes::copy_from_slice(param),
        };
        self.write(write, |tr| tr.atomic(op, key, param));
    }

    fn add_conflict_range(&self, kind: ConflictKind, begin: &[u8], end: &[u8]) -> Result<()> {
        self.tr()?.add_conflict_range(kind, begin, end)
    }

    fn set_option(&self, option: TransactionOption) -> Result<()> {
        self.tr()?.set_option(option)?;
        lock(&self.attempt).reads_unlike |= matches!(
            option,
            TransactionOption::SnapshotRywDisable | TransactionOption::BypassUnreadable
        );
        Ok(())
    }

    fn watch(&self, key: &[u8]) -> impl Future<Output = Result<()>> + Send + use<D> {
        self.version_is_asked();
        let issued = self.tr().map(|tr| tr.watch(key));
        async move { issued?.await }
    }

    fn versionstamp(&self) -> impl Future<Output = Result<Versionstamp>> + Send + use<D> {
        let issued = self.tr().map(D::Transaction::versionstamp);
        async move { issued?.await }
    }

    fn approximate_size(&self) -> impl Future<Output = Result<usize>> + Send + use<D> {
        let issued = self.tr().map(D::Transaction::approximate_size);
        async move { issued?.await }
    }
}

impl<D: Database> OwnedTransaction for RecordedTransaction<D> {
    async fn commit(&mut self) -> Result<Commit> {
        self.version_is_asked();
        let tr = self.tr.take().ok_or(Code::USED_DURING_COMMIT)?;
        let history = self.db.history.clone();
        let attempt = self.attempt.clone();
        let mut commit = Committing {
            history: &self.db.history,
            running: Some(Box::pin(commit(tr, history, attempt))),
        };
        let (tr, result) = (&mut commit).await;
        self.tr = Some(tr);
        result
    }

    async fn on_error(&mut self, error: Error) -> Result<()> {
        let Some(tr) = &mut self.tr else {
            return Err(error);
        };
        tr.on_error(error).await?;
        self.begin_attempt();
        Ok(())
    }

    fn reset(&mut self) {
        match &mut self.tr {
            Some(tr) => tr.reset(),
            None => self.tr = self.db.db.begin().ok(),
        }
        self.begin_attempt();
    }

    fn cancel(&mut self) {
        if let Some(tr) = &mut self.tr {
            tr.cancel();
        }
    }
}

impl<D: Database> fmt::Debug for RecordedTransaction<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordedTransaction")
            .field("number", &lock(&self.attempt).number)
            .finish_non_exhaustive()
    }
}

/// Commits, and records the outcome.
async fn commit<T: OwnedTransaction>(
    mut tr: T,
    history: Arc<History>,
    attempt: Arc<Mutex<RecordedAttempt>>,
) -> (T, Result<Commit>) {
    let has_read = lock(&attempt).has_read();
    // A transaction that has read has its version, or has read only its own writes. One that has not read
    // must stay without a version, because a test may depend on where it gets one.
    let read_version = if has_read {
        tr.read_version().await.ok()
    } else {
        None
    };
    let commit_asked = history.event();
    let result = tr.commit().await;
    let acknowledged = history.event();
    let mut attempt = lock(&attempt);
    match &result {
        Ok(commit) => {
            let version_asked = if attempt.version_given {
                None
            } else {
                attempt.version_asked
            };
            history.lock().records.push(Record {
                number: attempt.number,
                steps: std::mem::take(&mut attempt.steps),
                read_version,
                versionstamp: commit.versionstamp,
                version_asked,
                commit_asked,
                acknowledged,
            });
        }
        Err(error) => {
            let unknown = error.code().is_none_or(Code::leaves_commit_unknown);
            if unknown && attempt.has_written() {
                history.lock().undecided.push(attempt.number);
            }
        }
    }
    drop(attempt);
    (tr, result)
}

/// A commit under way. If its future is dropped, the history keeps it, because it may still happen.
struct Committing<'a, T: Send + 'static> {
    history: &'a History,
    running: Option<BoxFuture<'static, (T, Result<Commit>)>>,
}

impl<T: Send + 'static> Future for Committing<'_, T> {
    type Output = (T, Result<Commit>);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let running = self.running.as_mut().expect("polled after it has ended");
        let ended = std::task::ready!(running.as_mut().poll(context));
        self.running = None;
        Poll::Ready(ended)
    }
}

impl<T: Send + 'static> Drop for Committing<'_, T> {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            // The commit enters its outcome into the log when it ends.
            let adrift = Box::pin(running.map(drop));
            self.history.lock().adrift.push(adrift);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}

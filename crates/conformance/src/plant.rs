//! A store that breaks one of its promises, to prove that a test notices it.

use parking_lot::{Mutex, MutexGuard};
use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::sync::Arc;

use futures::future::BoxFuture;
use keyspace::{
    Bytes, Commit, ConflictKind, Database, DatabaseOption, Error, Isolation, KeySelector,
    MutationOp, OwnedTransaction, RangeBatch, RangeQuery, Result, Transaction, TransactionOption,
};

/// A broken promise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plant {
    /// Serializable reads add no conflict range.
    ReadsWithoutConflicts,
    /// Neither reads nor explicit calls add a read conflict range.
    NoReadConflicts,
    /// Explicit calls add no read conflict range. Serializable reads add theirs.
    AddedConflictsWithoutEffect,
    /// Writes add no conflict range.
    WritesWithoutConflicts,
    /// A read that stopped at its limit conflicts with the whole range.
    LimitsWithoutEffect,
    /// A range read reports after its first batch that there are no more rows.
    FirstBatchesOnly,
    /// `COMPARE_AND_CLEAR` clears any value.
    ClearsWithoutComparison,
    /// `COMPARE_AND_CLEAR` compares with the value that the transaction would read, instead of with its
    /// param.
    ComparisonsWithReads,
    /// Snapshot reads do not see the transaction's own writes.
    SnapshotsWithoutOwnWrites,
    /// A transaction that began four or more commits ago commits unchecked, as if the store had forgotten
    /// the writes since then and the limit on a transaction's age.
    OldTransactionsUnchecked,
    /// A read version that is set explicitly is treated as a new one, however old it is.
    OldVersionsAsNew,
    /// Transactions read at the version of four commits ago.
    OldVersions,
    /// One in 16 commits is acknowledged but not stored.
    LostCommits,
    /// One in 16 commits is applied twice.
    RepeatedCommits,
    /// Watches never fire.
    DeafWatches,
}

/// How many of the last commits the broken store remembers.
const REMEMBERED: usize = 4;

/// Rare bugs happen at one commit in this number.
const RARELY: u64 = 16;

/// A store with a [`Plant`]. Clones share both.
#[derive(Clone)]
pub struct Planted<D> {
    db: D,
    plant: Plant,
    commits: Arc<Mutex<Commits>>,
}

#[derive(Default)]
struct Commits {
    count: u64,
    /// The versions of the last [`REMEMBERED`] commits.
    versions: VecDeque<i64>,
}

impl<D: Database> Planted<D> {
    /// Breaks a promise of `db`.
    pub fn new(db: D, plant: Plant) -> Self {
        let commits = Arc::default();
        Self { db, plant, commits }
    }

    fn commits(&self) -> MutexGuard<'_, Commits> {
        self.commits.lock()
    }
}

impl<D: Database> Database for Planted<D> {
    type Transaction = PlantedTransaction<D>;

    fn begin(&self) -> Result<Self::Transaction> {
        let tr = PlantedTransaction {
            tr: self.db.begin()?,
            store: self.clone(),
            began: 0,
            writes: Mutex::default(),
            comparisons: Mutex::default(),
        };
        Ok(tr.anew())
    }

    fn set_option(&self, option: DatabaseOption) -> Result<()> {
        self.db.set_option(option)
    }
}

type StagedWrite<T> = Box<dyn Fn(&T) + Send>;

/// A key, and the value that the transaction reads there.
type Comparison = (Vec<u8>, BoxFuture<'static, Result<Option<Bytes>>>);

/// A transaction of a [`Planted`] store.
pub struct PlantedTransaction<D: Database> {
    tr: D::Transaction,
    store: Planted<D>,
    /// The number of commits when the transaction began.
    began: u64,
    writes: Mutex<Vec<StagedWrite<D::Transaction>>>,
    /// The keys that are cleared after a comparison with a read under way.
    comparisons: Mutex<Vec<Comparison>>,
}

impl<D: Database> PlantedTransaction<D> {
    fn anew(mut self) -> Self {
        self.begin_attempt();
        self
    }

    fn begin_attempt(&mut self) {
        self.staged().clear();
        self.take_comparisons();
        self.began = self.store.commits().count;
        let oldest = self.store.commits().versions.front().copied();
        match (self.store.plant, oldest) {
            (Plant::OldVersions, Some(version)) => self.tr.set_read_version(version),
            (Plant::SnapshotsWithoutOwnWrites, _) => {
                self.set_plain_option(TransactionOption::SnapshotRywDisable);
            }
            _ => {}
        }
    }

    fn set_plain_option(&self, option: TransactionOption) {
        let set = self.tr.set_option(option);
        set.expect("every store supports this option");
    }

    fn staged(&self) -> MutexGuard<'_, Vec<StagedWrite<D::Transaction>>> {
        self.writes.lock()
    }

    fn take_comparisons(&self) -> Vec<Comparison> {
        std::mem::take(&mut *self.comparisons.lock())
    }

    fn isolation(&self, isolation: Isolation) -> Isolation {
        match self.store.plant {
            Plant::ReadsWithoutConflicts | Plant::NoReadConflicts => Isolation::Snapshot,
            _ => isolation,
        }
    }

    fn write(&self, stage: impl Fn(&D::Transaction) + Send + 'static) {
        if self.store.plant == Plant::WritesWithoutConflicts {
            self.set_plain_option(TransactionOption::NextWriteNoWriteConflictRange);
        }
        stage(&self.tr);
        self.staged().push(Box::new(stage));
    }

    /// Returns a transaction with the same writes and without any reads.
    fn unchecked(&self) -> Result<D::Transaction> {
        let tr = self.store.db.begin()?;
        for stage in self.staged().iter() {
            stage(&tr);
        }
        Ok(tr)
    }

    async fn commit_as_planted(&mut self) -> Result<Commit> {
        for (key, read) in self.take_comparisons() {
            if let Some(value) = read.await? {
                self.write(move |tr| tr.atomic(MutationOp::CompareAndClear, &key, &value));
            }
        }
        let commit_count = self.store.commits().count;
        let now_and_then = commit_count % RARELY == RARELY - 1;
        let read_only = self.staged().is_empty();
        match self.store.plant {
            _ if read_only => self.tr.commit().await,
            Plant::OldTransactionsUnchecked if commit_count - self.began >= REMEMBERED as u64 => {
                self.unchecked()?.commit().await
            }
            Plant::LostCommits if now_and_then => {
                self.tr.reset();
                self.tr.add_conflict_key(ConflictKind::Write, b"lost")?;
                self.tr.commit().await
            }
            Plant::RepeatedCommits if now_and_then => {
                let mut again = self.unchecked()?;
                let commit = self.tr.commit().await?;
                again.commit().await?;
                Ok(commit)
            }
            _ => self.tr.commit().await,
        }
    }
}

impl<D: Database> Transaction for PlantedTransaction<D> {
    keyspace::forward_transaction!([D] self => self.tr;
        read_version, set_option, versionstamp, approximate_size);

    fn get(
        &self,
        key: &[u8],
        isolation: Isolation,
    ) -> impl Future<Output = Result<Option<Bytes>>> + Send + use<D> {
        self.tr.get(key, self.isolation(isolation))
    }

    fn get_key(
        &self,
        selector: &KeySelector,
        isolation: Isolation,
    ) -> impl Future<Output = Result<Bytes>> + Send + use<D> {
        self.tr.get_key(selector, self.isolation(isolation))
    }

    fn get_range(
        &self,
        query: &RangeQuery,
        isolation: Isolation,
    ) -> impl Future<Output = Result<RangeBatch>> + Send + use<D> {
        let read = self.tr.get_range(query, self.isolation(isolation));
        let widens = self.store.plant == Plant::LimitsWithoutEffect;
        if widens && isolation == Isolation::Serializable && query.begin.key < query.end.key {
            let begin = &query.begin.key;
            let end = &query.end.key;
            let kind = ConflictKind::Read;
            let added = self.tr.add_conflict_range(kind, begin, end);
            added.expect("the range is not inverted");
        }
        let ends = self.store.plant == Plant::FirstBatchesOnly;
        async move {
            let mut batch = read.await?;
            batch.more &= !ends;
            Ok(batch)
        }
    }

    fn set_read_version(&self, version: i64) {
        // With old versions, the transaction may already have one.
        if !matches!(
            self.store.plant,
            Plant::OldVersions | Plant::OldVersionsAsNew
        ) {
            self.tr.set_read_version(version);
        }
    }

    fn set(&self, key: &[u8], value: &[u8]) {
        let key = key.to_vec();
        let value = value.to_vec();
        self.write(move |tr| tr.set(&key, &value));
    }

    fn clear(&self, key: &[u8]) {
        let key = key.to_vec();
        self.write(move |tr| tr.clear(&key));
    }

    fn clear_range(&self, begin: &[u8], end: &[u8]) {
        let begin = begin.to_vec();
        let end = end.to_vec();
        self.write(move |tr| tr.clear_range(&begin, &end));
    }

    fn atomic(&self, op: MutationOp, key: &[u8], param: &[u8]) {
        match (op, self.store.plant) {
            (MutationOp::CompareAndClear, Plant::ClearsWithoutComparison) => self.clear(key),
            (MutationOp::CompareAndClear, Plant::ComparisonsWithReads) => {
                let read: BoxFuture<'static, _> = Box::pin(self.tr.get(key, Isolation::Snapshot));
                self.comparisons.lock().push((key.to_vec(), read));
            }
            _ => {
                let key = key.to_vec();
                let param = param.to_vec();
                self.write(move |tr| tr.atomic(op, &key, &param));
            }
        }
    }

    fn add_conflict_range(&self, kind: ConflictKind, begin: &[u8], end: &[u8]) -> Result<()> {
        let is_planted = matches!(
            self.store.plant,
            Plant::NoReadConflicts | Plant::AddedConflictsWithoutEffect
        );
        if is_planted && kind == ConflictKind::Read {
            return Ok(());
        }
        self.tr.add_conflict_range(kind, begin, end)
    }

    fn watch(&self, key: &[u8]) -> impl Future<Output = Result<()>> + Send + use<D> {
        let watch = self.tr.watch(key);
        let is_deaf = self.store.plant == Plant::DeafWatches;
        async move {
            if is_deaf {
                std::future::pending::<()>().await;
            }
            watch.await
        }
    }
}

impl<D: Database> OwnedTransaction for PlantedTransaction<D> {
    async fn commit(&mut self) -> Result<Commit> {
        let commit = self.commit_as_planted().await?;
        if commit.versionstamp.is_some() {
            let mut commits = self.store.commits();
            commits.count += 1;
            commits.versions.push_back(commit.version);
            if commits.versions.len() > REMEMBERED {
                commits.versions.pop_front();
            }
        }
        Ok(commit)
    }

    async fn on_error(&mut self, error: Error) -> Result<()> {
        self.tr.on_error(error).await?;
        self.begin_attempt();
        Ok(())
    }

    fn reset(&mut self) {
        self.tr.reset();
        self.begin_attempt();
    }

    fn cancel(&mut self) {
        self.tr.cancel();
    }
}

impl<D: Database> fmt::Debug for PlantedTransaction<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PlantedTransaction")
            .field("began", &self.began)
            .finish_non_exhaustive()
    }
}

//! A store that breaks one of its promises.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::sync::{Arc, Mutex};

use keyspace::{
    Bytes, Commit, ConflictKind, Database, DatabaseOption, Error, Isolation, KeySelector,
    MutationOp, OwnedTransaction, RangeBatch, RangeQuery, Result, Transaction, TransactionOption,
    Versionstamp,
};

/// A broken promise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Plant {
    /// Serializable reads add no conflict range.
    ReadsWithoutConflicts,
    /// Writes add no conflict range.
    WritesWithoutConflicts,
    /// A transaction commits unchecked if it began [`REMEMBERED`] commits ago, as if the store had
    /// forgotten what has been written since, and how old a transaction may be.
    OldTransactionsUnchecked,
    /// Transactions read at the version of [`REMEMBERED`] commits ago.
    OldVersions,
    /// Now and then a commit is acknowledged and nothing of it is stored.
    LostCommits,
    /// Now and then a commit is applied twice.
    RepeatedCommits,
}

/// How many commits the broken store looks back.
const REMEMBERED: usize = 4;

/// How often "now and then" is: at one commit of so many.
const RARELY: u64 = 16;

#[derive(Clone)]
pub(crate) struct Planted<D> {
    db: D,
    plant: Plant,
    commits: Arc<Mutex<Commits>>,
}

#[derive(Default)]
struct Commits {
    count: u64,
    /// The versions of the last [`REMEMBERED`] ones.
    versions: VecDeque<i64>,
}

impl<D: Database> Planted<D> {
    pub(crate) fn new(db: D, plant: Plant) -> Self {
        let commits = Arc::default();
        Self { db, plant, commits }
    }

    fn commit_count(&self) -> u64 {
        self.commits.lock().unwrap().count
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
        };
        Ok(tr.anew())
    }

    fn set_option(&self, option: DatabaseOption) -> Result<()> {
        self.db.set_option(option)
    }
}

type Write<T> = Box<dyn Fn(&T) + Send>;

pub(crate) struct PlantedTransaction<D: Database> {
    tr: D::Transaction,
    store: Planted<D>,
    /// How many commits there were when it began.
    began: u64,
    writes: Mutex<Vec<Write<D::Transaction>>>,
}

impl<D: Database> PlantedTransaction<D> {
    fn anew(mut self) -> Self {
        self.begin_attempt();
        self
    }

    fn begin_attempt(&mut self) {
        self.writes = Mutex::default();
        self.began = self.store.commit_count();
        let oldest = self.store.commits.lock().unwrap().versions.front().copied();
        if let (Plant::OldVersions, Some(version)) = (self.store.plant, oldest) {
            self.tr.set_read_version(version);
        }
    }

    fn isolation(&self, isolation: Isolation) -> Isolation {
        match self.store.plant {
            Plant::ReadsWithoutConflicts => Isolation::Snapshot,
            _ => isolation,
        }
    }

    fn write(&self, stage: impl Fn(&D::Transaction) + Send + 'static) {
        if self.store.plant == Plant::WritesWithoutConflicts {
            let option = TransactionOption::NextWriteNoWriteConflictRange;
            self.tr.set_option(option).unwrap();
        }
        stage(&self.tr);
        self.writes.lock().unwrap().push(Box::new(stage));
    }

    /// A transaction with the same writes that has read nothing.
    fn unchecked(&self) -> Result<D::Transaction> {
        let tr = self.store.db.begin()?;
        self.writes
            .lock()
            .unwrap()
            .iter()
            .for_each(|stage| stage(&tr));
        Ok(tr)
    }

    async fn commit_as_planted(&mut self) -> Result<Commit> {
        let commit_count = self.store.commit_count();
        let now_and_then = commit_count % RARELY == RARELY - 1;
        let read_only = self.writes.lock().unwrap().is_empty();
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
        self.tr.get_range(query, self.isolation(isolation))
    }

    fn read_version(&self) -> impl Future<Output = Result<i64>> + Send + use<D> {
        self.tr.read_version()
    }

    fn set_read_version(&self, _: i64) {
        // The transaction may have one already.
    }

    fn set(&self, key: &[u8], value: &[u8]) {
        let (key, value) = (key.to_vec(), value.to_vec());
        self.write(move |tr| tr.set(&key, &value));
    }

    fn clear(&self, key: &[u8]) {
        let key = key.to_vec();
        self.write(move |tr| tr.clear(&key));
    }

    fn clear_range(&self, begin: &[u8], end: &[u8]) {
        let (begin, end) = (begin.to_vec(), end.to_vec());
        self.write(move |tr| tr.clear_range(&begin, &end));
    }

    fn atomic(&self, op: MutationOp, key: &[u8], param: &[u8]) {
        let (key, param) = (key.to_vec(), param.to_vec());
        self.write(move |tr| tr.atomic(op, &key, &param));
    }

    fn add_conflict_range(&self, kind: ConflictKind, begin: &[u8], end: &[u8]) -> Result<()> {
        self.tr.add_conflict_range(kind, begin, end)
    }

    fn set_option(&self, option: TransactionOption) -> Result<()> {
        self.tr.set_option(option)
    }

    fn watch(&self, key: &[u8]) -> impl Future<Output = Result<()>> + Send + use<D> {
        self.tr.watch(key)
    }

    fn versionstamp(&self) -> impl Future<Output = Result<Versionstamp>> + Send + use<D> {
        self.tr.versionstamp()
    }

    fn approximate_size(&self) -> impl Future<Output = Result<usize>> + Send + use<D> {
        self.tr.approximate_size()
    }
}

impl<D: Database> OwnedTransaction for PlantedTransaction<D> {
    async fn commit(&mut self) -> Result<Commit> {
        let commit = self.commit_as_planted().await?;
        if commit.versionstamp.is_some() {
            let mut commits = self.store.commits.lock().unwrap();
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

//! A store wrapper that omits one step of the ledger's protocol.

use std::collections::HashSet;
use std::future::Future;
use std::sync::{Arc, Mutex};

use futures::future::BoxFuture;
use keyspace::{
    Bytes, Code, Commit, ConflictKind, Database, DatabaseOption, Error, Isolation, MutationOp,
    OwnedTransaction, Result, Subspace, Transaction,
};

/// A bug in the ledger, planted between the ledger and the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Plant {
    /// No bug: all calls are passed on unchanged.
    Nothing,
    /// A missing slot is taken for "not committed".
    RerunOnMissingSlot,
    /// The read conflict on the slot is added after its write, where the store drops it.
    ConflictAfterWrite,
    /// The write of the slot adds no write conflict.
    NoWriteConflict,
    /// An attempt that would write only the slot does not write it.
    AnswerWithoutSlot,
    /// The commit obtains the read version.
    NoReadVersion,
    /// Slots are read with snapshot reads.
    SnapshotSlot,
}

/// An event between two attempts of one transaction.
pub(crate) type Interlude = Arc<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>;

#[derive(Clone)]
pub(crate) struct Saboteur<D> {
    pub(crate) db: D,
    pub(crate) plant: Plant,
    pub(crate) interlude: Option<Interlude>,
    /// The error that reports a commit with an unknown outcome.
    pub(crate) no_news: Code,
}

impl<D: Database> Database for Saboteur<D> {
    type Transaction = Sabotaged<D::Transaction>;

    fn begin(&self) -> Result<Self::Transaction> {
        Ok(Sabotaged {
            tr: self.db.begin()?,
            plant: self.plant,
            interlude: self.interlude.clone(),
            no_news: self.no_news,
            ledgers: ledgers(),
            progress: Mutex::default(),
        })
    }

    fn set_option(&self, option: DatabaseOption) -> Result<()> {
        self.db.set_option(option)
    }
}

/// The subspace of the ledgers in these tests.
pub(crate) fn ledgers() -> Subspace {
    Subspace::from(("keyspace.ledger",))
}

pub(crate) struct Sabotaged<T> {
    tr: T,
    plant: Plant,
    interlude: Option<Interlude>,
    no_news: Code,
    ledgers: Subspace,
    progress: Mutex<Progress>,
}

#[derive(Default)]
struct Progress {
    wrote: bool,
    conflicts: HashSet<Vec<u8>>,
}

impl<T: Transaction> Sabotaged<T> {
    fn is_slot(&self, key: &[u8]) -> bool {
        self.ledgers.is_start_of(key)
    }

    fn planted(&self, plant: Plant, key: &[u8]) -> bool {
        self.plant == plant && self.is_slot(key)
    }

    fn wrote(&self) {
        self.progress.lock().unwrap().wrote = true;
    }

    fn drops_slot(&self, key: &[u8]) -> bool {
        self.planted(Plant::AnswerWithoutSlot, key) && !self.progress.lock().unwrap().wrote
    }
}

impl<T: Transaction> Transaction for Sabotaged<T> {
    keyspace::forward_transaction!([T] self => self.tr;
        get_key, get_range, set_read_version, set_option, watch, versionstamp, approximate_size);

    fn get(
        &self,
        key: &[u8],
        isolation: Isolation,
    ) -> impl Future<Output = Result<Option<Bytes>>> + Send + use<T> {
        let isolation = if self.planted(Plant::SnapshotSlot, key) {
            Isolation::Snapshot
        } else {
            isolation
        };
        let pretend = self.planted(Plant::RerunOnMissingSlot, key);
        let issued = self.tr.get(key, isolation);
        async move {
            let value = issued.await?;
            let unused = || Bytes::from_static(b"\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
            Ok(value.or_else(|| pretend.then(unused)))
        }
    }

    fn read_version(&self) -> impl Future<Output = Result<i64>> + Send + use<T> {
        let obtained = (self.plant != Plant::NoReadVersion).then(|| self.tr.read_version());
        async move {
            match obtained {
                Some(read_version) => read_version.await,
                None => Ok(1),
            }
        }
    }

    fn set(&self, key: &[u8], value: &[u8]) {
        self.wrote();
        self.tr.set(key, value);
    }

    fn clear(&self, key: &[u8]) {
        self.wrote();
        self.tr.clear(key);
    }

    fn clear_range(&self, begin: &[u8], end: &[u8]) {
        self.wrote();
        self.tr.clear_range(begin, end);
    }

    fn atomic(&self, op: MutationOp, key: &[u8], param: &[u8]) {
        let first_record = param.get(1..9) == Some(&[0; 8]);
        if self.drops_slot(key) && !first_record {
            return;
        }
        if !self.is_slot(key) {
            self.wrote();
        }
        self.tr.atomic(op, key, param);
        if self.progress.lock().unwrap().conflicts.remove(key) {
            self.tr.add_conflict_key(ConflictKind::Read, key).unwrap();
        }
    }

    fn add_conflict_range(&self, kind: ConflictKind, begin: &[u8], end: &[u8]) -> Result<()> {
        match kind {
            ConflictKind::Read if self.planted(Plant::ConflictAfterWrite, begin) => {
                self.progress
                    .lock()
                    .unwrap()
                    .conflicts
                    .insert(begin.to_vec());
                Ok(())
            }
            ConflictKind::Write if self.planted(Plant::NoWriteConflict, begin) => Ok(()),
            ConflictKind::Write if self.drops_slot(begin) => Ok(()),
            _ => self.tr.add_conflict_range(kind, begin, end),
        }
    }
}

impl<T: OwnedTransaction> OwnedTransaction for Sabotaged<T> {
    async fn commit(&mut self) -> Result<Commit> {
        let result = self.tr.commit().await;
        result.map_err(|error| match error.code() {
            Some(Code::COMMIT_UNKNOWN_RESULT) => self.no_news.into(),
            _ => error,
        })
    }

    async fn on_error(&mut self, error: Error) -> Result<()> {
        self.tr.on_error(error).await?;
        *self.progress.get_mut().unwrap() = Progress::default();
        if let Some(interlude) = self.interlude.clone() {
            interlude().await;
        }
        Ok(())
    }

    fn reset(&mut self) {
        *self.progress.get_mut().unwrap() = Progress::default();
        self.tr.reset();
    }

    fn cancel(&mut self) {
        self.tr.cancel();
    }
}

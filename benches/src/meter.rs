//! A database that counts the commits of all its handles.

use std::ops::{Add, Sub};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use keyspace::{
    Code, Commit, Database, DatabaseOption, Error, MutationOp, OwnedTransaction, Result,
    Transaction,
};
use serde::{Deserialize, Serialize};

/// Counts of commits and of refusals.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reading {
    /// Commits that wrote something.
    pub commits: u64,
    /// The writes of those commits.
    pub mutations: u64,
    /// Commits that were refused because another transaction had written what they had read.
    pub conflicts: u64,
    /// Keys and values of the writes of those commits; of a clear, the keys it names.
    pub bytes_written: u64,
}

impl Add for Reading {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            commits: self.commits + other.commits,
            mutations: self.mutations + other.mutations,
            conflicts: self.conflicts + other.conflicts,
            bytes_written: self.bytes_written + other.bytes_written,
        }
    }
}

impl Sub for Reading {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            commits: self.commits - earlier.commits,
            mutations: self.mutations - earlier.mutations,
            conflicts: self.conflicts - earlier.conflicts,
            bytes_written: self.bytes_written - earlier.bytes_written,
        }
    }
}

#[derive(Debug, Default)]
struct Meter {
    commits: AtomicU64,
    mutations: AtomicU64,
    conflicts: AtomicU64,
    bytes_written: AtomicU64,
}

/// A database whose commits are counted. Clones count together.
#[derive(Debug, Clone)]
pub struct Metered<D> {
    db: D,
    meter: Arc<Meter>,
}

impl<D: Database> Metered<D> {
    /// Counts the commits on `db` from now on.
    #[must_use]
    pub fn new(db: D) -> Self {
        Self {
            db,
            meter: Arc::default(),
        }
    }

    /// Returns the counts so far.
    #[must_use]
    pub fn reading(&self) -> Reading {
        Reading {
            commits: self.meter.commits.load(Ordering::Relaxed),
            mutations: self.meter.mutations.load(Ordering::Relaxed),
            conflicts: self.meter.conflicts.load(Ordering::Relaxed),
            bytes_written: self.meter.bytes_written.load(Ordering::Relaxed),
        }
    }
}

impl<D: Database> Database for Metered<D> {
    type Transaction = MeteredTransaction<D::Transaction>;

    fn begin(&self) -> Result<Self::Transaction> {
        Ok(MeteredTransaction {
            tr: self.db.begin()?,
            staged: AtomicU64::new(0),
            staged_bytes: AtomicU64::new(0),
            meter: self.meter.clone(),
        })
    }

    fn set_option(&self, option: DatabaseOption) -> Result<()> {
        self.db.set_option(option)
    }
}

/// A transaction whose commit is counted.
#[derive(Debug)]
pub struct MeteredTransaction<T> {
    tr: T,
    staged: AtomicU64,
    staged_bytes: AtomicU64,
    meter: Arc<Meter>,
}

impl<T> MeteredTransaction<T> {
    fn stage(&self, parts: [&[u8]; 2]) {
        let bytes = parts.map(<[u8]>::len).into_iter().sum::<usize>() as u64;
        self.staged.fetch_add(1, Ordering::Relaxed);
        self.staged_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn forget(&self) {
        self.staged.store(0, Ordering::Relaxed);
        self.staged_bytes.store(0, Ordering::Relaxed);
    }
}

impl<T: Transaction> Transaction for MeteredTransaction<T> {
    keyspace::forward_transaction!([T] self => self.tr;
        get, get_key, get_range, read_version, fix_read_version, set_read_version, add_conflict_range, set_option, watch,
        versionstamp,
        approximate_size);

    fn set(&self, key: &[u8], value: &[u8]) {
        self.stage([key, value]);
        self.tr.set(key, value);
    }

    fn clear(&self, key: &[u8]) {
        self.stage([key, b""]);
        self.tr.clear(key);
    }

    fn clear_range(&self, begin: &[u8], end: &[u8]) {
        self.stage([begin, end]);
        self.tr.clear_range(begin, end);
    }

    fn atomic(&self, op: MutationOp, key: &[u8], param: &[u8]) {
        self.stage([key, param]);
        self.tr.atomic(op, key, param);
    }
}

impl<T: OwnedTransaction> OwnedTransaction for MeteredTransaction<T> {
    async fn commit(&mut self) -> Result<Commit> {
        let result = self.tr.commit().await;
        let meter = &self.meter;
        match &result {
            Ok(commit) if commit.versionstamp.is_some() => {
                let bytes = self.staged_bytes.swap(0, Ordering::Relaxed);
                let mutations = self.staged.swap(0, Ordering::Relaxed);
                meter.commits.fetch_add(1, Ordering::Relaxed);
                meter.mutations.fetch_add(mutations, Ordering::Relaxed);
                meter.bytes_written.fetch_add(bytes, Ordering::Relaxed);
            }
            Err(error) if error.code() == Some(Code::NOT_COMMITTED) => {
                meter.conflicts.fetch_add(1, Ordering::Relaxed);
            }
            _ => {}
        }
        result
    }

    async fn on_error(&mut self, error: Error) -> Result<()> {
        self.forget();
        self.tr.on_error(error).await
    }

    fn reset(&mut self) {
        self.forget();
        self.tr.reset();
    }

    fn cancel(&mut self) {
        self.tr.cancel();
    }
}

#[cfg(test)]
mod tests {
    use keyspace::Isolation;

    use super::*;

    #[tokio::test]
    async fn commits_conflicts_and_the_bytes_of_what_is_committed_are_counted() {
        let db = Metered::new(keyspace::open("memory:").unwrap());
        let mut first = db.begin().unwrap();
        let mut second = db.begin().unwrap();
        let mut reader = db.begin().unwrap();
        for tr in [&first, &second, &reader] {
            tr.get(b"key", Isolation::Serializable).await.unwrap();
        }
        first.set(b"key", b"value");
        first.clear(b"k");
        first.commit().await.unwrap();
        let reading = Reading {
            commits: 1,
            mutations: 2,
            conflicts: 0,
            bytes_written: 9,
        };
        assert_eq!(db.reading(), reading);

        reader.commit().await.unwrap();
        second.set(b"key", b"other");
        let error = second.commit().await.unwrap_err();
        let refused = Reading {
            conflicts: 1,
            ..reading
        };
        assert_eq!(db.reading(), refused);

        second.on_error(error).await.unwrap();
        second.clear_range(b"a", b"b");
        second.commit().await.unwrap();
        let more = Reading {
            commits: 1,
            mutations: 1,
            conflicts: 0,
            bytes_written: 2,
        };
        assert_eq!(db.reading(), refused + more);
        assert_eq!(db.reading() - refused, more);
    }
}

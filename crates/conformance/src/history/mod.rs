//! Commit-order replay: a check that concurrent transactions were strictly serializable.
//!
//! [`Recorded`] wraps any [`Database`]. For every committed transaction it keeps the reads with their
//! results, the writes in order, the read version, the versionstamp, and the times of all requests and
//! answers. The versionstamps define the order in which the transactions claim to have run.
//! [`Recorded::check`] runs them again in that order, one after the other, on a plain map, and checks that
//!
//! - every read, including those of read-only transactions, returned the content of the store at the read
//!   version, overlaid with the transaction's earlier writes;
//! - every serializable read returns the same just before the transaction's own place in the order;
//! - a transaction that began after another one's commit was acknowledged sees that commit and comes after
//!   it;
//! - at the end, the store holds the content of the map.
//!
//! There is no search, so the check takes time in proportion to the length of the history.
//!
//! Put the recorder directly around the store. A wrapper that reports lost or late commits, such as
//! [`Chaos`](crate::chaos::Chaos), goes around the recorder, which then sees the real outcomes.
//!
//! # What is not checked
//!
//! - Transactions that did not commit, and reads of a transaction after it has set `SnapshotRywDisable` or
//!   `BypassUnreadable`.
//! - Reads with a key selector that counts keys, after the same transaction has stamped a key or a value or
//!   used `COMPARE_AND_CLEAR`. Whether FoundationDB's client counts the key of such an operation depends on
//!   earlier reads.
//! - A transaction that clears a part of the range in which a key that it has stamped may be. Whether the
//!   clear or the stamped key wins depends on where that part begins.

mod replay;
#[cfg(test)]
mod tests;
mod transaction;

use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use futures::future::BoxFuture;
use keyspace::error::{Error, Result, printable};
use keyspace::limits::END_OF_KEYSPACE;
use keyspace::mutation::{MutationOp, Versionstamp};
use keyspace::selector::{KeySelector, RangeBatch, RangeQuery};
use keyspace::transaction::{Database, DatabaseOption, Isolation, read_all};

pub use self::transaction::RecordedTransaction;

type ReplayedRows = BTreeMap<Bytes, Bytes>;

/// A database whose transactions are recorded. Clones share the store and the record.
///
/// # Examples
///
/// ```
/// use conformance::history::Recorded;
/// use keyspace::{Database, Isolation, OwnedTransaction, Transaction};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let db = Recorded::new(keyspace::open("memory:")?).await?;
/// let mut tr = db.begin()?;
/// tr.get(b"key", Isolation::Serializable).await?;
/// tr.set(b"key", b"value");
/// tr.commit().await?;
/// assert_eq!(db.check().await?.reads, 1);
/// # Ok(())
/// # }
/// ```
pub struct Recorded<D: Database> {
    db: D,
    history: Arc<History>,
}

/// The record of a store.
struct History {
    /// The content of the store before.
    first: ReplayedRows,
    events: AtomicU64,
    transactions: AtomicU64,
    log: Mutex<Log>,
}

#[derive(Default)]
struct Log {
    records: Vec<Record>,
    /// The numbers of the transactions with writes whose commit has no certain outcome.
    undecided: Vec<u64>,
    /// The commits whose futures were dropped. Each of them adds itself to the log.
    adrift: Vec<BoxFuture<'static, ()>>,
}

/// A committed transaction.
#[derive(Debug)]
struct Record {
    /// Its number, in the order in which transactions began.
    number: u64,
    steps: Vec<RecordedStep>,
    /// The read version, `None` if the transaction read nothing.
    read_version: Option<i64>,
    /// Its place in the order of commits, `None` if it was read-only.
    versionstamp: Option<Versionstamp>,
    /// When the transaction asked for its read version, `None` if it was set.
    version_asked: Option<Event>,
    commit_asked: Event,
    acknowledged: Event,
}

/// The time of an event. An event with a smaller number had ended when one with a larger number began.
type Event = u64;

/// An operation of a transaction.
#[derive(Debug)]
enum RecordedStep {
    /// A read that never got an answer.
    Unanswered,
    Read(Isolation, Read),
    Write(RecordedWrite),
}

/// A read and its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Read {
    Get {
        key: Bytes,
        value: Option<Bytes>,
    },
    GetKey {
        selector: KeySelector,
        key: Bytes,
    },
    GetRange {
        query: RangeQuery,
        batch: RangeBatch,
    },
}

#[derive(Debug)]
enum RecordedWrite {
    Set {
        key: Bytes,
        value: Bytes,
    },
    ClearRange {
        begin: Bytes,
        end: Bytes,
    },
    Atomic {
        op: MutationOp,
        key: Bytes,
        param: Bytes,
    },
}

/// The extent of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Checked {
    /// Committed transactions with writes.
    pub commits: usize,
    /// Committed transactions without writes.
    pub read_only: usize,
    /// Reads with an answer, of both kinds of transactions.
    pub reads: usize,
}

/// The reason why a history is not strictly serializable, or cannot be checked.
///
/// Transactions are named by their numbers, in the order in which they began.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HistoryError {
    /// A transaction read a wrong result.
    #[error("transaction {transaction} read {found}, and {moment} it is {expected}")]
    Read {
        /// The transaction.
        transaction: u64,
        /// The moment at which the read should have returned something else.
        moment: Moment,
        /// The read and its result.
        found: String,
        /// The read and the right result.
        expected: String,
    },
    /// A transaction is ordered before one that was acknowledged before it began.
    #[error(
        "transaction {later} is {moment}, and not after {versionstamp} of transaction {earlier}, which was acknowledged before"
    )]
    Order {
        /// The transaction that was acknowledged.
        earlier: u64,
        /// Its versionstamp.
        versionstamp: Versionstamp,
        /// The transaction that began later.
        later: u64,
        /// Its place in the order.
        moment: Moment,
    },
    /// Two transactions have the same versionstamp.
    #[error("transactions {first} and {second} both have the versionstamp {versionstamp}")]
    SharedVersionstamp {
        /// One of the transactions.
        first: u64,
        /// The other.
        second: u64,
        /// The versionstamp of both.
        versionstamp: Versionstamp,
    },
    /// The store does not contain what the transactions wrote.
    #[error(
        "{} is {} in the end, expected {}",
        printable(key),
        value(found),
        value(expected)
    )]
    Row {
        /// The first key that differs.
        key: Bytes,
        /// The value in the store.
        found: Option<Bytes>,
        /// The value that the transactions leave there, one after the other.
        expected: Option<Bytes>,
    },
    /// It is unknown whether a transaction has committed.
    #[error("transaction {transaction} has no certain outcome")]
    Undecided {
        /// The transaction.
        transaction: u64,
    },
    /// The store could not be read.
    #[error(transparent)]
    Store(#[from] Error),
}

/// A place in the order of commits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// After all commits up to this version.
    Version(i64),
    /// At this commit.
    Commit(Versionstamp),
}

impl<D: Database> Recorded<D> {
    /// Wraps a database. From this call on, only the wrapper may be used to change it.
    ///
    /// # Errors
    /// The errors of reading the initial content of the store.
    pub async fn new(db: D) -> Result<Self> {
        let history = History {
            first: rows(&db).await?,
            events: AtomicU64::new(0),
            transactions: AtomicU64::new(0),
            log: Mutex::default(),
        };
        Ok(Self {
            db,
            history: Arc::new(history),
        })
    }

    /// Waits for commits whose futures were dropped, then replays all recorded transactions. No transaction
    /// may be under way. Flush a [`Chaos`](crate::chaos::Chaos) before.
    ///
    /// # Errors
    /// The first [`HistoryError`] found.
    ///
    /// # Cancel safety
    /// Dropping the future loses the commit that it waits for.
    pub async fn check(&self) -> Result<Checked, HistoryError> {
        while let Some(commit) = self.history.next_adrift() {
            commit.await;
        }
        let last = rows(&self.db).await?;
        let log = self.history.lock();
        if let Some(&transaction) = log.undecided.first() {
            return Err(HistoryError::Undecided { transaction });
        }
        replay::check(&self.history.first, &log.records, &last)
    }
}

impl History {
    fn event(&self) -> Event {
        self.events.fetch_add(1, Ordering::SeqCst)
    }

    fn next_transaction(&self) -> u64 {
        self.transactions.fetch_add(1, Ordering::Relaxed)
    }

    fn next_adrift(&self) -> Option<BoxFuture<'static, ()>> {
        self.lock().adrift.pop()
    }

    fn lock(&self) -> MutexGuard<'_, Log> {
        self.log.lock()
    }
}

/// Reads the whole store, in a transaction that is not recorded.
async fn rows(db: &impl Database) -> Result<ReplayedRows> {
    let tr = db.begin()?;
    let all = RangeQuery::keys(&b""[..], END_OF_KEYSPACE);
    // The transaction commits nothing, and all its reads are at one version.
    let rows = read_all(&tr, all, Isolation::Snapshot).await?;
    Ok(rows
        .into_iter()
        .map(|row| (row.to_key(), row.to_value()))
        .collect())
}

impl<D: Database> Database for Recorded<D> {
    type Transaction = RecordedTransaction<D>;

    fn begin(&self) -> Result<Self::Transaction> {
        Ok(RecordedTransaction::new(self.clone(), self.db.begin()?))
    }

    fn set_option(&self, option: DatabaseOption) -> Result<()> {
        self.db.set_option(option)
    }
}

impl<D: Database> Clone for Recorded<D> {
    fn clone(&self) -> Self {
        Self {
            db: self.db.clone(),
            history: self.history.clone(),
        }
    }
}

impl<D: Database> fmt::Debug for Recorded<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorded")
            .field("records", &self.history.lock().records.len())
            .finish_non_exhaustive()
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version(version) => write!(f, "at version {version}"),
            Self::Commit(versionstamp) => write!(f, "at commit {versionstamp}"),
        }
    }
}

impl fmt::Display for Read {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Get { key, value: got } => write!(f, "{} = {}", printable(key), value(got)),
            Self::GetKey { selector, key } => {
                write!(f, "{} = {}", Selector(selector), printable(key))
            }
            Self::GetRange { query, batch } => {
                let begin = Selector(&query.begin);
                let end = Selector(&query.end);
                let order = if query.reverse { " reversed" } else { "" };
                write!(f, "{begin}..{end} limit {}{order} = {{", query.limit)?;
                for row in &batch.rows {
                    write!(f, " {}: {}", printable(row.key()), printable(row.value()))?;
                }
                f.write_str(if batch.more { " ..}" } else { " }" })
            }
        }
    }
}

struct Selector<'a>(&'a KeySelector);

impl fmt::Display for Selector<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let KeySelector {
            key,
            or_equal,
            offset,
        } = self.0;
        let relation = if *or_equal { "<=" } else { "<" };
        write!(f, "({relation} {}){offset:+}", printable(key))
    }
}

fn value(value: &Option<Bytes>) -> String {
    value.as_ref().map_or_else(
        || "nothing".to_owned(),
        |value| format!("`{}`", printable(value)),
    )
}

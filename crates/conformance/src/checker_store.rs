//! A store whose rows are a value, for models in which a checker visits every reachable state.
//!
//! A transaction reads one state of the rows. It records its reads, which of them are in its conflict
//! ranges, and its writes. Instead of versions, a model keeps the transactions in flight: a commit dooms
//! those that it makes fail, and the model removes them immediately.
//!
//! It supports what the recipes of log blocks use: all reads come before the first write, and a
//! transaction adds at most one versionstamped key. Anything else panics.
//!
//! A model breaks rules of a recipe between the recipe and the rows, with [`Bugs`]. So it runs the recipe
//! itself.

use std::collections::BTreeMap;
use std::future::{Future, ready};
use std::ops::Bound;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use keyspace::{
    Bytes, ConflictKind, Isolation, KeySelector, KeyValue, MutationOp, RangeBatch, RangeQuery,
    Result, Transaction, TransactionOption, Versionstamp, key_after,
};
use parking_lot::Mutex;

/// More polls than any operation needs.
const MAX_POLLS: usize = 100;

/// Rules of a recipe that are broken between the recipe and the rows. By default, none is.
pub trait Bugs: Send + Sync + 'static {
    /// Returns whether a serializable read that begins at a key adds no conflict range.
    fn hides_read(&self, _key: &[u8]) -> bool {
        false
    }

    /// Returns whether a read conflict range that begins at a key is not added.
    fn hides_range(&self, _begin: &[u8]) -> bool {
        false
    }

    /// Returns the value that a read of a key returns.
    fn read(&self, _key: &[u8], value: Option<Bytes>) -> Option<Bytes> {
        value
    }

    /// Returns whether a read of a range returns only its first row.
    fn cuts(&self, _begin: &[u8]) -> bool {
        false
    }

    /// Changes the writes of a transaction that reads these rows.
    fn rewrite(&self, _writes: &mut Vec<Write>, _rows: &Rows) {}
}

/// No rule is broken.
#[derive(Debug, Clone, Copy)]
pub struct NoBugs;

impl Bugs for NoBugs {}

/// The committed rows.
pub type Rows = BTreeMap<Bytes, Bytes>;

/// Returns the rows of a range.
pub fn rows_of<'a>(
    rows: &'a Rows,
    (begin, end): &(Vec<u8>, Vec<u8>),
) -> impl Iterator<Item = (&'a Bytes, &'a Bytes)> + use<'a> {
    let bounds = (Bound::Included(&begin[..]), Bound::Excluded(&end[..]));
    rows.range::<[u8], _>(bounds)
}

/// A range of keys.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Span {
    /// The first key.
    pub begin: Vec<u8>,
    /// The first key after the range.
    pub end: Vec<u8>,
}

impl Span {
    fn new(begin: &[u8], end: &[u8]) -> Self {
        let (begin, end) = (begin.to_vec(), end.to_vec());
        Self { begin, end }
    }

    /// Returns the range of a single key.
    #[must_use]
    pub fn key(key: &[u8]) -> Self {
        Self::new(key, &key_after(key))
    }

    /// Returns whether the range contains a key.
    #[must_use]
    pub fn has(&self, key: &[u8]) -> bool {
        *self.begin <= *key && *key < *self.end
    }

    fn meets(&self, other: &Self) -> bool {
        self.begin < other.end && other.begin < self.end
    }

    fn covers(&self, other: &Self) -> bool {
        self.begin <= other.begin && other.end <= self.end
    }
}

/// A write, in the order of the transaction.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Write {
    /// Sets a key to a value.
    Set(Vec<u8>, Vec<u8>),
    /// Clears a range.
    Clear(Span),
    /// Adds a block whose key is this prefix, followed by the versionstamp.
    Append(Vec<u8>, Vec<u8>),
}

/// Returns the key of a block. The call number is always 0, since a transaction of the model adds at most
/// one block.
fn block_key(prefix: &[u8], version: i64) -> Vec<u8> {
    let stamp = Versionstamp::new(version, 0);
    [prefix, stamp.as_bytes(), b"\0\0\x14"].concat()
}

#[derive(Debug, Default)]
struct Recorded {
    reads: Vec<Span>,
    conflicts: Vec<Span>,
    writes: Vec<Write>,
}

/// A transaction that reads one state of the rows.
#[derive(Debug)]
pub struct CheckerTransaction<B> {
    rows: Arc<Rows>,
    version: i64,
    bugs: B,
    recorded: Mutex<Recorded>,
}

/// The parts of a transaction that its commit needs.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Staged {
    conflicts: Vec<Span>,
    writes: Vec<Write>,
    /// The read version.
    version: i64,
    is_serializable: bool,
}

impl<B: Bugs> CheckerTransaction<B> {
    /// Begins a transaction that reads these rows.
    pub fn begin(rows: &Arc<Rows>, version: i64, bugs: B) -> Self {
        Self {
            rows: rows.clone(),
            version,
            bugs,
            recorded: Mutex::default(),
        }
    }

    fn read(&self, span: Span, isolation: Isolation) {
        let mut recorded = self.recorded.lock();
        assert_eq!(recorded.writes, [], "a read of {span:?} after writes");
        if isolation == Isolation::Serializable && !self.bugs.hides_read(&span.begin) {
            recorded.conflicts.push(span.clone());
        }
        recorded.reads.push(span);
    }

    fn write(&self, write: Write) {
        self.recorded.lock().writes.push(write);
    }

    /// Returns the transaction as it is to be committed, or `None` if it has no writes.
    pub fn staged(self) -> Option<Staged> {
        let Recorded {
            reads,
            mut conflicts,
            mut writes,
        } = self.recorded.into_inner();
        if writes.is_empty() {
            return None;
        }
        let is_covered = |read: &Span| conflicts.iter().any(|conflict| conflict.covers(read));
        let is_serializable = reads.iter().all(is_covered);
        conflicts.sort_unstable();
        conflicts.dedup();
        self.bugs.rewrite(&mut writes, &self.rows);
        Some(Staged {
            conflicts,
            writes,
            version: self.version,
            is_serializable,
        })
    }
}

impl Staged {
    /// Returns whether all reads of the transaction are in its conflict ranges. Such a transaction might
    /// as well happen entirely at its commit, and in the model it does.
    #[must_use]
    pub fn is_serializable(&self) -> bool {
        self.is_serializable
    }

    /// Returns whether it adds a block.
    #[must_use]
    pub fn appends(&self) -> bool {
        let mut writes = self.writes.iter();
        writes.any(|write| matches!(write, Write::Append(..)))
    }

    /// Commits, and returns the resulting rows. `stamp` is the version of the versionstamp.
    #[must_use]
    pub fn applied(&self, rows: &Rows, stamp: i64) -> Rows {
        let mut rows = rows.clone();
        // Until the commit, a block has the place that the read version gives it.
        let mut appended: Vec<(&[u8], &[u8])> = Vec::new();
        for write in &self.writes {
            match write {
                Write::Set(key, value) => {
                    rows.insert(key.clone().into(), value.clone().into());
                }
                Write::Clear(span) => {
                    rows.retain(|key, _| !span.has(key));
                    appended.retain(|(prefix, _)| !span.has(&block_key(prefix, self.version)));
                }
                Write::Append(prefix, value) => appended.push((prefix, value)),
            }
        }
        for (prefix, value) in appended {
            let key = block_key(prefix, stamp);
            rows.insert(key.into(), value.to_vec().into());
        }
        rows
    }

    /// Returns whether the commit of this transaction makes `other` fail.
    #[must_use]
    pub fn dooms(&self, stamp: i64, other: &Self) -> bool {
        self.writes.iter().any(|write| {
            let written = match write {
                Write::Set(key, _) => Span::key(key),
                Write::Clear(span) => span.clone(),
                Write::Append(prefix, _) => Span::key(&block_key(prefix, stamp)),
            };
            other.conflicts.iter().any(|span| span.meets(&written))
        })
    }
}

impl<B: Bugs> Transaction for CheckerTransaction<B> {
    fn get(
        &self,
        key: &[u8],
        isolation: Isolation,
    ) -> impl Future<Output = Result<Option<Bytes>>> + Send + use<B> {
        self.read(Span::key(key), isolation);
        let value = self.rows.get(key).cloned();
        ready(Ok(self.bugs.read(key, value)))
    }

    fn get_key(
        &self,
        selector: &KeySelector,
        isolation: Isolation,
    ) -> impl Future<Output = Result<Bytes>> + Send + use<B> {
        let first = KeySelector::first_greater_or_equal(selector.key.clone());
        assert_eq!(*selector, first, "the recipe uses no other selector");
        let found = self.rows.range(selector.key.clone()..).next();
        let found = found.map_or(Bytes::from_static(b"\xff"), |(key, _)| key.clone());
        self.read(Span::new(&selector.key, &key_after(&found)), isolation);
        ready(Ok(found))
    }

    fn get_range(
        &self,
        query: &RangeQuery,
        isolation: Isolation,
    ) -> impl Future<Output = Result<RangeBatch>> + Send + use<B> {
        assert!(query.limit == 0 && !query.reverse, "the recipe reads so");
        let (begin, end) = (&query.begin.key, &query.end.key);
        self.read(Span::new(begin, end), isolation);
        let found = self.rows.range(begin.clone()..end.clone());
        let mut rows: Vec<_> = found
            .map(|(key, value)| KeyValue::new(key, value))
            .collect();
        if self.bugs.cuts(begin) {
            rows.truncate(1);
        }
        ready(Ok(RangeBatch { rows, more: false }))
    }

    fn read_version(&self) -> impl Future<Output = Result<i64>> + Send + use<B> {
        ready(Ok(self.version))
    }

    fn set_read_version(&self, _: i64) {
        unreachable!("the recipe reads at the latest version");
    }

    fn set(&self, key: &[u8], value: &[u8]) {
        self.write(Write::Set(key.to_vec(), value.to_vec()));
    }

    fn clear(&self, key: &[u8]) {
        self.write(Write::Clear(Span::key(key)));
    }

    fn clear_range(&self, begin: &[u8], end: &[u8]) {
        self.write(Write::Clear(Span::new(begin, end)));
    }

    fn atomic(&self, op: MutationOp, key: &[u8], param: &[u8]) {
        match op {
            // This is the wake stamp, which the model does not use.
            MutationOp::SetVersionstampedValue => {}
            MutationOp::SetVersionstampedKey => {
                let (_, offset) = key.split_last_chunk().expect("it ends with an offset");
                let offset = u32::from_le_bytes(*offset) as usize;
                self.write(Write::Append(key[..offset].to_vec(), param.to_vec()));
            }
            _ => unreachable!("the recipe uses no {op:?}"),
        }
    }

    fn add_conflict_range(&self, kind: ConflictKind, begin: &[u8], end: &[u8]) -> Result<()> {
        assert_eq!(kind, ConflictKind::Read, "the recipe adds no other");
        let span = Span::new(begin, end);
        let is_hidden = self.bugs.hides_range(begin);
        let mut recorded = self.recorded.lock();
        // FoundationDB would leave out keys that the transaction has written.
        let is_written = recorded.writes.iter().any(|write| match write {
            Write::Set(key, _) => span.has(key),
            Write::Clear(cleared) => span.meets(cleared),
            Write::Append(..) => false,
        });
        assert!(!is_written, "a read conflict range after a write into it");
        if !is_hidden {
            recorded.conflicts.push(span);
        }
        Ok(())
    }

    fn set_option(&self, _: TransactionOption) -> Result<()> {
        unreachable!("the recipe sets no option")
    }

    fn watch(&self, _: &[u8]) -> impl Future<Output = Result<()>> + Send + use<B> {
        ready(Ok(()))
    }

    fn versionstamp(&self) -> impl Future<Output = Result<Versionstamp>> + Send + use<B> {
        ready(Ok(Versionstamp::INCOMPLETE))
    }

    fn approximate_size(&self) -> impl Future<Output = Result<usize>> + Send + use<B> {
        ready(Ok(0))
    }
}

/// Runs an operation whose reads are all answered immediately.
///
/// # Panics
/// If the operation waits for something else than a read.
pub fn finish<T>(operation: impl Future<Output = T>) -> T {
    let mut operation = pin!(operation);
    let mut context = Context::from_waker(Waker::noop());
    for _ in 0..MAX_POLLS {
        if let Poll::Ready(output) = operation.as_mut().poll(&mut context) {
            return output;
        }
    }
    unreachable!("it waits for something else than a read")
}

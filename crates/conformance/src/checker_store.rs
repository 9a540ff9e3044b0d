//! The store of the model: rows, and optimistic transactions on them.
//!
//! A transaction reads one state of the rows. It records its reads, which of them are in its conflict
//! ranges, and its writes. Instead of versions the model keeps the transactions in flight: a commit dooms
//! those that it makes fail, and they are removed immediately.
//!
//! The rules that a [`Bug`] breaks are broken between the recipe and the rows, so the model runs the
//! recipe itself.

use std::collections::BTreeMap;
use std::future::{Future, ready};
use std::ops::Bound;
use std::sync::Arc;

use hc_dequeue::keyspace::{
    Bytes, ConflictKind, Isolation, KeySelector, KeyValue, MutationOp, RangeBatch, RangeQuery,
    Result, Transaction, TransactionOption, Versionstamp, key_after,
};
use parking_lot::Mutex;

use crate::tests::model::bug::{Bug, Parts};

/// The committed rows.
pub(crate) type Rows = BTreeMap<Bytes, Bytes>;

/// Returns the rows of a range.
pub(crate) fn rows_of<'a>(
    rows: &'a Rows,
    (begin, end): &(Vec<u8>, Vec<u8>),
) -> impl Iterator<Item = (&'a Bytes, &'a Bytes)> + use<'a> {
    let bounds = (Bound::Included(&begin[..]), Bound::Excluded(&end[..]));
    rows.range::<[u8], _>(bounds)
}

/// A range of keys.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Span {
    pub(crate) begin: Vec<u8>,
    pub(crate) end: Vec<u8>,
}

impl Span {
    fn new(begin: &[u8], end: &[u8]) -> Self {
        let (begin, end) = (begin.to_vec(), end.to_vec());
        Self { begin, end }
    }

    pub(crate) fn key(key: &[u8]) -> Self {
        Self::new(key, &key_after(key))
    }

    pub(crate) fn has(&self, key: &[u8]) -> bool {
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
pub(crate) enum Write {
    Set(Vec<u8>, Vec<u8>),
    Clear(Span),
    /// A block with this prefix, followed by the versionstamp.
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
pub(crate) struct ModelTransaction {
    rows: Arc<Rows>,
    version: i64,
    parts: Arc<Parts>,
    bug: Option<Bug>,
    recorded: Mutex<Recorded>,
}

/// The parts of a transaction that its commit needs.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Staged {
    conflicts: Vec<Span>,
    writes: Vec<Write>,
    /// The read version.
    version: i64,
    is_serializable: bool,
}

impl ModelTransaction {
    pub(crate) fn begin(
        rows: &Arc<Rows>,
        version: i64,
        parts: &Arc<Parts>,
        bug: Option<Bug>,
    ) -> Self {
        Self {
            rows: rows.clone(),
            version,
            parts: parts.clone(),
            bug,
            recorded: Mutex::default(),
        }
    }

    fn read(&self, span: Span, isolation: Isolation) {
        let mut recorded = self.recorded.lock();
        assert_eq!(recorded.writes, [], "a read of {span:?} after writes");
        let is_hidden = (self.bug).is_some_and(|bug| bug.hides_read(&span.begin, &self.parts));
        if isolation == Isolation::Serializable && !is_hidden {
            recorded.conflicts.push(span.clone());
        }
        recorded.reads.push(span);
    }

    fn write(&self, write: Write) {
        self.recorded.lock().writes.push(write);
    }

    /// Returns the transaction as it is to be committed, or `None` if it has no writes.
    pub(crate) fn staged(self) -> Option<Staged> {
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
        if let Some(bug) = self.bug {
            bug.rewrite(&mut writes, &self.parts, &self.rows);
        }
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
    pub(crate) fn is_serializable(&self) -> bool {
        self.is_serializable
    }

    /// Returns whether it adds a block.
    pub(crate) fn appends(&self) -> bool {
        let mut writes = self.writes.iter();
        writes.any(|write| matches!(write, Write::Append(..)))
    }

    /// Commits, and returns the resulting rows. `stamp` is the version of the versionstamp.
    pub(crate) fn applied(&self, rows: &Rows, stamp: i64) -> Rows {
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
    pub(crate) fn dooms(&self, stamp: i64, other: &Self) -> bool {
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

impl Transaction for ModelTransaction {
    fn get(
        &self,
        key: &[u8],
        isolation: Isolation,
    ) -> impl Future<Output = Result<Option<Bytes>>> + Send + use<> {
        self.read(Span::key(key), isolation);
        let mut value = self.rows.get(key).cloned();
        if let Some(bug) = self.bug {
            value = bug.read(key, value, &self.parts);
        }
        ready(Ok(value))
    }

    fn get_key(
        &self,
        selector: &KeySelector,
        isolation: Isolation,
    ) -> impl Future<Output = Result<Bytes>> + Send + use<> {
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
    ) -> impl Future<Output = Result<RangeBatch>> + Send + use<> {
        assert!(query.limit == 0 && !query.reverse, "the recipe reads so");
        let (begin, end) = (&query.begin.key, &query.end.key);
        self.read(Span::new(begin, end), isolation);
        let found = self.rows.range(begin.clone()..end.clone());
        let mut rows: Vec<_> = found
            .map(|(key, value)| KeyValue::new(key, value))
            .collect();
        if self.bug.is_some_and(|bug| bug.cuts(begin, &self.parts)) {
            rows.truncate(1);
        }
        ready(Ok(RangeBatch { rows, more: false }))
    }

    fn read_version(&self) -> impl Future<Output = Result<i64>> + Send + use<> {
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
        let is_hidden = (self.bug).is_some_and(|bug| bug.hides_range(begin, &self.parts));
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

    fn watch(&self, _: &[u8]) -> impl Future<Output = Result<()>> + Send + use<> {
        ready(Ok(()))
    }

    fn versionstamp(&self) -> impl Future<Output = Result<Versionstamp>> + Send + use<> {
        ready(Ok(Versionstamp::INCOMPLETE))
    }

    fn approximate_size(&self) -> impl Future<Output = Result<usize>> + Send + use<> {
        ready(Ok(0))
    }
}

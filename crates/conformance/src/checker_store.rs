//! A store whose rows are a value, for models in which a checker visits every reachable state.
//!
//! A transaction reads one state of the rows. It records its reads, which of them are in its conflict
//! ranges, and its writes. Instead of versions, a model keeps the transactions in flight: a commit dooms
//! those that it makes fail, and the model removes them immediately.
//!
//! It supports what the modeled recipes use: a transaction adds at most one versionstamped key, and never
//! reads where that key may be. Anything else panics. Counters and versionstamped values have no rows.
//!
//! A model breaks rules of a recipe between the recipe and the rows, with [`Bugs`]. So it runs the recipe
//! itself.

use std::borrow::Cow;
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

    /// Returns whether a batch of a range has only its first row, and says that there are more, as a store may do at
    /// any time.
    fn has_short_batches(&self, _begin: &[u8]) -> bool {
        false
    }

    /// Changes the rows of a range, which are in the order of the read, before its limit cuts them.
    fn rearrange(&self, _query: &RangeQuery, _rows: &mut Vec<KeyValue>) {}

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
        Self {
            begin: begin.to_vec(),
            end: end.to_vec(),
        }
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

    /// Returns whether the two ranges have a key in common.
    #[must_use]
    pub fn meets(&self, other: &Self) -> bool {
        self.begin < other.end && other.begin < self.end
    }

    fn covers(&self, other: &Self) -> bool {
        self.begin <= other.begin && other.end <= self.end
    }

    /// Returns the parts of the range that are not in `other`.
    fn without(self, other: &Self) -> impl Iterator<Item = Self> + use<> {
        let before = Self {
            begin: self.begin.clone(),
            end: other.begin.clone().min(self.end.clone()),
        };
        let after = Self {
            begin: other.end.clone().max(self.begin),
            end: self.end,
        };
        let parts = [before, after].into_iter();
        parts.filter(|part| part.begin < part.end)
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

impl Write {
    /// Returns the keys that are written. Of a block, these are all that it may get.
    #[must_use]
    pub fn span(&self) -> Span {
        match self {
            Self::Set(key, _) => Span::key(key),
            Self::Clear(span) => span.clone(),
            Self::Append(prefix, _) => Span::new(prefix, &[&prefix[..], &[0xff; 11]].concat()),
        }
    }
}

/// What a transaction has recorded.
#[derive(Debug, Default)]
pub struct RecordedAccess {
    /// The ranges that it has read, without what it had written before.
    pub reads: Vec<Span>,
    /// Its read conflict ranges.
    pub conflicts: Vec<Span>,
    /// Its writes, except atomic operations.
    pub writes: Vec<Write>,
    /// Its atomic operations, for a model that gives them rows: the operation, the key and the parameter.
    pub atomics: Vec<(MutationOp, Vec<u8>, Vec<u8>)>,
    /// Its write conflict ranges, except those of its writes.
    pub written: Vec<Span>,
    /// The keys of its versionstamped values.
    pub stamps: Vec<Vec<u8>>,
    /// The keys that it watches.
    pub watches: Vec<Vec<u8>>,
}

/// A transaction that reads one state of the rows.
#[derive(Debug)]
pub struct CheckerTransaction<B> {
    rows: Arc<Rows>,
    version: i64,
    bugs: B,
    recorded: Mutex<RecordedAccess>,
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

    /// Records a read. What the transaction has written itself is neither read from the rows nor in conflict.
    fn read(&self, span: Span, isolation: Isolation) {
        let mut recorded = self.recorded.lock();
        let mut parts = vec![span.clone()];
        for write in &recorded.writes {
            let written = write.span();
            let is_append = matches!(write, Write::Append(..));
            assert!(
                !is_append || !written.meets(&span),
                "a read of {span:?}, where a block may be added"
            );
            parts = parts
                .into_iter()
                .flat_map(|part| part.without(&written))
                .collect();
        }
        if isolation == Isolation::Serializable && !self.bugs.hides_read(&span.begin) {
            recorded.conflicts.extend(parts.iter().cloned());
        }
        recorded.reads.extend(parts);
    }

    /// Returns the rows as the transaction sees them: with its own writes.
    fn rows(&self) -> Cow<'_, Rows> {
        let recorded = self.recorded.lock();
        if recorded.writes.is_empty() {
            return Cow::Borrowed(&self.rows);
        }
        let mut rows = Rows::clone(&self.rows);
        for write in &recorded.writes {
            match write {
                Write::Set(key, value) => {
                    rows.insert(key.clone().into(), value.clone().into());
                }
                Write::Clear(span) => rows.retain(|key, _| !span.has(key)),
                Write::Append(..) => {}
            }
        }
        Cow::Owned(rows)
    }

    fn write(&self, write: Write) {
        self.recorded.lock().writes.push(write);
    }

    /// Returns what the transaction has recorded, for a model with a form of its own.
    pub fn into_recorded(self) -> RecordedAccess {
        self.recorded.into_inner()
    }

    /// Returns the transaction as it is to be committed, or `None` if it has no writes.
    pub fn staged(self) -> Option<Staged> {
        let RecordedAccess {
            reads,
            mut conflicts,
            mut writes,
            atomics,
            written,
            ..
        } = self.recorded.into_inner();
        // The counters of a model have no rows.
        let is_counter = |op| matches!(op, MutationOp::Add | MutationOp::SetVersionstampedValue);
        assert!(written.is_empty() && atomics.iter().all(|(op, ..)| is_counter(*op)));
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
        let value = self.rows().get(key).cloned();
        ready(Ok(self.bugs.read(key, value)))
    }

    fn get_key(
        &self,
        selector: &KeySelector,
        isolation: Isolation,
    ) -> impl Future<Output = Result<Bytes>> + Send + use<B> {
        let first = KeySelector::first_greater_or_equal(selector.key.clone());
        assert_eq!(*selector, first, "the recipe uses no other selector");
        let rows = self.rows();
        let found = match rows.range(selector.key.clone()..).next() {
            Some((key, _)) => key.clone(),
            None => Bytes::from_static(b"\xff"),
        };
        self.read(Span::new(&selector.key, &key_after(&found)), isolation);
        ready(Ok(found))
    }

    fn get_range(
        &self,
        query: &RangeQuery,
        isolation: Isolation,
    ) -> impl Future<Output = Result<RangeBatch>> + Send + use<B> {
        // The next batch begins after the last row of the one before it.
        let begin = &if query.begin.or_equal {
            Bytes::from(key_after(&query.begin.key))
        } else {
            query.begin.key.clone()
        };
        let end = &query.end.key;
        let seen = self.rows();
        let found = seen.range(begin.clone()..end.clone());
        let mut rows: Vec<_> = found
            .map(|(key, value)| KeyValue::new(key, value))
            .collect();
        if query.reverse {
            rows.reverse();
        }
        self.bugs.rearrange(query, &mut rows);
        let mut span = Span::new(begin, end);
        let mut more = query.limit > 0 && rows.len() > query.limit;
        if query.limit > 0 && rows.len() >= query.limit {
            // The read has ended at its last row.
            rows.truncate(query.limit);
            let last = rows[query.limit - 1].key();
            if query.reverse {
                span.begin = last.to_vec();
            } else {
                span.end = key_after(last);
            }
        }
        if self.bugs.has_short_batches(begin) && rows.len() > 1 && !query.reverse {
            rows.truncate(1);
            span.end = key_after(rows[0].key());
            more = true;
        }
        self.read(span, isolation);
        if self.bugs.cuts(begin) {
            rows.truncate(1);
        }
        ready(Ok(RangeBatch { rows, more }))
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
            MutationOp::SetVersionstampedValue => {
                let mut recorded = self.recorded.lock();
                recorded.stamps.push(key.to_vec());
                recorded.atomics.push((op, key.to_vec(), param.to_vec()));
            }
            MutationOp::Add | MutationOp::CompareAndClear => {
                let atomic = (op, key.to_vec(), param.to_vec());
                self.recorded.lock().atomics.push(atomic);
            }
            MutationOp::SetVersionstampedKey => {
                let (_, offset) = key.split_last_chunk().expect("it ends with an offset");
                let offset = u32::from_le_bytes(*offset) as usize;
                self.write(Write::Append(key[..offset].to_vec(), param.to_vec()));
            }
            _ => unreachable!("the recipe uses no {op:?}"),
        }
    }

    fn add_conflict_range(&self, kind: ConflictKind, begin: &[u8], end: &[u8]) -> Result<()> {
        let span = Span::new(begin, end);
        if kind == ConflictKind::Write {
            self.recorded.lock().written.push(span);
            return Ok(());
        }
        let is_hidden = self.bugs.hides_range(begin);
        let mut recorded = self.recorded.lock();
        // FoundationDB leaves out keys that the transaction has written.
        let is_set = |write: &Write| matches!(write, Write::Set(key, _) if span == Span::key(key));
        if recorded.writes.iter().any(is_set) {
            return Ok(());
        }
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

    fn watch(&self, key: &[u8]) -> impl Future<Output = Result<()>> + Send + use<B> {
        self.recorded.lock().watches.push(key.to_vec());
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

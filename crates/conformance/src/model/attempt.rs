//! One attempt of a transaction: its reads and staged writes.

use std::collections::BTreeMap;

use bytes::Bytes;
use keyspace::limits::{END_OF_KEYSPACE, MAX_KEY_BYTES, MAX_VALUE_BYTES};
use keyspace::{
    Code, Commit, ConflictKind, Isolation, KeySelector, MutationOp, RangeQuery, Result,
    TransactionOption, Versionstamp, key_after,
};
use tokio::sync::oneshot;

use super::known::Known;
use super::range::FoundRows;
use super::read::{Reader, plain};
use super::writes::{KeyOp, Writes};
use super::{Model, Ranges, Request, Watch, atomic};

/// The bytes that FoundationDB adds for a mutation when it measures a transaction.
const MUTATION_BYTES: usize = 44;

/// The bytes that FoundationDB adds for a conflict range when it measures a transaction.
const RANGE_BYTES: usize = 32;

/// How many bytes longer a key that is read may be than one that is written.
const READ_SLACK_BYTES: usize = 8;

/// The state that a retry resets.
#[derive(Debug)]
pub(super) struct Attempt {
    model: Model,
    /// Whether commit was called.
    pub(super) is_sent: bool,
    /// Why the attempt has ended.
    pub(super) over: Option<Code>,
    /// The first invalid write. After it, all calls fail, and this error is reported first.
    pub(super) bad_write: Option<Code>,
    /// The first read that failed, which makes the commit fail.
    pub(super) failed_read: Option<Code>,
    pub(super) size_limit: usize,
    pub(super) watches: Vec<Watch>,
    pub(super) stamps: Vec<oneshot::Sender<Result<Versionstamp>>>,
    version: Option<i64>,
    snapshot_ryw: i32,
    bypass_unreadable: bool,
    skip_write_conflict: bool,
    staged: Writes,
    known: Known,
    reads: Ranges,
    writes: Ranges,
}

/// The effect of a staged write on a watched key.
enum Change {
    To(Option<Bytes>),
    Unknown,
}

impl Attempt {
    pub(super) fn new(model: Model, size_limit: usize) -> Self {
        Self {
            model,
            is_sent: false,
            over: None,
            bad_write: None,
            failed_read: None,
            size_limit,
            watches: Vec::new(),
            stamps: Vec::new(),
            version: None,
            snapshot_ryw: 1,
            bypass_unreadable: false,
            skip_write_conflict: false,
            staged: Writes::default(),
            known: Known::default(),
            reads: Ranges::new(),
            writes: Ranges::new(),
        }
    }

    pub(super) fn version(&mut self) -> i64 {
        *self
            .version
            .get_or_insert_with(|| self.model.read_version())
    }

    pub(super) fn set_version(&mut self, version: i64) -> Result<(), Code> {
        if self.version.is_some() {
            return Err(Code::READ_VERSION_ALREADY_SET);
        }
        if version <= 0 {
            return Err(Code::VERSION_INVALID);
        }
        self.version = Some(version);
        Ok(())
    }

    pub(super) fn get(&mut self, key: &[u8], isolation: Isolation) -> Result<Option<Bytes>, Code> {
        if key.len() > MAX_KEY_BYTES + READ_SLACK_BYTES {
            return Ok(None);
        }
        let key = Bytes::copy_from_slice(key);
        let value = self.ask(isolation, |reader| reader.value(&key))?;
        self.depend(isolation, &key, &key_after(&key).into());
        Ok(value)
    }

    pub(super) fn get_key(
        &mut self,
        selector: &KeySelector,
        isolation: Isolation,
    ) -> Result<Bytes, Code> {
        let selector = plain(selector);
        let found = self.ask(isolation, |reader| reader.key(&selector))?;
        if selector.offset > 0 {
            self.depend(isolation, &selector.key, &key_after(&found).into());
        } else {
            self.depend(isolation, &found, &selector.key);
        }
        Ok(found)
    }

    pub(super) fn get_range(
        &mut self,
        query: &RangeQuery,
        isolation: Isolation,
    ) -> Result<FoundRows, Code> {
        let query = RangeQuery {
            begin: plain(&query.begin),
            end: plain(&query.end),
            ..query.clone()
        };
        if query.begin.offset >= query.end.offset && query.begin.key >= query.end.key {
            return Ok(FoundRows::default());
        }
        let rows = self.ask(isolation, |reader| reader.range(&query))?;
        let (begin, end) = rows.conflict(&query);
        self.depend(isolation, &begin, &end);
        Ok(rows)
    }

    /// Reads, and obtains the read version if the answer needs the store.
    fn ask<T>(
        &mut self,
        isolation: Isolation,
        ask: impl FnOnce(&mut Reader<'_>) -> Result<T, Code>,
    ) -> Result<T, Code> {
        let version = self.version.unwrap_or_else(|| self.model.read_version());
        let stored = self.model.rows_at(version);
        let sees_own_writes = isolation == Isolation::Serializable || self.snapshot_ryw > 0;
        let known = self.known.clone();
        let no_rows = BTreeMap::new();
        let no_writes = Writes::default();
        let answer = ask(&mut Reader {
            stored: stored.as_deref().unwrap_or(&no_rows),
            writes: if sees_own_writes {
                &self.staged
            } else {
                &no_writes
            },
            conflicts: if sees_own_writes { &self.writes } else { &[] },
            known: &mut self.known,
            bypass: self.bypass_unreadable,
        });
        if self.known != known {
            self.version = Some(version);
            stored?;
        }
        answer
    }

    /// Adds the read conflict range of a read.
    fn depend(&mut self, isolation: Isolation, begin: &Bytes, end: &Bytes) {
        if isolation == Isolation::Serializable {
            let dependent = self.dependent(begin, end);
            self.reads.extend(dependent);
        }
    }

    /// Returns the parts of a range whose values depend on the store: those that the transaction has not
    /// cleared or set itself.
    fn dependent(&self, begin: &Bytes, end: &Bytes) -> Ranges {
        let mut boundaries = self.staged.boundaries();
        boundaries.extend([begin.clone(), end.clone()]);
        boundaries.retain(|key| begin <= key && key <= end);
        let boundaries: Vec<_> = boundaries.into_iter().collect();
        let segments = boundaries.windows(2);
        segments
            .filter(|segment| !self.staged.at(&segment[0]).is_independent())
            .map(|segment| (segment[0].clone(), segment[1].clone()))
            .collect()
    }

    pub(super) fn set(&mut self, key: &[u8], value: &[u8]) -> Result<(), Code> {
        let conflict = self.takes_conflict();
        check_key(key)?;
        check_value(value)?;
        let key = Bytes::copy_from_slice(key);
        let value = Bytes::copy_from_slice(value);
        self.wrote(
            conflict,
            &key,
            &key_after(&key).into(),
            &Change::To(Some(value.clone())),
        );
        self.staged.key(&key, KeyOp::Set(value));
        Ok(())
    }

    pub(super) fn atomic(&mut self, op: MutationOp, key: &[u8], param: &[u8]) -> Result<(), Code> {
        let conflict = self.takes_conflict();
        check_key(key)?;
        check_value(param)?;
        let template = match op {
            MutationOp::SetVersionstampedKey => Some(key),
            MutationOp::SetVersionstampedValue => Some(param),
            _ => None,
        };
        if template.is_some_and(|template| atomic::stamp_offset(template).is_none()) {
            return Err(Code::CLIENT_INVALID_OPERATION);
        }
        let key = Bytes::copy_from_slice(key);
        let param = Bytes::copy_from_slice(param);
        if op == MutationOp::SetVersionstampedKey {
            let least = Versionstamp::new(self.version.unwrap_or(0), 0);
            self.staged.stamped_key(&key, &param, least);
        } else {
            self.wrote(conflict, &key, &key_after(&key).into(), &Change::Unknown);
            self.staged.key(&key, KeyOp::Atomic(op, param));
        }
        Ok(())
    }

    pub(super) fn clear_key(&mut self, key: &[u8]) -> Result<(), Code> {
        if key >= END_OF_KEYSPACE {
            self.takes_conflict();
            return Err(Code::KEY_OUTSIDE_LEGAL_RANGE);
        }
        self.clear(key, &key_after(key))
    }

    pub(super) fn clear(&mut self, begin: &[u8], end: &[u8]) -> Result<(), Code> {
        let conflict = self.takes_conflict();
        check_range(begin, end)?;
        if begin > end {
            return Err(Code::INVERTED_RANGE);
        }
        let begin = cut(begin);
        let end = cut(end);
        if begin < end {
            self.wrote(conflict, &begin, &end, &Change::To(None));
            self.staged.clear(begin, end);
        }
        Ok(())
    }

    /// Adds the write conflict range of a write and fires the transaction's own watches.
    fn wrote(&mut self, conflict: bool, begin: &Bytes, end: &Bytes, change: &Change) {
        if conflict {
            self.writes.push((begin.clone(), end.clone()));
        }
        let changed = |watch: &mut Watch| {
            let differs = match change {
                Change::To(value) => *value != watch.baseline,
                Change::Unknown => true,
            };
            differs && *begin <= watch.key && watch.key < *end
        };
        for watch in self.watches.extract_if(.., changed) {
            watch.end(Ok(()));
        }
    }

    /// Whether the current write adds its conflict range. This uses up the option that prevents it, even
    /// for an invalid write.
    fn takes_conflict(&mut self) -> bool {
        !std::mem::take(&mut self.skip_write_conflict)
    }

    pub(super) fn add_conflict(
        &mut self,
        kind: ConflictKind,
        begin: &[u8],
        end: &[u8],
    ) -> Result<(), Code> {
        check_range(begin, end)?;
        let begin = cut(begin);
        let end = cut(end);
        if begin < end {
            match kind {
                ConflictKind::Read => self.depend(Isolation::Serializable, &begin, &end),
                ConflictKind::Write => self.writes.push((begin, end)),
            }
        }
        Ok(())
    }

    /// Sets an option that lasts until the end of the attempt.
    pub(super) fn set_option(&mut self, option: TransactionOption) {
        match option {
            TransactionOption::SnapshotRywEnable => self.snapshot_ryw += 1,
            TransactionOption::SnapshotRywDisable => self.snapshot_ryw -= 1,
            TransactionOption::NextWriteNoWriteConflictRange => self.skip_write_conflict = true,
            TransactionOption::BypassUnreadable => self.bypass_unreadable = true,
            _ => {}
        }
    }

    /// Returns the size of the commit.
    pub(super) fn bytes(&self) -> usize {
        let mutations = self
            .staged
            .clone()
            .into_mutations()
            .into_iter()
            .map(|mutation| mutation.bytes() + MUTATION_BYTES);
        let ranges = self
            .reads
            .iter()
            .chain(&self.writes)
            .map(|(begin, end)| begin.len() + end.len() + RANGE_BYTES);
        mutations.sum::<usize>() + ranges.sum::<usize>()
    }

    pub(super) fn commit(&mut self) -> Result<Commit, Code> {
        if let Some(code) = self.failed_read {
            return Err(code);
        }
        if self.staged.is_empty() && self.writes.is_empty() {
            return Ok(Commit::READ_ONLY);
        }
        if self.bytes() > self.size_limit {
            return Err(Code::TRANSACTION_TOO_LARGE);
        }
        let read_version = self.version();
        let stamp = self.model.commit(&Request {
            read_version,
            reads: self.reads.clone(),
            writes: self.writes.clone(),
            mutations: self.staged.clone().into_mutations(),
        })?;
        Ok(Commit {
            version: stamp.commit_version(),
            versionstamp: Some(stamp),
        })
    }
}

pub(super) fn check_key(key: &[u8]) -> Result<(), Code> {
    if key >= END_OF_KEYSPACE {
        return Err(Code::KEY_OUTSIDE_LEGAL_RANGE);
    }
    if key.len() > MAX_KEY_BYTES {
        return Err(Code::KEY_TOO_LARGE);
    }
    Ok(())
}

fn check_value(value: &[u8]) -> Result<(), Code> {
    if value.len() > MAX_VALUE_BYTES {
        return Err(Code::VALUE_TOO_LARGE);
    }
    Ok(())
}

pub(super) fn check_range(begin: &[u8], end: &[u8]) -> Result<(), Code> {
    if begin > END_OF_KEYSPACE || end > END_OF_KEYSPACE {
        return Err(Code::KEY_OUTSIDE_LEGAL_RANGE);
    }
    Ok(())
}

/// Cuts a bound of a range off at the length beyond which no key can be stored.
fn cut(key: &[u8]) -> Bytes {
    Bytes::copy_from_slice(&key[..key.len().min(MAX_KEY_BYTES + 1)])
}

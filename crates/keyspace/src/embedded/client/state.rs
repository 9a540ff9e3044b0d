//! The state of a transaction between its calls: its reads and writes, its options, its watches, and the
//! errors that later calls report.

use std::time::Duration;

use bytes::Bytes;
use tokio::sync::oneshot;

use super::read::without_or_equal;
use super::store_reads::{Limits, StoreReads};
use super::view::View;
use super::write_map::WriteMap;
use crate::embedded::collections::arena::Arena;
use crate::embedded::collections::direction::Direction;
use crate::embedded::collections::ranges::{KeyRange, RangeSet};
use crate::embedded::engine::watch::WatchSetter;
use crate::embedded::engine::{CommitRequest, Engine};
use crate::error::{Code, Error, Result};
use crate::limits;
use crate::mutation::Versionstamp;
use crate::selector::{KeySelector, RangeBatch, RangeQuery, StreamingMode};
use crate::transaction::{Isolation, TransactionOption, key_after};

/// How many bytes a key that is read may exceed [`limits::MAX_KEY_BYTES`].
const READ_KEY_SLACK_BYTES: usize = 8;

/// The bytes that a conflict range adds to a transaction's size besides its two keys.
const CONFLICT_OVERHEAD_BYTES: usize = 32;

/// The defaults of a database handle for its transactions.
#[derive(Debug, Clone)]
pub(crate) struct Defaults {
    pub(crate) timeout: Option<Duration>,
    pub(crate) retry_limit: Option<u32>,
    pub(crate) max_retry_delay: Duration,
    pub(crate) size_limit: usize,
    pub(crate) max_watches: usize,
}

impl Default for Defaults {
    fn default() -> Self {
        Self {
            timeout: None,
            retry_limit: None,
            max_retry_delay: limits::DEFAULT_MAX_RETRY_DELAY,
            size_limit: limits::MAX_TRANSACTION_BYTES,
            max_watches: limits::DEFAULT_MAX_WATCHES,
        }
    }
}

/// A watch that the commit will arm.
pub(crate) struct PendingWatch {
    pub(crate) key: Bytes,
    pub(crate) baseline: Option<Bytes>,
    pub(crate) setter: WatchSetter,
}

/// The state that survives `on_error`: the time of the timeout, and the number of retries.
pub(crate) struct Persistent {
    pub(crate) started: Duration,
    pub(crate) timeout: Option<Duration>,
    pub(crate) retry_limit: Option<u32>,
    pub(crate) max_retry_delay: Duration,
    pub(crate) retries: u32,
    pub(crate) backoff: Duration,
}

pub(crate) struct TransactionState {
    /// The memory of the keys and values of the transaction.
    pub(crate) arena: Arena,
    /// Whether commit was called, with any result. After that, only the read version and the size are still
    /// returned.
    pub(crate) is_sent: bool,
    /// Why the transaction has ended. The first reason is kept: a cancel, a timeout, a call after the
    /// commit.
    ended: Option<Code>,
    pub(crate) persistent: Persistent,
    pub(crate) size_limit: usize,
    pub(crate) store_reads: StoreReads,
    pub(crate) writes: WriteMap,
    pub(crate) reads: RangeSet,
    /// The first error of a write or an option, which every later read and the commit report.
    pub(crate) deferred: Option<Code>,
    /// The first error of a read that the commit reports again.
    pub(crate) failed_read: Option<Error>,
    /// Snapshot reads see the transaction's own writes while this is positive.
    pub(crate) snapshot_ryw: i32,
    pub(crate) bypass_unreadable: bool,
    pub(crate) next_write_no_conflict: bool,
    pub(crate) watches: Vec<PendingWatch>,
    pub(crate) stamp_waiters: Vec<oneshot::Sender<Result<Versionstamp>>>,
}

impl TransactionState {
    pub(crate) fn new(persistent: Persistent, size_limit: usize) -> Self {
        Self {
            arena: Arena::default(),
            is_sent: false,
            ended: None,
            persistent,
            size_limit,
            store_reads: StoreReads::default(),
            writes: WriteMap::default(),
            reads: RangeSet::default(),
            deferred: None,
            failed_read: None,
            snapshot_ryw: 1,
            bypass_unreadable: false,
            next_write_no_conflict: false,
            watches: Vec::new(),
            stamp_waiters: Vec::new(),
        }
    }

    /// Fails if an operation must not continue. Reports, in this order: a deferred error, a call after the
    /// commit, the end of the transaction.
    pub(crate) fn check(&mut self, engine: &Engine) -> Result<()> {
        let is_sent = self.is_used_after_commit(engine);
        self.check_deferred()?;
        if is_sent {
            return Err(Code::USED_DURING_COMMIT.into());
        }
        self.check_ended(engine)
    }

    /// Fails with the deferred error, if there is one.
    pub(crate) fn check_deferred(&self) -> Result<()> {
        self.deferred.map_or(Ok(()), |code| Err(code.into()))
    }

    /// Fails if the transaction has ended.
    pub(crate) fn check_ended(&mut self, engine: &Engine) -> Result<()> {
        self.note_timeout(engine);
        self.ended.map_or(Ok(()), |code| Err(code.into()))
    }

    /// Ends the transaction if its timeout has passed. Later changes of the timeout do not revive it.
    pub(crate) fn note_timeout(&mut self, engine: &Engine) {
        if self.remaining(engine).is_some_and(|left| left.is_zero()) {
            self.ended.get_or_insert(Code::TRANSACTION_TIMED_OUT);
        }
    }

    /// Returns whether commit was called before. In that case, this use ends the transaction.
    fn is_used_after_commit(&mut self, engine: &Engine) -> bool {
        self.note_timeout(engine);
        if self.is_sent {
            self.ended.get_or_insert(Code::USED_DURING_COMMIT);
        }
        self.is_sent
    }

    /// Checks a write, and keeps an error for the next read and the commit. Returns whether to stage the
    /// write.
    pub(crate) fn check_write(&mut self, engine: &Engine, check: Result<(), Code>) -> bool {
        let is_sent = self.is_used_after_commit(engine);
        match check {
            // A range is checked before the state of the transaction, everything else after it.
            Err(Code::INVERTED_RANGE) => self.defer(Code::INVERTED_RANGE),
            _ if is_sent => self.defer(Code::USED_DURING_COMMIT),
            Err(code) => self.defer(code),
            Ok(()) => return self.ended.is_none(),
        }
        false
    }

    /// Returns the time until the timeout, if there is one.
    pub(crate) fn remaining(&self, engine: &Engine) -> Option<Duration> {
        let timeout = self.persistent.timeout?;
        let age = engine
            .environment()
            .now()
            .saturating_sub(self.persistent.started);
        Some(timeout.saturating_sub(age))
    }

    pub(crate) fn defer(&mut self, code: Code) {
        self.deferred.get_or_insert(code);
    }

    /// Reads from the view at the given isolation.
    fn read<R>(
        &mut self,
        engine: &Engine,
        isolation: Isolation,
        read: impl FnOnce(&mut View<'_>) -> Result<R>,
    ) -> Result<R> {
        let sees_writes = isolation == Isolation::Serializable || self.snapshot_ryw > 0;
        let result = read(&mut View {
            engine,
            store_reads: &mut self.store_reads,
            writes: sees_writes.then_some(&self.writes),
            bypass_unreadable: self.bypass_unreadable,
        });
        if let Err(error) = &result {
            self.failed_read.get_or_insert(error.clone());
        }
        result
    }

    pub(crate) fn add_read_conflict(&mut self, isolation: Isolation, range: KeyRange) {
        if isolation == Isolation::Serializable {
            self.writes.add_read_conflict(range, &mut self.reads);
        }
    }

    pub(crate) fn get(
        &mut self,
        engine: &Engine,
        key: &[u8],
        isolation: Isolation,
    ) -> Result<Option<Bytes>> {
        self.check(engine)?;
        if key >= limits::END_OF_KEYSPACE {
            return Err(Code::KEY_OUTSIDE_LEGAL_RANGE.into());
        }
        if key.len() > limits::MAX_KEY_BYTES + READ_KEY_SLACK_BYTES {
            return Ok(None);
        }
        let key = self.arena.copy(key);
        let value = self.read(engine, isolation, |view| view.get(&key))?;
        self.add_read_conflict(isolation, KeyRange::key(key));
        Ok(value)
    }

    pub(crate) fn get_key(
        &mut self,
        engine: &Engine,
        selector: &KeySelector,
        isolation: Isolation,
    ) -> Result<Bytes> {
        self.check(engine)?;
        check_selector(selector)?;
        let found = self.read(engine, isolation, |view| view.get_key(selector))?;
        let reference = without_or_equal(selector).key;
        let range = if selector.offset <= 0 {
            KeyRange::new(found.clone(), reference)
        } else {
            KeyRange::new(reference, key_after(&found).into())
        };
        self.add_read_conflict(isolation, range);
        Ok(found)
    }

    pub(crate) fn get_range(
        &mut self,
        engine: &Engine,
        query: &RangeQuery,
        isolation: Isolation,
    ) -> Result<RangeBatch> {
        self.check(engine)?;
        check_selector(&query.begin)?;
        check_selector(&query.end)?;
        if query.mode == StreamingMode::Exact && query.limit == 0 {
            return Err(Code::EXACT_MODE_WITHOUT_LIMITS.into());
        }
        if query.mode == StreamingMode::Iterator && query.iteration == 0 {
            return Err(Code::CLIENT_INVALID_OPERATION.into());
        }
        let begin = without_or_equal(&query.begin);
        let end = without_or_equal(&query.end);
        if begin.offset >= end.offset && begin.key >= end.key {
            return Ok(RangeBatch::default());
        }
        let limits = Limits {
            rows: if query.limit == 0 {
                usize::MAX
            } else {
                query.limit
            },
            bytes: query
                .mode
                .batch_bytes(query.iteration)
                .unwrap_or(usize::MAX),
        };
        let direction = if query.reverse {
            Direction::Backward
        } else {
            Direction::Forward
        };
        let result = self.read(engine, isolation, |view| {
            view.range(&begin, &end, limits, direction)
        })?;
        let (from, to) = result.conflict_range(&begin, &end, direction);
        self.add_read_conflict(isolation, KeyRange::new(from, to));
        Ok(RangeBatch {
            rows: result.rows,
            more: result.more,
        })
    }

    /// Fires the pending watches on keys that a write makes different from their baseline. `value` is
    /// `None` if the new value is not known before the commit.
    pub(crate) fn fire_watches(&mut self, written: &KeyRange, value: Option<Option<&Bytes>>) {
        let differs = |watch: &mut PendingWatch| {
            written.contains(&watch.key) && value != Some(watch.baseline.as_ref())
        };
        for watch in self.watches.extract_if(.., differs) {
            watch.setter.fire();
        }
    }

    /// Ends the transaction, and with it all futures that wait for its commit.
    pub(crate) fn cancel(&mut self) {
        self.ended.get_or_insert(Code::TRANSACTION_CANCELLED);
        self.watches.clear();
        self.stamp_waiters.clear();
    }

    /// Takes the request that the commit sends.
    pub(crate) fn commit_request(&mut self) -> CommitRequest {
        let (mutations, write_conflicts) = std::mem::take(&mut self.writes).into_commit();
        CommitRequest {
            read_version: self.store_reads.read_version,
            read_conflicts: std::mem::take(&mut self.reads),
            write_conflicts,
            mutations,
        }
    }

    pub(crate) fn size_bytes(&self) -> usize {
        let conflicts = [&self.reads, self.writes.conflicts()];
        let conflict_bytes =
            conflicts.map(|ranges| ranges.bounds_bytes() + ranges.len() * CONFLICT_OVERHEAD_BYTES);
        self.writes.operation_bytes() + conflict_bytes.iter().sum::<usize>()
    }

    pub(crate) fn settle_stamps(&mut self, stamp: &Result<Versionstamp, Code>) {
        for waiter in self.stamp_waiters.drain(..) {
            // The caller may have dropped the future of the stamp.
            let _ = waiter.send(stamp.map_err(Error::from));
        }
    }

    /// Arms the watches after a successful commit.
    pub(crate) fn arm_watches(&mut self, engine: &Engine) {
        for PendingWatch {
            key,
            baseline,
            setter,
        } in self.watches.drain(..)
        {
            engine.watches().arm(key, baseline, setter);
        }
    }

    pub(crate) fn fail_commit(&mut self, error: &Error) {
        for watch in self.watches.drain(..) {
            watch.setter.fail(error.clone());
        }
        self.settle_stamps(&Err(Code::TRANSACTION_INVALID_VERSION));
    }

    pub(crate) fn set_option(&mut self, option: TransactionOption) -> Result<()> {
        match option {
            TransactionOption::Timeout(timeout) => {
                self.persistent.timeout = Some(timeout).filter(|timeout| !timeout.is_zero());
            }
            TransactionOption::RetryLimit(limit) => self.persistent.retry_limit = limit,
            TransactionOption::MaxRetryDelay(delay) => self.persistent.max_retry_delay = delay,
            TransactionOption::SizeLimit(bytes) => {
                if is_size_limit(bytes) {
                    self.size_limit = bytes;
                } else {
                    self.defer(Code::INVALID_OPTION_VALUE);
                }
            }
            TransactionOption::SnapshotRywEnable => self.snapshot_ryw += 1,
            TransactionOption::SnapshotRywDisable => self.snapshot_ryw -= 1,
            TransactionOption::NextWriteNoWriteConflictRange => self.next_write_no_conflict = true,
            TransactionOption::BypassUnreadable => self.bypass_unreadable = true,
            // Commits here are always in order.
            TransactionOption::CausalWriteRisky => {}
        }
        Ok(())
    }
}

/// Returns whether the `size_limit` option takes this value.
pub(crate) fn is_size_limit(bytes: usize) -> bool {
    (limits::MIN_SIZE_LIMIT..=limits::MAX_TRANSACTION_BYTES).contains(&bytes)
}

fn check_selector(selector: &KeySelector) -> Result<()> {
    if &selector.key[..] > limits::END_OF_KEYSPACE {
        return Err(Code::KEY_OUTSIDE_LEGAL_RANGE.into());
    }
    Ok(())
}

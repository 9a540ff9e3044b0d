//! The state of a transaction between its calls: its reads and writes, its options, its watches, and the
//! errors that later calls report.

use std::time::Duration;

use bytes::Bytes;
use tokio::sync::oneshot;

use super::read_calls::{Get, PendingWatch, Read, ReadCall};
use super::read_your_writes::View;
use super::seat::{RowSource, Seat, Unfinished};
use super::shared_writes::SharedWrites;
use super::snapshot_cache::SnapshotCache;
use super::suspended_reads::UnderWay;
use super::write_map::WriteMap;
use crate::contract::env::Environment;
use crate::contract::error::{Code, Error, Result};
use crate::contract::limits;
use crate::contract::mutation::Versionstamp;
use crate::contract::transaction::{Isolation, TransactionOption};
use crate::stores::embedded::collections::arena::Arena;
use crate::stores::embedded::collections::ranges::{KeyRange, RangeSet};
use crate::stores::embedded::engine::CommitRequest;
use crate::stores::embedded::engine::watch::WatchSetter;

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

/// The state that survives `on_error`: the time of the timeout, and the number of retries.
#[derive(Clone)]
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
    pub(crate) snapshot_cache: SnapshotCache,
    pub(crate) writes: SharedWrites,
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
    last_watch: u64,
    pub(crate) stamp_waiters: Vec<oneshot::Sender<Result<Versionstamp>>>,
    /// `None` in the process that owns the store.
    pub(crate) under_way: Option<Box<UnderWay>>,
}

impl TransactionState {
    #[inline]
    pub(crate) fn new(persistent: Persistent, size_limit: usize) -> Self {
        Self {
            arena: Arena::default(),
            is_sent: false,
            ended: None,
            persistent,
            size_limit,
            snapshot_cache: SnapshotCache::default(),
            writes: SharedWrites::default(),
            reads: RangeSet::default(),
            deferred: None,
            failed_read: None,
            snapshot_ryw: 1,
            bypass_unreadable: false,
            next_write_no_conflict: false,
            watches: Vec::new(),
            last_watch: 0,
            stamp_waiters: Vec::new(),
            under_way: None,
        }
    }

    /// Fails if an operation must not continue. Reports, in this order: a deferred error, a call after the
    /// commit, the end of the transaction.
    pub(crate) fn check(&mut self, env: &Environment) -> Result<()> {
        let is_sent = self.is_used_after_commit(env);
        self.check_deferred()?;
        if is_sent {
            return Err(Code::USED_DURING_COMMIT.into());
        }
        self.check_ended(env)
    }

    /// Fails with the deferred error, if there is one.
    pub(crate) fn check_deferred(&self) -> Result<()> {
        self.deferred.map_or(Ok(()), |code| Err(code.into()))
    }

    /// Fails if the transaction has ended.
    pub(crate) fn check_ended(&mut self, env: &Environment) -> Result<()> {
        self.note_timeout(env);
        self.ended.map_or(Ok(()), |code| Err(code.into()))
    }

    /// Ends the transaction if its timeout has passed. Later changes of the timeout do not revive it.
    pub(crate) fn note_timeout(&mut self, env: &Environment) {
        if self.remaining(env).is_some_and(|left| left.is_zero()) {
            self.ended.get_or_insert(Code::TRANSACTION_TIMED_OUT);
        }
    }

    /// Returns whether commit was called before. In that case, this use ends the transaction.
    fn is_used_after_commit(&mut self, env: &Environment) -> bool {
        self.note_timeout(env);
        if self.is_sent {
            self.ended.get_or_insert(Code::USED_DURING_COMMIT);
        }
        self.is_sent
    }

    /// Checks a write, and keeps an error for the next read and the commit. Returns whether to stage the
    /// write.
    pub(crate) fn check_write(&mut self, env: &Environment, check: Result<(), Code>) -> bool {
        let is_sent = self.is_used_after_commit(env);
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
    pub(crate) fn remaining(&self, env: &Environment) -> Option<Duration> {
        let timeout = self.persistent.timeout?;
        let age = env.now().saturating_sub(self.persistent.started);
        Some(timeout.saturating_sub(age))
    }

    pub(crate) fn defer(&mut self, code: Code) {
        self.deferred.get_or_insert(code);
    }

    /// Returns a read and what applies to it now.
    pub(crate) fn call<R>(&self, read: R, isolation: Isolation) -> ReadCall<R> {
        ReadCall {
            read,
            isolation,
            sees_writes: isolation == Isolation::Serializable || self.snapshot_ryw > 0,
            bypass_unreadable: self.bypass_unreadable,
        }
    }

    /// Attempts a read, over the present writes of the transaction or over earlier ones.
    pub(crate) fn attempt<R: Read>(
        &mut self,
        source: RowSource<'_>,
        call: &ReadCall<R>,
        writes: Option<&WriteMap>,
    ) -> Result<R::Answer, Unfinished> {
        let writes = writes.unwrap_or(&self.writes);
        let answer = call.read.run(&mut View {
            source,
            snapshot_cache: &mut self.snapshot_cache,
            writes: if call.sees_writes { Some(writes) } else { None },
            bypass_unreadable: call.bypass_unreadable,
        });
        match &answer {
            Ok(answer) => {
                call.read.settle(answer, &mut self.watches);
                if call.isolation == Isolation::Serializable
                    && let Some(range) = call.read.conflict(answer)
                {
                    writes.add_read_conflict(range, &mut self.reads);
                }
            }
            Err(Unfinished::Failed(error)) => {
                self.failed_read.get_or_insert(error.clone());
            }
            Err(Unfinished::Asks(_)) => {}
        }
        answer
    }

    pub(crate) fn add_read_conflict(&mut self, range: KeyRange) {
        self.writes.add_read_conflict(range, &mut self.reads);
    }

    /// Checks a read of a key.
    pub(crate) fn get(&mut self, env: &Environment, key: &[u8]) -> Result<Get> {
        self.check(env)?;
        if key >= limits::END_OF_KEYSPACE {
            return Err(Code::KEY_OUTSIDE_LEGAL_RANGE.into());
        }
        let key = self.arena.copy(key);
        Ok(Get { key })
    }

    /// Adds a watch, and returns its number.
    pub(crate) fn add_watch(&mut self, key: Bytes, setter: WatchSetter) -> u64 {
        self.last_watch += 1;
        self.watches.push(PendingWatch {
            number: self.last_watch,
            key,
            baseline: None,
            setter,
        });
        self.last_watch
    }

    /// Fires the pending watches on keys that a write makes different from their baseline. `value` is
    /// `None` if the new value is not known before the commit.
    pub(crate) fn fire_watches(&mut self, written: &KeyRange, value: Option<Option<&Bytes>>) {
        let differs = |watch: &mut PendingWatch| {
            let baseline = watch.baseline.as_ref().map(Option::as_ref);
            written.contains(&watch.key) && (value.is_none() || value != baseline)
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
        let (mutations, write_conflicts) = self.writes.take().into_commit();
        CommitRequest {
            read_version: self.snapshot_cache.read_version,
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
    pub(crate) fn arm_watches(&mut self, seat: &Seat) {
        for PendingWatch {
            key,
            baseline,
            setter,
            ..
        } in self.watches.drain(..)
        {
            seat.arm(key, baseline.flatten(), setter);
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
                self.persistent.timeout = timeout_of(timeout);
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

/// Returns the timeout that the `timeout` option sets. Zero means none.
pub(crate) fn timeout_of(timeout: Duration) -> Option<Duration> {
    if timeout.is_zero() {
        None
    } else {
        Some(timeout)
    }
}

/// Returns whether the `size_limit` option takes this value.
pub(crate) fn is_size_limit(bytes: usize) -> bool {
    (limits::MIN_SIZE_LIMIT..=limits::MAX_TRANSACTION_BYTES).contains(&bytes)
}

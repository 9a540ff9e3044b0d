//! One transaction of the embedded store: its reads, what it has staged, its life cycle.

use std::fmt;
use std::future::{Future, ready};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::oneshot;

use super::engine::{CommitRequest, Engine};
use super::ranges::{RangeSet, key_range};
use super::read::{Limits, without_or_equal};
use super::view::{Direction, Stored, View};
use super::watch::WatchSetter;
use super::write_map::{WriteMap, stamp_offset};
use crate::error::{Code, Error, Result};
use crate::limits;
use crate::mutation::{MutationOp, Versionstamp};
use crate::selector::{KeySelector, RangeBatch, RangeQuery, StreamingMode};
use crate::transaction::{
    Commit, ConflictKind, Isolation, OwnedTransaction, Transaction, TransactionOption, key_after,
};

/// How much longer than [`limits::KEY_BYTES`] a key may be that is read.
const READ_KEY_SLACK_BYTES: usize = 8;

/// What a conflict range counts in a transaction's size beside its two keys, in bytes.
const CONFLICT_OVERHEAD_BYTES: usize = 32;

/// What a database handle gives its transactions to begin with.
#[derive(Debug, Clone)]
pub(super) struct Defaults {
    pub(super) timeout: Option<Duration>,
    pub(super) retry_limit: Option<u32>,
    pub(super) max_retry_delay: Duration,
    pub(super) size_limit: usize,
    pub(super) max_watches: usize,
}

impl Default for Defaults {
    fn default() -> Self {
        Self {
            timeout: None,
            retry_limit: None,
            max_retry_delay: limits::DEFAULT_MAX_RETRY_DELAY,
            size_limit: limits::TRANSACTION_BYTES,
            max_watches: limits::DEFAULT_MAX_WATCHES,
        }
    }
}

/// A transaction of the embedded store.
///
/// Every read answers at once: none of its read futures is ever pending. A commit is, until it is
/// durable. Disk reads happen on the caller's thread.
pub struct EmbeddedTransaction {
    engine: Arc<Engine>,
    defaults: Defaults,
    state: Mutex<State>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Active,
    /// A commit was called, whatever came of it.
    CommitStarted,
    Cancelled,
}

/// A watch that the commit will arm.
struct PendingWatch {
    key: Bytes,
    baseline: Option<Bytes>,
    setter: WatchSetter,
}

/// What survives `on_error`: the clock that runs against the timeout, and the retries so far.
struct Persistent {
    started: Duration,
    timeout: Option<Duration>,
    retry_limit: Option<u32>,
    max_retry_delay: Duration,
    retries: u32,
    backoff: Duration,
}

struct State {
    phase: Phase,
    persistent: Persistent,
    size_limit: usize,
    stored: Stored,
    writes: WriteMap,
    reads: RangeSet,
    /// The first error of a write or an option: every later read and the commit report it.
    deferred: Option<Code>,
    /// The first error of a read that the commit reports again.
    failed_read: Option<Error>,
    /// Snapshot reads see the transaction's own writes while this is positive.
    snapshot_ryw: i32,
    bypass_unreadable: bool,
    next_write_no_conflict: bool,
    watches: Vec<PendingWatch>,
    stamp_waiters: Vec<oneshot::Sender<Result<Versionstamp>>>,
}

impl State {
    fn new(persistent: Persistent, size_limit: usize) -> Self {
        Self {
            phase: Phase::Active,
            persistent,
            size_limit,
            stored: Stored::default(),
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

    /// Reports what keeps any operation from going on.
    fn check(&self, engine: &Engine) -> Result<()> {
        match self.phase {
            Phase::Cancelled => return Err(Code::TRANSACTION_CANCELLED.into()),
            Phase::CommitStarted => return Err(Code::USED_DURING_COMMIT.into()),
            Phase::Active => {}
        }
        if self
            .remaining(engine)
            .is_some_and(|remaining| remaining.is_zero())
        {
            return Err(Code::TRANSACTION_TIMED_OUT.into());
        }
        self.deferred.map_or(Ok(()), |code| Err(code.into()))
    }

    /// Returns the time until the timeout, if there is one.
    fn remaining(&self, engine: &Engine) -> Option<Duration> {
        let timeout = self.persistent.timeout?;
        let age = engine
            .environment()
            .now()
            .saturating_sub(self.persistent.started);
        Some(timeout.saturating_sub(age))
    }

    fn defer(&mut self, code: Code) {
        self.deferred.get_or_insert(code);
    }

    /// Runs a read of the view at the given isolation.
    fn read<R>(
        &mut self,
        engine: &Engine,
        isolation: Isolation,
        read: impl FnOnce(&mut View<'_>) -> Result<R>,
    ) -> Result<R> {
        let sees_writes = isolation == Isolation::Serializable || self.snapshot_ryw > 0;
        let result = read(&mut View {
            engine,
            stored: &mut self.stored,
            writes: sees_writes.then_some(&self.writes),
            bypass_unreadable: self.bypass_unreadable,
        });
        if let Err(error) = &result {
            self.failed_read.get_or_insert(error.clone());
        }
        result
    }

    fn add_read_conflict(&mut self, isolation: Isolation, begin: Bytes, end: Bytes) {
        if isolation == Isolation::Serializable {
            self.writes.add_read_conflict(begin, end, &mut self.reads);
        }
    }

    fn get(&mut self, engine: &Engine, key: &[u8], isolation: Isolation) -> Result<Option<Bytes>> {
        self.check(engine)?;
        if key >= limits::END_OF_KEYSPACE {
            return Err(Code::KEY_OUTSIDE_LEGAL_RANGE.into());
        }
        if key.len() > limits::KEY_BYTES + READ_KEY_SLACK_BYTES {
            return Ok(None);
        }
        let value = self.read(engine, isolation, |view| view.get(key))?;
        let (begin, end) = key_range(key);
        self.add_read_conflict(isolation, begin, end);
        Ok(value)
    }

    fn get_key(
        &mut self,
        engine: &Engine,
        selector: &KeySelector,
        isolation: Isolation,
    ) -> Result<Bytes> {
        self.check(engine)?;
        check_selector(selector)?;
        let found = self.read(engine, isolation, |view| view.get_key(selector))?;
        let reference = without_or_equal(selector).key;
        if selector.offset <= 0 {
            self.add_read_conflict(isolation, found.clone(), reference);
        } else {
            self.add_read_conflict(isolation, reference, key_after(&found).into());
        }
        Ok(found)
    }

    fn get_range(
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
        let (begin, end) = (without_or_equal(&query.begin), without_or_equal(&query.end));
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
        self.add_read_conflict(isolation, from, to);
        Ok(RangeBatch {
            rows: result.rows,
            more: result.more,
        })
    }

    /// Fires the pending watches on keys that a write makes different from their baseline;
    /// `value` is `None` if the new value is not known before the commit.
    fn fire_watches(&mut self, begin: &[u8], end: &[u8], value: Option<Option<&Bytes>>) {
        let differs = |watch: &mut PendingWatch| {
            let written = *begin <= watch.key[..] && watch.key[..] < *end;
            written && value != Some(watch.baseline.as_ref())
        };
        for watch in self.watches.extract_if(.., differs) {
            watch.setter.fire();
        }
    }

    /// Takes what the commit sends.
    fn commit_request(&mut self) -> CommitRequest {
        let owned =
            |ranges: &RangeSet| ranges.iter().map(|(b, e)| (b.clone(), e.clone())).collect();
        let read_conflicts = owned(&self.reads);
        let (mutations, conflicts) = std::mem::take(&mut self.writes).into_commit();
        CommitRequest {
            read_version: self.stored.read_version,
            read_conflicts,
            write_conflicts: owned(&conflicts),
            mutations,
        }
    }

    fn size_bytes(&self) -> usize {
        let conflicts = self.reads.iter().chain(self.writes.conflicts().iter());
        let conflict_bytes: usize = conflicts
            .map(|(b, e)| b.len() + e.len() + CONFLICT_OVERHEAD_BYTES)
            .sum();
        self.writes.operation_bytes() + conflict_bytes
    }

    fn settle_stamps(&mut self, stamp: &Result<Versionstamp, Code>) {
        for waiter in self.stamp_waiters.drain(..) {
            // A caller that dropped the future does not want the stamp.
            let _ = waiter.send(stamp.map_err(Error::from));
        }
    }

    /// Hands the watches over after a successful commit.
    fn arm_watches(&mut self, engine: &Engine) {
        for PendingWatch {
            key,
            baseline,
            setter,
        } in self.watches.drain(..)
        {
            engine.watches().arm(key, baseline, setter);
        }
    }

    fn fail_commit(&mut self, error: &Error) {
        for watch in self.watches.drain(..) {
            watch.setter.fail(error.clone());
        }
        self.settle_stamps(&Err(Code::TRANSACTION_INVALID_VERSION));
    }

    fn set_option(&mut self, option: TransactionOption) -> Result<()> {
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
            TransactionOption::ReadYourWritesDisable => {
                return Err(Code::UNSUPPORTED_OPERATION.into());
            }
        }
        Ok(())
    }
}

/// Returns whether the `size_limit` option takes this value.
pub(super) fn is_size_limit(bytes: usize) -> bool {
    (limits::MIN_SIZE_LIMIT..=limits::TRANSACTION_BYTES).contains(&bytes)
}

fn check_selector(selector: &KeySelector) -> Result<()> {
    if &selector.key[..] > limits::END_OF_KEYSPACE {
        return Err(Code::KEY_OUTSIDE_LEGAL_RANGE.into());
    }
    Ok(())
}

impl EmbeddedTransaction {
    pub(super) fn new(engine: Arc<Engine>, defaults: Defaults) -> Self {
        let state = Self::fresh_state(&engine, &defaults);
        Self {
            engine,
            defaults,
            state: Mutex::new(state),
        }
    }

    fn fresh_state(engine: &Engine, defaults: &Defaults) -> State {
        let persistent = Persistent {
            started: engine.environment().now(),
            timeout: defaults.timeout,
            retry_limit: defaults.retry_limit,
            max_retry_delay: defaults.max_retry_delay,
            retries: 0,
            backoff: limits::INITIAL_BACKOFF,
        };
        State::new(persistent, defaults.size_limit)
    }

    /// Locks the state. No code that holds the lock can leave the state half changed.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stages a write that `check` finds valid; an error is kept for the next read and the commit.
    fn write(&self, check: Result<(), Code>, stage: impl FnOnce(&mut State, bool)) {
        let mut state = self.lock();
        let conflict = !std::mem::take(&mut state.next_write_no_conflict);
        match (state.phase, check) {
            (Phase::Active, Ok(())) => stage(&mut state, conflict),
            (Phase::Active, Err(code)) => state.defer(code),
            (Phase::CommitStarted | Phase::Cancelled, _) => {}
        }
    }

    /// Returns the wait before the next attempt, or gives `error` back if there must be none.
    fn backoff(&self, error: Error) -> Result<Duration> {
        let mut state = self.lock();
        if state.phase == Phase::Cancelled {
            return Err(Code::TRANSACTION_CANCELLED.into());
        }
        if state
            .remaining(&self.engine)
            .is_some_and(|remaining| remaining.is_zero())
        {
            return Err(Code::TRANSACTION_TIMED_OUT.into());
        }
        let persistent = &mut state.persistent;
        let allowed = persistent
            .retry_limit
            .is_none_or(|limit| persistent.retries < limit);
        let retried = error.code().filter(|code| allowed && is_retried(*code));
        let Some(code) = retried else {
            state.phase = Phase::Cancelled;
            return Err(error);
        };
        persistent.retries += 1;
        if matches!(code, Code::TRANSACTION_TOO_OLD | Code::FUTURE_VERSION) {
            return Ok(limits::INITIAL_BACKOFF.min(persistent.max_retry_delay));
        }
        let longest = match code {
            Code::COMMIT_PROXY_MEMORY_LIMIT_EXCEEDED | Code::GRV_PROXY_MEMORY_LIMIT_EXCEEDED => {
                limits::RESOURCE_CONSTRAINED_MAX_BACKOFF
            }
            _ => persistent.max_retry_delay,
        };
        let wait = persistent
            .backoff
            .mul_f64(self.engine.environment().random_unit());
        persistent.backoff = (persistent.backoff * 2).min(longest);
        Ok(wait)
    }

    /// Makes the transaction ready for another attempt.
    fn restart(&mut self) {
        let fresh = Self::fresh_state(&self.engine, &self.defaults);
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let old = std::mem::replace(state, fresh);
        state.persistent = old.persistent;
    }

    /// Sends the commit and waits for its outcome, or for the timeout.
    async fn send(&self, request: CommitRequest) -> Result<Commit> {
        let remaining = self.lock().remaining(&self.engine);
        let commit = self.engine.commit(request);
        match remaining {
            None => commit.await,
            Some(remaining) => {
                let timeout = self.engine.environment().sleep(remaining);
                match futures::future::select(std::pin::pin!(commit), timeout).await {
                    futures::future::Either::Left((outcome, _)) => outcome,
                    futures::future::Either::Right(_) => Err(Code::TRANSACTION_TIMED_OUT.into()),
                }
            }
        }
    }

    /// Returns what is to be sent, or `None` if the transaction is read-only.
    fn prepare_commit(&self) -> Result<Option<CommitRequest>> {
        let mut state = self.lock();
        state.check(&self.engine)?;
        state.phase = Phase::CommitStarted;
        if let Some(error) = &state.failed_read {
            return Err(error.clone());
        }
        if state.writes.is_read_only() {
            return Ok(None);
        }
        if state.size_bytes() > state.size_limit {
            return Err(Code::TRANSACTION_TOO_LARGE.into());
        }
        Ok(Some(state.commit_request()))
    }
}

/// Returns whether `on_error` retries after a code.
///
/// `cluster_version_changed` is not among them: FoundationDB's client handles it below this level.
fn is_retried(code: Code) -> bool {
    code.is_retryable() && code != Code::CLUSTER_VERSION_CHANGED
}

fn check_key(key: &[u8]) -> Result<(), Code> {
    if key >= limits::END_OF_KEYSPACE {
        Err(Code::KEY_OUTSIDE_LEGAL_RANGE)
    } else if key.len() > limits::KEY_BYTES {
        Err(Code::KEY_TOO_LARGE)
    } else {
        Ok(())
    }
}

fn check_value(value: &[u8]) -> Result<(), Code> {
    if value.len() > limits::VALUE_BYTES {
        Err(Code::VALUE_TOO_LARGE)
    } else {
        Ok(())
    }
}

fn check_range(begin: &[u8], end: &[u8]) -> Result<(), Code> {
    if begin > limits::END_OF_KEYSPACE || end > limits::END_OF_KEYSPACE {
        Err(Code::KEY_OUTSIDE_LEGAL_RANGE)
    } else if begin > end {
        Err(Code::INVERTED_RANGE)
    } else {
        Ok(())
    }
}

fn check_atomic(op: MutationOp, key: &[u8], param: &[u8]) -> Result<(), Code> {
    check_key(key)?;
    check_value(param)?;
    let template = match op {
        MutationOp::SetVersionstampedKey => key,
        MutationOp::SetVersionstampedValue => param,
        _ => return Ok(()),
    };
    stamp_offset(template)
        .map(|_| ())
        .ok_or(Code::CLIENT_INVALID_OPERATION)
}

impl fmt::Debug for EmbeddedTransaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        f.debug_struct("EmbeddedTransaction")
            .field("phase", &state.phase)
            .field("read_version", &state.stored.read_version)
            .finish_non_exhaustive()
    }
}

impl Transaction for EmbeddedTransaction {
    fn get(
        &self,
        key: &[u8],
        isolation: Isolation,
    ) -> impl Future<Output = Result<Option<Bytes>>> + Send + use<> {
        ready(self.lock().get(&self.engine, key, isolation))
    }

    fn get_key(
        &self,
        selector: &KeySelector,
        isolation: Isolation,
    ) -> impl Future<Output = Result<Bytes>> + Send + use<> {
        ready(self.lock().get_key(&self.engine, selector, isolation))
    }

    fn get_range(
        &self,
        query: &RangeQuery,
        isolation: Isolation,
    ) -> impl Future<Output = Result<RangeBatch>> + Send + use<> {
        ready(self.lock().get_range(&self.engine, query, isolation))
    }

    fn read_version(&self) -> impl Future<Output = Result<i64>> + Send + use<> {
        let mut state = self.lock();
        let version = match state.check(&self.engine) {
            Ok(()) => state.stored.read_version(&self.engine),
            Err(error) => Err(error),
        };
        ready(version)
    }

    fn set_read_version(&self, version: i64) {
        let mut state = self.lock();
        if state.stored.read_version.is_some() {
            state.defer(Code::READ_VERSION_ALREADY_SET);
        } else if version <= 0 {
            state.defer(Code::VERSION_INVALID);
        } else {
            state.stored.read_version = Some(version);
        }
    }

    fn set(&self, key: &[u8], value: &[u8]) {
        self.write(
            check_key(key).and_then(|()| check_value(value)),
            |state, conflict| {
                let (key, end) = key_range(key);
                let value = Bytes::copy_from_slice(value);
                state.fire_watches(&key, &end, Some(Some(&value)));
                state.writes.set(key, value, conflict);
            },
        );
    }

    fn clear(&self, key: &[u8]) {
        if key.len() > limits::KEY_BYTES && key < limits::END_OF_KEYSPACE {
            // No such key can exist. The option that waits for the next write is used up.
            return self.write(Ok(()), |_, _| ());
        }
        self.write(check_key(key), |state, conflict| {
            let (begin, end) = key_range(key);
            state.fire_watches(&begin, &end, Some(None));
            state.writes.clear_range(begin, end, conflict);
        });
    }

    fn clear_range(&self, begin: &[u8], end: &[u8]) {
        self.write(check_range(begin, end), |state, conflict| {
            // Keys over the limit cannot exist, so a bound cut just behind it covers the same keys.
            let cut =
                |key: &[u8]| Bytes::copy_from_slice(&key[..key.len().min(limits::KEY_BYTES + 1)]);
            let (begin, end) = (cut(begin), cut(end));
            state.fire_watches(&begin, &end, Some(None));
            state.writes.clear_range(begin, end, conflict);
        });
    }

    fn atomic(&self, op: MutationOp, key: &[u8], param: &[u8]) {
        self.write(check_atomic(op, key, param), |state, conflict| {
            let param = Bytes::copy_from_slice(param);
            if op == MutationOp::SetVersionstampedKey {
                let version = state.stored.read_version.unwrap_or(0);
                return state.writes.set_versionstamped_key(key, param, version);
            }
            let (key, end) = key_range(key);
            state.fire_watches(&key, &end, None);
            state.writes.atomic(op, key, param, conflict);
        });
    }

    fn add_conflict_range(&self, kind: ConflictKind, begin: &[u8], end: &[u8]) -> Result<()> {
        let mut state = self.lock();
        check_range(begin, end)?;
        let (begin, end) = (Bytes::copy_from_slice(begin), Bytes::copy_from_slice(end));
        match kind {
            ConflictKind::Read => state.add_read_conflict(Isolation::Serializable, begin, end),
            ConflictKind::Write => state.writes.add_conflict(begin, end),
        }
        Ok(())
    }

    fn set_option(&self, option: TransactionOption) -> Result<()> {
        self.lock().set_option(option)
    }

    fn watch(&self, key: &[u8]) -> impl Future<Output = Result<()>> + Send + use<> {
        let mut state = self.lock();
        let watch = check_key(key).map_err(Error::from).and_then(|()| {
            let (setter, future) = self.engine.watches().create(self.defaults.max_watches)?;
            let baseline = state.get(&self.engine, key, Isolation::Serializable)?;
            state.watches.push(PendingWatch {
                key: Bytes::copy_from_slice(key),
                baseline,
                setter,
            });
            Ok(future)
        });
        async { watch?.await }
    }

    fn versionstamp(&self) -> impl Future<Output = Result<Versionstamp>> + Send + use<> {
        let (sender, receiver) = oneshot::channel();
        let mut state = self.lock();
        let requested = state.check(&self.engine);
        if requested.is_ok() {
            state.stamp_waiters.push(sender);
        }
        async {
            requested?;
            // The sender is gone without a word if the transaction was reset or dropped.
            receiver
                .await
                .unwrap_or_else(|_| Err(Code::TRANSACTION_CANCELLED.into()))
        }
    }

    fn approximate_size(&self) -> impl Future<Output = Result<usize>> + Send + use<> {
        let state = self.lock();
        ready(state.check(&self.engine).map(|()| state.size_bytes()))
    }
}

impl OwnedTransaction for EmbeddedTransaction {
    async fn commit(&mut self) -> Result<Commit> {
        let outcome = match self.prepare_commit() {
            Ok(None) => Ok(Commit::READ_ONLY),
            Ok(Some(request)) => self.send(request).await,
            Err(error) => Err(error),
        };
        let mut state = self.lock();
        match &outcome {
            Ok(commit) => {
                state.settle_stamps(&commit.versionstamp.ok_or(Code::NO_COMMIT_VERSION));
                state.arm_watches(&self.engine);
            }
            Err(error) => state.fail_commit(error),
        }
        outcome
    }

    async fn on_error(&mut self, error: Error) -> Result<()> {
        let wait = self.backoff(error)?;
        self.engine.environment().sleep(wait).await;
        self.restart();
        Ok(())
    }

    fn reset(&mut self) {
        let fresh = Self::fresh_state(&self.engine, &self.defaults);
        *self.state.get_mut().unwrap_or_else(PoisonError::into_inner) = fresh;
    }

    fn cancel(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        state.phase = Phase::Cancelled;
        state.watches.clear();
        state.stamp_waiters.clear();
    }
}

//! A transaction of the embedded store: its calls and its life cycle.

use std::fmt;
use std::future::{Future, ready};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::oneshot;

use super::state::{Defaults, PendingWatch, Persistent, TransactionState};
use super::write_map::stamp_offset;
use crate::embedded::collections::ranges::KeyRange;
use crate::embedded::engine::{CommitRequest, Engine};
use crate::error::{Code, Error, Result};
use crate::limits;
use crate::mutation::{MutationOp, Versionstamp};
use crate::selector::{KeySelector, RangeBatch, RangeQuery};
use crate::transaction::{
    Commit, ConflictKind, Isolation, OwnedTransaction, Transaction, TransactionOption,
};

/// How long a read at a future version waits before it fails. In FoundationDB, the version may be reached
/// in that time.
const FUTURE_VERSION_DELAY: Duration = Duration::from_secs(1);

/// A transaction of the embedded store.
///
/// The futures of reads are ready at once, except that `future_version` takes a second. The future of a
/// commit is ready once the commit is acknowledged. Reads from the disk block the caller's thread. So does
/// a commit, if no other transaction commits and a flush takes at most half a millisecond.
pub struct EmbeddedTransaction {
    engine: Arc<Engine>,
    defaults: Defaults,
    state: Mutex<TransactionState>,
}

impl EmbeddedTransaction {
    pub(crate) fn new(engine: Arc<Engine>, defaults: Defaults) -> Self {
        let state = Self::fresh_state(&engine, &defaults);
        Self {
            engine,
            defaults,
            state: Mutex::new(state),
        }
    }

    fn fresh_state(engine: &Engine, defaults: &Defaults) -> TransactionState {
        let persistent = Persistent {
            started: engine.environment().now(),
            timeout: defaults.timeout,
            retry_limit: defaults.retry_limit,
            max_retry_delay: defaults.max_retry_delay,
            retries: 0,
            backoff: limits::INITIAL_BACKOFF,
        };
        TransactionState::new(persistent, defaults.size_limit)
    }

    /// Locks the state. A panic of code that holds the lock cannot leave it half changed.
    fn lock(&self) -> MutexGuard<'_, TransactionState> {
        self.state.lock()
    }

    /// Stages a write if it is valid, and otherwise keeps the error for the next read and the commit.
    fn write(&self, check: Result<(), Code>, stage: impl FnOnce(&mut TransactionState, bool)) {
        let mut state = self.lock();
        let conflict = !std::mem::take(&mut state.next_write_no_conflict);
        if state.check_write(&self.engine, check) {
            stage(&mut state, conflict);
        }
    }

    /// Returns the result of a read: at once, except for `future_version`, so that a retry loop does not
    /// spin.
    fn answer<T: Send>(
        &self,
        answer: Result<T>,
    ) -> impl Future<Output = Result<T>> + Send + use<T> {
        let code = answer.as_ref().err().and_then(Error::code);
        let wait = (code == Some(Code::FUTURE_VERSION))
            .then(|| self.engine.environment().sleep(FUTURE_VERSION_DELAY));
        async {
            if let Some(wait) = wait {
                wait.await;
            }
            answer
        }
    }

    /// Returns the wait before the next attempt, or fails with `error` if there must be no retry.
    fn backoff(&self, error: Error) -> Result<Duration> {
        let mut state = self.lock();
        state.check_ended(&self.engine)?;
        let persistent = &mut state.persistent;
        let allowed = persistent
            .retry_limit
            .is_none_or(|limit| persistent.retries < limit);
        let retried = error.code().filter(|code| allowed && is_retried(*code));
        let Some(code) = retried else {
            state.cancel();
            return Err(error);
        };
        persistent.retries += 1;
        if matches!(code, Code::TRANSACTION_TOO_OLD | Code::FUTURE_VERSION) {
            return Ok(limits::INITIAL_BACKOFF.min(persistent.max_retry_delay));
        }
        let max_delay = match code {
            Code::COMMIT_PROXY_MEMORY_LIMIT_EXCEEDED | Code::GRV_PROXY_MEMORY_LIMIT_EXCEEDED => {
                limits::RESOURCE_CONSTRAINED_MAX_BACKOFF
            }
            _ => persistent.max_retry_delay,
        };
        let wait = persistent
            .backoff
            .mul_f64(self.engine.environment().random_unit());
        persistent.backoff = persistent.backoff.saturating_mul(2).min(max_delay);
        Ok(wait)
    }

    /// Resets the transaction for another attempt.
    fn restart(&mut self) {
        let fresh = Self::fresh_state(&self.engine, &self.defaults);
        let state = self.state.get_mut();
        let old = std::mem::replace(state, fresh);
        state.persistent = old.persistent;
    }

    /// Waits until the commit may be sent, but no longer than for the timeout.
    async fn wait_for_turn(&self) {
        let wait = {
            let state = self.lock();
            if state.writes.is_read_only() {
                return;
            }
            let wait = self.engine.wait_for_turn(state.writes.operation_bytes());
            state
                .remaining(&self.engine)
                .map_or(wait, |it| wait.min(it))
        };
        if !wait.is_zero() {
            self.engine.environment().sleep(wait).await;
        }
    }

    /// Sends the commit and waits for its result or for the timeout.
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

    /// Returns the request to send, or `None` if the transaction is read-only.
    fn prepare_commit(&self) -> Result<Option<CommitRequest>> {
        let mut state = self.lock();
        state.check(&self.engine)?;
        state.is_sent = true;
        if let Some(error) = &state.failed_read {
            return Err(error.clone());
        }
        if state.writes.is_read_only() {
            return Ok(None);
        }
        if state.size_bytes() > state.size_limit {
            return Err(Code::TRANSACTION_TOO_LARGE.into());
        }
        // The transaction keeps the read version of its commit.
        state.store_reads.obtain_version(&self.engine)?;
        Ok(Some(state.commit_request()))
    }
}

/// Returns whether `on_error` retries after a code.
///
/// `cluster_version_changed` is not among these codes: FoundationDB's client handles it below this level.
fn is_retried(code: Code) -> bool {
    code.is_retryable() && code != Code::CLUSTER_VERSION_CHANGED
}

fn check_key(key: &[u8]) -> Result<(), Code> {
    if key >= limits::END_OF_KEYSPACE {
        Err(Code::KEY_OUTSIDE_LEGAL_RANGE)
    } else if key.len() > limits::MAX_KEY_BYTES {
        Err(Code::KEY_TOO_LARGE)
    } else {
        Ok(())
    }
}

fn check_value(value: &[u8]) -> Result<(), Code> {
    if value.len() > limits::MAX_VALUE_BYTES {
        Err(Code::VALUE_TOO_LARGE)
    } else {
        Ok(())
    }
}

fn check_range(begin: &[u8], end: &[u8]) -> Result<(), Code> {
    if begin > end {
        Err(Code::INVERTED_RANGE)
    } else if begin > limits::END_OF_KEYSPACE || end > limits::END_OF_KEYSPACE {
        Err(Code::KEY_OUTSIDE_LEGAL_RANGE)
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
            .field("is_sent", &state.is_sent)
            .field("read_version", &state.store_reads.read_version)
            .finish_non_exhaustive()
    }
}

impl Transaction for EmbeddedTransaction {
    fn get(
        &self,
        key: &[u8],
        isolation: Isolation,
    ) -> impl Future<Output = Result<Option<Bytes>>> + Send + use<> {
        let value = self.lock().get(&self.engine, key, isolation);
        self.answer(value)
    }

    fn get_key(
        &self,
        selector: &KeySelector,
        isolation: Isolation,
    ) -> impl Future<Output = Result<Bytes>> + Send + use<> {
        let key = self.lock().get_key(&self.engine, selector, isolation);
        self.answer(key)
    }

    fn get_range(
        &self,
        query: &RangeQuery,
        isolation: Isolation,
    ) -> impl Future<Output = Result<RangeBatch>> + Send + use<> {
        let batch = self.lock().get_range(&self.engine, query, isolation);
        self.answer(batch)
    }

    fn read_version(&self) -> impl Future<Output = Result<i64>> + Send + use<> {
        let mut state = self.lock();
        let version = state
            .check_deferred()
            .and_then(|()| state.check_ended(&self.engine));
        ready(version.and_then(|()| state.store_reads.read_version(&self.engine)))
    }

    fn set_read_version(&self, version: i64) {
        let mut state = self.lock();
        if state.store_reads.read_version.is_some() {
            state.defer(Code::READ_VERSION_ALREADY_SET);
        } else if version <= 0 {
            state.defer(Code::VERSION_INVALID);
        } else {
            state.store_reads.read_version = Some(version);
        }
    }

    fn set(&self, key: &[u8], value: &[u8]) {
        self.write(
            check_key(key).and_then(|()| check_value(value)),
            |state, conflict| {
                let key = state.arena.copy(key);
                let value = state.arena.copy(value);
                state.fire_watches(&KeyRange::key(key.clone()), Some(Some(&value)));
                state.writes.set(key, value, conflict);
            },
        );
    }

    fn clear(&self, key: &[u8]) {
        if key.len() > limits::MAX_KEY_BYTES && key < limits::END_OF_KEYSPACE {
            // Such a key cannot exist. The option that applies to the next write is still used up.
            return self.write(Ok(()), |_, _| ());
        }
        self.write(check_key(key), |state, conflict| {
            let cleared = KeyRange::key(state.arena.copy(key));
            state.fire_watches(&cleared, Some(None));
            state.writes.clear(cleared, conflict);
        });
    }

    fn clear_range(&self, begin: &[u8], end: &[u8]) {
        self.write(check_range(begin, end), |state, conflict| {
            // Keys over the limit cannot exist, so a bound that is cut off one byte after the limit covers
            // the same keys.
            let mut cut = |key: &[u8]| {
                state
                    .arena
                    .copy(&key[..key.len().min(limits::MAX_KEY_BYTES + 1)])
            };
            let cleared = KeyRange::new(cut(begin), cut(end));
            state.fire_watches(&cleared, Some(None));
            state.writes.clear(cleared, conflict);
        });
    }

    fn atomic(&self, op: MutationOp, key: &[u8], param: &[u8]) {
        self.write(check_atomic(op, key, param), |state, conflict| {
            let param = state.arena.copy(param);
            if op == MutationOp::SetVersionstampedKey {
                let version = state.store_reads.read_version.unwrap_or(0);
                return state.writes.set_versionstamped_key(key, param, version);
            }
            let key = state.arena.copy(key);
            state.fire_watches(&KeyRange::key(key.clone()), None);
            state.writes.atomic(op, key, param, conflict);
        });
    }

    fn add_conflict_range(&self, kind: ConflictKind, begin: &[u8], end: &[u8]) -> Result<()> {
        let mut state = self.lock();
        let check = check_range(begin, end);
        if check == Err(Code::INVERTED_RANGE) {
            return Err(Code::INVERTED_RANGE.into());
        }
        if !state.check_write(&self.engine, check) {
            return Ok(());
        }
        let range = KeyRange::new(state.arena.copy(begin), state.arena.copy(end));
        match kind {
            ConflictKind::Read => state.add_read_conflict(Isolation::Serializable, range),
            ConflictKind::Write => state.writes.add_conflict(range),
        }
        Ok(())
    }

    fn set_option(&self, option: TransactionOption) -> Result<()> {
        let mut state = self.lock();
        state.note_timeout(&self.engine);
        state.set_option(option)
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
            // The sender was dropped without sending if the transaction was reset or dropped.
            receiver
                .await
                .unwrap_or_else(|_| Err(Code::TRANSACTION_CANCELLED.into()))
        }
    }

    fn approximate_size(&self) -> impl Future<Output = Result<usize>> + Send + use<> {
        let state = self.lock();
        ready(state.check_deferred().map(|()| state.size_bytes()))
    }
}

impl OwnedTransaction for EmbeddedTransaction {
    async fn commit(&mut self) -> Result<Commit> {
        self.wait_for_turn().await;
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
        *self.state.get_mut() = fresh;
    }

    fn cancel(&mut self) {
        let state = self.state.get_mut();
        state.note_timeout(&self.engine);
        state.cancel();
    }
}

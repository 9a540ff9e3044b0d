//! A transaction of the embedded store: its calls and its life cycle.

use std::fmt;
use std::future::{Future, ready};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::{BoxFuture, Either};
use futures::{FutureExt, TryFutureExt};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::oneshot;

use super::read_calls::{GetBaseline, GetKey, GetRange, GetReadVersion, Read, ReadCall};
use super::seat::{Seat, Unfinished};
use super::suspended_reads::{self, UnderWay};
use super::transaction_state::{Defaults, Persistent, TransactionState};
use crate::contract::env::Environment;
use crate::contract::error::{Code, Error, Result};
use crate::contract::limits;
use crate::contract::mutation::{MutationOp, Versionstamp};
use crate::contract::selector::{KeySelector, RangeBatch, RangeQuery};
use crate::contract::transaction::{
    Commit, ConflictKind, Isolation, OwnedTransaction, Transaction, TransactionOption,
};
use crate::stores::embedded::checks::{check_atomic, check_key, check_range, check_value};
use crate::stores::embedded::collections::ranges::KeyRange;
use crate::stores::embedded::engine::CommitRequest;
use crate::stores::embedded::wire::Ask;

/// How long a read at a future version waits before it fails. In FoundationDB, the version may be reached
/// in that time.
const FUTURE_VERSION_DELAY: Duration = Duration::from_secs(1);

/// A transaction of the embedded store.
///
/// In the process that owns the store, the futures of reads are ready at once, except that `future_version` takes a
/// second. The future of a commit is ready once the commit is acknowledged. Reads from the disk block the caller's
/// thread. So does a commit, if no other transaction commits and a flush takes at most half a millisecond.
pub struct EmbeddedTransaction {
    seat: Seat,
    defaults: Defaults,
    state: Held,
}

/// The state of a transaction. The reads of a client outlive the borrow of its transaction, so they share it.
#[expect(
    clippy::large_enum_variant,
    reason = "in a box, each transaction of the owner would cost an allocation"
)]
enum Held {
    Alone(Mutex<TransactionState>),
    Shared(Arc<Mutex<TransactionState>>),
}

impl Held {
    fn new(seat: &Seat, defaults: &Defaults) -> Self {
        let env = seat.environment();
        // Each arm makes the state where it stays: it is large.
        match seat {
            Seat::Owner(_) => Self::Alone(Mutex::new(fresh_state(env, defaults))),
            Seat::Client(link) => {
                let mut state = fresh_state(env, defaults);
                state.under_way = Some(Box::new(UnderWay::new(link.begin())));
                Self::Shared(Arc::new(Mutex::new(state)))
            }
        }
    }
}

/// The answer of a read.
enum Answer<T> {
    Ready(Result<T>),
    /// The reply of the owner is under way.
    Awaited(BoxFuture<'static, Result<T>>),
}

impl<T: Send + 'static> Answer<T> {
    fn map<U>(self, convert: impl FnOnce(T) -> U + Send + 'static) -> Answer<U> {
        match self {
            Self::Ready(answer) => Answer::Ready(answer.map(convert)),
            Self::Awaited(answer) => Answer::Awaited(answer.map_ok(convert).boxed()),
        }
    }
}

impl EmbeddedTransaction {
    pub(crate) fn new(seat: Seat, defaults: Defaults) -> Self {
        Self {
            state: Held::new(&seat, &defaults),
            seat,
            defaults,
        }
    }

    fn env(&self) -> &Environment {
        self.seat.environment()
    }

    /// Locks the state. A panic of code that holds the lock cannot leave it half changed.
    fn lock(&self) -> MutexGuard<'_, TransactionState> {
        match &self.state {
            Held::Alone(state) => state.lock(),
            Held::Shared(state) => state.lock(),
        }
    }

    /// Stages a write if it is valid, and otherwise keeps the error for the next read and the commit.
    fn write(&self, check: Result<(), Code>, stage: impl FnOnce(&mut TransactionState, bool)) {
        let mut state = self.lock();
        let conflict = !std::mem::take(&mut state.next_write_no_conflict);
        if state.check_write(self.env(), check) {
            stage(&mut state, conflict);
        }
    }

    /// Begins a read that was checked.
    fn begin<R: Read>(
        &self,
        state: &mut TransactionState,
        read: Result<R>,
        isolation: Isolation,
    ) -> Answer<R::Answer> {
        let call = match read {
            Ok(read) => state.call(read, isolation),
            Err(error) => return Answer::Ready(Err(error)),
        };
        match state.attempt(self.seat.source(), &call, None) {
            Ok(answer) => Answer::Ready(Ok(answer)),
            Err(Unfinished::Failed(error)) => Answer::Ready(Err(error)),
            Err(Unfinished::Asks(ask)) => self.suspend(state, call, *ask),
        }
    }

    fn suspend<R: Read>(
        &self,
        state: &mut TransactionState,
        call: ReadCall<R>,
        ask: Ask,
    ) -> Answer<R::Answer> {
        let Held::Shared(shared) = &self.state else {
            unreachable!("a read in the process that owns the store ends at its call");
        };
        let env = self.env().clone();
        let remaining = state.remaining(&env);
        let answer = suspended_reads::suspend(shared, state, call, ask);
        let shared = shared.clone();
        Answer::Awaited(Box::pin(async move {
            // The read goes on without its transaction.
            let _shared = shared;
            // The sender was dropped without sending if the thread of the link has ended.
            let answer = answer.map(|it| it.unwrap_or(Err(Code::TRANSACTION_CANCELLED.into())));
            let answer = until(&env, remaining, answer).await;
            if answer.as_ref().is_err_and(is_future) {
                env.sleep(FUTURE_VERSION_DELAY).await;
            }
            answer
        }))
    }

    /// Returns the answer of a read: as soon as it is there, except for `future_version`, so that a retry loop does
    /// not spin.
    fn answer<T: Send>(
        &self,
        answer: Answer<T>,
    ) -> impl Future<Output = Result<T>> + Send + use<T> {
        let wait = match &answer {
            Answer::Ready(Err(error)) if is_future(error) => {
                Some(self.env().sleep(FUTURE_VERSION_DELAY))
            }
            Answer::Ready(_) | Answer::Awaited(_) => None,
        };
        async {
            if let Some(wait) = wait {
                wait.await;
            }
            match answer {
                Answer::Ready(answer) => answer,
                Answer::Awaited(answer) => answer.await,
            }
        }
    }

    /// Returns the wait before the next attempt, or fails with `error` if there must be no retry.
    fn backoff(&self, error: Error) -> Result<Duration> {
        let mut state = self.lock();
        state.check_ended(self.env())?;
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
        let wait = persistent.backoff.mul_f64(self.env().random_unit());
        persistent.backoff = persistent.backoff.saturating_mul(2).min(max_delay);
        Ok(wait)
    }

    /// Ends the reads that are under way.
    fn end_reads(&self) {
        let ended = {
            let mut state = self.lock();
            let cancelled = Code::TRANSACTION_CANCELLED.into();
            let under_way = state.under_way.as_mut();
            under_way.map(|under_way| under_way.fail_all(&cancelled))
        };
        if let Some(ended) = ended {
            ended.deliver();
        }
    }

    /// Begins anew.
    fn renew(&mut self) {
        self.end_reads();
        self.seat = self.seat.present();
        self.state = Held::new(&self.seat, &self.defaults);
    }

    /// Waits until the commit may be sent, but no longer than for the timeout.
    async fn wait_for_turn(&self) {
        let wait = {
            let state = self.lock();
            if state.writes.is_read_only() {
                return;
            }
            let wait = self.seat.wait_for_turn(state.writes.operation_bytes());
            let remaining = state.remaining(self.env());
            remaining.map_or(wait, |it| wait.min(it))
        };
        if !wait.is_zero() {
            self.env().sleep(wait).await;
        }
    }

    /// Obtains the read version if the commit would otherwise obtain one too late: see
    /// [`fix_read_version`](Transaction::fix_read_version).
    async fn wait_for_order(&self) -> Result<()> {
        let is_late = matches!(&self.seat, Seat::Client(link) if !link.orders_commits());
        if is_late && !self.lock().writes.is_read_only() {
            self.read_version().await?;
        }
        Ok(())
    }

    /// Sends the commit and waits for its result or for the timeout.
    async fn send(&self, request: CommitRequest) -> Result<Commit> {
        let remaining = self.lock().remaining(self.env());
        let commit = match &self.seat {
            Seat::Owner(owner) => Either::Left(owner.engine().commit(request)),
            Seat::Client(_) => Either::Right(self.send_to_owner(request).boxed()),
        };
        until(self.env(), remaining, commit).await
    }

    async fn send_to_owner(&self, request: CommitRequest) -> Result<Commit> {
        let commit = self
            .lock()
            .under_way
            .as_mut()
            .map(|under_way| under_way.link.commit(request));
        let committed = match commit {
            Some(commit) => commit.await?,
            None => return Err(Code::CLIENT_INVALID_OPERATION.into()),
        };
        self.lock().snapshot_cache.read_version = Some(committed.read_version);
        Ok(committed.commit)
    }

    /// Returns the request to send, or `None` if the transaction is read-only. Waits for the reads that are under way.
    async fn prepare_commit(&self) -> Result<Option<CommitRequest>> {
        let (reads_end, remaining) = {
            let mut state = self.lock();
            state.check(self.env())?;
            state.is_sent = true;
            let under_way = state.under_way.as_mut();
            let reads_end = under_way.and_then(|under_way| under_way.reads_end());
            (reads_end, state.remaining(self.env()))
        };
        if let Some(reads_end) = reads_end {
            until(self.env(), remaining, reads_end.map(|_| Ok(()))).await?;
        }
        let mut state = self.lock();
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
        state.snapshot_cache.obtain_version(self.seat.source())?;
        Ok(Some(state.commit_request()))
    }
}

#[inline]
fn fresh_state(env: &Environment, defaults: &Defaults) -> TransactionState {
    let persistent = Persistent {
        started: env.now(),
        timeout: defaults.timeout,
        retry_limit: defaults.retry_limit,
        max_retry_delay: defaults.max_retry_delay,
        retries: 0,
        backoff: limits::INITIAL_BACKOFF,
    };
    TransactionState::new(persistent, defaults.size_limit)
}

/// Waits for a result, but no longer than for the rest of the timeout.
async fn until<T>(
    env: &Environment,
    remaining: Option<Duration>,
    result: impl Future<Output = Result<T>>,
) -> Result<T> {
    match remaining {
        None => result.await,
        Some(remaining) => (env.timeout(remaining, result).await)
            .unwrap_or(Err(Code::TRANSACTION_TIMED_OUT.into())),
    }
}

fn is_future(error: &Error) -> bool {
    error.code() == Some(Code::FUTURE_VERSION)
}

/// Returns whether `on_error` retries after a code.
///
/// `cluster_version_changed` is not among these codes: FoundationDB's client handles it below this level.
fn is_retried(code: Code) -> bool {
    code.is_retryable() && code != Code::CLUSTER_VERSION_CHANGED
}

impl fmt::Debug for EmbeddedTransaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        f.debug_struct("EmbeddedTransaction")
            .field("is_sent", &state.is_sent)
            .field("read_version", &state.snapshot_cache.read_version)
            .finish_non_exhaustive()
    }
}

impl Transaction for EmbeddedTransaction {
    fn get(
        &self,
        key: &[u8],
        isolation: Isolation,
    ) -> impl Future<Output = Result<Option<Bytes>>> + Send + use<> {
        let answer = {
            let mut state = self.lock();
            let read = state.get(self.env(), key);
            self.begin(&mut state, read, isolation)
        };
        self.answer(answer)
    }

    fn get_key(
        &self,
        selector: &KeySelector,
        isolation: Isolation,
    ) -> impl Future<Output = Result<Bytes>> + Send + use<> {
        let answer = {
            let mut state = self.lock();
            let read = state.check(self.env());
            let read = read.and_then(|()| GetKey::new(selector));
            self.begin(&mut state, read, isolation)
        };
        self.answer(answer)
    }

    fn get_range(
        &self,
        query: &RangeQuery,
        isolation: Isolation,
    ) -> impl Future<Output = Result<RangeBatch>> + Send + use<> {
        let answer = {
            let mut state = self.lock();
            let read = state.check(self.env());
            let read = read.and_then(|()| GetRange::new(query));
            self.begin(&mut state, read, isolation)
        };
        self.answer(answer.map(RangeBatch::from))
    }

    fn read_version(&self) -> impl Future<Output = Result<i64>> + Send + use<> {
        let answer = {
            let mut state = self.lock();
            let read = state.check_deferred();
            let read = read.and_then(|()| state.check_ended(self.env()));
            self.begin(
                &mut state,
                read.map(|()| GetReadVersion),
                Isolation::Snapshot,
            )
        };
        self.answer(answer)
    }

    fn fix_read_version(&self) -> impl Future<Output = Result<()>> + Send + use<> {
        let is_ordered = matches!(&self.seat, Seat::Client(link) if link.orders_commits());
        if !is_ordered {
            return Either::Right(self.read_version().map_ok(drop));
        }
        let mut state = self.lock();
        let checked = state.check_deferred();
        Either::Left(ready(checked.and_then(|()| state.check_ended(self.env()))))
    }

    fn set_read_version(&self, version: i64) {
        let mut state = self.lock();
        if state.snapshot_cache.read_version.is_some() {
            state.defer(Code::READ_VERSION_ALREADY_SET);
        } else if version <= 0 {
            state.defer(Code::VERSION_INVALID);
        } else {
            state.snapshot_cache.read_version = Some(version);
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
                let version = state.snapshot_cache.read_version.unwrap_or(0);
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
        if !state.check_write(self.env(), check) {
            return Ok(());
        }
        let range = KeyRange::new(state.arena.copy(begin), state.arena.copy(end));
        match kind {
            ConflictKind::Read => state.add_read_conflict(range),
            ConflictKind::Write => state.writes.add_conflict(range),
        }
        Ok(())
    }

    fn set_option(&self, option: TransactionOption) -> Result<()> {
        let mut state = self.lock();
        state.note_timeout(self.env());
        state.set_option(option)
    }

    fn watch(&self, key: &[u8]) -> impl Future<Output = Result<()>> + Send + use<> {
        let mut state = self.lock();
        let watch = check_key(key).map_err(Error::from).and_then(|()| {
            let (setter, watch) = self.seat.create_watch(self.defaults.max_watches)?;
            let get = state.get(self.env(), key)?;
            let number = state.add_watch(get.key.clone(), setter);
            Ok((GetBaseline { get, watch: number }, watch))
        });
        let (read, watch) = match watch {
            Ok((read, watch)) => (Ok(read), Some(watch)),
            Err(error) => (Err(error), None),
        };
        let baseline = self.begin(&mut state, read, Isolation::Serializable);
        drop(state);
        let baseline = self.answer(baseline);
        async {
            baseline.await?;
            match watch {
                Some(watch) => watch.await,
                None => Ok(()),
            }
        }
    }

    fn versionstamp(&self) -> impl Future<Output = Result<Versionstamp>> + Send + use<> {
        let (sender, receiver) = oneshot::channel();
        let mut state = self.lock();
        let requested = state.check(self.env());
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
        let prepared = match self.wait_for_order().await {
            Ok(()) => self.prepare_commit().await,
            Err(error) => Err(error),
        };
        let outcome = match prepared {
            Ok(None) => Ok(Commit::READ_ONLY),
            Ok(Some(request)) => self.send(request).await,
            Err(error) => Err(error),
        };
        let mut state = self.lock();
        match &outcome {
            Ok(commit) => {
                state.settle_stamps(&commit.versionstamp.ok_or(Code::NO_COMMIT_VERSION));
                state.arm_watches(&self.seat);
            }
            Err(error) => state.fail_commit(error),
        }
        outcome
    }

    async fn on_error(&mut self, error: Error) -> Result<()> {
        let wait = self.backoff(error)?;
        self.env().sleep(wait).await;
        let persistent = self.lock().persistent.clone();
        self.renew();
        self.lock().persistent = persistent;
        Ok(())
    }

    fn reset(&mut self) {
        self.renew();
    }

    fn cancel(&mut self) {
        let mut state = self.lock();
        state.note_timeout(self.env());
        state.cancel();
        drop(state);
        self.end_reads();
    }
}

//! The model's transaction and its life cycle.

use parking_lot::{Mutex, MutexGuard};
use std::future::{Future, ready};
use std::time::Duration;

use bytes::Bytes;
use keyspace::limits::{
    DEFAULT_MAX_RETRY_DELAY, DEFAULT_MAX_WATCHES, END_OF_KEYSPACE, INITIAL_BACKOFF,
    MAX_TRANSACTION_BYTES, MAX_WATCHES, MIN_SIZE_LIMIT, RESOURCE_CONSTRAINED_MAX_BACKOFF,
};
use keyspace::{
    Code, Commit, ConflictKind, DatabaseOption, Error, Isolation, KeySelector, MutationOp,
    OwnedTransaction, RangeBatch, RangeQuery, Result, Transaction, TransactionOption, Versionstamp,
};
use tokio::sync::oneshot;

use super::attempt::{Attempt, check_key, check_range};
use super::{Model, Watch};

/// The defaults of transactions.
#[derive(Debug, Clone, Copy)]
pub(super) struct Defaults {
    timeout: Duration,
    retry_limit: Option<u32>,
    max_retry_delay: Duration,
    size_limit: usize,
    max_watches: usize,
}

impl Default for Defaults {
    fn default() -> Self {
        Self {
            timeout: Duration::ZERO,
            retry_limit: None,
            max_retry_delay: DEFAULT_MAX_RETRY_DELAY,
            size_limit: MAX_TRANSACTION_BYTES,
            max_watches: DEFAULT_MAX_WATCHES,
        }
    }
}

impl Defaults {
    pub(super) fn set(&mut self, option: DatabaseOption) -> Result<()> {
        match option {
            DatabaseOption::TransactionTimeout(timeout) => self.timeout = timeout,
            DatabaseOption::TransactionRetryLimit(limit) => self.retry_limit = limit,
            DatabaseOption::TransactionMaxRetryDelay(delay) => self.max_retry_delay = delay,
            DatabaseOption::TransactionSizeLimit(limit) => self.size_limit = size_limit(limit)?,
            DatabaseOption::MaxWatches(max) if max <= MAX_WATCHES => self.max_watches = max,
            DatabaseOption::MaxWatches(_) => return Err(Code::INVALID_OPTION_VALUE.into()),
            // The model does not know this option.
            _ => return Err(Code::INVALID_OPTION.into()),
        }
        Ok(())
    }
}

fn size_limit(limit: usize) -> Result<usize, Code> {
    if (MIN_SIZE_LIMIT..=MAX_TRANSACTION_BYTES).contains(&limit) {
        Ok(limit)
    } else {
        Err(Code::INVALID_OPTION_VALUE)
    }
}

/// A transaction of the model.
#[derive(Debug)]
pub struct ModelTransaction {
    model: Model,
    life: Mutex<Life>,
}

/// The state that survives an attempt.
#[derive(Debug)]
struct Life {
    defaults: Defaults,
    /// The defaults, changed by the options that survive a retry.
    current: Defaults,
    began: Duration,
    retries: u32,
    backoff: Duration,
    attempt: Attempt,
}

impl Life {
    fn new(model: &Model, defaults: Defaults) -> Self {
        Self {
            defaults,
            current: defaults,
            began: model.env.now(),
            retries: 0,
            backoff: INITIAL_BACKOFF,
            attempt: Attempt::new(model.clone(), defaults.size_limit),
        }
    }

    /// Returns the attempt, unless it has ended. Using an attempt after its commit was called ends it.
    fn alive(&mut self, now: Duration) -> Result<&mut Attempt, Code> {
        self.over(now);
        let attempt = &mut self.attempt;
        if attempt.is_sent {
            attempt.over.get_or_insert(Code::USED_DURING_COMMIT);
        }
        if let Some(code) = attempt.bad_write {
            return Err(code);
        }
        if attempt.is_sent {
            return Err(Code::USED_DURING_COMMIT);
        }
        match attempt.over {
            Some(code) => Err(code),
            None => Ok(attempt),
        }
    }

    /// Keeps the first error of a write.
    fn fail(&mut self, written: Result<(), Code>) {
        if let Err(code) = written {
            self.attempt.bad_write.get_or_insert(code);
        }
    }

    /// Returns why the attempt has ended. The first reason is kept.
    fn over(&mut self, now: Duration) -> Option<Code> {
        let timeout = self.current.timeout;
        if !timeout.is_zero() && now.saturating_sub(self.began) >= timeout {
            self.attempt.over.get_or_insert(Code::TRANSACTION_TIMED_OUT);
        }
        self.attempt.over
    }

    fn set_option(&mut self, option: TransactionOption) -> Result<(), Code> {
        match option {
            TransactionOption::Timeout(timeout) => self.current.timeout = timeout,
            TransactionOption::RetryLimit(limit) => self.current.retry_limit = limit,
            TransactionOption::MaxRetryDelay(delay) => self.current.max_retry_delay = delay,
            TransactionOption::SizeLimit(limit) => self.attempt.size_limit = size_limit(limit)?,
            option => self.attempt.set_option(option),
        }
        Ok(())
    }

    /// Returns the wait before the next attempt, or the error if there must be no retry.
    fn backoff(&mut self, model: &Model, error: Error) -> Result<Duration> {
        if let Some(code) = self.over(model.env.now()) {
            return Err(code.into());
        }
        let max_delay = self.current.max_retry_delay;
        let limit = self.current.retry_limit;
        let may_retry = limit.is_none_or(|limit| self.retries < limit);
        let Some(code) = error.code().filter(|code| may_retry && is_retried(*code)) else {
            self.attempt.over = Some(Code::TRANSACTION_CANCELLED);
            return Err(error);
        };
        self.retries += 1;
        let max_delay = match code {
            Code::TRANSACTION_TOO_OLD | Code::FUTURE_VERSION => {
                return Ok(INITIAL_BACKOFF.min(max_delay));
            }
            Code::COMMIT_PROXY_MEMORY_LIMIT_EXCEEDED | Code::GRV_PROXY_MEMORY_LIMIT_EXCEEDED => {
                RESOURCE_CONSTRAINED_MAX_BACKOFF
            }
            _ => max_delay,
        };
        let wait = self.backoff.mul_f64(model.env.random_unit());
        self.backoff = (self.backoff * 2).min(max_delay);
        Ok(wait)
    }
}

/// Whether `on_error` retries. It leaves `cluster_version_changed` to the caller.
fn is_retried(code: Code) -> bool {
    code.is_retryable() && code != Code::CLUSTER_VERSION_CHANGED
}

/// The checks that FoundationDB makes at once, without failing the commit.
fn check_read(key: &[u8]) -> Result<(), Code> {
    if key >= END_OF_KEYSPACE {
        return Err(Code::KEY_OUTSIDE_LEGAL_RANGE);
    }
    Ok(())
}

impl ModelTransaction {
    pub(super) fn new(model: Model, defaults: Defaults) -> Self {
        let life = Mutex::new(Life::new(&model, defaults));
        Self { model, life }
    }

    fn lock(&self) -> MutexGuard<'_, Life> {
        self.life.lock()
    }

    /// Reads if the read is `legal`, and keeps an error for the commit.
    fn read<T>(
        &self,
        legal: Result<(), Code>,
        read: impl FnOnce(&mut Attempt) -> Result<T, Code>,
    ) -> Result<T> {
        let mut life = self.lock();
        let attempt = life.alive(self.model.env.now())?;
        legal?;
        let answer = read(attempt);
        if let Err(code) = answer {
            attempt.failed_read.get_or_insert(code);
        }
        answer.map_err(Error::from)
    }

    /// Stages a write. After an invalid write, or a write after the commit, all calls fail.
    fn write(&self, write: impl FnOnce(&mut Life) -> Result<(), Code>) {
        let mut life = self.lock();
        let written = if life.attempt.is_sent {
            life.alive(self.model.env.now()).map(drop)
        } else {
            write(&mut life)
        };
        life.fail(written);
    }

    /// Changes the attempt, also after its commit.
    fn change(&self, change: impl FnOnce(&mut Life) -> Result<(), Code>) {
        let mut life = self.lock();
        life.over(self.model.env.now());
        let changed = change(&mut life);
        life.fail(changed);
    }

    fn start_watch(&self, key: &[u8]) -> Result<oneshot::Receiver<Result<()>>> {
        let mut life = self.lock();
        let max_watches = life.defaults.max_watches;
        let attempt = life.alive(self.model.env.now())?;
        check_key(key)?;
        let baseline = attempt.get(key, Isolation::Serializable)?;
        if self.model.watches() + attempt.watches.len() >= max_watches {
            return Err(Code::TOO_MANY_WATCHES.into());
        }
        let (end, ended) = oneshot::channel();
        attempt.watches.push(Watch {
            key: Bytes::copy_from_slice(key),
            baseline,
            end,
        });
        Ok(ended)
    }

    fn ask_for_stamp(&self) -> Result<oneshot::Receiver<Result<Versionstamp>>> {
        let (give, given) = oneshot::channel();
        let mut life = self.lock();
        life.alive(self.model.env.now())?.stamps.push(give);
        Ok(given)
    }

    fn finish(&self) -> Result<Commit> {
        let mut life = self.lock();
        let attempt = life.alive(self.model.env.now())?;
        let outcome = attempt.commit();
        attempt.is_sent = true;
        let stamp = match &outcome {
            Ok(commit) => commit.versionstamp.ok_or(Code::NO_COMMIT_VERSION),
            Err(_) => Err(Code::TRANSACTION_INVALID_VERSION),
        };
        for give in attempt.stamps.drain(..) {
            // The future of the stamp may have been dropped.
            let _ = give.send(stamp.map_err(Error::from));
        }
        for watch in attempt.watches.drain(..) {
            match outcome {
                Ok(_) => self.model.arm(watch),
                Err(code) => watch.end(Err(code.into())),
            }
        }
        outcome.map_err(Error::from)
    }
}

impl Transaction for ModelTransaction {
    fn get(
        &self,
        key: &[u8],
        isolation: Isolation,
    ) -> impl Future<Output = Result<Option<Bytes>>> + Send + use<> {
        ready(self.read(check_read(key), |attempt| attempt.get(key, isolation)))
    }

    fn get_key(
        &self,
        selector: &KeySelector,
        isolation: Isolation,
    ) -> impl Future<Output = Result<Bytes>> + Send + use<> {
        let legal = check_range(&selector.key, b"");
        ready(self.read(legal, |attempt| attempt.get_key(selector, isolation)))
    }

    fn get_range(
        &self,
        query: &RangeQuery,
        isolation: Isolation,
    ) -> impl Future<Output = Result<RangeBatch>> + Send + use<> {
        let legal = check_range(&query.begin.key, &query.end.key);
        let found = self.read(legal, |attempt| attempt.get_range(query, isolation));
        ready(found.map(|found| RangeBatch {
            rows: found.rows,
            more: found.more,
        }))
    }

    fn read_version(&self) -> impl Future<Output = Result<i64>> + Send + use<> {
        let mut life = self.lock();
        let over = life.over(self.model.env.now());
        ready(match life.attempt.bad_write.or(over) {
            Some(code) => Err(code.into()),
            None => Ok(life.attempt.version()),
        })
    }

    fn set_read_version(&self, version: i64) {
        self.change(|life| life.attempt.set_version(version));
    }

    fn set(&self, key: &[u8], value: &[u8]) {
        self.write(|life| life.attempt.set(key, value));
    }

    fn clear(&self, key: &[u8]) {
        self.write(|life| life.attempt.clear_key(key));
    }

    fn clear_range(&self, begin: &[u8], end: &[u8]) {
        if begin > end {
            return self.change(|_| Err(Code::INVERTED_RANGE));
        }
        self.write(|life| life.attempt.clear(begin, end));
    }

    fn atomic(&self, op: MutationOp, key: &[u8], param: &[u8]) {
        self.write(|life| life.attempt.atomic(op, key, param));
    }

    fn add_conflict_range(&self, kind: ConflictKind, begin: &[u8], end: &[u8]) -> Result<()> {
        if begin > end {
            return Err(Code::INVERTED_RANGE.into());
        }
        self.write(|life| life.attempt.add_conflict(kind, begin, end));
        Ok(())
    }

    fn set_option(&self, option: TransactionOption) -> Result<()> {
        self.change(|life| life.set_option(option));
        Ok(())
    }

    fn watch(&self, key: &[u8]) -> impl Future<Output = Result<()>> + Send + use<> {
        let ended = self.start_watch(key);
        async { given(ended?).await }
    }

    fn versionstamp(&self) -> impl Future<Output = Result<Versionstamp>> + Send + use<> {
        let stamp = self.ask_for_stamp();
        async { given(stamp?).await }
    }

    fn approximate_size(&self) -> impl Future<Output = Result<usize>> + Send + use<> {
        let attempt = &self.lock().attempt;
        ready(match attempt.bad_write {
            Some(code) => Err(code.into()),
            None => Ok(attempt.bytes()),
        })
    }
}

/// Awaits a result of the commit. If the attempt ends without a commit, the sender is dropped.
async fn given<T>(given: oneshot::Receiver<Result<T>>) -> Result<T> {
    let cancelled = Err(Code::TRANSACTION_CANCELLED.into());
    given.await.unwrap_or(cancelled)
}

impl OwnedTransaction for ModelTransaction {
    fn commit(&mut self) -> impl Future<Output = Result<Commit>> + Send {
        ready(self.finish())
    }

    async fn on_error(&mut self, error: Error) -> Result<()> {
        let wait = self.lock().backoff(&self.model, error)?;
        self.model.env.sleep(wait).await;
        let mut life = self.lock();
        life.attempt = Attempt::new(self.model.clone(), life.defaults.size_limit);
        Ok(())
    }

    fn reset(&mut self) {
        let mut life = self.lock();
        *life = Life::new(&self.model, life.defaults);
    }

    fn cancel(&mut self) {
        let mut life = self.lock();
        life.over(self.model.env.now());
        let attempt = &mut life.attempt;
        attempt.over.get_or_insert(Code::TRANSACTION_CANCELLED);
        attempt.watches.clear();
        attempt.stamps.clear();
    }
}

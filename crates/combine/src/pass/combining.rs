//! The steps of a worker in a bucket: passes, and the handling of passes that fail.

use std::time::Duration;

use async_trait::async_trait;
use futures::future::try_join_all;
use hc_dequeue::WorkerOptions;
use hc_dequeue::keyspace::codec::Raw;
use hc_dequeue::keyspace::error::{chain, code_of};
use hc_dequeue::keyspace::foreign;
use hc_dequeue::keyspace::names::queue_name;
use hc_dequeue::keyspace::{Bytes, Code, Isolation, Runner, Store, Transaction, limits};
use parking_lot::Mutex;

use crate::bucket::Bucket;
use crate::bucket_worker::{Assignment, Job, Next, WorkerTransaction};
use crate::error::{Error, Result};
use crate::pass::metrics::Metrics;
use crate::pass::options::PassOptions;
use crate::pass::typed::TypedPass;
use crate::pass::{Pass, Plan, StagedPass, stage_pass};
use crate::queue::CombineQueue;

/// The number of bits by which a budget shrinks after a pass that was too large or too slow.
const SHRINK_BITS: u32 = 3;

/// If a pass itself stages more bytes than this, then the pass and not its observer made the transaction
/// too large.
const MAX_OWN_BYTES: usize = limits::MAX_TRANSACTION_BYTES / 4;

/// The recent failures of a bucket.
#[derive(Debug, Default)]
pub(crate) struct RetryState {
    /// The number of failures in a row.
    failures: u32,
    /// The number of bits by which the budget of bytes has shrunk.
    shrunk_bits: u32,
    /// The number of changes to which the budget of changes has shrunk.
    max_changes: Option<usize>,
    /// The key whose change alone does not fit a transaction, and the failure.
    withheld: Option<(Bytes, String)>,
}

/// The rows that the last attempt of a pass had staged when the observer was called.
#[derive(Debug, Default)]
pub(crate) struct Attempted {
    bytes: usize,
    changes: usize,
    /// The key of the change, if there was only one.
    only: Option<Bytes>,
    /// How often the budgets were halved because attempts had taken too long for a transaction.
    halvings: u32,
}

impl Attempted {
    pub(crate) fn of(staged: &StagedPass) -> Self {
        Self {
            bytes: staged.pass.bytes,
            changes: staged.pass.changes,
            only: match &staged.changed[..] {
                [only] => Some(only.clone()),
                _ => None,
            },
            halvings: 0,
        }
    }

    /// Returns this for an attempt with a number, from 1, after one that has failed with a code.
    fn in_attempt(self, number: u32, after: Option<Code>) -> Self {
        let is_slow = after == Some(Code::TRANSACTION_TOO_OLD);
        Self {
            halvings: if is_slow { number - 1 } else { 0 },
            ..self
        }
    }
}

/// The kind of failure of a pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The transaction was too large, with the error as text.
    TooLarge(String),
    /// The observer exceeded its time limit.
    TooSlow,
    /// Any other failure.
    Other,
}

impl Failure {
    fn of(error: &Error) -> Self {
        if code_of(error) == Some(Code::TRANSACTION_TOO_LARGE) {
            return Self::TooLarge(chain(error).to_string());
        }
        match error {
            Error::ObserverTimedOut { .. } => Self::TooSlow,
            _ => Self::Other,
        }
    }
}

impl RetryState {
    /// Returns the limits of the next pass.
    pub(crate) fn plan(&self, bytes_per_pass: usize) -> Plan {
        let budget = bytes_per_pass.checked_shr(self.shrunk_bits);
        Plan {
            budget: budget.unwrap_or(0).max(1),
            max_changes: self.max_changes.unwrap_or(usize::MAX),
            withheld: self.withheld.clone(),
        }
    }

    /// Returns the state after a successful pass. On a store that is too slow for a whole budget, the next pass begins
    /// with what this one could do.
    pub(crate) fn after_success(&self, attempted: &Attempted, bytes_per_pass: usize) -> Self {
        let shrunk_bits = match attempted.halvings {
            0 => self.shrunk_bits.saturating_sub(1),
            halvings => self.shrunk_bits.saturating_add(halvings),
        };
        Self {
            shrunk_bits: shrunk_bits.min(max_shrunk_bits(bytes_per_pass)),
            max_changes: self.max_changes.and_then(|max| max.checked_mul(2)),
            ..Self::default()
        }
    }

    /// Returns the state after a pass that failed, so that the next pass does less of what made it fail.
    pub(crate) fn after_failure(
        mut self,
        attempted: Attempted,
        failure: &Failure,
        bytes_per_pass: usize,
    ) -> Self {
        let is_too_large = matches!(failure, Failure::TooLarge(_));
        if is_too_large && (attempted.bytes > MAX_OWN_BYTES || attempted.changes == 0) {
            self.shrunk_bits =
                (self.shrunk_bits + SHRINK_BITS).min(max_shrunk_bits(bytes_per_pass));
        } else if is_too_large || *failure == Failure::TooSlow {
            // The budget of bytes stays. With a smaller one, a bucket might never reach the end of its
            // log and then would report nothing.
            self.max_changes = Some((attempted.changes >> SHRINK_BITS).max(1));
        }
        match failure {
            Failure::TooLarge(cause) => {
                let reason = format!("its change alone does not fit a transaction: {cause}");
                self.withheld = match attempted.only {
                    Some(key) if attempted.bytes <= MAX_OWN_BYTES => Some((key, reason)),
                    _ => None,
                };
            }
            _ => self.failures = self.failures.saturating_add(1),
        }
        self
    }
}

/// Returns the number of bits by which a budget shrinks at most: to one update, since the way back would otherwise take
/// as long.
fn max_shrunk_bits(bytes_per_pass: usize) -> u32 {
    usize::BITS - bytes_per_pass.leading_zeros()
}

/// Begins the part of a pass that knows the types of keys and values.
pub(crate) type BeginPass = Box<dyn Fn() -> Box<dyn TypedPass> + Send + Sync>;

/// The job of the workers of a queue.
pub(crate) struct Combining {
    /// The queue as stored bytes, which combines nothing.
    pub(crate) queue: CombineQueue<Bytes, Bytes, Bytes, Raw>,
    pub(crate) runner: Runner<Store>,
    pub(crate) options: PassOptions,
    pub(crate) begin_pass: BeginPass,
    pub(crate) metrics: Metrics,
}

#[async_trait]
impl Job for Combining {
    type Error = Error;
    type State = RetryState;

    async fn pending(&self, tr: &WorkerTransaction) -> Result<Vec<Bucket>> {
        self.queue.pending_buckets(tr).await
    }

    /// Returns the states of the passes, since every pass changes its own.
    async fn marks(&self, tr: &WorkerTransaction, buckets: &[Bucket]) -> Result<Vec<Bytes>> {
        let marks = buckets.iter().map(|bucket| async move {
            let state = self.queue.keys.pass(*bucket);
            let mark = tr.get(&state, Isolation::Snapshot).await?;
            Ok(mark.unwrap_or_default())
        });
        try_join_all(marks).await
    }

    async fn step(&self, assignment: Assignment, retry: RetryState) -> (RetryState, Next) {
        if !assignment.is_holder {
            self.metrics.takeovers.increment(1);
        }
        let plan = retry.plan(self.options.max_bytes);
        let began = self.runner.environment().now();
        let attempted = Mutex::new(Attempted::default());
        let Assignment {
            bucket, is_holder, ..
        } = assignment;
        match self.pass(bucket, is_holder, &plan, &attempted).await {
            Ok(Some(pass)) => {
                let took = self.runner.environment().now().saturating_sub(began);
                self.metrics.record_pass(&pass, took);
                let interval = self.options.interval;
                let next = if pass.has_more {
                    Next::Again
                } else if pass.updates > 0 && !interval.is_zero() {
                    // Updates that are added in the meantime wait for the next pass.
                    Next::After(interval)
                } else {
                    Next::Done
                };
                let attempted = attempted.into_inner();
                (
                    retry.after_success(&attempted, self.options.max_bytes),
                    next,
                )
            }
            Ok(None) => (retry, Next::Done),
            Err(error) => {
                let attempted = attempted.into_inner();
                let next = self.failed(bucket, attempted, retry, &error);
                foreign::discard(error);
                next
            }
        }
    }

    fn restarts(&self) {
        self.metrics.restarts.increment(1);
    }

    async fn report(&self, buckets: Vec<Bucket>) -> Result<()> {
        let queue = &self.queue;
        // A bucket whose backlog cannot be read must not keep the other buckets from being reported.
        let mut reported = Ok(());
        let mut lag = Duration::ZERO;
        for bucket in self.metrics.pending.to_set(buckets) {
            let read = |tr| async move { queue.backlog_of(&tr, bucket).await };
            match self.runner.run(read).await {
                Ok((pending, waited)) => {
                    self.metrics.pending.set(bucket, &pending);
                    lag = lag.max(waited.unwrap_or_default());
                }
                Err(error) => reported = Err(error),
            }
        }
        self.metrics.lag.set(lag.as_secs_f64());
        reported
    }
}

impl Combining {
    /// Returns the job of a worker with these options.
    pub(crate) fn new(
        queue: CombineQueue<Bytes, Bytes, Bytes, Raw>,
        runner: Runner<Store>,
        options: &WorkerOptions,
        begin_pass: BeginPass,
    ) -> Self {
        Self {
            metrics: Metrics::new(queue.subspace()),
            options: PassOptions::new(options),
            runner,
            begin_pass,
            queue,
        }
    }

    /// Makes passes over a bucket until it has no more work.
    ///
    /// # Errors
    /// Those of the first pass that fails. A transaction that is too large is repeated with less work.
    pub(crate) async fn finish(&self, bucket: Bucket, mut note: impl FnMut(&Pass)) -> Result<()> {
        let max_bytes = self.options.max_bytes;
        let mut retry = RetryState::default();
        loop {
            let attempted = Mutex::new(Attempted::default());
            let plan = retry.plan(max_bytes);
            let passed = self.pass(bucket, true, &plan, &attempted).await;
            let attempted = attempted.into_inner();
            retry = match passed {
                Ok(pass) => {
                    let pass = pass.unwrap_or_default();
                    note(&pass);
                    if !pass.has_more {
                        return Ok(());
                    }
                    retry.after_success(&attempted, max_bytes)
                }
                Err(error) => match Failure::of(&error) {
                    failure @ Failure::TooLarge(_) => {
                        retry.after_failure(attempted, &failure, max_bytes)
                    }
                    _ => return Err(error),
                },
            };
        }
    }

    /// Makes a pass. Returns `None` if this session is not the holder of the bucket, which has made one instead.
    async fn pass(
        &self,
        bucket: Bucket,
        is_holder: bool,
        plan: &Plan,
        attempted: &Mutex<Attempted>,
    ) -> Result<Option<Pass>> {
        let limit = self.options.observer_time_limit;
        let once = |tr: WorkerTransaction| async move {
            let attempt = tr.attempt();
            if attempt.after == Some(Code::NOT_COMMITTED) {
                self.metrics.conflicts.increment(1);
                if !is_holder {
                    return Ok(None);
                }
            }
            let plan = plan.for_attempt(attempt.number);
            let mut typed = (self.begin_pass)();
            let keys = &self.queue.keys;
            let staged = stage_pass(&tr, keys, bucket, &plan, &mut *typed).await?;
            *attempted.lock() = Attempted::of(&staged).in_attempt(attempt.number, attempt.after);
            typed.observe(&tr, limit).await?;
            Ok(Some(staged.pass))
        };
        self.runner.run(once).await
    }

    /// Returns when to retry, and with which limits.
    fn failed(
        &self,
        bucket: Bucket,
        attempted: Attempted,
        retry: RetryState,
        error: &Error,
    ) -> (RetryState, Next) {
        let failure = Failure::of(error);
        let retry = retry.after_failure(attempted, &failure, self.options.max_bytes);
        if let Failure::TooLarge(_) = failure {
            return (retry, Next::Again);
        }
        let wait = self
            .options
            .backoff
            .after(retry.failures, self.runner.environment());
        self.metrics.failures.increment(1);
        let error = chain(error);
        tracing::warn!(queue = %queue_name(self.queue.subspace()), %bucket, %error, ?wait, "a pass failed");
        (retry, Next::After(wait))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_begins_with_what_the_last_one_could_do_on_a_slow_store() {
        const BYTES: usize = 1 << 10;
        let after = |number, code| Attempted::default().in_attempt(number, Some(code));
        let quick = Attempted::default();
        let budget = |retry: &RetryState| retry.plan(BYTES).budget;
        let slow = after(4, Code::TRANSACTION_TOO_OLD);
        let mut retry = RetryState::default().after_success(&slow, BYTES);
        assert_eq!(budget(&retry), BYTES >> 3);
        for bits in [2, 1, 0, 0] {
            retry = retry.after_success(&quick, BYTES);
            assert_eq!(budget(&retry), BYTES >> bits);
        }
        // Other failures say nothing of its size.
        retry = retry.after_success(&after(4, Code::NOT_COMMITTED), BYTES);
        assert_eq!(budget(&retry), BYTES);
        // The way back is as short as one from a single update.
        let slow = after(1_000, Code::TRANSACTION_TOO_OLD);
        retry = retry.after_success(&slow, BYTES);
        assert_eq!(budget(&retry), 1);
        for _ in 0..11 {
            retry = retry.after_success(&quick, BYTES);
        }
        assert_eq!(budget(&retry), BYTES);
    }
}

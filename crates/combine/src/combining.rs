//! What a worker does in a bucket: passes, and what becomes of those that fail.

use std::time::Duration;

use hc_dequeue::keyspace::codec::Codec;
use hc_dequeue::keyspace::error::{chain, code_of};
use hc_dequeue::keyspace::{
    Bytes, Code, Database, Isolation, RangeQuery, Runner, Transaction, Tx, read_all,
};
use parking_lot::Mutex;

use crate::bucket_worker::{Assignment, Job, Next};
use crate::error::{Error, Result};
use crate::keys::Bucket;
use crate::metrics::Metrics;
use crate::observer::ChangeObserver;
use crate::options::CombineOptions;
use crate::pass::{Pass, Plan};
use crate::queue::CombineQueue;

/// By how many bits the budget shrinks after a pass that was too large or too slow.
const SHRINK_BITS: u32 = 3;

/// How a bucket has been going.
#[derive(Debug, Default)]
pub(crate) struct RetryState {
    /// How often it has failed in a row.
    failures: u32,
    /// By how many bits its budget has shrunk.
    shrunk_bits: u32,
    /// The update to be set aside.
    refused: Option<Refused>,
}

/// An update whose change alone does not fit a transaction.
#[derive(Debug)]
struct Refused {
    /// Its key in the store.
    row: Bytes,
    reason: String,
}

/// The key of the update that the last attempt of the smallest pass took first. Nobody waits for the
/// lock: attempts come one after the other.
#[derive(Debug, Default)]
struct First(Mutex<Option<Bytes>>);

impl First {
    fn set(&self, row: Option<Bytes>) {
        *self.0.lock() = row;
    }

    fn take(self) -> Option<Bytes> {
        self.0.into_inner()
    }
}

/// The job of the workers of a queue.
pub(crate) struct Combining<K, U, V, C, D: Database, O> {
    pub(crate) queue: CombineQueue<K, U, V, C>,
    pub(crate) runner: Runner<D>,
    pub(crate) options: CombineOptions,
    pub(crate) observer: O,
    pub(crate) metrics: Metrics,
}

impl<K, U, V, C, D, O> Job for Combining<K, U, V, C, D, O>
where
    K: Send + Sync + 'static,
    U: Send + 'static,
    V: Send + Sync + 'static,
    C: Codec<K> + Codec<U> + Codec<V>,
    D: Database,
    O: ChangeObserver<K, V>,
{
    type Error = Error;
    type State = RetryState;

    async fn pending(&self, tr: &impl Transaction) -> Result<Vec<Bucket>> {
        let keys = &self.queue.keys;
        let (begin, end) = keys.notifications();
        let rows = read_all(tr, RangeQuery::keys(begin, end), Isolation::Snapshot).await?;
        rows.iter()
            .map(|row| keys.parse_notification(row.key()))
            .collect()
    }

    /// The sweeps: every pass writes its own.
    async fn marks(&self, tr: &impl Transaction, buckets: &[Bucket]) -> Result<Vec<Bytes>> {
        let marks = buckets.iter().map(|bucket| async move {
            let sweep = self.queue.keys.sweep(*bucket);
            let mark = tr.get(&sweep, Isolation::Snapshot).await?;
            Ok(mark.unwrap_or_default())
        });
        futures::future::try_join_all(marks).await
    }

    async fn step(&self, assignment: Assignment, retry: RetryState) -> (RetryState, Next) {
        if !assignment.is_owner {
            self.metrics.takeovers.increment(1);
        }
        let budget = (self.options.bytes_per_pass).checked_shr(retry.shrunk_bits);
        let plan = Plan {
            budget: budget.unwrap_or(0).max(1),
            observer_time_limit: self.options.observer_time_limit(),
            set_aside: None,
        };
        let began = self.runner.environment().now();
        let first = First::default();
        let pass = self.pass(assignment, &plan, retry.refused.as_ref(), &first);
        match pass.await {
            Ok(Some(pass)) => {
                let took = self.runner.environment().now().saturating_sub(began);
                self.metrics.note(&pass, took);
                let retry = RetryState {
                    shrunk_bits: retry.shrunk_bits.saturating_sub(1),
                    ..RetryState::default()
                };
                let next = if pass.has_more {
                    Next::Again
                } else {
                    Next::Done
                };
                (retry, next)
            }
            Ok(None) => (retry, Next::Done),
            Err(error) => self.failed(assignment.bucket, first.take(), retry, &error),
        }
    }

    async fn report(&self, buckets: Vec<Bucket>, oldest: Duration) -> Result<()> {
        self.metrics.lag.set(oldest.as_secs_f64());
        let queue = &self.queue;
        for bucket in self.metrics.pending.to_tell(buckets) {
            let look = |tr| async move { queue.pending(&tr, bucket).await };
            self.metrics
                .pending
                .set(bucket, &self.runner.run(look).await?);
        }
        Ok(())
    }
}

impl<K, U, V, C, D, O> Combining<K, U, V, C, D, O>
where
    K: Send + Sync + 'static,
    U: Send + 'static,
    V: Send + Sync + 'static,
    C: Codec<K> + Codec<U> + Codec<V>,
    D: Database,
    O: ChangeObserver<K, V>,
{
    /// Makes a pass. `None`: another session has, which owns the bucket.
    ///
    /// Sets aside what was refused, if that comes first. What comes first may be another update by
    /// now, of a key before.
    async fn pass(
        &self,
        assignment: Assignment,
        plan: &Plan,
        refused: Option<&Refused>,
        first: &First,
    ) -> Result<Option<Pass>> {
        let once = |tr: Tx<_>| async move {
            let attempt = tr.attempt();
            if attempt.after == Some(Code::NOT_COMMITTED) {
                self.metrics.conflicts.increment(1);
                if !assignment.is_owner {
                    return Ok(None);
                }
            }
            let mut plan = plan.for_attempt(attempt.number);
            if plan.budget == 1 {
                let row = self.queue.first_update(&tr, assignment.bucket).await?;
                let refused = refused.filter(|refused| row.as_ref() == Some(&refused.row));
                plan.set_aside = refused.map(|refused| refused.reason.clone());
                first.set(row);
            }
            let pass = self
                .queue
                .pass(&tr, assignment.bucket, &plan, &self.observer);
            pass.await.map(Some)
        };
        self.runner.run(once).await
    }

    /// Says when to try again, and with how much.
    fn failed(
        &self,
        bucket: Bucket,
        first: Option<Bytes>,
        mut retry: RetryState,
        error: &Error,
    ) -> (RetryState, Next) {
        let is_too_large = code_of(error) == Some(Code::TRANSACTION_TOO_LARGE);
        if is_too_large || matches!(error, Error::ObserverTimedOut { .. }) {
            // No further than to one update, or the way back would be as long.
            let most = usize::BITS - self.options.bytes_per_pass.leading_zeros();
            retry.shrunk_bits = (retry.shrunk_bits + SHRINK_BITS).min(most);
        }
        if is_too_large {
            retry.refused = first.map(|row| Refused {
                row,
                reason: format!(
                    "its change alone does not fit a transaction: {}",
                    chain(error)
                ),
            });
            return (retry, Next::Again);
        }
        retry.failures = retry.failures.saturating_add(1);
        let wait = self
            .options
            .backoff()
            .after(retry.failures, self.runner.environment());
        self.metrics.failures.increment(1);
        let error: &dyn std::error::Error = error;
        tracing::warn!(queue = %self.queue.subspace(), %bucket, error, ?wait, "a pass failed");
        (retry, Next::After(wait))
    }
}

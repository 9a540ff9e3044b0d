//! The steps of a worker in a bucket: batches, and the handling of batches that fail.

pub(crate) mod batch;
pub(crate) mod metrics;
pub(crate) mod options;
pub(crate) mod typed;

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use combine::bucket_worker::{Assignment, Job, Next, WorkerTransaction};
use combine::keyspace::codec::Raw;
use combine::keyspace::error::{chain, code_of};
use combine::keyspace::foreign;
use combine::keyspace::{Bytes, Code, Isolation, Runner, Store, Transaction};
use combine::microqueue::blocks::Entry;
use combine::{Bucket, Pending, WorkerOptions};
use futures::future::try_join_all;
use futures::try_join;

use crate::error::{Error, Result};
use crate::exporting::batch::{Advance, Batch, Claim, ClaimOutcome, Portion};
use crate::exporting::metrics::Metrics;
use crate::exporting::options::BatchOptions;
use crate::exporting::typed::TypedExporter;
use crate::record::{DeadLetterRecord, Kept};
use crate::sequence::Sequence;
use crate::subscription::Subscription;

/// The number of failures in a row after which a batch is made smaller.
const FAILURES_BEFORE_BISECTION: u32 = 2;

/// The recent failures of a bucket.
#[derive(Debug, Default)]
pub(crate) struct RetryState {
    /// The number of batches that have failed in a row.
    failures: u32,
    /// The most entries to take, while the worker searches for the one that fails.
    limit: Option<usize>,
    /// The entry that has failed on its own, and how often.
    failing: Option<(Sequence, u32)>,
    /// The last entry that was passed to the exporter.
    given: Option<Sequence>,
    /// The claim of another session, and since when it has not changed.
    claimed: Option<(Claim, Duration)>,
}

/// What a step has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stepped {
    /// When the next step is due.
    pub(crate) next: Next,
    /// How many entries of its batch were exported, and how many became dead letters.
    pub(crate) exported: usize,
    pub(crate) dead: usize,
}

impl Stepped {
    /// Returns a step that has exported nothing.
    fn idle(next: Next) -> Self {
        Self {
            next,
            exported: 0,
            dead: 0,
        }
    }
}

/// The job of the workers of a subscription.
pub(crate) struct Exporting {
    /// The subscription to the queue as stored bytes.
    pub(crate) subscription: Subscription<Bytes, Bytes, Raw>,
    pub(crate) runner: Runner<Store>,
    pub(crate) options: BatchOptions,
    pub(crate) exporter: Box<dyn TypedExporter>,
    pub(crate) metrics: Metrics,
}

#[async_trait]
impl Job for Exporting {
    type Error = Error;
    type State = RetryState;

    async fn pending(&self, tr: &WorkerTransaction) -> Result<Vec<Bucket>> {
        let subscription = &self.subscription;
        let (is_paused, is_there) =
            try_join!(subscription.is_paused(tr), subscription.is_there(tr))?;
        if !is_there || is_paused {
            return Ok(Vec::new());
        }
        subscription.unfinished_buckets(tr).await
    }

    /// Returns the stored positions, whether or not they decode, since every batch sets its position.
    async fn marks(&self, tr: &WorkerTransaction, buckets: &[Bucket]) -> Result<Vec<Bytes>> {
        let keys = &self.subscription.queue.keys;
        let name = &self.subscription.name;
        let marks = buckets.iter().map(|bucket| async move {
            let position = keys.position(name, *bucket);
            let mark = tr.get(&position, Isolation::Snapshot).await?;
            Ok::<_, Error>(mark.unwrap_or_default())
        });
        try_join_all(marks).await
    }

    async fn step(&self, assignment: Assignment, mut retry: RetryState) -> (RetryState, Next) {
        let next = match self.next_batch(assignment, &mut retry).await {
            Ok(stepped) => stepped.next,
            Err(error) => {
                let next = self.later(assignment.bucket, &mut retry, &error);
                foreign::discard(error);
                next
            }
        };
        (retry, next)
    }

    fn restarts(&self) {
        self.metrics.restarts.increment(1);
    }

    async fn report(&self, buckets: Vec<Bucket>) -> Result<()> {
        let subscription = &self.subscription;
        // A backlog that cannot be read must not keep the others from being reported.
        let mut reported = Ok(());
        let mut lags = BTreeMap::new();
        for name in self.subscriptions().await? {
            let other = &Subscription {
                name: name.clone().into(),
                ..subscription.clone()
            };
            let read = |tr| async move { try_join!(other.lag(&tr), other.is_paused(&tr)) };
            let lag = match self.runner.run(read).await {
                Ok((lag, is_paused)) => Some((lag.unwrap_or_default(), is_paused)),
                Err(error) => {
                    reported = Err(error);
                    None
                }
            };
            lags.insert(name, lag);
        }
        for bucket in self.metrics.pending.to_set(buckets) {
            // No entry waits for a subscription that has been removed.
            let pending = if lags.contains_key(subscription.name()) {
                let read = |tr| async move { subscription.pending(&tr, bucket).await };
                self.runner.run(read).await
            } else {
                Ok(Pending::default())
            };
            match pending {
                Ok(pending) => self.metrics.pending.set(bucket, &pending),
                Err(error) => reported = Err(error),
            }
        }
        self.metrics.lags(lags);
        reported
    }
}

impl Exporting {
    /// Returns the job of a worker with these options.
    pub(crate) fn new(
        subscription: Subscription<Bytes, Bytes, Raw>,
        runner: Runner<Store>,
        options: &WorkerOptions,
        exporter: Box<dyn TypedExporter>,
    ) -> Self {
        let queue = subscription.queue.subspace();
        Self {
            metrics: Metrics::new(queue, &subscription.name),
            options: BatchOptions::new(options),
            subscription,
            runner,
            exporter,
        }
    }

    async fn subscriptions(&self) -> Result<Vec<String>> {
        let queue = self.subscription.queue();
        let read = |tr| async move { queue.subscriptions(&tr).await };
        self.runner.run(read).await
    }

    /// Claims a batch, exports it and sets the position. After an error, all of that must be retried
    /// later.
    pub(crate) async fn next_batch(
        &self,
        assignment: Assignment,
        retry: &mut RetryState,
    ) -> Result<Stepped> {
        let Assignment {
            session, bucket, ..
        } = assignment;
        let batch = match self.claim_batch(assignment, retry).await? {
            ClaimOutcome::Batch(batch) => batch,
            ClaimOutcome::Nothing | ClaimOutcome::SessionLost => {
                *retry = RetryState::default();
                return Ok(Stepped::idle(Next::Done));
            }
            ClaimOutcome::Claimed(claim) => {
                let before = retry.claimed.filter(|(before, _)| *before == claim);
                retry.claimed = before.or(Some((claim, self.runner.environment().now())));
                // The other session may be declared dead before the takeover time is over.
                let options = &self.options;
                let wait = options.takeover_after.min(options.poll_interval);
                return Ok(Stepped::idle(Next::After(wait)));
            }
        };
        let advance = &self.export(assignment, retry, &batch).await?;
        let subscription = &self.subscription;
        let set = |tr| async move { subscription.advance(&tr, session, bucket, advance).await };
        let is_set = self.runner.run(set).await.inspect_err(|error| {
            if code_of(error) == Some(Code::TRANSACTION_TOO_LARGE) {
                // The dead letters do not fit a transaction. A smaller batch has fewer of them.
                retry.limit = Some((batch.count() / 2).max(1));
            }
        });
        if !is_set? {
            self.metrics.lost.increment(1);
            tracing::warn!(%bucket, "a batch was exported under a claim that is lost");
            *retry = RetryState::default();
            return Ok(Stepped::idle(Next::Done));
        }
        // After the position has passed the entry that failed, the batches become larger again.
        let limit = retry.limit.and_then(|limit| limit.checked_mul(2));
        *retry = RetryState::default();
        let mut stepped = Stepped {
            next: Next::Done,
            exported: batch.count() - advance.dead.len(),
            dead: advance.dead.len(),
        };
        if batch.has_more {
            retry.limit = limit;
            stepped.next = Next::Again;
        }
        Ok(stepped)
    }

    async fn claim_batch(
        &self,
        assignment: Assignment,
        retry: &RetryState,
    ) -> Result<ClaimOutcome> {
        let Assignment {
            session, bucket, ..
        } = assignment;
        let subscription = &self.subscription;
        let portion = Portion {
            entries: retry.limit.unwrap_or(usize::MAX),
            bytes: self.options.max_bytes,
        };
        let now = self.runner.environment().now();
        let is_over =
            |(_, since): &(_, Duration)| now.saturating_sub(*since) >= self.options.takeover_after;
        let stalled = retry.claimed.filter(is_over).map(|(claim, _)| claim);
        let claim = |tr| async move {
            let claim = subscription.claim_batch(&tr, session, bucket, portion, stalled);
            claim.await
        };
        self.runner.run(claim).await
    }

    /// Exports a batch.
    async fn export(
        &self,
        assignment: Assignment,
        retry: &mut RetryState,
        batch: &Batch,
    ) -> Result<Advance> {
        let repeats = (batch.entries.iter()).filter(|(sequence, _)| Some(*sequence) <= retry.given);
        self.metrics.repeats.increment(repeats.count() as u64);
        retry.given = retry.given.max(Some(batch.end));
        let broken = batch.broken.iter().map(|block| {
            let kept = Kept::Block {
                exported: block.exported,
                bytes: block.bytes.clone(),
            };
            self.dead_letter(block.sequence, 0, block.error.to_string(), kept)
        });
        let mut dead: Vec<_> = broken.collect();
        let entries = self.in_order(&batch.entries);
        let (called, undecodable) = self.exporter.call(&entries);
        // They become dead letters immediately.
        for (index, error) in undecodable {
            let (sequence, entry) = entries[index];
            let kept = Kept::Entry(entry.clone());
            dead.push(self.dead_letter(*sequence, 0, error.to_string(), kept));
        }
        let env = self.runner.environment();
        let began = env.now();
        let limit = self.options.time_limit;
        let called = env.timeout(limit, called).await;
        if let Err(error) = called.unwrap_or(Err(Error::ExporterTimedOut { limit })) {
            dead.push(self.refuse(retry, &batch.entries, error)?);
        }
        let took = env.now().saturating_sub(began);
        self.metrics
            .exported(batch.count() - dead.len(), batch.bytes, took);
        self.metrics.dead.increment(dead.len() as u64);
        Ok(Advance {
            position: batch.end,
            dead,
            releases_claim: !batch.has_more || !assignment.is_holder,
        })
    }

    /// Returns the entries in the order in which the exporter receives them, sorted by key.
    fn in_order<'a>(&self, entries: &'a [(Sequence, Entry)]) -> Vec<&'a (Sequence, Entry)> {
        // The sort is stable, so the entries of a key stay in order.
        let mut by_key: Vec<_> = entries.iter().collect();
        by_key.sort_by(|(_, one), (_, other)| one.key.cmp(&other.key));
        if self.options.coalesces {
            let of_keys = by_key.chunk_by(|(_, one), (_, other)| one.key == other.key);
            by_key = of_keys
                .filter_map(|of_key| of_key.last().copied())
                .collect();
        }
        by_key
    }

    fn dead_letter(
        &self,
        sequence: Sequence,
        failures: u32,
        reason: String,
        kept: Kept,
    ) -> (Sequence, DeadLetterRecord) {
        let subscription = self.subscription.name();
        let what = match kept {
            Kept::Entry(_) => "an entry",
            Kept::Block { .. } => "a block",
        };
        tracing::warn!(subscription, %sequence, failures, reason, "{what} is a dead letter");
        let letter = DeadLetterRecord {
            failures,
            reason,
            kept,
        };
        (sequence, letter)
    }

    /// Records the failure of a batch, so that the next one is smaller. If the batch was a single entry
    /// that has failed too often, returns it as a dead letter.
    fn refuse(
        &self,
        retry: &mut RetryState,
        entries: &[(Sequence, Entry)],
        error: Error,
    ) -> Result<(Sequence, DeadLetterRecord)> {
        if let [(sequence, entry)] = entries {
            let before = retry.failing.filter(|(failing, _)| failing == sequence);
            let failures = before.map_or(0, |(_, failures)| failures) + 1;
            let limit = self.options.dead_letter_after;
            if limit.is_some_and(|limit| failures >= limit) {
                let kept = Kept::Entry(entry.clone());
                let reason = reason_of(&error);
                foreign::discard(error);
                return Ok(self.dead_letter(*sequence, failures, reason, kept));
            }
            retry.failing = Some((*sequence, failures));
        } else if retry.failures + 1 >= FAILURES_BEFORE_BISECTION {
            retry.limit = Some(entries.len() / 2);
        }
        Err(error)
    }

    /// Returns when to retry.
    pub(crate) fn later(&self, bucket: Bucket, retry: &mut RetryState, error: &Error) -> Next {
        retry.failures = retry.failures.saturating_add(1);
        let wait = self
            .options
            .backoff
            .after(retry.failures, self.runner.environment());
        self.metrics.failures.increment(1);
        let subscription = self.subscription.name();
        let error = chain(error);
        tracing::warn!(subscription, %bucket, %error, ?wait, "a batch failed");
        Next::After(wait)
    }
}

/// Returns the reason that a dead letter records for an error. For an error of the exporter, this is its
/// own message and its causes.
fn reason_of(error: &Error) -> String {
    match error {
        Error::Exporter(error) => chain(&**error).to_string(),
        error => chain(error).to_string(),
    }
}

//! The task of a worker: which buckets it combines, and when.
//!
//! It looks which buckets have a notification and which sessions live, combines those that it is the
//! first for, and sleeps on a watch of the wake stamp. Updates that come while it works change the
//! stamp, so that it looks again when it is done.

mod roster;

use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::{FutureExt, try_join};
use hc_dequeue::microqueue::keyspace::codec::Codec;
use hc_dequeue::microqueue::keyspace::env::BoxFuture;
use hc_dequeue::microqueue::keyspace::{
    self, Attempt, Bytes, Code, Database, Isolation, RangeQuery, Runner, Transaction, Tx,
    error::code_of, read_all,
};
use hc_dequeue::session::{Life, Member, SessionId, Tick};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::timeout;

use self::roster::{Roster, Standing};
use crate::error::{Error, Result};
use crate::keys::Bucket;
use crate::metrics::Metrics;
use crate::observer::ChangeObserver;
use crate::pass::{Pass, Plan};
use crate::queue::CombineQueue;
use crate::worker::WorkerOptions;

/// By how many bits the budget shrinks after a pass that was too large or too slow.
const SHRINK_BITS: u32 = 3;

/// How long to wait after a look that failed.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_millis(100);

/// A bucket that this worker is to combine.
#[derive(Debug, Default)]
struct Work {
    is_running: bool,
    /// Whether it was seen with a notification while it was running.
    again: bool,
    /// How often it has failed in a row.
    failures: u32,
    /// When to try it again, after a failure.
    not_before: Option<Duration>,
    /// By how many bits its budget has shrunk.
    shrunk_bits: u32,
    /// Why to set the next update aside.
    set_aside: Option<String>,
    /// Whether this worker stands in for another one: it yields when they meet.
    stands_in: bool,
    since: Duration,
}

/// A watch that is armed. The lock is never contended, nor taken: it makes the crew `Sync`, so that its
/// futures are `Send`.
type Watch = Mutex<BoxFuture<keyspace::Result<()>>>;

/// What a task that made a pass tells.
struct Outcome {
    bucket: Bucket,
    budget: usize,
    took: Duration,
    /// The pass, or nothing if it has yielded to another one; outside of that, a panic.
    result: Result<Result<Option<Pass>>, Box<dyn Any + Send>>,
}

pub(crate) struct Crew<K, U, V, C, D: Database, O> {
    queue: CombineQueue<K, U, V, C>,
    runner: Runner<D>,
    options: WorkerOptions,
    observer: Arc<O>,
    member: Member<D>,
    metrics: Arc<Metrics>,
    roster: Roster,
    /// The buckets to be combined, and what is known of each.
    work: BTreeMap<Bucket, Work>,
    /// Those that can begin, first come, first served.
    ready: VecDeque<Bucket>,
    passes: JoinSet<Outcome>,
    /// Fires when something was added, or a worker came or went, after the last look.
    woken: Option<Watch>,
    /// Whether it has fired.
    is_stale: bool,
    /// When to look, whatever the watch says.
    look_at: Duration,
    /// When to look who stands still.
    round_at: Duration,
}

impl<K, U, V, C, D, O> Crew<K, U, V, C, D, O>
where
    K: Send + Sync + 'static,
    U: Send + 'static,
    V: Send + Sync + 'static,
    C: Codec<K> + Codec<U> + Codec<V>,
    D: Database,
    O: ChangeObserver<K, V>,
{
    /// Opens a session.
    pub(crate) async fn open(
        queue: CombineQueue<K, U, V, C>,
        runner: Runner<D>,
        options: WorkerOptions,
        observer: Arc<O>,
    ) -> Result<Self> {
        let sessions = queue.keys.sessions.clone();
        let now = runner.environment().now();
        let mut crew = Self {
            member: Member::new(sessions, runner.clone(), queue.settings.lease),
            metrics: Arc::new(Metrics::new(&queue.subspace().to_string())),
            roster: Roster::default(),
            work: BTreeMap::new(),
            ready: VecDeque::new(),
            passes: JoinSet::new(),
            woken: None,
            is_stale: false,
            look_at: now,
            round_at: now + options.patience,
            queue,
            runner,
            options,
            observer,
        };
        crew.begin_session().await?;
        crew.bury_the_dead().await?;
        Ok(crew)
    }

    pub(crate) fn session(&self) -> SessionId {
        self.member.id()
    }

    /// Works until it is told to stop, and how long it may take to.
    pub(crate) async fn run(mut self, mut stop: oneshot::Receiver<Duration>) -> Result<()> {
        loop {
            self.keep_time().await;
            self.begin_passes();
            let timer = self.next_timer().saturating_sub(self.now());
            let timer = self.runner.environment().sleep(timer);
            tokio::select! {
                biased;
                stopped = &mut stop => {
                    // Without a sender the task is about to be aborted.
                    return self.close(stopped.unwrap_or_default()).await;
                }
                Some(ended) = self.passes.join_next() => {
                    let ended = ended.expect("a pass catches its panics, and is not aborted before");
                    self.note(ended);
                }
                woken = wait(&mut self.woken) => {
                    self.woken = None;
                    // One that fails is no reason to look: it might fail again at once.
                    self.is_stale = woken.is_ok();
                }
                () = timer => {}
            }
        }
    }

    /// Does what the clock says is due.
    async fn keep_time(&mut self) {
        let now = self.now();
        if now >= self.member.next_tick() {
            let ticked = self.tick().await;
            self.warn(ticked, "the heartbeat failed");
        }
        for (bucket, work) in &mut self.work {
            if work.not_before.is_some_and(|time| time <= now) {
                work.not_before = None;
                self.ready.push_back(*bucket);
            }
        }
        if now >= self.round_at {
            self.round_at = now + self.options.patience;
            let stood_in = self.stand_in().await;
            self.warn(stood_in, "the look at others' buckets failed");
        }
        // From time to time also while it has work: there may be other buckets, and workers.
        if now >= self.look_at || self.is_stale && self.has_room() {
            self.is_stale = false;
            self.look_at = now + self.options.poll_interval;
            let looked = self.look().await;
            if looked.is_err() {
                self.look_at = now + PAUSE_AFTER_FAILURE;
            }
            self.warn(looked, "the look for updates failed");
        }
    }

    fn next_timer(&self) -> Duration {
        let retries = self.work.values().filter_map(|work| work.not_before);
        let times = retries.chain([self.look_at, self.round_at]);
        times.fold(self.member.next_tick(), Duration::min)
    }

    /// Whether it could make more passes than it knows of.
    fn has_room(&self) -> bool {
        self.ready.is_empty() && self.passes.len() < self.options.concurrency
    }

    /// Reads which buckets have a notification and which sessions live, and watches for more.
    async fn look(&mut self) -> Result<()> {
        let (queue, keys) = (&self.queue, &self.queue.keys);
        let look = |tr: Tx<_>, _| async move {
            let woken = tr.watch(&keys.wake());
            let sessions = keys
                .sessions
                .all(&tr)
                .map(|sessions| Ok::<_, Error>(sessions?));
            let (notified, sessions) = try_join!(notified(&tr, queue), sessions)?;
            Ok::<_, Error>((woken, notified, sessions))
        };
        let (woken, notified, sessions) = self.runner.run(look).await?;
        self.woken = Some(Watch::new(Box::pin(woken)));
        let living = sessions
            .into_iter()
            .filter(|(_, life)| *life == Life::Alive);
        self.roster
            .update(living.map(|(session, _)| session).collect());
        for bucket in notified {
            if self.roster.rank(self.session(), bucket) == 0 {
                self.put(bucket, false);
            }
        }
        Ok(())
    }

    /// Looks which buckets of others stand still, and stands in where it is this session's turn.
    async fn stand_in(&mut self) -> Result<()> {
        let (queue, keys) = (&self.queue, &self.queue.keys);
        let look = |tr: Tx<_>, _| async move {
            let (begin, end) = keys.sweeps();
            let sweeps = read_all(&tr, RangeQuery::keys(begin, end), Isolation::Snapshot);
            let sweeps = sweeps.map(|rows| Ok::<_, Error>(rows?));
            try_join!(notified(&tr, queue), sweeps)
        };
        let (notified, sweeps) = self.runner.run(look).await?;
        let sweeps = sweeps
            .iter()
            .map(|row| Ok((keys.swept(row.key())?, row.to_value())));
        let sweeps: BTreeMap<Bucket, Bytes> = sweeps.collect::<Result<_>>()?;
        let standing = notified.into_iter().map(|bucket| Standing {
            bucket,
            sweep: sweeps.get(&bucket).cloned(),
        });
        for bucket in self.roster.stalled(self.member.id(), standing) {
            if !self.work.contains_key(&bucket) {
                tracing::info!(queue = %self.queue.subspace(), %bucket, "stands in for another worker");
                self.metrics.stood_in.increment(1);
                self.put(bucket, true);
            }
        }
        Ok(())
    }

    /// Notes that a bucket is to be combined.
    fn put(&mut self, bucket: Bucket, stands_in: bool) {
        let since = self.now();
        if let Some(work) = self.work.get_mut(&bucket) {
            work.again |= work.is_running;
            return;
        }
        let work = Work {
            stands_in,
            since,
            ..Work::default()
        };
        self.work.insert(bucket, work);
        self.ready.push_back(bucket);
    }

    fn begin_passes(&mut self) {
        while self.passes.len() < self.options.concurrency {
            let Some(bucket) = self.ready.pop_front() else {
                return;
            };
            if let Some(work) = self.work.get_mut(&bucket) {
                work.is_running = true;
                let budget = (self.options.bytes_per_pass).checked_shr(work.shrunk_bits);
                let plan = Plan {
                    budget: budget.unwrap_or(0).max(1),
                    observer_time_limit: self.options.observer_time_limit,
                    set_aside: work.set_aside.take(),
                };
                let yields = work.stands_in;
                let pass = Box::pin(self.pass(bucket, plan, yields));
                self.passes.spawn(pass);
            }
        }
    }

    /// Returns a pass, to be made by a task of its own.
    fn pass(
        &self,
        bucket: Bucket,
        plan: Plan,
        yields: bool,
    ) -> impl Future<Output = Outcome> + Send + use<K, U, V, C, D, O> {
        let (queue, runner) = (self.queue.clone(), self.runner.clone());
        let (observer, metrics) = (self.observer.clone(), self.metrics.clone());
        let span = tracing::debug_span!("pass", %bucket, budget = plan.budget);
        let pass = async move {
            let began = runner.environment().now();
            let (queue, plan) = (&queue, &plan);
            let (observer, metrics) = (&*observer, &*metrics);
            let once = |tr, attempt: Attempt| async move {
                if attempt.after == Some(Code::NOT_COMMITTED) {
                    metrics.conflicts.increment(1);
                    if yields {
                        return Ok(None);
                    }
                }
                let plan = plan.for_attempt(attempt.number);
                queue.pass(&tr, bucket, &plan, observer).await.map(Some)
            };
            let made = AssertUnwindSafe(runner.run(once)).catch_unwind().await;
            Outcome {
                bucket,
                budget: plan.budget,
                took: runner.environment().now().saturating_sub(began),
                result: made,
            }
        };
        tracing::Instrument::instrument(pass, span)
    }

    /// Notes what became of a pass, and when the bucket is to be combined again.
    fn note(&mut self, outcome: Outcome) {
        let Outcome {
            bucket,
            budget,
            took,
            result,
        } = outcome;
        let now = self.now();
        let Some(work) = self.work.get_mut(&bucket) else {
            return;
        };
        work.is_running = false;
        let again = std::mem::take(&mut work.again);
        let error = match result {
            Ok(Ok(Some(pass))) => {
                self.metrics.note(&pass, took);
                work.failures = 0;
                work.shrunk_bits = work.shrunk_bits.saturating_sub(1);
                if pass.has_more || again {
                    self.ready.push_back(bucket);
                } else {
                    self.work.remove(&bucket);
                }
                return;
            }
            Ok(Ok(None)) => {
                self.work.remove(&bucket);
                return;
            }
            Ok(Err(error)) => error,
            // A codec's, since those of combiner and observer are caught before.
            Err(_) => Error::PassPanicked,
        };
        let is_too_large = code_of(&error) == Some(Code::TRANSACTION_TOO_LARGE);
        if is_too_large && budget == 1 {
            work.set_aside = Some(format!(
                "its change alone does not fit a transaction: {error}"
            ));
        }
        if is_too_large || matches!(error, Error::ObserverTimedOut { .. }) {
            work.shrunk_bits = (work.shrunk_bits + SHRINK_BITS).min(usize::BITS);
        }
        if is_too_large {
            self.ready.push_back(bucket);
            return;
        }
        work.failures = work.failures.saturating_add(1);
        let wait = (self.options.backoff).after(work.failures, self.runner.environment());
        work.not_before = Some(now + wait);
        self.metrics.failures.increment(1);
        let error: &dyn std::error::Error = &error;
        tracing::warn!(queue = %self.queue.subspace(), %bucket, error, ?wait, "a pass failed");
    }

    /// Shows that the session lives, and looks who does not.
    async fn tick(&mut self) -> Result<()> {
        match self.member.tick().await? {
            Tick::Observed => return Ok(()),
            // Whoever has declared it dead combines its buckets. That does no harm to its passes.
            Tick::Dead => return self.begin_session().await,
            Tick::Beaten => {}
        }
        self.report().await?;
        self.bury_the_dead().await
    }

    /// Tells the gauges how things stand.
    async fn report(&mut self) -> Result<()> {
        let now = self.now();
        let standing = self
            .work
            .values()
            .map(|work| now.saturating_sub(work.since));
        self.metrics
            .lag
            .set(standing.max().unwrap_or_default().as_secs_f64());
        let queue = &self.queue;
        for bucket in self.metrics.to_report(self.work.keys().copied()) {
            let look = |tr, _| async move { queue.pending(&tr, bucket).await };
            self.metrics.pending(bucket, &self.runner.run(look).await?);
        }
        Ok(())
    }

    /// Opens a session, and tells the others that it takes over its buckets.
    async fn begin_session(&mut self) -> Result<()> {
        self.member.open().await?;
        let keys = &self.queue.keys;
        let wake = |tr, _| async move {
            keys.wake_all(&tr);
            Ok::<_, Error>(())
        };
        self.runner.run(wake).await
    }

    /// Removes sessions that are dead: they hold nothing.
    async fn bury_the_dead(&mut self) -> Result<()> {
        let dead = self.member.look_for_dead().await?;
        if dead.is_empty() {
            return Ok(());
        }
        let (keys, dead) = (&self.queue.keys, &dead);
        let bury = |tr, _| async move {
            for session in dead {
                if keys.sessions.life(&tr, *session).await? == Some(Life::Dead) {
                    keys.sessions.remove(&tr, *session);
                }
            }
            keys.wake_all(&tr);
            Ok::<_, Error>(())
        };
        self.runner.run(bury).await?;
        tracing::info!(queue = %keys.queue, sessions = dead.len(), "removed dead sessions");
        Ok(())
    }

    /// Lets the passes end that have begun, and ends the session.
    async fn close(mut self, grace: Duration) -> Result<()> {
        let finish = async {
            while let Some(ended) = self.passes.join_next().await {
                self.note(ended.expect("a pass catches its panics, and is not aborted before"));
            }
        };
        if timeout(grace, finish).await.is_err() {
            tracing::warn!(queue = %self.queue.subspace(), "passes that do not end are dropped");
            self.passes.shutdown().await;
        }
        let (keys, session) = (&self.queue.keys, self.member.id());
        let leave = |tr, _| async move {
            keys.sessions.remove(&tr, session);
            keys.wake_all(&tr);
            Ok::<_, Error>(())
        };
        self.runner.run(leave).await
    }

    fn warn(&self, result: Result<()>, problem: &'static str) {
        if let Err(error) = result {
            let error: &dyn std::error::Error = &error;
            tracing::warn!(queue = %self.queue.subspace(), error, problem);
        }
    }

    fn now(&self) -> Duration {
        self.runner.environment().now()
    }
}

/// Returns the buckets that have a notification.
async fn notified<K, U, V, C>(
    tr: &impl Transaction,
    queue: &CombineQueue<K, U, V, C>,
) -> Result<Vec<Bucket>> {
    let (begin, end) = queue.keys.notifications();
    let rows = read_all(tr, RangeQuery::keys(begin, end), Isolation::Snapshot).await?;
    rows.iter()
        .map(|row| queue.keys.notified(row.key()))
        .collect()
}

/// Waits for a watch, for ever if there is none.
async fn wait(watch: &mut Option<Watch>) -> keyspace::Result<()> {
    match watch {
        Some(watch) => {
            watch
                .get_mut()
                .unwrap_or_else(PoisonError::into_inner)
                .await
        }
        None => std::future::pending().await,
    }
}

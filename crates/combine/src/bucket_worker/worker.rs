//! What a session does: it keeps time, reads what there is to do, and runs the steps that are due.

use std::collections::{BTreeMap, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::{FutureExt, TryFutureExt, try_join};
use hc_dequeue::keyspace::env::BoxFuture;
use hc_dequeue::keyspace::{self, Database, Runner, Transaction, Tx};
use hc_dequeue::session::{Life, Member, SessionId, Tick};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tracing::Instrument;

use super::job::{Assignment, Job, Next};
use super::options::BucketWorkerOptions;
use super::roster::Roster;
use crate::bucket::Bucket;

/// How long to wait after a read that failed, or a step that panicked.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_millis(100);

/// A bucket that this session works on.
struct Work<S> {
    /// `None` while a step is under way.
    state: Option<S>,
    /// Whether it was seen with something to do while a step was under way.
    again: bool,
    /// When the next step is due, if it is to wait.
    not_before: Option<Duration>,
    /// Whether this session has taken the bucket over from one that stands still.
    is_takeover: bool,
    since: Duration,
}

/// A watch that is armed. The lock is never contended, nor taken: it makes the worker `Sync`, so that
/// its futures are `Send`.
type Watch = Mutex<BoxFuture<keyspace::Result<()>>>;

/// A session that works on a job.
pub struct BucketWorker<J: Job, D: Database> {
    job: Arc<J>,
    runner: Runner<D>,
    options: BucketWorkerOptions,
    member: Member<D>,
    roster: Roster,
    work: BTreeMap<Bucket, Work<J::State>>,
    /// The buckets whose next step is due, first come, first served.
    ready: VecDeque<Bucket>,
    steps: JoinSet<(Bucket, J::State, Next)>,
    /// Fires when there is something to do, or a session came or went, after the last read.
    woken: Option<Watch>,
    /// Whether it has fired.
    is_stale: bool,
    /// When to read what there is to do, whatever the watch says.
    refresh_at: Duration,
    /// When to read which buckets of others stand still.
    round_at: Duration,
}

impl<J: Job, D: Database> BucketWorker<J, D> {
    /// Opens a session.
    ///
    /// # Errors
    /// Those of [`Runner::run`].
    ///
    /// # Cancel safety
    /// Dropping the future may leave a session without a heartbeat, which others remove.
    pub async fn open(
        job: Arc<J>,
        runner: Runner<D>,
        options: BucketWorkerOptions,
    ) -> Result<Self, J::Error> {
        let sessions = options.sessions.clone();
        let now = runner.environment().now();
        let mut worker = Self {
            member: Member::new(sessions, runner.clone(), options.lease),
            roster: Roster::default(),
            work: BTreeMap::new(),
            ready: VecDeque::new(),
            steps: JoinSet::new(),
            woken: None,
            is_stale: false,
            refresh_at: now,
            round_at: now + options.takeover_after,
            job,
            runner,
            options,
        };
        worker.begin_session().await?;
        worker.remove_dead().await?;
        Ok(worker)
    }

    /// Returns its session.
    #[must_use]
    pub fn session(&self) -> SessionId {
        self.member.id()
    }

    /// Works until `stop` receives how long the steps under way may take.
    ///
    /// # Errors
    /// Those of [`Runner::run`] if the session cannot be ended.
    ///
    /// # Cancel safety
    /// Dropping the future drops the steps under way. The session ends after a lease.
    pub async fn run(mut self, mut stop: oneshot::Receiver<Duration>) -> Result<(), J::Error> {
        loop {
            self.keep_time().await;
            self.begin_steps();
            let timer = self.next_timer().saturating_sub(self.now());
            let timer = self.runner.environment().sleep(timer);
            tokio::select! {
                biased;
                stopped = &mut stop => {
                    // Without a sender the task is about to be aborted.
                    return self.close(stopped.unwrap_or_default()).await;
                }
                Some(ended) = self.steps.join_next() => self.note(ended.ok()),
                woken = wait(&mut self.woken) => {
                    self.woken = None;
                    // One that fails is no reason to read: it might fail again at once.
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
            self.round_at = now + self.options.takeover_after;
            let taken_over = self.take_over().await;
            self.warn(
                taken_over,
                "reading which buckets of others stand still failed",
            );
        }
        // From time to time also while it has work: there may be other buckets, and sessions.
        if now >= self.refresh_at || self.is_stale && self.has_room() {
            self.is_stale = false;
            self.refresh_at = now + self.options.poll_interval;
            let refreshed = self.refresh().await;
            if refreshed.is_err() {
                self.refresh_at = now + PAUSE_AFTER_FAILURE;
            }
            self.warn(refreshed, "reading what there is to do failed");
        }
    }

    fn next_timer(&self) -> Duration {
        let retries = self.work.values().filter_map(|work| work.not_before);
        let times = retries.chain([self.refresh_at, self.round_at]);
        times.fold(self.member.next_tick(), Duration::min)
    }

    /// Whether it could do more than it knows of.
    fn has_room(&self) -> bool {
        self.ready.is_empty() && self.steps.len() < self.options.concurrency
    }

    /// Reads which buckets have something to do and which sessions live, and watches for more.
    async fn refresh(&mut self) -> Result<(), J::Error> {
        let (job, options) = (&*self.job, &self.options);
        let read = |tr: Tx<_>| async move {
            let woken = tr.watch(&options.wake);
            let sessions = options.sessions.all(&tr).map_err(J::Error::from);
            let (pending, sessions) = try_join!(job.pending(&tr), sessions)?;
            Ok::<_, J::Error>((woken, pending, sessions))
        };
        let (woken, pending, sessions) = self.runner.run(read).await?;
        self.woken = Some(Watch::new(Box::pin(woken)));
        let living = sessions
            .into_iter()
            .filter(|(_, life)| *life == Life::Alive);
        self.roster
            .update(living.map(|(session, _)| session).collect());
        for bucket in pending {
            if self.is_owner(bucket) {
                self.put(bucket, false);
            }
        }
        Ok(())
    }

    fn is_owner(&self, bucket: Bucket) -> bool {
        self.roster.rank(self.session(), bucket) == 0
    }

    /// Reads which buckets of others stand still, and takes over those where it is this session's turn.
    async fn take_over(&mut self) -> Result<(), J::Error> {
        let (job, roster, own) = (&*self.job, &self.roster, self.member.id());
        let read = |tr| async move {
            let mut pending = job.pending(&tr).await?;
            pending.retain(|bucket| roster.rank(own, *bucket) > 0);
            let marks = job.marks(&tr, &pending).await?;
            Ok::<_, J::Error>((pending, marks))
        };
        let (pending, marks) = self.runner.run(read).await?;
        let standing = pending.into_iter().zip(marks);
        for bucket in self.roster.stalled(own, standing) {
            if !self.work.contains_key(&bucket) {
                let recipe = self.options.sessions.subspace();
                tracing::info!(%recipe, %bucket, "takes over a bucket that stands still");
                self.put(bucket, true);
            }
        }
        Ok(())
    }

    /// Notes that there is something to do in a bucket.
    fn put(&mut self, bucket: Bucket, is_takeover: bool) {
        let since = self.now();
        if let Some(work) = self.work.get_mut(&bucket) {
            work.again |= work.state.is_none();
            return;
        }
        let work = Work {
            state: Some(J::State::default()),
            again: false,
            not_before: None,
            is_takeover,
            since,
        };
        self.work.insert(bucket, work);
        self.ready.push_back(bucket);
    }

    fn begin_steps(&mut self) {
        while self.steps.len() < self.options.concurrency {
            let Some(bucket) = self.ready.pop_front() else {
                return;
            };
            let is_owner = self.is_owner(bucket);
            let assignment = Assignment::new(self.session(), bucket, is_owner);
            let state = self
                .work
                .get_mut(&bucket)
                .and_then(|work| work.state.take());
            if let Some(state) = state {
                let job = self.job.clone();
                let step = async move {
                    let step = AssertUnwindSafe(job.step(assignment, state)).catch_unwind();
                    let (state, next) = step.await.unwrap_or_else(|_| {
                        tracing::error!(%bucket, "a step panicked");
                        (J::State::default(), Next::After(PAUSE_AFTER_FAILURE))
                    });
                    (bucket, state, next)
                };
                let span = tracing::debug_span!("step", %bucket);
                self.steps.spawn(Box::pin(step.instrument(span)));
            }
        }
    }

    /// Notes when the next step in a bucket is due. `None`: the step was aborted.
    fn note(&mut self, ended: Option<(Bucket, J::State, Next)>) {
        let Some((bucket, state, next)) = ended else {
            return;
        };
        let (now, is_owner) = (self.now(), self.is_owner(bucket));
        let Some(work) = self.work.get_mut(&bucket) else {
            return;
        };
        let again = std::mem::take(&mut work.again);
        work.state = Some(state);
        match next {
            Next::After(wait) => work.not_before = Some(now + wait),
            _ if !is_owner && !work.is_takeover => drop(self.work.remove(&bucket)),
            Next::Done if !again => drop(self.work.remove(&bucket)),
            Next::Done | Next::Again => self.ready.push_back(bucket),
        }
    }

    /// Shows that the session lives, and removes those that do not.
    async fn tick(&mut self) -> Result<(), J::Error> {
        match self.member.tick().await? {
            Tick::Observed => return Ok(()),
            // The session that has declared it dead works on its buckets.
            Tick::Dead => return self.begin_session().await,
            Tick::Beaten => {}
        }
        let now = self.now();
        let waits = self
            .work
            .values()
            .map(|work| now.saturating_sub(work.since));
        let oldest = waits.max().unwrap_or_default();
        let buckets = self.work.keys().copied().collect();
        // First, so that a report that fails keeps no session from the buckets of the dead.
        self.remove_dead().await?;
        self.job.report(buckets, oldest).await
    }

    /// Opens a session, and tells the others that it takes over its buckets.
    async fn begin_session(&mut self) -> Result<(), J::Error> {
        self.member.open().await?;
        let options = &self.options;
        let wake = |tr: Tx<_>| async move {
            tr.set_to_versionstamp(&options.wake);
            Ok::<_, J::Error>(())
        };
        self.runner.run(wake).await
    }

    /// Removes sessions that are dead.
    async fn remove_dead(&mut self) -> Result<(), J::Error> {
        let dead = self.member.find_dead().await?;
        if dead.is_empty() {
            return Ok(());
        }
        let (options, dead) = (&self.options, &dead);
        let bury = |tr: Tx<_>| async move {
            for session in dead {
                if options.sessions.life(&tr, *session).await? == Some(Life::Dead) {
                    options.sessions.remove(&tr, *session);
                }
            }
            tr.set_to_versionstamp(&options.wake);
            Ok::<_, J::Error>(())
        };
        self.runner.run(bury).await?;
        let recipe = options.sessions.subspace();
        tracing::info!(%recipe, sessions = dead.len(), "removed dead sessions");
        Ok(())
    }

    /// Lets the steps end that have begun, and ends the session.
    async fn close(mut self, grace: Duration) -> Result<(), J::Error> {
        let env = self.runner.environment().clone();
        let finish = async { while self.steps.join_next().await.is_some() {} };
        if env.timeout(grace, finish).await.is_none() {
            let recipe = self.options.sessions.subspace();
            tracing::warn!(%recipe, "steps that do not end are dropped");
            self.steps.shutdown().await;
        }
        let (options, session) = (&self.options, self.member.id());
        let leave = |tr: Tx<_>| async move {
            options.sessions.remove(&tr, session);
            tr.set_to_versionstamp(&options.wake);
            Ok::<_, J::Error>(())
        };
        self.runner.run(leave).await
    }

    fn warn(&self, result: Result<(), J::Error>, problem: &'static str) {
        if let Err(error) = result {
            let error: &dyn std::error::Error = &error;
            tracing::warn!(recipe = %self.options.sessions.subspace(), error, problem);
        }
    }

    fn now(&self) -> Duration {
        self.runner.environment().now()
    }
}

/// Waits for a watch, without end if there is none.
async fn wait(watch: &mut Option<Watch>) -> keyspace::Result<()> {
    match watch {
        Some(watch) => watch.get_mut().await,
        None => std::future::pending().await,
    }
}

//! The task of a session: it keeps time, reads which buckets have work, and runs the steps that are due.

use std::sync::Arc;
use std::time::Duration;

use futures::{TryFutureExt, try_join};
use hc_dequeue::keyspace::error::chain;
use hc_dequeue::keyspace::foreign::{self, Panicked};
use hc_dequeue::keyspace::names::queue_name;
use hc_dequeue::keyspace::{Environment, Runner, Store, Subspace, Transaction, Tx};
use hc_dequeue::session::{Alarm, Alarms, Life, Member, SessionId, Tick};
use hc_dequeue::shutdown::{ShutdownReport, end_tasks};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tracing::Instrument;

use super::agenda::{Agenda, Task};
use super::job::{Assignment, Job, Next};
use super::options::BucketWorkerOptions;
use super::roster::Roster;
use crate::bucket::Bucket;

/// How long to wait after a read that failed or a step that panicked.
pub(super) const PAUSE_AFTER_FAILURE: Duration = Duration::from_millis(100);

/// The alarms that a worker waits for, besides the ends of steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    /// Read which buckets have work, even if the watch has not fired.
    Read,
    /// Read which buckets of other sessions make no progress.
    Round,
    /// Start the next step in a bucket.
    Step(Bucket),
}

/// The bucket of a step that has ended, and the state and the time of the next one, unless it panicked.
type EndedStep<S> = (Bucket, Result<(S, Next), Panicked>);

/// Waits until a worker is stopped, and returns the grace period. It is zero if the handle is gone: then the
/// task is about to be aborted.
async fn grace_of(stop: &mut watch::Receiver<Option<Duration>>) -> Duration {
    let stopped = stop.wait_for(Option::is_some).await;
    let grace = stopped.ok().and_then(|grace| *grace);
    grace.unwrap_or_default()
}

/// A session that works on a job.
pub struct BucketWorker<J: Job + ?Sized> {
    job: Arc<J>,
    runner: Runner<Store>,
    options: BucketWorkerOptions,
    member: Member,
    roster: Roster,
    agenda: Agenda<J::State>,
    steps: JoinSet<EndedStep<J::State>>,
    /// The watch fires when there is new work, or when a session came or went, after the last read.
    alarms: Alarms<Timer, ()>,
}

impl<J: Job + ?Sized> BucketWorker<J> {
    /// Opens a session.
    ///
    /// # Errors
    /// Those of [`Runner::run`].
    ///
    /// # Cancel safety
    /// Dropping the future may leave a session without a heartbeat, which others remove.
    pub async fn open(
        job: Arc<J>,
        runner: Runner<Store>,
        options: BucketWorkerOptions,
    ) -> Result<Self, J::Error> {
        let sessions = options.sessions.clone();
        let mut alarms = Alarms::new(runner.environment().clone());
        alarms.start(Timer::Round, options.takeover_after);
        let mut worker = Self {
            member: Member::new(sessions, &runner, options.lease),
            roster: Roster::default(),
            agenda: Agenda::new(),
            steps: JoinSet::new(),
            alarms,
            job,
            runner,
            options,
        };
        // In boxes, so that the futures of callers are small.
        Box::pin(worker.begin_session()).await?;
        Box::pin(worker.remove_dead()).await?;
        Ok(worker)
    }

    /// Returns its session.
    #[must_use]
    pub fn session(&self) -> SessionId {
        self.member.id()
    }

    pub(super) fn environment(&self) -> &Environment {
        self.runner.environment()
    }

    /// Returns the subspace of the recipe's sessions.
    pub(super) fn recipe(&self) -> &Subspace {
        self.options.sessions.subspace()
    }

    /// Returns what another worker is opened with.
    pub(super) fn parts(&self) -> (Arc<J>, Runner<Store>, BucketWorkerOptions) {
        (self.job.clone(), self.runner.clone(), self.options.clone())
    }

    /// Works until `stop` contains how long the steps under way may still take. Returns what is left of them.
    ///
    /// # Errors
    /// Those of [`Runner::run`] if the session cannot be ended.
    ///
    /// # Cancel safety
    /// Dropping the future drops the steps under way. The session ends after a lease.
    pub(super) async fn run(
        mut self,
        stop: &mut watch::Receiver<Option<Duration>>,
    ) -> Result<ShutdownReport, J::Error> {
        loop {
            if self.now() >= self.member.next_tick() {
                let ticked = self.tick().await;
                self.warn(ticked, "the heartbeat failed");
            }
            let is_room = self.steps.len() < self.options.concurrency;
            match self.agenda.next(is_room) {
                Task::Step(bucket, state) => self.begin_step(bucket, state),
                Task::Read => self.refresh().await,
                Task::Rest => {
                    let next_tick = self.member.next_tick();
                    tokio::select! {
                        biased;
                        grace = grace_of(stop) => return self.close(grace).await,
                        // Checked before the steps that have ended, since there may always be another
                        // one.
                        alarm = self.alarms.next(next_tick) => self.on(alarm).await,
                        Some(ended) = self.steps.join_next() => self.end_step(ended.ok()),
                    }
                }
            }
        }
    }

    async fn on(&mut self, alarm: Option<Alarm<Timer, ()>>) {
        match alarm {
            // The next heartbeat is due.
            None => {}
            Some(Alarm::Woken(())) => self.agenda.changed(),
            Some(Alarm::Elapsed(Timer::Read)) => self.agenda.read(),
            Some(Alarm::Elapsed(Timer::Step(bucket))) => self.agenda.due(bucket),
            Some(Alarm::Elapsed(Timer::Round)) => {
                self.alarms.start(Timer::Round, self.options.takeover_after);
                let taken_over = self.take_over().await;
                self.warn(taken_over, "reading which buckets make no progress failed");
            }
        }
    }

    /// Reads which buckets have work.
    async fn refresh(&mut self) {
        let read = self.read().await;
        let pause = match read {
            Ok(()) => self.options.poll_interval,
            Err(_) => PAUSE_AFTER_FAILURE,
        };
        self.alarms.start(Timer::Read, pause);
        self.warn(read, "reading which buckets have work failed");
    }

    /// Reads which buckets have work and which sessions are alive, and watches for changes.
    async fn read(&mut self) -> Result<(), J::Error> {
        let job = &*self.job;
        let options = &self.options;
        let read = |tr: Tx<_>| async move {
            let woken = tr.watch(&options.wake);
            let sessions = options.sessions.all(&tr).map_err(J::Error::from);
            let (pending, sessions) = try_join!(job.pending(&tr), sessions)?;
            Ok::<_, J::Error>((woken, pending, sessions))
        };
        let (woken, pending, sessions) = self.runner.run(read).await?;
        self.alarms.watch(woken);
        // A session whose state does not decode works for itself alone: passes of two sessions exclude each other.
        let living = sessions
            .into_iter()
            .filter(|(_, state)| (state.as_ref()).is_ok_and(|state| state.life == Life::Alive));
        self.roster
            .update(living.map(|(session, _)| session).collect());
        for bucket in pending {
            if self.is_holder(bucket) {
                self.agenda.add(bucket, false);
            }
        }
        Ok(())
    }

    fn is_holder(&self, bucket: Bucket) -> bool {
        self.roster.rank(self.session(), bucket) == 0
    }

    /// Reads which buckets of other sessions make no progress, and takes over those for which it is this
    /// session's turn.
    async fn take_over(&mut self) -> Result<(), J::Error> {
        let job = &*self.job;
        let roster = &self.roster;
        let own = self.member.id();
        let read = |tr| async move {
            let mut pending = job.pending(&tr).await?;
            pending.retain(|bucket| roster.rank(own, *bucket) > 0);
            let marks = job.marks(&tr, &pending).await?;
            Ok::<_, J::Error>((pending, marks))
        };
        let (pending, marks) = self.runner.run(read).await?;
        let marked = pending.into_iter().zip(marks);
        for bucket in self.roster.stalled(own, marked) {
            if !self.agenda.contains(bucket) {
                let recipe = self.options.sessions.subspace();
                tracing::info!(recipe = %queue_name(recipe), %bucket, "takes over a bucket that makes no progress");
                self.agenda.add(bucket, true);
            }
        }
        Ok(())
    }

    fn begin_step(&mut self, bucket: Bucket, state: J::State) {
        let is_holder = self.is_holder(bucket);
        let assignment = Assignment::new(self.session(), bucket, is_holder);
        let job = self.job.clone();
        let step = async move {
            let step = foreign::run(async { job.step(assignment, state).await });
            (bucket, step.await)
        };
        let span = tracing::debug_span!("step", %bucket);
        self.steps.spawn(Box::pin(step.instrument(span)));
    }

    /// Records when the next step in a bucket is due. `None` means that the step was aborted.
    fn end_step(&mut self, ended: Option<EndedStep<J::State>>) {
        let Some((bucket, ended)) = ended else {
            return;
        };
        let (state, next) = ended.unwrap_or_else(|panicked| {
            let panic = panicked.message();
            tracing::error!(%bucket, panic, "a step panicked");
            (J::State::default(), Next::After(PAUSE_AFTER_FAILURE))
        });
        let is_holder = self.is_holder(bucket);
        if let Some(wait) = self.agenda.end(bucket, state, next, is_holder) {
            self.alarms.start(Timer::Step(bucket), wait);
        }
    }

    /// Writes the heartbeat of the session, and removes dead sessions.
    async fn tick(&mut self) -> Result<(), J::Error> {
        match self.member.tick().await? {
            Tick::Observed => return Ok(()),
            // The session that declared it dead works on its buckets.
            Tick::Dead => return self.begin_session().await,
            Tick::Heartbeat => {}
        }
        // This comes first, so that a report that fails does not keep the session from taking over
        // buckets of the dead.
        self.remove_dead().await?;
        self.job.report(self.agenda.buckets()).await
    }

    /// Opens a session, and wakes the other sessions so that they leave its buckets to it.
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
        let dead = &self.member.find_dead().await?;
        if dead.is_empty() {
            return Ok(());
        }
        let options = &self.options;
        let remove = |tr: Tx<_>| async move {
            for session in dead {
                if options.sessions.life(&tr, *session).await? != Some(Life::Alive) {
                    options.sessions.remove(&tr, *session);
                }
            }
            tr.set_to_versionstamp(&options.wake);
            Ok::<_, J::Error>(())
        };
        self.runner.run(remove).await?;
        let recipe = options.sessions.subspace();
        tracing::info!(recipe = %queue_name(recipe), sessions = dead.len(), "removed dead sessions");
        Ok(())
    }

    /// Waits for the steps under way, and ends the session.
    async fn close(mut self, grace: Duration) -> Result<ShutdownReport, J::Error> {
        let env = self.runner.environment();
        let report = end_tasks(env, &mut self.steps, grace, || ()).await;
        let options = &self.options;
        let session = self.member.id();
        let leave = |tr: Tx<_>| async move {
            options.sessions.remove(&tr, session);
            tr.set_to_versionstamp(&options.wake);
            Ok::<_, J::Error>(())
        };
        self.runner.run(leave).await?;
        Ok(report)
    }

    fn warn(&self, result: Result<(), J::Error>, problem: &'static str) {
        if let Err(error) = result {
            let error = chain(&error);
            tracing::warn!(recipe = %queue_name(self.recipe()), %error, problem);
        }
    }

    fn now(&self) -> Duration {
        self.runner.environment().now()
    }
}

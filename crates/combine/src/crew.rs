//! The task of a worker: which buckets it works on, and when. For this layer and those above it.
//!
//! It looks which buckets have something to do and which sessions live, works on those that it is the
//! first for, and sleeps on a watch of a wake stamp. Whatever comes while it works changes the stamp,
//! so that it looks again when it is done.
//!
//! What there is to do is a [`Job`], which must be right whoever works on a bucket: sessions may
//! disagree about who lives, so that two work on the same one.

mod pending;
mod roster;
mod wait;

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::{FutureExt, TryFutureExt, try_join};
use hc_dequeue::keyspace::env::BoxFuture;
use hc_dequeue::keyspace::{self, Bytes, Database, Runner, Transaction, Tx};
use hc_dequeue::session::{Life, Member, SessionId, Sessions, Tick};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tracing::Instrument;

pub use self::pending::{Pending, PendingGauges};
use self::roster::Roster;
pub use self::wait::{panic_message, wait_until_none};
use crate::keys::Bucket;

/// How long to wait after a look that failed, or a step that panicked.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_millis(100);

/// Something to be done bucket by bucket, by sessions that divide the buckets between them.
pub trait Job: Send + Sync + 'static {
    /// What can go wrong.
    type Error: std::error::Error
        + From<keyspace::Error>
        + From<hc_dequeue::Error>
        + Send
        + Sync
        + 'static;

    /// What is to be remembered of a bucket from one step to the next, while there is something to do.
    type State: Default + Send + 'static;

    /// Returns the buckets in which there is something to do.
    ///
    /// # Errors
    /// Those of the store.
    fn pending(
        &self,
        tr: &impl Transaction,
    ) -> impl Future<Output = Result<Vec<Bucket>, Self::Error>> + Send;

    /// Returns for each of some buckets what every step changes, so that others see who stands still.
    ///
    /// # Errors
    /// Those of the store.
    fn marks(
        &self,
        tr: &impl Transaction,
        buckets: &[Bucket],
    ) -> impl Future<Output = Result<Vec<Bytes>, Self::Error>> + Send;

    /// Does a step in a bucket, and says when the next one is due.
    ///
    /// # Cancel safety
    /// The future is dropped when the worker is, or when a shut-down has waited for long enough.
    fn step(
        &self,
        place: Place,
        state: Self::State,
    ) -> impl Future<Output = (Self::State, Next)> + Send;

    /// Is called at each heartbeat, with the buckets that this session works on and for how long the
    /// oldest of them has waited.
    ///
    /// # Errors
    /// Those of the store.
    fn report(
        &self,
        buckets: Vec<Bucket>,
        oldest: Duration,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send;
}

/// Where a step is done, and by whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The session that does it.
    pub session: SessionId,
    /// The bucket.
    pub bucket: Bucket,
    /// Whether the session is the first for the bucket, as far as it knows. If not, it stands in for
    /// one that stands still, or has become somebody else's since it began.
    pub is_owner: bool,
}

/// When the next step in a bucket is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// When there is something to do again.
    Done,
    /// At once, as soon as others had their turn.
    Again,
    /// After a while.
    After(Duration),
}

/// How a crew works.
#[derive(Debug, Clone)]
pub struct CrewOptions {
    /// How many buckets it works on at the same time.
    pub concurrency: usize,
    /// How long a bucket of another session may stand still before the next one stands in.
    pub patience: Duration,
    /// How often it looks although nothing woke it.
    pub poll_interval: Duration,
    /// What the sessions of a job have in common.
    pub sessions: Sessions,
    /// How long a session lives without a sign of life.
    pub lease: Duration,
    /// The key that changes whenever there is something to do.
    pub wake: Vec<u8>,
}

/// A bucket that this session works on.
struct Work<S> {
    /// `None` while a step is under way.
    state: Option<S>,
    /// Whether it was seen with something to do while a step was under way.
    again: bool,
    /// When the next step is due, if it is to wait.
    not_before: Option<Duration>,
    /// Whether this session stands in for another one.
    stands_in: bool,
    since: Duration,
}

/// A watch that is armed. The lock is never contended, nor taken: it makes the crew `Sync`, so that its
/// futures are `Send`.
type Watch = Mutex<BoxFuture<keyspace::Result<()>>>;

/// A session that works on a job.
pub struct Crew<J: Job, D: Database> {
    job: Arc<J>,
    runner: Runner<D>,
    options: CrewOptions,
    member: Member<D>,
    roster: Roster,
    work: BTreeMap<Bucket, Work<J::State>>,
    /// The buckets whose next step is due, first come, first served.
    ready: VecDeque<Bucket>,
    steps: JoinSet<(Bucket, J::State, Next)>,
    /// Fires when there is something to do, or a session came or went, after the last look.
    woken: Option<Watch>,
    /// Whether it has fired.
    is_stale: bool,
    /// When to look, whatever the watch says.
    look_at: Duration,
    /// When to look who stands still.
    round_at: Duration,
}

impl<J: Job, D: Database> Crew<J, D> {
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
        options: CrewOptions,
    ) -> Result<Self, J::Error> {
        let sessions = options.sessions.clone();
        let now = runner.environment().now();
        let mut crew = Self {
            member: Member::new(sessions, runner.clone(), options.lease),
            roster: Roster::default(),
            work: BTreeMap::new(),
            ready: VecDeque::new(),
            steps: JoinSet::new(),
            woken: None,
            is_stale: false,
            look_at: now,
            round_at: now + options.patience,
            job,
            runner,
            options,
        };
        crew.begin_session().await?;
        crew.bury_the_dead().await?;
        Ok(crew)
    }

    /// Returns its session.
    #[must_use]
    pub fn session(&self) -> SessionId {
        self.member.id()
    }

    /// Works until it is told to stop, and how long it may take to.
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
        // From time to time also while it has work: there may be other buckets, and sessions.
        if now >= self.look_at || self.is_stale && self.has_room() {
            self.is_stale = false;
            self.look_at = now + self.options.poll_interval;
            let looked = self.look().await;
            if looked.is_err() {
                self.look_at = now + PAUSE_AFTER_FAILURE;
            }
            self.warn(looked, "the look for something to do failed");
        }
    }

    fn next_timer(&self) -> Duration {
        let retries = self.work.values().filter_map(|work| work.not_before);
        let times = retries.chain([self.look_at, self.round_at]);
        times.fold(self.member.next_tick(), Duration::min)
    }

    /// Whether it could do more than it knows of.
    fn has_room(&self) -> bool {
        self.ready.is_empty() && self.steps.len() < self.options.concurrency
    }

    /// Reads which buckets have something to do and which sessions live, and watches for more.
    async fn look(&mut self) -> Result<(), J::Error> {
        let (job, options) = (&*self.job, &self.options);
        let look = |tr: Tx<_>| async move {
            let woken = tr.watch(&options.wake);
            let sessions = options.sessions.all(&tr).map_err(J::Error::from);
            let (pending, sessions) = try_join!(job.pending(&tr), sessions)?;
            Ok::<_, J::Error>((woken, pending, sessions))
        };
        let (woken, pending, sessions) = self.runner.run(look).await?;
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

    /// Looks which buckets of others stand still, and stands in where it is this session's turn.
    async fn stand_in(&mut self) -> Result<(), J::Error> {
        let (job, roster, own) = (&*self.job, &self.roster, self.member.id());
        let look = |tr| async move {
            let mut pending = job.pending(&tr).await?;
            pending.retain(|bucket| roster.rank(own, *bucket) > 0);
            let marks = job.marks(&tr, &pending).await?;
            Ok::<_, J::Error>((pending, marks))
        };
        let (pending, marks) = self.runner.run(look).await?;
        let standing = pending.into_iter().zip(marks);
        for bucket in self.roster.stalled(own, standing) {
            if !self.work.contains_key(&bucket) {
                let recipe = self.options.sessions.subspace();
                tracing::info!(%recipe, %bucket, "stands in for another worker");
                self.put(bucket, true);
            }
        }
        Ok(())
    }

    /// Notes that there is something to do in a bucket.
    fn put(&mut self, bucket: Bucket, stands_in: bool) {
        let since = self.now();
        if let Some(work) = self.work.get_mut(&bucket) {
            work.again |= work.state.is_none();
            return;
        }
        let work = Work {
            state: Some(J::State::default()),
            again: false,
            not_before: None,
            stands_in,
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
            let place = Place {
                session: self.session(),
                bucket,
                is_owner: self.is_owner(bucket),
            };
            let state = self
                .work
                .get_mut(&bucket)
                .and_then(|work| work.state.take());
            if let Some(state) = state {
                let job = self.job.clone();
                let step = async move {
                    let step = AssertUnwindSafe(job.step(place, state)).catch_unwind();
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
            _ if !is_owner && !work.stands_in => drop(self.work.remove(&bucket)),
            Next::Done if !again => drop(self.work.remove(&bucket)),
            Next::Done | Next::Again => self.ready.push_back(bucket),
        }
    }

    /// Shows that the session lives, and looks who does not.
    async fn tick(&mut self) -> Result<(), J::Error> {
        match self.member.tick().await? {
            Tick::Observed => return Ok(()),
            // Whoever has declared it dead works on its buckets.
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
        // First, so that a report that fails keeps nobody from the buckets of the dead.
        self.bury_the_dead().await?;
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
    async fn bury_the_dead(&mut self) -> Result<(), J::Error> {
        let dead = self.member.look_for_dead().await?;
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

/// A crew at work in a task of its own. Dropping it stops the crew wherever it is.
#[must_use = "a crew whose hands are dropped stops"]
pub struct Hands<E> {
    crew: JoinSet<Result<(), E>>,
    stop: oneshot::Sender<Duration>,
}

impl<E: Send + 'static> Hands<E> {
    /// Has a crew work, in a span.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn begin<J: Job<Error = E>, D: Database>(crew: Crew<J, D>, span: tracing::Span) -> Self {
        let (stop, stopped) = oneshot::channel();
        let mut tasks = JoinSet::new();
        tasks.spawn(crew.run(stopped).instrument(span));
        Self { crew: tasks, stop }
    }

    /// Begins no more steps, waits up to `grace` for those under way, and ends the session.
    ///
    /// # Errors
    /// Those of [`Runner::run`]: the session ends after a lease then.
    ///
    /// # Cancel safety
    /// Dropping the future stops the crew wherever it is.
    pub async fn shut_down(mut self, grace: Duration) -> Result<(), E> {
        // It has ended by itself only if it panicked, which is told next.
        let _ = self.stop.send(grace);
        match self.crew.join_next().await {
            Some(Ok(ended)) => ended,
            Some(Err(error)) if error.is_panic() => {
                std::panic::resume_unwind(error.into_panic());
            }
            _ => Ok(()),
        }
    }
}

/// Waits for a watch, for ever if there is none.
async fn wait(watch: &mut Option<Watch>) -> keyspace::Result<()> {
    match watch {
        Some(watch) => watch.get_mut().await,
        None => std::future::pending().await,
    }
}

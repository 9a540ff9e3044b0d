//! One session, as the process that it belongs to drives it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::future::try_join_all;
use microqueue::keyspace::{self, Database, Result, Runner, Transaction, Tx, VersionClock};

use super::clocks::ClockCheck;
use super::{SessionId, Sessions};

/// How often a lease ticks: as often as the version clock must observe in order not to judge late.
const TICKS_PER_LEASE: u32 = 6;

/// How many ticks pass from one heartbeat to the next. Where the store is so slow that a tick takes
/// longer than that, the heart beats at each of them: others count their own ticks then, and must see
/// a heartbeat once in [`TICKS_PER_LEASE`].
const TICKS_PER_BEAT: u32 = 2;

/// How many sessions take a census in the time from one heartbeat to the next.
const CENSUSES_PER_BEAT: f64 = 4.0;

/// How many sessions one transaction declares dead at most.
const DEATHS_PER_STEP: usize = 100;

/// What a tick came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tick {
    /// A read version was observed.
    Observed,
    /// A read version was observed, and the heart has beaten.
    Beaten,
    /// The session is dead: another one has declared it so. [Open](Member::open) another one.
    Dead,
}

/// One's own session. It lives for as long as [`tick`](Self::tick) is called in time.
///
/// Time is what the others observe of the store, by a
/// [`VersionClock`](microqueue::keyspace::VersionClock): an outage ends no session, and on a slow store
/// it is enough to tick about as often as the others.
///
/// Dropping it ends nothing: others find it dead after a lease.
pub struct Member<D: Database> {
    sessions: Sessions,
    runner: Runner<D>,
    lease: Duration,
    /// The lease that the session has promised to the others.
    promised: Duration,
    id: SessionId,
    /// A clock for each lease that a session has.
    clocks: BTreeMap<Duration, VersionClock>,
    clock_check: ClockCheck,
    next_tick: Duration,
    /// When the next heartbeat is due.
    next_beat: Duration,
    /// How many sessions lived at the last census.
    living: usize,
}

impl<D: Database> Member<D> {
    /// Returns a member that has no session yet, and will promise this lease.
    #[must_use]
    pub fn new(sessions: Sessions, runner: Runner<D>, lease: Duration) -> Self {
        let env = runner.environment().clone();
        Self {
            id: SessionId(env.random_bytes()),
            next_tick: env.now(),
            next_beat: env.now(),
            clocks: BTreeMap::from([(lease, VersionClock::new(env.clone(), lease))]),
            clock_check: ClockCheck::new(env),
            sessions,
            runner,
            lease,
            promised: lease,
            living: 0,
        }
    }

    /// Sets another lease. The next heartbeat promises it, and the heart beats in time for both of them until
    /// then: the session may be called dead by neither.
    pub fn set_lease(&mut self, lease: Duration) {
        self.lease = lease;
        let env = self.runner.environment();
        let interval = self.interval();
        self.next_tick = self.next_tick.min(env.now() + interval);
        self.next_beat = self.next_beat.min(env.now() + interval);
    }

    /// Returns the time from one tick to the next.
    fn interval(&self) -> Duration {
        self.lease.min(self.promised) / TICKS_PER_LEASE
    }

    /// Begins a new session, in a transaction of its own.
    ///
    /// # Errors
    /// Those of [`Runner::run`].
    ///
    /// # Cancel safety
    /// Dropping the future may leave a session without a heartbeat, which others find dead.
    pub async fn open(&mut self) -> Result<()> {
        let env = self.runner.environment();
        self.id = SessionId(env.random_bytes());
        // What opens the session is a heartbeat, too.
        self.next_beat = env.now() + self.lease / TICKS_PER_LEASE;
        let (sessions, session, lease) = (&self.sessions, self.id, self.lease);
        let open = |tr| async move {
            sessions.open(&tr, session, lease, env.wall());
            Ok::<_, keyspace::Error>(())
        };
        self.runner.run(open).await?;
        self.promised = lease;
        tracing::debug!(recipe = %sessions.subspace(), %session, "opened a session");
        Ok(())
    }

    /// Returns the session's name.
    #[must_use]
    pub fn id(&self) -> SessionId {
        self.id
    }

    /// Returns when to call [`tick`](Self::tick), by the runner's environment.
    #[must_use]
    pub fn next_tick(&self) -> Duration {
        self.next_tick
    }

    /// Shows that the session lives, in a transaction of its own.
    ///
    /// # Errors
    /// Those of [`Runner::run`]. The next tick tries again.
    ///
    /// # Cancel safety
    /// Dropping the future may leave out a heartbeat.
    pub async fn tick(&mut self) -> Result<Tick> {
        let env = self.runner.environment();
        let now = env.now();
        let interval = self.interval();
        self.next_tick = now + interval;
        let read = |tr: Tx<_>| async move { tr.read_version().await };
        let version = self.runner.run(read).await?;
        self.clocks
            .values()
            .for_each(|clock| clock.observe(version));
        if now < self.next_beat {
            return Ok(Tick::Observed);
        }
        let (sessions, session, lease) = (&self.sessions, self.id, self.lease);
        let beat = |tr| async move { sessions.beat(&tr, session, lease, env.wall()).await };
        if self.runner.run(beat).await? {
            // In time for the lease that was promised before, and for this one.
            self.next_beat = now + interval * TICKS_PER_BEAT;
            self.promised = lease;
            return Ok(Tick::Beaten);
        }
        tracing::warn!(recipe = %sessions.subspace(), %session, "the session was declared dead");
        Ok(Tick::Dead)
    }

    /// Declares those sessions dead that have shown no sign of life for a lease, and returns the dead
    /// that are still there. Call it after each heartbeat: of many sessions that live, a few take a
    /// [census](Sessions::census) each time, at random, and the others return nothing. A session that
    /// does not [trust its clock](Self::trusts_clock) takes one each time.
    ///
    /// # Errors
    /// Those of [`Runner::run`].
    ///
    /// # Cancel safety
    /// What it has not declared dead the next call finds.
    pub async fn find_dead(&mut self) -> Result<Vec<SessionId>> {
        let share = CENSUSES_PER_BEAT / self.living.max(1) as f64;
        let is_drawn = self.runner.environment().random_unit() < share;
        if !is_drawn && self.trusts_clock() {
            return Ok(Vec::new());
        }
        // Sessions of earlier openings of a store that one process owns are gone, however lately.
        let owned_since = self.runner.database().owned_since();
        let clocks = &self.clocks;
        let ago = |lease: Duration| {
            let ago = clocks.get(&lease).and_then(VersionClock::version_ago);
            ago.max(owned_since)
        };
        let ago = &ago;
        let (sessions, own) = (&self.sessions, self.id);
        let count = |tr| async move { sessions.census(&tr, own, ago).await };
        let census = self.runner.run(count).await?;
        self.living = census.living;
        self.clock_check.judge(&census, self.lease);
        let mut dead = Vec::new();
        for suspects in census.suspects.chunks(DEATHS_PER_STEP) {
            let declare = |tr| async move {
                let tr = &tr;
                let declare = |session: &SessionId| sessions.declare_dead(tr, *session, ago);
                try_join_all(suspects.iter().map(declare)).await
            };
            let are_dead = self.runner.run(declare).await?;
            let found = suspects
                .iter()
                .zip(are_dead)
                .filter(|(_, is_dead)| *is_dead);
            dead.extend(found.map(|(session, _)| *session));
        }
        self.judge_by(&census.leases);
        Ok(dead)
    }

    /// Keeps a clock for each of these leases. A new one has observed nothing, and judges after its lease.
    fn judge_by(&mut self, leases: &BTreeSet<Duration>) {
        let env = self.runner.environment();
        self.clocks.retain(|lease, _| leases.contains(lease));
        for lease in leases {
            let clock = || VersionClock::new(env.clone(), *lease);
            self.clocks.entry(*lease).or_insert_with(clock);
        }
    }

    /// Returns whether this process's wall clock may decide what is due.
    ///
    /// It may not if it differs from the median of the wall clocks of the sessions that live, its own
    /// among them, by more than [`MAX_CLOCK_ERROR`](super::MAX_CLOCK_ERROR), as far as the last census has
    /// seen; nor if it was set by more than that since, until the next one. With fewer than three sessions
    /// there is no majority, and the clock is trusted.
    #[must_use]
    pub fn trusts_clock(&self) -> bool {
        self.clock_check.is_trusted()
    }

    /// Returns by how much this process's wall clock is ahead of the median, in seconds, negative if it is
    /// behind, as far as the last census has seen.
    #[must_use]
    pub fn clock_error_seconds(&self) -> f64 {
        self.clock_check.error_seconds()
    }

    /// Ends the session, so that what it holds is returned.
    ///
    /// # Errors
    /// Those of [`Runner::run`].
    ///
    /// # Cancel safety
    /// The session has ended or is alive.
    pub async fn retire(&self) -> Result<()> {
        let (sessions, session) = (&self.sessions, self.id);
        let retire = |tr| async move { sessions.retire(&tr, session).await };
        self.runner.run(retire).await
    }
}

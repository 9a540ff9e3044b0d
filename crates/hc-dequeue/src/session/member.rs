//! One session, driven by the process that it belongs to.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::future::try_join_all;
use microqueue::keyspace::names::queue_name;
use microqueue::keyspace::{self, Database, Result, Runner, Store, Transaction, Tx, VersionClock};

use super::clocks::ClockCheck;
use super::{SessionId, Sessions};

/// The number of ticks in a lease: the version clock must observe this often to judge in time.
const TICKS_PER_LEASE: u32 = 6;

/// The number of ticks from one heartbeat to the next. If the store is so slow that a tick takes longer, every tick
/// writes a heartbeat: other sessions count their own ticks, and must see a heartbeat once in [`TICKS_PER_LEASE`].
const TICKS_PER_HEARTBEAT: u32 = 2;

/// How many sessions take a census between two heartbeats.
const CENSUSES_PER_HEARTBEAT: f64 = 4.0;

/// The largest number of sessions that one transaction declares dead.
const MAX_DECLARED_DEATHS: usize = 100;

/// The result of a tick.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tick {
    /// The tick observed a read version.
    Observed,
    /// The tick observed a read version and wrote a heartbeat.
    Heartbeat,
    /// Another session has declared this one dead. [Open](Member::open) a new one.
    Dead,
}

/// A session of this process. It stays alive as long as [`tick`](Self::tick) is called in time.
///
/// Time is what the other sessions observe of the store, by a [`VersionClock`].
/// An outage therefore ends no session, and on a slow store it is enough to tick about as often as the others.
///
/// Dropping a member does not end its session: the others declare it dead after its lease.
pub struct Member {
    sessions: Sessions,
    runner: Runner<Store>,
    lease: Duration,
    /// The lease that the session has promised in the store.
    promised: Duration,
    id: SessionId,
    /// A clock for each lease of the sessions.
    clocks: BTreeMap<Duration, VersionClock>,
    clock_check: ClockCheck,
    next_tick: Duration,
    /// When the next heartbeat is due.
    next_heartbeat: Duration,
    /// How many sessions were alive at the last census.
    living: usize,
}

impl Member {
    /// Returns a member that has no session yet, and will promise this lease.
    #[must_use]
    pub fn new<D: Database>(sessions: Sessions, runner: &Runner<D>, lease: Duration) -> Self {
        let env = runner.environment().clone();
        Self {
            id: SessionId(env.random_bytes()),
            next_tick: env.now(),
            next_heartbeat: env.now(),
            clocks: BTreeMap::from([(lease, VersionClock::new(env.clone(), lease))]),
            clock_check: ClockCheck::new(env),
            sessions,
            runner: runner.on_store(),
            lease,
            promised: lease,
            living: 0,
        }
    }

    /// Sets another lease. The next heartbeat promises it. Until then, the session writes heartbeats in time for both
    /// leases, so that it is not declared dead by either.
    pub fn set_lease(&mut self, lease: Duration) {
        self.lease = lease;
        let env = self.runner.environment();
        let interval = self.interval();
        self.next_tick = self.next_tick.min(env.now() + interval);
        self.next_heartbeat = self.next_heartbeat.min(env.now() + interval);
    }

    /// Returns the time from one tick to the next.
    fn interval(&self) -> Duration {
        self.lease.min(self.promised) / TICKS_PER_LEASE
    }

    /// Opens a new session, in a transaction of its own.
    ///
    /// # Errors
    /// Those of [`Runner::run`].
    ///
    /// # Cancel safety
    /// Dropping the future may leave a session without heartbeats, which other sessions declare dead.
    pub async fn open(&mut self) -> Result<()> {
        let env = self.runner.environment();
        self.id = SessionId(env.random_bytes());
        // Opening the session writes the first heartbeat.
        self.next_heartbeat = env.now() + self.lease / TICKS_PER_LEASE;
        let sessions = &self.sessions;
        let session = self.id;
        let lease = self.lease;
        let open = |tr| async move {
            sessions.open(&tr, session, lease, env.wall());
            Ok::<_, keyspace::Error>(())
        };
        self.runner.run(open).await?;
        self.promised = lease;
        tracing::debug!(recipe = %queue_name(sessions.subspace()), %session, "opened a session");
        Ok(())
    }

    /// Returns the session's name.
    #[must_use]
    pub fn id(&self) -> SessionId {
        self.id
    }

    /// Returns when to call [`tick`](Self::tick), by the clock of the runner's environment.
    #[must_use]
    pub fn next_tick(&self) -> Duration {
        self.next_tick
    }

    /// Observes the store's read version, and writes a heartbeat if one is due, in a transaction of its own.
    ///
    /// # Errors
    /// Those of [`Runner::run`]. The next tick tries again.
    ///
    /// # Cancel safety
    /// Dropping the future may skip a heartbeat.
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
        if now < self.next_heartbeat {
            return Ok(Tick::Observed);
        }
        let sessions = &self.sessions;
        let session = self.id;
        let lease = self.lease;
        let beat = |tr| async move { sessions.beat(&tr, session, lease, env.wall()).await };
        if self.runner.run(beat).await? {
            // In time both for the lease that was promised before and for this one.
            self.next_heartbeat = now + interval * TICKS_PER_HEARTBEAT;
            self.promised = lease;
            return Ok(Tick::Heartbeat);
        }
        tracing::warn!(recipe = %queue_name(sessions.subspace()), %session, "the session was declared dead");
        Ok(Tick::Dead)
    }

    /// Declares sessions dead that have been silent for their lease, and returns the dead sessions that still exist.
    ///
    /// Call it after each heartbeat. If many sessions are alive, only a few of them, chosen at random, take a
    /// [census](Sessions::census) each time; the others return nothing. A session that does not [trust its
    /// clock](Self::trusts_clock) always takes one.
    ///
    /// # Errors
    /// Those of [`Runner::run`].
    ///
    /// # Cancel safety
    /// If the future is dropped, the next call finds the remaining sessions.
    pub async fn find_dead(&mut self) -> Result<Vec<SessionId>> {
        let share = CENSUSES_PER_HEARTBEAT / self.living.max(1) as f64;
        let is_drawn = self.runner.environment().random_unit() < share;
        if !is_drawn && self.trusts_clock() {
            return Ok(Vec::new());
        }
        // If one process owns the store, sessions of its earlier openings are gone, however recent.
        let owned_since = self.runner.database().owned_since();
        let clocks = &self.clocks;
        let ago = |lease: Duration| {
            let ago = clocks.get(&lease).and_then(VersionClock::version_ago);
            ago.max(owned_since)
        };
        let ago = &ago;
        let sessions = &self.sessions;
        let own = self.id;
        let count = |tr| async move { sessions.census(&tr, own, ago).await };
        let census = self.runner.run(count).await?;
        self.living = census.living;
        self.clock_check.judge(&census, self.lease);
        let mut dead = Vec::new();
        for suspects in census.suspects.chunks(MAX_DECLARED_DEATHS) {
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

    /// Keeps a clock for each of these leases. A new clock has observed nothing, and can judge only after its lease.
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
    /// The clock is not trusted if, at the last census, it differed from the median of the wall clocks of all living
    /// sessions by more than [`MAX_CLOCK_ERROR`](super::MAX_CLOCK_ERROR), or if it was set by more than that since.
    /// With fewer than three sessions there is no majority, and the clock is always trusted.
    #[must_use]
    pub fn trusts_clock(&self) -> bool {
        self.clock_check.is_trusted()
    }

    /// Returns by how many seconds this process's wall clock was ahead of the median at the last census. The number
    /// is negative if the clock is slow.
    #[must_use]
    pub fn clock_error_seconds(&self) -> f64 {
        self.clock_check.error_seconds()
    }

    /// Ends the session, so that the items that it holds are returned.
    ///
    /// # Errors
    /// Those of [`Runner::run`].
    ///
    /// # Cancel safety
    /// If the future is dropped, the session may have ended or be alive.
    pub async fn end(&self) -> Result<()> {
        let sessions = &self.sessions;
        let session = self.id;
        let end = |tr| async move { sessions.end(&tr, session).await };
        self.runner.run(end).await
    }
}

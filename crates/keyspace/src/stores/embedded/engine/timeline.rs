//! The version clock and the published states of the store.
//!
//! Versions advance with the environment's monotonic clock, a million per second, whether or not there are
//! commits. Otherwise an idle store would hand out read versions that the resolver calls too old. Between
//! commits they advance in steps. Three rules make the order of versions the order of visibility:
//!
//! 1. A commit version is greater than every version that was assigned before it.
//! 2. While commits are in flight, read versions stay below the oldest of their versions, because none of
//!    these commits is visible yet.
//! 3. Otherwise a read version is at least the newest commit version.
//!
//! A fourth rule keeps versions in order across openings. An opening begins [`RECOVERY_VERSIONS`] after the
//! newest version on disk:
//!
//! 4. The clock stands still at [`LEAD_VERSIONS`] after the newest version on disk, until a later version
//!    is flushed. It does not catch up on the time that it stood still. An idle store writes a version to
//!    its log to let the clock continue, if a transaction asks for a version.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use super::snapshot::PublishedState;
use crate::contract::env::Environment;
use crate::contract::error::{Code, Error, Result};
use crate::contract::limits::{RECOVERY_VERSIONS, TRANSACTION_LIFE_VERSIONS, VERSIONS_PER_SECOND};
use crate::stores::embedded::layers::{Checkpointed, PartId, Parts};
use crate::stores::embedded::runs::RunList;

/// The number of published states that `set_read_version` can reach. Each keeps the data that later batches
/// have replaced in memory.
const MAX_REACHABLE_STATES: usize = 64;

/// The largest total size of the batches after the oldest of these states, in bytes. The data that these
/// batches replaced takes several times as much memory.
const MAX_REACHABLE_BYTES: usize = 4 << 20;

/// How long, in versions, an idle store returns the same read version. A FoundationDB cluster, too, returns
/// the newest commit version until an empty commit advances it.
const IDLE_VERSIONS: i64 = VERSIONS_PER_SECOND / 4;

/// How far the clock may be ahead of the newest version on disk. The rest of the recovery's jump is for
/// commits while the clock stands still, which take one version each.
const LEAD_VERSIONS: i64 = RECOVERY_VERSIONS / 2;

/// How close the clock may come to the point where it stands still before a clock frame is written.
const CLOCK_FRAME_VERSIONS: i64 = LEAD_VERSIONS / 2;

/// The value of [`Timeline::in_flight`] while no commit is in flight.
const NONE: i64 = i64::MAX;

/// Assigns versions, and knows the state to read at each.
pub(super) struct Timeline {
    environment: Environment,
    /// When the clock began, on the environment's clock.
    origin: Duration,
    /// The version at `origin`, minus the time that the clock has stood still. Written under `line`, before
    /// `horizon`; also read without it.
    base: AtomicI64,
    /// The version at which the clock stands still. Written under `line`; also read without it.
    horizon: AtomicI64,
    /// The oldest version that is being committed. Written under `line`; also read without it.
    in_flight: AtomicI64,
    line: Mutex<Line>,
}

struct Line {
    last_given: i64,
    /// The versions being committed, oldest first.
    in_flight: VecDeque<i64>,
    /// The runs below the states, `None` after the store has ended.
    checkpointed: Option<Checkpointed>,
    /// The newest published states, oldest first. The last one is what new transactions read.
    reachable: VecDeque<Arc<PublishedState>>,
    /// The total size of the batches after the first of these states, in bytes.
    reachable_bytes: usize,
    /// Older states that transactions still hold, each with the version of the next state.
    held: VecDeque<(i64, Weak<PublishedState>)>,
    /// Why the store has ended, if it has.
    ended: Option<Error>,
}

impl Timeline {
    /// Starts the clock at `base`, a version on disk, with the rows as of that version.
    pub(super) fn new(
        environment: Environment,
        base: i64,
        parts: Parts,
        runs: Checkpointed,
    ) -> Self {
        let origin = environment.now();
        Self {
            environment,
            origin,
            base: AtomicI64::new(base),
            horizon: AtomicI64::new(base + LEAD_VERSIONS),
            in_flight: AtomicI64::new(NONE),
            line: Mutex::new(Line {
                last_given: base,
                in_flight: VecDeque::new(),
                reachable: VecDeque::from([Arc::new(PublishedState::new(base, parts, &runs, 0))]),
                reachable_bytes: 0,
                checkpointed: Some(runs),
                held: VecDeque::new(),
                ended: None,
            }),
        }
    }

    pub(super) fn environment(&self) -> &Environment {
        &self.environment
    }

    /// Returns a read version that is at least every acknowledged commit version, and its state.
    pub(super) fn read_version(&self) -> Result<(i64, Arc<PublishedState>)> {
        let mut line = self.serving()?;
        Ok((self.give(&mut line), line.newest().clone()))
    }

    /// Returns the state to read at a version that was assigned before.
    pub(super) fn state_at(&self, version: i64) -> Result<Arc<PublishedState>> {
        let mut line = self.serving()?;
        let newest = self.give(&mut line);
        if version > newest {
            return Err(Code::FUTURE_VERSION.into());
        }
        if self.is_too_old(version) {
            return Err(Code::TRANSACTION_TOO_OLD.into());
        }
        let mut newest_first = line.reachable.iter().rev();
        let state = newest_first
            .find(|state| state.version() <= version)
            .ok_or(Code::TRANSACTION_TOO_OLD)?;
        Ok(state.clone())
    }

    /// Returns true if `version` is older than five seconds, so that a transaction may no longer read at
    /// it.
    ///
    /// Time stands still while a commit is in flight, as it does for read versions.
    pub(super) fn is_too_old(&self, version: i64) -> bool {
        let now = self.clock().min(self.in_flight.load(Ordering::Relaxed));
        version < now - TRANSACTION_LIFE_VERSIONS
    }

    /// Assigns the version of the next batch of commits, which is in flight from this call on.
    pub(super) fn begin_commit(&self) -> i64 {
        let mut line = self.line();
        let version = self.clock().max(line.last_given + 1);
        line.last_given = version;
        line.in_flight.push_back(version);
        self.note_in_flight(&line);
        version
    }

    /// Returns the current version, to be written to the log in a clock frame, and makes later batches get later
    /// versions. `None` while a batch is in flight: its version is smaller, but it would come later in the log.
    pub(super) fn version_of_clock_frame(&self) -> Option<i64> {
        let mut line = self.line();
        if !line.in_flight.is_empty() {
            return None;
        }
        line.last_given = self.clock().max(line.last_given);
        Some(line.last_given)
    }

    /// Returns whether the clock is about to stand still because no newer version is on disk.
    pub(super) fn wants_clock_frame(&self) -> bool {
        self.running() > self.horizon.load(Ordering::Relaxed) - CLOCK_FRAME_VERSIONS
    }

    /// Records that `version` and everything before it are on disk.
    pub(super) fn flushed(&self, version: i64) {
        let _line = self.line();
        let horizon = self.horizon.load(Ordering::Relaxed);
        let stood_still = (self.running() - horizon).max(0);
        self.base.fetch_sub(stood_still, Ordering::Relaxed);
        self.horizon
            .store(version + LEAD_VERSIONS, Ordering::Release);
    }

    /// Publishes the state after the oldest batch in flight: new transactions read it.
    ///
    /// `bytes` is the size of the batch.
    pub(super) fn publish(&self, version: i64, parts: Parts, bytes: usize) {
        let mut line = self.line();
        self.land(&mut line, version);
        // Use the current runs: a checkpoint may have moved parts since the batch was resolved.
        let Some(checkpointed) = &line.checkpointed else {
            return;
        };
        let state = Arc::new(PublishedState::new(version, parts, checkpointed, bytes));
        line.reachable.push_back(state);
        line.reachable_bytes += bytes;
        let expired = line.expire(version - TRANSACTION_LIFE_VERSIONS);
        drop(line);
        // Do this without the lock: emptying waits for a read that is under way in that state.
        for state in &expired {
            state.empty();
        }
    }

    /// Ends the oldest batch in flight without publishing a state.
    pub(super) fn abandon_commit(&self, version: i64) {
        self.land(&mut self.line(), version);
    }

    /// Returns the runs after the last checkpoint or merge, unless the store has ended.
    pub(super) fn newest_runs(&self) -> Option<Checkpointed> {
        self.line().checkpointed.clone()
    }

    /// Reads the rows of a part from the runs to which a checkpoint has moved it.
    pub(super) fn checkpointed(&self, runs: &Arc<RunList>, part: PartId) {
        self.rebase(|_| Checkpointed::after(runs.clone(), part));
    }

    /// Reads the same rows from the runs that a merge has left.
    pub(super) fn merged(&self, runs: &Arc<RunList>) {
        self.rebase(|checkpointed| checkpointed.merged(runs.clone()));
    }

    fn rebase(&self, next: impl FnOnce(&Checkpointed) -> Checkpointed) {
        let (checkpointed, states) = {
            let mut line = self.line();
            // It has ended otherwise.
            let Some(checkpointed) = &mut line.checkpointed else {
                return;
            };
            *checkpointed = next(checkpointed);
            (checkpointed.clone(), line.reachable.clone())
        };
        for state in &states {
            state.rebase(&checkpointed);
        }
    }

    /// Releases the states that transactions may no longer read.
    pub(super) fn expire(&self) {
        let mut line = self.line();
        if line.ended.is_some() {
            return;
        }
        let oldest = self.clock().min(self.in_flight.load(Ordering::Relaxed));
        let expired = line.expire(oldest - TRANSACTION_LIFE_VERSIONS);
        drop(line);
        for state in &expired {
            state.empty();
        }
    }

    /// Makes all later calls fail with the returned error, and releases all rows. The error is `error`,
    /// unless an earlier call gave another one.
    pub(super) fn end(&self, error: Error) -> Error {
        let mut line = self.line();
        let error = line.ended.get_or_insert(error).clone();
        let reachable = std::mem::take(&mut line.reachable);
        let held = std::mem::take(&mut line.held);
        line.checkpointed = None;
        drop(line);
        let held = held.into_iter().filter_map(|(_, state)| state.upgrade());
        for state in reachable.into_iter().chain(held) {
            state.empty();
        }
        error
    }

    /// Fails if the store has ended.
    pub(super) fn check(&self) -> Result<()> {
        self.serving().map(drop)
    }

    fn give(&self, line: &mut Line) -> i64 {
        let version = match self.in_flight.load(Ordering::Relaxed) {
            NONE if self.clock() - line.last_given < IDLE_VERSIONS => line.last_given,
            NONE => self.clock(),
            in_flight => in_flight - 1,
        };
        line.last_given = line.last_given.max(version);
        version
    }

    /// Removes the oldest batch in flight.
    fn land(&self, line: &mut Line, version: i64) {
        let landed = line.in_flight.pop_front();
        assert_eq!(landed, Some(version), "batches land in their order");
        self.note_in_flight(line);
    }

    fn note_in_flight(&self, line: &Line) {
        let oldest = line.in_flight.front().copied().unwrap_or(NONE);
        self.in_flight.store(oldest, Ordering::Relaxed);
    }

    /// Returns the current version.
    fn clock(&self) -> i64 {
        // Load them in this order: a thread that sees a new horizon then also sees the base that belongs to
        // it.
        let horizon = self.horizon.load(Ordering::Acquire);
        self.running().min(horizon)
    }

    /// Returns the version that the clock would have if it did not stand still.
    fn running(&self) -> i64 {
        const { assert!(VERSIONS_PER_SECOND == 1_000_000) };
        let elapsed = self.environment.now().saturating_sub(self.origin);
        let versions = i64::try_from(elapsed.as_micros()).unwrap_or(i64::MAX);
        self.base.load(Ordering::Relaxed).saturating_add(versions)
    }

    fn serving(&self) -> Result<MutexGuard<'_, Line>> {
        let line = self.line();
        match &line.ended {
            Some(error) => Err(error.clone()),
            None => Ok(line),
        }
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock()
    }
}

impl Line {
    fn newest(&self) -> &Arc<PublishedState> {
        self.reachable
            .back()
            .expect("a store that serves has published a state")
    }

    /// Removes the states that transactions cannot read at `oldest` or later, and returns those that a
    /// transaction still holds.
    ///
    /// A state is read at versions below that of the next state.
    fn expire(&mut self, oldest: i64) -> Vec<Arc<PublishedState>> {
        while let Some(next) = self.reachable.get(1)
            && (self.reachable.len() > MAX_REACHABLE_STATES
                || self.reachable_bytes > MAX_REACHABLE_BYTES
                || next.version() <= oldest)
        {
            self.reachable_bytes -= next.bytes();
            let next = next.version();
            let state = self.reachable.pop_front().expect("there is a second one");
            // New holders come only from `reachable`, so a state without holders stays without.
            if Arc::strong_count(&state) > 1 {
                self.held.push_back((next, Arc::downgrade(&state)));
            }
        }
        let expired_count = self.held.partition_point(|&(next, _)| next <= oldest);
        let expired = self.held.drain(..expired_count);
        expired.filter_map(|(_, state)| state.upgrade()).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::contract::env::ManualClock;
    use crate::stores::embedded::backend::MemoryBackend;
    use crate::stores::embedded::disk::open::OpenedStore;
    use crate::stores::embedded::layers::Window;
    use crate::stores::embedded::tests::setup;

    const LIFE: i64 = TRANSACTION_LIFE_VERSIONS;

    struct Fixture {
        clock: ManualClock,
        timeline: Timeline,
        window: RefCell<Window>,
    }

    impl Fixture {
        fn new() -> Self {
            let clock = ManualClock::new();
            let environment = Environment::seeded(0, Arc::new(clock.clone()));
            let OpenedStore {
                checkpointed,
                mut window,
                ..
            } = OpenedStore::create(Arc::new(MemoryBackend::default()), &setup()).unwrap();
            Self {
                clock,
                timeline: Timeline::new(environment, LIFE, window.parts(), checkpointed),
                window: RefCell::new(window),
            }
        }

        fn advance(&self, versions: i64) {
            self.clock
                .advance(Duration::from_micros(versions.unsigned_abs()));
        }

        fn commit(&self) -> i64 {
            let version = self.timeline.begin_commit();
            self.publish(version);
            version
        }

        fn publish(&self, version: i64) {
            let parts = self.window.borrow_mut().parts();
            self.timeline.publish(version, parts, 0);
        }

        fn read_version(&self) -> i64 {
            self.timeline.read_version().unwrap().0
        }
    }

    #[test]
    fn versions_advance_with_the_clock_in_steps_and_commits_pass_every_version_given() {
        let it = Fixture::new();
        assert_eq!(it.read_version(), LIFE);
        assert_eq!(it.read_version(), LIFE);
        assert_eq!(it.commit(), LIFE + 1);
        assert_eq!(it.commit(), LIFE + 2);
        assert_eq!(it.read_version(), LIFE + 2);
        it.advance(IDLE_VERSIONS);
        assert_eq!(it.read_version(), LIFE + 2);
        it.advance(2);
        assert_eq!(it.read_version(), LIFE + 2 + IDLE_VERSIONS);
        assert_eq!(it.commit(), LIFE + 3 + IDLE_VERSIONS);
    }

    #[test]
    fn read_versions_stay_below_a_commit_in_flight() {
        let it = Fixture::new();
        it.advance(IDLE_VERSIONS);
        let version = it.timeline.begin_commit();
        it.advance(IDLE_VERSIONS);
        let (read_version, state) = it.timeline.read_version().unwrap();
        assert_eq!(read_version, version - 1);
        assert_eq!(state.version(), LIFE);
        it.timeline.abandon_commit(version);
        assert_eq!(it.read_version(), LIFE + 2 * IDLE_VERSIONS);
    }

    #[test]
    fn time_stands_still_for_transactions_while_a_commit_is_in_flight() {
        let it = Fixture::new();
        let read_version = it.read_version();
        let version = it.timeline.begin_commit();
        it.advance(2 * LIFE);
        assert!(!it.timeline.is_too_old(read_version));
        it.publish(version);
        assert!(it.timeline.is_too_old(read_version));
    }

    #[test]
    fn a_state_is_emptied_once_no_transaction_may_read_it_though_one_holds_it() {
        let it = Fixture::new();
        let (_, forgotten) = it.timeline.read_version().unwrap();
        let replaced = it.commit();
        for _ in 0..MAX_REACHABLE_STATES {
            it.commit();
        }
        it.advance(LIFE - 1);
        it.commit();
        assert!(!forgotten.is_empty());
        it.advance(replaced);
        it.commit();
        assert!(forgotten.is_empty());
    }

    #[test]
    fn states_that_nobody_holds_do_not_pile_up() {
        let it = Fixture::new();
        for _ in 0..10 * MAX_REACHABLE_STATES {
            it.commit();
        }
        let line = it.timeline.line();
        assert_eq!(line.reachable.len(), MAX_REACHABLE_STATES);
        assert!(line.held.is_empty());
    }

    #[test]
    fn versions_in_the_log_grow_clock_frames_included() {
        let it = Fixture::new();
        let version = it.timeline.begin_commit();
        it.advance(LEAD_VERSIONS);
        assert!(it.timeline.wants_clock_frame());
        assert_eq!(it.timeline.version_of_clock_frame(), None);
        it.publish(version);
        let of_clock = it.timeline.version_of_clock_frame().unwrap();
        assert!(of_clock > version);
        assert!(it.timeline.begin_commit() > of_clock);
    }

    #[test]
    fn few_states_are_kept_after_large_batches() {
        let it = Fixture::new();
        for _ in 0..10 {
            let version = it.timeline.begin_commit();
            let parts = it.window.borrow_mut().parts();
            it.timeline.publish(version, parts, MAX_REACHABLE_BYTES / 2);
        }
        assert_eq!(it.timeline.line().reachable.len(), 3);
        for _ in 0..10 {
            it.commit();
        }
        assert_eq!(it.timeline.line().reachable.len(), 13);
    }

    #[test]
    fn versions_that_nothing_reaches_back_to_are_too_old_before_their_time() {
        let it = Fixture::new();
        let version = it.read_version();
        for _ in 0..MAX_REACHABLE_STATES {
            it.commit();
        }
        let error = it.timeline.state_at(version).err().unwrap();
        assert_eq!(error.code(), Some(Code::TRANSACTION_TOO_OLD));
    }

    #[test]
    fn the_first_end_is_the_reason_given_ever_after() {
        let it = Fixture::new();
        let (_, state) = it.timeline.read_version().unwrap();
        let cancelled = it.timeline.end(Code::TRANSACTION_CANCELLED.into());
        let error = it.timeline.end(Code::IO_ERROR.into());
        assert_eq!(cancelled.code(), error.code());
        assert_eq!(it.timeline.check().unwrap_err().code(), error.code());
        assert!(state.is_empty());
        it.commit();
        assert!(it.timeline.read_version().is_err());
    }
}

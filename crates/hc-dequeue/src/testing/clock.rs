//! A wall clock that a test sets.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use microqueue::keyspace::Environment;
use microqueue::keyspace::env::{BoxFuture, Clock};
use microqueue::keyspace::record::millis;

use crate::wall::{unix_millis, unix_time, wall_millis};

/// A wall clock that stands still until a test moves it. Clones are the same clock.
///
/// Wall time decides when a delayed or snoozed item, a retry and a schedule are due, and when a dedupe id
/// expires: [`advance`](Self::advance) brings them into the present at once. All other time stays the machine's:
/// heartbeats, leases, the time limits of deliveries and polls go on while the wall stands still. (With a
/// [`keyspace::env::ManualClock`](microqueue::keyspace::env::ManualClock) they stand still as well, and what
/// waits for them waits for good.)
///
/// The queue must be opened with a runner that has the clock's [`environment`](Self::environment). It has whole
/// milliseconds, as stored times have.
///
/// Move it between two calls of [`drain`](super::drain). A consumer or worker that runs while the wall is set by
/// more than [`MAX_CLOCK_ERROR`](crate::session::MAX_CLOCK_ERROR) trusts it again with its next heartbeat, a third
/// of the lease later. A schedule's time that is passed by more than [`MISSED_AFTER`](crate::MISSED_AFTER) was
/// missed, and the schedule's [`Missed`](crate::Missed) says what becomes of it: to have it fire as it does in
/// production, [`set`](Self::set) the wall to [`ScheduleEntry::next`](crate::ScheduleEntry::next).
///
/// ```
/// use std::time::{Duration, SystemTime};
///
/// use hc_dequeue::testing::ManualWall;
///
/// let wall = ManualWall::new();
/// let env = wall.environment();
/// let before = env.wall();
/// wall.advance(Duration::from_secs(60));
/// assert_eq!(env.wall(), before + Duration::from_secs(60));
///
/// wall.set(SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000));
/// assert_eq!(env.wall(), wall.time());
/// ```
#[derive(Debug, Clone)]
pub struct ManualWall {
    millis: Arc<AtomicU64>,
}

impl ManualWall {
    /// Returns a clock that shows the present wall time of the machine, and stands still.
    #[must_use]
    pub fn new() -> Self {
        let millis = wall_millis(&Environment::system());
        let millis = Arc::new(AtomicU64::new(millis));
        Self { millis }
    }

    /// Moves the wall time forward, by whole milliseconds.
    pub fn advance(&self, time: Duration) {
        self.millis.fetch_add(millis(time), Ordering::Relaxed);
    }

    /// Sets the wall time to an earlier or a later one, without its fraction of a millisecond. A time before the
    /// Unix epoch counts as the epoch.
    pub fn set(&self, wall: SystemTime) {
        self.millis.store(unix_millis(wall), Ordering::Relaxed);
    }

    /// Returns the wall time.
    #[must_use]
    pub fn time(&self) -> SystemTime {
        unix_time(self.millis.load(Ordering::Relaxed))
    }

    /// Returns the machine's environment with this wall clock in the place of its own.
    #[must_use]
    pub fn environment(&self) -> Environment {
        Environment::system().with_clock(Arc::new(self.clone()))
    }
}

impl Default for ManualWall {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for ManualWall {
    fn now(&self) -> Duration {
        Environment::system().now()
    }

    fn wall(&self) -> SystemTime {
        self.time()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<()> {
        Environment::system().sleep(duration)
    }
}

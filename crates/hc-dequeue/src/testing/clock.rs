//! A wall clock that tests set.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use futures::future::BoxFuture;
use microqueue::keyspace::Environment;
use microqueue::keyspace::env::Clock;
use microqueue::keyspace::record::millis;

use crate::session::wall::{unix_millis, unix_time, wall_millis};

/// A wall clock that only moves when a test moves it. Clones share the same time.
///
/// Wall time decides when delayed items, snoozed items, retries and schedules are due and when dedupe ids expire.
/// [`advance`](Self::advance) makes them due at once. All other time is still the machine's: heartbeats, leases, the
/// time limits of deliveries and polls continue while the wall clock stands still. Do not use it with a
/// [`ManualClock`](microqueue::keyspace::env::ManualClock): then they would stand still, too, and tasks that wait for
/// them would never continue.
///
/// Rates of groups count the store's time, which this clock does not move, but [`advance_rates`](super::advance_rates)
/// does. Without that, a worker looks by this clock at a group that waits for its rate: move it to let it go on.
///
/// Open the queue with a runner that uses the clock's [`environment`](Self::environment). The clock has a resolution
/// of one millisecond, like stored times.
///
/// Move the clock between two calls of [`drain`](super::drain). If it moves by more than
/// [`MAX_CLOCK_ERROR`](crate::session::MAX_CLOCK_ERROR) while a consumer or worker runs, that consumer or worker
/// trusts it again at its next heartbeat, a third of the lease later.
///
/// If the clock moves past a schedule's time by more than [`MISSED_AFTER`](crate::MISSED_AFTER), the time was missed
/// and the schedule's [`Missed`](crate::Missed) policy applies. To make a schedule fire as it does in production,
/// [`set`](Self::set) the clock to [`ScheduleEntry::next`](crate::ScheduleEntry::next).
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
    /// Returns a clock that stands still at the current wall time of the machine.
    #[must_use]
    pub fn new() -> Self {
        let millis = wall_millis(&Environment::system());
        let millis = Arc::new(AtomicU64::new(millis));
        Self { millis }
    }

    /// Moves the clock forward, by whole milliseconds.
    pub fn advance(&self, time: Duration) {
        self.millis.fetch_add(millis(time), Ordering::Relaxed);
    }

    /// Sets the clock to an earlier or later time, truncated to whole milliseconds. A time before the Unix epoch
    /// counts as the epoch.
    pub fn set(&self, wall: SystemTime) {
        self.millis.store(unix_millis(wall), Ordering::Relaxed);
    }

    /// Returns the time that the clock shows.
    #[must_use]
    pub fn time(&self) -> SystemTime {
        unix_time(self.millis.load(Ordering::Relaxed))
    }

    /// Returns the machine's environment with this clock in place of its wall clock.
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

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Environment::system().sleep(duration)
    }
}

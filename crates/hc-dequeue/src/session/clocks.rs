//! Whether a session's own wall clock agrees with those of the other sessions.
//!
//! Each heartbeat contains the wall time of the process that wrote it. A session that reads the heartbeats of the
//! others adds to each wall time the age of the heartbeat, computed from versions. The results are the present times
//! of the other wall clocks.
//!
//! A session compares its clock when it opens, at the first heartbeat after its clock was set by more than a minute
//! and, with n sessions, at about every (n / 4)th heartbeat.

use std::time::Duration;

use microqueue::keyspace::Environment;
use microqueue::keyspace::limits::VERSIONS_PER_SECOND;
use microqueue::keyspace::record::millis;

use super::{Census, Heartbeat};
use crate::session::wall::wall_millis;

/// The largest difference between a process's wall clock and the median at which the process still acts by its clock.
///
/// This is far more than the difference between clocks that NTP keeps. It is also more than the age of a heartbeat
/// can be misjudged with a lease of up to half a minute, when versions jump because the store recovers.
pub const MAX_CLOCK_ERROR: Duration = Duration::from_secs(60);

/// The smallest number of sessions, including the own one, for which a median is meaningful.
const MIN_MEDIAN_SESSIONS: usize = 3;

/// A session's check of its own wall clock.
#[derive(Debug)]
pub(super) struct ClockCheck {
    env: Environment,
    /// By how many milliseconds the clock is ahead of the median.
    error: i64,
    /// The wall clock less the monotonic clock at the last check, in milliseconds. The difference changes when the
    /// wall clock is set.
    steady: i64,
}

impl ClockCheck {
    /// Returns a check that trusts the clock, since nothing is known about others yet.
    pub(super) fn new(env: Environment) -> Self {
        Self {
            steady: steady(&env),
            env,
            error: 0,
        }
    }

    /// Compares the clock with those of the sessions in a census, which have about this lease. While it is unknown
    /// which sessions are alive, those count that have written a heartbeat within the lease.
    pub(super) fn judge(&mut self, census: &Census, lease: Duration) {
        let lease = signed(millis(lease));
        let clocks = census.heartbeats.iter().filter_map(|heartbeat| {
            let age = age_millis(heartbeat, census.read_version);
            let may_live = census.is_known || age <= lease;
            // A living session has written a heartbeat within its lease: a greater age is a jump of the versions.
            if !may_live {
                return None;
            }
            Some(signed(heartbeat.wall_millis).saturating_add(age.clamp(0, lease)))
        });
        self.error = error_of(signed(wall_millis(&self.env)), clocks.collect());
        self.steady = steady(&self.env);
    }

    pub(super) fn is_trusted(&self) -> bool {
        let was_set = steady(&self.env).abs_diff(self.steady);
        let limit = millis(MAX_CLOCK_ERROR);
        self.error.unsigned_abs() <= limit && was_set <= limit
    }

    pub(super) fn error_seconds(&self) -> f64 {
        self.error as f64 / 1000.0
    }
}

/// Returns how old a heartbeat is by its version, in milliseconds.
fn age_millis(heartbeat: &Heartbeat, read_version: i64) -> i64 {
    let versions = read_version.saturating_sub(heartbeat.version);
    versions / (VERSIONS_PER_SECOND / 1000)
}

fn steady(env: &Environment) -> i64 {
    signed(wall_millis(env)).saturating_sub(signed(millis(env.now())))
}

fn signed(millis: u64) -> i64 {
    i64::try_from(millis).unwrap_or(i64::MAX)
}

/// Returns by how much a clock is ahead of the median of all clocks. If their number is even, the middle one that is
/// closer to the clock counts, so that two halves that differ do not stop each other.
fn error_of(own: i64, mut clocks: Vec<i64>) -> i64 {
    clocks.push(own);
    if clocks.len() < MIN_MEDIAN_SESSIONS {
        return 0;
    }
    clocks.sort_unstable();
    let lower = clocks[(clocks.len() - 1) / 2];
    let upper = clocks[clocks.len() / 2];
    own.saturating_sub(own.clamp(lower, upper))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;
    use std::time::SystemTime;

    use futures::future::BoxFuture;
    use microqueue::keyspace::env::Clock;
    use parking_lot::Mutex;

    use super::*;
    use crate::session::SessionId;

    #[test]
    fn a_clock_is_compared_with_the_median() {
        let table: [(i64, &[i64], i64); 9] = [
            (100, &[], 0),
            // With two clocks, neither is known to be right.
            (100, &[0], 0),
            (100, &[0, 0], 100),
            (0, &[0, 100], 0),
            (0, &[100, 100], -100),
            (100, &[0, 200], 0),
            // Two halves that differ.
            (100, &[0, 0, 100], 0),
            (0, &[0, 100, 100], 0),
            (150, &[0, 0, 100], 50),
        ];
        for (own, others, error) in table {
            assert_eq!(error_of(own, others.to_vec()), error, "{own} {others:?}");
        }
    }

    /// Two clocks that a test sets, in milliseconds.
    #[derive(Clone, Default)]
    struct Clocks(Arc<Mutex<(u64, u64)>>);

    impl Clock for Clocks {
        fn now(&self) -> Duration {
            Duration::from_millis(self.0.lock().0)
        }

        fn wall(&self) -> SystemTime {
            SystemTime::UNIX_EPOCH + Duration::from_millis(self.0.lock().1)
        }

        fn sleep(&self, _duration: Duration) -> BoxFuture<'static, ()> {
            Box::pin(std::future::pending())
        }
    }

    const LEASE: Duration = Duration::from_secs(10);

    /// Returns a check at half past two by the wall clock.
    fn check() -> (ClockCheck, Clocks, u64) {
        let wall = 52_200_000;
        let clocks = Clocks::default();
        *clocks.0.lock() = (1_000, wall);
        let env = Environment::seeded(1, Arc::new(clocks.clone()));
        (ClockCheck::new(env), clocks, wall)
    }

    /// Returns a census of sessions whose heartbeats have these ages, in milliseconds, and wall times.
    fn census(heartbeats: &[(i64, u64)]) -> Census {
        let read_version = 900_000_000_000;
        let heartbeat = |(age, wall_millis): &(i64, u64)| Heartbeat {
            session: SessionId([1; 16]),
            version: read_version - age * 1_000,
            wall_millis: *wall_millis,
        };
        Census {
            suspects: Vec::new(),
            living: 0,
            is_known: true,
            leases: BTreeSet::from([LEASE]),
            heartbeats: heartbeats.iter().map(heartbeat).collect(),
            read_version,
        }
    }

    /// Returns the same census, taken before the session has observed the store for a lease.
    fn unknown(census: Census) -> Census {
        Census {
            is_known: false,
            ..census
        }
    }

    #[test]
    fn a_heartbeat_counts_with_its_age() {
        let (mut check, _, wall) = check();
        let ahead = |by: u64| (wall + by, wall + by);
        for (age, seconds) in [(0, 60.0), (4_000, 56.0), (9_999, 50.001)] {
            let (first, second) = ahead(0);
            let heartbeats = [(age, first - 60_000), (age, second - 60_000)];
            check.judge(&census(&heartbeats), LEASE);
            assert_eq!(check.error_seconds(), seconds);
            assert!(check.is_trusted());
        }
        check.judge(&census(&[(0, wall - 60_001), (0, wall - 60_001)]), LEASE);
        assert!(!check.is_trusted());
    }

    #[test]
    fn a_jump_of_the_versions_is_no_age_and_sessions_that_may_be_gone_do_not_count() {
        let (mut check, _, wall) = check();
        let hour = 3_600_000;
        // These heartbeats are from before a recovery, and appear 100 seconds older than they are.
        let jumped = census(&[(102_000, wall - 2_000), (102_000, wall - 2_000)]);
        check.judge(&jumped, LEASE);
        assert!(check.is_trusted() && check.error_seconds() == -8.0);
        // These sessions ended an hour ago, but the first census cannot distinguish them from living ones.
        let gone = census(&[(hour, wall - 3_600_000), (hour, wall - 3_600_000)]);
        check.judge(&unknown(gone), LEASE);
        assert!(check.is_trusted());
        // These sessions are alive, and their wall clocks are an hour slow.
        let behind = census(&[(1_000, wall - 3_600_000), (1_000, wall - 3_600_000)]);
        check.judge(&unknown(behind), LEASE);
        assert!(!check.is_trusted());
    }

    #[test]
    fn a_clock_that_was_set_is_not_trusted_before_the_next_census() {
        let (mut check, clocks, wall) = check();
        check.judge(&census(&[]), LEASE);
        for (now, shows, is_trusted) in [
            (2_000, wall + 1_000, true),
            (4_000, wall + 3_000 + 60_000, true),
            (4_000, wall + 3_000 + 60_001, false),
            (4_000, wall + 3_000 - 60_001, false),
        ] {
            *clocks.0.lock() = (now, shows);
            assert_eq!(check.is_trusted(), is_trusted, "{now} {shows}");
        }
        check.judge(&census(&[]), LEASE);
        assert!(check.is_trusted());
    }
}

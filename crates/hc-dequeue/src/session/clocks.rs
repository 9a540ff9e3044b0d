//! Whether a session's own wall clock agrees with those of the others.
//!
//! Each heartbeat carries the wall time of the process that wrote it. A session that reads the heartbeats
//! of the others adds to each how old it is, by its version, and has what the other clocks show now.

use std::time::Duration;

use microqueue::keyspace::Environment;
use microqueue::keyspace::limits::VERSIONS_PER_SECOND;
use microqueue::keyspace::record::millis;

use super::{Census, Heartbeat};
use crate::wall::wall_millis;

/// How far a process's wall clock may be off the median before the process stops acting by it.
///
/// Far more than clocks differ that are kept by NTP, and more than the age of a heartbeat can be misjudged
/// with a lease of up to half a minute: versions jump when a store recovers.
pub const MAX_CLOCK_ERROR: Duration = Duration::from_secs(60);

/// From how many sessions on, the own included, a median says anything.
const SESSIONS_OF_A_MEDIAN: usize = 3;

/// What a session makes of its own wall clock.
#[derive(Debug)]
pub(super) struct ClockCheck {
    env: Environment,
    /// By how many milliseconds the clock is ahead of the median.
    error: i64,
    /// What the wall clock showed at the last judgment, less what the monotonic one did, in milliseconds:
    /// it changes when the wall clock is set.
    steady: i64,
}

impl ClockCheck {
    /// Returns a check that trusts the clock: nothing is known of others.
    pub(super) fn new(env: Environment) -> Self {
        Self {
            steady: steady(&env),
            env,
            error: 0,
        }
    }

    /// Compares the clock with those of the sessions that were counted, which have about this lease. As long
    /// as it is not known which of them live, those count that have beaten within it.
    pub(super) fn judge(&mut self, census: &Census, lease: Duration) {
        let lease = signed(millis(lease));
        let clocks = census.heartbeats.iter().filter_map(|heartbeat| {
            let age = age_millis(heartbeat, census.read_version);
            let may_live = census.is_known || age <= lease;
            // A session that lives has beaten within a lease: a greater age is a jump of the versions.
            may_live.then(|| signed(heartbeat.wall_millis).saturating_add(age.clamp(0, lease)))
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

/// Returns by how much a clock is ahead of the median of all clocks. Of the two clocks in the middle of an
/// even number, the one counts that agrees better: two halves that differ do not stop each other.
fn error_of(own: i64, mut clocks: Vec<i64>) -> i64 {
    clocks.push(own);
    if clocks.len() < SESSIONS_OF_A_MEDIAN {
        return 0;
    }
    clocks.sort_unstable();
    let (lower, upper) = (clocks[(clocks.len() - 1) / 2], clocks[clocks.len() / 2]);
    own.saturating_sub(own.clamp(lower, upper))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;
    use std::time::SystemTime;

    use microqueue::keyspace::env::{BoxFuture, Clock};
    use parking_lot::Mutex;

    use super::*;
    use crate::session::SessionId;

    #[test]
    fn a_clock_is_compared_with_the_median() {
        let table: [(i64, &[i64], i64); 9] = [
            (100, &[], 0),
            // Of two clocks none is right.
            (100, &[0], 0),
            (100, &[0, 0], 100),
            (0, &[0, 100], 0),
            (0, &[100, 100], -100),
            (100, &[0, 200], 0),
            // Two halves.
            (100, &[0, 0, 100], 0),
            (0, &[0, 100, 100], 0),
            (150, &[0, 0, 100], 50),
        ];
        for (own, others, error) in table {
            assert_eq!(error_of(own, others.to_vec()), error, "{own} {others:?}");
        }
    }

    /// Two clocks that are set by hand, in milliseconds.
    #[derive(Clone, Default)]
    struct Clocks(Arc<Mutex<(u64, u64)>>);

    impl Clock for Clocks {
        fn now(&self) -> Duration {
            Duration::from_millis(self.0.lock().0)
        }

        fn wall(&self) -> SystemTime {
            SystemTime::UNIX_EPOCH + Duration::from_millis(self.0.lock().1)
        }

        fn sleep(&self, _duration: Duration) -> BoxFuture<()> {
            Box::pin(std::future::pending())
        }
    }

    const LEASE: Duration = Duration::from_secs(10);

    /// A check at half past two by the wall clock.
    fn check() -> (ClockCheck, Clocks, u64) {
        let wall = 52_200_000;
        let clocks = Clocks::default();
        *clocks.0.lock() = (1_000, wall);
        let env = Environment::seeded(1, Arc::new(clocks.clone()));
        (ClockCheck::new(env), clocks, wall)
    }

    /// A census that has met sessions with heartbeats of an age in milliseconds, with a wall time.
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

    /// The same census before its session has observed the store for a lease.
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
    fn a_jump_of_the_versions_is_no_age_and_who_may_be_gone_has_no_say() {
        let (mut check, _, wall) = check();
        let hour = 3_600_000;
        // Heartbeats of before a recovery, which seem 100 seconds older than they are.
        let jumped = census(&[(102_000, wall - 2_000), (102_000, wall - 2_000)]);
        check.judge(&jumped, LEASE);
        assert!(check.is_trusted() && check.error_seconds() == -8.0);
        // Of a fleet that ended an hour ago, which the first census cannot tell from the living.
        let gone = census(&[(hour, wall - 3_600_000), (hour, wall - 3_600_000)]);
        check.judge(&unknown(gone), LEASE);
        assert!(check.is_trusted());
        // Of sessions that live an hour ago.
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

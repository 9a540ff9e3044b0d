//! Decides which versions are older than a given age, by the observer's own clock.
//!
//! An observer has to decide whether something in the store was renewed recently: a heartbeat, or a ledger.
//! It cannot use wall clocks, because they differ between machines. It cannot count versions either,
//! because they jump by a hundred million when a store recovers. A [`VersionClock`] therefore remembers
//! *when it learned of each read version*, on its own monotonic clock. Take a read version that the clock
//! learned an age ago, and a commit at that version or a lower one. The commit happened before the store
//! returned the read version, and that was before the reply arrived. So the commit is at least an age old.
//!
//! The converse needs care, because silence proves nothing: while the store is unavailable or slow, nothing
//! can be renewed in time. So the clock counts *credited* time. Each gap between two observations credits
//! the time that has passed, but at most a sixth of the age. It follows that
//!
//! - nothing is called old before the age has passed on the observer's clock, nor before the observer has
//!   observed seven times since;
//! - an outage of any length counts as at most a sixth of the age, so anything renewed before the outage
//!   still has the rest of its time to be renewed after it;
//! - on a slow store, anything that is renewed once in six of the observer's observations is never called
//!   old, however long each of them takes;
//! - slowness delays a judgment but does not prevent it: six gaps add up to an age, however long they are.
//!
//! An observer that observes at least six times per age judges as soon as the age has passed.

use parking_lot::{Mutex, MutexGuard};
use std::collections::VecDeque;
use std::time::Duration;

use crate::contract::env::Environment;

/// A gap between two observations credits at most this fraction of the age.
///
/// With a larger number, slower renewals are tolerated: anything renewed once in this many observations is
/// not called old. But an observer that observes less often than this many times per age judges late.
const CREDITS_PER_AGE: u32 = 6;

/// Samples that are closer to each other than this fraction of the age are not kept, which bounds the
/// number of samples. A judgment may be late by this fraction plus the time to the next observation.
const SAMPLES_PER_AGE: u32 = 64;

/// Decides which versions are older than a fixed age. See the [module documentation](self).
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
///
/// use keyspace::env::ManualClock;
/// use keyspace::{Environment, VersionClock};
///
/// let watch = ManualClock::new();
/// let env = Environment::seeded(1, Arc::new(watch.clone()));
/// let clock = VersionClock::new(env, Duration::from_secs(6));
///
/// for read_version in [100, 200, 300_000_000, 300_000_100, 300_000_200, 300_000_300] {
///     clock.observe(read_version);
///     watch.advance(Duration::from_secs(1));
/// }
/// // The store was away for an hour, which counts as one second.
/// watch.advance(Duration::from_secs(3600));
/// clock.observe(400_000_000);
/// assert_eq!(clock.version_ago(), Some(100));
/// ```
#[derive(Debug)]
pub struct VersionClock {
    environment: Environment,
    age: Duration,
    observations: Mutex<Observations>,
}

#[derive(Debug, Default)]
struct Observations {
    /// Ascending in both fields. Once a sample is an age old, the first one is the newest such sample.
    samples: VecDeque<Sample>,
    /// When the last reply arrived, whether or not it became a sample.
    last_arrival: Option<Duration>,
    /// The time that was credited up to then.
    credited: Duration,
}

#[derive(Debug, Clone, Copy)]
struct Sample {
    /// The time that was credited when the reply arrived.
    credited: Duration,
    read_version: i64,
}

impl VersionClock {
    /// Returns a clock that judges by `age` and has no observations.
    #[must_use]
    pub fn new(environment: Environment, age: Duration) -> Self {
        Self {
            environment,
            age,
            observations: Mutex::default(),
        }
    }

    /// Returns the age that the clock judges by.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.age
    }

    /// Records a read version whose reply has just arrived.
    ///
    /// Call it at least six times per [`age`](Self::age); with fewer calls, judgments are late. Call it at
    /// regular intervals, not for every read version at hand: on a slow store, the number of observations
    /// stands in for time.
    pub fn observe(&self, read_version: i64) {
        let now = self.environment.now();
        let mut observations = self.lock();
        let last = observations.last_arrival.unwrap_or(now);
        let credit = now.saturating_sub(last).min(self.most_credit());
        observations.credited = observations.credited.saturating_add(credit);
        observations.last_arrival = Some(now.max(last));
        let credited = observations.credited;
        let spacing = self.age / SAMPLES_PER_AGE;
        let tells_more = observations.samples.back().is_none_or(|newest| {
            // A reply that was overtaken by a newer one adds no information.
            read_version > newest.read_version
                && credited.saturating_sub(newest.credited) >= spacing
        });
        if tells_more {
            observations.samples.push_back(Sample {
                credited,
                read_version,
            });
        }
        while (observations.samples.get(1)).is_some_and(|next| self.is_old(next, credited)) {
            observations.samples.pop_front();
        }
    }

    /// Returns the newest read version that is known to be an [`age`](Self::age) old, by the time credited
    /// up to the last observation. `None` if less than an age was credited.
    ///
    /// Anything that was committed at this version or before is at least that old.
    #[must_use]
    pub fn version_ago(&self) -> Option<i64> {
        let observations = self.lock();
        let first = observations.samples.front();
        first
            .filter(|sample| self.is_old(sample, observations.credited))
            .map(|sample| sample.read_version)
    }

    /// Returns the most time that one gap credits, rounded up, so that [`CREDITS_PER_AGE`] credits add up
    /// to an age.
    fn most_credit(&self) -> Duration {
        self.age / CREDITS_PER_AGE + Duration::from_nanos(1)
    }

    fn is_old(&self, sample: &Sample, credited: Duration) -> bool {
        credited.saturating_sub(sample.credited) >= self.age
    }

    fn lock(&self) -> MutexGuard<'_, Observations> {
        self.observations.lock()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::contract::env::ManualClock;

    const SECOND: Duration = Duration::from_secs(1);
    const AGE: Duration = Duration::from_secs(8);
    const VERSIONS_PER_SECOND: i64 = 1_000_000;

    /// A store whose versions follow the watch, and an observer of it.
    struct Observer {
        watch: ManualClock,
        clock: VersionClock,
        recoveries: i64,
    }

    impl Observer {
        fn new() -> Self {
            Self::seeded(0)
        }

        fn seeded(seed: u64) -> Self {
            let watch = ManualClock::new();
            let env = Environment::seeded(seed, Arc::new(watch.clone()));
            Self {
                watch,
                clock: VersionClock::new(env, AGE),
                recoveries: 0,
            }
        }

        fn current(&self) -> i64 {
            let seconds = self.clock.environment.now().as_secs_f64();
            1 + (seconds * VERSIONS_PER_SECOND as f64) as i64
                + self.recoveries * crate::contract::limits::RECOVERY_VERSIONS
        }

        fn observe_for(&self, duration: Duration, step: Duration) {
            let end = self.clock.environment.now() + duration;
            while self.clock.environment.now() < end {
                self.watch.advance(step);
                self.clock.observe(self.current());
            }
        }
    }

    #[test]
    fn version_clocks_are_shared_between_threads() {
        fn assert_shared<T: Send + Sync + 'static>() {}
        assert_shared::<VersionClock>();
    }

    #[test]
    fn a_clock_that_observed_nothing_judges_nothing() {
        let observer = Observer::new();
        observer.watch.advance(100 * AGE);
        assert_eq!(observer.clock.version_ago(), None);
    }

    #[test]
    fn nothing_reaches_the_greatest_age() {
        let observer = Observer::new();
        let clock = VersionClock::new(observer.clock.environment.clone(), Duration::MAX);
        observer.watch.advance(SECOND);
        clock.observe(1);
        assert_eq!(clock.version_ago(), None);
    }

    #[test]
    fn a_clock_judges_after_it_has_observed_for_one_age() {
        let observer = Observer::new();
        let first = observer.current();
        observer.clock.observe(first);
        observer.observe_for(AGE - SECOND, SECOND);
        assert_eq!(observer.clock.version_ago(), None);
        // Time since the last observation does not count before the next one.
        observer.watch.advance(SECOND);
        assert_eq!(observer.clock.version_ago(), None);
        observer.clock.observe(observer.current());
        assert_eq!(observer.clock.version_ago(), Some(first));
    }

    #[test]
    fn a_clock_calls_nothing_old_that_is_younger_than_the_age() {
        let observer = Observer::new();
        let mut committed = Vec::new();
        for step in 0..1000u32 {
            let pause = SECOND * (step % 7) / 5;
            observer.watch.advance(pause);
            committed.push((observer.clock.environment.now(), observer.current()));
            observer.clock.observe(observer.current());
            let now = observer.clock.environment.now();
            let Some(ago) = observer.clock.version_ago() else {
                continue;
            };
            for &(time, version) in &committed {
                assert!(version > ago || now - time >= AGE);
                assert!(version <= ago || now - time <= AGE + 2 * SECOND);
            }
        }
        assert!(observer.clock.version_ago().is_some());
    }

    #[test]
    fn a_version_jump_ages_nothing() {
        let mut observer = Observer::new();
        observer.observe_for(2 * AGE, SECOND);
        let before = observer.current();
        observer.recoveries = 3;
        // An observer that counts versions would call a recent write old.
        let by_counting = observer.current() - AGE.as_secs() as i64 * VERSIONS_PER_SECOND;
        assert!(by_counting > before);
        assert!(observer.clock.version_ago().unwrap() < before);
        let heartbeat = observer.current();
        assert!(heartbeat - before >= 300_000_000);
        observer.observe_for(AGE - SECOND, SECOND);
        let ago = observer.clock.version_ago().unwrap();
        assert!(ago < heartbeat);
        observer.observe_for(2 * SECOND, SECOND);
        let ago = observer.clock.version_ago().unwrap();
        assert!(ago >= heartbeat);
    }

    #[test]
    fn an_outage_of_any_length_counts_as_a_sixth_of_the_age() {
        for outage in [AGE / 4, AGE / 2, AGE, 3 * AGE, 1000 * AGE] {
            let observer = Observer::new();
            observer.observe_for(2 * AGE, SECOND);
            let renewed = observer.current();
            observer.observe_for(2 * SECOND, SECOND);
            observer.watch.advance(outage);
            let mut after_the_outage = Duration::ZERO;
            observer.clock.observe(observer.current());
            while observer.clock.version_ago().unwrap() < renewed {
                observer.observe_for(SECOND, SECOND);
                after_the_outage += SECOND;
            }
            // Two seconds of the age had passed, and the outage counted as a sixth.
            assert_eq!(after_the_outage, 5 * SECOND, "after {outage:?}");
            assert_eq!((AGE - 2 * SECOND - AGE / 6).as_secs(), 4);
        }
    }

    #[test]
    fn an_observer_that_is_slow_judges_at_the_seventh_observation() {
        for gap in [AGE / 6 + SECOND / 1000, AGE / 4 + SECOND, AGE, 1000 * AGE] {
            let observer = Observer::new();
            observer.observe_for(9 * gap, gap);
            let renewed = observer.current() + 1;
            let mut observations = 0;
            while observer.clock.version_ago().unwrap() < renewed {
                observer.observe_for(gap, gap);
                observations += 1;
            }
            assert_eq!(observations, 7, "{gap:?}");
        }
    }

    #[test]
    fn a_version_renewed_once_in_six_observations_is_never_called_old() {
        for seed in 0..200 {
            let observer = Observer::seeded(seed);
            let mut renewed = observer.current();
            let mut called_old = 0;
            for observation in 1..600 {
                // From a hundred-thousandth of the age to ten times the age.
                let exponent = observer.clock.environment.random_unit() * 6.0 - 5.0;
                let gap = AGE.mul_f64(10_f64.powf(exponent));
                observer.observe_for(gap, gap);
                let ago = observer.clock.version_ago().unwrap_or(0);
                assert!(ago < renewed, "seed {seed}, observation {observation}");
                called_old = called_old.max(ago);
                if observation % 6 == 0 {
                    observer.watch.advance(SECOND / 1000);
                    renewed = observer.current();
                }
            }
            // The clock has called some versions old.
            assert!(called_old > 0, "seed {seed}");
        }
    }

    #[test]
    fn replies_that_overtook_each_other_are_harmless() {
        let observer = Observer::new();
        observer.observe_for(2 * AGE, SECOND);
        let before = observer.clock.version_ago();
        observer
            .clock
            .observe(observer.current() - VERSIONS_PER_SECOND);
        assert_eq!(observer.clock.version_ago(), before);
    }

    #[test]
    fn memory_is_bounded_however_often_it_observes() {
        let observer = Observer::new();
        observer.observe_for(3 * AGE, Duration::from_millis(1));
        let kept = observer.clock.lock().samples.len();
        assert!(kept <= SAMPLES_PER_AGE as usize + 2, "{kept} samples");
        assert!(observer.clock.version_ago().is_some());
    }
}

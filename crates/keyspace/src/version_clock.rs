//! Which versions are older than a given age, by one's own watch.
//!
//! Who must decide that something in the store has not been renewed for a time (a heartbeat, a
//! ledger) cannot use wall clocks, which differ between machines, nor count versions, which jump by
//! a hundred million when a store recovers. A [`VersionClock`] remembers *when it learned of which
//! read version*, on its own monotonic clock. A commit whose version is not above one learned an
//! age ago is at least that old: it was committed before that read version was given, and that was
//! before the reply arrived.
//!
//! The converse needs care, because silence is no proof. An observer that has only just begun
//! cannot judge, and neither can one that was cut off: while the store was away nobody could renew
//! anything. So an observer is *cold*, and judges nothing, until it has observed for a whole age
//! without a gap longer than a quarter of it.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::env::Environment;

/// A gap between observations longer than this part of the age makes the observer cold.
const GAPS_PER_AGE: u32 = 4;

/// Samples closer to each other than this part of the age are not kept: it bounds memory by as many
/// samples. A judgment may come late by as much and by the time to the next observation.
const SAMPLES_PER_AGE: u32 = 64;

/// Tells which versions are older than one fixed age. See the [module documentation](self).
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
/// let clock = VersionClock::new(env, Duration::from_secs(4));
///
/// for read_version in [100, 200, 300_000_000, 300_000_100, 300_000_200] {
///     clock.observe(read_version);
///     watch.advance(Duration::from_secs(1));
/// }
/// // Five seconds have passed since the first observation, four since the second.
/// assert_eq!(clock.version_ago(), Some(200));
/// ```
#[derive(Debug)]
pub struct VersionClock {
    environment: Environment,
    age: Duration,
    observations: Mutex<Observations>,
}

#[derive(Debug, Default)]
struct Observations {
    /// Ascending in both fields. The first is the newest of those that are an age old, as soon as
    /// there is one.
    samples: VecDeque<Sample>,
    /// When the last reply arrived, whether or not it became a sample.
    last_arrival: Option<Duration>,
}

#[derive(Debug, Clone, Copy)]
struct Sample {
    arrival: Duration,
    read_version: i64,
}

impl VersionClock {
    /// Returns a cold clock that judges by `age`.
    #[must_use]
    pub fn new(environment: Environment, age: Duration) -> Self {
        Self {
            environment,
            age,
            observations: Mutex::default(),
        }
    }

    /// Returns the age it judges by.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.age
    }

    /// Takes note of a read version whose reply has just arrived.
    ///
    /// Call it with every read version at hand, and at least four times per [`age`](Self::age).
    pub fn observe(&self, read_version: i64) {
        let now = self.environment.now();
        let mut observations = self.lock();
        if observations.silent_for(now) > self.age / GAPS_PER_AGE {
            observations.samples.clear();
        }
        observations.last_arrival = observations.last_arrival.max(Some(now));
        let spacing = self.age / SAMPLES_PER_AGE;
        let tells_more = observations.samples.back().is_none_or(|newest| {
            // A reply that another one overtook says nothing that is not known already.
            read_version > newest.read_version && now.saturating_sub(newest.arrival) >= spacing
        });
        if tells_more {
            observations.samples.push_back(Sample {
                arrival: now,
                read_version,
            });
        }
        while (observations.samples.get(1)).is_some_and(|next| self.is_old(next, now)) {
            observations.samples.pop_front();
        }
    }

    /// Returns the newest read version known to have been current an [`age`](Self::age) ago, `None`
    /// while the clock is cold.
    ///
    /// Whatever was committed at this version or before is at least that old.
    #[must_use]
    pub fn version_ago(&self) -> Option<i64> {
        let now = self.environment.now();
        let observations = self.lock();
        if observations.silent_for(now) > self.age / GAPS_PER_AGE {
            return None;
        }
        (observations.samples.iter().rev())
            .find(|sample| self.is_old(sample, now))
            .map(|sample| sample.read_version)
    }

    fn is_old(&self, sample: &Sample, now: Duration) -> bool {
        now.saturating_sub(sample.arrival) >= self.age
    }

    fn lock(&self) -> MutexGuard<'_, Observations> {
        self.observations
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Observations {
    fn silent_for(&self, now: Duration) -> Duration {
        self.last_arrival
            .map_or(Duration::ZERO, |last| now.saturating_sub(last))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::env::ManualClock;

    const SECOND: Duration = Duration::from_secs(1);
    const AGE: Duration = Duration::from_secs(8);
    const VERSIONS_PER_SECOND: i64 = 1_000_000;

    /// A store whose versions follow the watch, and somebody who observes it.
    struct Observer {
        watch: ManualClock,
        clock: VersionClock,
        recoveries: i64,
    }

    impl Observer {
        fn new() -> Self {
            let watch = ManualClock::new();
            let env = Environment::seeded(0, Arc::new(watch.clone()));
            Self {
                watch,
                clock: VersionClock::new(env, AGE),
                recoveries: 0,
            }
        }

        fn current(&self) -> i64 {
            let seconds = self.clock.environment.now().as_secs_f64();
            1 + (seconds * VERSIONS_PER_SECOND as f64) as i64
                + self.recoveries * crate::limits::RECOVERY_VERSIONS
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
    fn a_cold_clock_judges_after_one_age() {
        let observer = Observer::new();
        let first = observer.current();
        observer.clock.observe(first);
        observer.observe_for(AGE - SECOND, SECOND);
        assert_eq!(observer.clock.version_ago(), None);
        observer.observe_for(SECOND, SECOND);
        assert_eq!(observer.clock.version_ago(), Some(first));
    }

    #[test]
    fn a_warm_clock_never_calls_anything_younger_than_the_age_old() {
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
        // Counting versions would take what was written a moment ago for old.
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
    fn an_outage_makes_the_clock_cold_for_one_age() {
        let observer = Observer::new();
        observer.observe_for(2 * AGE, SECOND);
        assert!(observer.clock.version_ago().is_some());

        observer.watch.advance(AGE / 4 + SECOND);
        assert_eq!(observer.clock.version_ago(), None);
        observer.clock.observe(observer.current());
        let first_after = observer.current();
        assert_eq!(observer.clock.version_ago(), None);
        observer.observe_for(AGE - SECOND, SECOND);
        assert_eq!(observer.clock.version_ago(), None);
        observer.observe_for(SECOND, SECOND);
        assert_eq!(observer.clock.version_ago(), Some(first_after));
    }

    #[test]
    fn a_gap_of_a_quarter_age_is_no_outage() {
        let observer = Observer::new();
        observer.observe_for(2 * AGE, AGE / 4);
        assert!(observer.clock.version_ago().is_some());
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

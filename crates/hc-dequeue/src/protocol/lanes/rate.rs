//! Decides when the items of a key may start that has a rate, without a store.
//!
//! This is the generic cell rate algorithm (ITU-T I.371), which needs one number for a token bucket: the *theoretical
//! arrival time*, at which the bucket is full again if nothing starts until then. Each start puts it off by one
//! interval, and the next item may start once it is less than `burst` intervals ahead.
//!
//! The clock is the read version of the transaction. It is never older than the newest commit that the transaction can
//! see, so it does not go back from one start to the next, whichever processes they are in. A read version that is old
//! only delays a start. A recovery of FoundationDB makes versions jump by 100 seconds, after which at most one burst
//! starts too early.

use microqueue::keyspace::limits::VERSIONS_PER_SECOND;

use crate::items::rate::Rate;

const VERSIONS_PER_MILLI: i64 = VERSIONS_PER_SECOND / 1_000;

/// The tokens of a key, at a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bucket {
    rate: Rate,
    now: i64,
    /// The version at which all tokens are there. At or before `now` if they are.
    full_at: i64,
}

impl Bucket {
    /// Returns the bucket at a version, with the stored time at which it is full, if there is one.
    ///
    /// A time that no start can have led to is that of an empty bucket: it comes from another store, or the rate was
    /// another one.
    pub(crate) fn new(rate: Rate, now: i64, full_at: Option<i64>) -> Self {
        let all = rate.interval().saturating_mul(rate.burst().into());
        Self {
            rate,
            now,
            full_at: full_at.unwrap_or(now).min(now.saturating_add(all)),
        }
    }

    /// Returns whether an item may start.
    pub(crate) fn may_start(&self) -> bool {
        self.next() <= self.now
    }

    /// Returns the version from which on an item may start.
    pub(crate) fn next(&self) -> i64 {
        let others = i64::from(self.rate.burst()) - 1;
        self.full_at
            .saturating_sub(self.rate.interval().saturating_mul(others))
    }

    /// Takes a token.
    pub(crate) fn start(&mut self) {
        let from = self.full_at.max(self.now);
        self.full_at = from.saturating_add(self.rate.interval());
    }

    /// Returns the bucket after this many starts.
    pub(crate) fn after(mut self, starts: usize) -> Self {
        (0..starts).for_each(|_| self.start());
        self
    }

    /// Returns whether all tokens are there.
    pub(crate) fn is_full(&self) -> bool {
        self.full_at <= self.now
    }

    /// Returns how many milliseconds it takes until a version, rounded up.
    pub(crate) fn millis_until(&self, version: i64) -> u64 {
        let versions = version.saturating_sub(self.now).max(0);
        (versions as u64).div_ceil(VERSIONS_PER_MILLI as u64)
    }
}

/// The stored state of the rate of a lane.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct RateState {
    /// The version at which the bucket is full. Missing if it is.
    pub(crate) full_at: Option<i64>,
    /// The wall time in milliseconds since the Unix epoch until which the lane is parked, if it is.
    pub(crate) parked: Option<u64>,
}

/// What makes a session look at a lane again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wake {
    /// A stamp: the lane has something to grant.
    Stamp,
    /// The lane is parked until this version.
    At(i64),
    /// A change of the lane: nothing waits, or no slot is free.
    Change,
}

impl Wake {
    /// Returns what makes a session look again at a lane, given whether its next item has a slot and, if so, whether it
    /// may start.
    pub(crate) fn of(has_slot: bool, may_start: bool, bucket: Option<Bucket>) -> Self {
        match bucket {
            _ if may_start => Self::Stamp,
            Some(bucket) if has_slot => Self::At(bucket.next()),
            Some(bucket) if !bucket.is_full() => Self::At(bucket.full_at),
            _ => Self::Change,
        }
    }
}

impl RateState {
    /// Returns the state after a look at a version, given the bucket after this many starts, or `None` if the key no
    /// longer has a rate. `wall_millis` is the wall time, if the session trusts its clock. Otherwise, the lane is
    /// parked as if it were due, and a session that trusts its clock decides.
    pub(crate) fn after(
        self,
        bucket: Option<Bucket>,
        starts: usize,
        wake: Wake,
        wall_millis: Option<u64>,
    ) -> Self {
        let Some(bucket) = bucket else {
            return Self::default();
        };
        match wake {
            Wake::Change => Self::default(),
            Wake::Stamp if starts == 0 => self,
            Wake::Stamp => Self {
                full_at: Some(bucket.full_at),
                ..self
            },
            Wake::At(version) => {
                let ready =
                    wall_millis.map(|wall| wall.saturating_add(bucket.millis_until(version)));
                Self {
                    // It differs from the stored one after a start, and if that is too far ahead.
                    full_at: Some(bucket.full_at),
                    parked: match ready {
                        // An earlier time stays: the lane is parked again then.
                        Some(ready) => Some(self.parked.map_or(ready, |parked| parked.min(ready))),
                        None => Some(0),
                    },
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Three starts at once, and then one each second.
    const THREE: Rate = Rate::new(1, Duration::from_secs(1)).with_burst(3);
    const SECOND: i64 = VERSIONS_PER_SECOND;

    #[test]
    fn a_burst_starts_at_once_and_then_one_in_each_interval() {
        let now = 7 * SECOND;
        let mut bucket = Bucket::new(THREE, now, None);
        assert!(bucket.is_full());
        for _ in 0..3 {
            assert!(bucket.may_start());
            bucket.start();
        }
        assert!(!bucket.may_start());
        assert_eq!(bucket.next(), now + SECOND);
        assert_eq!(bucket.millis_until(bucket.next()), 1_000);
        let later = |versions| Bucket::new(THREE, now + versions, Some(bucket.full_at));
        assert!(!later(SECOND - 1).may_start());
        assert_eq!(later(SECOND - 1).millis_until(bucket.next()), 1);
        assert!(later(SECOND).may_start());
        assert!(!later(SECOND).after(1).may_start());
        assert!(!later(3 * SECOND - 1).is_full());
        assert!(later(3 * SECOND).is_full());
        assert!(later(100 * SECOND).after(2).may_start());
        assert!(!later(100 * SECOND).after(3).may_start());
    }

    #[test]
    fn a_time_from_another_store_delays_by_a_burst_at_most() {
        for full_at in [i64::MAX, 1_000 * SECOND] {
            let bucket = Bucket::new(THREE, 5 * SECOND, Some(full_at));
            assert_eq!(bucket, Bucket::new(THREE, 5 * SECOND, None).after(3));
        }
        for full_at in [i64::MIN, 0, 5 * SECOND] {
            assert!(Bucket::new(THREE, 5 * SECOND, Some(full_at)).is_full());
        }
    }

    #[test]
    fn the_largest_rates_do_not_overflow() {
        let rate = Rate::new(1, crate::items::rate::MAX_RATE_PERIOD).with_burst(u32::MAX);
        let bucket = Bucket::new(rate, i64::MAX - 1, Some(i64::MAX)).after(10);
        assert!(bucket.may_start() && !bucket.is_full());
        assert!(bucket.next() <= bucket.full_at);
    }

    /// Starts at random times, whenever it may: no span of versions has more starts than the rate allows.
    #[test]
    fn no_span_has_more_starts_than_the_rate_allows() {
        let rate = Rate::new(3, Duration::from_millis(1)).with_burst(4);
        let interval = rate.interval();
        let mut stored = None;
        let mut starts: Vec<i64> = Vec::new();
        let mut now = 0_i64;
        let mut seed = 1_u64;
        for _ in 0..3_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            now += (seed >> 33) as i64 % (2 * interval);
            let mut bucket = Bucket::new(rate, now, stored);
            if bucket.may_start() {
                bucket.start();
                starts.push(now);
            }
            stored = Some(bucket.full_at);
        }
        assert!(starts.len() > 1_000);
        for (first, begin) in starts.iter().enumerate() {
            for (last, end) in starts.iter().enumerate().skip(first) {
                let allowed = 4 + (end - begin) / interval;
                assert!((last - first + 1) as i64 <= allowed);
            }
        }
    }
}

//! The rates at which items of a group start.

use std::time::Duration;

use microqueue::keyspace::limits::VERSIONS_PER_SECOND;

/// The longest period of a [`Rate`]: 366 days.
pub const MAX_RATE_PERIOD: Duration = Duration::from_secs(366 * 24 * 60 * 60);

/// The largest number of starts per second of a [`Rate`].
pub const MAX_RATE_PER_SECOND: u32 = 1_000_000;

const VERSIONS_PER_MILLI: u64 = VERSIONS_PER_SECOND as u64 / 1_000;

/// How many items of a group may start in a time. An item starts each time it is popped, or granted to a handler. One
/// that goes back before a handler gets it has not started.
///
/// This is a token bucket: the group has up to [`burst`](Self::with_burst) tokens, each start takes one, and tokens
/// come back evenly, as many as the rate has starts in each of its periods. In any span of time, at most `burst + span
/// * starts / period` items start. So at most `starts + burst` items start in a period.
///
/// ```
/// use std::time::Duration;
///
/// use hc_dequeue::{GroupLimits, Rate};
///
/// // At most 100 calls a minute for each customer, of which at most 10 at once.
/// let rate = Rate::new(90, Duration::from_secs(60)).with_burst(10);
/// let limits = GroupLimits::new().with_rate(rate);
/// ```
///
/// The time is that of the store's versions, of which a store counts a million per second: one clock for all processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rate {
    pub(super) starts: u32,
    pub(super) period_millis: u64,
    pub(super) burst: u32,
}

impl Rate {
    /// Returns a rate of this many starts per period, with a burst of 1: starts are evenly spaced. The period is
    /// rounded up to whole milliseconds.
    #[must_use]
    pub const fn new(starts: u32, period: Duration) -> Self {
        let millis = period.as_nanos().div_ceil(1_000_000);
        Self {
            starts,
            period_millis: if millis > u64::MAX as u128 {
                u64::MAX
            } else {
                millis as u64
            },
            burst: 1,
        }
    }

    /// Sets how many items may start at once after a pause that is long enough.
    #[must_use]
    pub const fn with_burst(mut self, items: u32) -> Self {
        self.burst = items;
        self
    }

    /// Returns how many items may start in each period.
    #[must_use]
    pub const fn starts(&self) -> u32 {
        self.starts
    }

    /// Returns the period.
    #[must_use]
    pub const fn period(&self) -> Duration {
        Duration::from_millis(self.period_millis)
    }

    /// Returns how many items may start at once.
    #[must_use]
    pub const fn burst(&self) -> u32 {
        self.burst
    }

    /// Returns after how many versions a token comes back.
    pub(crate) fn interval(&self) -> i64 {
        let period = self.period_millis.saturating_mul(VERSIONS_PER_MILLI);
        let interval = period.div_ceil(self.starts.max(1).into());
        i64::try_from(interval).unwrap_or(i64::MAX)
    }

    /// Returns what is wrong with the rate, if anything is.
    pub(super) fn fault(&self) -> Option<&'static str> {
        let max_starts = self
            .period_millis
            .saturating_mul(u64::from(MAX_RATE_PER_SECOND) / 1_000);
        if self.starts == 0 {
            Some("the rate has no starts: to pause the group, set a limit of 0 with `with_limit`")
        } else if !(1..=MAX_RATE_PERIOD.as_millis()).contains(&self.period_millis.into()) {
            Some("the period of the rate is out of range: set one from 1 millisecond to 366 days")
        } else if self.burst == 0 {
            Some("the burst of the rate is 0, so nothing would start: set one of at least 1")
        } else if u64::from(self.starts) > max_starts {
            Some("the rate is out of range: set one of at most 1,000,000 starts per second")
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_comes_back_after_the_period_divided_by_the_starts_rounded_up() {
        let interval = |starts, period| Rate::new(starts, period).interval();
        assert_eq!(interval(1, Duration::from_millis(1)), 1_000);
        assert_eq!(interval(60, Duration::from_secs(60)), 1_000_000);
        assert_eq!(interval(7, Duration::from_secs(1)), 142_858);
        assert_eq!(interval(1_000_000, Duration::from_secs(1)), 1);
        assert_eq!(interval(1, MAX_RATE_PERIOD), 31_622_400_000_000);
    }

    #[test]
    fn a_period_is_rounded_up_to_milliseconds() {
        let millis = |period| Rate::new(1, period).period().as_millis();
        assert_eq!(millis(Duration::from_nanos(1)), 1);
        assert_eq!(millis(Duration::from_micros(1_001)), 2);
        assert_eq!(millis(Duration::from_millis(3)), 3);
        assert_eq!(millis(Duration::MAX), u128::from(u64::MAX));
    }
}

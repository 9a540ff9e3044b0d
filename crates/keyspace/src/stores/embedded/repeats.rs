//! What keeps on happening: how often it is said, and how long an attempt waits for the next one.

use std::time::Duration;

/// The shortest and the longest time between two lines of the log on one thing.
const SILENCES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(3_600));

/// Counts what happens, and says when to say so: at once, and then at doubling intervals.
#[derive(Debug, Default)]
pub(super) struct Repeats {
    count: u64,
    /// When it is said again, and the interval after that. `None` before the first time.
    next: Option<(Duration, Duration)>,
}

impl Repeats {
    /// Counts one more. Returns the count if it is to be said.
    pub(super) fn count(&mut self, now: Duration) -> Option<u64> {
        self.count += 1;
        let (shortest, longest) = SILENCES;
        let interval = match self.next {
            Some((due, _)) if now < due => return None,
            Some((_, interval)) => interval,
            None => shortest,
        };
        self.next = Some((now + interval, (2 * interval).min(longest)));
        Some(self.count)
    }
}

/// Returns how long to wait before the next attempt, after this many that have failed in a row.
pub(in crate::stores::embedded) fn backoff(failures: u32) -> Duration {
    const SHORTEST: Duration = Duration::from_millis(10);
    const MAX_DOUBLINGS: u32 = 7;
    SHORTEST * (1 << failures.min(MAX_DOUBLINGS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_repeats_is_said_at_doubling_intervals_with_its_count() {
        let mut repeats = Repeats::default();
        let said: Vec<_> = (0..40)
            .filter_map(|tenths| {
                let now = Duration::from_millis(500 * tenths);
                repeats.count(now).map(|count| (tenths, count))
            })
            .collect();
        assert_eq!(said, [(0, 1), (2, 3), (6, 7), (14, 15), (30, 31)]);
    }

    #[test]
    fn attempts_that_fail_wait_longer_and_longer_up_to_a_bound() {
        assert_eq!(backoff(0), Duration::from_millis(10));
        assert_eq!(backoff(3), Duration::from_millis(80));
        assert_eq!(backoff(u32::MAX), Duration::from_millis(1_280));
    }
}

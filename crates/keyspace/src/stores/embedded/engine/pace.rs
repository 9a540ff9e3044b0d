//! How fast commits may come while checkpoints are slower than they are.

use std::time::Duration;

/// Spreads commits over the time that their checkpoint will take.
///
/// Without this, commits would fill the window at full speed and then all wait until a whole part was moved,
/// which takes seconds in a large store. Instead, each commit waits for its turn before it is sent. Turns begin
/// when most of the window is used, so a burst that fits into the window does not wait, and end when the window
/// is nearly empty.
#[derive(Debug)]
pub(super) struct Pace {
    /// The size of the parts that wait for a checkpoint at which all commits stop, in bytes.
    limit_bytes: usize,
    /// The bytes of parts that were lately moved in a second. `None` before the first checkpoint.
    moved_per_second: Option<f64>,
    /// Whether commits have turns.
    is_on: bool,
    /// When the next turn begins, on the environment's clock.
    next_turn: Duration,
}

/// The commits whose turns are in the same slot of this length are sent at its start and share a flush.
const SLOT: Duration = Duration::from_millis(10);

/// Commits wait no longer than this multiple of the time that their own bytes take, so that a small one does
/// not wait for many large ones.
const MAX_SHARE: u32 = 32;

/// The same while the window is nearly full.
const MAX_SHARE_NEARLY_FULL: u32 = 4 * MAX_SHARE;

/// The longest wait. A longer one could make a transaction too old.
const MAX_WAIT: Duration = Duration::from_secs(1);

/// The slowest checkpoint that counts, in bytes per second.
const MIN_RATE: f64 = 100e3;

/// Shorter waits are left out, because timers are not more precise. The next turn is later all the same.
const MIN_WAIT: Duration = Duration::from_millis(1);

impl Pace {
    pub(super) fn new(limit_bytes: usize) -> Self {
        Self {
            limit_bytes,
            moved_per_second: None,
            is_on: false,
            next_turn: Duration::ZERO,
        }
    }

    /// Records how long the checkpoint of a part took. The time of a part with few bytes says nothing about
    /// others: it may have cleared many rows.
    pub(super) fn moved(&mut self, bytes: usize, took: Duration) {
        if bytes < self.limit_bytes / 16 || bytes == 0 {
            return;
        }
        let rate = (bytes as f64 / took.as_secs_f64().max(1e-6)).max(MIN_RATE);
        let mean = |before| f64::midpoint(before, rate);
        self.moved_per_second = Some(self.moved_per_second.map_or(rate, mean));
    }

    /// Gives a turn to a commit that writes `bytes` bytes, while parts of `waiting_bytes` bytes wait for a
    /// checkpoint. Returns how long the commit must wait for its turn.
    pub(super) fn wait(&mut self, now: Duration, bytes: usize, waiting_bytes: usize) -> Duration {
        let fill = waiting_bytes as f64 / self.limit_bytes.max(1) as f64;
        let is_nearly_full = fill >= 0.75;
        self.is_on = is_nearly_full || (self.is_on && fill > 0.25);
        let Some(rate) = self.moved_per_second else {
            return Duration::ZERO;
        };
        if !self.is_on {
            return Duration::ZERO;
        }
        // Twice as fast as checkpoints in a nearly empty window, and slower in a nearly full one. In between, both
        // are equally fast, whatever `bytes` counts.
        let share = (2.5 * (1.0 - fill)).max(0.25);
        let takes = Duration::from_secs_f64(bytes as f64 / (share * rate));
        // Commits that did not wait for their turns must not hold up those of another flood.
        let turn = self.next_turn.clamp(now, now + MAX_WAIT);
        self.next_turn = turn + takes;
        let max_share = if is_nearly_full {
            MAX_SHARE_NEARLY_FULL
        } else {
            MAX_SHARE
        };
        let wait = start_of(turn).saturating_sub(now).min(takes * max_share);
        if wait < MIN_WAIT {
            Duration::ZERO
        } else {
            wait.min(MAX_WAIT)
        }
    }
}

/// Returns the start of the slot that `turn` is in.
fn start_of(turn: Duration) -> Duration {
    let slots = turn.as_nanos() / SLOT.as_nanos();
    u32::try_from(slots).map_or(turn, |slots| SLOT * slots)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: usize = 64 << 20;
    const PART: usize = LIMIT / 4;
    const LARGE: usize = 10_000;
    const SMALL: usize = 100;

    /// A pace at which checkpoints move 10 MB a second.
    fn pace() -> Pace {
        let mut pace = Pace::new(LIMIT);
        pace.moved(10_000_000, Duration::from_secs(1));
        pace
    }

    /// Lets writers commit `LARGE` bytes each, again and again, for ten seconds from `start` on. Returns the
    /// bytes per second.
    fn flood(pace: &mut Pace, start: u64, writers: usize, waiting_bytes: usize) -> f64 {
        const SECONDS: u64 = 10;
        let mut now = Duration::from_secs(start);
        let end = now + Duration::from_secs(SECONDS);
        let mut due = vec![now; writers];
        let mut sent = 0;
        while now < end {
            for due in due.iter_mut().filter(|due| **due <= now) {
                *due = now + pace.wait(now, LARGE, waiting_bytes);
                sent += LARGE;
            }
            now += Duration::from_micros(100);
        }
        sent as f64 / SECONDS as f64
    }

    #[test]
    fn a_burst_does_not_wait_before_most_of_the_window_is_used() {
        let mut pace = pace();
        for waiting in [0, PART, 2 * PART] {
            for _ in 0..1000 {
                assert_eq!(pace.wait(Duration::ZERO, LARGE, waiting), Duration::ZERO);
            }
        }
        let waits = (0..1000).map(|_| pace.wait(Duration::ZERO, LARGE, 3 * PART));
        assert!(waits.max().unwrap() > SLOT);
    }

    #[test]
    fn turns_end_when_the_window_is_nearly_empty() {
        let mut pace = pace();
        flood(&mut pace, 0, 8, 3 * PART);
        assert!(flood(&mut pace, 10, 8, PART + 1) < 25e6);
        for waiting in [PART, PART + 1] {
            assert_eq!(pace.wait(Duration::ZERO, LARGE, waiting), Duration::ZERO);
        }
    }

    #[test]
    fn commits_are_as_fast_as_checkpoints_and_slower_the_fuller_the_window_is() {
        for writers in [2, 8, 20] {
            let mut pace = pace();
            for (start, parts, expected) in [(0, 3, 6.25e6), (10, 2, 12.5e6)] {
                let rate = flood(&mut pace, start, writers, parts * PART);
                let about = 0.9 * expected..1.1 * expected;
                assert!(about.contains(&rate), "{writers} writers: {rate}");
            }
        }
    }

    #[test]
    fn a_small_commit_does_not_wait_for_large_ones() {
        let mut pace = pace();
        pace.wait(Duration::ZERO, LARGE, 3 * PART);
        for _ in 0..100 {
            pace.wait(Duration::ZERO, LARGE, 2 * PART);
            let small = pace.wait(Duration::ZERO, SMALL, 2 * PART);
            assert_eq!(small, Duration::ZERO);
        }
        assert!(pace.wait(Duration::ZERO, LARGE, 2 * PART) > SLOT);
    }

    #[test]
    fn small_commits_wait_too_before_the_window_is_full() {
        let mut pace = pace();
        let waits = (0..10_000).map(|_| pace.wait(Duration::ZERO, SMALL, 3 * PART));
        assert!(waits.max().unwrap() >= MIN_WAIT);
    }

    #[test]
    fn turns_that_were_not_waited_for_do_not_hold_up_a_later_flood() {
        let mut pace = pace();
        for _ in 0..10_000 {
            pace.wait(Duration::ZERO, LARGE, 3 * PART);
        }
        let later = MAX_WAIT + Duration::from_millis(2);
        assert_eq!(pace.wait(later, LARGE, 3 * PART), Duration::ZERO);
    }

    #[test]
    fn a_part_without_bytes_and_a_slow_one_do_not_stop_commits() {
        let mut pace = Pace::new(LIMIT);
        for bytes in [0, PART] {
            pace.moved(bytes, Duration::MAX);
            let waits = (0..100).map(|_| pace.wait(Duration::ZERO, LARGE, LIMIT));
            assert!(waits.max() <= Some(MAX_WAIT));
        }
        let mut without = Pace::new(0);
        without.moved(0, Duration::ZERO);
        assert_eq!(without.wait(Duration::ZERO, LARGE, 0), Duration::ZERO);
    }

    #[test]
    fn no_commit_waits_for_longer_than_a_second() {
        let mut pace = pace();
        pace.wait(Duration::ZERO, LARGE, 3 * PART);
        let waits = (0..100).map(|_| pace.wait(Duration::ZERO, 10_000_000, 3 * PART));
        assert_eq!(waits.max(), Some(MAX_WAIT));
    }
}

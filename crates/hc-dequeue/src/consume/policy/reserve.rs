//! How many items a session takes ahead of its handlers.
//!
//! Without a reserve, a handler that has finished waits for a transaction that takes the next item. A session with a
//! backlog therefore takes as many items ahead as its handlers finish during a few takes. An item in a reserve cannot
//! be started by another session, so there is none if the handlers take much longer than a take: then the wait for a
//! take matters little.

use std::time::Duration;

/// A full reserve has as many items as the handlers finish during this many takes, so that one take serves many of
/// them.
const TAKES_AHEAD: u32 = 8;

/// There is no reserve if a handler takes more than this many times as long as a take.
const MAX_HANDLING: u32 = 8;

/// An item that has been in a reserve for this many takes goes back to the queue: the handlers take longer than they
/// did before.
const PATIENCE: u32 = 2 * TAKES_AHEAD;

/// Items of a reserve do not go back earlier, because a thread of a busy machine may stand still that long.
const MIN_PATIENCE: Duration = Duration::from_millis(20);

/// How many items a reserve has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Size {
    /// It is filled if it has no more items than this.
    pub(crate) low: usize,
    /// It is filled up to this number. Zero means that there is no reserve.
    pub(crate) full: usize,
}

impl Size {
    /// The size of a reserve that must not have an item.
    pub(crate) const NONE: Self = Self { low: 0, full: 0 };
}

/// The durations that decide the size of a reserve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Durations {
    /// How long handlers take, on average.
    pub(crate) handling: Duration,
    /// How long takes take, on average.
    pub(crate) taking: Duration,
}

impl Durations {
    /// Returns the size of the reserve of this many handlers, with at most `limit` items.
    pub(crate) fn size(self, handlers: usize, limit: usize) -> Size {
        let Self { handling, taking } = self;
        if handling > taking.saturating_mul(MAX_HANDLING) {
            return Size::NONE;
        }
        let finished = handlers as f64 * taking.as_secs_f64() / handling.as_secs_f64();
        // The limit also makes it a number if the durations are zero.
        let finished_during = |takes: u32| {
            let items = f64::from(takes) * finished;
            items.ceil().min(limit as f64) as usize
        };
        let full = finished_during(TAKES_AHEAD);
        Size {
            low: finished_during(1).min(full / 2),
            full,
        }
    }

    /// Returns how long an item may be in the reserve.
    pub(crate) fn patience(self) -> Duration {
        self.taking.saturating_mul(PATIENCE).max(MIN_PATIENCE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size(handling: u64, taking: u64, handlers: usize, limit: usize) -> (usize, usize) {
        let durations = Durations {
            handling: Duration::from_micros(handling),
            taking: Duration::from_micros(taking),
        };
        let Size { low, full } = durations.size(handlers, limit);
        (low, full)
    }

    #[test]
    fn a_reserve_is_used_up_within_a_few_takes() {
        assert_eq!(size(100, 100, 1, 512), (1, 8));
        assert_eq!(size(400, 100, 1, 512), (1, 2));
        assert_eq!(size(400, 100, 16, 512), (4, 32));
        assert_eq!(size(400, 400, 16, 512), (16, 128));
        assert_eq!(size(1, 400, 16, 512), (256, 512));
    }

    #[test]
    fn long_handlers_have_no_reserve() {
        assert_eq!(size(800, 100, 1, 512), (0, 1));
        assert_eq!(size(800, 100, 64, 512), (8, 64));
        assert_eq!(size(801, 100, 64, 512), (0, 0));
        assert_eq!(size(1, 0, 64, 512), (0, 0));
    }

    #[test]
    fn a_limit_bounds_the_reserve() {
        assert_eq!(size(100, 100, 1, 0), (0, 0));
        assert_eq!(size(100, 100, 1, 1), (0, 1));
        assert_eq!(size(100, 100, 64, 10), (5, 10));
        assert_eq!(size(0, 0, 1, 10), (5, 10));
        assert_eq!(size(0, 1, 1, 10), (5, 10));
    }

    #[test]
    fn patience_is_many_takes_and_never_short() {
        let patience = |taking| {
            let durations = Durations {
                handling: Duration::ZERO,
                taking: Duration::from_millis(taking),
            };
            durations.patience().as_millis()
        };
        assert_eq!([0, 1, 2, 100].map(patience), [20, 20, 32, 1_600]);
    }
}

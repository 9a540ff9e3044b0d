//! When a session looks for batches that are complete.
//!
//! It looks soon after a member that it held or popped has ended. The transaction that ended it may commit later, so it
//! looks again, after twice as long each time, until that transaction has committed or failed. The session that watches
//! the wake stamp reads whether a batch may be complete, and then looks at once. And every session looks from time to
//! time, so that no batch depends on a single session.

use std::mem;
use std::time::Duration;

use microqueue::keyspace::limits::TRANSACTION_LIFE;

use crate::batches::end::Finished;

/// The longest time between two looks.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);

/// How soon after the end of a member the session looks.
const SOON: Duration = Duration::from_millis(20);

/// When the session looks at batches.
#[derive(Debug, Default)]
pub(crate) struct BatchTimer {
    /// When the next look is due. The first one is due at once.
    ends: Duration,
    /// How long the session waits after the next look; zero if no transaction may be under way that ends a member.
    wait: Duration,
    /// Where the next look begins, if not at the first batch.
    after: Option<Vec<u8>>,
    /// Whether a batch has ended since the looks began at the first batch.
    have_ended: bool,
    /// How many batches did not decode since then.
    unreadable: usize,
    /// How many did not decode before.
    known_unreadable: usize,
}

impl BatchTimer {
    pub(crate) fn ends(&self) -> Duration {
        self.ends
    }

    /// Notes that a batch may be complete.
    pub(crate) fn look_at_once(&mut self) {
        self.ends = Duration::ZERO;
    }

    /// Notes at the time `now` that a member has ended, or ends as soon as a transaction commits.
    pub(crate) fn note_member(&mut self, now: Duration) {
        self.ends = self.ends.min(now.saturating_add(SOON));
        self.wait = SOON;
    }

    /// Notes at the time `now` that a look has ended.
    fn looked(&mut self, now: Duration, has_more: bool) {
        let wait = if has_more {
            Duration::ZERO
        } else if self.wait.is_zero() {
            LOOK_INTERVAL
        } else {
            self.wait
        };
        let next = 2 * self.wait;
        self.wait = if next < 2 * TRANSACTION_LIFE {
            next
        } else {
            Duration::ZERO
        };
        self.ends = now.saturating_add(wait);
    }

    /// Returns where the look begins that begins now: after a notice, or at the first batch.
    pub(crate) fn begin(&mut self) -> Option<Vec<u8>> {
        self.after.take()
    }

    /// Notes at the time `now` that a look has failed. The next one tries again.
    pub(crate) fn failed(&mut self, now: Duration) {
        self.looked(now, false);
    }

    /// Notes at the time `now` what a look has done. Returns how many batches do not decode, if these have become more
    /// since all were looked at.
    #[must_use]
    pub(crate) fn ended(&mut self, now: Duration, finished: Finished) -> Option<usize> {
        self.have_ended |= finished.batches > 0;
        self.unreadable += finished.unreadable;
        self.after = finished.after;
        if self.after.is_some() {
            self.looked(now, true);
            return None;
        }
        // The end of a batch may complete another one, whose notice comes before.
        let has_more = mem::take(&mut self.have_ended);
        self.looked(now, has_more);
        let unreadable = mem::take(&mut self.unreadable);
        let known = mem::replace(&mut self.known_unreadable, unreadable);
        if unreadable > known {
            Some(unreadable)
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_looks_again_until_a_transaction_is_over() {
        let mut timer = BatchTimer::default();
        let mut now = Duration::from_secs(1);
        assert!(timer.ends() <= now);
        timer.looked(now, false);
        assert_eq!(timer.ends(), now + LOOK_INTERVAL);
        now = Duration::from_secs(2);
        timer.note_member(now);
        let noted = now;
        let mut looks = 0;
        while timer.ends() - now < LOOK_INTERVAL {
            now = timer.ends();
            timer.looked(now, false);
            looks += 1;
        }
        assert!(now - noted > TRANSACTION_LIFE);
        assert!((5..15).contains(&looks), "{looks}");
        timer.looked(now, true);
        assert_eq!(timer.ends(), now);
    }
}

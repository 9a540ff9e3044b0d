//! Batches: when a session looks for those that are complete.
//!
//! It looks soon after a member that it held or popped has ended. The transaction that ended it may commit later, so it
//! looks again, after twice as long each time, until that transaction has committed or failed. The session that watches
//! the wake stamp reads whether a batch may be complete, and then looks at once. And every session looks from time to
//! time, so that no batch depends on a single session.

use std::mem;
use std::time::Duration;

use microqueue::keyspace::limits::TRANSACTION_LIFE;

use super::Dispatcher;
use crate::protocol::batches::finish_batches;

/// The longest time between two looks.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);

/// How soon after the end of a member the session looks.
const SOON: Duration = Duration::from_millis(20);

/// When the session looks at batches.
#[derive(Debug, Default)]
pub(super) struct BatchTimer {
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
    pub(super) fn ends(&self) -> Duration {
        self.ends
    }

    /// Notes that a batch may be complete.
    pub(super) fn look_at_once(&mut self) {
        self.ends = Duration::ZERO;
    }

    /// Notes at the time `now` that a member has ended, or ends as soon as a transaction commits.
    pub(super) fn note_member(&mut self, now: Duration) {
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
}

impl Dispatcher {
    /// Ends batches that are complete.
    pub(super) async fn finish_batches(&mut self) {
        let after = self.batch_timer.after.take();
        let keys = self.keys();
        let after = after.as_deref();
        let trusts_clock = self.member.trusts_clock();
        let finish = |tr| async move { finish_batches(&tr, keys, after, trusts_clock).await };
        let finished = match self.runner.run(finish).await {
            Ok(finished) => finished,
            Err(error) => {
                // The next look tries again.
                let now = self.now();
                self.batch_timer.looked(now, false);
                return self.note(Err(error));
            }
        };
        let count = finished.batches as u64;
        self.shared.metrics.batches_finished.increment(count);
        let timer = &mut self.batch_timer;
        timer.have_ended |= finished.batches > 0;
        timer.unreadable += finished.unreadable;
        timer.after = finished.after;
        let mut has_more = timer.after.is_some();
        if !has_more {
            // The end of a batch may complete another one, whose stamp comes before.
            has_more = mem::take(&mut timer.have_ended);
            let unreadable = mem::take(&mut timer.unreadable);
            if mem::replace(&mut timer.known_unreadable, unreadable) < unreadable {
                tracing::warn!(
                    queue = %self.shared.keys.name,
                    batches = unreadable,
                    "batches do not decode: a newer version may end them"
                );
            }
        }
        let now = self.now();
        self.batch_timer.looked(now, has_more);
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

//! Schedules: when a session looks for what is due, and fires it.
//!
//! Every session does, so that no time depends on one of them. Each waits for a short random time more,
//! so that as a rule one fires and the others find nothing due any more.

use std::collections::BTreeSet;
use std::time::Duration;

use microqueue::keyspace::Database;
use microqueue::keyspace::codec::Codec;
use microqueue::keyspace::error::chain;

use super::Dispatcher;
use crate::schedule::fire::fire_due;
use crate::wall::wall_millis;

/// The longest time from one look to the next: another process may have made a schedule that fires earlier
/// than those that are known.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);

/// Over which time the looks of several sessions are spread.
const SPREAD: Duration = Duration::from_millis(200);

/// When the session looks for schedules that are due.
#[derive(Debug, Default)]
pub(super) struct FireTimer {
    /// At once to begin with.
    ends: Duration,
    /// Where the look goes on in the index, if it has not come to its end.
    after: Option<Vec<u8>>,
    /// What was said of schedules that cannot fire. Each look meets them again.
    warned: BTreeSet<String>,
}

impl FireTimer {
    pub(super) fn ends(&self) -> Duration {
        self.ends
    }
}

impl<T, D, C> Dispatcher<T, D, C>
where
    T: Send + Sync + 'static,
    D: Database,
    C: Codec<T>,
{
    /// Enqueues some of what is due, unless this process's wall clock is not to be trusted.
    pub(super) async fn fire(&mut self) {
        self.fire_timer.ends = self.now().saturating_add(LOOK_INTERVAL);
        if !self.member.trusts_clock() {
            return;
        }
        let after = self.fire_timer.after.take();
        let (keys, after) = (self.keys(), after.as_deref());
        let fired = Box::pin(
            self.runner
                .run(|tr| async move { fire_due(&tr, keys, after).await }),
        );
        let fired = match fired.await {
            Ok(fired) => fired,
            // The next look tries again.
            Err(error) => return self.note(Err(error)),
        };
        for error in fired.refused {
            if self.fire_timer.warned.insert(chain(&error).to_string()) {
                self.note(Err(error));
            }
        }
        self.metrics.fired.increment(fired.items as u64);
        let wait = match fired.next_millis {
            _ if fired.has_left || fired.after.is_some() => Duration::ZERO,
            Some(next) => {
                let left = next.saturating_sub(wall_millis(&self.keys().env));
                Duration::from_millis(left).saturating_add(self.spread())
            }
            None => LOOK_INTERVAL,
        };
        self.fire_timer.after = fired.after;
        self.fire_timer.ends = self.now().saturating_add(wait.min(LOOK_INTERVAL));
    }

    /// Looks soon, now that the wake stamp is watched: it may have been a new schedule that has woken the
    /// session, or one may have come before the watch. Soon, and not at once, so that a session that is
    /// woken again and again looks seldom.
    pub(super) fn look_for_schedules(&mut self) {
        let soon = self.now().saturating_add(self.spread());
        self.fire_timer.ends = self.fire_timer.ends.min(soon);
    }

    fn spread(&self) -> Duration {
        SPREAD.mul_f64(self.runner.environment().random_unit())
    }
}

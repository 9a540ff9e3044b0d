//! Schedules: when a session checks for due schedules, and fires them.
//!
//! Every session does so, so that no scheduled time depends on a single session. Each session waits for a short
//! random time more, so that usually one of them fires and the others find nothing due.

use std::collections::BTreeSet;
use std::time::Duration;

use microqueue::keyspace::Database;
use microqueue::keyspace::codec::Codec;
use microqueue::keyspace::error::chain;

use super::Dispatcher;
use crate::schedule::fire::{Fired, find_late, fire_due};
use crate::wall::wall_millis;

/// The longest time between two checks. Another process may have made a schedule that fires earlier than the known
/// ones.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);

/// The time over which the checks of several sessions are spread.
const SPREAD: Duration = Duration::from_millis(200);

/// When the session checks for due schedules.
#[derive(Debug, Default)]
pub(super) struct FireTimer {
    /// When the next check is due. The first one is due at once.
    ends: Duration,
    /// The place in the index where the check continues, if it has not reached the end.
    after: Option<Vec<u8>>,
    /// The logged errors of schedules that cannot fire. Every check finds these schedules again.
    warned: BTreeSet<String>,
    /// The entries of the index that were checked for next times that are too far ahead.
    checked: BTreeSet<(u64, String)>,
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
    /// Enqueues some of the items that are due, unless this process's wall clock is not trusted.
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
            // The next check tries again.
            Err(error) => return self.note(Err(error)),
        };
        self.report_firing(&fired);
        self.report_late().await;
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

    /// Counts and logs what a firing has done. An error of a schedule is logged once.
    fn report_firing(&mut self, fired: &Fired) {
        for error in &fired.refused {
            if self.fire_timer.warned.insert(chain(error).to_string()) {
                self.note(Err(error.clone()));
            }
        }
        let queue = &self.keys().queue;
        for skipped in &fired.skipped {
            let schedule = &skipped.schedule;
            let time = skipped.time_millis;
            match &skipped.full {
                Some(full) => {
                    tracing::warn!(%queue, schedule, time, reason = %full, "a scheduled time was skipped");
                }
                None => tracing::info!(
                    %queue,
                    schedule,
                    time,
                    reason = "its dedupe id is refused",
                    "a scheduled time was skipped"
                ),
            }
        }
        self.metrics.fired.increment(fired.items as u64);
        self.metrics.skipped.increment(fired.skipped.len() as u64);
    }

    /// Warns of schedules whose next time is later than their expression allows, once for each such time.
    async fn report_late(&mut self) {
        let keys = &*self.shared.keys;
        let known = &self.fire_timer.checked;
        let find = |tr| async move { find_late(&tr, keys, known).await };
        let (late, checked) = match Box::pin(self.runner.run(find)).await {
            Ok(found) => found,
            Err(error) => return self.note(Err(error)),
        };
        for late in late {
            tracing::warn!(
                queue = %keys.queue,
                schedule = late.schedule,
                next = ?late.next,
                expected = ?late.expected,
                "a schedule fires next later than its expression allows, because a wall clock was ahead: schedule \
                 it again, or run `console reschedule`"
            );
        }
        self.fire_timer.checked = checked;
    }

    /// Checks soon after the wake stamp is watched: a new schedule may have woken the session, or may have come
    /// before the watch was set. The short wait keeps a session that is woken often from checking each time.
    pub(super) fn look_for_schedules(&mut self) {
        let soon = self.now().saturating_add(self.spread());
        self.fire_timer.ends = self.fire_timer.ends.min(soon);
    }

    fn spread(&self) -> Duration {
        SPREAD.mul_f64(self.runner.environment().random_unit())
    }
}

//! Schedules: when a session checks for due schedules, and fires them.
//!
//! Every session does so, so that no scheduled time depends on a single session. Each session waits for a short
//! random time more, so that usually one of them fires and the others find nothing due.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use microqueue::keyspace::error::chain;

use super::Dispatcher;
use crate::schedule::fire::{Fired, Late, find_late, fire_due};
use crate::session::wall::{time_text, wall_millis};

/// The longest time between two checks. Another process may have made a schedule that fires earlier than the known
/// ones.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// The time between two searches for schedules whose next times are too far ahead.
const LATE_CHECK_INTERVAL: Duration = Duration::from_secs(60);

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
    late: LateCheck,
}

/// The search for schedules whose next times are too far ahead.
#[derive(Debug, Default)]
struct LateCheck {
    /// When the next page is due.
    due: Duration,
    /// Where it begins in the index.
    after: Option<Vec<u8>>,
    /// The schedules that were reported, with their next times.
    reported: BTreeMap<String, u64>,
}

impl LateCheck {
    /// Returns whether a schedule was not reported before with this next time.
    fn is_new(&mut self, late: &Late) -> bool {
        let reported = self
            .reported
            .insert(late.schedule.clone(), late.next_millis);
        reported != Some(late.next_millis)
    }
}

impl FireTimer {
    pub(super) fn ends(&self) -> Duration {
        self.ends
    }
}

impl Dispatcher {
    /// Enqueues some of the items that are due, unless this process's wall clock is not trusted.
    pub(super) async fn fire(&mut self) {
        self.fire_timer.ends = self.now().saturating_add(CHECK_INTERVAL);
        if !self.member.trusts_clock() {
            return;
        }
        let after = self.fire_timer.after.take();
        let keys = self.keys();
        let after = after.as_deref();
        let fire = |tr| async move { fire_due(&tr, keys, after).await };
        let fired = match self.runner.run(fire).await {
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
            None => CHECK_INTERVAL,
        };
        self.fire_timer.after = fired.after;
        self.fire_timer.ends = self.now().saturating_add(wait.min(CHECK_INTERVAL));
    }

    /// Counts and logs what a firing has done. An error of a schedule is logged once.
    fn report_firing(&mut self, fired: &Fired) {
        for error in &fired.refused {
            if self.fire_timer.warned.insert(chain(error).to_string()) {
                self.note(Err(error.clone()));
            }
        }
        let queue = &self.keys().name;
        for skipped in &fired.skipped {
            let schedule = &skipped.schedule;
            let time = time_text(skipped.time_millis);
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
        self.shared.metrics.fired.increment(fired.items as u64);
        self.shared
            .metrics
            .skipped
            .increment(fired.skipped.len() as u64);
    }

    /// Warns of schedules whose next time is later than their expression allows, once for each such time.
    async fn report_late(&mut self) {
        let now = self.now();
        if now < self.fire_timer.late.due {
            return;
        }
        let keys = &*self.shared.keys;
        let begin = self.fire_timer.late.after.take();
        let after = begin.as_deref();
        let find = |tr| async move { find_late(&tr, keys, after).await };
        let (late, after) = match self.runner.run(find).await {
            Ok(found) => found,
            Err(error) => return self.note(Err(error)),
        };
        let check = &mut self.fire_timer.late;
        for late in late.iter().filter(|late| check.is_new(late)) {
            tracing::warn!(
                queue = %keys.name,
                schedule = late.schedule,
                next = time_text(late.next_millis),
                expected = time_text(late.expected_millis),
                "a schedule fires next later than its expression allows, because a wall clock was ahead: schedule \
                 it again, or run `console reschedule`"
            );
        }
        let pause = if after.is_some() {
            CHECK_INTERVAL
        } else {
            LATE_CHECK_INTERVAL
        };
        check.due = now.saturating_add(pause);
        check.after = after;
    }

    /// Checks soon after the wake stamp is watched: a new schedule may have woken the session, or may have come
    /// before the watch was set. The short wait keeps a session that is woken often from checking each time.
    pub(super) fn check_schedules_soon(&mut self) {
        let soon = self.now().saturating_add(self.spread());
        self.fire_timer.ends = self.fire_timer.ends.min(soon);
    }

    fn spread(&self) -> Duration {
        SPREAD.mul_f64(self.runner.environment().random_unit())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schedule_is_reported_once_for_each_next_time() {
        let mut check = LateCheck::default();
        let mut is_new = |schedule: &str, next_millis| {
            check.is_new(&Late {
                schedule: schedule.to_owned(),
                next_millis,
                expected_millis: 1,
            })
        };
        let reports = [("a", 7), ("a", 7), ("b", 7), ("a", 8), ("b", 7)]
            .map(|(schedule, next)| is_new(schedule, next));
        assert_eq!(reports, [true, false, true, true, false]);
    }
}

//! Schedules: values that are enqueued repeatedly under a name, at the times given by a cron expression.
//!
//! - `fired`: which times have fired.
//! - `times`: the times of a cron expression in a time zone, and which of them fire.
//! - `record`: the stored form of a schedule.
//! - `operations`: operations of applications, in their own transactions; `owned` those on all schedules of an owner.
//! - `fire`: the transaction that enqueues items for due times.
//!
//! # Why each time fires once
//!
//! 1. A firing is one transaction. It reads the row of the schedule serializably, enqueues an item for each time from
//!    the row's next time up to the present that has not fired, and writes the row with these times and a next time
//!    after the present.
//! 2. If two firings have read the same row, one of them commits. The other one is retried, reads the new row and finds
//!    nothing due. A session that dies before its commit has changed nothing.
//! 3. The row has the times that have fired, as [runs](fired). No firing fires one of them again, whatever the wall
//!    clock of its process shows, and no next time is one of them.
//! 4. The next time in a row may lie too far ahead, after a wall clock was ahead. Scheduling it again sets it to the
//!    first time after the present that has not fired. Times that were passed over then fire; those that fired in
//!    advance do not.
//!
//! The row remembers [eight runs](fired::MAX_RUNS). A new run begins only where times were passed over: after an
//! outage, or with a clock that was ahead.
//!
//! The items have no dedupe ids of their own. These would guard only against a firing that is repeated without the row:
//! after a restore, which restores the ids together with the row; or after a schedule was removed and created again
//! while the first item exists (without retention, completion frees the id). They would cost one row for each item, and
//! would reserve a prefix of the application's dedupe ids.

pub(crate) mod audit;
pub(crate) mod fire;
pub(crate) mod fired;
pub(crate) mod operations;
pub(crate) mod owned;
pub(crate) mod record;
#[cfg(test)]
mod tests;
mod times;

use std::time::{Duration, SystemTime};

use microqueue::keyspace::Undecodable;
use microqueue::keyspace::record::millis;

pub use self::owned::{ChangedSchedule, MAX_OWNED_SCHEDULES, MAX_SET_BYTES, ScheduleChanges};
pub use self::record::{
    MAX_SCHEDULE_NAME_BYTES, MAX_SCHEDULE_OWNER_BYTES, MAX_SCHEDULE_TEXT_BYTES,
};
pub use self::times::{MAX_MISSED, MISSED_AFTER};
use crate::queue::enqueue_options::{Enqueue, ReadyTime};

/// How a schedule handles times that no session has fired.
///
/// A time is *missed* when it is more than [`MISSED_AFTER`] ago. A time that a session notices earlier always fires.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Missed {
    /// Missed times do not fire.
    Skip,
    /// The newest time that has passed fires: its item stands for all missed times.
    #[default]
    Once,
    /// The newest times that have passed fire, with one item for each.
    All {
        /// The largest number of times that fire if some of them were missed: from 1 to [`MAX_MISSED`]. Other
        /// numbers are clamped to this range.
        cap: u32,
    },
}

/// The times of a schedule: a cron expression in a time zone.
///
/// The expression has five fields: minute, hour, day of the month, month, day of the week. With six fields, the first
/// one is the second; with seven, the last one is the year.
///
/// Sessions enqueue one item for each time that is due, even if several try or some of them die. The item counts as
/// [enqueued](crate::Delivery::enqueued) at the scheduled time. A schedule keeps firing while its queue is paused, and
/// its items wait. With a dedupe id among its [options](Self::with_enqueue_options), at most one item waits. A session
/// that waits for items notices a schedule made by another process at once; other sessions notice it within ten
/// seconds. A time that no session fires within [a minute](MISSED_AFTER) is missed; [`Missed`] decides what happens
/// then.
///
/// Expressions have the meaning that [croner](https://docs.rs/croner) 4 gives them, and time zones come from the IANA
/// database that `chrono-tz` was built with. For clock changes, croner documents:
///
/// > **Fixed-Time Jobs**: Jobs with specific numerical values for seconds, minutes, and hours.
/// > **Interval/Wildcard Jobs**: Jobs using wildcards (`*`) or step values (`*/N`) in their seconds,
/// > minutes, or hours fields.
/// >
/// > **DST Gap (Spring Forward)**: Fixed-Time Jobs will execute at the first valid second/minute immediately
/// > following the gap on the same calendar day. Interval/Wildcard Jobs: Occurrences within the gap are
/// > skipped.
/// >
/// > **DST Overlap (Fall Back)**: Fixed-Time Jobs will execute only once, at its first occurrence in wall
/// > clock time. Interval/Wildcard Jobs will execute for each occurrence that matches its pattern in wall
/// > clock time within the duplicated hour.
///
/// A list or range of hours or minutes, such as `30 2,14 * * *`, does not count as a fixed time: 02:30 is skipped in
/// the gap and fires twice in the overlap. The tests cover both clock changes of 2026 and 2027 in two time zones.
///
/// A gap may cross midnight, or be a whole day that a zone leaves out when it crosses the date line. A fixed time in it
/// fires at the first second after the gap if the expression also has that date: `0 9 * * *` fires at midnight in place
/// of the day that is missing, and `0 9 30 * *` does not fire.
///
/// If the wall clock of a process was ahead, times may have fired in advance, and the next time may be too far ahead.
/// Sessions log a warning, and [`schedule`](crate::Queue::schedule) sets the next time right.
///
/// A schedule ends only if its expression has no more times before the year 5000. One whose times cannot be determined
/// keeps its next time: sessions log the error and try again, [listings](ScheduleEntry::error) and
/// [audits](crate::Finding::StoppedSchedule) show it.
///
/// ```
/// use hc_dequeue::{Missed, Schedule};
///
/// let each_morning = Schedule::new("0 9 * * MON-FRI")
///     .with_time_zone("Europe/Berlin")
///     .with_missed(Missed::Skip);
/// assert_eq!(each_morning.time_zone(), "Europe/Berlin");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    cron: String,
    time_zone: String,
    missed: Missed,
    options: Enqueue,
}

impl Schedule {
    /// Returns a schedule with a cron expression, in UTC, and with [`Missed::Once`].
    #[must_use]
    pub fn new(cron: impl Into<String>) -> Self {
        Self {
            cron: cron.into(),
            time_zone: "UTC".to_owned(),
            missed: Missed::default(),
            options: Enqueue::new(),
        }
    }

    /// Sets the time zone, by its name in the IANA database.
    #[must_use]
    pub fn with_time_zone(mut self, name: impl Into<String>) -> Self {
        self.time_zone = name.into();
        self
    }

    /// Sets how missed times are handled.
    #[must_use]
    pub fn with_missed(mut self, missed: Missed) -> Self {
        self.missed = missed.clamped();
        self
    }

    /// Sets the options of the enqueues. A delay begins at the scheduled time; a fixed time and a batch are refused by
    /// [`schedule`](crate::Queue::schedule), and a trace context has no effect.
    ///
    /// If the dedupe id is [refused](crate::Enqueued::Repeated) or the queue is [full](crate::Error::Full), nothing is
    /// enqueued for this time. Sessions log it and count it in the metric `hc_dequeue_skipped`.
    ///
    /// ```
    /// use hc_dequeue::{Enqueue, Schedule};
    ///
    /// // At most one report waits, however long the queue is paused.
    /// let minutely = Schedule::new("* * * * *").with_enqueue_options(Enqueue::new().with_dedupe("report"));
    /// # drop(minutely);
    /// ```
    #[must_use]
    pub fn with_enqueue_options(mut self, options: Enqueue) -> Self {
        // As they are stored.
        let stored = |time| Duration::from_millis(millis(time));
        self.options = options;
        self.options.trace_context = None;
        self.options.priority = self.options.priority.filter(|priority| *priority != 0);
        self.options.max_wait = self.options.max_wait.map(stored);
        if let Some(ReadyTime::After(delay)) = self.options.ready {
            self.options.ready = Some(ReadyTime::After(stored(delay)));
        }
        self
    }

    /// Returns the options of the enqueues.
    #[must_use]
    pub fn enqueue_options(&self) -> &Enqueue {
        &self.options
    }

    /// Returns the cron expression.
    #[must_use]
    pub fn cron(&self) -> &str {
        &self.cron
    }

    /// Returns the name of the time zone.
    #[must_use]
    pub fn time_zone(&self) -> &str {
        &self.time_zone
    }

    /// Returns how missed times are handled.
    #[must_use]
    pub fn missed(&self) -> Missed {
        self.missed
    }
}

/// The result of [`schedule`](crate::Queue::schedule).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
#[non_exhaustive]
pub enum Scheduled {
    /// No schedule of this name existed.
    Created,
    /// Another schedule of this name existed, and is replaced; or the next time was too far ahead, and is set right.
    Changed,
    /// The same schedule existed with a right next time, and nothing was staged.
    Unchanged,
}

/// A schedule in a listing.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ListedSchedule<T> {
    /// The name of the schedule.
    pub name: String,
    /// The stored schedule, or why it does not decode.
    pub entry: Result<ScheduleEntry<T>, Undecodable>,
}

/// A stored schedule.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ScheduleEntry<T> {
    /// The times at which it fires.
    pub schedule: Schedule,
    /// Whose it is: the owner that [`set_schedules`](crate::Queue::set_schedules) has named. `None` if it was made by
    /// [`schedule`](crate::Queue::schedule).
    pub owner: Option<String>,
    /// The next time at which it fires. `None` if its cron expression has no more times.
    pub next: Option<SystemTime>,
    /// The next time that its cron expression allows, by the wall clock of this process, if `next` is more than a
    /// minute later: a wall clock was ahead. [`schedule`](crate::Queue::schedule) sets it right.
    pub expected: Option<SystemTime>,
    /// Why it does not fire: its expression or time zone is not understood by this version of the library, or its times
    /// cannot be determined.
    pub error: Option<String>,
    /// The newest time that has fired.
    pub last: Option<SystemTime>,
    /// The value that it enqueues, or why it does not decode.
    pub payload: Result<T, Undecodable>,
}

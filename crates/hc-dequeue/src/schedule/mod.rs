//! Schedules: values that are enqueued repeatedly under a name, at the times given by a cron expression.
//!
//! - `times`: the times of a cron expression in a time zone, and which of them fire.
//! - `record`: the stored form of a schedule.
//! - `operations`: operations of applications, in their own transactions.
//! - `fire`: the transaction that enqueues items for due times.
//!
//! # Why each time fires once
//!
//! 1. A firing is one transaction. It reads the row of the schedule serializably, enqueues an item for each time from
//!    the row's next time up to the present, and writes the row with a next time after all of these.
//! 2. If two firings have read the same row, one of them commits. The other one is retried, reads the new next time
//!    and finds nothing due. A session that dies before its commit has changed nothing.
//! 3. The next time in a row only grows. A firing and a change of the cron expression both set it to a time after the
//!    last one that fired, whatever the wall clock of the process shows.
//!
//! The items have no dedupe ids. These would guard only against a firing that is repeated without the row: after a
//! restore, which restores the ids together with the row; or after a schedule was removed and created again while the
//! first item exists (without retention, completion frees the id). They would cost one row for each item, and would
//! reserve a prefix of the application's dedupe ids.

pub(crate) mod fire;
mod operations;
pub(crate) mod record;
#[cfg(test)]
mod tests;
mod times;

use std::time::SystemTime;

use microqueue::keyspace::Undecodable;

pub use self::record::{MAX_SCHEDULE_NAME_BYTES, MAX_SCHEDULE_TEXT_BYTES};
pub use self::times::{MAX_MISSED, MISSED_AFTER};

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
/// one is the second; with seven, the last one is the year. [croner](https://docs.rs/croner) defines the syntax and
/// what happens when daylight-saving time begins and ends; the [crate documentation](crate#schedules) quotes the
/// rules.
///
/// ```
/// use hc_dequeue::{Missed, Schedule};
///
/// let each_morning = Schedule::new("0 9 * * MON-FRI")
///     .time_zone("Europe/Berlin")
///     .missed(Missed::Skip);
/// assert_eq!(each_morning.get_time_zone(), "Europe/Berlin");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule {
    cron: String,
    time_zone: String,
    missed: Missed,
}

impl Schedule {
    /// Returns a schedule with a cron expression, in UTC, and with [`Missed::Once`].
    #[must_use]
    pub fn new(cron: impl Into<String>) -> Self {
        Self {
            cron: cron.into(),
            time_zone: "UTC".to_owned(),
            missed: Missed::default(),
        }
    }

    /// Sets the time zone, by its name in the IANA database.
    #[must_use]
    pub fn time_zone(mut self, name: impl Into<String>) -> Self {
        self.time_zone = name.into();
        self
    }

    /// Sets how missed times are handled.
    #[must_use]
    pub fn missed(mut self, missed: Missed) -> Self {
        self.missed = missed.clamped();
        self
    }

    /// Returns the cron expression.
    #[must_use]
    pub fn get_cron(&self) -> &str {
        &self.cron
    }

    /// Returns the name of the time zone.
    #[must_use]
    pub fn get_time_zone(&self) -> &str {
        &self.time_zone
    }

    /// Returns how missed times are handled.
    #[must_use]
    pub fn get_missed(&self) -> Missed {
        self.missed
    }
}

/// The result of [`schedule`](crate::HighContentionQueue::schedule).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
#[non_exhaustive]
pub enum Scheduled {
    /// No schedule of this name existed.
    Created,
    /// Another schedule of this name existed, and is replaced.
    Changed,
    /// The same schedule existed, and nothing was staged.
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
    /// The next time at which it fires. `None` if its cron expression has no more times.
    pub next: Option<SystemTime>,
    /// The newest time for which it has enqueued an item.
    pub last: Option<SystemTime>,
    /// The value that it enqueues, or why it does not decode.
    pub payload: Result<T, Undecodable>,
}

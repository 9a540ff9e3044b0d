//! Schedules: names under which items are enqueued again and again, at the times that a cron text says.
//!
//! - `times`: which times a cron text means in a time zone, and which of them fire.
//! - `record`: what is stored of a schedule.
//! - `operations`: what applications do with schedules, in their own transactions.
//! - `fire`: the transaction that enqueues what is due.
//!
//! # Why each time fires once
//!
//! 1. A firing reads the row of the schedule serializably, enqueues an item for each time from the row's
//!    next time up to now, and writes the row with a next time after all of them, in one transaction.
//! 2. Of two firings that have read the same row, one commits. The other one is retried, reads the new next
//!    time, and finds nothing due. A session that ends before its commit has changed nothing.
//! 3. The next time of a row only grows: a firing and a change of the cron text both set it to a time after
//!    the last one that fired, whatever the wall clock of the process shows.
//!
//! There is no dedupe id beside that. It would guard against a firing that is repeated without the row:
//! after a restore, which takes the ids back together with the row, and after a schedule was removed and
//! made again, for as long as the first item is there, since completion frees an id if the queue keeps none.
//! So it would promise little, and would cost a row for each item and the half of all ids of the
//! application's choice that a prefix of ours reserves.

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

/// What becomes of times at which no session was there to fire.
///
/// A time is *missed* once it is [`MISSED_AFTER`] ago. One that is seen earlier fires in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Missed {
    /// Nothing: only later times fire.
    Skip,
    /// The newest time that has passed fires, one item for all of them.
    #[default]
    Once,
    /// The newest times that have passed fire, an item for each.
    All {
        /// How many of them: from 1 to [`MAX_MISSED`]. Another number counts as the nearest of these.
        cap: u32,
    },
}

/// When a schedule fires: a cron text, in a time zone.
///
/// The text has five fields: minute, hour, day of the month, month, day of the week; with six, the first one
/// is the second, and with seven, the last one is the year. [croner](https://docs.rs/croner) defines what
/// they may be, and what the changes to and from daylight-saving time do; the
/// [crate documentation](crate#schedules) quotes it.
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
    /// Begins with a cron text, in UTC, and with [`Missed::Once`].
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

    /// Sets what becomes of times that were missed.
    #[must_use]
    pub fn missed(mut self, missed: Missed) -> Self {
        self.missed = missed.clamped();
        self
    }

    /// Returns the cron text.
    #[must_use]
    pub fn get_cron(&self) -> &str {
        &self.cron
    }

    /// Returns the name of the time zone.
    #[must_use]
    pub fn get_time_zone(&self) -> &str {
        &self.time_zone
    }

    /// Returns what becomes of times that were missed.
    #[must_use]
    pub fn get_missed(&self) -> Missed {
        self.missed
    }
}

/// What became of a call that schedules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
#[non_exhaustive]
pub enum Scheduled {
    /// There was no schedule of this name.
    Created,
    /// There was another one, which is replaced.
    Changed,
    /// There was the same one, and nothing was staged.
    Unchanged,
}

/// A schedule in a listing.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ListedSchedule<T> {
    /// Its name.
    pub name: String,
    /// What is stored under the name, or why that does not decode.
    pub entry: Result<ScheduleEntry<T>, Undecodable>,
}

/// What is stored of a schedule.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ScheduleEntry<T> {
    /// When it fires.
    pub schedule: Schedule,
    /// The next time at which it fires. `None`: the years of its cron text are over.
    pub next: Option<SystemTime>,
    /// The newest time for which it has enqueued an item.
    pub last: Option<SystemTime>,
    /// The value that it enqueues, or why that does not decode.
    pub payload: Result<T, Undecodable>,
}

//! The times of a cron expression in a time zone. All times are in milliseconds since the Unix epoch.
//!
//! croner finds the wall-clock times of an expression, which know no zone. This module says when a wall clock shows
//! them: once as a rule, never in a gap that a clock change leaves, and twice where it repeats a range. A gap may be a
//! whole day, when a zone crosses the date line.

use std::collections::VecDeque;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Datelike, LocalResult, NaiveDateTime, TimeZone};
use chrono_tz::{GapInfo, Tz};
use croner::errors::CronError;
use croner::{Cron, Direction, JobType, YEAR_UPPER_LIMIT};
use microqueue::keyspace::record::millis;

use super::fired::FiredTimes;
use super::record::{MAX_SCHEDULE_TEXT_BYTES, ScheduleRecord};
use super::{Missed, Schedule};
use crate::items::error::{BoxError, Error, Result};
use crate::session::MAX_CLOCK_ERROR;

/// How long after its time a firing counts as missed. Living sessions fire sooner than this, even if another process
/// created the schedule or the store is slow.
pub const MISSED_AFTER: Duration = Duration::from_secs(60);

/// The largest number of missed times that [`Missed::All`] fires.
pub const MAX_MISSED: u32 = 1_000;

impl Missed {
    pub(super) fn clamped(self) -> Self {
        match self {
            Self::All { cap } => Self::All {
                cap: cap.clamp(1, MAX_MISSED),
            },
            other => other,
        }
    }

    /// Returns how many of the newest times fire even if they were missed.
    fn newest(self) -> usize {
        match self.clamped() {
            Self::Skip => 0,
            Self::Once => 1,
            Self::All { cap } => cap as usize,
        }
    }
}

/// The times of a schedule that are due.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Due {
    /// The times that fire now, ascending.
    pub(super) times: Vec<u64>,
    /// The time after these, or `None` if there is none. It may be due, too, if there are more times than requested.
    pub(super) next: Option<u64>,
}

/// A cron expression in a time zone.
#[derive(Debug)]
pub(super) struct Times {
    cron: Cron,
    zone: Tz,
    /// Whether the expression has one second, one minute and one hour, so that it fires once on each of its days.
    has_fixed_time: bool,
}

impl Times {
    /// Parses the cron expression and the time zone of a schedule.
    ///
    /// # Errors
    /// [`Error::CronExpression`] and [`Error::TimeZone`].
    pub(super) fn parse(schedule: &Schedule) -> Result<Self> {
        let text = &schedule.cron;
        let zone = &schedule.time_zone;
        let refuse = |source: BoxError| Error::CronExpression {
            text: text.clone(),
            source: Arc::from(source),
        };
        if text.len() > MAX_SCHEDULE_TEXT_BYTES {
            let reason = format!("it has more than {MAX_SCHEDULE_TEXT_BYTES} bytes");
            return Err(refuse(reason.into()));
        }
        let cron = Cron::from_str(text).map_err(|error| refuse(error.into()))?;
        let zone = Tz::from_str(zone).map_err(|_| Error::TimeZone { name: zone.clone() })?;
        Ok(Self {
            has_fixed_time: cron.determine_job_type() == JobType::FixedTime,
            cron,
            zone,
        })
    }

    /// Returns the first time after `millis`, or `None` if there is none before the year 5000.
    ///
    /// # Errors
    /// [`Error::CronTimes`].
    pub(super) fn after(&self, millis: u64) -> Result<Option<u64>> {
        let found = self.nearest(&self.zoned(millis)?, Direction::Forward)?;
        Ok(found.and_then(|found| to_millis(&found)))
    }

    /// Returns the first time after `millis` that has not fired, or `None` if there is none.
    ///
    /// # Errors
    /// [`Error::CronTimes`].
    pub(super) fn next_after(&self, millis: u64, fired: &FiredTimes) -> Result<Option<u64>> {
        let mut after = millis;
        while let Some(time) = self.after(after)? {
            let Some(run) = fired.run_of(time) else {
                return Ok(Some(time));
            };
            after = run.last;
        }
        Ok(None)
    }

    /// Returns the next time that a schedule should have at the wall time `now`, if its next time is later by more than
    /// clocks may differ: a clock was ahead when its next time was determined.
    ///
    /// # Errors
    /// [`Error::CronTimes`].
    pub(super) fn expected(&self, record: &ScheduleRecord, now: u64) -> Result<Option<u64>> {
        let Some(expected) = self.next_after(now, &record.fired)? else {
            return Ok(None);
        };
        // A time that a firing has passed over is missed by that firing's clock, and its next time is as much later.
        let ahead = millis(MAX_CLOCK_ERROR.min(MISSED_AFTER));
        let Some(latest) = self.after(now.saturating_add(ahead))? else {
            return Ok(None);
        };
        let latest = latest.max(expected);
        let is_late = record.next_millis.is_none_or(|next| next > latest);
        if !is_late {
            return Ok(None);
        }
        Ok(Some(expected))
    }

    /// Returns the last time at or before `millis`, or `None` if there is none.
    fn up_to(&self, millis: u64) -> Result<Option<u64>> {
        let found = self.nearest(&self.zoned(millis)?, Direction::Backward)?;
        Ok(found.and_then(|found| to_millis(&found)))
    }

    /// Returns the first time after `from`, or the last one up to it.
    fn nearest(&self, from: &DateTime<Tz>, direction: Direction) -> Result<Option<DateTime<Tz>>> {
        let wall = from.naive_local();
        // Upward, the walk begins after `wall`: a second time of the same wall clock may not be the nearest one.
        let is_inclusive = direction == Direction::Backward;
        let found = self.walk(wall, is_inclusive, from, direction)?;
        let LocalResult::Ambiguous(first, second) = self.zone.from_local_datetime(&wall) else {
            return Ok(found);
        };
        // The wall clock shows a range twice, and `from` is in it. Its other part may have nearer times, which the walk
        // has passed.
        let goes_back_by = second - first;
        let other = match direction {
            Direction::Forward if *from < second => wall - goes_back_by,
            Direction::Backward if *from >= second => wall + goes_back_by,
            _ => return Ok(found),
        };
        let other = self.walk(other, true, from, direction)?;
        let both = found.into_iter().chain(other);
        Ok(match direction {
            Direction::Forward => both.min(),
            Direction::Backward => both.max(),
        })
    }

    /// Goes through the wall-clock times of the expression from `wall` on, up or down, and returns the first time that
    /// one of them gives after `from`, or up to it.
    fn walk(
        &self,
        mut wall: NaiveDateTime,
        mut is_inclusive: bool,
        from: &DateTime<Tz>,
        direction: Direction,
    ) -> Result<Option<DateTime<Tz>>> {
        let is_on = |time: &DateTime<Tz>| match direction {
            Direction::Forward => time > from,
            Direction::Backward => time <= from,
        };
        while let Some(found) = self.wall_time(wall, is_inclusive, direction)? {
            let times = self.times_of(&found)?.into_iter().flatten().filter(is_on);
            let nearest = match direction {
                Direction::Forward => times.min(),
                Direction::Backward => times.max(),
            };
            if nearest.is_some() {
                return Ok(nearest);
            }
            wall = found;
            is_inclusive = false;
        }
        Ok(None)
    }

    /// Returns the times at which an expression fires for one of its wall-clock times.
    fn times_of(&self, wall: &NaiveDateTime) -> Result<[Option<DateTime<Tz>>; 2]> {
        Ok(match self.zone.from_local_datetime(wall) {
            LocalResult::Single(time) => [Some(time), None],
            LocalResult::Ambiguous(first, _) if self.has_fixed_time => [Some(first), None],
            LocalResult::Ambiguous(first, second) => [Some(first), Some(second)],
            LocalResult::None if self.has_fixed_time => [self.after_gap(wall)?, None],
            LocalResult::None => [None, None],
        })
    }

    /// Returns the end of the gap that contains a wall-clock time, if the expression also has its date.
    fn after_gap(&self, wall: &NaiveDateTime) -> Result<Option<DateTime<Tz>>> {
        let Some(end) = GapInfo::new(wall, &self.zone).and_then(|gap| gap.end) else {
            return Ok(None);
        };
        let on_its_date = end.date_naive().and_time(wall.time());
        let matches = self.cron.is_time_matching(&on_its_date);
        if !matches.map_err(|error| self.fail(error))? {
            return Ok(None);
        }
        Ok(Some(end))
    }

    /// Returns the next wall-clock time of the expression, up or down, or `None` if there is none up to the first or
    /// the last year that croner knows.
    fn wall_time(
        &self,
        from: NaiveDateTime,
        is_inclusive: bool,
        direction: Direction,
    ) -> Result<Option<NaiveDateTime>> {
        let found = match direction {
            Direction::Forward => self.cron.find_next_occurrence(&from, is_inclusive),
            Direction::Backward => self.cron.find_previous_occurrence(&from, is_inclusive),
        };
        match found {
            Ok(found) => Ok(Some(found)),
            // Wall-clock times have no gaps, so that croner only gives up at the end of its years.
            Err(CronError::TimeSearchLimitExceeded) => Ok(None),
            Err(error) => Err(self.fail(error)),
        }
    }

    /// Returns the times from `next` to `now` that fire: those that were not missed, and the newest missed ones as
    /// `missed` says, except those that have fired. Returns at most the first `max` of them.
    pub(super) fn due(
        &self,
        next: u64,
        now: u64,
        missed: Missed,
        max: usize,
        fired: &FiredTimes,
    ) -> Result<Due> {
        let mut times = VecDeque::new();
        let mut until = Some(now);
        while let Some(last) = until {
            let Some(time) = self.up_to(last)?.filter(|time| *time >= next) else {
                break;
            };
            if let Some(run) = fired.run_of(time) {
                until = run.first.checked_sub(1);
                continue;
            }
            let is_missed = now - time > millis(MISSED_AFTER);
            if is_missed && times.len() >= missed.newest() {
                break;
            }
            times.push_front(time);
            until = time.checked_sub(1);
        }
        let rest = times.split_off(times.len().min(max));
        let next = match rest.front() {
            Some(next) => Some(*next),
            None => self.next_after(now, fired)?,
        };
        Ok(Due {
            times: times.into(),
            next,
        })
    }

    /// Returns the second that contains a time.
    ///
    /// # Errors
    /// [`Error::CronTimes`] if croner does not know its year. Otherwise a wall clock that shows such a year would end
    /// every schedule.
    fn zoned(&self, millis: u64) -> Result<DateTime<Tz>> {
        let seconds = i64::try_from(millis / 1_000).ok();
        let time = seconds.and_then(|seconds| self.zone.timestamp_opt(seconds, 0).single());
        time.filter(|time| time.naive_local().year() < YEAR_UPPER_LIMIT)
            .ok_or_else(|| {
                self.fail(format!(
                    "{millis} ms after the Unix epoch is the year {YEAR_UPPER_LIMIT} or later"
                ))
            })
    }

    fn fail(&self, source: impl Into<BoxError>) -> Error {
        Error::CronTimes {
            text: self.cron.as_str().to_owned(),
            time_zone: self.zone.name().to_owned(),
            source: Arc::from(source.into()),
        }
    }
}

fn to_millis(time: &DateTime<Tz>) -> Option<u64> {
    u64::try_from(time.timestamp_millis()).ok()
}

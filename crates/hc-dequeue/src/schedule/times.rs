//! The times of a cron expression in a time zone. All times are in milliseconds since the Unix epoch.

use std::collections::VecDeque;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeZone};
use chrono_tz::Tz;
use croner::Cron;
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
        Ok(Self { cron, zone })
    }

    /// Returns the first time after `millis`, or `None` if there is none.
    pub(super) fn after(&self, millis: u64) -> Option<u64> {
        let found = self.cron.find_next_occurrence(&self.zoned(millis)?, false);
        // Croner returns an error if it finds no time.
        to_millis(&found.ok()?).filter(|found| *found > millis)
    }

    /// Returns the first time after `millis` that has not fired, or `None` if there is none.
    pub(super) fn next_after(&self, millis: u64, fired: &FiredTimes) -> Option<u64> {
        let mut after = millis;
        loop {
            let time = self.after(after)?;
            let Some(run) = fired.run_of(time) else {
                return Some(time);
            };
            after = run.last;
        }
    }

    /// Returns the next time that a schedule should have at the wall time `now`, if its next time is later by more than
    /// clocks may differ: a clock was ahead when its next time was determined.
    pub(super) fn expected(&self, record: &ScheduleRecord, now: u64) -> Option<u64> {
        let expected = self.next_after(now, &record.fired)?;
        // A time that a firing has passed over is missed by that firing's clock, and its next time is as much later.
        let ahead = millis(MAX_CLOCK_ERROR.min(MISSED_AFTER));
        let latest = self.after(now.saturating_add(ahead))?.max(expected);
        let is_late = record.next_millis.is_none_or(|next| next > latest);
        is_late.then_some(expected)
    }

    /// Returns the last time at or before `millis`, or `None` if there is none.
    fn up_to(&self, millis: u64) -> Option<u64> {
        let found = self
            .cron
            .find_previous_occurrence(&self.zoned(millis)?, true);
        to_millis(&found.ok()?).filter(|found| *found <= millis)
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
    ) -> Due {
        let mut times = VecDeque::new();
        let mut until = Some(now);
        while let Some(time) = until.and_then(|until| self.up_to(until)) {
            if time < next {
                break;
            }
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
        Due {
            times: times.into(),
            next: rest
                .front()
                .copied()
                .or_else(|| self.next_after(now, fired)),
        }
    }

    /// Returns the second that contains a time, or `None` if it is outside the calendar.
    fn zoned(&self, millis: u64) -> Option<DateTime<Tz>> {
        let seconds = i64::try_from(millis / 1_000).ok()?;
        self.zone.timestamp_opt(seconds, 0).single()
    }
}

fn to_millis(time: &DateTime<Tz>) -> Option<u64> {
    u64::try_from(time.timestamp_millis()).ok()
}

#[cfg(test)]
mod tests {
    use conformance::scale;
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    fn times(cron: &str, zone: &str) -> Times {
        Times::parse(&Schedule::new(cron).with_time_zone(zone)).unwrap()
    }

    fn utc(text: &str) -> u64 {
        to_millis(
            &DateTime::parse_from_rfc3339(text)
                .unwrap()
                .with_timezone(&Tz::UTC),
        )
        .unwrap()
    }

    /// Returns the times after one and up to another one, in UTC.
    fn between(times: &Times, after: &str, until: &str) -> Vec<String> {
        let firsts = std::iter::successors(times.after(utc(after)), |time| times.after(*time))
            .take_while(|time| *time <= utc(until));
        let text = |time| Tz::UTC.timestamp_millis_opt(time as i64).unwrap();
        firsts
            .map(|time| text(time).format("%Y-%m-%dT%H:%M:%SZ").to_string())
            .collect()
    }

    const BERLIN: &str = "Europe/Berlin";
    const NEW_YORK: &str = "America/New_York";

    /// A daily time, a half-hourly one and a two-hourly one around the clock changes of two zones. When
    /// daylight-saving time begins, local times from 02:00 to 03:00 do not exist. When it ends, those from 02:00 to
    /// 03:00 in Berlin and from 01:00 to 02:00 in New York occur twice.
    const SUMMER_TIME: [(&str, &str, [&str; 2], &[&str]); 14] = [
        // A fixed time that does not exist fires at the first time after the gap.
        (
            "30 2 * * *",
            BERLIN,
            ["2026-03-28T00:00:00Z", "2026-03-30T12:00:00Z"],
            &[
                "2026-03-28T01:30:00Z",
                "2026-03-29T01:00:00Z",
                "2026-03-30T00:30:00Z",
            ],
        ),
        (
            "30 2 * * *",
            BERLIN,
            ["2027-03-27T00:00:00Z", "2027-03-29T12:00:00Z"],
            &[
                "2027-03-27T01:30:00Z",
                "2027-03-28T01:00:00Z",
                "2027-03-29T00:30:00Z",
            ],
        ),
        (
            "30 2 * * *",
            NEW_YORK,
            ["2026-03-07T00:00:00Z", "2026-03-09T12:00:00Z"],
            &[
                "2026-03-07T07:30:00Z",
                "2026-03-08T07:00:00Z",
                "2026-03-09T06:30:00Z",
            ],
        ),
        (
            "30 2 * * *",
            NEW_YORK,
            ["2027-03-13T00:00:00Z", "2027-03-15T12:00:00Z"],
            &[
                "2027-03-13T07:30:00Z",
                "2027-03-14T07:00:00Z",
                "2027-03-15T06:30:00Z",
            ],
        ),
        // A fixed time that occurs twice fires at the first occurrence.
        (
            "30 2 * * *",
            BERLIN,
            ["2026-10-24T12:00:00Z", "2026-10-26T12:00:00Z"],
            &["2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"],
        ),
        (
            "30 2 * * *",
            BERLIN,
            ["2027-10-30T12:00:00Z", "2027-11-01T12:00:00Z"],
            &["2027-10-31T00:30:00Z", "2027-11-01T01:30:00Z"],
        ),
        (
            "30 1 * * *",
            NEW_YORK,
            ["2026-10-31T12:00:00Z", "2026-11-02T12:00:00Z"],
            &["2026-11-01T05:30:00Z", "2026-11-02T06:30:00Z"],
        ),
        (
            "30 1 * * *",
            NEW_YORK,
            ["2027-11-06T12:00:00Z", "2027-11-08T12:00:00Z"],
            &["2027-11-07T05:30:00Z", "2027-11-08T06:30:00Z"],
        ),
        // A time with a wildcard is skipped in the gap, and fires at both occurrences.
        (
            "*/30 * * * *",
            BERLIN,
            ["2026-03-29T00:00:00Z", "2026-03-29T02:00:00Z"],
            &[
                "2026-03-29T00:30:00Z",
                "2026-03-29T01:00:00Z",
                "2026-03-29T01:30:00Z",
                "2026-03-29T02:00:00Z",
            ],
        ),
        (
            "30 * * * *",
            NEW_YORK,
            ["2026-11-01T05:00:00Z", "2026-11-01T08:00:00Z"],
            &[
                "2026-11-01T05:30:00Z",
                "2026-11-01T06:30:00Z",
                "2026-11-01T07:30:00Z",
            ],
        ),
        (
            "0 */2 * * *",
            BERLIN,
            ["2027-10-30T21:00:00Z", "2027-10-31T04:00:00Z"],
            &[
                "2027-10-30T22:00:00Z",
                "2027-10-31T00:00:00Z",
                "2027-10-31T01:00:00Z",
                "2027-10-31T03:00:00Z",
            ],
        ),
        (
            "0 */2 * * *",
            NEW_YORK,
            ["2027-03-14T04:00:00Z", "2027-03-14T11:00:00Z"],
            &[
                "2027-03-14T05:00:00Z",
                "2027-03-14T08:00:00Z",
                "2027-03-14T10:00:00Z",
            ],
        ),
        // So is a list of hours, which croner does not count as a fixed time.
        (
            "30 2,14 * * *",
            BERLIN,
            ["2026-03-28T20:00:00Z", "2026-03-29T20:00:00Z"],
            &["2026-03-29T12:30:00Z"],
        ),
        (
            "30 2,14 * * *",
            BERLIN,
            ["2026-10-24T20:00:00Z", "2026-10-25T20:00:00Z"],
            &[
                "2026-10-25T00:30:00Z",
                "2026-10-25T01:30:00Z",
                "2026-10-25T13:30:00Z",
            ],
        ),
    ];

    #[test]
    fn changes_to_and_from_summer_time_have_croners_rules() {
        for (cron, zone, [after, until], expected) in SUMMER_TIME {
            assert_eq!(
                between(&times(cron, zone), after, until),
                expected,
                "{cron} {zone} {after}"
            );
        }
    }

    /// Due times are searched backward from the present, and the next time is searched forward.
    #[test]
    fn the_times_are_the_same_in_both_directions() {
        let weeks = [
            ("Europe/Berlin", "2026-03-27T00:00:00Z"),
            ("Europe/Berlin", "2026-10-23T00:00:00Z"),
            ("Europe/Berlin", "2027-03-26T00:00:00Z"),
            ("America/New_York", "2026-03-06T00:00:00Z"),
            ("America/New_York", "2026-10-30T00:00:00Z"),
            ("America/New_York", "2027-11-05T00:00:00Z"),
            ("Australia/Lord_Howe", "2026-04-03T00:00:00Z"),
            ("Australia/Lord_Howe", "2026-10-02T00:00:00Z"),
            ("Europe/London", "2026-03-27T00:00:00Z"),
        ];
        let crons = [
            "30 2 * * *",
            "0 0 * * *",
            "0 3 * * *",
            "59 1 * * *",
            "45 1 * * *",
            "*/20 * * * *",
            "7 */2 * * *",
            "30 1,2,3 * * *",
            "0-30/10 2 * * *",
            "0 3 * * SUN",
        ];
        let mut compared = 0;
        for (zone, from) in weeks {
            for cron in crons {
                let times = times(cron, zone);
                let begin = utc(from);
                let hour = 3_600_000;
                for hours in [1, 20, 47, 49, 53, 60, 96] {
                    let now = begin + hours * hour;
                    let forward: Vec<_> =
                        std::iter::successors(times.after(begin), |time| times.after(*time))
                            .take_while(|time| *time <= now)
                            .collect();
                    let missed = Missed::All { cap: MAX_MISSED };
                    let due = times.due(begin + 1, now, missed, usize::MAX, &FiredTimes::default());
                    assert_eq!(due.times, forward, "{cron} {zone} {from} {hours}");
                    assert!(due.next.unwrap() > now);
                    compared += forward.len();
                }
            }
        }
        assert!(compared > 5_000, "{compared}");
    }

    #[test]
    fn what_was_missed_fires_as_the_schedule_says() {
        let times = times("*/10 * * * *", "UTC");
        let at = |minute: u64| utc("2026-11-22T12:00:00Z") + minute * 60_000;
        let all = |cap| Missed::All { cap };
        let none = &FiredTimes::default();
        // The schedule's next time is 12:10.
        let table: [(u64, Missed, &[u64], u64); 14] = [
            (at(10) - 1, Missed::Once, &[], 10),
            // Not missed yet.
            (at(10), Missed::Skip, &[10], 20),
            (at(11), Missed::Skip, &[10], 20),
            (at(11), Missed::Once, &[10], 20),
            (at(11), all(5), &[10], 20),
            // Missed.
            (at(11) + 1, Missed::Skip, &[], 20),
            (at(11) + 1, Missed::Once, &[10], 20),
            (at(45), Missed::Skip, &[], 50),
            (at(45), Missed::Once, &[40], 50),
            (at(45), all(1), &[40], 50),
            (at(45), all(3), &[20, 30, 40], 50),
            (at(45), all(9), &[10, 20, 30, 40], 50),
            // The newest time is not missed, and stands for the missed ones.
            (at(40), Missed::Skip, &[40], 50),
            (at(40), Missed::Once, &[40], 50),
        ];
        for (now, missed, minutes, next) in table {
            let due = times.due(at(10), now, missed, 100, none);
            let expected: Vec<_> = minutes.iter().map(|minute| at(*minute)).collect();
            assert_eq!(
                (due.times, due.next),
                (expected, Some(at(next))),
                "{now} {missed:?}"
            );
        }
        // Two calls return all due times.
        let due = times.due(at(10), at(45), all(3), 2, none);
        assert_eq!((due.times, due.next), (vec![at(20), at(30)], Some(at(40))));
        let due = times.due(at(40), at(45), all(3), 2, none);
        assert_eq!((due.times, due.next), (vec![at(40)], Some(at(50))));
    }

    #[test]
    fn each_second_fires_that_is_not_missed() {
        let times = times("* * * * * *", "UTC");
        let now = utc("2026-11-22T12:00:00Z") + 500;
        let count = |missed| {
            times
                .due(
                    now - 3_600_000,
                    now,
                    missed,
                    usize::MAX,
                    &FiredTimes::default(),
                )
                .times
                .len()
        };
        // Sixty times within the minute, and the one at its start.
        assert_eq!(count(Missed::Skip), 60);
        assert_eq!(count(Missed::Once), 60);
        assert_eq!(count(Missed::All { cap: 100 }), 100);
        assert_eq!(count(Missed::All { cap: u32::MAX }), MAX_MISSED as usize);
    }

    #[test]
    fn a_text_that_never_fires_has_no_time() {
        let now = utc("2026-11-22T12:00:00Z");
        for cron in ["0 0 30 2 *", "0 0 31 4,6,9,11 *", "0 0 0 1 1 * 2025"] {
            assert_eq!(times(cron, "Europe/Berlin").after(now), None, "{cron}");
        }
        let last = times("0 0 0 1 1 * 2027", "UTC");
        let new_year = utc("2027-01-01T00:00:00Z");
        assert_eq!(last.after(now), Some(new_year));
        let due = last.due(
            new_year,
            new_year + 1,
            Missed::Once,
            9,
            &FiredTimes::default(),
        );
        assert_eq!((due.times, due.next), (vec![new_year], None));
        assert_eq!(
            times("0 0 29 2 *", "UTC").after(now),
            Some(utc("2028-02-29T00:00:00Z"))
        );
        assert_eq!(last.after(u64::MAX), None);
    }

    #[test]
    fn texts_that_mean_nothing_are_refused_and_none_panics() {
        let parse = |cron: &str| Times::parse(&Schedule::new(cron));
        for cron in [
            "",
            "* * * *",
            "60 * * * *",
            "a b c d e",
            "* * 0 * *",
            "😀 * * * *",
        ] {
            assert!(
                matches!(parse(cron), Err(Error::CronExpression { .. })),
                "{cron}"
            );
        }
        let long = format!("{} * * * *", "1,".repeat(200));
        assert!(matches!(parse(&long), Err(Error::CronExpression { .. })));
        for zone in ["", "Berlin", "europe/berlin", "UTC+1"] {
            let schedule = Schedule::new("@daily").with_time_zone(zone);
            assert!(
                matches!(Times::parse(&schedule), Err(Error::TimeZone { .. })),
                "{zone}"
            );
        }
        let words = [
            "*", "0", "*/5", "1-5", "1,3", "L", "MON", "JAN", "?", "5#2", "15W", "+MON",
        ];
        let alphabet: Vec<char> = "0123456789*,-/L#W?+@éJANMONdaily".chars().collect();
        let mut parsed = 0;
        for seed in 0..scale(20_000, 1_000_000) as u64 {
            let mut rng = StdRng::seed_from_u64(seed);
            let field = |rng: &mut StdRng| -> String {
                if rng.random() {
                    return words[rng.random_range(0..words.len())].to_owned();
                }
                let length = rng.random_range(1..4);
                (0..length)
                    .map(|_| alphabet[rng.random_range(0..alphabet.len())])
                    .collect()
            };
            let fields: Vec<_> = (0..5).map(|_| field(&mut rng)).collect();
            if let Ok(times) = parse(&fields.join(" ")) {
                parsed += 1;
                let now = utc("2026-11-22T12:00:00Z");
                let next = times.after(now);
                assert!(
                    next.is_none_or(|next| next > now),
                    "seed {seed}: {fields:?}"
                );
            }
        }
        assert!(parsed > 100, "{parsed}");
    }
}

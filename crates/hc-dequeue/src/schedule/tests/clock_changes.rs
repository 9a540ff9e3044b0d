//! The times of cron expressions around clock changes, compared with those that the wall clock of each minute gives.

use std::str::FromStr;

use chrono::{NaiveDateTime, TimeDelta, TimeZone, Timelike};
use chrono_tz::Tz;
use croner::{Cron, JobType};

use super::times::{text, times, times_between, utc};
use crate::schedule::Missed;
use crate::schedule::fired::FiredTimes;
use crate::schedule::times::MAX_MISSED;

/// Determines times in the plainest way: it looks at the wall clock of each minute.
fn naive_times(cron: &str, zone: &str, after: u64, until: u64) -> Vec<u64> {
    const MINUTE: u64 = 60_000;
    let zone = Tz::from_str(zone).unwrap();
    let cron = Cron::from_str(cron).unwrap();
    let is_fixed = cron.determine_job_type() == JobType::FixedTime;
    let matches = |wall: &NaiveDateTime| cron.is_time_matching(wall).unwrap();
    let minute = TimeDelta::minutes(1);
    let wall_at = |time: u64| {
        let time = zone.timestamp_millis_opt(time as i64).unwrap();
        time.naive_local()
    };
    let begin = after.saturating_sub(2 * 24 * 60 * MINUTE);
    let mut found = Vec::new();
    let mut before = wall_at(begin);
    let mut latest = before;
    for time in (begin + MINUTE..=until).step_by(MINUTE as usize) {
        let wall = wall_at(time);
        assert_eq!(wall.second(), 0);
        let is_repeated = wall <= latest;
        let mut fires = matches(&wall) && !(is_fixed && is_repeated);
        let mut left_out = before + minute;
        while is_fixed && left_out < wall {
            let on_this_date = wall.date().and_time(left_out.time());
            fires |= !is_repeated && matches(&left_out) && matches(&on_this_date);
            left_out += minute;
        }
        if fires && time > after {
            found.push(time);
        }
        before = wall;
        latest = latest.max(wall);
    }
    found
}

/// Compares the times of an expression in both directions with those of the plainest way. Returns how many there are.
fn compare_with_naive(cron: &str, zone: &str, after: u64, until: u64) -> usize {
    let times = times(cron, zone);
    let expected: Vec<_> = naive_times(cron, zone, after, until);
    let forward = times_between(&times, after, until);
    let texts = |times: &[u64]| times.iter().copied().map(text).collect::<Vec<_>>();
    assert_eq!(texts(&forward), texts(&expected), "{cron} {zone}");
    let missed = Missed::All { cap: MAX_MISSED };
    let due = times.due(after + 1, until, missed, usize::MAX, &FiredTimes::default());
    let due = due.unwrap();
    assert_eq!(
        texts(&due.times),
        texts(&expected),
        "{cron} {zone}, backward"
    );
    // A search may also begin within a gap's day or a repeated hour.
    for time in (after..until).step_by(37 * 60_000) {
        let next = expected.iter().copied().find(|expected| *expected > time);
        if let Some(next) = next {
            assert_eq!(
                times.after(time).unwrap(),
                Some(next),
                "{cron} {zone} {}",
                text(time)
            );
        }
    }
    expected.len()
}

const CRONS: [&str; 14] = [
    "0 9 * * *",
    "0 0 * * *",
    "30 0 * * *",
    "15 1 * * *",
    "30 2 * * *",
    "59 23 * * *",
    "30 23 * * SAT",
    "0 0 * * SUN",
    "0 12 L * *",
    "0 0 1 * *",
    "15 0 30,31 * *",
    "*/30 * * * *",
    "7 */2 * * *",
    "30 0,1,2,23 * * *",
];

#[test]
fn times_around_clock_changes_are_those_that_a_clock_shows() {
    let spans = [
        // Days that are missing.
        ("Pacific/Apia", "2011-12-28T12:00:00Z"),
        ("Pacific/Fakaofo", "2011-12-28T12:00:00Z"),
        ("Pacific/Kwajalein", "1993-08-19T12:00:00Z"),
        ("Pacific/Kiritimati", "1994-12-29T12:00:00Z"),
        ("Pacific/Enderbury", "1994-12-29T12:00:00Z"),
        // Three and two hours that are missing.
        ("Antarctica/Casey", "2020-10-02T00:00:00Z"),
        ("Antarctica/Troll", "2026-03-27T12:00:00Z"),
        ("Antarctica/Troll", "2026-10-23T12:00:00Z"),
        // Changes at midnight and across it.
        ("America/Sao_Paulo", "2017-10-13T12:00:00Z"),
        ("America/Sao_Paulo", "2018-02-16T12:00:00Z"),
        ("Asia/Beirut", "2022-03-25T12:00:00Z"),
        ("Asia/Beirut", "2022-10-28T12:00:00Z"),
        ("Africa/Cairo", "2023-04-26T12:00:00Z"),
        ("America/Havana", "2026-03-07T12:00:00Z"),
        ("America/Nuuk", "2024-03-29T12:00:00Z"),
        ("America/Nuuk", "2024-10-25T12:00:00Z"),
        // Half an hour.
        ("Australia/Lord_Howe", "2026-04-03T00:00:00Z"),
        ("Australia/Lord_Howe", "2026-10-02T00:00:00Z"),
        ("America/Caracas", "2016-04-29T12:00:00Z"),
        ("Asia/Pyongyang", "2018-05-03T00:00:00Z"),
        // An hour in the small hours.
        ("Europe/Berlin", "2026-03-27T12:00:00Z"),
        ("Europe/Berlin", "2026-10-23T12:00:00Z"),
        ("America/New_York", "2026-10-30T12:00:00Z"),
    ];
    let mut compared = 0;
    for (zone, from) in spans {
        for cron in CRONS {
            let after = utc(from);
            let until = after + 4 * 24 * 3_600_000;
            compared += compare_with_naive(cron, zone, after, until);
        }
    }
    assert!(compared > 6_000, "{compared}");
}

/// Every change of any zone that leaves out more than an hour, from 1973 to 2037. Zones had odd seconds before.
#[test]
fn no_change_that_leaves_out_hours_or_days_ends_a_schedule() {
    const WEEK: i64 = 7 * 24 * 3_600;
    let first = (utc("1973-01-01T00:00:00Z") / 1_000) as i64;
    let last = (utc("2037-12-01T00:00:00Z") / 1_000) as i64;
    let mut long = Vec::new();
    for zone in chrono_tz::TZ_VARIANTS {
        let local = |time: i64| {
            let wall = zone.timestamp_opt(time, 0).unwrap().naive_local();
            wall.and_utc().timestamp()
        };
        for begin in (first..last).step_by(WEEK as usize) {
            let has_jump = |end| local(end) - local(begin) > end - begin + 3_600;
            if !has_jump(begin + WEEK) {
                continue;
            }
            let mut before = begin;
            let mut after = begin + WEEK;
            while after - before > 1 {
                let middle = before + (after - before) / 2;
                if has_jump(middle) {
                    after = middle;
                } else {
                    before = middle;
                }
            }
            long.push((zone.name(), after));
        }
    }
    assert!(long.len() > 20, "{long:?}");
    for (zone, jump) in long {
        let jump = u64::try_from(jump).unwrap() * 1_000;
        let day = 24 * 3_600_000;
        for cron in [
            "0 9 * * *",
            "30 0 * * *",
            "30 1 * * *",
            "20 23 * * *",
            "*/45 * * * *",
        ] {
            // At a whole minute.
            let after = jump / 60_000 * 60_000 - 2 * day;
            assert!(compare_with_naive(cron, zone, after, after + 4 * day) > 2);
        }
    }
}

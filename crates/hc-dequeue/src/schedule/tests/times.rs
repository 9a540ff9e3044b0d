//! The times of cron expressions, and what of them fires.

use chrono::TimeZone;
use chrono_tz::Tz;
use conformance::scale;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::items::error::Error;
use crate::schedule::fired::FiredTimes;
use crate::schedule::times::{MAX_MISSED, Times};
use crate::schedule::{Missed, Schedule};
use crate::session::wall::unix_millis;

pub(super) fn times(cron: &str, zone: &str) -> Times {
    Times::parse(&Schedule::new(cron).with_time_zone(zone)).unwrap()
}

pub(super) fn utc(text: &str) -> u64 {
    unix_millis(super::utc(text))
}

pub(super) fn text(millis: u64) -> String {
    let time = Tz::UTC.timestamp_millis_opt(millis as i64).unwrap();
    time.format("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Returns the times after one and up to another one.
pub(super) fn times_between(times: &Times, after: u64, until: u64) -> Vec<u64> {
    let next = |time| times.after(time).unwrap();
    std::iter::successors(next(after), |time| next(*time))
        .take_while(|time| *time <= until)
        .collect()
}

/// Returns the times after one and up to another one, in UTC.
fn between(times: &Times, after: &str, until: &str) -> Vec<String> {
    let times = times_between(times, utc(after), utc(until));
    times.into_iter().map(text).collect()
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
                let forward = times_between(&times, begin, now);
                let missed = Missed::All { cap: MAX_MISSED };
                let due = times
                    .due(begin + 1, now, missed, usize::MAX, &FiredTimes::default())
                    .unwrap();
                assert_eq!(due.times, forward, "{cron} {zone} {from} {hours}");
                assert!(due.next.unwrap() > now);
                compared += forward.len();
            }
        }
    }
    assert!(compared > 5_000, "{compared}");
}

#[test]
fn a_day_that_a_zone_leaves_out_ends_no_schedule() {
    let apia = |cron| times(cron, "Pacific/Apia");
    let table: [(&str, &[&str]); 4] = [
        // The 30th is missing: midnight of the 31st stands for its nine o'clock.
        (
            "0 9 * * *",
            &[
                "2011-12-28T19:00:00Z",
                "2011-12-29T19:00:00Z",
                "2011-12-30T10:00:00Z",
                "2011-12-30T19:00:00Z",
                "2011-12-31T19:00:00Z",
            ],
        ),
        ("0 9 30 * *", &[]),
        ("0 9 31 * *", &["2011-12-30T19:00:00Z"]),
        (
            "0 9,21 * * *",
            &[
                "2011-12-28T19:00:00Z",
                "2011-12-29T07:00:00Z",
                "2011-12-29T19:00:00Z",
                "2011-12-30T07:00:00Z",
                "2011-12-30T19:00:00Z",
                "2011-12-31T07:00:00Z",
                "2011-12-31T19:00:00Z",
            ],
        ),
    ];
    for (cron, expected) in table {
        let found = between(&apia(cron), "2011-12-28T12:00:00Z", "2011-12-31T20:00:00Z");
        assert_eq!(found, expected, "{cron}");
    }
    // The last times of an expression are in the second of the two hours from 02:00 to 03:00.
    let last = times("0 0,30 2 25 10 * 2026", BERLIN);
    assert_eq!(
        between(&last, "2026-10-24T00:00:00Z", "2027-01-01T00:00:00Z"),
        [
            "2026-10-25T00:00:00Z",
            "2026-10-25T00:30:00Z",
            "2026-10-25T01:00:00Z",
            "2026-10-25T01:30:00Z",
        ]
    );
}

#[test]
fn a_wall_clock_beyond_the_calendar_is_an_error_and_not_the_end_of_a_schedule() {
    let minutely = times("* * * * *", "UTC");
    let last = times("0 0 0 1 1 * 4999", "Pacific/Apia");
    let now = utc("2026-11-22T12:00:00Z");
    let time = last.after(now).unwrap().unwrap();
    assert_eq!(last.after(time).unwrap(), None);
    // The minute before the year 5000, and the first one in it.
    let year_5000 = utc("5000-01-01T00:00:00Z");
    assert_eq!(
        minutely.after(year_5000 - 120_000).unwrap(),
        Some(year_5000 - 60_000)
    );
    for beyond in [year_5000, year_5000 + 1, u64::MAX / 1_000, u64::MAX] {
        let table = [
            minutely.after(beyond),
            minutely.next_after(beyond, &FiredTimes::default()),
            last.after(beyond.saturating_add(86_400_000)),
        ];
        for error in table {
            assert!(
                matches!(error, Err(Error::CronTimes { .. })),
                "{beyond}: {error:?}"
            );
        }
        let due = minutely.due(now, beyond, Missed::Once, 9, &FiredTimes::default());
        assert!(
            matches!(due, Err(Error::CronTimes { .. })),
            "{beyond}: {due:?}"
        );
    }
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
        let due = times.due(at(10), now, missed, 100, none).unwrap();
        let expected: Vec<_> = minutes.iter().map(|minute| at(*minute)).collect();
        assert_eq!(
            (due.times, due.next),
            (expected, Some(at(next))),
            "{now} {missed:?}"
        );
    }
    // Two calls return all due times.
    let due = times.due(at(10), at(45), all(3), 2, none).unwrap();
    assert_eq!((due.times, due.next), (vec![at(20), at(30)], Some(at(40))));
    let due = times.due(at(40), at(45), all(3), 2, none).unwrap();
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
            .unwrap()
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
        assert_eq!(
            times(cron, "Europe/Berlin").after(now).unwrap(),
            None,
            "{cron}"
        );
    }
    let last = times("0 0 0 1 1 * 2027", "UTC");
    let new_year = utc("2027-01-01T00:00:00Z");
    assert_eq!(last.after(now).unwrap(), Some(new_year));
    let due = last
        .due(
            new_year,
            new_year + 1,
            Missed::Once,
            9,
            &FiredTimes::default(),
        )
        .unwrap();
    assert_eq!((due.times, due.next), (vec![new_year], None));
    assert_eq!(
        times("0 0 29 2 *", "UTC").after(now).unwrap(),
        Some(utc("2028-02-29T00:00:00Z"))
    );
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
            let next = times.after(now).unwrap();
            assert!(
                next.is_none_or(|next| next > now),
                "seed {seed}: {fields:?}"
            );
        }
    }
    assert!(parsed > 100, "{parsed}");
}

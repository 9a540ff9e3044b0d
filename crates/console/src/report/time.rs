//! Times of reports.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use chrono::{DateTime, Datelike, SecondsFormat, TimeDelta, Utc};
use serde::{Serialize, Serializer};

/// The years that RFC 3339 can write.
const YEARS: std::ops::RangeInclusive<i32> = 0..=9999;

/// A wall time. In JSON, it is a text in RFC 3339, in UTC, with milliseconds, or null if it is outside of the years 0
/// to 9999, which are all that RFC 3339 can write.
///
/// Any time can be stored: an item that is enqueued for after `Duration::MAX` is due in 584 million years.
///
/// ```
/// use std::time::{Duration, SystemTime};
///
/// use console::report::Time;
///
/// let hour = Duration::from_secs(3_600);
/// assert_eq!(Time::from(SystemTime::UNIX_EPOCH + hour).to_string(), "1970-01-01T01:00:00.000Z");
/// assert_eq!(Time::from_millis(u64::MAX).to_string(), "beyond year 9999");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(Place);

/// Where a time is, in the order of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Before,
    At(DateTime<Utc>),
    Beyond,
}

impl Time {
    /// Returns the time at this number of milliseconds after the Unix epoch.
    #[must_use]
    pub fn from_millis(millis: u64) -> Self {
        let signed = i64::try_from(millis).ok();
        let time = signed
            .and_then(DateTime::from_timestamp_millis)
            .filter(|time| YEARS.contains(&time.year()));
        Self(time.map_or(Place::Beyond, Place::At))
    }

    /// Returns the time without its fraction of a second, for readers.
    pub(crate) fn moment(self) -> String {
        match self.0 {
            Place::At(time) => time.format("%Y-%m-%d %H:%M:%S UTC").to_string(),
            _ => self.to_string(),
        }
    }
}

impl From<SystemTime> for Time {
    fn from(time: SystemTime) -> Self {
        let epoch = DateTime::<Utc>::UNIX_EPOCH;
        let (time, outside) = match time.duration_since(UNIX_EPOCH) {
            Ok(after) => {
                let after = TimeDelta::from_std(after).ok();
                let time = after.and_then(|after| epoch.checked_add_signed(after));
                (time, Place::Beyond)
            }
            Err(error) => {
                let before = TimeDelta::from_std(error.duration()).ok();
                let time = before.and_then(|before| epoch.checked_sub_signed(before));
                (time, Place::Before)
            }
        };
        let time = time.filter(|time| YEARS.contains(&time.year()));
        Self(time.map_or(outside, Place::At))
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Place::Before => f.write_str("before year 0"),
            Place::At(time) => f.write_str(&time.to_rfc3339_opts(SecondsFormat::Millis, true)),
            Place::Beyond => f.write_str("beyond year 9999"),
        }
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Place::At(_) => serializer.collect_str(self),
            Place::Before | Place::Beyond => serializer.serialize_none(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Returns how a time is shown, and its JSON.
    fn shown(time: Time) -> (String, String) {
        (time.to_string(), serde_json::to_string(&time).unwrap())
    }

    #[test]
    fn every_number_of_milliseconds_is_a_time() {
        const LAST: u64 = 253_402_300_799_999;
        let same = |text: &str| (text.to_owned(), format!("\"{text}\""));
        let beyond = ("beyond year 9999".to_owned(), "null".to_owned());
        let table = [
            (0, same("1970-01-01T00:00:00.000Z")),
            (1_767_225_600_001, same("2026-01-01T00:00:00.001Z")),
            (LAST, same("9999-12-31T23:59:59.999Z")),
            (LAST + 1, beyond.clone()),
            // Beyond the calendar of the library.
            (8_210_266_876_800_000, beyond.clone()),
            (i64::MAX as u64, beyond.clone()),
            (i64::MAX as u64 + 1, beyond.clone()),
            (u64::MAX, beyond),
        ];
        for (millis, expected) in table {
            let time = Time::from_millis(millis);
            assert_eq!(shown(time), expected, "{millis}");
            let system = UNIX_EPOCH + Duration::from_millis(millis);
            assert_eq!(Time::from(system), time, "{millis}");
            assert_eq!(time.moment().contains("year"), expected.1 == "null");
        }
    }

    #[test]
    fn every_time_of_the_system_is_shown_even_one_before_the_epoch() {
        let second = Duration::from_secs(1);
        let early = UNIX_EPOCH - second / 2;
        assert_eq!(shown(early.into()).0, "1969-12-31T23:59:59.500Z");
        let year = second * 31_556_952;
        assert_eq!(
            shown((UNIX_EPOCH - year * 1_000).into()).0,
            "0969-12-31T12:00:00.000Z"
        );
        for years in [2_500, 200_000, 300_000, 100_000_000] {
            let (text, json) = shown((UNIX_EPOCH - year * years).into());
            assert_eq!((&*text, &*json), ("before year 0", "null"), "{years}");
        }
        // The last and the first time that the system can express.
        let mut step = Duration::from_secs(u64::MAX / 2);
        let mut first = UNIX_EPOCH;
        let mut last = UNIX_EPOCH;
        while step > Duration::ZERO {
            last = last.checked_add(step).unwrap_or(last);
            first = first.checked_sub(step).unwrap_or(first);
            step /= 2;
        }
        assert_eq!(shown(last.into()).0, "beyond year 9999");
        assert_eq!(shown(first.into()).0, "before year 0");
    }

    #[test]
    fn times_are_in_their_order_even_outside_of_the_calendar() {
        let times = [0, 1, 253_402_300_799_999, u64::MAX].map(Time::from_millis);
        assert!(times.is_sorted_by(|one, next| one < next));
        assert!(Time::from(UNIX_EPOCH - Duration::from_secs(1 << 40)) < times[0]);
    }
}

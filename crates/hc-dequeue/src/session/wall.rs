//! Wall time in milliseconds since the Unix epoch. It decides when items are due and when dedupe ids expire.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use chrono::{DateTime, SecondsFormat};
use microqueue::keyspace::Environment;
use microqueue::keyspace::record::millis;

/// Returns the wall time in milliseconds since the Unix epoch.
pub(crate) fn wall_millis(env: &Environment) -> u64 {
    unix_millis(env.wall())
}

/// Returns a time in milliseconds since the Unix epoch, or zero if it is before the epoch.
pub(crate) fn unix_millis(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, millis)
}

/// Returns the time at this number of milliseconds after the Unix epoch. Every number has one: an item for after
/// `Duration::MAX` is due in 584 million years, and Unix counts seconds for 292 billion.
pub(crate) fn unix_time(millis: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(millis)
}

/// Returns the text of a time in milliseconds since the Unix epoch, for logs.
pub(crate) fn time_text(millis: u64) -> String {
    let time = i64::try_from(millis)
        .ok()
        .and_then(DateTime::from_timestamp_millis);
    match time {
        Some(time) => time.to_rfc3339_opts(SecondsFormat::Millis, true),
        None => format!("{millis} ms after 1970"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_of_milliseconds_has_a_text() {
        assert_eq!(time_text(1_767_225_600_007), "2026-01-01T00:00:00.007Z");
        assert_eq!(time_text(u64::MAX), "18446744073709551615 ms after 1970");
    }

    #[test]
    fn every_number_of_milliseconds_is_a_time_and_back() {
        for millis in [0, 1, i64::MAX as u64, u64::MAX - 1, u64::MAX] {
            assert_eq!(unix_millis(unix_time(millis)), millis);
        }
        let before = UNIX_EPOCH - Duration::from_secs(1 << 40);
        assert_eq!(unix_millis(before), 0);
    }
}

//! FoundationDB's limits, which every store of this crate enforces.

use std::time::Duration;

/// The longest key that can be written or watched, in bytes.
pub const MAX_KEY_BYTES: usize = 10_000;

/// The longest value, and the longest param of an atomic operation, in bytes.
pub const MAX_VALUE_BYTES: usize = 100_000;

/// The largest transaction, in bytes: keys, values and conflict ranges together.
pub const MAX_TRANSACTION_BYTES: usize = 10_000_000;

/// The smallest value that the `size_limit` option takes, in bytes.
pub const MIN_SIZE_LIMIT: usize = 32;

/// The number of versions in one second.
pub const VERSIONS_PER_SECOND: i64 = 1_000_000;

/// Returns the time between two versions of a store, zero if the later one is smaller. The time is too large
/// if the store has recovered in between.
#[must_use]
pub fn time_between(earlier: i64, later: i64) -> Duration {
    let versions = later.saturating_sub(earlier).max(0);
    Duration::from_secs_f64(versions as f64 / VERSIONS_PER_SECOND as f64)
}

/// The life of a transaction, in versions: five seconds.
pub const TRANSACTION_LIFE_VERSIONS: i64 = 5 * VERSIONS_PER_SECOND;

/// The life of a transaction, while the store's versions grow by [`VERSIONS_PER_SECOND`].
pub const TRANSACTION_LIFE: Duration =
    Duration::from_secs((TRANSACTION_LIFE_VERSIONS / VERSIONS_PER_SECOND) as u64);

/// The jump of the version when a store is opened again. FoundationDB's version jumps by as much at a
/// recovery.
pub const RECOVERY_VERSIONS: i64 = 100_000_000;

/// The number of watches that a database handle may have outstanding, unless the `max_watches` option is
/// set.
pub const DEFAULT_MAX_WATCHES: usize = 10_000;

/// The largest value that the `max_watches` option takes.
pub const MAX_WATCHES: usize = 1_000_000;

/// The first backoff of a retry.
pub const INITIAL_BACKOFF: Duration = Duration::from_millis(10);

/// The longest backoff, unless the `max_retry_delay` option is set.
pub const DEFAULT_MAX_RETRY_DELAY: Duration = Duration::from_secs(1);

/// The longest backoff when the store is out of memory for requests.
pub const RESOURCE_CONSTRAINED_MAX_BACKOFF: Duration = Duration::from_secs(30);

/// The first key after all user keys.
pub const END_OF_KEYSPACE: &[u8] = b"\xff";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_million_versions_are_a_second_and_none_is_negative() {
        for (earlier, later, expected) in [
            (0, 0, Duration::ZERO),
            (7, 1_500_007, Duration::from_millis(1_500)),
            (1_500_007, 7, Duration::ZERO),
        ] {
            assert_eq!(time_between(earlier, later), expected);
        }
        assert!(time_between(i64::MIN, i64::MAX) > Duration::from_secs(1));
    }
}

//! When the active part of the window is moved to the runs although it is not full.

use std::time::Duration;

/// Notices that the active part has almost stopped growing.
///
/// Moving it then leaves less to do for the close of the store, or for the opening after a crash. A part that grows is
/// not moved before it is full, because larger parts are fewer runs, which take fewer merges.
#[derive(Debug)]
pub(super) struct PartGrowth {
    /// The size of the part in bytes, zero if it is too small to be moved.
    bytes: usize,
    /// An earlier size, which differs by little.
    mark_bytes: usize,
    /// When the part had that size, on the environment's clock.
    marked: Duration,
}

/// The smallest change of the size that counts, as a fraction of the size.
const CHANGE: usize = 8;

/// How long a part has had about the same size when it is moved.
const PAUSE: Duration = Duration::from_secs(1);

impl PartGrowth {
    /// Watches a part that begins now.
    pub(super) fn new(now: Duration) -> Self {
        Self {
            bytes: 0,
            mark_bytes: 0,
            marked: now,
        }
    }

    /// Records the size of the part after a batch.
    pub(super) fn note(&mut self, now: Duration, bytes: usize) {
        self.bytes = bytes;
        if bytes.abs_diff(self.mark_bytes) > self.mark_bytes / CHANGE {
            self.mark_bytes = bytes;
            self.marked = now;
        }
    }

    /// Returns when the part is to be moved if it does not grow until then.
    pub(super) fn due(&self) -> Option<Duration> {
        if self.bytes == 0 {
            return None;
        }
        Some(self.marked + PAUSE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLIS: Duration = Duration::from_millis(1);

    #[test]
    fn a_part_is_moved_when_its_size_has_hardly_changed_for_a_second() {
        let mut growth = PartGrowth::new(1000 * MILLIS);
        assert_eq!(growth.due(), None);
        for (at, bytes, marked) in [
            (1100, 8_000, 1100),
            (1200, 9_000, 1100),
            (1800, 9_001, 1800),
            (1900, 9_002, 1800),
            (9000, 18_000, 9000),
            (9010, 9_000, 9010),
            (9100, 9_001, 9010),
        ] {
            growth.note(at * MILLIS, bytes);
            assert_eq!(growth.due(), Some((marked + 1000) * MILLIS), "at {at} ms");
        }
        // A new part, which is too small at first.
        growth.note(20_000 * MILLIS, 0);
        assert_eq!(growth.due(), None);
        growth.note(20_800 * MILLIS, 10);
        assert_eq!(growth.due(), Some(21_800 * MILLIS));
    }

    #[test]
    fn a_part_that_grows_steadily_is_not_moved_before_it_is_full_unless_it_grows_slowly() {
        const LEAST: u32 = 1 << 20;
        const FULL: u32 = 16 << 20;
        for (bytes_per_milli, expected_seconds) in [(20_000, None), (4_000, None), (500, Some(9))] {
            let mut growth = PartGrowth::new(Duration::ZERO);
            let moved = (1..FULL / bytes_per_milli).find(|&milli| {
                let is_due = growth.due().is_some_and(|due| due <= milli * MILLIS);
                let bytes = milli * bytes_per_milli;
                let movable = if bytes < LEAST { 0 } else { bytes };
                growth.note(milli * MILLIS, movable as usize);
                is_due
            });
            assert_eq!(moved.map(|milli| milli / 1000), expected_seconds);
        }
    }
}

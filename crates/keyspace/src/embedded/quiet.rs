//! When the active part of the window is moved to the tree although it is not full.

use std::time::Duration;

/// Notices that the active part has almost stopped growing.
///
/// A part that is moved then delays few commits, and leaves less to do for the close of the store, or for the
/// opening after a crash.
#[derive(Debug, Default)]
pub(super) struct Quiet {
    /// The size of the part in bytes, zero if it is too small to be moved.
    bytes: usize,
    /// An earlier size, which differs by little.
    mark_bytes: usize,
    /// When the part had that size, on the environment's clock.
    marked: Duration,
}

/// How long a part has had about the same size when it is moved.
const QUIET: Duration = Duration::from_millis(100);

/// The smallest change of the size that counts, as a fraction of the size.
const CHANGE: usize = 8;

impl Quiet {
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
        (self.bytes > 0).then(|| self.marked + QUIET)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_moved_when_its_size_has_hardly_changed_for_some_time() {
        let mut quiet = Quiet::default();
        assert_eq!(quiet.due(), None);
        let at = Duration::from_secs;
        for (second, bytes, expected) in [
            (1, 8_000, Some(1)),
            (2, 9_000, Some(1)),
            (3, 9_001, Some(3)),
            (4, 8_000, Some(3)),
            (5, 7_000, Some(5)),
            (6, 0, None),
            (7, 1, Some(7)),
        ] {
            quiet.note(at(second), bytes);
            assert_eq!(quiet.due(), expected.map(|second| at(second) + QUIET));
        }
    }
}

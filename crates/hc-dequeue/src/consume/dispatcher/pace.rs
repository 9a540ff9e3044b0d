//! Measurements of a dispatcher.

use std::time::Duration;

use crate::consume::holdings::Average;
use crate::consume::policy::Pace;

/// How many requests are registered without trying the fast path after a take was contended.
const REQUESTS_AFTER_CONTENTION: u32 = 64;

/// Recent measurements of a dispatcher.
#[derive(Debug, Default)]
pub(super) struct Pacer {
    /// How many further requests are registered without trying the fast path.
    contended: u32,
    /// How many consumers the last step served.
    pub(super) served: usize,
    /// Whether the consumers that were last served asked again at once.
    pub(super) asks_again: bool,
    /// How long the last step took.
    took: Duration,
    /// How long recent steps took that were granted items.
    pub(super) taking: Average,
    /// Whether the present step was granted items.
    pub(super) is_granted: bool,
    /// When the first delayed item or parked lane is due, by the wall clock, as of the last check.
    pub(super) due: Option<u64>,
}

impl Pacer {
    /// Records how long a step took.
    pub(super) fn note_step(&mut self, took: Duration) {
        self.took = took;
        if std::mem::take(&mut self.is_granted) {
            self.taking.note(took);
        }
    }

    /// Returns how long the last step took.
    pub(super) fn took(&self) -> Duration {
        self.took
    }

    /// Records that another session takes items, too.
    pub(super) fn note_contention(&mut self) {
        self.contended = REQUESTS_AFTER_CONTENTION;
    }

    /// Records that a request was registered without trying the fast path.
    pub(super) fn register(&mut self) {
        self.contended = self.contended.saturating_sub(1);
    }

    pub(super) fn pace(&self) -> Pace {
        Pace {
            is_contended: self.contended > 0,
            asks_again: self.asks_again,
        }
    }

    /// Returns how many consumers the last step served, if any. The next call returns `None`.
    pub(super) fn takes_served(&mut self) -> Option<usize> {
        match std::mem::take(&mut self.served) {
            0 => None,
            served => Some(served),
        }
    }
}

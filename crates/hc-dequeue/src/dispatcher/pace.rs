//! What a dispatcher measures.

use std::time::Duration;

use crate::policy::Pace;

/// How many requests are registered without trying the fast path, after a take that met other sessions.
const STAGED_TAKES: u32 = 64;

/// What a dispatcher has seen of late.
#[derive(Debug, Default)]
pub(super) struct Pacer {
    /// How many requests to come are registered without trying the fast path.
    staged: u32,
    /// How many consumers the last step has served.
    pub(super) served: usize,
    /// Whether the consumers that were served last have asked again at once.
    pub(super) asks_again: bool,
    /// How long the last step took.
    pub(super) took: Duration,
    /// When the first delayed item is due, by the wall clock, as far as the last look has seen.
    pub(super) due: Option<u64>,
}

impl Pacer {
    /// Notes that another session takes items, too.
    pub(super) fn meet_others(&mut self) {
        self.staged = STAGED_TAKES;
    }

    /// Notes that a request was registered without trying the fast path.
    pub(super) fn register(&mut self) {
        self.staged = self.staged.saturating_sub(1);
    }

    pub(super) fn pace(&self) -> Pace {
        Pace {
            is_contended: self.staged > 0,
            asks_again: self.asks_again,
        }
    }

    /// Returns how many consumers the last step has served, once, if it has served any.
    pub(super) fn takes_served(&mut self) -> Option<usize> {
        match std::mem::take(&mut self.served) {
            0 => None,
            served => Some(served),
        }
    }
}

//! What becomes of a key in a pass: decided from the values alone, without a store.
//!
//! The rule behind it: there is a current value of a key if, and only if, the key's value differs from
//! the one that was reported last.

use hc_dequeue::keyspace::Bytes;
use hc_dequeue::microqueue::blocks::EntryId;

use crate::record::{Current, PassState};

/// The values of a key: as reported, and as a pass found and left them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeyValues {
    /// As it was last reported.
    pub(crate) reported: Option<Bytes>,
    /// As it is stored beside that, before the pass.
    pub(crate) current: Option<Current>,
    /// After the pass.
    pub(crate) new: Option<Bytes>,
}

/// What is staged for a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Staged {
    /// Nothing: it is as it was.
    Nothing,
    /// The value is as it was last reported: there is no current value any more.
    Restore,
    /// The new value becomes the reported one, and the observer gets the change.
    Report,
    /// The new value becomes the current one, to be reported by a later pass.
    Keep,
    /// The new value becomes the current one, and its reports are withheld.
    Withhold,
}

/// What a pass may do with a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Report it.
    Report,
    /// Leave it to a later pass: the log's end was not reached, or there are too many changes.
    Defer,
    /// Withhold it, since it cannot be reported.
    Withhold,
}

impl KeyValues {
    /// Returns whether the value differs from the one that was reported.
    pub(crate) fn is_changed(&self) -> bool {
        self.new != self.reported
    }

    /// Returns whether the key's reports are withheld.
    pub(crate) fn is_withheld(&self) -> bool {
        (self.current.as_ref()).is_some_and(|current| current.is_withheld)
    }

    /// Decides what is staged for the key.
    pub(crate) fn decide(&self, verdict: Verdict) -> Staged {
        if !self.is_changed() {
            return match self.current {
                Some(_) => Staged::Restore,
                None => Staged::Nothing,
            };
        }
        let is_same = |current: &Current| current.bytes == self.new;
        match verdict {
            _ if self.is_withheld() => match self.current.as_ref().is_some_and(is_same) {
                true => Staged::Nothing,
                false => Staged::Withhold,
            },
            Verdict::Withhold => Staged::Withhold,
            Verdict::Report => Staged::Report,
            Verdict::Defer => match self.current.as_ref().is_some_and(is_same) {
                true => Staged::Nothing,
                false => Staged::Keep,
            },
        }
    }
}

/// How many changes a pass may report, and how they are divided between keys whose updates it has folded
/// and keys that have waited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ChangeBudget {
    left: usize,
}

impl ChangeBudget {
    pub(crate) fn new(changes: usize) -> Self {
        Self { left: changes }
    }

    /// Returns how many of the changes are kept for keys that have waited: half of them, at least one,
    /// so that a stream of new changes does not starve them.
    pub(crate) fn for_waiting(self) -> usize {
        self.left.div_ceil(2)
    }

    /// Takes a change. False: there is none left.
    pub(crate) fn spend(&mut self) -> bool {
        let has_left = self.left > 0;
        self.left = self.left.saturating_sub(1);
        has_left
    }
}

/// What a pass has come to, as far as the next one is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PassEnd {
    /// The read version of the pass.
    pub(crate) version: i64,
    /// Whether it has folded every update that the log had.
    pub(crate) has_reached_end: bool,
    /// Whether it has looked at the current values, and if so, whether at all of them.
    pub(crate) scanned: Option<bool>,
    /// Whether some of the keys that it has met keep a current value to be reported.
    pub(crate) leaves_to_report: bool,
    /// Whether some of them keep one whose reports are withheld.
    pub(crate) leaves_withheld: bool,
    /// The first update that is not folded, if others of its block are.
    pub(crate) position: Option<EntryId>,
}

impl PassState {
    /// Returns the state after a pass.
    pub(crate) fn after(self, end: PassEnd) -> Self {
        let is_left = self.has_to_report && end.scanned != Some(true);
        let has_to_report = end.leaves_to_report || is_left;
        let knows_all = !self.has_current || end.scanned == Some(true);
        let is_complete = end.has_reached_end && !has_to_report;
        Self {
            has_current: has_to_report || end.leaves_withheld || !knows_all,
            has_to_report,
            last: end.version,
            complete: if is_complete {
                end.version
            } else {
                self.complete
            },
            position: end.position,
        }
    }
}

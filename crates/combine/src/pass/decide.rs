//! Decides the result for a key in a pass, from its values alone and without a store.
//!
//! The rule: a key has a current value if and only if its value differs from the one last reported.

use hc_dequeue::keyspace::Bytes;
use hc_dequeue::microqueue::blocks::EntryId;

use crate::record::{Current, PassState};

/// The values of a key: as reported, and before and after the pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeyValues {
    /// The value as last reported.
    pub(crate) reported: Option<Bytes>,
    /// The current value before the pass, if there is one.
    pub(crate) current: Option<Current>,
    /// The value after the pass.
    pub(crate) new: Option<Bytes>,
}

/// The writes that are staged for a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Staged {
    /// Nothing, since nothing has changed.
    Nothing,
    /// The value is again the one last reported, so the current value is removed.
    Restore,
    /// The new value becomes the reported one, and the observer receives the change.
    Report,
    /// The new value becomes the current one, and a later pass reports it.
    Keep,
    /// The new value becomes the current one, and its reports are withheld.
    Withhold,
}

/// What a pass may do with a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Report it.
    Report,
    /// Leave it to a later pass, because the end of the log was not reached or there are too many
    /// changes.
    Defer,
    /// Withhold it, because it cannot be reported.
    Withhold,
}

impl KeyValues {
    /// Returns whether the value differs from the one last reported.
    pub(crate) fn is_changed(&self) -> bool {
        self.new != self.reported
    }

    /// Returns whether the key's reports are withheld.
    pub(crate) fn is_withheld(&self) -> bool {
        (self.current.as_ref()).is_some_and(|current| current.is_withheld)
    }

    /// Decides which writes are staged for the key.
    pub(crate) fn decide(&self, verdict: Verdict) -> Staged {
        if !self.is_changed() {
            return match self.current {
                Some(_) => Staged::Restore,
                None => Staged::Nothing,
            };
        }
        let current = self.current.as_ref();
        let is_stored = current.is_some_and(|current| current.bytes == self.new);
        if self.is_withheld() {
            return if is_stored {
                Staged::Nothing
            } else {
                Staged::Withhold
            };
        }
        match verdict {
            Verdict::Withhold => Staged::Withhold,
            Verdict::Report => Staged::Report,
            Verdict::Defer if is_stored => Staged::Nothing,
            Verdict::Defer => Staged::Keep,
        }
    }
}

/// The number of changes that a pass may report, divided between keys whose updates it has folded and
/// keys that have waited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ChangeBudget {
    left: usize,
}

impl ChangeBudget {
    pub(crate) fn new(changes: usize) -> Self {
        Self { left: changes }
    }

    /// Returns how many of the changes are reserved for keys that have waited: half of them, at least
    /// one, so that a stream of new changes does not starve them.
    pub(crate) fn for_waiting(self) -> usize {
        self.left.div_ceil(2)
    }

    /// Returns whether the budget is not empty but too small for this number of keys, so that only some
    /// of them can be reported.
    pub(crate) fn divides(self, keys: usize) -> bool {
        (1..keys).contains(&self.left)
    }

    /// Takes a change from the budget. Returns false if none is left.
    pub(crate) fn spend(&mut self) -> bool {
        let has_left = self.left > 0;
        self.left = self.left.saturating_sub(1);
        has_left
    }
}

/// The result of a pass, as far as it affects the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PassEnd {
    /// The read version of the pass.
    pub(crate) version: i64,
    /// Whether it has folded every update in the log.
    pub(crate) has_reached_end: bool,
    /// Whether it has read the current values, and if so, whether it has read all of them.
    pub(crate) scanned: Option<bool>,
    /// Whether some of its keys keep a current value that is to be reported.
    pub(crate) leaves_to_report: bool,
    /// Whether some of its keys keep a current value whose reports are withheld.
    pub(crate) leaves_withheld: bool,
    /// The first update that is not folded, if other updates of its block are.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(value: Option<u8>) -> Option<Bytes> {
        value.map(|value| Bytes::copy_from_slice(&[value]))
    }

    /// Every possible combination of reported, current and new value.
    fn all_values() -> Vec<KeyValues> {
        let values = [None, Some(1), Some(2)];
        let mut all = Vec::new();
        for reported in values {
            for new in values {
                let of = |current| KeyValues {
                    reported: bytes(reported),
                    current,
                    new: bytes(new),
                };
                all.push(of(None));
                for current in values.into_iter().filter(|current| *current != reported) {
                    for is_withheld in [false, true] {
                        let bytes = bytes(current);
                        all.push(of(Some(Current { bytes, is_withheld })));
                    }
                }
            }
        }
        all
    }

    /// Returns the reported and the current value after a decision.
    fn after(values: &KeyValues, staged: Staged) -> (Option<Bytes>, Option<Current>) {
        let current = |is_withheld| {
            let bytes = values.new.clone();
            Some(Current { bytes, is_withheld })
        };
        match staged {
            Staged::Nothing => (values.reported.clone(), values.current.clone()),
            Staged::Restore => (values.reported.clone(), None),
            Staged::Report => (values.new.clone(), None),
            Staged::Keep => (values.reported.clone(), current(false)),
            Staged::Withhold => (values.reported.clone(), current(true)),
        }
    }

    #[test]
    fn a_current_value_exists_if_and_only_if_it_differs_and_no_update_is_lost() {
        for values in all_values() {
            for verdict in [Verdict::Report, Verdict::Defer, Verdict::Withhold] {
                let staged = values.decide(verdict);
                let (reported, current) = after(&values, staged);
                let value = match &current {
                    Some(current) => current.bytes.clone(),
                    None => reported.clone(),
                };
                assert_eq!(value, values.new, "{values:?}, {verdict:?}");
                assert!(current.is_none_or(|current| current.bytes != reported));
            }
        }
    }

    #[test]
    fn only_a_verdict_reports_and_never_a_withheld_key() {
        for values in all_values() {
            let is_reported = values.decide(Verdict::Report) == Staged::Report;
            assert_eq!(is_reported, values.is_changed() && !values.is_withheld());
            for verdict in [Verdict::Defer, Verdict::Withhold] {
                assert_ne!(values.decide(verdict), Staged::Report);
            }
            let is_kept_aside = !values.is_changed() || {
                let staged = values.decide(Verdict::Withhold);
                after(&values, staged)
                    .1
                    .is_some_and(|current| current.is_withheld)
            };
            assert!(is_kept_aside, "{values:?}");
        }
    }

    #[test]
    fn half_of_the_changes_are_kept_for_keys_that_have_waited() {
        for (changes, kept) in [(1, 1), (2, 1), (3, 2), (8, 4)] {
            assert_eq!(ChangeBudget::new(changes).for_waiting(), kept);
        }
        let mut budget = ChangeBudget::new(2);
        assert_eq!([(); 3].map(|()| budget.spend()), [true, true, false]);
    }

    #[test]
    fn a_pass_is_complete_if_it_reached_the_end_and_left_nothing_to_report() {
        let waiting = PassState {
            has_current: true,
            has_to_report: true,
            last: 5,
            complete: 3,
            position: None,
        };
        let end = PassEnd {
            version: 7,
            has_reached_end: true,
            scanned: Some(true),
            leaves_to_report: false,
            leaves_withheld: false,
            position: None,
        };
        let nothing_left = PassState {
            has_current: false,
            has_to_report: false,
            last: 7,
            complete: 7,
            position: None,
        };
        assert_eq!(waiting.after(end), nothing_left);
        assert_eq!(
            PassState::default().after(PassEnd {
                scanned: None,
                ..end
            }),
            nothing_left
        );
        let withheld = waiting.after(PassEnd {
            leaves_withheld: true,
            ..end
        });
        assert!(withheld.has_current && !withheld.has_to_report && withheld.complete == 7);
        for incomplete in [
            PassEnd {
                has_reached_end: false,
                scanned: None,
                ..end
            },
            PassEnd {
                scanned: Some(false),
                ..end
            },
            PassEnd {
                leaves_to_report: true,
                ..end
            },
        ] {
            let after = waiting.after(incomplete);
            assert!(after.has_current && after.has_to_report && after.complete == 3);
        }
        // It keeps the flag for withheld values without reading them.
        let after = withheld.after(PassEnd {
            scanned: None,
            ..end
        });
        assert!(after.has_current && !after.has_to_report);
    }
}

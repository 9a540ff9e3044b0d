//! The kinds of items, and which of them each session takes.

use super::SESSIONS;
use super::model::Model;
use crate::items::kind::{Kind, Kinds};

/// The kinds of items; an item of the empty one has none. No session takes the last one.
pub(super) const KINDS: [&str; 4] = ["", "a", "b", "c"];

/// The kinds that each session takes.
const TAKEN: [&[&str]; SESSIONS] = [&["", "a"], &["", "a", "b"]];

/// Returns what the session in a slot takes.
pub(super) fn kinds_of(slot: usize) -> Kinds {
    let kinds = TAKEN[slot].iter().map(|name| named(name));
    Kinds::new(kinds.collect())
}

fn named(name: &str) -> Kind {
    Kind::new(name).unwrap_or(Kind::NONE)
}

/// Returns a kind as it is shown.
pub(super) fn shown(kind: &str) -> Option<String> {
    named(kind).get().map(str::to_owned)
}

impl Model {
    /// Returns whether the session in a slot takes an item.
    pub(super) fn takes(&self, slot: usize, item: usize) -> bool {
        TAKEN[slot].contains(&self.items[item].kind)
    }

    /// Returns the queued items that the session in a slot sees, in the order in which they are listed: in an ordered
    /// group, none after one of a kind that it does not take.
    pub(super) fn seen(&self, slot: usize) -> Vec<usize> {
        let mut blocked = Vec::new();
        let mut seen = Vec::new();
        for item in self.queued() {
            let group = self.items[item].group;
            let limits = self.limits_of(group);
            if self.takes(slot, item) {
                if !blocked.contains(&group) {
                    seen.push(item);
                }
            } else if !group.is_empty() && limits.limit() == Some(1) && limits.is_until_end() {
                blocked.push(group);
            }
        }
        seen
    }
}

//! What the model forgets when its time is over.

use super::model::{At, Model, Said};

impl Model {
    /// Forgets the done items and the dedupe ids whose time is over.
    pub(super) fn sweep(&mut self) -> Said {
        let now = self.now;
        let kept = self.rules.keep_done;
        for item in &mut self.items {
            if matches!(item.place, At::Done(_, at) if at + kept <= now) {
                item.place = At::Unknown;
            }
        }
        let retention = self.rules.retention;
        self.completions
            .retain(|_, completed| now < *completed + retention);
        Said::Nothing
    }

    /// Returns whether a dedupe id is refused although no item has it.
    pub(super) fn is_retained(&self, dedupe: u8) -> bool {
        let completed = self.completions.get(&dedupe);
        completed.is_some_and(|completed| self.now < completed + self.rules.retention)
    }
}

//! The newest state of the rows, as the resolver writes it.
//!
//! The active part ends in four cases:
//!
//! - Its rows reach a quarter of `window_bytes`.
//! - Half of `window_bytes` was written to it, replaced rows included.
//! - The log has continued in another segment since the part began. Small commits fill the log long before they fill
//!   the window, so this keeps the log to a few segments.
//! - It exceeds a 64th of `window_bytes` and has almost stopped growing.
//!
//! To end a part without a batch, the store commits a transaction without writes, which takes 4 KiB in the log.

use std::sync::Arc;

use bytes::Bytes;

use super::Layers;
use crate::stores::embedded::entries::Lookup;
use crate::stores::embedded::log::effect::Effect;
use crate::stores::embedded::runs::RunList;
use crate::stores::embedded::runs::damage::FileError;
use crate::stores::embedded::window::{PartSnapshot, WindowPart};

/// The number of a part. Parts are numbered in order over the life of an engine, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PartId(u64);

/// The runs after a checkpoint or a merge.
#[derive(Clone)]
pub(crate) struct Checkpointed {
    runs: Arc<RunList>,
    /// The newest part that is in the runs.
    through: PartId,
}

impl Checkpointed {
    /// The runs to which no part was moved yet.
    pub(crate) fn new(runs: Arc<RunList>) -> Self {
        Self {
            runs,
            through: PartId(0),
        }
    }

    /// The runs after this part was moved to them.
    pub(crate) fn after(runs: Arc<RunList>, through: PartId) -> Self {
        Self { runs, through }
    }

    /// The same content after a merge.
    pub(crate) fn merged(&self, runs: Arc<RunList>) -> Self {
        Self {
            runs,
            through: self.through,
        }
    }

    /// Rebases layers, whose newest part has the number `newest`, onto these runs. Does nothing if the runs
    /// have writes that may be newer than the layers.
    pub(crate) fn take_over(&self, layers: &mut Layers, newest: PartId) {
        if let Some(left) = newest.0.checked_sub(self.through.0)
            && left > 0
        {
            layers.rebase(
                usize::try_from(left).unwrap_or(usize::MAX),
                self.runs.clone(),
            );
        }
    }
}

/// The parts of the window as a batch left them, without the runs below.
pub(crate) struct Parts {
    /// The number of the first part.
    pub(crate) newest: PartId,
    /// Newest first, with consecutive numbers.
    parts: Vec<PartSnapshot>,
}

impl Parts {
    /// Puts the parts that are not in the runs on top of them.
    pub(crate) fn over(self, checkpointed: &Checkpointed) -> Layers {
        let mut layers = Layers::new(self.parts, checkpointed.runs.clone());
        checkpointed.take_over(&mut layers, self.newest);
        layers
    }
}

/// A part that takes no more writes.
#[derive(Clone)]
pub(crate) struct FrozenPart {
    pub(crate) id: PartId,
    pub(crate) part: PartSnapshot,
    /// The memory of the part, approximately.
    pub(crate) bytes: usize,
}

/// The newest state of the rows: the active part, which takes writes, over frozen parts and the runs.
pub(crate) struct Window {
    active: WindowPart,
    active_id: PartId,
    /// The layers below the active part. A checkpoint moves their content, but does not change it.
    below: Layers,
    limit_bytes: usize,
}

impl Window {
    /// Returns an empty window over runs. Its parts may have about `limit_bytes` together.
    pub(crate) fn new(checkpointed: &Checkpointed, limit_bytes: usize) -> Self {
        Self {
            active: WindowPart::new(),
            active_id: PartId(checkpointed.through.0 + 1),
            below: Layers::new(Vec::new(), checkpointed.runs.clone()),
            limit_bytes,
        }
    }

    /// Reads a key.
    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Bytes>, FileError> {
        match self.active.lookup(key) {
            Lookup::Value(value) => Ok(Some(Bytes::copy_from_slice(value))),
            Lookup::Cleared => Ok(None),
            Lookup::Unknown => self.below.get(key),
        }
    }

    /// Applies an effect.
    ///
    /// # Errors
    /// Those of a read of the runs, which a clear needs. The state has not changed in that case.
    pub(crate) fn apply(&mut self, effect: Effect<'_>) -> Result<(), FileError> {
        match effect {
            Effect::Set { key, value } => {
                self.active.set(key, value);
                Ok(())
            }
            Effect::Clear { key } => self.active.clear(key, &self.below),
            Effect::ClearRange { begin, end } => self.active.clear_range(begin, end, &self.below),
        }
    }

    /// Returns the parts with all applied effects.
    pub(crate) fn parts(&mut self) -> Parts {
        let mut parts = vec![self.active.snapshot()];
        parts.extend_from_slice(self.below.parts());
        Parts {
            newest: self.active_id,
            parts,
        }
    }

    /// Returns whether the active part is so large that the next one should begin.
    pub(crate) fn is_due(&self) -> bool {
        // Values that were replaced by later writes take memory, but no time in a checkpoint.
        self.active.content_bytes() >= self.limit_bytes / 4
            || self.active.held_bytes() >= self.limit_bytes / 2
    }

    /// Returns the size of the active part, or zero if it is too small to be moved before it is due.
    pub(crate) fn movable_bytes(&self) -> usize {
        let bytes = self.active.content_bytes();
        if bytes > self.limit_bytes / 64 {
            bytes
        } else {
            0
        }
    }

    /// Ends the active part and begins the next one.
    pub(crate) fn freeze(&mut self) -> FrozenPart {
        let bytes = self.active.held_bytes();
        let part = std::mem::replace(&mut self.active, WindowPart::new()).freeze();
        self.below.push(part.clone());
        let id = self.active_id;
        self.active_id = PartId(id.0 + 1);
        FrozenPart { id, part, bytes }
    }

    /// Reads the rows that a checkpoint has moved to `checkpointed` from there.
    pub(crate) fn rebase(&mut self, checkpointed: &Checkpointed) {
        if !Arc::ptr_eq(&checkpointed.runs, self.below.runs()) {
            let parts_left = self.active_id.0 - 1 - checkpointed.through.0;
            let left = usize::try_from(parts_left).unwrap_or(usize::MAX);
            self.below.rebase(left, checkpointed.runs.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stores::embedded::backend::MemoryBackend;
    use crate::stores::embedded::disk::open::OpenedStore;
    use crate::stores::embedded::tests::setup;

    fn set(store: &mut OpenedStore, key: &[u8]) {
        let value = b"";
        store.commit(&[Effect::Set { key, value }]).unwrap();
    }

    #[test]
    fn a_part_that_is_in_the_runs_is_not_brought_back_by_a_batch_that_was_resolved_before() {
        let mut store = OpenedStore::create(Arc::new(MemoryBackend::default()), &setup()).unwrap();
        set(&mut store, b"a");
        let while_active = store.window.parts();
        let part = store.window.freeze();
        set(&mut store, b"b");
        let resolved_before = store.window.parts();
        let before = store.checkpointed.clone();
        store
            .replayed
            .push(crate::stores::embedded::disk::checkpoint::Checkpoint {
                part,
                last_version: store.version,
                log: None,
            });
        store.move_replayed().unwrap();

        let published = resolved_before.over(&store.checkpointed);
        assert_eq!(published.parts().len(), 1);
        assert!(published.get(b"a").unwrap().is_some() && published.get(b"b").unwrap().is_some());

        // A state from before the part was frozen must not be put over runs that may be newer.
        let mut older = while_active.over(&before);
        store.checkpointed.take_over(&mut older, PartId(1));
        assert_eq!(older.parts().len(), 1);
        assert_eq!(older.get(b"b").unwrap(), None);
    }
}

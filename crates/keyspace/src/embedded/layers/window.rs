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
use redb::StorageError;

use super::{Layers, StoreLayers, TreeRows};
use crate::embedded::log::effect::Effect;
use crate::embedded::window::{Lookup, Part, PartSnapshot};

/// The number of a part. Parts are numbered in order over the life of an engine, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PartId(u64);

/// The tree after a checkpoint.
#[derive(Clone)]
pub(crate) struct Checkpointed {
    rows: Arc<TreeRows>,
    /// The newest part whose rows are in the tree.
    through: PartId,
}

impl Checkpointed {
    /// A tree to which no part was moved yet.
    pub(crate) fn new(rows: TreeRows) -> Self {
        Self {
            rows: Arc::new(rows),
            through: PartId(0),
        }
    }

    /// The tree after this part was moved to it.
    pub(crate) fn after(rows: TreeRows, through: PartId) -> Self {
        Self {
            rows: Arc::new(rows),
            through,
        }
    }

    /// Returns the rows of the tree.
    pub(crate) fn rows(&self) -> &TreeRows {
        &self.rows
    }

    /// Rebases layers, whose newest part has the number `newest`, onto this tree. Does nothing if the tree
    /// has writes that may be newer than the layers.
    pub(crate) fn take_over(&self, layers: &mut StoreLayers, newest: PartId) {
        if let Some(left) = newest.0.checked_sub(self.through.0)
            && left > 0
        {
            layers.rebase(
                usize::try_from(left).unwrap_or(usize::MAX),
                self.rows.clone(),
            );
        }
    }
}

/// The parts of the window as a batch left them, without the tree below.
pub(crate) struct Parts {
    /// The number of the first part.
    pub(crate) newest: PartId,
    /// Newest first, with consecutive numbers.
    parts: Vec<PartSnapshot>,
}

impl Parts {
    /// Puts the parts that are not in the tree on top of it.
    pub(crate) fn over(self, tree: &Checkpointed) -> StoreLayers {
        let mut layers = Layers::new(self.parts, tree.rows.clone());
        tree.take_over(&mut layers, self.newest);
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

/// The newest state of the rows: the active part, which takes writes, over frozen parts and the tree.
pub(crate) struct Window {
    active: Part,
    active_id: PartId,
    /// The layers below the active part. A checkpoint moves their content, but does not change it.
    below: StoreLayers,
    /// The number of the newest part that is in the tree of `below`.
    through: PartId,
    limit_bytes: usize,
}

impl Window {
    /// Returns an empty window over a tree. Its parts may have about `limit_bytes` together.
    pub(crate) fn new(tree: &Checkpointed, limit_bytes: usize) -> Self {
        Self {
            active: Part::new(),
            active_id: PartId(tree.through.0 + 1),
            below: Layers::new(Vec::new(), tree.rows.clone()),
            through: tree.through,
            limit_bytes,
        }
    }

    /// Reads a key.
    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StorageError> {
        match self.active.lookup(key) {
            Lookup::Value(value) => Ok(Some(Bytes::copy_from_slice(value))),
            Lookup::Cleared => Ok(None),
            Lookup::Unknown => self.below.get(key),
        }
    }

    /// Applies an effect.
    ///
    /// # Errors
    /// Those of a read of the tree, which a clear needs. The state has not changed in that case.
    pub(crate) fn apply(&mut self, effect: Effect<'_>) -> Result<(), StorageError> {
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
        let part = std::mem::replace(&mut self.active, Part::new()).freeze();
        self.below.push(part.clone());
        let id = self.active_id;
        self.active_id = PartId(id.0 + 1);
        FrozenPart { id, part, bytes }
    }

    /// Reads the rows that a checkpoint has moved to `tree` from there.
    pub(crate) fn rebase(&mut self, tree: &Checkpointed) {
        if tree.through != self.through {
            let parts_left = self.active_id.0 - 1 - tree.through.0;
            let left = usize::try_from(parts_left).unwrap_or(usize::MAX);
            self.below.rebase(left, tree.rows.clone());
            self.through = tree.through;
        }
    }
}

#[cfg(test)]
mod tests {
    use redb::backends::InMemoryBackend;

    use super::*;
    use crate::embedded::disk::open::OpenedStore;
    use crate::embedded::tests::setup;

    fn set(store: &mut OpenedStore, key: &[u8]) {
        let value = b"";
        store.commit(&[Effect::Set { key, value }]).unwrap();
    }

    #[test]
    fn a_part_that_is_in_the_tree_is_not_brought_back_by_a_batch_that_was_resolved_before() {
        let mut store = OpenedStore::create(InMemoryBackend::new(), &setup()).unwrap();
        set(&mut store, b"a");
        let while_active = store.window.parts();
        let part = store.window.freeze();
        set(&mut store, b"b");
        let resolved_before = store.window.parts();
        let before = store.tree.clone();
        store
            .replayed
            .push(crate::embedded::disk::checkpoint::Checkpoint {
                part,
                last_version: store.version,
                log: None,
            });
        store.move_replayed().unwrap();

        let published = resolved_before.over(&store.tree);
        assert_eq!(published.parts().len(), 1);
        assert!(published.get(b"a").unwrap().is_some() && published.get(b"b").unwrap().is_some());

        // A state from before the part was frozen must not be put over a tree that may be newer.
        let mut older = while_active.over(&before);
        store.tree.take_over(&mut older, PartId(1));
        assert_eq!(older.parts().len(), 1);
        assert_eq!(older.get(b"b").unwrap(), None);
    }
}

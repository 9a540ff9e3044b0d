//! Moves parts of the window to the tree, and frees the log before them.
//!
//! The flush of a checkpoint may write 100 MB within 0.1 s. A flush of the log takes about ten times as long meanwhile, and
//! so does a lone commit.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::embedded::layers::{Checkpointed, FrozenPart};
use crate::embedded::log::slots::Slots;
use crate::embedded::tree::Tree;
use crate::embedded::tree::guard::guarded;
use crate::embedded::tree::meta::{LogStart, Meta};
use crate::embedded::window::Part;

/// A part that is to be moved to the tree.
pub(crate) struct Checkpoint {
    pub(crate) part: FrozenPart,
    /// The version of the part's last batch.
    pub(crate) last_version: i64,
    /// The start of the log once the part is in the tree, or `None` if there is no log then.
    pub(crate) log: Option<LogStart>,
}

/// The tree, and the slots of its log.
pub(crate) struct StoreFiles {
    pub(crate) tree: Tree,
    pub(crate) meta: Meta,
    /// The slots of the log, `None` for a store in memory.
    pub(crate) slots: Option<Arc<Mutex<Slots>>>,
}

impl StoreFiles {
    /// Writes the store's record.
    pub(crate) fn write_meta(&mut self) -> Result<(), redb::Error> {
        guarded(|| {
            self.tree
                .apply(&Part::new().freeze(), &mut self.meta, |_| ())
        })
    }

    /// Closes the tree's file. If all commits are in it, it is compacted if it is much longer than its rows
    /// need.
    pub(crate) fn close(self) -> Result<(), redb::Error> {
        const MAX_SHARE: u64 = 2;
        const SLACK_BYTES: u64 = 64 << 20;
        let max_bytes = match self.meta.log {
            // A damaged record may hold any number.
            None => {
                let bytes = self.meta.totals.bytes;
                bytes.saturating_mul(MAX_SHARE).saturating_add(SLACK_BYTES)
            }
            Some(_) => u64::MAX,
        };
        self.tree.close(max_bytes)
    }

    /// Writes a part to the tree and frees the log before the part's end. Returns the new state of the
    /// tree.
    pub(crate) fn checkpoint(
        &mut self,
        checkpoint: &Checkpoint,
    ) -> Result<Checkpointed, redb::Error> {
        self.tree
            .apply(&checkpoint.part.part, &mut self.meta, |meta| {
                meta.last_version = checkpoint.last_version;
                meta.log = checkpoint.log;
            })?;
        if let Some(slots) = &self.slots {
            let mut slots = slots.lock();
            match checkpoint.log {
                Some(log) => slots.free_before(log.start.segment)?,
                // Do this while the tree's file is still locked. After that, these files may be the log of
                // the next opening.
                None => slots.remove_all()?,
            }
        }
        Ok(Checkpointed::after(
            self.tree.rows(&self.meta)?,
            checkpoint.part.id,
        ))
    }
}

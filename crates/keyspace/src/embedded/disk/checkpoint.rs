//! Moves parts of the window to the tree, and frees the log before them.
//!
//! # What was tried
//!
//! During a flood of sets, a lone commit takes longer, because a checkpoint flushes about 100 MB within 0.1 s, and a
//! flush of the log takes ten times as long meanwhile. These changes were tried and dropped:
//!
//! | change | the lone commit's 99th percentile | cost |
//! |---|---|---|
//! | a thread that flushes the checkpoint's writes, 128 KiB at a time | 4.6 to 2.9 ms in the flood, 0.86 to 0.62 ms during 50,000 sets per second; among 10,000,000 keys 1.48 to 0.90 ms | in an idle store 0.14 to 0.5 ms; the first sets among 10,000,000 keys came at 0.6 of the rate |
//! | the same every 10 ms | among 10,000,000 keys, 2.0 to 5.5 ms | none: 128,952 sets per second were sustained there |
//! | the checkpointer flushes after each 4 MiB | higher | a quarter of the sustained rate |
//! | the checkpointer flushes after each 128 KiB | 4.6 to 2.1 ms in the flood | half of the sustained rate |
//! | a part may span two segments of the log | 1.0 to 0.5 ms during 50,000 sets per second, but 4.8 to 7.2 ms in the flood | the log is twice as long |
//! | a low priority for the checkpointer (`nice` 10) | a third less in the flood | checkpoints fall behind on a busy machine |
//! | a low I/O priority for the checkpointer | higher | none |
//! | short commits before long ones, batches of at most a hundred sets | no effect | none |

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

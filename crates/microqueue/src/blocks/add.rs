//! Collects entries into blocks, at least one for each log, and stages them together.

use std::collections::BTreeMap;

use keyspace::{MutationOp, Transaction};

use super::BlockLogs;
use super::frame::{Frame, MAX_ENTRY_BYTES};
use crate::error::{Error, Result};

/// Entries that will be staged together.
#[derive(Debug)]
pub struct BlockBatch<'a> {
    logs: &'a BlockLogs,
    blocks: BTreeMap<u32, Vec<Frame>>,
}

impl BlockLogs {
    /// Starts a batch of entries.
    #[must_use]
    pub fn batch(&self) -> BlockBatch<'_> {
        BlockBatch {
            logs: self,
            blocks: BTreeMap::new(),
        }
    }
}

impl BlockBatch<'_> {
    /// Appends an entry to the batch, without staging anything.
    ///
    /// # Errors
    /// [`ItemTooLarge`](Error::ItemTooLarge) if it is larger than [`MAX_ENTRY_BYTES`].
    pub fn push(&mut self, log: u32, key: &[u8], value: &[u8]) -> Result<()> {
        let bytes = key.len() + value.len();
        if bytes > MAX_ENTRY_BYTES {
            return Err(Error::ItemTooLarge {
                queue: self.logs.subspace(log),
                bytes,
                limit: MAX_ENTRY_BYTES,
            });
        }
        let frames = self.blocks.entry(log).or_default();
        if !frames
            .last_mut()
            .is_some_and(|frame| frame.push(key, value))
        {
            let mut frame = Frame::new();
            frame.push(key, value);
            frames.push(frame);
        }
        Ok(())
    }

    /// Returns the logs that the batch adds to, in order.
    pub fn logs(&self) -> impl Iterator<Item = u32> {
        self.blocks.keys().copied()
    }

    /// Stages the entries at the ends of their logs, in the order in which they were appended. The commit
    /// determines their places.
    ///
    /// # Conflicts
    /// Reads nothing, so it never conflicts. Writes the rows of the blocks.
    ///
    /// # Retries
    /// A retry of the transaction must stage the batch again.
    ///
    /// # Errors
    /// [`PrefixTooLong`](Error::PrefixTooLong), before anything is staged.
    pub fn stage(&self, tr: &impl Transaction) -> Result<()> {
        let Some(last) = self.blocks.keys().next_back() else {
            return Ok(());
        };
        // The log with the largest number has the longest prefix.
        self.logs.layout(*last).check_prefix()?;
        let count: usize = self.blocks.values().map(Vec::len).sum();
        let mut call = self.logs.env.next_calls(count as u64);
        for (log, frames) in &self.blocks {
            let layout = self.logs.layout(*log);
            for frame in frames {
                let key = layout.key_template(call);
                tr.atomic(MutationOp::SetVersionstampedKey, &key, frame.as_bytes());
                call += 1;
            }
        }
        Ok(())
    }
}

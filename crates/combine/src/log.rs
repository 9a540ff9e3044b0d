//! The first step of a pass: the updates of a bucket in the order of their commits, and which keys they
//! are of.

use std::ops::ControlFlow;

use hc_dequeue::keyspace::{Bytes, ConflictKind, Transaction, key_after};
use hc_dequeue::microqueue::blocks::{Entry, EntryId, StoredBlock};
use xxhash_rust::xxh3::xxh3_64;

use crate::bucket::Bucket;
use crate::error::{Error, Result};
use crate::keys::Keys;

/// What a pass has read from the log of its bucket, from the first update on that is not folded yet.
#[derive(Debug, Default)]
pub(crate) struct Portion {
    pub(crate) updates: Vec<LoggedUpdate>,
    blocks: Vec<LoggedBlock>,
    /// Whether the log has no more blocks.
    pub(crate) is_whole: bool,
    /// The bytes of the blocks.
    pub(crate) bytes: usize,
}

/// An update in the log.
#[derive(Debug)]
pub(crate) struct LoggedUpdate {
    pub(crate) id: EntryId,
    pub(crate) key: Bytes,
    /// The codec's bytes.
    pub(crate) update: Bytes,
}

/// A block of the log.
#[derive(Debug)]
struct LoggedBlock {
    stored: StoredBlock,
    /// How many updates of the portion stand in it or before it.
    end: usize,
    /// Why it is no block.
    broken: Option<String>,
}

/// The updates of one key, by their places in the portion.
#[derive(Debug)]
pub(crate) struct KeyUpdates {
    pub(crate) key: Bytes,
    pub(crate) places: Vec<usize>,
    /// The size of the largest one.
    pub(crate) largest: usize,
}

impl Portion {
    /// Reads blocks from the head of a log, up to the one that brings them to `limit` bytes.
    ///
    /// A block that is folded in part is folded to its end before any other: there is one position, so
    /// that a second such block would be folded again from its begin. It is the first one, unless a
    /// restored store has put others before it. Then the portion is this block alone, and not whole.
    ///
    /// # Conflicts
    /// Reads by snapshot, so that no addition makes the pass fail. [`remove`](Self::remove) protects
    /// what the pass takes.
    pub(crate) async fn read(
        tr: &impl Transaction,
        keys: &Keys,
        bucket: Bucket,
        position: Option<EntryId>,
        limit: usize,
    ) -> Result<Self> {
        let Some(position) = position else {
            return Self::read_head(tr, keys, bucket, None, limit).await;
        };
        let head = keys.logs.first(tr, bucket.0, None).await?;
        if head.is_none_or(|head| head.block() == position.block()) {
            return Self::read_head(tr, keys, bucket, Some(position), limit).await;
        }
        let mut portion = Self::default();
        let visited = keys.logs.visit(tr, bucket.0, Some(position), |block| {
            if block.id.block() == position.block() {
                portion.put(block, Some(position));
            }
            Ok::<_, Error>(ControlFlow::Break(()))
        });
        visited.await?;
        match portion.is_empty() {
            // It is gone: no block is folded in part.
            true => Self::read_head(tr, keys, bucket, None, limit).await,
            false => Ok(portion),
        }
    }

    async fn read_head(
        tr: &impl Transaction,
        keys: &Keys,
        bucket: Bucket,
        position: Option<EntryId>,
        limit: usize,
    ) -> Result<Self> {
        let mut portion = Self {
            is_whole: true,
            ..Self::default()
        };
        let visited = keys.logs.visit(tr, bucket.0, None, |block| {
            if portion.bytes >= limit {
                portion.is_whole = false;
                return Ok(ControlFlow::Break(()));
            }
            portion.put(block, position);
            Ok::<_, Error>(ControlFlow::Continue(()))
        });
        visited.await?;
        Ok(portion)
    }

    fn put(&mut self, stored: StoredBlock, position: Option<EntryId>) {
        self.bytes += stored.bytes.len();
        let folded = position
            .filter(|position| position.block() == stored.id.block())
            .map_or(0, |position| position.index);
        let broken = match stored.entries() {
            Ok(entries) if folded > 0 && usize::from(folded) >= entries.len() => {
                let count = entries.len();
                // No pass leaves such a position. What it says would drop the block.
                Some(format!("{folded} of {count} updates are said to be folded"))
            }
            Ok(entries) => {
                let entries = (0..).zip(entries).skip(usize::from(folded));
                self.updates.extend(entries.map(|(index, entry)| {
                    let Entry { key, value, .. } = entry;
                    let id = EntryId { index, ..stored.id };
                    LoggedUpdate {
                        id,
                        key,
                        update: value,
                    }
                }));
                None
            }
            Err(error) => Some(error.to_string()),
        };
        let end = self.updates.len();
        self.blocks.push(LoggedBlock {
            stored,
            end,
            broken,
        });
    }

    /// Returns whether there is nothing in it, not even a broken block.
    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Groups the updates by key, in the order in which the keys come first.
    pub(crate) fn by_key(&self) -> Vec<KeyUpdates> {
        let updates = self.updates.iter().enumerate();
        // Comparing hashes is cheaper than comparing keys. Equal hashes are ordered by key.
        let mut sorted: Vec<_> = updates
            .map(|(place, update)| (xxh3_64(&update.key), &update.key, place))
            .collect();
        sorted.sort_unstable();
        let mut groups: Vec<KeyUpdates> = sorted
            .chunk_by(|(_, key, _), (_, next, _)| key == next)
            .map(|group| KeyUpdates {
                key: group[0].1.clone(),
                places: group.iter().map(|(_, _, place)| *place).collect(),
                largest: group
                    .iter()
                    .map(|(_, _, place)| self.updates[*place].update.len())
                    .max()
                    .unwrap_or(0),
            })
            .collect();
        groups.sort_unstable_by_key(|group| group.places[0]);
        groups
    }

    /// Returns the broken blocks among those that a pass takes as a whole, with the reasons.
    pub(crate) fn broken(&self, taken: usize) -> impl Iterator<Item = (&StoredBlock, &str)> {
        let blocks = self.blocks.iter().filter(move |block| block.end <= taken);
        blocks.filter_map(|block| Some((&block.stored, block.broken.as_deref()?)))
    }

    /// Stages that the first `taken` updates are gone: clears the blocks that are folded as a whole.
    ///
    /// Makes the commit fail if any block came to stand before the last one taken, or if one was cleared.
    /// None does as a rule, since a later commit has a larger stamp, and one pass comes after another. But
    /// a restored store may give stamps that run backwards, and what lands before the last block would be
    /// cleared unfolded.
    ///
    /// # Conflicts
    /// Reads the log from its begin to the last block taken, and writes the range of those cleared.
    pub(crate) fn remove(
        &self,
        tr: &impl Transaction,
        keys: &Keys,
        bucket: Bucket,
        taken: usize,
    ) -> Result<()> {
        // A broken block adds none, and goes with those before it.
        let whole = self.blocks.partition_point(|block| block.end <= taken);
        let before = whole.checked_sub(1).map_or(0, |last| self.blocks[last].end);
        let touched = whole + usize::from(taken > before);
        let Some(last) = touched.checked_sub(1) else {
            return Ok(());
        };
        let (begin, _) = keys.logs.after(bucket.0, None);
        let end = key_after(&self.blocks[last].stored.row);
        // Before the clear: of a read conflict, what the transaction has written is left out.
        tr.add_conflict_range(ConflictKind::Read, &begin, &end)?;
        if whole > 0 {
            let end = key_after(&self.blocks[whole - 1].stored.row);
            tr.clear_range(&self.blocks[0].stored.row, &end);
        }
        Ok(())
    }

    /// Returns the first update that is not folded after the first `taken` ones are, if its block is
    /// folded in part.
    pub(crate) fn position(&self, taken: usize) -> Option<EntryId> {
        let next = self.updates.get(taken).map(|update| update.id);
        next.filter(|next| next.index > 0)
    }
}

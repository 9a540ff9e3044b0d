//! The first step of a pass: reads the updates of a bucket in commit order, and groups them by key.

use std::ops::ControlFlow;

use hc_dequeue::keyspace::{Bytes, ConflictKind, Transaction, key_after};
use hc_dequeue::microqueue::blocks::{Entry, EntryId, StoredBlock};
use xxhash_rust::xxh3::xxh3_64;

use crate::bucket::Bucket;
use crate::error::{Error, Result};
use crate::keys::Keys;

/// The part of a bucket's log that a pass has read, starting with the first update that is not folded
/// yet.
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
    /// The number of updates of the portion in this block and the blocks before it.
    end: usize,
    /// Why the block does not decode, if it does not.
    broken: Option<Broken>,
}

/// Why a block is set aside.
#[derive(Debug)]
pub(crate) struct Broken {
    pub(crate) reason: String,
    /// How many of its first updates are folded.
    pub(crate) folded: u16,
}

/// The updates of one key, by their indexes in the portion.
#[derive(Debug)]
pub(crate) struct KeyUpdates {
    pub(crate) key: Bytes,
    pub(crate) places: Vec<usize>,
    /// The size of the largest update.
    pub(crate) largest_bytes: usize,
}

impl Portion {
    /// Reads blocks from the start of a log, up to the one with which they reach `limit` bytes.
    ///
    /// A block of which a part is folded must be finished before any other block: there is only one
    /// position, so a second such block would be folded again from its start. It is the first block,
    /// unless a restored store has put others before it. In that case the portion is this block alone,
    /// and not the whole log.
    ///
    /// A block that a newer version of the library has written, and a key that is not the key of a block, end the
    /// portion. Without a block before it, the read fails: the bucket waits until the library is upgraded or the
    /// key is cleared.
    ///
    /// # Conflicts
    /// Reads by snapshot, so that no addition conflicts with the pass. [`remove`](Self::remove) adds the
    /// read conflict range for the blocks that the pass takes.
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
                block.refuse_newer()?;
                portion.put(block, Some(position));
            }
            Ok::<_, Error>(ControlFlow::Break(()))
        });
        visited.await?;
        if portion.is_empty() {
            // The block no longer exists, so no block is folded in part.
            return Self::read_head(tr, keys, bucket, None, limit).await;
        }
        Ok(portion)
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
            block.refuse_newer()?;
            portion.put(block, position);
            Ok::<_, Error>(ControlFlow::Continue(()))
        });
        match visited.await {
            Ok(()) => {}
            // The updates before that row are folded first.
            Err(error) if error.is_corrupt() && !portion.is_empty() => portion.is_whole = false,
            Err(error) => return Err(error),
        }
        Ok(portion)
    }

    fn put(&mut self, stored: StoredBlock, position: Option<EntryId>) {
        self.bytes += stored.bytes.len();
        let folded = position
            .filter(|position| position.block() == stored.id.block())
            .map_or(0, |position| position.index);
        let reason = match stored.entries() {
            // No pass leaves such a position: it is damaged, or the block is.
            Ok(entries) if folded > 0 && usize::from(folded) >= entries.len() => {
                let count = entries.len();
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
        self.blocks.push(LoggedBlock {
            stored,
            end: self.updates.len(),
            broken: reason.map(|reason| Broken { reason, folded }),
        });
    }

    /// Returns whether the portion has no updates and no broken blocks.
    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    /// Groups the updates by key, in the order in which the keys first occur.
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
                largest_bytes: group
                    .iter()
                    .map(|(_, _, place)| self.updates[*place].update.len())
                    .max()
                    .unwrap_or(0),
            })
            .collect();
        groups.sort_unstable_by_key(|group| group.places[0]);
        groups
    }

    /// Returns the broken blocks among those that a pass takes completely, with the reasons.
    pub(crate) fn broken(&self, taken: usize) -> impl Iterator<Item = (&StoredBlock, &Broken)> {
        let blocks = self.blocks.iter().filter(move |block| block.end <= taken);
        blocks.filter_map(|block| Some((&block.stored, block.broken.as_ref()?)))
    }

    /// Stages the removal of the first `taken` updates: clears the blocks that are folded completely.
    ///
    /// The commit fails if another transaction has put a block before the last one taken, or has cleared
    /// one of them. Normally neither happens, since a later commit has a larger versionstamp and passes
    /// follow one another. But a restored store may assign versionstamps that run backwards, and a block
    /// that lands before the last one taken would be cleared without being folded.
    ///
    /// # Conflicts
    /// Reads the log from its start to the last block taken, and writes the range of the blocks that it
    /// clears.
    pub(crate) fn remove(
        &self,
        tr: &impl Transaction,
        keys: &Keys,
        bucket: Bucket,
        taken: usize,
    ) -> Result<()> {
        // A broken block adds no updates, and is taken with those before it.
        let whole = self.blocks.partition_point(|block| block.end <= taken);
        let before = whole.checked_sub(1).map_or(0, |last| self.blocks[last].end);
        let touched = whole + usize::from(taken > before);
        let Some(last) = touched.checked_sub(1) else {
            return Ok(());
        };
        let (begin, _) = keys.logs.after(bucket.0, None);
        let end = key_after(&self.blocks[last].stored.row);
        // The conflict is added before the clear, since a read conflict leaves out keys that the
        // transaction has written.
        tr.add_conflict_range(ConflictKind::Read, &begin, &end)?;
        if whole > 0 {
            let end = key_after(&self.blocks[whole - 1].stored.row);
            tr.clear_range(&self.blocks[0].stored.row, &end);
        }
        Ok(())
    }

    /// Returns the update after the first `taken` ones, if its block is folded in part.
    pub(crate) fn position(&self, taken: usize) -> Option<EntryId> {
        let next = self.updates.get(taken).map(|update| update.id);
        next.filter(|next| next.index > 0)
    }
}

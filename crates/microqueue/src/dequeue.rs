//! Dequeuing: read the head serializably, clear what was read.

use keyspace::codec::Codec;
use keyspace::{Transaction, key_after};

use crate::error::Result;
use crate::item::Item;
use crate::queue::MicroQueue;

impl<T, C: Codec<T>> MicroQueue<T, C> {
    /// Takes the first item, or returns `None` if the queue is empty.
    ///
    /// # Conflicts
    /// Reads as [`peek`](Self::peek), writes the item's key. So of transactions that dequeue at
    /// the same time one commits, and enqueues make a dequeue fail only if it found the queue
    /// empty and writes something else. (In index order also if an item ties with the head.)
    ///
    /// # Errors
    /// As [`peek`](Self::peek). An item that does not decode stays at the head, and its key is
    /// in the error.
    ///
    /// # Cancel safety
    /// Dropping the future before it is ready takes nothing.
    pub async fn dequeue(&self, tr: &impl Transaction) -> Result<Option<Item<T>>> {
        Ok(self.dequeue_batch(tr, 1).await?.pop())
    }

    /// Takes the first items, up to `limit` of them, in order. Fewer are the whole queue; a limit
    /// of zero reads nothing.
    ///
    /// # Conflicts
    /// Reads from the queue's begin to the last item taken, to the queue's end if there were
    /// fewer than `limit`, and in commit order a key that only [`clear`](Self::clear) writes.
    /// Writes from the first item to the last.
    ///
    /// # Errors
    /// As [`dequeue`](Self::dequeue); if one item does not decode, none is taken.
    ///
    /// # Cancel safety
    /// Dropping the future before it is ready takes nothing.
    pub async fn dequeue_batch(&self, tr: &impl Transaction, limit: usize) -> Result<Vec<Item<T>>> {
        let rows = self.rows(tr, None, limit).await?;
        let (Some(first), Some(last)) = (rows.first(), rows.last()) else {
            return Ok(Vec::new());
        };
        // One clear for all: the read conflict covers the same range, so that nothing which this
        // transaction has not seen can be in it at the commit.
        let (begin, end) = (first.key.clone(), key_after(&last.key));
        let items = rows
            .into_iter()
            .map(|row| self.layout.decode(row))
            .collect::<Result<_>>()?;
        tr.clear_range(&begin, &end);
        Ok(items)
    }

    /// Removes every item, those that this transaction has enqueued included.
    ///
    /// # Conflicts
    /// Reads nothing. Writes the whole queue, so that every transaction fails which has read the
    /// queue and not yet committed.
    pub fn clear(&self, tr: &impl Transaction) {
        let (begin, end) = self.layout.subspace.range();
        tr.clear_range(&begin, &end);
    }
}

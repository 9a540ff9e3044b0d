//! Dequeuing: read the head serializably, clear what was read.
//!
//! A serializable read that stops at its limit conflicts up to the last row; one that runs into the
//! end conflicts with everything that is enqueued behind it. A batch that asks for more items than
//! there are would meet that conflict whenever consumers keep up with producers. So a batch is read
//! in two steps: by snapshot, to see where it ends, and serializably up to there.

use keyspace::codec::Codec;
use keyspace::{Isolation, KeyValue, Transaction, key_after, read_all};

use crate::error::Result;
use crate::item::Item;
use crate::queue::MicroQueue;
use crate::read::page;

impl<T, C: Codec<T>> MicroQueue<T, C> {
    /// Takes the first item, or returns `None` if the queue is empty.
    ///
    /// # Conflicts
    /// Reads as [`peek`](Self::peek), writes the item's key. So of transactions that dequeue at
    /// the same time one commits, and enqueues make a transaction fail only if it found the queue
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

    /// Takes the first items, up to `limit` of them, in order. None means that the queue is empty;
    /// fewer than `limit` do not, since others may enqueue meanwhile. A limit of zero reads nothing.
    ///
    /// # Conflicts
    /// Reads from the queue's begin to the last item taken; if the queue is empty, all of it. In
    /// commit order also a key that only [`clear`](Self::clear) writes. Writes from the first item
    /// taken to the last.
    ///
    /// # Errors
    /// As [`dequeue`](Self::dequeue); if one item does not decode, none is taken.
    ///
    /// # Cancel safety
    /// Dropping the future before it is ready takes nothing.
    pub async fn dequeue_batch(&self, tr: &impl Transaction, limit: usize) -> Result<Vec<Item<T>>> {
        let rows = self.head(tr, limit).await?;
        let (Some(first), Some(last)) = (rows.first(), rows.last()) else {
            return Ok(Vec::new());
        };
        // One clear for all: the read conflict covers the same range, so that nothing which this
        // transaction has not seen can be in it at the commit.
        let (begin, end) = (first.key(), key_after(last.key()));
        let items = rows
            .iter()
            .map(|row| self.layout.decode(row))
            .collect::<Result<_>>()?;
        tr.clear_range(begin, &end);
        Ok(items)
    }

    /// Reads up to `limit` of the first rows, and conflicts no further than the last of them.
    async fn head(&self, tr: &impl Transaction, limit: usize) -> Result<Vec<KeyValue>> {
        let (begin, end) = self.layout.subspace.range();
        if limit > 1 {
            // Safe as a snapshot read: it only says how far to read.
            let query = page(begin.clone(), end.clone(), limit);
            let batch = read_all(tr, query, Isolation::Snapshot)
                .await
                .map_err(|error| self.read_error(error))?;
            if let Some(last) = batch.last() {
                let rows = self
                    .rows(tr, begin.clone(), key_after(last.key()), limit)
                    .await?;
                // A snapshot read can be set to see what its own transaction has taken.
                if !rows.is_empty() {
                    return Ok(rows);
                }
            }
        }
        self.rows(tr, begin, end, limit).await
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

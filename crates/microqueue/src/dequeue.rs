//! Dequeues items: reads the head serializably and clears what it read.
//!
//! A serializable read that stops at its limit conflicts only up to the last row read. A read that
//! reaches the end of the queue conflicts with every item that is enqueued later. A batch that asks for
//! more items than there are would meet that conflict whenever consumers keep up with producers. A batch
//! is therefore read in two steps: by snapshot to find where it ends, then serializably up to that point.

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
    /// Reads as [`peek`](Self::peek), and writes the item's key. Of several transactions that dequeue at
    /// the same time, one commits. An enqueue conflicts with this transaction only if this transaction
    /// found the queue empty and writes something else. In index order an enqueue also conflicts if its
    /// item sorts before the item taken.
    ///
    /// # Errors
    /// [`Corrupt`](keyspace::Error::Corrupt) with the item's key if the item does not decode. Such an item
    /// stays at the head.
    ///
    /// # Examples
    /// ```
    /// use keyspace::{Runner, Subspace, Transaction};
    /// use microqueue::{Error, MicroQueue};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let runner = Runner::new(keyspace::open("memory:")?);
    /// let jobs = &MicroQueue::<String>::open(&runner, "jobs").await?;
    /// let job = &"resize 17.png".to_owned();
    /// runner.run(async |tr| jobs.enqueue(&tr, job).await).await?;
    ///
    /// // The job leaves the queue if and only if its result is stored.
    /// let done = &Subspace::from("done");
    /// let is_done = runner
    ///     .run(async |tr| {
    ///         let Some(job) = jobs.dequeue(&tr).await? else {
    ///             return Ok(false);
    ///         };
    ///         tr.set(&done.pack(&job.value), b"ok");
    ///         Ok::<_, Error>(true)
    ///     })
    ///     .await?;
    /// assert!(is_done);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn dequeue(&self, tr: &impl Transaction) -> Result<Option<Item<T>>> {
        Ok(self.dequeue_batch(tr, 1).await?.pop())
    }

    /// Takes up to `limit` of the first items, in order.
    ///
    /// An empty result means that the queue was empty. A result with fewer than `limit` items does not mean
    /// that no more follow, since other transactions may enqueue at the same time. A limit of zero reads
    /// nothing.
    ///
    /// # Conflicts
    /// Reads from the start of the queue to the last item taken, or the whole queue if it is empty. In
    /// commit order it also reads a key that only [`clear`](Self::clear) writes. Writes from the first
    /// item taken to the last.
    ///
    /// # Errors
    /// [`Corrupt`](keyspace::Error::Corrupt) if one of the items does not decode. None is taken then.
    pub async fn dequeue_batch(&self, tr: &impl Transaction, limit: usize) -> Result<Vec<Item<T>>> {
        let rows = self.head(tr, limit).await?;
        let (Some(first), Some(last)) = (rows.first(), rows.last()) else {
            return Ok(Vec::new());
        };
        // A single clear covers all items. The read conflict covers the same range, so the range
        // cannot contain an item at the commit that this transaction has not seen.
        let begin = first.key();
        let end = key_after(last.key());
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
            // Safe as a snapshot read: it only finds where the batch ends.
            let query = page(begin.clone(), end.clone(), limit);
            let batch = read_all(tr, query, Isolation::Snapshot)
                .await
                .map_err(|error| self.read_error(error))?;
            if let Some(last) = batch.last() {
                let rows = self
                    .rows(tr, begin.clone(), key_after(last.key()), limit)
                    .await?;
                // A snapshot read can be configured to ignore this transaction's own writes, and then
                // returns items that the transaction has already taken.
                if !rows.is_empty() {
                    return Ok(rows);
                }
            }
        }
        self.rows(tr, begin, end, limit).await
    }

    /// Removes every item, including those that this transaction has enqueued.
    ///
    /// # Conflicts
    /// Reads nothing. Writes the whole queue, so it conflicts with every open transaction that has read
    /// the queue.
    pub fn clear(&self, tr: &impl Transaction) {
        let (begin, end) = self.layout.subspace.range();
        tr.clear_range(&begin, &end);
    }
}

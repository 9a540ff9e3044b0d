//! Enqueues items under unique keys.
//!
//! A key must be unique among all items, from this transaction or any other.
//!
//! - Commit order: the commit supplies the versionstamp, which no other transaction has. The call number
//!   distinguishes items within a transaction. One counter per process supplies it, so it is unique
//!   across handles and enqueues.
//! - Index order: two transactions may see the same last index, and no read conflict makes one of them
//!   fail. The random suffix distinguishes their items.

use std::slice;

use keyspace::codec::Codec;
use keyspace::{Isolation, MutationOp, Transaction};

use crate::error::Result;
use crate::item::{ItemId, StagedId};
use crate::order::Order;
use crate::queue::MicroQueue;
use crate::read::last_row;

impl<T, C: Codec<T>> MicroQueue<T, C> {
    /// Stages an item at the end of the queue.
    ///
    /// In commit order this reads nothing. The commit determines the item's place: after every item that
    /// was committed before, and within the transaction in the order of calls. In index order the item
    /// goes after the last one that this transaction sees. Items of one transaction then keep their order
    /// if each enqueue is awaited before the next one starts, and if the transaction's snapshot reads see
    /// its own writes, which is the default.
    ///
    /// # Conflicts
    /// Reads nothing in commit order; in index order it reads the last item, by snapshot. Writes the
    /// item's key. Enqueues therefore never conflict with each other. They conflict with a transaction
    /// that has read the end of the queue, because it found the queue empty or read all of its items. In
    /// index order a new item may also sort before the first item, and then conflicts with a transaction
    /// that has read that one.
    ///
    /// # Errors
    /// In index order, [`Corrupt`](keyspace::Error::Corrupt) if the last key in the subspace does not belong
    /// to a queue in index order.
    ///
    /// # Examples
    /// ```
    /// use keyspace::Runner;
    /// use microqueue::MicroQueue;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let runner = Runner::new(keyspace::open("memory:")?);
    /// let jobs = &MicroQueue::<String>::open(&runner, "jobs").await?;
    /// let (staged, commit) = runner
    ///     .run_committed(async |tr| jobs.enqueue(&tr, &"resize 17.png".to_owned()).await)
    ///     .await?;
    /// // The id is complete once the transaction has committed.
    /// let id = staged.at(commit.versionstamp.expect("the transaction has written"));
    /// # let first = runner.run(async |tr| jobs.dequeue(&tr).await).await?;
    /// # assert_eq!(first.map(|item| item.id), Some(id));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn enqueue(&self, tr: &impl Transaction, value: &T) -> Result<StagedId> {
        let staged = self.enqueue_all(tr, slice::from_ref(value)).await?;
        Ok(staged[0])
    }

    /// Stages items at the end of the queue, in the order given, each as [`enqueue`](Self::enqueue) does.
    ///
    /// If one item does not fit, none is staged. The number of items is limited only by the size of a
    /// transaction, which the store checks at the commit.
    ///
    /// # Conflicts
    /// Those of [`enqueue`](Self::enqueue).
    pub async fn enqueue_all(&self, tr: &impl Transaction, values: &[T]) -> Result<Vec<StagedId>> {
        self.layout.check_prefix()?;
        let values: Vec<_> = values
            .iter()
            .map(|value| self.layout.encode(value))
            .collect::<Result<_>>()?;
        match self.layout.order {
            Order::Commit => Ok(self.stage_at_commit(tr, &values)),
            Order::Index => self.stage_after_last(tr, &values).await,
        }
    }

    /// Stages encoded values under keys that the commit completes, in commit order.
    fn stage_at_commit(&self, tr: &impl Transaction, values: &[Vec<u8>]) -> Vec<StagedId> {
        let first = self.env.next_calls(values.len() as u64);
        let staged = (first..).zip(values).map(|(call, value)| {
            let key = self.layout.key_template(call);
            tr.atomic(MutationOp::SetVersionstampedKey, &key, value);
            StagedId::of_call(call)
        });
        staged.collect()
    }

    /// Stages encoded values after the last item that the transaction sees, in index order.
    async fn stage_after_last(
        &self,
        tr: &impl Transaction,
        values: &[Vec<u8>],
    ) -> Result<Vec<StagedId>> {
        let last = self.last_index(tr, values.len() as u64).await?;
        let staged = (1..).zip(values).map(|(place, value)| {
            let id = ItemId::Index {
                index: last + place,
                suffix: self.env.random_bytes(),
            };
            tr.set(&self.layout.key(&id), value);
            StagedId(id)
        });
        Ok(staged.collect())
    }

    /// Returns the index of the last item, or 0 in an empty queue. Fails if `count` more indexes do not
    /// fit.
    async fn last_index(&self, tr: &impl Transaction, count: u64) -> Result<u64> {
        let query = last_row(self.layout.subspace.range());
        // Safe as a snapshot read: if another transaction appends an item before this one commits,
        // this item ties with it or sorts before it, and the suffix keeps their keys apart. Only the
        // order of items that were enqueued at the same time stays open, as in the recipe.
        let batch = tr.get_range(&query, Isolation::Snapshot).await?;
        let Some(row) = batch.rows.first() else {
            return Ok(0);
        };
        let last = self.layout.index(row.key())?;
        if last.checked_add(count).is_none() {
            return Err(keyspace::Error::corrupt(
                row.key(),
                format!("{count} indexes do not fit after {last}"),
            )
            .into());
        }
        Ok(last)
    }
}

//! Operations that commit by themselves.

use std::fmt;
use std::slice;

use keyspace::Database;
use keyspace::codec::{Codec, MessagePack};
use keyspace::run::Runner;

use crate::error::Result;
use crate::item::{Item, ItemId, Listed};
use crate::queue::MicroQueue;

/// A queue whose operations commit: each runs in a transaction of its own, exactly once.
///
/// Each is one call of [`Runner::run`], with its retries and limits. To make one happen together
/// with other work, call the method of the same name on [`MicroQueue`] inside a
/// [`run`](Runner::run) of your own.
///
/// # Conflicts
/// Those of the [`MicroQueue`] method. A conflict is retried until the runner's limits.
///
/// # Errors
/// Those of the [`MicroQueue`] method, and those of [`Runner::run`]: above all
/// [`OutcomeUnknown`](keyspace::Error::OutcomeUnknown), if the limits ran out while a commit was in
/// doubt.
///
/// # Cancel safety
/// Dropping a future leaves open whether its operation happens. A dequeue that does is lost to the
/// caller: its item has left the queue.
pub struct CommittingQueue<T, D: Database, C = MessagePack> {
    pub(crate) queue: MicroQueue<T, C>,
    pub(crate) runner: Runner<D>,
}

impl<T, C: Codec<T>> MicroQueue<T, C> {
    /// Returns the queue with operations that commit by themselves, through `runner`. Reads nothing.
    #[must_use]
    pub fn committing<D: Database>(&self, runner: &Runner<D>) -> CommittingQueue<T, D, C> {
        CommittingQueue {
            queue: self.clone(),
            runner: runner.clone(),
        }
    }
}

impl<T, D, C> CommittingQueue<T, D, C>
where
    T: Send + Sync,
    D: Database,
    C: Codec<T>,
{
    /// Returns the queue whose operations leave the commit to their caller.
    #[must_use]
    pub fn queue(&self) -> &MicroQueue<T, C> {
        &self.queue
    }

    /// Commits an item at the end of the queue and returns its id.
    ///
    /// See [`MicroQueue::enqueue`].
    pub async fn enqueue(&self, value: &T) -> Result<ItemId> {
        let ids = self.enqueue_all(slice::from_ref(value)).await?;
        Ok(ids[0])
    }

    /// Commits items at the end of the queue, all or none, and returns their ids.
    ///
    /// See [`MicroQueue::enqueue_all`].
    pub async fn enqueue_all(&self, values: &[T]) -> Result<Vec<ItemId>> {
        // Prepared once: however often the transaction runs, the items are encoded once and keep
        // their call numbers.
        let prepared = &self.queue.prepare(values)?;
        let queue = &self.queue;
        let (staged, commit) = self
            .runner
            .run_committed(|tr| async move { queue.stage(&tr, prepared).await })
            .await?;
        let Some(versionstamp) = commit.versionstamp else {
            return Ok(Vec::new());
        };
        Ok(staged.into_iter().map(|id| id.at(versionstamp)).collect())
    }

    /// Takes the first item and commits that it is taken, or returns `None` if the queue is empty.
    ///
    /// The item counts as taken when this returns: if the process dies before it has acted on the
    /// item, nobody will. To take an item and act on it in one commit, use
    /// [`MicroQueue::dequeue`].
    pub async fn dequeue(&self) -> Result<Option<Item<T>>> {
        let queue = &self.queue;
        self.runner
            .run(|tr| async move { queue.dequeue(&tr).await })
            .await
    }

    /// Takes the first items, up to `limit` of them, and commits that they are taken.
    ///
    /// See [`MicroQueue::dequeue_batch`], and [`dequeue`](Self::dequeue) for when they count as
    /// taken.
    pub async fn dequeue_batch(&self, limit: usize) -> Result<Vec<Item<T>>> {
        let queue = &self.queue;
        self.runner
            .run(|tr| async move { queue.dequeue_batch(&tr, limit).await })
            .await
    }

    /// Returns the first item and leaves it in the queue, or `None` if the queue is empty.
    ///
    /// See [`MicroQueue::peek`].
    pub async fn peek(&self) -> Result<Option<Listed<T>>> {
        let queue = &self.queue;
        self.runner
            .run(|tr| async move { queue.peek(&tr).await })
            .await
    }

    /// Returns true if the queue has no items.
    ///
    /// See [`MicroQueue::is_empty`].
    pub async fn is_empty(&self) -> Result<bool> {
        let queue = &self.queue;
        self.runner
            .run(|tr| async move { queue.is_empty(&tr).await })
            .await
    }

    /// Returns a page of the queue, read in one transaction.
    ///
    /// See [`MicroQueue::items`].
    pub async fn items(&self, after: Option<ItemId>, limit: usize) -> Result<Vec<Listed<T>>> {
        let queue = &self.queue;
        self.runner
            .run(|tr| async move { queue.items(&tr, after, limit).await })
            .await
    }

    /// Removes every item that was committed before.
    ///
    /// See [`MicroQueue::clear`].
    pub async fn clear(&self) -> Result<()> {
        let queue = &self.queue;
        self.runner
            .run(|tr| async move {
                queue.clear(&tr);
                Ok(())
            })
            .await
    }
}

impl<T, D: Database, C: Clone> Clone for CommittingQueue<T, D, C> {
    fn clone(&self) -> Self {
        Self {
            queue: self.queue.clone(),
            runner: self.runner.clone(),
        }
    }
}

impl<T, D: Database, C> fmt::Debug for CommittingQueue<T, D, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CommittingQueue")
            .field("queue", &self.queue)
            .finish_non_exhaustive()
    }
}

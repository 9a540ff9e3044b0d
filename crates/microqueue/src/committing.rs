//! Queue operations that commit.

use std::fmt;
use std::slice;

use keyspace::Database;
use keyspace::codec::{Codec, MessagePack};
use keyspace::run::Runner;

use crate::error::Result;
use crate::item::{Item, ItemId, Listed};
use crate::queue::MicroQueue;

/// A queue whose operations each run in a transaction of their own and commit it exactly once.
///
/// Each operation is one call of [`Runner::run`], with its retries and limits. To run an operation
/// together with other work, call the method of the same name on [`MicroQueue`] inside your own
/// [`run`](Runner::run).
///
/// ```
/// use keyspace::{Runner, Subspace};
/// use microqueue::MicroQueue;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let runner = Runner::new(keyspace::open("memory:")?);
/// let jobs = MicroQueue::<String>::open(&runner, Subspace::from("jobs")).await?;
/// let jobs = jobs.committing(&runner);
///
/// jobs.enqueue_all(&["first".to_owned(), "second".to_owned()]).await?;
/// let first = jobs.dequeue().await?;
/// assert_eq!(first.map(|item| item.value).as_deref(), Some("first"));
/// assert!(!jobs.is_empty().await?);
/// # Ok(())
/// # }
/// ```
///
/// # Conflicts
/// Those of the [`MicroQueue`] method. A conflict is retried up to the runner's limits.
///
/// # Errors
/// Those of the [`MicroQueue`] method and of [`Runner::run`], most notably
/// [`OutcomeUnknown`](keyspace::Error::OutcomeUnknown) if the limits are reached while the outcome of a
/// commit is unknown.
///
/// # Cancel safety
/// If a future is dropped, its operation may or may not happen. If a dequeue happens, its item has left
/// the queue and is lost to the caller.
pub struct CommittingQueue<T, D: Database, C = MessagePack> {
    pub(crate) queue: MicroQueue<T, C>,
    pub(crate) runner: Runner<D>,
}

impl<T, C: Codec<T>> MicroQueue<T, C> {
    /// Returns the queue in a form whose operations commit through `runner`, without reading the store.
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
    /// Returns the queue whose operations leave the commit to the caller.
    #[must_use]
    pub fn queue(&self) -> &MicroQueue<T, C> {
        &self.queue
    }

    /// Enqueues an item, commits, and returns the item's id.
    ///
    /// See [`MicroQueue::enqueue`].
    pub async fn enqueue(&self, value: &T) -> Result<ItemId> {
        let ids = self.enqueue_all(slice::from_ref(value)).await?;
        Ok(ids[0])
    }

    /// Enqueues items in one commit, and returns their ids.
    ///
    /// See [`MicroQueue::enqueue_all`].
    pub async fn enqueue_all(&self, values: &[T]) -> Result<Vec<ItemId>> {
        // The values are prepared once. Every attempt of the transaction uses the same encoded items
        // and call numbers.
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

    /// Takes the first item and commits the removal, or returns `None` if the queue is empty.
    ///
    /// The item has left the queue when this returns. If the process then dies before it has acted on the
    /// item, the item is lost. To take an item and act on it in one commit, use [`MicroQueue::dequeue`].
    pub async fn dequeue(&self) -> Result<Option<Item<T>>> {
        let queue = &self.queue;
        self.runner
            .run(|tr| async move { queue.dequeue(&tr).await })
            .await
    }

    /// Takes up to `limit` of the first items and commits their removal.
    ///
    /// See [`MicroQueue::dequeue_batch`]. The items have left the queue when this returns, as with
    /// [`dequeue`](Self::dequeue).
    pub async fn dequeue_batch(&self, limit: usize) -> Result<Vec<Item<T>>> {
        let queue = &self.queue;
        self.runner
            .run(|tr| async move { queue.dequeue_batch(&tr, limit).await })
            .await
    }

    /// Returns the first item without taking it, or `None` if the queue is empty.
    ///
    /// See [`MicroQueue::peek`].
    pub async fn peek(&self) -> Result<Option<Listed<T>>> {
        let queue = &self.queue;
        self.runner
            .run(|tr| async move { queue.peek(&tr).await })
            .await
    }

    /// Returns whether the queue is empty.
    ///
    /// See [`MicroQueue::is_empty`].
    pub async fn is_empty(&self) -> Result<bool> {
        let queue = &self.queue;
        self.runner
            .run(|tr| async move { queue.is_empty(&tr).await })
            .await
    }

    /// Returns a page of the queue, read in a transaction of its own.
    ///
    /// See [`MicroQueue::items`].
    pub async fn items(&self, after: Option<ItemId>, limit: usize) -> Result<Vec<Listed<T>>> {
        let queue = &self.queue;
        self.runner
            .run(|tr| async move { queue.items(&tr, after, limit).await })
            .await
    }

    /// Removes every item that was committed before this transaction.
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

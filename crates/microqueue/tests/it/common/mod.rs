//! Helpers that the tests share.

use conformance::stores::TestStore;
use microqueue::keyspace::codec::{Codec, MessagePack};
use microqueue::keyspace::{
    self, Bytes, Code, Commit, Database, Isolation, KeyValue, OwnedTransaction, RangeQuery, Runner,
    Store, Subspace, Transaction, read_all,
};
use microqueue::{Error, Item, ItemId, Listed, MicroQueue, Order, Result};

/// Opens a new store in memory.
pub(crate) fn memory() -> Store {
    keyspace::open("memory:").unwrap()
}

/// Returns the queue under test.
pub(crate) fn jobs(order: Order) -> MicroQueue<u64> {
    MicroQueue::new(Subspace::from("jobs")).with_order(order)
}

/// Returns the queue under test, in a part of a store.
pub(crate) fn jobs_of(store: &TestStore, order: Order) -> MicroQueue<u64> {
    MicroQueue::new(store.root.subspace(&"jobs")).with_order(order)
}

/// Enqueues in its own transaction.
pub(crate) async fn enqueue_committed(db: &Store, queue: &MicroQueue<u64>, values: &[u64]) {
    let mut tr = db.begin().unwrap();
    queue.enqueue_all(&tr, values).await.unwrap();
    tr.commit().await.unwrap();
}

/// Returns the values in the queue, in order.
pub(crate) async fn contents(db: &Store, queue: &MicroQueue<u64>) -> Vec<u64> {
    let tr = db.begin().unwrap();
    let listed = queue.items(&tr, None, usize::MAX).await.unwrap();
    items(listed).into_iter().map(|item| item.value).collect()
}

/// Returns listed items, each of which decodes.
pub(crate) fn items<T>(listed: Vec<Listed<T>>) -> Vec<Item<T>> {
    let items = listed.into_iter().map(Item::try_from);
    items.collect::<std::result::Result<_, _>>().unwrap()
}

/// Returns every row of the store.
pub(crate) async fn rows(db: &impl Database) -> Vec<KeyValue> {
    let tr = db.begin().unwrap();
    let all = RangeQuery::keys(&b""[..], &b"\xff"[..]);
    read_all(&tr, all, Isolation::Snapshot).await.unwrap()
}

/// Sets one key in its own transaction.
pub(crate) async fn set_committed(db: &impl Database, key: &[u8], value: &[u8]) {
    let mut tr = db.begin().unwrap();
    tr.set(key, value);
    tr.commit().await.unwrap();
}

/// Returns the key of a `Corrupt` error.
#[track_caller]
pub(crate) fn corrupt_key(error: Error) -> Bytes {
    match error {
        Error::Keyspace(keyspace::Error::Corrupt { key, .. }) => key.into(),
        other => panic!("expected a corrupt record, got {other:?}"),
    }
}

/// Returns the error code of a commit that failed.
#[track_caller]
pub(crate) fn code(result: keyspace::Result<Commit>) -> Option<Code> {
    result.unwrap_err().code()
}

/// A queue whose operations each run in a transaction of their own, as an application writes them.
pub(crate) struct Committing<T, D: Database, C = MessagePack> {
    queue: MicroQueue<T, C>,
    runner: Runner<D>,
}

/// Runs the operations of a queue in transactions of their own.
pub(crate) fn committing<T, D: Database, C: Codec<T>>(
    queue: &MicroQueue<T, C>,
    runner: &Runner<D>,
) -> Committing<T, D, C> {
    Committing {
        queue: queue.clone(),
        runner: runner.clone(),
    }
}

impl<T, D, C> Committing<T, D, C>
where
    T: Send + Sync,
    D: Database,
    C: Codec<T>,
{
    pub(crate) fn queue(&self) -> &MicroQueue<T, C> {
        &self.queue
    }

    pub(crate) async fn enqueue(&self, value: &T) -> Result<ItemId> {
        let ids = self.enqueue_all(std::slice::from_ref(value)).await?;
        Ok(ids[0])
    }

    pub(crate) async fn enqueue_all(&self, values: &[T]) -> Result<Vec<ItemId>> {
        let queue = &self.queue;
        let (staged, commit) = self
            .runner
            .run_committed(|tr| async move { queue.enqueue_all(&tr, values).await })
            .await?;
        let Some(versionstamp) = commit.versionstamp else {
            return Ok(Vec::new());
        };
        Ok(staged.into_iter().map(|id| id.at(versionstamp)).collect())
    }

    pub(crate) async fn dequeue(&self) -> Result<Option<Item<T>>> {
        let queue = &self.queue;
        let runner = &self.runner;
        runner
            .run(|tr| async move { queue.dequeue(&tr).await })
            .await
    }

    pub(crate) async fn dequeue_batch(&self, limit: usize) -> Result<Vec<Item<T>>> {
        let queue = &self.queue;
        let runner = &self.runner;
        runner
            .run(|tr| async move { queue.dequeue_batch(&tr, limit).await })
            .await
    }

    pub(crate) async fn peek(&self) -> Result<Option<Listed<T>>> {
        let queue = &self.queue;
        let runner = &self.runner;
        runner.run(|tr| async move { queue.peek(&tr).await }).await
    }

    pub(crate) async fn is_empty(&self) -> Result<bool> {
        let queue = &self.queue;
        let runner = &self.runner;
        runner
            .run(|tr| async move { queue.is_empty(&tr).await })
            .await
    }

    pub(crate) async fn items(
        &self,
        after: Option<ItemId>,
        limit: usize,
    ) -> Result<Vec<Listed<T>>> {
        let queue = &self.queue;
        let runner = &self.runner;
        runner
            .run(|tr| async move { queue.items(&tr, after, limit).await })
            .await
    }

    pub(crate) async fn clear(&self) -> Result<()> {
        let queue = &self.queue;
        let runner = &self.runner;
        runner
            .run(|tr| async move {
                queue.clear(&tr);
                Ok(())
            })
            .await
    }
}

//! Helpers that the tests share.

use conformance::stores::TestStore;
use microqueue::keyspace::Store;
use microqueue::keyspace::{
    self, Bytes, Code, Commit, Database, Isolation, KeyValue, OwnedTransaction, RangeQuery,
    Subspace, Transaction, read_all,
};
use microqueue::{Error, Item, Listed, MicroQueue, Order};

/// Opens a new store in memory.
pub(crate) fn memory() -> Store {
    keyspace::open("memory:").unwrap()
}

/// Returns the queue under test.
pub(crate) fn jobs(order: Order) -> MicroQueue<u64> {
    MicroQueue::with_order(Subspace::from("jobs"), order)
}

/// Returns the queue under test, in a part of a store.
pub(crate) fn jobs_of(store: &TestStore, order: Order) -> MicroQueue<u64> {
    MicroQueue::with_order(store.root.subspace(&"jobs"), order)
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
    items.collect::<Result<_, _>>().unwrap()
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

//! Opening a queue whose items come from a store with a larger version.

use crate::common::{committing, contents, corrupt_key, enqueue_committed, jobs_of, set_committed};
use conformance::stores::TestStore;
use microqueue::keyspace::tuple::Versionstamp as TupleVersionstamp;
use microqueue::keyspace::{Database, OwnedTransaction, Transaction, Versionstamp};
use microqueue::{Error, MicroQueue, Order, Result};

conformance::on_every_store!(
    a_queue_with_a_stamp_above_the_stores_version_does_not_open,
    the_stores_own_stamps_are_in_order_up_to_the_read_version,
    verifying_the_order_conflicts_with_no_enqueue,
    index_order_depends_on_no_version,
    a_last_key_that_does_not_decode_is_named,
);

/// The version of a store after some thousand years of use.
const FAR: i64 = 1 << 56;

/// Returns the key of an item in commit order.
fn key(queue: &MicroQueue<u64>, stamp: Versionstamp) -> Vec<u8> {
    let stamp = TupleVersionstamp::complete(*stamp.as_bytes(), 0);
    queue.subspace().pack(&(stamp, 1))
}

async fn open(store: &TestStore) -> Result<MicroQueue<u64>> {
    let place = jobs_of(store, Order::Commit).subspace().clone();
    MicroQueue::open(&store.runner(), place).await
}

async fn a_queue_with_a_stamp_above_the_stores_version_does_not_open(store: TestStore) {
    let store = store.fresh();
    let db = &store.db;
    let queue = jobs_of(&store, Order::Commit);
    enqueue_committed(db, &queue, &[1]).await;
    let ahead = Versionstamp::new(FAR, 3);
    set_committed(db, &key(&queue, ahead), b"\x01\x02").await;
    let error = open(&store).await.unwrap_err();
    let Error::StampAhead {
        queue: subspace,
        stamp,
        read_version,
    } = &error
    else {
        panic!("expected a stamp ahead, got {error:?}");
    };
    assert_eq!((subspace, *stamp), (queue.subspace(), ahead));
    assert!((1..FAR).contains(read_version), "{read_version}");
    let text = error.to_string();
    let expected = format!(
        "` contains an item of version {FAR}, but the store is at version {read_version}: advance the \
         store's version before you enqueue (`advanceversion` in fdbcli)"
    );
    assert!(
        text.starts_with("queue `") && text.ends_with(&expected),
        "{text}"
    );
    // This is what the error prevents: the item enqueued last is not the last one.
    enqueue_committed(db, &queue, &[3]).await;
    assert_eq!(contents(db, &queue).await, [1, 3, 2]);
}

async fn the_stores_own_stamps_are_in_order_up_to_the_read_version(store: TestStore) {
    let store = store.fresh();
    let db = &store.db;
    let queue = jobs_of(&store, Order::Commit);
    open(&store).await.unwrap();
    enqueue_committed(db, &queue, &[1, 2]).await;
    open(&store).await.unwrap();

    let tr = db.begin().unwrap();
    let version = tr.read_version().await.unwrap();
    tr.set(
        &key(&queue, Versionstamp::new(version, u16::MAX)),
        b"\x01\x03",
    );
    queue.verify_order(&tr).await.unwrap();
    tr.set(&key(&queue, Versionstamp::new(version + 1, 0)), b"\x01\x04");
    let error = queue.verify_order(&tr).await.unwrap_err();
    assert!(matches!(error, Error::StampAhead { read_version, .. } if read_version == version));
    // Bytes that no store has reached. As a version they would be negative.
    tr.set(
        &key(&queue, Versionstamp::from_bytes([0xfe; 10])),
        b"\x01\x05",
    );
    let error = queue.verify_order(&tr).await.unwrap_err();
    assert!(matches!(error, Error::StampAhead { .. }));
}

async fn verifying_the_order_conflicts_with_no_enqueue(store: TestStore) {
    let store = store.fresh();
    let db = &store.db;
    let queue = jobs_of(&store, Order::Commit);
    let mut tr = db.begin().unwrap();
    queue.verify_order(&tr).await.unwrap();
    tr.set(b"other", b"");
    enqueue_committed(db, &queue, &[1]).await;
    tr.commit().await.unwrap();
}

async fn index_order_depends_on_no_version(store: TestStore) {
    let store = store.fresh();
    let db = &store.db;
    let queue = jobs_of(&store, Order::Index);
    let far = queue.subspace().pack(&(FAR, &[0_u8; 20][..]));
    set_committed(db, &far, b"\x01").await;
    queue.verify_order(&db.begin().unwrap()).await.unwrap();
    let queue = committing(&queue, &store.runner());
    queue.enqueue(&2).await.unwrap();
    assert_eq!(contents(db, queue.queue()).await, [1, 2]);
}

async fn a_last_key_that_does_not_decode_is_named(store: TestStore) {
    let store = store.fresh();
    let db = &store.db;
    let queue = jobs_of(&store, Order::Commit);
    enqueue_committed(db, &jobs_of(&store, Order::Index), &[1]).await;
    let error = open(&store).await.unwrap_err();
    assert!(corrupt_key(error).starts_with(queue.subspace().bytes()));
}

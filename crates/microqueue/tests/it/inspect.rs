//! Reading a queue without knowing its type, and counting its items.

use crate::common::{code, enqueue_committed, items, jobs_of, set_committed};
use conformance::stores::{TestStore, bytes_of};
use microqueue::keyspace::codec::{Codec, Json, MessagePack, Raw, Tuple};
use microqueue::keyspace::{Bytes, Code, Database, OwnedTransaction, RowCount, Transaction};
use microqueue::{MicroQueue, Order};

conformance::on_every_store!(
    items_of_every_codec_are_the_bytes_that_are_stored,
    a_count_ends_at_its_limit_and_counts_what_does_not_decode,
    a_count_of_large_items_ends_at_eight_mebibytes,
    a_count_fails_for_no_other_transaction_but_a_clear,
);

const ORDERS: [Order; 2] = [Order::Commit, Order::Index];

async fn items_of_every_codec_are_the_bytes_that_are_stored(store: TestStore) {
    for order in ORDERS {
        look_into(&store.fresh(), order, MessagePack).await;
        look_into(&store.fresh(), order, Json).await;
        look_into(&store.fresh(), order, Tuple).await;
    }
}

/// Reads a queue of some codec, and adds to it.
async fn look_into<C: Codec<String>>(store: &TestStore, order: Order, codec: C) {
    let encode = |text: &str| bytes_of(&codec, &text.to_owned());
    let subspace = store.root.subspace(&"jobs");
    let typed = MicroQueue::<String>::new(subspace.clone())
        .with_order(order)
        .with_codec(codec.clone());
    let stored = MicroQueue::<Bytes, Raw>::new(subspace).with_order(order);
    let mut tr = store.db.begin().unwrap();
    typed.enqueue(&tr, &"first".to_owned()).await.unwrap();
    tr.commit().await.unwrap();
    let before = store.rows().await;

    let tr = store.db.begin().unwrap();
    let listed = items(stored.items(&tr, None, 10).await.unwrap());
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].value, encode("first"), "{}", C::NAME);
    assert_eq!(store.rows().await, before);

    let mut tr = store.db.begin().unwrap();
    stored.enqueue(&tr, &encode("second")).await.unwrap();
    tr.commit().await.unwrap();
    let tr = store.db.begin().unwrap();
    let values: Vec<_> = items(typed.items(&tr, None, 10).await.unwrap())
        .into_iter()
        .map(|item| item.value)
        .collect();
    assert_eq!(values, ["first", "second"], "{}", C::NAME);
}

async fn a_count_ends_at_its_limit_and_counts_what_does_not_decode(store: TestStore) {
    for order in ORDERS {
        let store = store.fresh();
        let queue = jobs_of(&store, order);
        let none = queue.count_up_to(&store.db.begin().unwrap(), 9).await;
        assert_eq!(none.unwrap(), RowCount::default());
        enqueue_committed(&store.db, &queue, &[1, 2, 3]).await;
        let key = store.rows().await[1].to_key();
        set_committed(&store.db, &key, b"damaged").await;
        // Keys next to the queue are not counted.
        let next_to_it = store.root.pack(&"jobs2");
        set_committed(&store.db, &next_to_it, b"").await;
        for (limit, expected) in [(0, 0), (1, 1), (2, 2), (3, 3), (4, 3), (usize::MAX, 3)] {
            let tr = store.db.begin().unwrap();
            let counted = queue.count_up_to(&tr, limit).await.unwrap();
            let expected = (expected, limit < 3);
            let counted = (counted.count, counted.has_more);
            assert_eq!(counted, expected, "up to {limit} in {order:?} order");
        }
    }
}

async fn a_count_of_large_items_ends_at_eight_mebibytes(store: TestStore) {
    let queue = MicroQueue::<Bytes, Raw>::new(store.root.subspace(&"jobs"));
    let item = &Bytes::from(vec![7; 99_000]);
    for _ in 0..2 {
        let mut tr = store.db.begin().unwrap();
        let items = vec![item.clone(); 50];
        queue.enqueue_all(&tr, &items).await.unwrap();
        tr.commit().await.unwrap();
    }
    let tr = store.db.begin().unwrap();
    let counted = queue.count_up_to(&tr, usize::MAX).await.unwrap();
    // The last one may exceed the limit.
    assert_eq!(
        (counted.count, counted.has_more),
        ((8 << 20) / 99_000 + 1, true)
    );
}

async fn a_count_fails_for_no_other_transaction_but_a_clear(store: TestStore) {
    for order in ORDERS {
        for clears in [false, true] {
            let store = store.fresh();
            let queue = jobs_of(&store, order);
            enqueue_committed(&store.db, &queue, &[1, 2]).await;
            let mut counting = store.db.begin().unwrap();
            let mut other = store.db.begin().unwrap();
            assert_eq!(queue.count_up_to(&counting, 9).await.unwrap().count, 2);
            // A transaction that only reads never conflicts.
            counting.set(&store.root.pack(&"count"), b"2");
            if clears {
                queue.clear(&other);
            } else {
                queue.dequeue(&other).await.unwrap().unwrap();
                queue.enqueue(&other, &3).await.unwrap();
            }
            other.commit().await.unwrap();
            if clears && order == Order::Commit {
                assert_eq!(code(counting.commit().await), Some(Code::NOT_COMMITTED));
            } else {
                counting.commit().await.unwrap();
            }
        }
    }
}

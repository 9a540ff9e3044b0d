//! Operations that a queue refuses, and that nothing is lost by them.

use std::collections::BTreeMap;

use crate::common::{contents, corrupt_key, enqueue_committed, jobs_of, memory, set_committed};
use conformance::stores::TestStore;
use microqueue::keyspace::codec::{Json, Raw};
use microqueue::keyspace::{
    self, Bytes, Database, OwnedTransaction, Subspace, Transaction, limits,
};
use microqueue::{Error, MicroQueue, Order};

conformance::on_every_store!(
    an_item_over_the_limit_is_refused_and_the_transaction_goes_on,
    one_item_over_the_limit_keeps_all_of_its_batch_out,
    a_value_without_an_encoding_keeps_all_of_its_batch_out,
    a_transaction_over_the_stores_limit_commits_none_of_its_items,
    a_record_that_does_not_decode_is_named_and_stays,
    a_listing_tells_of_each_item_whether_it_decodes,
    a_record_of_a_newer_format_is_named_and_stays,
    a_handle_of_another_order_reads_nothing_and_changes_nothing,
    an_id_of_another_order_is_refused,
    an_index_that_none_can_follow_is_refused,
    a_limit_of_zero_takes_and_shows_nothing,
);

const ORDERS: [Order; 2] = [Order::Commit, Order::Index];

async fn an_item_over_the_limit_is_refused_and_the_transaction_goes_on(store: TestStore) {
    for order in ORDERS {
        let store = store.fresh();
        let db = &store.db;
        let queue: MicroQueue<Bytes, Raw> = MicroQueue::new(store.root.clone()).with_order(order);
        let framing = usize::from(order == Order::Commit);
        let largest = Bytes::from(vec![7; limits::MAX_VALUE_BYTES - framing]);
        let larger = Bytes::from(vec![7; limits::MAX_VALUE_BYTES - framing + 1]);

        let mut tr = db.begin().unwrap();
        let error = queue.enqueue(&tr, &larger).await.unwrap_err();
        assert!(matches!(
            error,
            Error::ItemTooLarge {
                bytes: 100_001,
                limit: 100_000,
                ..
            }
        ));
        let text = error.to_string();
        assert!(
            text.starts_with("item of 100001 bytes is too large for queue `"),
            "{text}"
        );
        assert!(text.ends_with("`: the limit is 100000 bytes"), "{text}");
        queue.enqueue(&tr, &largest).await.unwrap();
        tr.commit().await.unwrap();

        let tr = db.begin().unwrap();
        let item = queue.dequeue(&tr).await.unwrap().unwrap();
        assert_eq!(item.value, largest);
        assert_eq!(queue.dequeue(&tr).await.unwrap(), None);
    }
}

async fn one_item_over_the_limit_keeps_all_of_its_batch_out(store: TestStore) {
    for order in ORDERS {
        let store = store.fresh();
        let db = &store.db;
        let queue: MicroQueue<Bytes, Raw> = MicroQueue::new(store.root.clone()).with_order(order);
        let batch = [
            Bytes::new(),
            Bytes::from(vec![0; limits::MAX_VALUE_BYTES + 1]),
        ];
        let mut tr = db.begin().unwrap();
        let error = queue.enqueue_all(&tr, &batch).await.unwrap_err();
        assert!(matches!(error, Error::ItemTooLarge { .. }));
        assert_eq!(tr.commit().await.unwrap(), keyspace::Commit::READ_ONLY);
        assert!(store.rows().await.is_empty());
    }
}

async fn a_value_without_an_encoding_keeps_all_of_its_batch_out(store: TestStore) {
    let store = store.fresh();
    let db = &store.db;
    // The keys of a JSON object must be strings.
    let queue: MicroQueue<BTreeMap<Vec<u8>, u8>, Json> = MicroQueue::new(store.root.clone());
    let batch = [Default::default(), [(vec![1], 1)].into()];
    let mut tr = db.begin().unwrap();
    let error = queue.enqueue_all(&tr, &batch).await.unwrap_err();
    assert!(matches!(
        error,
        Error::Keyspace(keyspace::Error::Encode { codec: "Json", .. })
    ));
    assert!(queue.is_empty(&tr).await.unwrap());
    assert_eq!(tr.commit().await.unwrap(), keyspace::Commit::READ_ONLY);
}

#[tokio::test]
async fn a_prefix_without_room_for_a_key_is_refused() {
    for order in ORDERS {
        let db = memory();
        let longest = Subspace::from_bytes(vec![b'x'; 9_949]);
        let queue: MicroQueue<u64> = MicroQueue::new(longest).with_order(order);
        enqueue_committed(&db, &queue, &[1, 2]).await;
        assert_eq!(contents(&db, &queue).await, [1, 2]);

        let longer = Subspace::from_bytes(vec![b'x'; 9_950]);
        let queue: MicroQueue<u64> = MicroQueue::new(longer).with_order(order);
        let error = queue.enqueue(&db.begin().unwrap(), &1).await.unwrap_err();
        assert!(matches!(
            error,
            Error::PrefixTooLong {
                bytes: 9_950,
                limit: 9_949
            }
        ));
    }
}

async fn a_transaction_over_the_stores_limit_commits_none_of_its_items(store: TestStore) {
    let store = store.fresh();
    let db = &store.db;
    let queue: MicroQueue<Bytes, Raw> = MicroQueue::new(store.root.clone());
    let large = vec![Bytes::from(vec![0; 99_000]); 102];
    let mut tr = db.begin().unwrap();
    queue.enqueue_all(&tr, &large).await.unwrap();
    let error = tr.commit().await.unwrap_err();
    assert_eq!(error.code(), Some(keyspace::Code::TRANSACTION_TOO_LARGE));
    assert!(store.rows().await.is_empty());
}

async fn a_record_that_does_not_decode_is_named_and_stays(store: TestStore) {
    for order in ORDERS {
        let store = store.fresh();
        let db = &store.db;
        let queue = jobs_of(&store, order);
        enqueue_committed(db, &queue, &[1, 2, 3]).await;
        let damaged = store.rows().await[1].to_key();
        set_committed(db, &damaged, b"\x01\xff").await;

        let mut tr = db.begin().unwrap();
        assert_eq!(queue.dequeue(&tr).await.unwrap().unwrap().value, 1);
        assert_eq!(corrupt_key(queue.dequeue(&tr).await.unwrap_err()), damaged);
        let error = queue.dequeue_batch(&tr, 2).await.unwrap_err();
        assert_eq!(corrupt_key(error), damaged);
        let error = queue.snapshot(&tr, 2, usize::MAX).await.unwrap_err();
        assert_eq!(corrupt_key(error), damaged);
        assert!(!queue.is_empty(&tr).await.unwrap());
        tr.commit().await.unwrap();

        // Only the first item was taken. Without the damaged item the queue continues.
        assert_eq!(store.rows().await.len(), 2);
        let mut tr = db.begin().unwrap();
        tr.clear(&damaged);
        tr.commit().await.unwrap();
        assert_eq!(contents(db, &queue).await, [3]);
    }
}

async fn a_listing_tells_of_each_item_whether_it_decodes(store: TestStore) {
    for (order, damage, codec, refused) in [
        (Order::Commit, &b"\x01\xc1"[..], "MessagePack", &b"\xc1"[..]),
        (Order::Commit, b"\x02\x07", "a queue's record", b"\x02\x07"),
        (Order::Commit, b"", "a queue's record", b""),
        (Order::Index, b"\xc1", "MessagePack", b"\xc1"),
    ] {
        let store = store.fresh();
        let db = &store.db;
        let queue = jobs_of(&store, order);
        enqueue_committed(db, &queue, &[1, 2, 3]).await;
        let ids: Vec<_> = queue
            .items(&db.begin().unwrap(), None, 3)
            .await
            .unwrap()
            .into_iter()
            .map(|item| item.id)
            .collect();
        let damaged = store.rows().await[1].to_key();
        set_committed(db, &damaged, damage).await;

        let tr = db.begin().unwrap();
        let listed = queue.items(&tr, None, 10).await.unwrap();
        let listed_ids: Vec<_> = listed.iter().map(|item| item.id).collect();
        assert_eq!(listed_ids, ids);
        assert_eq!((&listed[0].value, &listed[2].value), (&Ok(1), &Ok(3)));
        let undecodable = listed[1].value.as_ref().unwrap_err();
        assert_eq!((&undecodable.key, undecodable.codec), (&damaged, codec));
        assert_eq!(undecodable.bytes, refused);
        assert!(!undecodable.reason.is_empty());
        // The same holds page by page, and at the head.
        let page = queue.items(&tr, Some(ids[0]), 1).await.unwrap();
        assert_eq!(page, listed[1..2]);
        let page = queue.items(&tr, Some(ids[1]), 1).await.unwrap();
        assert_eq!(page, listed[2..]);
        queue.remove(&tr, &ids[0]).unwrap();
        assert_eq!(queue.peek(&tr).await.unwrap().as_ref(), Some(&listed[1]));
        assert_eq!(corrupt_key(queue.dequeue(&tr).await.unwrap_err()), damaged);
    }
}

async fn a_record_of_a_newer_format_is_named_and_stays(store: TestStore) {
    let store = store.fresh();
    let db = &store.db;
    let queue = jobs_of(&store, Order::Commit);
    enqueue_committed(db, &queue, &[1]).await;
    let key = store.rows().await[0].to_key();
    set_committed(db, &key, b"\x02\x01").await;
    let error = queue.dequeue(&db.begin().unwrap()).await.unwrap_err();
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert!(source.contains("upgrade the library"), "{source}");
    assert_eq!(store.rows().await.len(), 1);
}

async fn a_handle_of_another_order_reads_nothing_and_changes_nothing(store: TestStore) {
    for (stored, opened) in [(Order::Commit, Order::Index), (Order::Index, Order::Commit)] {
        let store = store.fresh();
        let db = &store.db;
        enqueue_committed(db, &jobs_of(&store, stored), &[1]).await;
        let before = store.rows().await;
        let wrong = jobs_of(&store, opened);
        let tr = db.begin().unwrap();
        assert_eq!(
            corrupt_key(wrong.dequeue(&tr).await.unwrap_err()),
            before[0].key()
        );
        assert_eq!(
            corrupt_key(wrong.peek(&tr).await.unwrap_err()),
            before[0].key()
        );
        let error = wrong.items(&tr, None, 1).await.unwrap_err();
        assert_eq!(corrupt_key(error), before[0].key());
        assert_eq!(store.rows().await, before);
    }
    // In index order an enqueue also reads the last key.
    let store = store.fresh();
    let db = &store.db;
    enqueue_committed(db, &jobs_of(&store, Order::Commit), &[1]).await;
    let tr = db.begin().unwrap();
    let error = jobs_of(&store, Order::Index)
        .enqueue(&tr, &2)
        .await
        .unwrap_err();
    assert_eq!(corrupt_key(error), store.rows().await[0].key());
}

async fn an_id_of_another_order_is_refused(store: TestStore) {
    let store = store.fresh();
    let db = &store.db;
    for (stored, opened) in [(Order::Commit, Order::Index), (Order::Index, Order::Commit)] {
        let mut tr = db.begin().unwrap();
        let queue =
            MicroQueue::<u64>::new(Subspace::from(("q", format!("{stored:?}")))).with_order(stored);
        queue.enqueue(&tr, &1).await.unwrap();
        tr.commit().await.unwrap();
        let tr = db.begin().unwrap();
        let id = queue.peek(&tr).await.unwrap().unwrap().id;
        let error = jobs_of(&store, opened)
            .items(&tr, Some(id), 1)
            .await
            .unwrap_err();
        assert!(matches!(error, Error::WrongOrder { order, .. } if order == opened));
    }
}

async fn an_index_that_none_can_follow_is_refused(store: TestStore) {
    let store = store.fresh();
    let db = &store.db;
    let queue = jobs_of(&store, Order::Index);
    let last = queue.subspace().pack(&(u64::MAX - 1, &[0_u8; 20][..]));
    set_committed(db, &last, b"\x01").await;
    let mut tr = db.begin().unwrap();
    let error = queue.enqueue_all(&tr, &[2, 3]).await.unwrap_err();
    assert_eq!(corrupt_key(error), last);
    queue.enqueue(&tr, &2).await.unwrap();
    tr.commit().await.unwrap();
    assert_eq!(contents(db, &queue).await, [1, 2]);
}

async fn a_limit_of_zero_takes_and_shows_nothing(store: TestStore) {
    for order in ORDERS {
        let store = store.fresh();
        let db = &store.db;
        let queue = jobs_of(&store, order);
        enqueue_committed(db, &queue, &[1]).await;
        let tr = db.begin().unwrap();
        assert_eq!(queue.dequeue_batch(&tr, 0).await.unwrap(), []);
        assert_eq!(queue.items(&tr, None, 0).await.unwrap(), []);
        assert_eq!(queue.enqueue_all(&tr, &[]).await.unwrap(), []);
        assert_eq!(contents(db, &queue).await, [1]);
    }
}

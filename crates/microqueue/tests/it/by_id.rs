//! Items by id: read by snapshot, removed with a conflict only on the same items, and inserted where they
//! were.

use crate::common::{contents, enqueue_committed, jobs, jobs_of};
use conformance::stores::TestStore;
use microqueue::keyspace::{Code, Database, OwnedTransaction};
use microqueue::{Error, Order};

conformance::on_every_store!(
    takes_of_different_items_do_not_conflict_and_takes_of_one_item_do,
    an_enqueue_makes_no_take_fail,
    an_item_that_was_taken_goes_back_to_its_place,
    a_snapshot_ends_with_the_row_that_brings_it_to_its_bytes,
);

const ORDERS: [Order; 2] = [Order::Commit, Order::Index];

async fn takes_of_different_items_do_not_conflict_and_takes_of_one_item_do(store: TestStore) {
    for order in ORDERS {
        let queue = jobs_of(&store.fresh(), order);
        enqueue_committed(&store.db, &queue, &[1, 2]).await;
        for (other, is_refused) in [(1, false), (0, true)] {
            let mut trs = [store.db.begin().unwrap(), store.db.begin().unwrap()];
            for (tr, place) in trs.iter().zip([0, other]) {
                let items = queue.snapshot(tr, 2, usize::MAX).await.unwrap();
                queue.remove(tr, &items[place].id).unwrap();
                queue.insert(tr, &items[place].id, &7).unwrap();
            }
            let [first, second] = &mut trs;
            first.commit().await.unwrap();
            let refused = second.commit().await.err().and_then(|error| error.code());
            assert_eq!(refused, is_refused.then_some(Code::NOT_COMMITTED));
        }
    }
}

async fn an_enqueue_makes_no_take_fail(store: TestStore) {
    for order in ORDERS {
        let queue = jobs_of(&store.fresh(), order);
        enqueue_committed(&store.db, &queue, &[1]).await;
        let mut tr = store.db.begin().unwrap();
        // The limit is larger than the number of items, so the read reaches the end of the queue.
        let items = queue.snapshot(&tr, 10, usize::MAX).await.unwrap();
        queue.remove(&tr, &items[0].id).unwrap();
        enqueue_committed(&store.db, &queue, &[2]).await;
        tr.commit().await.unwrap();
        assert_eq!(contents(&store.db, &queue).await, [2]);
    }
}

async fn an_item_that_was_taken_goes_back_to_its_place(store: TestStore) {
    for order in ORDERS {
        let queue = jobs_of(&store.fresh(), order);
        for value in 1..=3 {
            enqueue_committed(&store.db, &queue, &[value]).await;
        }
        let mut tr = store.db.begin().unwrap();
        let items = queue.snapshot(&tr, 2, usize::MAX).await.unwrap();
        let id = items[1].id;
        queue.remove(&tr, &id).unwrap();
        tr.commit().await.unwrap();
        let mut tr = store.db.begin().unwrap();
        assert_eq!(queue.get(&tr, &id).await.unwrap(), None);
        queue.insert(&tr, &id, &20).unwrap();
        tr.commit().await.unwrap();
        assert_eq!(contents(&store.db, &queue).await, [1, 20, 3]);
    }
}

async fn a_snapshot_ends_with_the_row_that_brings_it_to_its_bytes(store: TestStore) {
    let queue = jobs_of(&store, Order::Commit);
    enqueue_committed(&store.db, &queue, &[1, 2, 3]).await;
    let tr = store.db.begin().unwrap();
    for (limit, row_bytes, count) in [(9, usize::MAX, 3), (2, usize::MAX, 2), (9, 1, 1), (0, 9, 0)]
    {
        let items = queue.snapshot(&tr, limit, row_bytes).await.unwrap();
        assert_eq!(items.len(), count);
    }
}

#[tokio::test]
async fn an_id_of_another_order_is_refused() {
    let db = crate::common::memory();
    let queue = jobs(Order::Index);
    enqueue_committed(&db, &queue, &[1]).await;
    let tr = db.begin().unwrap();
    let id = queue.peek(&tr).await.unwrap().unwrap().id;
    let other = jobs(Order::Commit);
    let refused = [
        other.get(&tr, &id).await.unwrap_err(),
        other.remove(&tr, &id).unwrap_err(),
        other.insert(&tr, &id, &1).unwrap_err(),
    ];
    for error in refused {
        assert!(matches!(error, Error::WrongOrder { .. }), "{error}");
    }
}

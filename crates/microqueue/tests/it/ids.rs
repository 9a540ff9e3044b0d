//! Ids are unique and in call order, for any number of enqueues in one transaction and through any
//! handles.

use crate::common::{committing, contents, items, jobs_of};
use conformance::stores::TestStore;
use microqueue::keyspace::{Database, OwnedTransaction, Store};
use microqueue::{Item, ItemId, MicroQueue, Order};

conformance::on_every_store!(
    two_handles_in_one_transaction_keep_all_items_in_call_order,
    more_enqueues_than_a_user_version_counts_are_all_there_in_call_order,
    pages_together_are_the_queue,
    ids_at_the_versionstamp_of_the_commit_are_those_that_are_stored,
);

async fn two_handles_in_one_transaction_keep_all_items_in_call_order(store: TestStore) {
    for order in [Order::Commit, Order::Index] {
        let store = store.fresh();
        let db = &store.db;
        let one = jobs_of(&store, order);
        let other = jobs_of(&store, order);
        let mut tr = db.begin().unwrap();
        for value in (0..100).step_by(4) {
            one.enqueue(&tr, &value).await.unwrap();
            other
                .enqueue_all(&tr, &[value + 1, value + 2])
                .await
                .unwrap();
            one.clone().enqueue(&tr, &(value + 3)).await.unwrap();
        }
        tr.commit().await.unwrap();
        assert_eq!(contents(db, &one).await, (0..100).collect::<Vec<_>>());
    }
}

async fn more_enqueues_than_a_user_version_counts_are_all_there_in_call_order(store: TestStore) {
    const ITEMS: u64 = 70_000;
    let store = store.fresh();
    let db = &store.db;
    let one = jobs_of(&store, Order::Commit);
    let other = jobs_of(&store, Order::Commit);
    let mut tr = db.begin().unwrap();
    let mut staged = Vec::new();
    for value in 0..ITEMS / 2 {
        let handle = if value % 2 == 0 { &one } else { &other };
        staged.push(handle.enqueue(&tr, &value).await.unwrap());
    }
    let rest: Vec<_> = (ITEMS / 2..ITEMS).collect();
    staged.extend(one.enqueue_all(&tr, &rest).await.unwrap());
    let versionstamp = tr.commit().await.unwrap().versionstamp.unwrap();

    // A slow machine does not read all of them within the life of a transaction.
    let mut found = Vec::new();
    while (found.len() as u64) < ITEMS {
        let tr = db.begin().unwrap();
        let after = found.last().map(|item: &Item<u64>| item.id);
        let page = items(one.items(&tr, after, 1_000).await.unwrap());
        assert!(!page.is_empty());
        found.extend(page);
    }
    assert_eq!(found.len() as u64, ITEMS);
    for ((value, staged), item) in (0..).zip(staged).zip(found) {
        assert_eq!(item.value, value);
        assert_eq!(item.id, staged.at(versionstamp));
    }
}

async fn pages_together_are_the_queue(store: TestStore) {
    for order in [Order::Commit, Order::Index] {
        let store = store.fresh();
        let db = &store.db;
        let queue = jobs_of(&store, order);
        crate::common::enqueue_committed(db, &queue, &(0..25).collect::<Vec<_>>()).await;
        for limit in [1, 7, 24, 25, 26] {
            let tr = db.begin().unwrap();
            let mut values = Vec::new();
            let mut after = None;
            loop {
                let page = queue.items(&tr, after, limit).await.unwrap();
                assert!(page.len() <= limit);
                after = page.last().map(|item| item.id);
                let is_last = page.len() < limit;
                values.extend(items(page).into_iter().map(|item| item.value));
                if is_last {
                    break;
                }
            }
            assert_eq!(values, (0..25).collect::<Vec<_>>(), "pages of {limit}");
        }
    }
}

async fn ids_at_the_versionstamp_of_the_commit_are_those_that_are_stored(store: TestStore) {
    for order in [Order::Commit, Order::Index] {
        let runner = store.runner();
        let queue = committing(&jobs_of(&store, order), &runner);
        let mut ids = vec![queue.enqueue(&0).await.unwrap()];
        ids.extend(queue.enqueue_all(&[1, 2]).await.unwrap());
        assert_eq!(queue.enqueue_all(&[]).await.unwrap(), []);
        assert!(ids.is_sorted());

        let listed = queue.items(None, 10).await.unwrap();
        let items = items(listed.clone());
        assert_eq!(items.iter().map(|item| item.id).collect::<Vec<_>>(), ids);
        assert_eq!(queue.items(Some(ids[1]), 10).await.unwrap(), listed[2..]);
        assert_eq!(queue.peek().await.unwrap().as_ref(), listed.first());
        assert_eq!(queue.dequeue().await.unwrap().as_ref(), items.first());
        assert_eq!(queue.dequeue_batch(10).await.unwrap(), items[1..]);
        assert!(queue.is_empty().await.unwrap());
        assert_eq!(queue.dequeue().await.unwrap(), None);

        queue.enqueue(&3).await.unwrap();
        queue.clear().await.unwrap();
        assert!(queue.is_empty().await.unwrap());
    }
}

#[test]
fn futures_and_handles_can_be_sent_to_another_thread() {
    fn assert_send<T: Send>(_: T) {}
    fn assert_send_sync<T: Send + Sync + 'static>() {}

    assert_send_sync::<MicroQueue<u64>>();
    assert_send_sync::<microqueue::Error>();

    fn composable<D: Database>(queue: &MicroQueue<u64>, tr: &D::Transaction, after: ItemId) {
        assert_send(queue.enqueue(tr, &1));
        assert_send(queue.enqueue_all(tr, &[1]));
        assert_send(queue.dequeue(tr));
        assert_send(queue.dequeue_batch(tr, 1));
        assert_send(queue.peek(tr));
        assert_send(queue.is_empty(tr));
        assert_send(queue.items(tr, Some(after), 1));
        assert_send(queue.count_up_to(tr, 1));
    }
    let _ = composable::<Store>;
}

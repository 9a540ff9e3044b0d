//! Which operations conflict with which others: the conflict ranges that the documentation promises.

use crate::common::{code, contents, enqueue_committed, items, jobs_of, set_committed};
use conformance::stores::TestStore;
use conformance::{HANG, timeout};
use microqueue::keyspace::error::code_of;
use microqueue::keyspace::{Code, Database, OwnedTransaction, Transaction};
use microqueue::{Item, ItemId, MicroQueue, Order, Result, SUFFIX_BYTES};

conformance::on_every_store!(
    enqueues_never_conflict_with_anything_before_them,
    an_enqueue_makes_a_read_fail_only_if_it_reported_the_end,
    a_dequeue_makes_every_read_of_the_same_item_fail,
    reads_never_make_each_other_fail,
    a_clear_makes_every_read_fail,
    a_later_page_does_not_conflict_with_a_dequeue_before_it,
    in_index_order_an_item_that_ties_with_the_head_makes_a_dequeue_fail,
    items_enqueued_at_the_same_time_are_all_there,
    commit_order_is_the_order_of_commits_not_of_enqueues,
    index_order_gives_ids_at_once,
);

#[derive(Debug, Clone, Copy)]
enum Op {
    Enqueue,
    EnqueueAll,
    Dequeue,
    DequeueBatch(usize),
    Peek,
    IsEmpty,
    Items(usize),
    Clear,
}

async fn stage(op: Op, queue: &MicroQueue<u64>, tr: &impl Transaction) -> Result<()> {
    match op {
        Op::Enqueue => _ = queue.enqueue(tr, &1).await?,
        Op::EnqueueAll => _ = queue.enqueue_all(tr, &[1, 2]).await?,
        Op::Dequeue => _ = queue.dequeue(tr).await?,
        Op::DequeueBatch(limit) => _ = queue.dequeue_batch(tr, limit).await?,
        Op::Peek => _ = queue.peek(tr).await?,
        Op::IsEmpty => _ = queue.is_empty(tr).await?,
        Op::Items(limit) => _ = queue.items(tr, None, limit).await?,
        Op::Clear => queue.clear(tr),
    }
    Ok(())
}

/// Returns whether `second` fails if `first` commits between its reads and its commit.
async fn conflicts(store: &TestStore, order: Order, items: u64, first: Op, second: Op) -> bool {
    let answered = async {
        loop {
            match conflicts_in_time(store, order, items, first, second).await {
                // On a busy machine, the transactions may be too old before there is an answer.
                Err(error) if code_of(&error) == Some(Code::TRANSACTION_TOO_OLD) => {}
                answer => return answer.unwrap(),
            }
        }
    };
    timeout(HANG, answered).await
}

async fn conflicts_in_time(
    store: &TestStore,
    order: Order,
    items: u64,
    first: Op,
    second: Op,
) -> Result<bool> {
    let store = store.fresh();
    let db = &store.db;
    let queue = jobs_of(&store, order);
    let values: Vec<_> = (0..items).collect();
    enqueue_committed(db, &queue, &values).await;

    let mut one = db.begin()?;
    let mut other = db.begin()?;
    for tr in [&one, &other] {
        tr.read_version().await?;
    }
    stage(first, &queue, &one).await?;
    stage(second, &queue, &other).await?;
    // A transaction that only reads never conflicts.
    other.set(b"elsewhere", b"");
    one.commit().await?;
    match other.commit().await {
        Ok(_) => Ok(false),
        Err(error) if error.code() == Some(Code::NOT_COMMITTED) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

const READS: [Op; 8] = [
    Op::Dequeue,
    Op::DequeueBatch(2),
    Op::DequeueBatch(3),
    Op::DequeueBatch(4),
    Op::Peek,
    Op::IsEmpty,
    Op::Items(2),
    Op::Items(4),
];

async fn enqueues_never_conflict_with_anything_before_them(store: TestStore) {
    for order in [Order::Commit, Order::Index] {
        for items in [0, 3] {
            for first in READS
                .into_iter()
                .chain([Op::Enqueue, Op::EnqueueAll, Op::Clear])
            {
                for second in [Op::Enqueue, Op::EnqueueAll, Op::Clear] {
                    assert!(
                        !conflicts(&store, order, items, first, second).await,
                        "{second:?} after {first:?} with {items} items in {order:?} order"
                    );
                }
            }
        }
    }
}

async fn an_enqueue_makes_a_read_fail_only_if_it_reported_the_end(store: TestStore) {
    for order in [Order::Commit, Order::Index] {
        for first in [Op::Enqueue, Op::EnqueueAll] {
            for (items, second, expected) in [
                (0, Op::Dequeue, true),
                (0, Op::Peek, true),
                (0, Op::IsEmpty, true),
                (0, Op::DequeueBatch(2), true),
                (0, Op::Items(2), true),
                (3, Op::Dequeue, false),
                (3, Op::Peek, false),
                (3, Op::IsEmpty, false),
                (3, Op::DequeueBatch(2), false),
                (3, Op::DequeueBatch(3), false),
                (3, Op::DequeueBatch(4), false),
                (3, Op::Items(3), false),
                (3, Op::Items(4), true),
            ] {
                assert_eq!(
                    conflicts(&store, order, items, first, second).await,
                    expected,
                    "{second:?} after {first:?} with {items} items in {order:?} order"
                );
            }
        }
    }
}

async fn a_dequeue_makes_every_read_of_the_same_item_fail(store: TestStore) {
    for order in [Order::Commit, Order::Index] {
        for first in [Op::Dequeue, Op::DequeueBatch(2)] {
            for second in READS {
                assert!(
                    conflicts(&store, order, 3, first, second).await,
                    "{second:?} after {first:?} in {order:?} order"
                );
                assert!(
                    !conflicts(&store, order, 0, first, second).await,
                    "{second:?} after {first:?} on an empty queue in {order:?} order"
                );
            }
        }
    }
}

async fn reads_never_make_each_other_fail(store: TestStore) {
    for first in [Op::Peek, Op::IsEmpty, Op::Items(4)] {
        for second in READS {
            assert!(!conflicts(&store, Order::Commit, 3, first, second).await);
        }
    }
}

async fn a_clear_makes_every_read_fail(store: TestStore) {
    for order in [Order::Commit, Order::Index] {
        for items in [0, 3] {
            for second in READS {
                assert!(
                    conflicts(&store, order, items, Op::Clear, second).await,
                    "{second:?} with {items} items in {order:?} order"
                );
            }
        }
    }
}

async fn a_later_page_does_not_conflict_with_a_dequeue_before_it(store: TestStore) {
    let store = store.fresh();
    let db = &store.db;
    let queue = jobs_of(&store, Order::Commit);
    enqueue_committed(db, &queue, &[1, 2, 3, 4]).await;
    let mut page = db.begin().unwrap();
    let first = queue.items(&db.begin().unwrap(), None, 2).await.unwrap();
    let second = queue.items(&page, Some(first[1].id), 2).await.unwrap();
    assert_eq!(
        items(second)
            .iter()
            .map(|item| item.value)
            .collect::<Vec<_>>(),
        [3, 4]
    );
    page.set(b"elsewhere", b"");

    let mut dequeue = db.begin().unwrap();
    queue.dequeue_batch(&dequeue, 2).await.unwrap();
    dequeue.commit().await.unwrap();
    page.commit().await.unwrap();
}

async fn in_index_order_an_item_that_ties_with_the_head_makes_a_dequeue_fail(store: TestStore) {
    let store = store.fresh();
    let db = &store.db;
    let queue = jobs_of(&store, Order::Index);
    // The head has the highest possible suffix, so an item with the same index sorts before it.
    let head = queue.subspace().pack(&(1, &[0xff_u8; SUFFIX_BYTES][..]));
    let stale = db.begin().unwrap();
    stale.read_version().await.unwrap();
    set_committed(db, &head, b"\x01").await;

    let mut dequeue = db.begin().unwrap();
    assert_eq!(queue.dequeue(&dequeue).await.unwrap().unwrap().value, 1);
    let mut stale = stale;
    queue.enqueue(&stale, &2).await.unwrap();
    stale.commit().await.unwrap();
    assert_eq!(code(dequeue.commit().await), Some(Code::NOT_COMMITTED));
    assert_eq!(contents(db, &queue).await, [2, 1]);
}

async fn items_enqueued_at_the_same_time_are_all_there(store: TestStore) {
    for order in [Order::Commit, Order::Index] {
        let store = store.fresh();
        let db = &store.db;
        let queue = jobs_of(&store, order);
        let mut transactions: Vec<_> = (0..20).map(|_| db.begin().unwrap()).collect();
        for tr in &transactions {
            tr.read_version().await.unwrap();
        }
        for (value, tr) in (0..).zip(&transactions) {
            queue.enqueue(tr, &value).await.unwrap();
        }
        for tr in &mut transactions {
            tr.commit().await.unwrap();
        }
        let mut values = contents(db, &queue).await;
        match order {
            Order::Commit => {}
            // All of them saw an empty queue and have index 1, so their order is random.
            Order::Index => values.sort_unstable(),
        }
        assert_eq!(values, (0..20).collect::<Vec<_>>());
    }
}

async fn commit_order_is_the_order_of_commits_not_of_enqueues(store: TestStore) {
    let store = store.fresh();
    let db = &store.db;
    let queue = jobs_of(&store, Order::Commit);
    let mut early = db.begin().unwrap();
    let mut late = db.begin().unwrap();
    let staged_early = queue.enqueue(&early, &1).await.unwrap();
    let staged_late = queue.enqueue(&late, &2).await.unwrap();
    let late = late.commit().await.unwrap().versionstamp.unwrap();
    let early = early.commit().await.unwrap().versionstamp.unwrap();

    let tr = db.begin().unwrap();
    let values = [(staged_late.at(late), 2), (staged_early.at(early), 1)];
    let expected = values.map(|(id, value)| Item { id, value });
    assert_eq!(items(queue.items(&tr, None, 10).await.unwrap()), expected);
}

async fn index_order_gives_ids_at_once(store: TestStore) {
    let store = store.fresh();
    let db = &store.db;
    let queue = jobs_of(&store, Order::Index);
    let mut tr = db.begin().unwrap();
    let staged = queue.enqueue_all(&tr, &[1, 2, 3]).await.unwrap();
    let versionstamp = tr.commit().await.unwrap().versionstamp.unwrap();
    let ids: Vec<_> = staged.iter().map(|id| id.at(versionstamp)).collect();
    let items = queue.items(&db.begin().unwrap(), None, 10).await.unwrap();
    assert_eq!(items.iter().map(|item| item.id).collect::<Vec<_>>(), ids);
    let indexes = ids.iter().map(|id| match id {
        ItemId::Index { index, .. } => *index,
        ItemId::Commit { .. } => panic!("an id of another order"),
    });
    assert_eq!(indexes.collect::<Vec<_>>(), [1, 2, 3]);
}

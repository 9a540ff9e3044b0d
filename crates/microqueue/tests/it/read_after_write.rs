//! Reading a queue after writing to it in the same transaction: every pair of operations, on one handle
//! and on two, after different reads and with different contents of the queue.

use crate::common::{code, contents, enqueue_committed, items, jobs_of, set_committed};
use conformance::stores::TestStore;
use microqueue::keyspace::{
    Code, Database, Isolation, OwnedTransaction, RangeQuery, Store, Transaction, TransactionOption,
};
use microqueue::{Error, MicroQueue, Order, Result};

conformance::on_every_store!(
    in_commit_order_every_read_after_an_enqueue_is_refused_and_nothing_else_is,
    in_index_order_every_read_sees_what_its_transaction_wrote,
    without_the_probe_the_same_read_would_fail_or_pass_with_the_data,
    a_clear_makes_the_queue_readable_again_and_takes_what_was_enqueued,
    batches_of_one_transaction_follow_each_other_whatever_snapshot_reads_see,
    an_enqueue_after_a_read_goes_after_the_remaining_items,
    an_enqueue_into_one_queue_does_not_refuse_reads_of_another,
    bypassing_unreadable_keys_does_not_return_items_without_a_place,
    in_index_order_enqueues_tie_if_snapshot_reads_do_not_see_them,
);

#[derive(Debug, Clone, Copy, PartialEq)]
enum Op {
    Enqueue,
    EnqueueAll,
    Dequeue,
    DequeueBatch,
    Peek,
    IsEmpty,
    Items,
    ItemsAfter,
    CountUpTo,
    VerifyOrder,
    Clear,
}

const OPS: [Op; 11] = [
    Op::Enqueue,
    Op::EnqueueAll,
    Op::Dequeue,
    Op::DequeueBatch,
    Op::Peek,
    Op::IsEmpty,
    Op::Items,
    Op::ItemsAfter,
    Op::CountUpTo,
    Op::VerifyOrder,
    Op::Clear,
];

impl Op {
    fn enqueues(self) -> bool {
        matches!(self, Self::Enqueue | Self::EnqueueAll)
    }

    fn reads(self) -> bool {
        !self.enqueues() && self != Self::Clear
    }
}

/// The state of a transaction before the pair of operations.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Before {
    Nothing,
    /// The read version is known, so the unreadable range begins above the committed items.
    ReadElsewhere,
    /// The head is also in the client's cache.
    ReadQueue,
    /// Snapshot reads do not see the transaction's own writes.
    SnapshotRywDisabled,
}

const BEFORE: [Before; 4] = [
    Before::Nothing,
    Before::ReadElsewhere,
    Before::ReadQueue,
    Before::SnapshotRywDisabled,
];

async fn prepare(before: Before, queue: &MicroQueue<u64>, tr: &impl Transaction) {
    match before {
        Before::Nothing => {}
        Before::ReadElsewhere => {
            drop(tr.get(b"elsewhere", Isolation::Serializable).await.unwrap());
        }
        Before::ReadQueue => drop(queue.peek(tr).await.unwrap()),
        Before::SnapshotRywDisabled => {
            tr.set_option(TransactionOption::SnapshotRywDisable)
                .unwrap();
        }
    }
}

/// Stages an operation and returns the values that it saw.
async fn stage(op: Op, queue: &MicroQueue<u64>, tr: &impl Transaction) -> Result<Vec<u64>> {
    let items = match op {
        Op::Enqueue => return queue.enqueue(tr, &10).await.map(|_| Vec::new()),
        Op::EnqueueAll => return queue.enqueue_all(tr, &[20, 21]).await.map(|_| Vec::new()),
        Op::VerifyOrder => return queue.verify_order(tr).await.map(|()| Vec::new()),
        Op::IsEmpty => return queue.is_empty(tr).await.map(|_| Vec::new()),
        Op::CountUpTo => return Ok(vec![queue.count_up_to(tr, 10).await?.count as u64]),
        Op::Clear => {
            queue.clear(tr);
            return Ok(Vec::new());
        }
        Op::Dequeue => queue.dequeue(tr).await?.into_iter().collect(),
        Op::Peek => items(queue.peek(tr).await?.into_iter().collect()),
        Op::DequeueBatch => queue.dequeue_batch(tr, 10).await?,
        Op::Items => items(queue.items(tr, None, 10).await?),
        Op::ItemsAfter => items(queue.items(tr, Some(first_id(queue.order())), 10).await?),
    };
    Ok(items.into_iter().map(|item| item.value).collect())
}

/// Returns an id that sorts before every item.
fn first_id(order: Order) -> microqueue::ItemId {
    match order {
        Order::Commit => microqueue::ItemId::Commit {
            versionstamp: microqueue::keyspace::Versionstamp::new(0, 0),
            call: 0,
        },
        Order::Index => microqueue::ItemId::Index {
            index: 0,
            suffix: [0; microqueue::SUFFIX_BYTES],
        },
    }
}

/// A queue with this many items in a store of its own, and two handles on it.
async fn queue_with(
    store: &TestStore,
    order: Order,
    items: u64,
) -> (Store, MicroQueue<u64>, MicroQueue<u64>) {
    let store = store.fresh();
    let values: Vec<_> = (0..items).collect();
    enqueue_committed(&store.db, &jobs_of(&store, order), &values).await;
    (
        store.db.clone(),
        jobs_of(&store, order),
        jobs_of(&store, order),
    )
}

async fn in_commit_order_every_read_after_an_enqueue_is_refused_and_nothing_else_is(
    store: TestStore,
) {
    for first in OPS {
        for second in OPS {
            for items in [0, 3] {
                for before in BEFORE {
                    let case = format!("{second:?} after {first:?}, {items} items, {before:?}");
                    let (db, one, other) = queue_with(&store, Order::Commit, items).await;
                    for handle in [&one, &other] {
                        let mut tr = db.begin().unwrap();
                        prepare(before, &one, &tr).await;
                        stage(first, &one, &tr).await.unwrap();
                        let result = stage(second, handle, &tr).await;
                        if first.enqueues() && second.reads() {
                            assert!(
                                matches!(&result, Err(Error::ReadAfterWrite { queue })
                                    if queue == one.subspace()),
                                "{case}: {result:?}"
                            );
                            let code = code(tr.commit().await);
                            assert_eq!(code, Some(Code::ACCESSED_UNREADABLE), "{case}");
                        } else {
                            assert!(result.is_ok(), "{case}: {result:?}");
                        }
                    }
                }
            }
        }
    }
}

async fn in_index_order_every_read_sees_what_its_transaction_wrote(store: TestStore) {
    for first in OPS {
        for second in OPS {
            for items in [0, 3] {
                // Snapshot reads determine the next index, so that option has a test of its own.
                for before in [Before::Nothing, Before::ReadElsewhere, Before::ReadQueue] {
                    let case = format!("{second:?} after {first:?}, {items} items, {before:?}");
                    let (db, one, other) = queue_with(&store, Order::Index, items).await;
                    for handle in [&one, &other] {
                        let tr = db.begin().unwrap();
                        prepare(before, &one, &tr).await;
                        let mut model: Vec<u64> = (0..items).collect();
                        apply(first, &mut model);
                        stage(first, &one, &tr).await.unwrap();
                        let seen = stage(second, handle, &tr).await.unwrap();
                        assert_eq!(seen, apply(second, &mut model), "{case}");
                        let left = stage(Op::Items, handle, &tr).await.unwrap();
                        assert_eq!(left, model, "{case}");
                    }
                }
            }
        }
    }
}

/// The values that an operation sees in a queue with these values, and the values that it leaves.
fn apply(op: Op, model: &mut Vec<u64>) -> Vec<u64> {
    match op {
        Op::Enqueue => model.push(10),
        Op::EnqueueAll => model.extend([20, 21]),
        Op::IsEmpty | Op::VerifyOrder => {}
        Op::Clear => model.clear(),
        Op::Peek => return model.first().copied().into_iter().collect(),
        Op::Items | Op::ItemsAfter => return model.clone(),
        Op::CountUpTo => return vec![model.len() as u64],
        Op::Dequeue => return model.drain(..model.len().min(1)).collect(),
        Op::DequeueBatch => return std::mem::take(model),
    }
    Vec::new()
}

async fn without_the_probe_the_same_read_would_fail_or_pass_with_the_data(store: TestStore) {
    for (items, fails) in [(0, true), (3, false)] {
        let (db, queue, _) = queue_with(&store, Order::Commit, items).await;
        // The read version is then above the versions of the items, instead of equal to one of them.
        set_committed(&db, &store.root.pack(&"elsewhere"), b"").await;
        let tr = db.begin().unwrap();
        prepare(Before::ReadElsewhere, &queue, &tr).await;
        queue.enqueue(&tr, &1).await.unwrap();
        let (begin, end) = queue.subspace().range();
        let head = RangeQuery::keys(begin, end).limit(1);
        let result = tr.get_range(&head, Isolation::Serializable).await;
        assert_eq!(result.is_err(), fails, "{items} items: {result:?}");
    }
}

async fn a_clear_makes_the_queue_readable_again_and_takes_what_was_enqueued(store: TestStore) {
    for before in BEFORE {
        for items in [0, 3] {
            let (db, one, other) = queue_with(&store, Order::Commit, items).await;
            let mut tr = db.begin().unwrap();
            prepare(before, &one, &tr).await;
            one.enqueue_all(&tr, &[7, 8]).await.unwrap();
            other.clear(&tr);
            assert!(one.is_empty(&tr).await.unwrap());
            assert_eq!(other.dequeue(&tr).await.unwrap(), None);
            one.enqueue(&tr, &9).await.unwrap();
            tr.commit().await.unwrap();
            assert_eq!(contents(&db, &one).await, [9], "{before:?}, {items} items");
        }
    }
}

async fn batches_of_one_transaction_follow_each_other_whatever_snapshot_reads_see(
    store: TestStore,
) {
    for order in [Order::Commit, Order::Index] {
        for before in BEFORE {
            let (db, one, other) = queue_with(&store, order, 7).await;
            let tr = db.begin().unwrap();
            prepare(before, &one, &tr).await;
            let batches: [&[u64]; 4] = [&[0, 1, 2], &[3, 4, 5], &[6], &[]];
            for (queue, expected) in [&one, &other, &one, &other].into_iter().zip(batches) {
                let batch = queue.dequeue_batch(&tr, 3).await.unwrap();
                let values: Vec<_> = batch.into_iter().map(|item| item.value).collect();
                assert_eq!(values, expected, "{order:?} order, {before:?}");
            }
        }
    }
}

async fn an_enqueue_after_a_read_goes_after_the_remaining_items(store: TestStore) {
    for order in [Order::Commit, Order::Index] {
        for op in [Op::Dequeue, Op::DequeueBatch, Op::Peek, Op::Items] {
            let (db, one, other) = queue_with(&store, order, 3).await;
            let mut tr = db.begin().unwrap();
            let mut model = vec![0, 1, 2];
            assert_eq!(stage(op, &one, &tr).await.unwrap(), apply(op, &mut model));
            other.enqueue_all(&tr, &[20, 21]).await.unwrap();
            tr.commit().await.unwrap();
            model.extend([20, 21]);
            assert_eq!(
                contents(&db, &one).await,
                model,
                "{op:?} in {order:?} order"
            );
        }
    }
}

async fn an_enqueue_into_one_queue_does_not_refuse_reads_of_another(store: TestStore) {
    let store = store.fresh();
    let db = &store.db;
    let queue = |name: &str| MicroQueue::<u64>::new(name);
    let one = queue("jobs");
    let below = queue("job");
    let above = queue("jobss");
    let mut tr = db.begin().unwrap();
    one.enqueue(&tr, &1).await.unwrap();
    assert!(below.is_empty(&tr).await.unwrap());
    assert!(above.is_empty(&tr).await.unwrap());
    tr.commit().await.unwrap();
}

async fn bypassing_unreadable_keys_does_not_return_items_without_a_place(store: TestStore) {
    for before in BEFORE {
        let (db, queue, _) = queue_with(&store, Order::Commit, 2).await;
        let tr = db.begin().unwrap();
        tr.set_option(TransactionOption::BypassUnreadable).unwrap();
        prepare(before, &queue, &tr).await;
        queue.enqueue(&tr, &7).await.unwrap();
        let mut taken = Vec::new();
        let end = loop {
            match queue.dequeue(&tr).await {
                Ok(Some(item)) => taken.push(item.value),
                end => break end,
            }
        };
        assert!([0, 1].starts_with(&taken), "{before:?}: {taken:?}");
        // The option applies to reads of single keys.
        assert!(matches!(end, Err(Error::ReadAfterWrite { .. })), "{end:?}");
    }
}

async fn in_index_order_enqueues_tie_if_snapshot_reads_do_not_see_them(store: TestStore) {
    let (db, queue, _) = queue_with(&store, Order::Index, 0).await;
    let mut tr = db.begin().unwrap();
    prepare(Before::SnapshotRywDisabled, &queue, &tr).await;
    for value in 0..3 {
        queue.enqueue(&tr, &value).await.unwrap();
    }
    tr.commit().await.unwrap();
    let mut values = contents(&db, &queue).await;
    values.sort_unstable();
    assert_eq!(values, [0, 1, 2]);
}

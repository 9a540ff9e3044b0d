//! Pairs of transactions that write and read references: which of them conflict, and which do not.

use conformance::plant::{Plant, Planted};
use conformance::second_fails;
use microqueue::keyspace::{Database, Isolation, Runner, Transaction};

use super::memory;
use crate::items::error::Result;
use crate::queue::enqueue_options::Enqueue;
use crate::queue::handle::Queue;

/// A key of the application.
const KEY: &[u8] = b"job";

/// A transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// Enqueues an item and writes its reference.
    Enqueue,
    /// Enqueues an item with a dedupe id that another one has, and writes the reference of that one.
    Repeat,
    /// Cancels the item that has the dedupe id.
    Cancel,
    /// Reads the reference, and writes something.
    Read,
}

async fn stage(tr: &impl Transaction, queue: &Queue<u64>, step: Step) -> Result<()> {
    let named = Enqueue::new().with_ref_key(KEY);
    match step {
        Step::Enqueue => {
            let _ = queue.enqueue_with(tr, &7, &named).await?;
        }
        Step::Repeat => {
            let again = named.with_dedupe("one");
            let _ = queue.enqueue_with(tr, &7, &again).await?;
        }
        Step::Cancel => {
            let item = queue.find_deduped(tr, b"one").await?.unwrap();
            let _ = queue.cancel(tr, &item).await?;
        }
        Step::Read => {
            queue.ref_at(tr, KEY).await?;
            tr.set(b"other", b"");
        }
    }
    Ok(())
}

async fn conflict<D: Database>(db: D, first: Step, second: Step) -> bool {
    let runner = Runner::new(db.clone());
    let queue = &Queue::<u64>::open(&runner, "queue").await.unwrap();
    let once = &Enqueue::new().with_dedupe("one");
    let enqueue = |tr| async move { queue.enqueue_with(&tr, &1, once).await.map(drop) };
    runner.run(enqueue).await.unwrap();
    let one = db.begin().unwrap();
    let other = db.begin().unwrap();
    for tr in [&one, &other] {
        tr.get(b"other", Isolation::Snapshot).await.unwrap();
    }
    stage(&one, queue, first).await.unwrap();
    stage(&other, queue, second).await.unwrap();
    second_fails((first, second), one, other).await
}

/// The pairs of which the second step must fail.
const CONFLICTS: [(Step, Step); 3] = [
    (Step::Enqueue, Step::Read),
    (Step::Repeat, Step::Read),
    // Otherwise, the key would name an item that was cancelled before.
    (Step::Cancel, Step::Repeat),
];

#[tokio::test]
async fn a_reader_of_a_reference_conflicts_with_its_change() {
    for (first, second) in CONFLICTS {
        let failed = conflict(memory(), first, second).await;
        assert!(failed, "{first:?}, then {second:?}");
        let planted = Planted::new(memory(), Plant::NoReadConflicts);
        let failed = conflict(planted, first, second).await;
        assert!(!failed, "{first:?}, then {second:?}");
    }
}

#[tokio::test]
async fn writers_of_references_do_not_conflict() {
    for (first, second) in [
        (Step::Enqueue, Step::Enqueue),
        (Step::Repeat, Step::Repeat),
        (Step::Enqueue, Step::Repeat),
        (Step::Read, Step::Enqueue),
        (Step::Read, Step::Repeat),
    ] {
        let failed = conflict(memory(), first, second).await;
        assert!(!failed, "{first:?}, then {second:?}");
    }
}

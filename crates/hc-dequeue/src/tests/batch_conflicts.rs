//! Pairs of transactions of batches and their members: which of them conflict, and which do not.

use conformance::plant::{Plant, Planted};
use conformance::second_fails;
use microqueue::keyspace::{Database, Runner, Transaction};

use self::Which::{GoesOn, IsComplete};
use super::memory;
use crate::batches::end::finish_batches;
use crate::batches::operations::Batch;
use crate::items::batch::{BatchRef, Joining};
use crate::items::error::{Error, Result};
use crate::items::item_ref::ItemRef;
use crate::queue::enqueue_options::{Enqueue, Enqueued};
use crate::queue::handle::Queue;

/// A transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// An item becomes a member of a batch.
    Add(Which),
    /// A batch becomes a member of another one.
    Nest(Which),
    /// A member adds an item to its batch.
    AddByMember(Which),
    /// A member opens a batch in its own.
    NestByMember(Which),
    /// The first or the second member of the batch that goes on ends.
    End(usize),
    Close(Which),
    Cancel(Which),
    /// A session looks at batches.
    Look,
    Status(Which),
    /// The members of a batch are read, to the end.
    Members(Which),
}

/// A batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Which {
    /// It has two members.
    GoesOn,
    /// It is closed, and has no member.
    IsComplete,
}

struct PairWorld<D> {
    db: D,
    queue: Queue<u64>,
    batches: [BatchRef; 2],
    members: [ItemRef; 2],
}

impl<D: Database> PairWorld<D> {
    async fn new(db: D) -> Self {
        let runner = Runner::new(db.clone());
        let queue = Queue::<u64>::open(&runner, "queue").await.unwrap();
        let handle = &queue;
        let fill = |tr| async move {
            let tr = &tr;
            let goes_on = handle.open_batch(tr, &Batch::new()).await?;
            let callback = Batch::new().with_callback(7, Enqueue::new());
            let complete = handle.open_batch(tr, &callback).await?;
            handle.close_batch(tr, &complete)?;
            let member = Enqueue::new().with_batch(&goes_on);
            let items = [1, 2].map(|value| (value, member.clone()));
            let enqueued = handle.enqueue_all_with(tr, &items).await?;
            Ok::<_, Error>(([goes_on, complete], enqueued))
        };
        let ((batches, enqueued), commit) = runner.run_committed(fill).await.unwrap();
        let versionstamp = commit.versionstamp.unwrap();
        let item = |enqueued: &Enqueued| match enqueued {
            Enqueued::Staged(staged) => staged.at(versionstamp),
            other => panic!("{other:?}"),
        };
        Self {
            db,
            members: [item(&enqueued[0]), item(&enqueued[1])],
            queue,
            batches,
        }
    }

    async fn stage(&self, tr: &D::Transaction, step: Step) -> Result<()> {
        let queue = &self.queue;
        let batch = |which: Which| &self.batches[which as usize];
        match step {
            Step::Add(which) => {
                let member = Enqueue::new().with_batch(batch(which));
                let _ = queue.enqueue_with(tr, &3, &member).await?;
            }
            Step::Nest(which) => {
                let within = Batch::new().with_parent(batch(which));
                queue.open_batch(tr, &within).await?;
            }
            Step::AddByMember(which) => {
                let member = Enqueue {
                    batch: Some(by_member(batch(which))),
                    ..Enqueue::new()
                };
                let _ = queue.enqueue_with(tr, &3, &member).await?;
            }
            Step::NestByMember(which) => {
                let mut within = Batch::new();
                within.parent = Some(by_member(batch(which)));
                queue.open_batch(tr, &within).await?;
            }
            Step::End(member) => {
                let _ = queue.cancel(tr, &self.members[member]).await?;
            }
            Step::Close(which) => queue.close_batch(tr, batch(which))?,
            Step::Cancel(which) => {
                assert!(queue.cancel_batch(tr, batch(which)).await?);
            }
            Step::Look => {
                let settings = &queue.settings.get();
                finish_batches(tr, &queue.keys, settings, None, true).await?;
            }
            Step::Members(which) => {
                assert!(queue.members(tr, batch(which), None, 9).await?.is_some());
                tr.set(b"written", b"");
            }
            Step::Status(which) => {
                queue.batch_status(tr, batch(which)).await?;
                // A transaction without a write never fails.
                tr.set(b"written", b"");
            }
        }
        Ok(())
    }
}

fn by_member(batch: &BatchRef) -> Joining {
    Joining {
        batch: *batch,
        by_member: true,
    }
}

/// Lets two steps read the same state, and commits one after the other. Returns whether the second one failed.
async fn conflict<D: Database>(db: D, first: Step, second: Step) -> bool {
    let world = PairWorld::new(db).await;
    let one = world.db.begin().unwrap();
    let other = world.db.begin().unwrap();
    world.stage(&one, first).await.unwrap();
    world.stage(&other, second).await.unwrap();
    second_fails((first, second), one, other).await
}

/// The pairs of which the second step must fail, and why.
const CONFLICTS: [(Step, Step); 13] = [
    // A batch ends once.
    (Step::Look, Step::Look),
    // A batch that has ended, or was cancelled, takes no members.
    (Step::Look, Step::AddByMember(IsComplete)),
    (Step::Look, Step::NestByMember(IsComplete)),
    (Step::Cancel(GoesOn), Step::Add(GoesOn)),
    // A batch that was closed takes members only from its own ones.
    (Step::Close(GoesOn), Step::Add(GoesOn)),
    (Step::Close(GoesOn), Step::Nest(GoesOn)),
    // A batch that has a new member has not ended.
    (Step::AddByMember(IsComplete), Step::Look),
    (Step::NestByMember(IsComplete), Step::Look),
    // The callback comes, or the batch is cancelled.
    (Step::Cancel(IsComplete), Step::Look),
    (Step::Look, Step::Cancel(IsComplete)),
    // Members are read as they are at the commit.
    (Step::Add(GoesOn), Step::Members(GoesOn)),
    (Step::End(0), Step::Members(GoesOn)),
    (Step::Look, Step::Members(IsComplete)),
];

#[tokio::test]
async fn what_decides_whether_a_batch_ends_conflicts() {
    for (first, second) in CONFLICTS {
        let failed = conflict(memory(), first, second).await;
        assert!(failed, "{first:?}, then {second:?}");
    }
}

#[tokio::test]
async fn without_read_conflicts_all_of_that_happens() {
    for (first, second) in CONFLICTS {
        let planted = Planted::new(memory(), Plant::NoReadConflicts);
        let failed = conflict(planted, first, second).await;
        assert!(!failed, "{first:?}, then {second:?}");
    }
}

#[tokio::test]
async fn members_do_not_conflict_otherwise() {
    let pairs = [
        (Step::End(0), Step::End(1)),
        (Step::End(0), Step::Add(GoesOn)),
        (Step::Add(GoesOn), Step::End(0)),
        (Step::Add(GoesOn), Step::Add(GoesOn)),
        (Step::Add(GoesOn), Step::Nest(GoesOn)),
        (Step::Close(GoesOn), Step::AddByMember(GoesOn)),
        (Step::Close(GoesOn), Step::NestByMember(GoesOn)),
        (Step::Add(GoesOn), Step::Close(GoesOn)),
        (Step::Close(GoesOn), Step::End(0)),
        (Step::Close(GoesOn), Step::Close(GoesOn)),
        (Step::Cancel(GoesOn), Step::End(0)),
        (Step::End(0), Step::Look),
        (Step::Add(GoesOn), Step::Look),
        (Step::Close(GoesOn), Step::Look),
        (Step::Look, Step::End(0)),
        (Step::Look, Step::Status(IsComplete)),
        (Step::Close(GoesOn), Step::Members(GoesOn)),
        (Step::Look, Step::Members(GoesOn)),
    ];
    for (first, second) in pairs {
        let failed = conflict(memory(), first, second).await;
        assert!(!failed, "{first:?}, then {second:?}");
    }
}

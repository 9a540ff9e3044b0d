//! Two concurrent operations: which of them makes the other one fail, and what is lost on a store that does
//! not detect the conflict.

use std::time::{Duration, SystemTime};

use combine::hc_dequeue::session::SessionId;
use combine::keyspace::{
    Database, Isolation, OpenOptions, OwnedTransaction, RangeQuery, Runner, Store, Versionstamp,
    read_all,
};
use combine::microqueue::blocks::{EntryId, WHOLE_BLOCK};
use combine::{Bucket, Settings};
use conformance::plant::{Plant, Planted};
use conformance::second_fails;

use crate::error::Result;
use crate::exporting::batch::{Advance, ClaimOutcome, Portion};
use crate::queue::ExportQueue;
use crate::sequence::Sequence;
use crate::subscription::Subscription;
use crate::subscription::subscribe::Start;

/// Two workers of one subscription. Worker A has the bucket.
const A: SessionId = SessionId([1; 16]);
const B: SessionId = SessionId([2; 16]);

const BUCKET: Bucket = Bucket(0);

const EVERYTHING: Portion = Portion {
    entries: usize::MAX,
    bytes: usize::MAX,
};

/// A transaction with all its reads and writes. Each one must have work to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    Add,
    /// Claims the bucket for B, which has found that the claim of A makes no progress.
    Take(SessionId),
    /// Sets the position after the block of the first entry.
    Settle(SessionId),
    Subscribe,
    DeclareDead(SessionId),
    Pause,
}

struct World<D> {
    db: D,
    queue: ExportQueue<String, u64>,
    reader: Subscription<String, u64>,
    /// The end of the block of the first entry.
    first: Sequence,
}

impl<D: Database> World<D> {
    /// A queue with three entries, each in its own block. A has taken all of them.
    async fn new(db: D) -> Self {
        let runner = Runner::new(db.clone());
        let settings = Settings::new().with_bucket_count(1);
        let queue = ExportQueue::open_with(&runner, "queue", settings, OpenOptions::default())
            .await
            .unwrap();
        let reader = queue.subscribe(&runner, "reader", Start::Oldest).await;
        let mut world = Self {
            reader: reader.unwrap(),
            first: Sequence::after_commit(Versionstamp::INCOMPLETE),
            queue,
            db,
        };
        let reader = &world.reader;
        let handle = &world.queue;
        let fill = |tr| async move {
            for session in [A, B] {
                reader.sessions().open(
                    &tr,
                    session,
                    Duration::from_secs(10),
                    SystemTime::UNIX_EPOCH,
                );
            }
            for value in 0..3 {
                handle.add(&tr, &"key".to_owned(), &value).await?;
            }
            Ok::<_, crate::error::Error>(())
        };
        runner.run(fill).await.unwrap();
        let tr = world.db.begin().unwrap();
        let taken = world
            .reader
            .claim_batch(&tr, A, BUCKET, EVERYTHING, None)
            .await
            .unwrap();
        let ClaimOutcome::Batch(batch) = taken else {
            panic!("{taken:?}");
        };
        world.first = Sequence::of(EntryId {
            index: WHOLE_BLOCK,
            ..batch.entries[0].0.id()
        });
        world.commit(Operation::Take(A)).await.unwrap();
        world
    }

    /// Stages an operation. Returns false if it was refused.
    async fn stage(&self, tr: &D::Transaction, operation: Operation) -> Result<bool> {
        let queue = &self.queue;
        let reader = &self.reader;
        match operation {
            Operation::Add => queue.add(tr, &"key".to_owned(), &9).await?,
            Operation::Take(session) => {
                let stalled = match reader
                    .claim_batch(tr, session, BUCKET, EVERYTHING, None)
                    .await?
                {
                    ClaimOutcome::Claimed(claim) => Some(claim),
                    taken => return Ok(matches!(taken, ClaimOutcome::Batch(_))),
                };
                let taken = reader
                    .claim_batch(tr, session, BUCKET, EVERYTHING, stalled)
                    .await?;
                return Ok(matches!(taken, ClaimOutcome::Batch(_)));
            }
            Operation::Settle(session) => {
                let settled = Advance {
                    position: self.first,
                    dead: Vec::new(),
                    releases_claim: false,
                };
                return reader.advance(tr, session, BUCKET, &settled).await;
            }
            Operation::Subscribe => queue.create(tr, "other", Start::Oldest).await?,
            Operation::DeclareDead(session) => reader.sessions().end(tr, session).await?,
            Operation::Pause => reader.pause(tr),
        }
        Ok(true)
    }

    async fn commit(&self, operation: Operation) -> Result<bool> {
        let mut tr = self.db.begin().unwrap();
        let is_done = self.stage(&tr, operation).await?;
        tr.commit().await?;
        Ok(is_done)
    }

    /// Stages both operations and commits them in order. Returns whether the second one fails with a conflict.
    async fn conflict(&self, first: Operation, second: Operation) -> bool {
        let one = self.db.begin().unwrap();
        let other = self.db.begin().unwrap();
        assert!(self.stage(&one, first).await.unwrap(), "{first:?}");
        assert!(self.stage(&other, second).await.unwrap(), "{second:?}");
        second_fails((first, second), one, other).await
    }

    /// Returns the number of entries.
    async fn entries(&self) -> usize {
        let (begin, end) = self.queue.subspace().subspace(&"e").range();
        let tr = self.db.begin().unwrap();
        let rows = read_all(&tr, RangeQuery::keys(begin, end), Isolation::Snapshot).await;
        rows.unwrap().len()
    }
}

fn memory() -> Store {
    keyspace::open("memory:").unwrap()
}

fn broken() -> Planted<Store> {
    Planted::new(memory(), Plant::ReadsWithoutConflicts)
}

#[tokio::test]
async fn operations_that_must_not_both_happen_conflict_and_others_do_not() {
    for (first, second, expected) in [
        (Operation::Add, Operation::Add, false),
        (Operation::Add, Operation::Settle(A), false),
        (Operation::Settle(A), Operation::Add, false),
        (Operation::Add, Operation::Take(B), false),
        (Operation::Pause, Operation::Settle(A), false),
        (Operation::Take(B), Operation::Settle(A), true),
        (Operation::Settle(A), Operation::Take(B), true),
        (Operation::DeclareDead(A), Operation::Settle(A), true),
        (Operation::DeclareDead(B), Operation::Take(B), true),
        (Operation::Subscribe, Operation::Settle(A), true),
    ] {
        let world = World::new(memory()).await;
        let conflict = world.conflict(first, second).await;
        assert_eq!(conflict, expected, "{first:?}, then {second:?}");
        let world = World::new(broken()).await;
        assert!(
            !world.conflict(first, second).await,
            "{first:?}, then {second:?}"
        );
    }
}

#[tokio::test]
async fn a_session_that_is_dead_or_lost_its_claim_cannot_set_the_position() {
    let world = World::new(memory()).await;
    assert!(world.commit(Operation::Take(B)).await.unwrap());
    assert!(!world.commit(Operation::Settle(A)).await.unwrap());
    assert_eq!(world.entries().await, 3);
    assert!(world.commit(Operation::DeclareDead(B)).await.unwrap());
    assert!(!world.commit(Operation::Settle(B)).await.unwrap());
    assert!(!world.commit(Operation::Take(B)).await.unwrap());
    // The claim of a dead session is free.
    let tr = world.db.begin().unwrap();
    let taken = world
        .reader
        .claim_batch(&tr, A, BUCKET, EVERYTHING, None)
        .await
        .unwrap();
    assert!(matches!(taken, ClaimOutcome::Batch(_)));
}

/// The effect of setting a position without the claim: the bucket is B's, and its position moves for A.
#[tokio::test]
async fn without_the_conflict_on_the_claim_a_lost_claim_sets_the_position() {
    let moves = |position: Option<Sequence>| position.is_some();
    let sound = World::new(memory()).await;
    assert!(
        sound
            .conflict(Operation::Take(B), Operation::Settle(A))
            .await
    );
    let tr = sound.db.begin().unwrap();
    let position = sound
        .reader
        .position(&tr, BUCKET, Isolation::Snapshot)
        .await;
    assert!(!moves(position.unwrap()));
    let broken = World::new(broken()).await;
    assert!(
        !broken
            .conflict(Operation::Take(B), Operation::Settle(A))
            .await
    );
    let tr = broken.db.begin().unwrap();
    let position = broken
        .reader
        .position(&tr, BUCKET, Isolation::Snapshot)
        .await;
    assert!(moves(position.unwrap()));
}

/// The effect of clearing past the slowest subscription: an entry that the new subscription must export
/// is gone.
#[tokio::test]
async fn without_the_conflict_on_the_settings_a_new_subscription_loses_an_entry() {
    let sound = World::new(memory()).await;
    assert!(
        sound
            .conflict(Operation::Subscribe, Operation::Settle(A))
            .await
    );
    assert_eq!(sound.entries().await, 3);
    // Once it exists, it holds the log back.
    assert!(sound.commit(Operation::Settle(A)).await.unwrap());
    assert_eq!(sound.entries().await, 3);
    let broken = World::new(broken()).await;
    assert!(
        !broken
            .conflict(Operation::Subscribe, Operation::Settle(A))
            .await
    );
    assert_eq!(broken.entries().await, 2);
}

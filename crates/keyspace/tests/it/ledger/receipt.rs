//! The ledger inside other retry loops.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use conformance::chaos::{CommitFault, Fate, Landing, LandingPoint};
use conformance::stores::TestStore;
use keyspace::{Code, Database, Error, OwnedTransaction, Receipt, Runner};

use crate::ledger::log;
use crate::ledger::world::{TestDatabase, World};

conformance::on_every_store!(
    a_foreign_loop_with_a_receipt_commits_exactly_once,
    a_foreign_loop_without_a_receipt_commits_twice,
    a_swept_slot_ends_the_foreign_loop,
    a_receipt_dropped_in_doubt_is_settled_by_the_next_operation,
    a_completed_receipt_leaves_nothing_to_settle,
);

type TestTransaction = <TestDatabase as Database>::Transaction;

/// A retry loop like those of FoundationDB's bindings. It does not know ledgers, and its "maybe committed"
/// flag describes only the last error, so it cannot be relied on.
async fn foreign_run<Fut>(
    db: &TestDatabase,
    closure: impl Fn(Arc<TestTransaction>) -> Fut,
) -> Result<u32, Error>
where
    Fut: Future<Output = Result<u32, Error>>,
{
    let mut tr = Arc::new(db.begin()?);
    loop {
        let value = closure(tr.clone()).await;
        let owned = Arc::get_mut(&mut tr).unwrap();
        let error = match value {
            Ok(value) => match owned.commit().await {
                Ok(_) => return Ok(value),
                Err(error) => error,
            },
            Err(error) => error,
        };
        owned.on_error(error).await?;
    }
}

async fn append_once(db: &TestDatabase, receipt: &Receipt, operation: u64) -> Result<u32, Error> {
    let attempts = &AtomicU32::new(0);
    foreign_run(db, |tr| async move {
        let attempt = 1 + attempts.fetch_add(1, Ordering::Relaxed);
        if let Some(earlier) = receipt.resolve(&*tr).await? {
            return Ok(earlier.attempt);
        }
        log::append(&*tr, operation, attempt);
        receipt.stage(&*tr)?;
        Ok(attempt)
    })
    .await
}

fn fates() -> Vec<Fate> {
    let mut fates = vec![Fate::Applied, Fate::Lost];
    for attempts in 0..=4 {
        for before in [LandingPoint::ReadVersion, LandingPoint::Commit] {
            fates.push(Fate::Late(Landing { attempts, before }));
        }
    }
    fates
}

async fn a_foreign_loop_with_a_receipt_commits_exactly_once(store: TestStore) {
    for first in fates() {
        // A definite error follows the unknown one, so the loop's own flag would say "not committed".
        for second in [
            CommitFault::None,
            CommitFault::NotCommitted,
            CommitFault::Unknown(first),
        ] {
            let world = World::calm(&store).await;
            let runner = world.runner().await;
            let receipt = runner.receipt().await.unwrap();
            world.chaos.script([CommitFault::Unknown(first), second]);
            let attempt = append_once(&world.saboteur, &receipt, 1).await.unwrap();
            receipt.complete();
            world.chaos.flush().await;
            let log = log::stored_items(&world.db).await;
            assert_eq!(log.len(), 1, "{first:?}, {second:?}: {log:?}");
            assert_eq!(log[0].attempt, attempt, "{first:?}, {second:?}");
        }
    }
}

async fn a_foreign_loop_without_a_receipt_commits_twice(store: TestStore) {
    let world = World::calm(&store).await;
    world.chaos.script([CommitFault::Unknown(Fate::Applied)]);
    let append = |tr: Arc<TestTransaction>| async move {
        log::append(&*tr, 1, 1);
        Ok(1)
    };
    foreign_run(&world.saboteur, append).await.unwrap();
    assert_eq!(log::stored_items(&world.db).await.len(), 2);
}

async fn a_swept_slot_ends_the_foreign_loop(store: TestStore) {
    let mut world = World::calm(&store).await;
    world.sweep_between_attempts();
    let runner = world.runner().await;
    let receipt = runner.receipt().await.unwrap();
    world.chaos.script([CommitFault::Unknown(Fate::Applied)]);
    let answer = append_once(&world.saboteur, &receipt, 1).await;
    assert!(matches!(
        answer,
        Err(Error::OutcomeUnknown { attempts: 1, .. })
    ));
    assert_eq!(log::stored_items(&world.db).await.len(), 1);
}

/// Takes a receipt, and reports its only attempt as unknown while the commit is under way.
async fn leave_late_commit(world: &World, runner: &Runner<TestDatabase>) -> Receipt {
    let receipt = runner.receipt().await.unwrap();
    let landing = Landing {
        attempts: 100,
        before: LandingPoint::ReadVersion,
    };
    world
        .chaos
        .script([CommitFault::Unknown(Fate::Late(landing))]);
    let mut tr = world.saboteur.begin().unwrap();
    assert_eq!(receipt.resolve(&tr).await.unwrap(), None);
    log::append(&tr, 1, 1);
    receipt.stage(&tr).unwrap();
    let error = tr.commit().await.unwrap_err();
    assert_eq!(error.code(), Some(Code::COMMIT_UNKNOWN_RESULT));
    receipt
}

async fn a_receipt_dropped_in_doubt_is_settled_by_the_next_operation(store: TestStore) {
    let world = World::calm(&store).await;
    let runner = world.runner().await;
    drop(leave_late_commit(&world, &runner).await);
    runner.run(|_| async { Ok::<_, Error>(()) }).await.unwrap();
    world.chaos.flush().await;
    assert_eq!(world.chaos.tally().refused, 1);
    assert_eq!(log::stored_items(&world.db).await, []);
}

async fn a_completed_receipt_leaves_nothing_to_settle(store: TestStore) {
    let world = World::calm(&store).await;
    let runner = world.runner().await;
    leave_late_commit(&world, &runner).await.complete();
    runner.run(|_| async { Ok::<_, Error>(()) }).await.unwrap();
    world.chaos.flush().await;
    assert_eq!(world.chaos.tally().landed, 1);
}

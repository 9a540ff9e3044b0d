//! Operations whose future is dropped during the commit, whose closure panics, or that gave up: the next
//! operation on the runner makes the outcome final.

use std::future::{self, Future};
use std::sync::atomic::{AtomicBool, Ordering};

use conformance::chaos::{CommitFault, Fate, Faults, Landing, LandingPoint};
use conformance::stores::TestStore;
use futures::FutureExt;
use keyspace::{Code, Error, Runner, Transaction, TransactionOption, foreign};

use crate::ledger::log;
use crate::ledger::saboteur::Plant;
use crate::ledger::world::{TestDatabase, World, clear_ledgers};

conformance::on_every_store!(
    the_next_operation_makes_a_dropped_commit_final,
    the_next_operation_makes_an_unknown_outcome_final,
    a_future_dropped_before_its_commit_leaves_nothing,
    a_slot_in_doubt_is_taken_before_a_clean_one,
    the_doubt_of_a_dropped_operation_is_not_that_of_the_next,
    a_closure_that_panics_leaves_no_more_than_one_that_is_dropped,
);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Append,
    ChangeNothing,
    Fail,
}

/// The error of the next operation: whether it saw the item of the previous one.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("the closure refused, seen {seen}")]
    Refused { seen: bool },
    #[error(transparent)]
    Store(#[from] Error),
}

fn fates() -> Vec<Fate> {
    let mut fates = vec![Fate::Applied, Fate::Lost];
    for attempts in 0..=3 {
        for before in [LandingPoint::ReadVersion, LandingPoint::Commit] {
            fates.push(Fate::Late(Landing { attempts, before }));
        }
    }
    fates
}

async fn append(runner: &Runner<TestDatabase>) -> Result<(), Error> {
    let append = runner.run(|tr| async move {
        let attempt = tr.attempt();
        log::append(&tr, 1, attempt.number);
        Ok::<_, Error>(())
    });
    append.await
}

async fn is_stored(world: &World) -> bool {
    let items = log::stored_items(&world.db).await;
    let count = items.iter().filter(|item| item.operation == 1).count();
    assert!(count <= 1, "appended twice: {items:?}");
    count == 1
}

/// Polls a future that cannot be ready before some other event.
async fn poll_until<C: Future<Output = bool>>(future: impl Future, condition: impl Fn() -> C) {
    let mut future = Box::pin(future);
    while !condition().await {
        assert!(future.as_mut().now_or_never().is_none());
        tokio::task::yield_now().await;
    }
}

/// Drops operation 1 during its commit.
async fn drop_at_commit(world: &World, runner: &Runner<TestDatabase>, fate: Fate) {
    world.chaos.script([CommitFault::Silent(fate)]);
    poll_until(append(runner), async || {
        world.chaos.tally().commits == 1 && (fate != Fate::Applied || is_stored(world).await)
    })
    .await;
}

/// Runs the next operation, and returns an error if the outcome of operation 1 that it saw is not final.
async fn violation_after(
    world: &World,
    runner: &Runner<TestDatabase>,
    next: Next,
) -> Option<String> {
    let answer = runner
        .run(|tr| async move {
            let attempt = tr.attempt();
            let items = log::items(&tr).await?;
            let seen = items.iter().any(|item| item.operation == 1);
            match next {
                Next::Append => log::append(&tr, 2, attempt.number),
                Next::ChangeNothing => {}
                Next::Fail => return Err(Failure::Refused { seen }),
            }
            Ok(seen)
        })
        .await;
    let at_return = is_stored(world).await;
    world.chaos.flush().await;
    let finally = is_stored(world).await;
    let right = match answer {
        Ok(seen) => seen == finally,
        // The commit may have landed after the closure read and before the operation returned.
        Err(Failure::Refused { seen }) => !seen || finally,
        Err(Failure::Store(_)) => false,
    };
    (!right || at_return != finally)
        .then(|| format!("{next:?}: {answer:?}, stored {at_return}, then {finally}"))
}

async fn violations(store: &TestStore, plant: Plant) -> Vec<String> {
    let mut violations = Vec::new();
    for fate in fates() {
        for next in [Next::Append, Next::ChangeNothing, Next::Fail] {
            let world = World::new(store, 0, Faults::default(), plant).await;
            let runner = world.runner().await;
            drop_at_commit(&world, &runner, fate).await;
            let violation = violation_after(&world, &runner, next).await;
            violations.extend(violation.map(|text| format!("{fate:?}, {text}")));
        }
    }
    violations
}

async fn the_next_operation_makes_a_dropped_commit_final(store: TestStore) {
    assert_eq!(
        Box::pin(violations(&store, Plant::Nothing)).await,
        Vec::<String>::new()
    );
}

#[tokio::test]
async fn each_planted_bug_lets_a_dropped_commit_land_later() {
    let store = TestStore::memory();
    for (plant, next) in [
        (Plant::AnswerWithoutSlot, "ChangeNothing"),
        (Plant::AnswerWithoutSlot, "Fail"),
        (Plant::ConflictAfterWrite, "Append"),
        (Plant::NoReadVersion, "Append"),
    ] {
        let violations = Box::pin(violations(&store, plant)).await;
        let caught = violations.iter().any(|text| text.contains(next));
        assert!(caught, "{plant:?} is not caught by {next}: {violations:#?}");
    }
}

async fn the_next_operation_makes_an_unknown_outcome_final(store: TestStore) {
    for fate in fates() {
        for next in [Next::Append, Next::ChangeNothing, Next::Fail] {
            let world = World::calm(&store).await;
            let runner = world.runner().await;
            world.chaos.script([CommitFault::Unknown(fate)]);
            let answer = runner
                .run(|tr| async move {
                    let attempt = tr.attempt();
                    tr.set_option(TransactionOption::RetryLimit(Some(0)))?;
                    log::append(&tr, 1, attempt.number);
                    Ok::<_, Error>(())
                })
                .await;
            match answer {
                Err(Error::OutcomeUnknown { attempts, cause }) => {
                    assert_eq!(attempts, 1);
                    let code = cause.and_then(|cause| cause.code());
                    assert_eq!(code, Some(Code::COMMIT_UNKNOWN_RESULT));
                }
                other => panic!("expected an unknown outcome, found {other:?}"),
            }
            assert_eq!(
                violation_after(&world, &runner, next).await,
                None,
                "{fate:?}"
            );
        }
    }
}

async fn a_future_dropped_before_its_commit_leaves_nothing(store: TestStore) {
    let world = World::calm(&store).await;
    let runner = world.runner().await;
    let began = &AtomicBool::new(false);
    let operation = runner.run(|tr| async move {
        let attempt = tr.attempt();
        log::append(&tr, 1, attempt.number);
        began.store(true, Ordering::Relaxed);
        future::pending::<Result<(), Error>>().await
    });
    poll_until(operation, async || began.load(Ordering::Relaxed)).await;
    assert_eq!(violation_after(&world, &runner, Next::Append).await, None);
    assert!(!is_stored(&world).await);
}

async fn a_slot_in_doubt_is_taken_before_a_clean_one(store: TestStore) {
    let world = World::calm(&store).await;
    let runner = world.runner().await;
    let clean = runner.receipt().await;
    let free = runner.receipt().await;
    free.unwrap().complete();
    let landing = Landing {
        attempts: 100,
        before: LandingPoint::ReadVersion,
    };
    drop_at_commit(&world, &runner, Fate::Late(landing)).await;
    clean.unwrap().complete();
    assert_eq!(
        violation_after(&world, &runner, Next::ChangeNothing).await,
        None
    );
    assert_eq!(world.chaos.tally().refused, 1);
}

async fn the_doubt_of_a_dropped_operation_is_not_that_of_the_next(store: TestStore) {
    for fate in [Fate::Applied, Fate::Lost] {
        let world = World::calm(&store).await;
        let runner = world.runner().await;
        drop_at_commit(&world, &runner, fate).await;
        clear_ledgers(&world.db).await;
        // No attempt of this operation is in doubt, so a missing slot leaves no outcome unknown.
        world.chaos.script([CommitFault::NotCommitted]);
        assert_eq!(violation_after(&world, &runner, Next::Append).await, None);
    }
}

async fn a_closure_that_panics_leaves_no_more_than_one_that_is_dropped(store: TestStore) {
    let landing = Landing {
        attempts: 100,
        before: LandingPoint::ReadVersion,
    };
    for panics_in in [1, 2] {
        let world = World::calm(&store).await;
        let runner = world.runner().await;
        if panics_in == 2 {
            let late = CommitFault::Unknown(Fate::Late(landing));
            world.chaos.script([late]);
        }
        let operation = runner.run(|tr| async move {
            let attempt = tr.attempt();
            log::append(&tr, 1, attempt.number);
            assert_ne!(attempt.number, panics_in, "on purpose");
            Ok::<_, Error>(())
        });
        let panicked = foreign::run(operation).await.unwrap_err();
        assert!(panicked.message().contains("on purpose"), "{panicked}");
        let next = violation_after(&world, &runner, Next::Append).await;
        assert_eq!(next, None, "{panics_in}");
        if panics_in == 1 {
            assert!(!is_stored(&world).await);
        }
    }
}

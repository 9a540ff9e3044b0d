//! Tests of closing, sweeping, and idle ledgers.

use std::time::Duration;

use conformance::chaos::{Chaos, CommitFault, Fate, Faults, Landing, LandingPoint};
use keyspace::ledger::MIN_SWEEP_AGE;
use keyspace::{
    Code, Database, Error, Isolation, KeyValue, OwnedTransaction, RangeQuery, Runner, Transaction,
    VersionClock, read_all,
};

use crate::ledger::log;
use crate::ledger::saboteur::ledgers;
use crate::ledger::world::{TestDatabase, World};

const AGE: Duration = MIN_SWEEP_AGE;
const STEP: Duration = Duration::from_secs(10 * 60);

async fn slots(world: &World) -> Vec<KeyValue> {
    let (begin, end) = ledgers().range();
    let tr = world.db.begin().unwrap();
    let query = RangeQuery::keys(begin, end);
    read_all(&tr, query, Isolation::Snapshot).await.unwrap()
}

/// Returns the ids of the ledgers that have slots.
async fn ids(world: &World) -> Vec<Vec<u8>> {
    let mut ids: Vec<Vec<u8>> = (slots(world).await.iter())
        .map(|row| ledgers().unpack::<(Vec<u8>, u64)>(row.key()).unwrap().0)
        .collect();
    ids.dedup();
    ids
}

async fn ledger_count(world: &World) -> usize {
    ids(world).await.len()
}

async fn append<D: Database>(runner: &Runner<D>, operation: u64) -> Result<u32, Error> {
    runner
        .run(|tr| async move {
            let attempt = tr.attempt();
            log::append(&tr, operation, attempt.number);
            Ok(attempt.number)
        })
        .await
}

/// Sweeps regularly for `duration`.
async fn sweep_for<D: Database>(
    world: &World,
    sweeper: &Runner<D>,
    clock: &VersionClock,
    duration: Duration,
) -> usize {
    let end = world.env.now() + duration;
    let mut cleared_count = sweeper.sweep(clock).await.unwrap();
    while world.env.now() < end {
        world.clock.advance(STEP);
        cleared_count += sweeper.sweep(clock).await.unwrap();
    }
    cleared_count
}

fn clock(world: &World) -> VersionClock {
    VersionClock::new(world.env.clone(), AGE)
}

#[tokio::test]
async fn the_same_runner_on_a_store_uses_the_same_ledger() {
    let world = World::calm_and_timed().await;
    let runner = world.runner().await;
    append(&runner, 1).await.unwrap();
    world.chaos.script([CommitFault::Unknown(Fate::Applied)]);
    assert_eq!(append(&runner.on_store(), 2).await.unwrap(), 1);
    assert_eq!(log::stored_items(&world.db).await.len(), 2);
    assert_eq!(slots(&world).await.len(), 1);
}

#[tokio::test]
async fn closing_clears_the_ledger_of_the_handle_alone() {
    let world = World::calm_and_timed().await;
    let one = world.runner().await;
    let other = world.runner().await;
    append(&one, 1).await.unwrap();
    append(&other, 2).await.unwrap();
    assert_eq!(ledger_count(&world).await, 2);
    let before = ids(&world).await;
    one.close().await.unwrap();
    let left = ids(&world).await;
    assert_eq!(left.len(), 1);
    assert!(before.contains(&left[0]));
    append(&one, 3).await.unwrap();
    let after = ids(&world).await;
    assert_eq!(after.iter().filter(|id| before.contains(id)).count(), 1);
    assert_eq!(after.len(), 2);
    assert_eq!(log::stored_items(&world.db).await.len(), 3);
}

#[tokio::test]
async fn closing_a_runner_without_operations_writes_nothing() {
    let world = World::calm_and_timed().await;
    let runner = Runner::with_options(world.db.clone(), world.options());
    let mut tr = world.db.begin().unwrap();
    let (begin, end) = ledgers().range();
    let query = RangeQuery::keys(begin, end);
    read_all(&tr, query, Isolation::Serializable).await.unwrap();
    tr.set(b"key", b"value");
    runner.close().await.unwrap();
    // A write to any ledger would have been a conflict.
    tr.commit().await.unwrap();
}

#[tokio::test]
async fn closing_refuses_the_commit_of_a_dropped_operation() {
    let world = World::calm_and_timed().await;
    let runner = world.runner().await;
    let receipt = runner.receipt().await.unwrap();
    let mut tr = world.db.begin().unwrap();
    receipt.resolve(&tr).await.unwrap();
    log::append(&tr, 1, 1);
    receipt.stage(&tr).unwrap();
    drop(receipt);
    runner.close().await.unwrap();
    assert_eq!(
        tr.commit().await.unwrap_err().code(),
        Some(Code::NOT_COMMITTED)
    );
    assert_eq!(slots(&world).await, []);
}

#[tokio::test]
async fn a_sweep_clears_only_abandoned_ledgers() {
    let world = World::calm_and_timed().await;
    let sweeper = world.runner().await;
    let living = world.runner().await;
    let abandoned = world.runner().await;
    append(&sweeper, 0).await.unwrap();
    for receipt in [abandoned.receipt().await, abandoned.receipt().await] {
        receipt.unwrap().complete();
    }
    assert_eq!(slots(&world).await.len(), 4);
    drop(abandoned);

    let clock = clock(&world);
    for operation in 1..=5 {
        append(&living, operation).await.unwrap();
        assert_eq!(sweep_for(&world, &sweeper, &clock, STEP).await, 0);
        assert_eq!(ledger_count(&world).await, 3);
    }
    append(&living, 6).await.unwrap();
    assert_eq!(sweep_for(&world, &sweeper, &clock, STEP).await, 1);
    // The runner's own ledger is as old as the one that was cleared.
    assert_eq!(ledger_count(&world).await, 2);
    assert_eq!(sweeper.sweep(&clock).await.unwrap(), 0);
}

#[tokio::test]
async fn a_sweep_clears_nothing_before_it_has_watched_for_an_age() {
    let world = World::calm_and_timed().await;
    let sweeper = world.runner().await;
    drop(world.runner().await);
    world.clock.advance(10 * AGE);
    let clock = clock(&world);
    assert_eq!(sweeper.sweep(&clock).await.unwrap(), 0);
    // A gap counts as a sixth of the age, however long it is.
    world.clock.advance(2 * AGE);
    assert_eq!(sweeper.sweep(&clock).await.unwrap(), 0);
    assert_eq!(ledger_count(&world).await, 2);
    assert_eq!(sweep_for(&world, &sweeper, &clock, AGE - STEP).await, 1);
}

#[tokio::test]
async fn a_sweep_by_too_young_an_age_is_refused() {
    let world = World::calm_and_timed().await;
    let sweeper = world.runner().await;
    let clock = VersionClock::new(world.env.clone(), AGE - Duration::from_secs(1));
    let answer = sweeper.sweep(&clock).await;
    assert_eq!(answer.unwrap_err().code(), Some(Code::INVALID_OPTION_VALUE));
}

#[tokio::test]
async fn a_row_that_is_not_a_slot_keeps_no_other_ledger_from_being_swept() {
    let record = b"\x01\0\0\0\0\0\0\0\x01\0\0\0\x01\0\0\0\0\0\0\0\x01\0\0".as_slice();
    let id = [0; 16].as_slice();
    for (key, value) in [
        (ledgers().pack(&("text",)), record),
        (ledgers().pack(&(id, 1)), &record[1..]),
    ] {
        let world = World::calm_and_timed().await;
        let sweeper = world.runner().await;
        append(&sweeper, 1).await.unwrap();
        let own = slots(&world).await;
        let abandoned = world.runner().await;
        append(&abandoned, 2).await.unwrap();
        let mut tr = world.db.begin().unwrap();
        tr.set(&key, value);
        tr.commit().await.unwrap();
        let clock = clock(&world);
        for _ in 0..=AGE.as_secs() / STEP.as_secs() {
            match sweeper.sweep(&clock).await {
                Err(Error::Corrupt { key: found, .. }) => assert_eq!(found, key),
                other => panic!("expected a corrupt record, found {other:?}"),
            }
            world.clock.advance(STEP);
        }
        // The sweeper's own ledger and the row are left.
        let left = slots(&world).await;
        assert_eq!(left.len(), own.len() + 1, "{left:?}");
        assert!(left.iter().any(|row| row.key() == key));
    }
}

#[tokio::test]
async fn an_operation_in_doubt_whose_ledger_was_swept_ends_unknown() {
    for (fate, item_count) in [(Fate::Lost, 0), (Fate::Applied, 1)] {
        let mut world = World::calm_and_timed().await;
        let sweeper = Runner::with_options(world.db.clone(), world.options());
        let moving = world.clock.clone();
        let env = world.env.clone();
        let clock = std::sync::Arc::new(clock(&world));
        world.between_attempts(move || {
            let sweeper = sweeper.clone();
            let moving = moving.clone();
            let clock = clock.clone();
            let end = env.now() + AGE + STEP;
            let env = env.clone();
            async move {
                while env.now() < end {
                    sweeper.sweep(&clock).await.unwrap();
                    moving.advance(STEP);
                }
                assert_eq!(sweeper.sweep(&clock).await.unwrap(), 0);
            }
        });
        let runner = world.runner().await;
        world.chaos.script([CommitFault::Unknown(fate)]);
        let answer = append(&runner, 1).await;
        assert!(
            matches!(answer, Err(Error::OutcomeUnknown { attempts: 1, .. })),
            "{answer:?}"
        );
        assert_eq!(log::stored_items(&world.db).await.len(), item_count);
        assert_eq!(slots(&world).await, []);
    }
}

#[tokio::test]
async fn a_ledger_that_was_swept_takes_a_new_id() {
    let mut world = World::calm_and_timed().await;
    world.sweep_between_attempts();
    let runner = world.runner().await;
    let swept = ids(&world).await;
    world.chaos.script([CommitFault::Unknown(Fate::Lost)]);
    append(&runner, 1).await.unwrap_err();
    append(&runner, 2).await.unwrap();
    assert_ne!(ids(&world).await, swept);
}

#[tokio::test]
async fn a_ledger_idle_for_long_takes_a_new_id() {
    let world = World::calm_and_timed().await;
    let runner = world.runner().await;
    append(&runner, 1).await.unwrap();
    world.clock.advance(AGE / 2);
    append(&runner, 2).await.unwrap();
    assert_eq!(ledger_count(&world).await, 1);
    world.clock.advance(AGE / 2 + Duration::from_secs(1));
    append(&runner, 3).await.unwrap();
    assert_eq!(ledger_count(&world).await, 2);
}

#[tokio::test]
async fn reading_does_not_keep_a_ledger_young() {
    let world = World::calm_and_timed().await;
    let runner = world.runner().await;
    for _ in 0..5 {
        world.clock.advance(AGE / 8);
        runner.run(|_| async { Ok::<_, Error>(()) }).await.unwrap();
    }
    assert_eq!(ledger_count(&world).await, 2);
}

#[tokio::test]
async fn a_sweep_that_lands_late_spares_what_came_back_to_life() {
    let world = World::calm_and_timed().await;
    let owner: Runner<TestDatabase> = world.runner().await;
    // An operation that begins before the sweep and commits long after it.
    let receipt = owner.receipt().await.unwrap();

    let failing = Chaos::new(world.db.clone(), world.env.clone(), Faults::default());
    let sweeper = Runner::with_options(failing.clone(), world.options());
    let clock = clock(&world);
    assert_eq!(sweep_for(&world, &sweeper, &clock, AGE - STEP).await, 0);
    let landing = Landing {
        attempts: 100,
        before: LandingPoint::ReadVersion,
    };
    failing.script([CommitFault::Silent(Fate::Late(landing))]);
    world.clock.advance(STEP);
    tokio::select! {
        biased;
        _ = sweeper.sweep(&clock) => panic!("the sweep's commit is never answered"),
        () = tokio::task::yield_now() => {}
    }
    assert_eq!(failing.tally().commits, 1);

    let mut tr = world.db.begin().unwrap();
    receipt.resolve(&tr).await.unwrap();
    receipt.stage(&tr).unwrap();
    tr.commit().await.unwrap();
    receipt.complete();
    failing.flush().await;
    assert_eq!(failing.tally().refused, 1);
    assert_eq!(slots(&world).await.len(), 1);
}

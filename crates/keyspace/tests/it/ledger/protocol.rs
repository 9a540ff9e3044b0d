//! Every fate of one commit, followed by every kind of attempt, with and without a sweep.

use conformance::chaos::{CommitFault, Fate, FaultTally, Faults, Landing, LandingPoint};
use conformance::stores::TestStore;
use keyspace::{Code, Commit, Error, Transaction, TransactionOption};

use crate::ledger::log::{self, Item};
use crate::ledger::saboteur::Plant;
use crate::ledger::world::{Failure, World, clear_ledgers};

conformance::on_every_store!(
    whatever_becomes_of_a_commit_its_operation_happens_exactly_once,
    a_missing_slot_ends_the_operation_without_another_run,
    the_answer_is_that_of_the_attempt_that_committed,
    a_refused_commit_leaves_no_doubt,
    a_first_record_that_lands_late_does_not_reset_its_slot,
);

/// The action of the attempts after the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FollowUp {
    Append,
    /// Appends, and then sets the option that makes the next write add no write conflict range.
    AppendAndDisarm,
    ChangeNothing,
    Fail,
}

/// When all ledgers are cleared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sweep {
    Never,
    BetweenAttempts,
    /// While the closure of the second attempt runs.
    DuringSecondAttempt,
}

#[derive(Debug, Clone, Copy)]
struct Scenario {
    /// The error that reports the commit.
    no_news: Code,
    /// The fate of the commit.
    fate: Fate,
    follow_up: FollowUp,
    sweep: Sweep,
}

/// The value of the closure: the attempt that it ran in, and whether it appended.
type Value = (u32, bool);

fn landings(attempts: std::ops::RangeInclusive<u32>) -> impl Iterator<Item = Landing> {
    attempts.flat_map(|attempts| {
        [LandingPoint::ReadVersion, LandingPoint::Commit].map(|before| Landing { attempts, before })
    })
}

fn fates() -> impl Iterator<Item = Fate> {
    [Fate::Applied, Fate::Lost]
        .into_iter()
        .chain(landings(0..=5).map(Fate::Late))
}

const CODES: [Code; 3] = [
    Code::COMMIT_UNKNOWN_RESULT,
    Code::CLUSTER_VERSION_CHANGED,
    Code::TRANSACTION_TIMED_OUT,
];

const FOLLOW_UPS: [FollowUp; 4] = [
    FollowUp::Append,
    FollowUp::AppendAndDisarm,
    FollowUp::ChangeNothing,
    FollowUp::Fail,
];

const SWEEPS: [Sweep; 3] = [
    Sweep::Never,
    Sweep::BetweenAttempts,
    Sweep::DuringSecondAttempt,
];

fn scenarios() -> impl Iterator<Item = Scenario> {
    CODES.into_iter().flat_map(|no_news| {
        fates().flat_map(move |fate| {
            FOLLOW_UPS.into_iter().flat_map(move |follow_up| {
                SWEEPS.map(|sweep| Scenario {
                    no_news,
                    fate,
                    follow_up,
                    sweep,
                })
            })
        })
    })
}

/// The outcome of a scenario.
struct Outcome {
    answer: Result<(Value, Commit), Failure>,
    log: Vec<Item>,
    tally: FaultTally,
}

/// Runs operation 1, whose first commit meets its fate, and then operation 2. Then lets all late commits
/// land.
async fn play(store: &TestStore, plant: Plant, scenario: Scenario) -> Outcome {
    let mut world = World::new(store, 0, Faults::default(), plant).await;
    world.saboteur.no_news = scenario.no_news;
    if scenario.sweep == Sweep::BetweenAttempts {
        world.sweep_between_attempts();
    }
    let runner = world.runner().await;
    world.chaos.script([CommitFault::Unknown(scenario.fate)]);
    let db = &world.db;
    let answer = runner
        .run_committed(|tr| async move {
            let attempt = tr.attempt();
            if attempt.number == 2 && scenario.sweep == Sweep::DuringSecondAttempt {
                clear_ledgers(db).await;
            }
            let follow_up = match attempt.number {
                1 => FollowUp::Append,
                _ => scenario.follow_up,
            };
            match follow_up {
                FollowUp::Fail => return Err(Failure::Refused),
                FollowUp::ChangeNothing => return Ok((attempt.number, false)),
                FollowUp::Append | FollowUp::AppendAndDisarm => {}
            }
            log::append(&tr, 1, attempt.number);
            if follow_up == FollowUp::AppendAndDisarm {
                tr.set_option(TransactionOption::NextWriteNoWriteConflictRange)?;
            }
            Ok((attempt.number, true))
        })
        .await;
    runner
        .run(|tr| async move {
            let attempt = tr.attempt();
            log::append(&tr, 2, attempt.number);
            Ok::<_, Error>(())
        })
        .await
        .unwrap();
    world.chaos.flush().await;
    Outcome {
        answer,
        log: log::stored_items(db).await,
        tally: world.chaos.tally(),
    }
}

/// Returns what is wrong with an outcome.
fn violation(scenario: Scenario, outcome: &Outcome) -> Option<String> {
    let own: Vec<&Item> = outcome
        .log
        .iter()
        .filter(|item| item.operation == 1)
        .collect();
    let right = match &outcome.answer {
        Ok(((attempt, true), commit)) => {
            own.len() == 1
                && own[0].attempt == *attempt
                && Some(own[0].versionstamp) == commit.versionstamp
                && own[0].versionstamp.commit_version() == commit.version
        }
        Ok(((_, false), _)) | Err(Failure::Refused) => own.is_empty(),
        Err(Failure::Store(Error::OutcomeUnknown { .. })) => {
            own.len() <= 1 && scenario.sweep != Sweep::Never
        }
        // This code ends an operation, unlike the other two, so its commit is refused for good.
        Err(Failure::Store(error)) => {
            error.code() == Some(Code::TRANSACTION_TIMED_OUT)
                && scenario.no_news == Code::TRANSACTION_TIMED_OUT
                && own.is_empty()
        }
    };
    let others = outcome.log.len() - own.len();
    (!right || others != 1)
        .then(|| format!("{scenario:?}: {:?} with {:?}", outcome.answer, outcome.log))
}

async fn violations(store: &TestStore, plant: Plant) -> Vec<String> {
    let mut violations = Vec::new();
    for scenario in scenarios() {
        let outcome = play(store, plant, scenario).await;
        violations.extend(violation(scenario, &outcome));
        let late = matches!(scenario.fate, Fate::Late(_));
        assert_eq!(
            outcome.tally.landed + outcome.tally.refused,
            usize::from(late)
        );
        assert_eq!(outcome.tally.commits, 1);
    }
    violations
}

async fn whatever_becomes_of_a_commit_its_operation_happens_exactly_once(store: TestStore) {
    assert_eq!(
        violations(&store, Plant::Nothing).await,
        Vec::<String>::new()
    );
}

#[tokio::test]
async fn each_planted_bug_shows_in_the_log() {
    let store = TestStore::memory();
    let every_kind = ["up: Append,", "up: ChangeNothing", "up: Fail", "timed_out"];
    for (plant, scenarios) in [
        (Plant::RerunOnMissingSlot, &["sweep: BetweenAttempts"][..]),
        (Plant::ConflictAfterWrite, &every_kind),
        (Plant::NoWriteConflict, &["up: AppendAndDisarm"]),
        (Plant::AnswerWithoutSlot, &every_kind[1..]),
        (Plant::NoReadVersion, &every_kind),
    ] {
        let violations = violations(&store, plant).await;
        for scenario in scenarios {
            let caught = violations.iter().any(|text| text.contains(scenario));
            assert!(
                caught,
                "{plant:?} is not caught by {scenario}: {violations:#?}"
            );
        }
    }
}

async fn a_missing_slot_ends_the_operation_without_another_run(store: TestStore) {
    for fate in [Fate::Applied, Fate::Lost] {
        let scenario = Scenario {
            no_news: Code::COMMIT_UNKNOWN_RESULT,
            fate,
            follow_up: FollowUp::Append,
            sweep: Sweep::BetweenAttempts,
        };
        let outcome = play(&store, Plant::Nothing, scenario).await;
        match outcome.answer {
            Err(Failure::Store(Error::OutcomeUnknown { attempts, cause })) => {
                assert_eq!(attempts, 1);
                assert!(cause.is_none());
            }
            other => panic!("expected an unknown outcome, found {other:?}"),
        }
        let runs = outcome
            .log
            .iter()
            .filter(|item| item.operation == 1)
            .count();
        assert_eq!(runs, usize::from(fate == Fate::Applied));
    }
}

async fn the_answer_is_that_of_the_attempt_that_committed(store: TestStore) {
    use FollowUp::{Append, ChangeNothing, Fail};
    let late = |attempts, before| Fate::Late(Landing { attempts, before });
    let seen = late(1, LandingPoint::ReadVersion);
    let unseen = late(1, LandingPoint::Commit);
    let fenced = late(3, LandingPoint::ReadVersion);
    for (fate, follow_up, expected) in [
        (Fate::Applied, Append, Some((1, true))),
        (Fate::Applied, ChangeNothing, Some((1, true))),
        (Fate::Applied, Fail, Some((1, true))),
        (Fate::Lost, Append, Some((2, true))),
        (Fate::Lost, ChangeNothing, Some((2, false))),
        (Fate::Lost, Fail, None),
        (seen, Append, Some((1, true))),
        (seen, ChangeNothing, Some((1, true))),
        (seen, Fail, Some((1, true))),
        (unseen, Append, Some((1, true))),
        (unseen, ChangeNothing, Some((1, true))),
        (unseen, Fail, Some((1, true))),
        (fenced, Append, Some((2, true))),
        (fenced, ChangeNothing, Some((2, false))),
        (fenced, Fail, None),
    ] {
        let scenario = Scenario {
            no_news: Code::COMMIT_UNKNOWN_RESULT,
            fate,
            follow_up,
            sweep: Sweep::Never,
        };
        let answer = play(&store, Plant::Nothing, scenario).await.answer;
        let value = answer.ok().map(|(value, _)| value);
        assert_eq!(value, expected, "{scenario:?}");
    }
}

async fn a_refused_commit_leaves_no_doubt(store: TestStore) {
    let mut world = World::calm(&store).await;
    world.sweep_between_attempts();
    let runner = world.runner().await;
    world
        .chaos
        .script([CommitFault::NotCommitted, CommitFault::TooOld]);
    let number = runner
        .run(|tr| async move {
            let attempt = tr.attempt();
            log::append(&tr, 1, attempt.number);
            Ok::<_, Error>(attempt.number)
        })
        .await;
    assert_eq!(number.unwrap(), 3);
}

/// The first record of the slot lands late, and operation 1 commits with an unknown outcome.
async fn play_late_first_record(
    store: &TestStore,
    plant: Plant,
    landing: Landing,
) -> Option<String> {
    let world = World::new(store, 0, Faults::default(), plant).await;
    let runner = keyspace::Runner::with_options(world.saboteur.clone(), world.options());
    world.chaos.script([
        CommitFault::Unknown(Fate::Late(landing)),
        CommitFault::None,
        CommitFault::Unknown(Fate::Applied),
    ]);
    let answer = runner
        .run(|tr| async move {
            let attempt = tr.attempt();
            log::append(&tr, 1, attempt.number);
            Ok::<_, Error>(attempt.number)
        })
        .await;
    world.chaos.flush().await;
    assert_eq!(world.chaos.tally().landed + world.chaos.tally().refused, 1);
    let log = log::stored_items(&world.db).await;
    let right = log.len() == 1 && answer.as_ref().ok() == Some(&log[0].attempt);
    (!right).then(|| format!("{landing:?}: {answer:?} with {log:?}"))
}

async fn violations_of_late_first_records(store: &TestStore, plant: Plant) -> Vec<String> {
    let mut violations = Vec::new();
    for landing in landings(0..=5) {
        violations.extend(play_late_first_record(store, plant, landing).await);
    }
    violations
}

async fn a_first_record_that_lands_late_does_not_reset_its_slot(store: TestStore) {
    let violations = violations_of_late_first_records(&store, Plant::Nothing).await;
    assert_eq!(violations, Vec::<String>::new());
}

#[tokio::test]
async fn a_first_record_written_without_a_serializable_read_shows_in_the_log() {
    let store = TestStore::memory();
    let violations = violations_of_late_first_records(&store, Plant::SnapshotSlot).await;
    assert_ne!(violations, Vec::<String>::new());
}

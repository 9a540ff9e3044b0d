//! Many tasks, drawn from a seed, on a store with all faults, checked item by item.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use conformance::chaos::Faults;
use conformance::scale;
use conformance::stores::TestStore;
use keyspace::env::ManualClock;
use keyspace::{Commit, Environment, Error, Isolation, Runner, Transaction};

use crate::ledger::log::{self, Item};
use crate::ledger::saboteur::Plant;
use crate::ledger::world::{Failure, TestDatabase, World, clear_ledgers};

const TASK_COUNT: u64 = 6;
const OPERATIONS_PER_TASK: u64 = 12;
const FAULT_PROBABILITY: f64 = 0.08;

/// The value of the closure: the attempt that it ran in, and whether it appended.
type Value = (u32, bool);

/// The end of an operation.
#[derive(Debug)]
enum End {
    Answered(Result<(Value, Commit), Failure>),
    Dropped,
}

/// The action of one attempt.
#[derive(Debug, Clone, Copy)]
enum Deed {
    Append,
    ReadAndAppend,
    ChangeNothing,
    Fail,
}

fn pick<T: Copy>(env: &Environment, choices: &[T]) -> T {
    choices[(env.random_unit() * choices.len() as f64) as usize]
}

async fn operate(runner: &Runner<TestDatabase>, env: &Environment, operation: u64) -> End {
    use Deed::{Append, ChangeNothing, Fail, ReadAndAppend};
    let first = pick(env, &[Append, Append, Append, ReadAndAppend, ChangeNothing]);
    let later = pick(env, &[first, first, ChangeNothing, Fail]);
    let patience = pick(env, &[None, None, None, Some(env.random_unit() * 40.0)]);
    let answer = runner.run_committed(|tr| async move {
        let attempt = tr.attempt();
        match if attempt.number == 1 { first } else { later } {
            Deed::Append => {}
            Deed::ReadAndAppend => {
                let old = tr.get(b"counter", Isolation::Serializable).await?;
                tr.set(b"counter", &[old.map_or(0, |old| old[0].wrapping_add(1))]);
            }
            Deed::ChangeNothing => {
                tr.get(b"counter", Isolation::Serializable).await?;
                return Ok((attempt.number, false));
            }
            Deed::Fail => return Err(Failure::Refused),
        }
        log::append(&tr, operation, attempt.number);
        Ok((attempt.number, true))
    });
    let Some(turns) = patience else {
        return End::Answered(answer.await);
    };
    let give_up = async {
        for _ in 0..turns as usize {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        biased;
        answer = answer => End::Answered(answer),
        () = give_up => End::Dropped,
    }
}

/// Returns what is wrong with an operation's items in the log.
fn violation(operation: u64, end: &End, items: &[Item], swept: bool) -> Option<String> {
    let right = match end {
        End::Answered(Ok(((attempt, true), commit))) => {
            items.len() == 1
                && items[0].attempt == *attempt
                && Some(items[0].versionstamp) == commit.versionstamp
        }
        End::Answered(Ok(((_, false), _)) | Err(Failure::Refused)) => items.is_empty(),
        End::Answered(Err(Failure::Store(Error::OutcomeUnknown { .. }))) => {
            items.len() <= 1 && swept
        }
        End::Answered(Err(Failure::Store(_))) => false,
        End::Dropped => items.len() <= 1,
    };
    (!right).then(|| format!("operation {operation} ended {end:?}, and the log has {items:?}"))
}

/// The numbers of one or several seeds.
#[derive(Debug, Default)]
struct Course {
    violations: Vec<String>,
    landed_count: usize,
    refused_count: usize,
    dropped_count: usize,
    unknown_count: usize,
}

impl Course {
    #[track_caller]
    fn assert_right(&self, seed: u64) {
        let violations = &self.violations;
        assert!(
            violations.is_empty(),
            "seed {seed}: LEDGER_SEED={seed} cargo test -p fdbq-keyspace --test it ledger random\n{violations:#?}"
        );
    }
}

/// Plays one seed in memory. With `swept`, another task clears all ledgers again and again, however young.
async fn play(seed: u64, plant: Plant, swept: bool) -> Course {
    let clock = ManualClock::moved_by_sleepers();
    let world = World::timed(clock, seed, Faults::all(FAULT_PROBABILITY), plant).await;
    play_in(world, seed, swept).await
}

async fn play_in(world: World, seed: u64, swept: bool) -> Course {
    let runner = Runner::with_options(world.saboteur.clone(), world.options());
    let ends = Arc::new(Mutex::new(HashMap::new()));
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..TASK_COUNT {
        let runner = runner.clone();
        let ends = ends.clone();
        let env = Environment::seeded(seed * TASK_COUNT + task, Arc::new(ManualClock::new()));
        tasks.spawn(async move {
            for number in 0..OPERATIONS_PER_TASK {
                let operation = task * OPERATIONS_PER_TASK + number;
                let end = operate(&runner, &env, operation).await;
                ends.lock().unwrap().insert(operation, end);
            }
        });
    }
    if swept {
        let db = world.db.clone();
        tasks.spawn(async move {
            for _ in 0..OPERATIONS_PER_TASK {
                for _ in 0..20 {
                    tokio::task::yield_now().await;
                }
                clear_ledgers(&db).await;
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
    world.chaos.flush().await;
    let history = world.db.check().await;
    history.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    let ends = Arc::into_inner(ends).unwrap().into_inner().unwrap();
    judge(&world, ends, swept).await
}

/// Compares the end of each operation with its items in the log.
async fn judge(world: &World, ends: HashMap<u64, End>, swept: bool) -> Course {
    let mut log: HashMap<u64, Vec<Item>> = HashMap::new();
    for item in log::stored_items(&world.db).await {
        log.entry(item.operation).or_default().push(item);
    }
    assert_eq!(ends.len() as u64, TASK_COUNT * OPERATIONS_PER_TASK);
    let tally = world.chaos.tally();
    let mut course = Course {
        landed_count: tally.landed,
        refused_count: tally.refused,
        ..Course::default()
    };
    for (operation, end) in &ends {
        let items = log.get(operation).map_or(&[][..], Vec::as_slice);
        course
            .violations
            .extend(violation(*operation, end, items, swept));
        match end {
            End::Dropped => course.dropped_count += 1,
            End::Answered(Err(Failure::Store(_))) => course.unknown_count += 1,
            End::Answered(_) => {}
        }
    }
    course
}

/// Plays all seeds, and checks that the events that make a run hard have happened.
async fn play_all(swept: bool) {
    let mut total = Course::default();
    for seed in seeds() {
        let course = play(seed, Plant::Nothing, swept).await;
        course.assert_right(seed);
        total.landed_count += course.landed_count;
        total.refused_count += course.refused_count;
        total.dropped_count += course.dropped_count;
        total.unknown_count += course.unknown_count;
    }
    if seeds().count() > 1 {
        assert!(total.landed_count > 0, "{total:?}");
        assert!(total.refused_count > 0, "{total:?}");
        assert!(total.dropped_count > 0, "{total:?}");
        assert_eq!(total.unknown_count > 0, swept, "{total:?}");
    }
}

/// Returns the seeds to play: the requested one, or a number of seeds that depends on the length of the
/// run.
fn seeds() -> std::ops::Range<u64> {
    match std::env::var("LEDGER_SEED") {
        Ok(seed) => {
            let seed = seed.parse().unwrap();
            seed..seed + 1
        }
        Err(_) => 0..scale(60, 5_000) as u64,
    }
}

#[tokio::test]
async fn every_operation_of_a_random_run_does_what_its_answer_says() {
    play_all(false).await;
}

#[tokio::test]
async fn every_operation_of_a_random_run_with_sweeps_does_what_its_answer_says() {
    play_all(true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_operation_of_a_random_run_on_threads_does_what_its_answer_says() {
    play_all(false).await;
}

conformance::on_every_store!(
    every_operation_of_a_random_run_on_a_store_with_its_own_time_does_what_its_answer_says,
);

async fn every_operation_of_a_random_run_on_a_store_with_its_own_time_does_what_its_answer_says(
    store: TestStore,
) {
    for seed in seeds().take(scale(5, 100)) {
        for swept in [false, true] {
            let faults = Faults::all(FAULT_PROBABILITY);
            let world = World::new(&store, seed, faults, Plant::Nothing).await;
            play_in(world, seed, swept).await.assert_right(seed);
        }
    }
}

#[tokio::test]
async fn each_planted_bug_shows_in_a_random_run() {
    for (plant, swept) in [
        (Plant::RerunOnMissingSlot, true),
        (Plant::ConflictAfterWrite, false),
        (Plant::AnswerWithoutSlot, false),
        (Plant::NoReadVersion, false),
    ] {
        let mut caught = false;
        for seed in 0..200 {
            caught = !play(seed, plant, swept).await.violations.is_empty();
            if caught {
                break;
            }
        }
        assert!(caught, "{plant:?} was not caught");
    }
}

//! Random programs of operations on a few items. Each program runs against a store and against the [model] in
//! lockstep: after every step, both must agree on the result of the operation, the status of every item, the counters,
//! the dedupe ids and the queue of deaths.
//!
//! Each step is one transaction or call, without any other at the same time. The pairs of steps test concurrency.

mod batches;
mod changes;
mod compare;
mod deaths;
mod expiry;
mod kinds;
mod leave;
mod model;
mod program;
mod turns;
mod world;

use std::collections::BTreeSet;

use conformance::scale;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use self::leave::Bug;
use self::model::{At, Model, Rules, Said};
use self::program::random_op;
use self::world::LifeWorld;

/// How many sessions take part.
const SESSIONS: usize = 2;

/// How many dedupe ids there are.
const DEDUPE_IDS: u8 = 2;

/// How many batches there are. They stay open.
const BATCHES: usize = 2;

/// The batch in which dead letters stay.
const BATCH_OF_STAYING: usize = 1;

/// The names of steps of handlers.
const STEP_NAMES: [&str; 2] = ["charge", "ship"];

/// How many steps a program has.
const STEPS: usize = 80;

/// The time at which a program begins.
const START: u64 = 1_000_000;

fn rules(rng: &mut StdRng) -> Rules {
    Rules {
        lease: 30,
        max_attempts: rng.random_range(1..4),
        max_deaths: rng.random_range(1..5),
        max_deliveries: rng.random_range(3..10),
        retention: [0, 40][rng.random_range(0..2)],
        keep_done: [0, 60][rng.random_range(0..2)],
    }
}

/// Runs the program of a seed, with a planted bug or without one. Records the results of its steps in `met`.
async fn run(seed: u64, bug: Option<Bug>, met: &mut BTreeSet<String>) {
    let rng = &mut StdRng::seed_from_u64(seed);
    let rules = rules(rng);
    let mut model = Model::new(rules, START);
    let mut world = LifeWorld::new(seed, rules).await;
    world.bug = bug;
    println!("SEED={seed} {rules:?}");
    for step in 0..STEPS {
        let op = random_op(rng, &model);
        println!("{step}: {op:?}");
        let said = world.step(&op).await.unwrap();
        let before = model.items.clone();
        let tallies_before = model.batches;
        let spent_before = model.spent;
        let deaths_before = model.deaths.len();
        let effects_before = model.effects();
        assert_eq!(said, model.step(&op));
        for (batch, tallies) in model.batches.0.iter().enumerate() {
            for (tally, count) in tallies.iter().enumerate() {
                if *count > tallies_before.0[batch][tally] {
                    met.insert(format!("{}: {tally} of batch {batch}", op.name()));
                }
            }
        }
        world.compare(&mut model).await.unwrap();
        met.insert(format!("{}: {said:?}", op.name()));
        let (earlier, new) = model.deaths.split_at(deaths_before);
        for death in new {
            met.insert(format!("{}: dead: {}", op.name(), death.reason));
            if earlier.iter().any(|earlier| earlier.item == death.item) {
                met.insert(format!("{}: dead again", op.name()));
            }
        }
        if matches!(said, Said::Left(Some(_))) && model.effects() == effects_before {
            met.insert(format!("{}: again", op.name()));
        }
        for (before, after) in before.iter().zip(&model.items) {
            if before.reserve != after.reserve {
                let change = format!("{:?} to {:?}", before.reserve, after.reserve);
                met.insert(format!("{}: {change}", op.name()));
            }
            if before.spent && !after.spent {
                let is_spent = model.spent > spent_before;
                let end = if is_spent { "is spent" } else { "comes back" };
                met.insert(format!("{}: a token {end}", op.name()));
            }
            let had_left = (before.checkpoint, &before.steps);
            if had_left != (0, &Vec::new()) {
                let stays = had_left == (after.checkpoint, &after.steps);
                let left = if stays { "left" } else { "none left" };
                met.insert(format!("{}: {left}", op.name()));
            }
            if before.uncounted < after.uncounted && after.place == At::Queued {
                met.insert(format!("{}: unused", op.name()));
            }
        }
    }
    world.check().await;
}

/// Results and changes that the programs must have produced, so that the test covers them.
const MET: [&str; 67] = [
    "Enqueue: 0 of batch 0",
    "Take: 1 of batch 0",
    "Collect: 1 of batch 1",
    "Resolve: 1 of batch 1",
    "Acknowledge: 1 of batch 0",
    "Resolve: 2 of batch 0",
    "Resolve: 2 of batch 1",
    "Cancel: 3 of batch 0",
    "Purge: 3 of batch 1",
    "Enqueue: Staged",
    "Enqueue: Replaced(0)",
    "Enqueue: Repeated",
    "Enqueue: OfOtherBatch",
    "Resolve: GivenBack(Accepted)",
    "Resolve: GivenBack(Cancelled)",
    "Resolve: GivenBack(Lost)",
    "Leave: Left(None)",
    "Leave: again",
    "Leave: Refused",
    "Redrive: left",
    "Replace: none left",
    "Acknowledge: Acknowledged",
    "Acknowledge: Refused",
    "Cancel: Cancelled(Removed)",
    "Cancel: Cancelled(Requested)",
    "Cancel: Cancelled(NotThere)",
    "Expedite: Was(true)",
    "Expedite: Was(false)",
    "Replace: Changed(Replaced)",
    "Replace: Changed(IsHeld)",
    "Replace: Changed(NotThere)",
    "SetPriority: Was(true)",
    "SetPriority: Was(false)",
    "Redrive: Was(true)",
    "Redrive: Was(false)",
    "Purge: Was(true)",
    "Purge: Was(false)",
    "Clear: Removed(2)",
    "Release: Was(true)",
    "Release: Was(false)",
    "Die: Nothing",
    "End: Nothing",
    "Sweep: Nothing",
    "Take: Granted([])",
    "Collect: Granted([])",
    "Take: Out to In",
    "Take: Barred to Out",
    "Collect: Out to In",
    "Collect: Barred to Out",
    "Resolve: In to Out",
    "End: In to Out",
    "Die: In to Barred",
    "Resolve: unused",
    "Die: unused",
    "End: unused",
    "Resolve: a token comes back",
    "Resolve: a token is spent",
    "Die: a token comes back",
    "Die: a token is spent",
    "Resolve: dead: it was given back",
    "Resolve: dead: not now",
    "Resolve: dead: no number",
    "Resolve: dead: no good",
    "Resolve: dead: it was granted too often",
    "Resolve: dead again",
    "Die: dead: the session that held it has died",
    "Die: dead again",
];

#[tokio::test]
async fn an_item_lives_by_the_book() {
    let mut met = BTreeSet::new();
    if let Ok(seed) = std::env::var("SEED") {
        return run(seed.parse().expect("SEED is a number"), None, &mut met).await;
    }
    for seed in 0..scale(220, 20_000) as u64 {
        run(seed, None, &mut met).await;
    }
    for said in MET {
        assert!(met.contains(said), "{said}");
    }
    let of_three =
        |said: &String| said.starts_with("Take: Granted") && said.matches('(').count() == 4;
    assert!(met.iter().any(of_three));
    let popped = |said: &String| said.ends_with("true)])");
    for name in ["Take", "Collect"] {
        assert!(met.iter().filter(|said| said.starts_with(name)).any(popped));
    }
}

#[tokio::test]
async fn each_planted_bug_is_found() {
    for bug in Bug::ALL {
        let mut seeds = 0..100;
        let is_found = async |seed| {
            let played = tokio::spawn(async move {
                run(seed, Some(bug), &mut BTreeSet::new()).await;
            });
            played.await.is_err()
        };
        loop {
            let seed = seeds.next();
            let seed = seed.unwrap_or_else(|| panic!("{bug:?} was not found"));
            if is_found(seed).await {
                break;
            }
        }
    }
}

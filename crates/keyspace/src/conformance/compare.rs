//! Random programs on a store and on the model, and the smallest one on which they differ.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::generate;
use super::model::Model;
use super::program::{Answers, Op, Program};
use super::replay::{Difference, Replay, differences};
use super::trace::Trace;
use crate::env::ManualClock;
use crate::{Database, Environment, Result};

/// A program on which a store and the model differ, as small as it could be made.
#[derive(Debug)]
pub struct Counterexample {
    /// The seed of the program that it was made from.
    pub seed: u64,
    /// The program, with the model's answers.
    pub trace: Trace,
    /// Where the store differs.
    pub differences: Vec<Difference>,
}

impl fmt::Display for Counterexample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seed = self.seed;
        writeln!(
            f,
            "the store and the model differ on the program of seed {seed}"
        )?;
        for difference in &self.differences {
            writeln!(f, "{difference}")?;
        }
        writeln!(
            f,
            "smallest program found, as a trace with the model's answers:"
        )?;
        writeln!(f, "{}", self.trace.to_line())?;
        write!(
            f,
            "to repeat it: SEED={seed} cargo test -p keyspace --test model"
        )
    }
}

/// Runs the program of a seed on a store and on the model.
///
/// # Errors
/// What keeps the store from running programs at all.
pub async fn check<D: Database>(store: &Replay<D>, seed: u64) -> Result<Option<Counterexample>> {
    let program = generate::program(seed);
    if contradiction(store, seed, &program).await?.is_none() {
        return Ok(None);
    }
    let smallest = shrink(store, seed, program).await?;
    contradiction(store, seed, &smallest).await
}

/// Compares a store with the model on one program.
async fn contradiction<D: Database>(
    store: &Replay<D>,
    seed: u64,
    program: &Program,
) -> Result<Option<Counterexample>> {
    let answers = modeled(program, Duration::ZERO).await?;
    let trace = Trace {
        id: format!("seed-{seed}"),
        program: program.clone(),
        answers,
    };
    let differences = differences(&trace, &store.run(program).await?);
    if differences.is_empty() {
        return Ok(None);
    }
    // A program whose answers depend on the versions themselves has no one answer.
    for time in VERSION_TIMES {
        if modeled(program, time).await? != trace.answers {
            return Ok(None);
        }
    }
    Ok(Some(Counterexample {
        seed,
        trace,
        differences,
    }))
}

/// Times whose versions have nothing in common: each bit is set in some and not in others.
const VERSION_TIMES: [Duration; 4] = [
    Duration::from_micros(0x55_5555_5555),
    Duration::from_micros(0xaa_aaaa_aaaa),
    Duration::from_micros(0x0f_f00f_0ff0),
    Duration::from_micros(0xf0_0ff0_f00f),
];

/// Runs a program on a model of its own, whose clock stands still at `time`.
async fn modeled(program: &Program, time: Duration) -> Result<Answers> {
    let clock = ManualClock::new();
    clock.advance(time);
    let env = Environment::seeded(0, Arc::new(clock));
    Replay::new(Model::new(env.clone()), env).run(program).await
}

/// Makes a program smaller as long as the store and the model still differ on it.
async fn shrink<D: Database>(
    store: &Replay<D>,
    seed: u64,
    mut program: Program,
) -> Result<Program> {
    'smaller: loop {
        for candidate in smaller(&program) {
            if contradiction(store, seed, &candidate).await?.is_some() {
                program = candidate;
                continue 'smaller;
            }
        }
        return Ok(program);
    }
}

/// Every program that is one cut smaller or one operation simpler, the largest cuts first.
fn smaller(program: &Program) -> Vec<Program> {
    let mut candidates = Vec::new();
    let mut transactions: Vec<_> = program.steps.iter().map(|step| step.transaction).collect();
    transactions.sort_unstable();
    transactions.dedup();
    for transaction in transactions {
        let mut candidate = program.clone();
        candidate
            .steps
            .retain(|step| step.transaction != transaction);
        candidates.push(candidate);
    }
    let mut length = program.steps.len() / 2;
    while length > 0 {
        for at in (0..program.steps.len()).step_by(length) {
            let mut candidate = program.clone();
            let end = (at + length).min(program.steps.len());
            candidate.steps.drain(at..end);
            candidates.push(candidate);
        }
        length /= 2;
    }
    for at in 0..program.init.len() {
        let mut candidate = program.clone();
        candidate.init.remove(at);
        candidates.push(candidate);
    }
    for (at, step) in program.steps.iter().enumerate() {
        for op in simpler(&step.op) {
            let mut candidate = program.clone();
            candidate.steps[at].op = op;
            candidates.push(candidate);
        }
    }
    candidates
}

/// The operations that are one thought simpler.
fn simpler(op: &Op) -> Vec<Op> {
    match op {
        Op::GetRange { query, isolation } => {
            let mut queries = vec![query.clone(); 4];
            queries[0].limit = 0;
            queries[1].reverse = false;
            queries[2].begin.offset = 1;
            queries[3].end.offset = 1;
            let simpler = queries.into_iter().filter(|simple| simple != query);
            let isolation = *isolation;
            simpler
                .map(|query| Op::GetRange { query, isolation })
                .collect()
        }
        Op::Atomic { key, param, .. } => vec![Op::Set {
            key: key.clone(),
            value: param.clone(),
        }],
        _ => Vec::new(),
    }
}

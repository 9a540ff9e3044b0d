//! Random programs on two stores side by side, and the smallest program on which they differ.
//!
//! One of the two is the [`Reference`]: another store, or the model.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use keyspace::env::ManualClock;
use keyspace::{Database, Environment, Result};

use super::generate;
use super::model::Model;
use super::program::{Answers, Op, Program};
use super::replay::{Difference, Replay, differences};
use super::trace::Trace;

/// A store or model that a store is compared with.
pub trait Reference: Sync {
    /// Runs a program.
    ///
    /// # Errors
    /// Errors that prevent the reference from running programs at all.
    fn answers(&self, program: &Program) -> impl Future<Output = Result<Answers>> + Send;
}

/// The reference model, a new one for each program.
#[derive(Debug, Clone, Copy, Default)]
pub struct Modeled;

impl Reference for Modeled {
    async fn answers(&self, program: &Program) -> Result<Answers> {
        modeled(program, Duration::ZERO, &Bytes::new()).await
    }
}

impl<D: Database> Reference for Replay<D> {
    async fn answers(&self, program: &Program) -> Result<Answers> {
        self.run(program).await
    }
}

/// A program on which a store and its reference differ, reduced as far as possible.
#[derive(Debug)]
pub struct Counterexample {
    /// The seed of the original program.
    pub seed: u64,
    /// The program, with the reference's answers.
    pub trace: Trace,
    /// The differences of the store.
    pub differences: Vec<Difference>,
}

impl fmt::Display for Counterexample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seed = self.seed;
        writeln!(f, "the stores differ on the program of seed {seed}")?;
        for difference in &self.differences {
            writeln!(f, "{difference}")?;
        }
        writeln!(
            f,
            "smallest program found, as a trace with the expected answers:"
        )?;
        write!(f, "{}", self.trace.to_line())
    }
}

/// Runs the program of a seed on a store and on its reference.
///
/// # Errors
/// Errors that prevent either of them from running programs at all.
pub async fn check<D: Database>(
    reference: &impl Reference,
    store: &Replay<D>,
    seed: u64,
) -> Result<Option<Counterexample>> {
    let program = generate::program(seed);
    if contradiction(reference, store, seed, &program)
        .await?
        .is_none()
    {
        return Ok(None);
    }
    let smallest = shrink(reference, store, seed, program).await?;
    contradiction(reference, store, seed, &smallest).await
}

/// Compares a store with its reference on one program.
async fn contradiction<D: Database>(
    reference: &impl Reference,
    store: &Replay<D>,
    seed: u64,
    program: &Program,
) -> Result<Option<Counterexample>> {
    let trace = Trace {
        id: format!("seed-{seed}"),
        program: program.clone(),
        answers: reference.answers(program).await?,
    };
    let differences = differences(&trace, &store.run(program).await?);
    if differences.is_empty() || depends_on_versions(program, store.prefix()).await? {
        return Ok(None);
    }
    Ok(Some(Counterexample {
        seed,
        trace,
        differences,
    }))
}

/// Times whose versions have no bits in common: each bit is set in some of them and not in others.
const VERSION_TIMES: [Duration; 5] = [
    Duration::ZERO,
    Duration::from_micros(0x55_5555_5555),
    Duration::from_micros(0xaa_aaaa_aaaa),
    Duration::from_micros(0x0f_f00f_0ff0),
    Duration::from_micros(0xf0_0ff0_f00f),
];

/// Returns whether a program has no single answer, because its answers depend on the version numbers.
async fn depends_on_versions(program: &Program, prefix: &Bytes) -> Result<bool> {
    let mut answers = None;
    for time in VERSION_TIMES {
        let now = modeled(program, time, prefix).await?;
        if *answers.get_or_insert_with(|| now.clone()) != now {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Runs a program on a new model whose clock stands still at `time`.
async fn modeled(program: &Program, time: Duration, prefix: &Bytes) -> Result<Answers> {
    let clock = ManualClock::new();
    clock.advance(time);
    let env = Environment::seeded(0, Arc::new(clock));
    let model = Replay::new(Model::new(env.clone()), env).under(prefix.clone());
    model.run(program).await
}

/// Reduces a program while the store and its reference still differ on it.
async fn shrink<D: Database>(
    reference: &impl Reference,
    store: &Replay<D>,
    seed: u64,
    mut program: Program,
) -> Result<Program> {
    'smaller: loop {
        for candidate in smaller(&program) {
            let found = contradiction(reference, store, seed, &candidate).await?;
            if found.is_some() {
                program = candidate;
                continue 'smaller;
            }
        }
        return Ok(program);
    }
}

/// Returns every program that is smaller by one cut or simpler in one operation, the largest cuts first.
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

/// Returns the operations that are simpler by one step.
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

//! The conflict oracle: a transaction must commit exactly if its reads have not changed.
//!
//! A transaction reads. Another one changes a key and commits. Then the first one commits. If it is
//! accepted, the same read must give the same answer after the change; otherwise the store missed a
//! conflict. If it is refused, the answer must differ; otherwise the conflict range was too wide.
//!
//! # Exceptions
//!
//! FoundationDB's conflict ranges are wider than the answer if a selector has an offset. Such a selector
//! conflicts with all keys that it counts, even if only their values change, and with everything up to the
//! end of the keyspace if it runs off that end. In these cases a refusal without a change is correct.

use std::fmt;

use bytes::Bytes;
use keyspace::limits::END_OF_KEYSPACE;
use keyspace::{Code, ConflictKind, Database, Isolation, Result, key_after};
use rand::Rng;

use super::generate::Generator;
use super::program::{Answers, END, Op, Outcome, Program, Step, Text};
use super::replay::Replay;
use super::trace::Trace;

/// The transaction that reads and is checked.
const READER: usize = 0;
/// The transaction that changes a key.
const CHANGER: usize = 1;
/// The transaction that repeats the reader's operations after the change.
const WITNESS: usize = 2;

/// A wrong decision on a commit.
#[derive(Debug)]
pub struct Misjudged {
    /// The seed.
    pub seed: u64,
    /// What is wrong.
    pub fault: Fault,
    /// The operations and their answers.
    pub trace: Trace,
}

/// The error in a decision on a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// A read has changed, but the reader was accepted.
    Missed,
    /// No read has changed, but the reader was refused.
    TooWide,
}

impl fmt::Display for Misjudged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seed = self.seed;
        match self.fault {
            Fault::Missed => writeln!(f, "a conflict was missed on seed {seed}")?,
            Fault::TooWide => writeln!(f, "a conflict range was too wide on seed {seed}")?,
        }
        writeln!(f, "{}", self.trace.to_line())?;
        write!(
            f,
            "to repeat it: SEED={seed} cargo test -p fdbq-keyspace --test it oracle"
        )
    }
}

/// The numbers of a check, so that a run can make sure that it tested something.
#[derive(Debug, Default)]
pub struct Tally {
    /// Readers that were accepted.
    pub committed: usize,
    /// Readers that were refused because a read had changed.
    pub refused: usize,
}

/// Checks how a store decides on the reader of a seed.
///
/// # Errors
/// Errors that prevent the store from running programs at all.
pub async fn check<D: Database>(
    store: &Replay<D>,
    seed: u64,
    tally: &mut Tally,
) -> Result<Option<Misjudged>> {
    let scene = Scene::new(seed);
    let answers = store.run(&scene.program()).await?;
    let fault = scene.judge(&answers);
    let refused = answers.outcomes.last() == Some(&Outcome::Failed(Code::NOT_COMMITTED));
    if refused {
        tally.refused += 1;
    } else {
        tally.committed += 1;
    }
    Ok(fault.map(|fault| Misjudged {
        seed,
        fault,
        trace: Trace {
            id: format!("oracle-{seed}"),
            program: scene.program(),
            answers,
        },
    }))
}

/// The operations of the three transactions.
struct Scene {
    init: Vec<(Bytes, Bytes)>,
    /// The operations that the reader stages before it reads.
    staged: Vec<Op>,
    read: Op,
    change: Op,
}

impl Scene {
    fn new(seed: u64) -> Self {
        let mut generator = Generator::new(seed);
        let init = generator.init();
        let count = generator.rng.random_range(0..=3);
        let staged = (0..count).map(|_| own_write(&mut generator)).collect();
        let read = read(&mut generator);
        let key = generator.key();
        let exists = init.iter().any(|(stored, _)| *stored == key);
        let change = if exists && generator.rng.random_bool(0.5) {
            Op::Clear { key }
        } else {
            let value = Bytes::from_static(b"no other value is like this");
            Op::Set { key, value }
        };
        Self {
            init,
            staged,
            read,
            change,
        }
    }

    fn program(&self) -> Program {
        let mut steps = Vec::new();
        let mut run = |transaction, op: &Op| {
            let op = op.clone();
            steps.push(Step { transaction, op });
        };
        for op in self.staged.iter().chain([&self.read]) {
            run(READER, op);
        }
        run(CHANGER, &self.change);
        run(CHANGER, &Op::Commit);
        for op in self.staged.iter().chain([&self.read]) {
            run(WITNESS, op);
        }
        // A conflict range outside makes the reader a writer without affecting its read.
        run(
            READER,
            &Op::AddConflict {
                kind: ConflictKind::Write,
                begin: Bytes::from_static(END),
                end: key_after(END).into(),
            },
        );
        run(READER, &Op::Commit);
        let init = self.init.clone();
        Program { init, steps }
    }

    fn judge(&self, answers: &Answers) -> Option<Fault> {
        let before = &answers.outcomes[self.staged.len()];
        let after = &answers.outcomes[2 * self.staged.len() + 3];
        match answers.outcomes.last() {
            Some(Outcome::Done) if before != after => Some(Fault::Missed),
            Some(Outcome::Failed(_)) if before == after && self.is_exact(before) => {
                Some(Fault::TooWide)
            }
            _ => None,
        }
    }

    /// Whether the conflict range of the read is exactly its answer.
    fn is_exact(&self, answer: &Outcome) -> bool {
        match &self.read {
            Op::GetRange { query, .. } => query.begin.offset == 1 && query.end.offset == 1,
            Op::GetKey { .. } => {
                let ends = [b"", END_OF_KEYSPACE].map(|end| Outcome::Key(Text::new(end, &[])));
                !ends.contains(answer) && self.changes_keys()
            }
            _ => true,
        }
    }

    /// Whether the change adds or removes a key, and does not just change a value.
    fn changes_keys(&self) -> bool {
        match &self.change {
            Op::Set { key, .. } => self.init.iter().all(|(stored, _)| stored != key),
            _ => true,
        }
    }
}

fn own_write(generator: &mut Generator) -> Op {
    match generator.rng.random_range(0..3) {
        0 => Op::Set {
            key: generator.key(),
            value: generator.value(),
        },
        1 => Op::Clear {
            key: generator.key(),
        },
        _ => {
            let one = generator.key();
            let other = generator.key();
            Op::ClearRange {
                begin: one.clone().min(other.clone()),
                end: one.max(other),
            }
        }
    }
}

fn read(generator: &mut Generator) -> Op {
    let isolation = Isolation::Serializable;
    match generator.rng.random_range(0..4) {
        0 => Op::Get {
            key: generator.key(),
            isolation,
        },
        1 => Op::GetKey {
            selector: generator.selector(),
            isolation,
        },
        _ => Op::GetRange {
            query: generator.query(),
            isolation,
        },
    }
}

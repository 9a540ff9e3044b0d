//! Runs programs on a store and compares its answers.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::num::NonZero;
use std::time::Duration;

use bytes::Bytes;
use futures::future::{self, BoxFuture, Either, FutureExt, Shared, TryFutureExt};
use keyspace::{
    Code, Commit, Database, Environment, Error, Isolation, KeyValue, MutationOp, OwnedTransaction,
    RangeQuery, Result, StreamingMode, Transaction, Versionstamp, read_all,
};

use super::program::{Answers, BEGIN, END, Op, Outcome, Program, Text, prefixed};
use super::trace::{self, Trace};

/// Runs programs on a store, one after another.
///
/// A program owns the store while it runs. The range `t/`..`t0` is cleared before it, and selectors may run
/// off its rows and find any other keys of the store. Give it a store of its own, or a place of its own
/// [under a prefix](Self::under).
#[derive(Debug, Clone)]
pub struct Replay<D> {
    db: D,
    prefix: Bytes,
    env: Environment,
    watch_limit: Duration,
    overlaps: bool,
}

/// An answer that differs from the expected one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The program's name.
    pub program: String,
    /// The number of the step, from 0, and the step as traces write it. `None` for the rows at the end.
    pub step: Option<(usize, String)>,
    /// The answer in the trace.
    pub expected: String,
    /// The answer of the store.
    pub got: String,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.step {
            Some((number, step)) => write!(f, "{} step {number}: {step}", self.program)?,
            None => write!(f, "{} rows at the end", self.program)?,
        }
        write!(f, "\n  expected {}\n  got      {}", self.expected, self.got)
    }
}

impl<D: Database> Replay<D> {
    /// Returns a replay that runs programs on `db` and waits by the clock of `env`.
    pub fn new(db: D, env: Environment) -> Self {
        Self {
            db,
            prefix: Bytes::new(),
            env,
            watch_limit: Duration::MAX,
            overlaps: false,
        }
    }

    /// Limits the wait for a watch, whatever the program says.
    ///
    /// A store in this process fires its watches before it acknowledges the commit that changes the key. A
    /// wait of a few milliseconds is therefore enough, while a cluster needs seconds.
    #[must_use]
    pub fn watch_limit(mut self, watch_limit: Duration) -> Self {
        self.watch_limit = watch_limit;
        self
    }

    /// Leaves reads under way while the program goes on, as `try_join!` does. They are awaited before the next step of
    /// their transaction that neither reads nor writes, but after a commit. Range reads are a single batch.
    /// Versionstamped operations are left out: what is known when a read begins decides whether it reaches an
    /// unreadable key.
    #[must_use]
    pub fn overlapping(mut self) -> Self {
        self.overlaps = true;
        self
    }

    /// Runs programs with a prefix before their keys, so that many can run on one store at the same time.
    ///
    /// Eight rows before and after a program's own rows, also under the prefix, keep its selectors away
    /// from the rows of others. A program that runs further off its rows has no reliable answer here. Keys
    /// in answers do not include the prefix.
    #[must_use]
    pub fn under(mut self, prefix: impl Into<Bytes>) -> Self {
        self.prefix = prefix.into();
        self
    }

    pub(super) fn prefix(&self) -> &Bytes {
        &self.prefix
    }

    /// Runs a trace's program and returns the answers that differ.
    ///
    /// # Errors
    /// Errors that prevent the store from running programs at all.
    pub async fn check(&self, trace: &Trace) -> Result<Vec<Difference>> {
        let got = self.run(&trace.program).await?;
        Ok(differences(trace, &got))
    }

    /// Runs a program.
    ///
    /// # Errors
    /// Errors that prevent the store from running programs at all: an error without a FoundationDB code, or
    /// a failure before the first step or after the last one.
    pub async fn run(&self, program: &Program) -> Result<Answers> {
        let program = &program.under(&self.prefix);
        self.load(&program.init, &self.guards()).await?;
        let mut run = Run {
            replay: self,
            sessions: BTreeMap::new(),
            watches: BTreeMap::new(),
            stamps: Vec::new(),
            under_way: Vec::new(),
            outcomes: vec![Outcome::Done; program.steps.len()],
        };
        for (number, step) in program.steps.iter().enumerate() {
            if !step.op.reads_or_writes() && step.op != Op::Commit {
                run.settle(Some(step.transaction)).await?;
            }
            let outcome = run.step(number, step.transaction, &step.op).await;
            run.outcomes[number] = outcome_of(outcome)?;
            if step.op == Op::Commit {
                run.settle(Some(step.transaction)).await?;
            }
        }
        run.settle(None).await?;
        let tr = self.db.begin()?;
        let [begin, end] = self.bounds();
        let rows = read_all(&tr, RangeQuery::keys(begin, end), Isolation::Snapshot).await?;
        let last = run.rows(rows);
        let outcomes = run.outcomes;
        Ok(Answers { outcomes, last })
    }

    /// Clears the rows of programs, under the prefix if there is one.
    ///
    /// # Errors
    /// The errors of a commit.
    pub async fn clear(&self) -> Result<()> {
        self.load(&[], &[]).await
    }

    async fn load(&self, rows: &[(Bytes, Bytes)], guards: &[Bytes]) -> Result<()> {
        let mut tr = self.db.begin()?;
        loop {
            let [begin, end] = self.bounds();
            tr.clear_range(&begin, &end);
            for guard in self.guards() {
                tr.clear(&guard);
            }
            for guard in guards {
                tr.set(guard, b"");
            }
            for (key, value) in rows {
                tr.set(key, value);
            }
            match tr.commit().await {
                Ok(_) => return Ok(()),
                Err(error) => tr.on_error(error).await?,
            }
        }
    }

    /// The range of a program's own rows.
    fn bounds(&self) -> [Bytes; 2] {
        [BEGIN, END].map(|bound| prefixed(&self.prefix, bound))
    }

    /// The rows around a program's own. A program without a prefix has the whole store and needs none.
    fn guards(&self) -> Vec<Bytes> {
        if self.prefix.is_empty() {
            return Vec::new();
        }
        let sides = [b'\x00', b'\xff'].into_iter();
        sides
            .flat_map(|side| (0..8).map(move |number| [side, number]))
            .map(|guard| prefixed(&self.prefix, &guard))
            .collect()
    }
}

/// Compares a store's answers with those of a trace.
#[must_use]
pub fn differences(trace: &Trace, got: &Answers) -> Vec<Difference> {
    let expected = &trace.answers;
    let steps = trace.program.steps.iter().enumerate();
    let outcomes = expected.outcomes.iter().zip(&got.outcomes);
    let mut differences: Vec<_> = steps
        .zip(outcomes)
        .filter(|(_, (expected, got))| expected != got)
        .map(|((index, step), (expected, got))| Difference {
            program: trace.id.clone(),
            step: Some((index, trace::step_text(step))),
            expected: format!("{expected:?}"),
            got: format!("{got:?}"),
        })
        .collect();
    if expected.last != got.last {
        differences.push(Difference {
            program: trace.id.clone(),
            step: None,
            expected: format!("{:?}", expected.last),
            got: format!("{:?}", got.last),
        });
    }
    differences
}

/// A program during its run.
struct Run<'a, D: Database> {
    replay: &'a Replay<D>,
    sessions: BTreeMap<usize, Session<D::Transaction>>,
    watches: BTreeMap<u64, Shared<BoxFuture<'static, Result<()>>>>,
    stamps: Vec<(Versionstamp, usize)>,
    /// The reads under way, with the numbers of their steps and transactions.
    under_way: Vec<(usize, usize, BoxFuture<'static, Result<Found>>)>,
    outcomes: Vec<Outcome>,
}

/// What a read found.
enum Found {
    Value(Option<Bytes>),
    Key(Bytes),
    Rows(Vec<KeyValue>),
}

struct Session<T> {
    tr: T,
    commit: Option<Commit>,
    versionstamp: Option<BoxFuture<'static, Result<Versionstamp>>>,
}

impl<D: Database> Run<'_, D> {
    async fn step(&mut self, number: usize, transaction: usize, op: &Op) -> Result<Outcome> {
        if let Entry::Vacant(entry) = self.sessions.entry(transaction) {
            entry.insert(Session {
                tr: self.replay.db.begin()?,
                commit: None,
                versionstamp: None,
            });
        }
        let session = self
            .sessions
            .get_mut(&transaction)
            .expect("it was inserted above");
        let tr = &mut session.tr;
        if self.replay.overlaps
            && let Some(read) = issue(tr, op)
        {
            self.under_way.push((number, transaction, read));
            return Ok(Outcome::Done);
        }
        match op {
            Op::Get { .. } | Op::GetKey { .. } => {
                let read = issue(tr, op).expect("these two are reads");
                let found = read.await?;
                return Ok(self.outcome(found));
            }
            Op::GetRange { query, isolation } => {
                let rows = read_all(tr, query.clone(), *isolation).await?;
                return Ok(Outcome::Rows(self.rows(rows)));
            }
            Op::ReadVersion => return tr.read_version().await.map(version),
            Op::ApproximateSize => {
                tr.approximate_size().await?;
            }
            Op::SetReadVersion(version) => tr.set_read_version(*version),
            Op::Set { key, value } => tr.set(key, value),
            Op::Clear { key } => tr.clear(key),
            Op::ClearRange { begin, end } => tr.clear_range(begin, end),
            Op::Atomic { op, .. } if self.replay.overlaps && is_versionstamped(*op) => {}
            Op::Atomic { op, key, param } => tr.atomic(*op, key, param),
            Op::AddConflict { kind, begin, end } => tr.add_conflict_range(*kind, begin, end)?,
            Op::SetOption(option) => tr.set_option(*option)?,
            Op::Watch { key, id } => {
                let watch: BoxFuture<'static, _> = Box::pin(tr.watch(key));
                self.watches.insert(*id, watch.shared());
            }
            Op::PollWatch { id, wait } => return self.poll_watch(*id, *wait).await,
            Op::Versionstamp => session.versionstamp = Some(Box::pin(tr.versionstamp())),
            Op::AwaitVersionstamp => {
                let versionstamp = session.versionstamp.take();
                versionstamp.ok_or(Code::CLIENT_INVALID_OPERATION)?.await?;
                return Ok(Outcome::Versionstamp);
            }
            Op::Commit => {
                let commit = tr.commit().await?;
                session.commit = Some(commit);
                let stamp = commit.versionstamp.map(|stamp| (stamp, transaction));
                self.stamps.extend(stamp);
            }
            Op::CommittedVersion => {
                let commit = session.commit.unwrap_or(Commit::READ_ONLY);
                return Ok(version(commit.version));
            }
            Op::OnError(code) => tr.on_error(Error::from(*code)).await?,
            Op::Reset => tr.reset(),
            Op::Cancel => tr.cancel(),
            Op::Sleep(wait) => self.replay.env.sleep(*wait).await,
        }
        Ok(Outcome::Done)
    }

    /// Awaits the reads under way, of one transaction or of all.
    async fn settle(&mut self, transaction: Option<usize>) -> Result<()> {
        let is_meant = |read: &mut (usize, usize, _)| transaction.is_none_or(|it| it == read.1);
        let reads: Vec<_> = self.under_way.extract_if(.., is_meant).collect();
        for (step, _, read) in reads {
            let found = read.await;
            self.outcomes[step] = outcome_of(found.map(|found| self.outcome(found)))?;
        }
        Ok(())
    }

    fn outcome(&self, found: Found) -> Outcome {
        match found {
            Found::Value(value) => Outcome::Value(value.map(|value| self.text(&value))),
            Found::Key(key) => Outcome::Key(self.key(&key)),
            Found::Rows(rows) => Outcome::Rows(self.rows(rows)),
        }
    }

    async fn poll_watch(&mut self, id: u64, wait: Duration) -> Result<Outcome> {
        let watch = self
            .watches
            .get(&id)
            .cloned()
            .ok_or(Code::CLIENT_INVALID_OPERATION)?;
        let sleep = self.replay.env.sleep(wait.min(self.replay.watch_limit));
        match future::select(watch, sleep).await {
            Either::Left((fired, _)) => fired.map(|()| Outcome::Fired),
            Either::Right(((), _)) => Ok(Outcome::Pending),
        }
    }

    fn text(&self, bytes: &[u8]) -> Text {
        Text::new(bytes, &self.stamps)
    }

    fn key(&self, key: &[u8]) -> Text {
        self.text(key.strip_prefix(&*self.replay.prefix).unwrap_or(key))
    }

    fn rows(&self, rows: Vec<KeyValue>) -> Vec<(Text, Text)> {
        let rows = rows.iter();
        rows.map(|row| (self.key(row.key()), self.text(row.value())))
            .collect()
    }
}

fn is_versionstamped(op: MutationOp) -> bool {
    matches!(
        op,
        MutationOp::SetVersionstampedKey | MutationOp::SetVersionstampedValue
    )
}

/// More rows than a program has.
const MAX_ROWS: usize = 10_000;

/// Issues a read. Returns `None` for any other operation.
fn issue(tr: &impl Transaction, op: &Op) -> Option<BoxFuture<'static, Result<Found>>> {
    Some(match op {
        Op::Get { key, isolation } => tr.get(key, *isolation).map_ok(Found::Value).boxed(),
        Op::GetKey {
            selector,
            isolation,
        } => tr.get_key(selector, *isolation).map_ok(Found::Key).boxed(),
        Op::GetRange { query, isolation } => {
            // Any other mode may end a batch sooner if fewer rows are known.
            let mut query = query.clone();
            query.mode = StreamingMode::Exact;
            query.limit = NonZero::new(query.limit).map_or(MAX_ROWS, NonZero::get);
            let batch = tr.get_range(&query, *isolation);
            batch.map_ok(|batch| Found::Rows(batch.rows)).boxed()
        }
        _ => return None,
    })
}

/// Returns an answer, or the error of a store that gives none.
fn outcome_of(answer: Result<Outcome>) -> Result<Outcome> {
    match answer {
        Ok(outcome) => Ok(outcome),
        Err(error) => Ok(Outcome::Failed(error.code().ok_or(error)?)),
    }
}

fn version(version: i64) -> Outcome {
    if version > 0 {
        Outcome::Version
    } else {
        Outcome::NoVersion
    }
}

//! The reference model: the rules of FoundationDB, as plainly as they can be written.
//!
//! A [`Model`] is a [`Database`], so that everything that runs on a store runs on it too. It shares
//! nothing with the embedded store but the contract, and has no structure that could be wrong: a
//! copy of all rows for each version, a list of everything a transaction has staged that is read
//! from its beginning for every question, and lists of ranges that are compared each with each. It
//! is slow, and meant to be.

use parking_lot::{Mutex, MutexGuard};
use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use keyspace::limits::{RECOVERY_VERSIONS, TRANSACTION_LIFE_VERSIONS, VERSIONS_PER_SECOND};
use keyspace::{Code, Database, DatabaseOption, Environment, Result, Versionstamp};
use tokio::sync::oneshot;

pub(crate) mod atomic;
mod attempt;
mod known;
mod range;
mod read;
mod transaction;
mod view;
mod writes;

pub use transaction::ModelTransaction;

use transaction::Defaults;
use writes::Mutation;

/// How many versions go by before FoundationDB commits for no other reason.
const IDLE_VERSIONS: i64 = VERSIONS_PER_SECOND;

type Rows = BTreeMap<Bytes, Bytes>;
type Ranges = Vec<(Bytes, Bytes)>;

/// The reference model of a store.
#[derive(Debug, Clone)]
pub struct Model {
    state: Arc<Mutex<State>>,
    defaults: Arc<Mutex<Defaults>>,
    env: Environment,
}

#[derive(Debug)]
struct State {
    /// All rows at each version at which they changed, oldest first.
    versions: Vec<(i64, Arc<Rows>)>,
    /// What each commit wrote, oldest first.
    commits: Vec<(i64, Ranges)>,
    watches: Vec<Watch>,
    /// The largest version given to anybody.
    last_version: i64,
}

/// A watch that a commit has armed.
#[derive(Debug)]
struct Watch {
    key: Bytes,
    baseline: Option<Bytes>,
    end: oneshot::Sender<Result<()>>,
}

impl Watch {
    fn end(self, outcome: Result<()>) {
        // Nobody may be waiting any more.
        let _ = self.end.send(outcome);
    }
}

/// What a transaction hands over at commit.
struct Request {
    read_version: i64,
    reads: Ranges,
    writes: Ranges,
    mutations: Vec<Mutation>,
}

impl Model {
    /// Makes an empty model whose versions follow the clock of `env`.
    #[must_use]
    pub fn new(env: Environment) -> Self {
        Self {
            state: Arc::new(Mutex::new(State {
                versions: vec![(RECOVERY_VERSIONS, Arc::default())],
                commits: Vec::new(),
                watches: Vec::new(),
                last_version: RECOVERY_VERSIONS,
            })),
            defaults: Arc::default(),
            env,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn clock(&self) -> i64 {
        let microseconds = i64::try_from(self.env.now().as_micros());
        RECOVERY_VERSIONS + microseconds.expect("a clock counts fewer than 200,000 years")
    }

    /// Returns the version of the last commit, as long as that is young: an idle store does not
    /// hand out versions too old to commit with.
    fn read_version(&self) -> i64 {
        let now = self.clock();
        let mut state = self.lock();
        if now - state.last_version > IDLE_VERSIONS {
            state.last_version = now;
        }
        state.last_version
    }

    fn rows_at(&self, version: i64) -> Result<Arc<Rows>, Code> {
        let now = self.clock();
        let state = self.lock();
        let newest = state.last_version.max(now);
        if version > newest {
            return Err(Code::FUTURE_VERSION);
        }
        if version < newest - TRANSACTION_LIFE_VERSIONS {
            return Err(Code::TRANSACTION_TOO_OLD);
        }
        let known = state.versions.iter().rfind(|(known, _)| *known <= version);
        known
            .map(|(_, rows)| rows.clone())
            .ok_or(Code::TRANSACTION_TOO_OLD)
    }

    fn commit(&self, request: &Request) -> Result<Versionstamp, Code> {
        let now = self.clock();
        let mut state = self.lock();
        let version = now.max(state.last_version + 1);
        // A commit that is refused takes a version too.
        state.last_version = version;
        if request.read_version < version - TRANSACTION_LIFE_VERSIONS {
            return Err(Code::TRANSACTION_TOO_OLD);
        }
        let since = state
            .commits
            .iter()
            .filter(|(at, _)| *at > request.read_version);
        let written = since.flat_map(|(_, ranges)| ranges);
        if written
            .flat_map(|written| request.reads.iter().map(move |read| (read, written)))
            .any(|(read, written)| read.0 < written.1 && written.0 < read.1)
        {
            return Err(Code::NOT_COMMITTED);
        }
        let stamp = Versionstamp::new(version, 0);
        let (_, newest) = state.versions.last().expect("there is a first version");
        let mut rows = Rows::clone(newest);
        writes::apply(&mut rows, &request.mutations, stamp);
        let mut ranges = request.writes.clone();
        ranges.extend(writes::stamped_keys(&request.mutations, stamp));
        state.versions.push((version, Arc::new(rows)));
        state.commits.push((version, ranges));
        state.fire();
        Ok(stamp)
    }

    /// How many watches somebody still waits for.
    fn watches(&self) -> usize {
        let state = self.lock();
        let waiting = state.watches.iter().filter(|watch| !watch.end.is_closed());
        waiting.count()
    }

    fn arm(&self, watch: Watch) {
        let mut state = self.lock();
        state.watches.push(watch);
        state.fire();
    }
}

impl State {
    /// Fires every watch whose key no longer has the value it had.
    fn fire(&mut self) {
        let (_, rows) = self.versions.last().expect("there is a first version");
        let changed = |watch: &mut Watch| rows.get(&watch.key) != watch.baseline.as_ref();
        for watch in self.watches.extract_if(.., changed) {
            watch.end(Ok(()));
        }
    }
}

impl Database for Model {
    type Transaction = ModelTransaction;

    fn begin(&self) -> Result<ModelTransaction> {
        let defaults = self.defaults.lock();
        Ok(ModelTransaction::new(self.clone(), *defaults))
    }

    fn set_option(&self, option: DatabaseOption) -> Result<()> {
        let mut defaults = self.defaults.lock();
        defaults.set(option)
    }
}

//! The reference model: FoundationDB's rules, written as plainly as possible.
//!
//! A [`Model`] is a [`Database`], so everything that runs on a store also runs on it. It shares only the
//! contract with the embedded store. It has no clever structure that could be wrong: a copy of all rows for
//! each version, a list of all staged writes of a transaction that is read from the start for every
//! question, and lists of ranges that are compared pair by pair. It is slow, and meant to be.

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

/// The number of versions after which FoundationDB makes an empty commit.
const IDLE_VERSIONS: i64 = VERSIONS_PER_SECOND;

type StoredRows = BTreeMap<Bytes, Bytes>;
type Ranges = Vec<(Bytes, Bytes)>;

/// The reference model of a store.
#[derive(Debug, Clone)]
pub struct Model {
    state: Arc<Mutex<ModelState>>,
    defaults: Arc<Mutex<Defaults>>,
    env: Environment,
}

#[derive(Debug)]
struct ModelState {
    /// All rows at each version at which they changed, oldest first.
    versions: Vec<(i64, Arc<StoredRows>)>,
    /// The writes of each commit, oldest first.
    commits: Vec<(i64, Ranges)>,
    watches: Vec<Watch>,
    /// The largest version that was ever returned.
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
        // The watch's future may have been dropped.
        let _ = self.end.send(outcome);
    }
}

/// The request of a transaction at its commit.
struct Request {
    read_version: i64,
    reads: Ranges,
    writes: Ranges,
    mutations: Vec<Mutation>,
}

impl Model {
    /// Returns an empty model whose versions follow the clock of `env`.
    #[must_use]
    pub fn new(env: Environment) -> Self {
        Self {
            state: Arc::new(Mutex::new(ModelState {
                versions: vec![(RECOVERY_VERSIONS, Arc::default())],
                commits: Vec::new(),
                watches: Vec::new(),
                last_version: RECOVERY_VERSIONS,
            })),
            defaults: Arc::default(),
            env,
        }
    }

    fn lock(&self) -> MutexGuard<'_, ModelState> {
        self.state.lock()
    }

    fn clock(&self) -> i64 {
        let microseconds = i64::try_from(self.env.now().as_micros());
        RECOVERY_VERSIONS + microseconds.expect("a clock counts fewer than 200,000 years")
    }

    /// Returns the version of the last commit, while it is recent. An idle store must not return versions
    /// that are too old to commit with.
    fn read_version(&self) -> i64 {
        let now = self.clock();
        let mut state = self.lock();
        if now - state.last_version > IDLE_VERSIONS {
            state.last_version = now;
        }
        state.last_version
    }

    fn rows_at(&self, version: i64) -> Result<Arc<StoredRows>, Code> {
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
        // A commit that is refused also takes a version.
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
        let mut rows = StoredRows::clone(newest);
        writes::apply(&mut rows, &request.mutations, stamp);
        let mut ranges = request.writes.clone();
        ranges.extend(writes::stamped_keys(&request.mutations, stamp));
        state.versions.push((version, Arc::new(rows)));
        state.commits.push((version, ranges));
        state.fire();
        Ok(stamp)
    }

    /// Returns the number of watches whose futures were not dropped.
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

impl ModelState {
    /// Fires every watch whose key has a different value now.
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

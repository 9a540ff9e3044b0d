//! Runs one test on every store: in memory, in a file, of another process, on a FoundationDB cluster.
//!
//! A test is a function that takes a [`TestStore`]. [`on_every_store!`](crate::on_every_store) makes a test
//! of it for each store:
//!
//! ```
//! use conformance::stores::TestStore;
//! use keyspace::{Database, Isolation, OwnedTransaction, Transaction};
//!
//! conformance::on_every_store!(a_key_that_was_set_is_there);
//!
//! async fn a_key_that_was_set_is_there(store: TestStore) {
//!     let key = store.root.pack(&"key");
//!     let mut tr = store.db.begin().unwrap();
//!     tr.set(&key, b"value");
//!     tr.commit().await.unwrap();
//!     let tr = store.db.begin().unwrap();
//!     assert!(tr.get(&key, Isolation::Snapshot).await.unwrap().is_some());
//! }
//! ```
//!
//! The tests are named `on_memory::a_key_that_was_set_is_there` and so on. The tests `on_fdb` are skipped
//! in a build without FoundationDB, or if the environment names no cluster. Each skipped test is reported
//! on standard error.

use std::env;
use std::future::Future;
use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use futures::future::{BoxFuture, FutureExt};
use keyspace::codec::Codec;
use keyspace::env::Clock;
use keyspace::limits::{END_OF_KEYSPACE, time_between};
use keyspace::store::FDB_API_VERSION;
use keyspace::{
    Bytes, Database, Environment, Ids, Isolation, KeyValue, OpenError, OwnedTransaction,
    RangeQuery, Result, RunOptions, Runner, Store, StreamingMode, Subspace, Transaction,
    Versionstamp, embedded, key_after,
};
use tempfile::TempDir;

use super::part::Part;

/// The kind of store that a test runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `memory:`
    Memory,
    /// `embedded:`, in a folder of its own.
    Embedded,
    /// A store in memory that is reached as from another process, with replies of few rows.
    Remote,
    /// `fdb:`, the cluster that the environment names.
    Fdb,
}

/// A store for one test. Clones share it.
#[derive(Debug, Clone)]
pub struct TestStore {
    /// The kind of store.
    pub kind: Kind,
    /// The store. Several tests may share it.
    pub db: Store,
    /// The test's own part of the store, empty at first and cleared when the test ends.
    pub root: Subspace,
    places: Arc<AtomicU64>,
    _folder: Option<Arc<TempDir>>,
    _owner: Option<Store>,
}

impl TestStore {
    /// Opens a store in memory, for tests that need not run on every store.
    ///
    /// # Panics
    /// If a store in memory cannot be opened.
    #[must_use]
    pub fn memory() -> Self {
        Self::open(Kind::Memory).expect("every build has a store in memory")
    }

    /// Opens a store, or returns the reason why there is none.
    ///
    /// # Panics
    /// If a store that should exist cannot be opened.
    fn open(kind: Kind) -> Result<Self, &'static str> {
        let mut folder = None;
        let mut owner = None;
        let db = match kind {
            Kind::Memory => keyspace::open("memory:"),
            Kind::Embedded => {
                let new = tempfile::tempdir().expect("a test can make a folder");
                let url = format!("embedded:{}", new.path().join("store").display());
                folder = Some(Arc::new(new));
                keyspace::open(&url)
            }
            Kind::Remote => remote(3).map(|(store, db)| {
                owner = Some(store);
                db
            }),
            Kind::Fdb if FDB_API_VERSION.is_none() => {
                return Err(
                    "built without FoundationDB: `cargo xtask test` builds with it if \
                            fdbserver, fdbcli and libfdb_c are installed",
                );
            }
            Kind::Fdb if env::var_os("FDB_CLUSTER_FILE").is_none() => {
                return Err(
                    "FDB_CLUSTER_FILE names no cluster: `cargo xtask test` starts one, or \
                            `cargo xtask fdb up`",
                );
            }
            Kind::Fdb => keyspace::open("fdb:"),
        };
        let random: [u8; 16] = Environment::system().random_bytes();
        Ok(Self {
            kind,
            db: db.expect("a store for a test can be opened"),
            root: Subspace::from(("test", random.as_slice())),
            places: Arc::default(),
            _folder: folder,
            _owner: owner,
        })
    }

    /// Returns the store with a new, empty root below this one.
    #[must_use]
    pub fn fresh(&self) -> Self {
        let number = self.places.fetch_add(1, Ordering::Relaxed);
        let root = self.root.subspace(&number);
        Self {
            root,
            ..self.clone()
        }
    }

    /// Returns the root as a store of its own.
    #[must_use]
    pub fn part(&self) -> Part<Store> {
        Part::new(self.db.clone(), self.root.bytes().to_vec())
    }

    /// Returns a runner on a database over the store, with a clock that is fifty times as fast as the system's.
    /// The time limits of a test then pass soon.
    #[must_use]
    pub fn fast_runner<D: Database>(&self, db: D) -> Runner<D> {
        let seed = u64::from_le_bytes(Environment::system().random_bytes());
        let options = RunOptions::default()
            .with_ledger_subspace(self.root.subspace(&"ledgers"))
            .with_environment(Environment::seeded(seed, Arc::new(FastClock)));
        Runner::with_options(db, options)
    }

    /// Returns a runner on the store whose ledger lies below the root.
    #[must_use]
    pub fn runner(&self) -> Runner<Store> {
        self.runner_on(self.db.clone())
    }

    /// Returns a runner on a database over the store, whose ledger lies below the root.
    #[must_use]
    pub fn runner_on<D: Database>(&self, db: D) -> Runner<D> {
        let options = RunOptions::default().with_ledger_subspace(self.root.subspace(&"ledgers"));
        Runner::with_options(db, options)
    }

    /// Returns a query for everything below the root.
    #[must_use]
    pub fn everything(&self) -> RangeQuery {
        let (begin, end) = self.root.range();
        RangeQuery::keys(begin, end)
    }

    /// Returns every row below the root, except those of the [runner](Self::runner)'s ledger.
    ///
    /// # Panics
    /// If the rows cannot be read.
    pub async fn rows(&self) -> Vec<KeyValue> {
        let (begin, end) = self.root.range();
        let mut rows = rows_between(&self.db, begin, end).await;
        let ledgers = self.root.subspace(&"ledgers");
        rows.retain(|row| !row.key().starts_with(ledgers.bytes()));
        rows
    }

    /// Returns whether the store holds no keys at all, for tests that need the whole store.
    ///
    /// # Errors
    /// The errors of a read.
    pub async fn is_empty(&self) -> Result<bool> {
        let all = RangeQuery::keys(&b""[..], END_OF_KEYSPACE).limit(1);
        let tr = self.db.begin()?;
        let first = tr.get_range(&all, Isolation::Snapshot).await?;
        Ok(first.rows.is_empty())
    }

    /// Clears the whole store, for tests that found it [empty](Self::is_empty) at their start.
    ///
    /// # Errors
    /// The errors of a commit.
    pub async fn clear_all(&self) -> Result<()> {
        self.clear(b"", END_OF_KEYSPACE).await
    }

    async fn clear(&self, begin: &[u8], end: &[u8]) -> Result<()> {
        let mut tr = self.db.begin()?;
        loop {
            tr.clear_range(begin, end);
            // Recipes that the test opened are registered outside of its part of the store.
            Ids::default().unregister(&tr, &self.root);
            match tr.commit().await {
                Ok(_) => return Ok(()),
                Err(error) => tr.on_error(error).await?,
            }
        }
    }
}

/// Returns the rows of a range, however slow the store is: a read that took too long goes on at a later version.
/// So rows that change meanwhile may be of different versions.
///
/// # Panics
/// If the rows cannot be read.
pub async fn rows_between(db: &impl Database, begin: Vec<u8>, end: Vec<u8>) -> Vec<KeyValue> {
    let mut tr = db.begin().expect("a store for a test is open");
    let mut begin = begin;
    let mut rows = Vec::new();
    while begin < end {
        let query = RangeQuery::keys(begin.clone(), end.clone()).mode(StreamingMode::WantAll);
        let batch = match tr.get_range(&query, Isolation::Snapshot).await {
            Ok(batch) => batch,
            Err(error) => {
                let again = tr.on_error(error).await;
                again.expect("a test's part of a store can be read");
                continue;
            }
        };
        match batch.next_after() {
            Some(last) => begin = key_after(last),
            None => begin.clone_from(&end),
        }
        rows.extend(batch.rows);
    }
    rows
}

/// Opens a store in memory, and a handle that reaches it as from another process. Replies have a random number of rows,
/// at most `max_rows`.
///
/// # Errors
/// [`OpenError::Open`] if the system cannot start a thread.
pub fn remote(max_rows: u8) -> Result<(Store, Store), OpenError> {
    let owner = embedded::Options::new().memory()?;
    let random = || -> u8 { Environment::system().random_bytes::<1>()[0] };
    let client = owner.over_a_pipe(move || usize::from(1 + random() % max_rows))?;
    Ok((owner.into(), client.into()))
}

/// How many times as fast as the system's clock that of a [fast runner](TestStore::fast_runner) is.
const FAST: u32 = 50;

/// The system's clock, [`FAST`] times as fast. Its wall clock is the system's.
struct FastClock;

impl Clock for FastClock {
    fn now(&self) -> Duration {
        Environment::system().now() * FAST
    }

    fn wall(&self) -> SystemTime {
        Environment::system().wall()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Environment::system().sleep(duration / FAST)
    }
}

/// Returns the bytes that a codec writes for a value.
///
/// # Panics
/// If the codec has no bytes for it.
pub fn bytes_of<T>(codec: &impl Codec<T>, value: &T) -> Bytes {
    let mut bytes = Vec::new();
    let encoded = codec.encode(value, &mut bytes);
    encoded.expect("a value of a test can be encoded");
    bytes.into()
}

/// Returns how long ago a commit was, according to the versions of a transaction.
///
/// # Panics
/// If the transaction has no read version.
pub async fn age(tr: &impl Transaction, stamp: Versionstamp) -> Duration {
    let now = tr.read_version().await.expect("a store for a test is open");
    time_between(stamp.commit_version(), now)
}

/// Runs a test on a store of a kind, and clears its data at the end, even if the test panics.
///
/// # Panics
/// If the test panics, or if the store cannot be opened or cleared.
pub async fn run<F: Future<Output = ()>>(
    kind: Kind,
    name: &str,
    test: impl FnOnce(TestStore) -> F,
) {
    let store = match TestStore::open(kind) {
        Ok(store) => store,
        Err(reason) => return skip(name, reason),
    };
    let outcome = AssertUnwindSafe(test(store.clone())).catch_unwind().await;
    let (begin, end) = store.root.range();
    let cleared = store.clear(&begin, &end).await;
    if let Err(panic) = outcome {
        resume_unwind(panic);
    }
    cleared.expect("a test's part of a store can be cleared");
}

/// Reports that a test did not run, and why. `cargo xtask test` counts it as skipped.
pub fn skip(name: &str, reason: &str) {
    let line = format!("skipped: {name}: {reason}\n");
    // The test harness would capture the output of a macro.
    let _ = io::stderr().write_all(line.as_bytes());
}

/// Makes tests, one for each kind of store, of functions that take a
/// [`TestStore`](crate::stores::TestStore).
///
/// Each test runs in a single-threaded runtime, or in a multi-threaded one if the list begins with
/// `threads:`. The caller needs tokio's test macro.
#[macro_export]
macro_rules! on_every_store {
    (threads: $($test:ident),+ $(,)?) => {
        $crate::on_every_store!(@every (flavor = "multi_thread", worker_threads = 4) $($test)+);
    };
    ($($test:ident),+ $(,)?) => {
        $crate::on_every_store!(@every (flavor = "current_thread") $($test)+);
    };
    (@every $runtime:tt $($test:ident)+) => {
        $crate::on_every_store!(@on on_memory Memory $runtime $($test)+);
        $crate::on_every_store!(@on on_embedded Embedded $runtime $($test)+);
        $crate::on_every_store!(@on on_remote Remote $runtime $($test)+);
        $crate::on_every_store!(@on on_fdb Fdb $runtime $($test)+);
    };
    (@on $module:ident $kind:ident $runtime:tt $($test:ident)+) => {
        mod $module {
            $(
                #[::tokio::test $runtime]
                async fn $test() {
                    $crate::stores::run(
                        $crate::stores::Kind::$kind,
                        concat!(module_path!(), "::", stringify!($test)),
                        super::$test,
                    )
                    .await;
                }
            )+
        }
    };
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use keyspace::Error;
    use keyspace::env::ManualClock;

    use super::*;
    use crate::chaos::{Chaos, Faults};

    crate::on_every_store!(a_test_has_an_empty_root_and_fresh_ones_that_differ);

    async fn a_test_has_an_empty_root_and_fresh_ones_that_differ(store: TestStore) {
        let tr = store.db.begin().unwrap();
        let rows = tr.get_range(&store.everything(), Isolation::Snapshot).await;
        assert_eq!(rows.unwrap().rows, []);
        let one = store.fresh();
        let other = store.fresh();
        assert_ne!(one.root, other.root);
        assert!(one.root.bytes().starts_with(store.root.bytes()));
    }

    #[tokio::test]
    async fn each_row_is_read_once_however_often_a_read_comes_too_late() {
        let (_owner, db) = remote(3).unwrap();
        let mut tr = db.begin().unwrap();
        for number in 0..100 {
            tr.set(&[number], b"");
        }
        tr.commit().await.unwrap();
        let env = Environment::seeded(1, Arc::new(ManualClock::moved_by_sleepers()));
        let faults = Faults {
            too_old_at_read: 0.5,
            ..Faults::default()
        };
        let late = Chaos::new(db, env, faults);
        let rows = rows_between(&late, vec![], vec![u8::MAX]).await;
        let numbers = rows.iter().map(|row| row.key()[0]);
        assert!(numbers.eq(0..100));
    }

    #[tokio::test]
    async fn data_of_a_test_is_cleared_even_if_the_test_panics() {
        let kept = Mutex::new(None);
        let outcome = AssertUnwindSafe(run(Kind::Memory, "test", |store| {
            let kept = &kept;
            async move {
                let key = &store.root.pack(&"key");
                let outcome = store
                    .runner()
                    .run(|tr| async move {
                        tr.set(key, b"value");
                        Ok::<_, Error>(())
                    })
                    .await;
                outcome.unwrap();
                *kept.lock().unwrap() = Some(store);
                panic!("on purpose");
            }
        }));
        assert!(outcome.catch_unwind().await.is_err());
        let store = kept.into_inner().unwrap().unwrap();
        let tr = store.db.begin().unwrap();
        let rows = tr.get_range(&store.everything(), Isolation::Snapshot).await;
        assert_eq!(rows.unwrap().rows, []);
    }
}

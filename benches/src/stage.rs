//! The store under test, and the part of it that belongs to a run.

use std::cell::Cell;
use std::env;

use keyspace::url::StoreUrl;
use keyspace::{
    Database, Environment, Ids, OpenError, OwnedTransaction, Store, Subspace, Transaction,
};
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// A store, and the part of it that belongs to this run.
pub struct Stage {
    url: StoreUrl,
    db: Store,
    root: Subspace,
    trials: Cell<u64>,
    // The store is closed before its folder is removed.
    _folder: Option<TempDir>,
}

impl Stage {
    /// Opens the store that `$BENCH_DB` names, or a new `embedded:` store in a temporary folder.
    ///
    /// # Errors
    /// Those of [`keyspace::open`].
    ///
    /// # Panics
    /// If the system has no temporary folder.
    pub fn open() -> Result<Self, OpenError> {
        let (url, folder) = match env::var("BENCH_DB") {
            Ok(url) if url != "embedded:" => (url.parse()?, None),
            _ => {
                let folder = tempfile::tempdir().expect("the system has a temporary folder");
                let path = folder.path().join("store");
                (StoreUrl::Embedded { path }, Some(folder))
            }
        };
        let random: [u8; 8] = Environment::system().random_bytes();
        Ok(Self {
            db: keyspace::open(&url.to_string())?,
            url,
            root: Subspace::from(("benches", &random[..])),
            trials: Cell::new(0),
            _folder: folder,
        })
    }

    /// Returns the URL of the store.
    #[must_use]
    pub fn url(&self) -> &StoreUrl {
        &self.url
    }

    /// Returns the store.
    #[must_use]
    pub fn db(&self) -> &Store {
        &self.db
    }

    /// Returns the part of the URL that says which kind of store it is.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self.url {
            StoreUrl::Memory => "memory",
            StoreUrl::Embedded { .. } => "embedded",
            StoreUrl::Fdb { .. } => "fdb",
        }
    }

    /// Says whether several processes can have the store open.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.url != StoreUrl::Memory
    }

    /// Says what the figures belong to.
    ///
    /// # Panics
    /// If a cluster does not answer.
    #[must_use]
    pub fn description(&self) -> String {
        match &self.url {
            #[cfg(feature = "fdb")]
            StoreUrl::Fdb { cluster_file } => {
                let path = cluster_file.as_ref().and_then(|path| path.to_str());
                let cluster = foundationdb::Database::new(path).expect("the adapter has opened it");
                runtime().block_on(crate::cluster::describe(&cluster))
            }
            _ => format!("store: {}:, cores: {}", self.kind(), crate::cores()),
        }
    }

    /// Has a trial take place in a subspace of its own, which is cleared afterwards.
    ///
    /// # Panics
    /// If the store fails.
    pub fn on_a_clean_place<T>(&self, trial: impl FnOnce(&Subspace) -> T) -> T {
        self.trials.set(self.trials.get() + 1);
        let place = self.root.subspace(&self.trials.get());
        let outcome = trial(&place);
        let (begin, end) = place.range();
        let mut tr = self.db.begin().expect("the store serves");
        tr.clear_range(&begin, &end);
        Ids::default().unregister(&tr, &place);
        let commit = runtime().block_on(tr.commit());
        commit.expect("nothing conflicts");
        outcome
    }
}

/// Returns a runtime with a worker for each core.
#[must_use]
pub fn runtime() -> Runtime {
    crate::runtime(crate::cores())
}

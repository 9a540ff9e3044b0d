//! The cluster under test.

use std::sync::Arc;

use foundationdb::options::DatabaseOption;
use keyspace::{
    Bytes, Database, Environment, OpenError, OwnedTransaction, Store, Subspace, Transaction,
};
use tokio::runtime::Runtime;

/// The value of every row and of every item.
pub(crate) const VALUE: Bytes = Bytes::from_static(&[7; 100]);

/// A cluster, by the adapter and by the bare crate, and a part of it for the benchmarks.
pub(crate) struct Cluster {
    pub(crate) runtime: Runtime,
    pub(crate) store: Store,
    pub(crate) bare: Arc<foundationdb::Database>,
    pub(crate) root: Subspace,
    pub(crate) env: Environment,
}

impl Cluster {
    pub(crate) fn open() -> Result<Self, OpenError> {
        // The adapter starts the network for both.
        let store = keyspace::open("fdb:")?;
        let bare = foundationdb::Database::default().expect("the adapter has opened it");
        // The adapter sets it too, and it costs a timer for each transaction.
        let limit = i32::try_from(keyspace::fdb::DEFAULT_TIMEOUT.as_millis()).expect("30 seconds");
        bare.set_option(DatabaseOption::TransactionTimeout(limit))
            .expect("a time limit is an option");
        let env = Environment::system();
        let random: [u8; 8] = env.random_bytes();
        Ok(Self {
            // One worker: others that look for work and find none would count as processor time.
            runtime: benches::runtime(1),
            store,
            bare: Arc::new(bare),
            root: Subspace::from(("benches", &random[..])),
            env,
        })
    }

    /// Commits rows.
    pub(crate) fn fill(&self, keys: impl Iterator<Item = Vec<u8>>) {
        self.commit(|tr| keys.for_each(|key| tr.set(&key, &VALUE)));
    }

    /// Clears what the benchmarks have written.
    pub(crate) fn clear(&self) {
        let (begin, end) = self.root.range();
        self.commit(|tr| tr.clear_range(&begin, &end));
    }

    fn commit(&self, stage: impl FnOnce(&<Store as Database>::Transaction)) {
        let mut tr = self.store.begin().expect("the network runs");
        stage(&tr);
        let commit = self.runtime.block_on(tr.commit());
        commit.expect("nothing conflicts");
    }

    /// Says what the figures belong to: the cluster's configuration and the machine.
    pub(crate) fn description(&self) -> String {
        self.runtime
            .block_on(benches::cluster::describe(&self.bare))
    }
}

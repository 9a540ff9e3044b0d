//! The cost of the adapter, compared with the bare crate: a store opened from `fdb:`, which is the longest
//! way, against `foundationdb::Transaction`.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::hint::black_box;
use std::sync::Arc;

use foundationdb::options::StreamingMode as BareMode;
use foundationdb::{KeySelector, RangeOption};
use keyspace::{
    Database, Isolation, OwnedTransaction, RangeQuery, StreamingMode, Subspace, Transaction,
};

use crate::cluster::{Cluster, VALUE};
use crate::rounds::{Pair, Transactions, median_ratio, medians};

const ROWS: u64 = 10_000;
const ROWS_PER_RANGE: u64 = 100;

// Rounds are many and short: what else the machine does meets both sides of one alike.

const GETS: Transactions = Transactions {
    rounds: 60,
    tasks: 16,
    transactions: 100,
    operations_per_transaction: 100,
};

const RANGES: Transactions = Transactions {
    rounds: 80,
    tasks: 16,
    transactions: 200,
    operations_per_transaction: 10,
};

const COMMITS: Transactions = Transactions {
    rounds: 60,
    tasks: 64,
    transactions: 3_000,
    operations_per_transaction: 1,
};

pub(crate) fn table(cluster: &Cluster) -> String {
    let rows = Rows(Arc::new(cluster.root.subspace(&"rows")));
    cluster.fill((0..ROWS).map(|number| rows.key(number)));
    let mut table = "\
| operation | bare: processor time | adapter | ratio | ratio of elapsed time | target |
|---|---|---|---|---|---|
"
    .to_owned();
    let [commit, commit_stamped] = commit(cluster, &rows);
    for (operation, pairs) in [
        ("get", get(cluster, &rows)),
        ("get_range of 100 rows", get_range(cluster, &rows)),
        ("set and commit", commit),
        (
            "the same, where the bare side asks for the versionstamp too",
            commit_stamped,
        ),
    ] {
        let [bare, adapter] = medians(&pairs, |cost| cost.cpu_micros);
        let cpu = median_ratio(&pairs, |cost| cost.cpu_micros);
        let wall = median_ratio(&pairs, |cost| cost.wall_micros);
        writeln!(
            table,
            "| {operation} | {bare:.1} µs | {adapter:.1} µs | {cpu:.2} | {wall:.2} | at most 1.1 |"
        )
        .expect("a string takes it");
    }
    table
}

/// The rows that the operations work on.
#[derive(Clone)]
struct Rows(Arc<Subspace>);

impl Rows {
    fn key(&self, number: u64) -> Vec<u8> {
        self.0.pack(&number)
    }

    /// Returns the number of a row: operations that follow each other get rows far apart.
    fn pick(operation: u64, rows: u64) -> u64 {
        const LARGE_PRIME: u64 = 2_654_435_761;
        operation.wrapping_mul(LARGE_PRIME) % rows
    }

    fn scattered_key(&self, operation: u64) -> Vec<u8> {
        self.key(Self::pick(operation, ROWS))
    }

    /// Returns the keys between which a range lies.
    fn scattered_range(&self, operation: u64) -> (Vec<u8>, Vec<u8>) {
        let first = Self::pick(operation, ROWS - ROWS_PER_RANGE);
        (self.key(first), self.key(first + ROWS_PER_RANGE))
    }
}

/// Returns the numbers of the operations of a transaction.
fn operations(load: Transactions, transaction: u64) -> impl Iterator<Item = u64> {
    let first = transaction * load.operations_per_transaction;
    first..first + load.operations_per_transaction
}

fn get(cluster: &Cluster, rows: &Rows) -> Vec<Pair> {
    let db = cluster.bare.clone();
    let keys = rows.clone();
    let bare = move |transaction| {
        let tr = db.create_trx().expect("the network runs");
        let keys = keys.clone();
        async move {
            for operation in operations(GETS, transaction) {
                let value = tr
                    .get(&keys.scattered_key(operation), false)
                    .await
                    .expect("the cluster answers")
                    .expect("there is a row");
                black_box(&value[..]);
            }
        }
    };
    let db = cluster.store.clone();
    let keys = rows.clone();
    let adapter = move |transaction| {
        let tr = db.begin().expect("the network runs");
        let keys = keys.clone();
        async move {
            for operation in operations(GETS, transaction) {
                let value = tr
                    .get(&keys.scattered_key(operation), Isolation::Serializable)
                    .await
                    .expect("the cluster answers")
                    .expect("there is a row");
                black_box(&value[..]);
            }
        }
    };
    GETS.compare(cluster, &bare, &adapter)
}

fn get_range(cluster: &Cluster, rows: &Rows) -> Vec<Pair> {
    let limit = usize::try_from(ROWS_PER_RANGE).expect("100 is small");
    let db = cluster.bare.clone();
    let keys = rows.clone();
    let bare = move |transaction| {
        let tr = db.create_trx().expect("the network runs");
        let keys = keys.clone();
        async move {
            for operation in operations(RANGES, transaction) {
                let (begin, end) = keys.scattered_range(operation);
                let range = RangeOption {
                    begin: KeySelector::first_greater_or_equal(Cow::Owned(begin)),
                    end: KeySelector::first_greater_or_equal(Cow::Owned(end)),
                    limit: Some(limit),
                    mode: BareMode::WantAll,
                    ..RangeOption::default()
                };
                let rows = tr
                    .get_range(&range, 1, false)
                    .await
                    .expect("the cluster answers");
                assert_eq!(rows.len(), limit);
                for row in rows.iter() {
                    black_box((row.key(), row.value()));
                }
            }
        }
    };
    let db = cluster.store.clone();
    let keys = rows.clone();
    let adapter = move |transaction| {
        let tr = db.begin().expect("the network runs");
        let keys = keys.clone();
        async move {
            for operation in operations(RANGES, transaction) {
                let (begin, end) = keys.scattered_range(operation);
                let range = RangeQuery::keys(begin, end)
                    .limit(limit)
                    .mode(StreamingMode::WantAll);
                let batch = tr
                    .get_range(&range, Isolation::Serializable)
                    .await
                    .expect("the cluster answers");
                assert_eq!(batch.rows.len(), limit);
                for row in &batch.rows {
                    black_box((row.key(), row.value()));
                }
            }
        }
    };
    RANGES.compare(cluster, &bare, &adapter)
}

/// Compares with bare commits that ask for no versionstamp, and with some that do. The adapter's
/// always do, since they return it.
fn commit(cluster: &Cluster, rows: &Rows) -> [Vec<Pair>; 2] {
    let db = cluster.bare.clone();
    let keys = rows.clone();
    let bare = move |transaction| {
        let tr = db.create_trx();
        let key = keys.scattered_key(transaction);
        let tr = tr.expect("the network runs");
        async move {
            tr.set(&key, &VALUE);
            tr.commit().await.expect("nothing conflicts");
        }
    };
    let db = cluster.bare.clone();
    let keys = rows.clone();
    let stamped = move |transaction| {
        let tr = db.create_trx();
        let key = keys.scattered_key(transaction);
        let tr = tr.expect("the network runs");
        async move {
            tr.set(&key, &VALUE);
            let versionstamp = tr.get_versionstamp();
            tr.commit().await.expect("nothing conflicts");
            black_box(&versionstamp.await.expect("something was set")[..]);
        }
    };
    let db = cluster.store.clone();
    let keys = rows.clone();
    let adapter = move |transaction| {
        let tr = db.begin();
        let key = keys.scattered_key(transaction);
        let mut tr = tr.expect("the network runs");
        async move {
            tr.set(&key, &VALUE);
            black_box(tr.commit().await.expect("nothing conflicts"));
        }
    };
    [
        COMMITS.compare(cluster, &bare, &adapter),
        COMMITS.compare(cluster, &stamped, &adapter),
    ]
}

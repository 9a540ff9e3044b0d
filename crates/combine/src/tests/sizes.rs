//! The rows and bytes of a transaction that additions and passes stage. `docs/benchmarks.md` has the
//! numbers.

use std::collections::BTreeMap;
use std::sync::Arc;

use hc_dequeue::keyspace::env::ManualClock;
use hc_dequeue::keyspace::{
    self, Bytes, Database, Environment, Isolation, OpenOptions, OwnedTransaction, RangeQuery,
    RunOptions, Runner, Store, Transaction, read_all,
};

use crate::bucket::Bucket;
use crate::combiner::Sum;
use crate::pass::Plan;
use crate::queue::CombineQueue;
use crate::settings::Settings;

/// The size of a transaction.
#[derive(Debug, PartialEq, Eq)]
struct Size {
    /// The number of rows that it writes.
    written: usize,
    /// The number of rows that it clears.
    cleared: usize,
    /// The bytes of the transaction, with its conflict ranges.
    bytes: usize,
}

struct Measured {
    db: Store,
    queue: CombineQueue<String, i64>,
}

impl Measured {
    async fn new(bucket_count: u32) -> Self {
        let db = keyspace::open("memory:").unwrap();
        // Call numbers start at 0, so they have the same length in every run.
        let env = Environment::seeded(0, Arc::new(ManualClock::new()));
        let options = RunOptions::default().with_environment(env);
        let runner = Runner::with_options(db.clone(), options);
        let settings = Settings::new().with_bucket_count(bucket_count);
        let queue = CombineQueue::open_with(&runner, "q", settings, Sum, OpenOptions::default());
        Self {
            queue: queue.await.unwrap(),
            db,
        }
    }

    async fn rows(&self) -> BTreeMap<Bytes, Bytes> {
        let (begin, end) = self.queue.subspace().range();
        let tr = self.db.begin().unwrap();
        let rows = read_all(&tr, RangeQuery::keys(begin, end), Isolation::Snapshot)
            .await
            .unwrap()
            .into_iter();
        rows.map(|row| (row.to_key(), row.to_value())).collect()
    }

    /// Commits, and returns the size of the transaction.
    async fn commit(&self, mut tr: <Store as Database>::Transaction) -> Size {
        let bytes = tr.approximate_size().await.unwrap();
        let before = self.rows().await;
        tr.commit().await.unwrap();
        let after = self.rows().await;
        let is_written = |(row, value): &(&Bytes, &Bytes)| before.get(*row) != Some(*value);
        Size {
            written: after.iter().filter(is_written).count(),
            cleared: before
                .keys()
                .filter(|row| !after.contains_key(*row))
                .count(),
            bytes,
        }
    }

    /// Adds updates of keys of nine bytes, in turn.
    async fn add(&self, updates: usize, keys: usize) -> Size {
        let updates: Vec<_> = (0..updates)
            .map(|update| (format!("key {:04}", update % keys), 1))
            .collect();
        let tr = self.db.begin().unwrap();
        let updates = updates.iter().map(|(key, update)| (key, update));
        self.queue.add_all(&tr, updates).await.unwrap();
        self.commit(tr).await
    }

    /// Makes a pass over the only bucket, which reports all changes.
    async fn pass(&self) -> Size {
        let plan = Plan {
            budget: 1 << 20,
            max_changes: usize::MAX,
            withheld: None,
        };
        let tr = self.db.begin().unwrap();
        let staged = self.queue.stage_pass(&tr, Bucket(0), &plan).await.unwrap();
        assert!(!staged.pass().has_more);
        self.commit(tr).await
    }
}

#[tokio::test]
async fn additions_and_passes_stage_few_rows() {
    let world = Measured::new(16).await;
    let mut sizes = vec![
        ("add", world.add(1, 1).await),
        ("add_all of 100", world.add(100, 100).await),
    ];
    for (name, keys) in [
        ("pass over 100 updates of 100 keys", 100),
        ("pass over 100 updates of 10 keys", 10),
        ("pass over 100 updates of one key", 1),
    ] {
        let world = Measured::new(1).await;
        world.add(100, keys).await;
        sizes.push((name, world.pass().await));
    }
    let expected = [
        (2, 0, 196),
        (17, 0, 2_524),
        (101, 1, 14_697),
        (11, 1, 1_917),
        (2, 1, 642),
    ];
    for ((name, size), (written, cleared, bytes)) in sizes.iter().zip(expected) {
        println!("{name}: {size:?}");
        let expected = Size {
            written,
            cleared,
            bytes,
        };
        assert_eq!(*size, expected, "{name}");
    }
}

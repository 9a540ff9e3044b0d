//! Reads: at the head of a range that was cleared, and through rows that were just written.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use benches::arguments::Extent;
use benches::{TempStore, cores, fill, runtime};
use keyspace::embedded::{Embedded, EmbeddedTransaction, Options};
use keyspace::{
    Database, Environment, Isolation, OwnedTransaction, RangeQuery, StreamingMode, Transaction,
};
use rand::SeedableRng;
use rand::rngs::StdRng;
use tokio::runtime::Runtime;

use crate::keys::{ROW_BYTES, VALUE, all_spread, any_spread};
use crate::row::{self, Pairs, Row};
use crate::setter::{NO_HURRY, Setter, scattered, work};

/// A transaction may live for five seconds.
const READS_PER_TRANSACTION: u64 = 1_000;

fn rounds(extent: Extent) -> usize {
    extent.choose(2, 11, 21)
}

/// Returns the seconds per read, over `reads` reads.
fn seconds_per_read(reads: u64, mut read: impl FnMut()) -> f64 {
    let env = Environment::system();
    let began = env.now();
    for _ in 0..reads {
        read();
    }
    (env.now() - began).as_secs_f64() / reads as f64
}

/// Returns the seconds per read, over `reads` reads that share transactions.
fn seconds_in_transaction(
    db: &Embedded,
    reads: u64,
    mut read: impl FnMut(&EmbeddedTransaction),
) -> f64 {
    let mut tr = db.begin().expect("the store serves");
    let mut done = 0;
    seconds_per_read(reads, || {
        done += 1;
        if done % READS_PER_TRANSACTION == 0 {
            tr.reset();
        }
        read(&tr);
    })
}

/// Two ranges of rows in one store; of one of them the head is cleared.
struct Ranges {
    cleared: u64,
    runtime: Runtime,
}

impl Ranges {
    const WHOLE: u8 = 1;
    const HEADLESS: u8 = 2;

    fn key(range: u8, number: u64) -> [u8; 16] {
        let mut key = [0; 16];
        key[0] = range;
        key[8..].copy_from_slice(&number.to_be_bytes());
        key
    }

    fn fill(&self, db: &Embedded) {
        let keys = [Self::WHOLE, Self::HEADLESS].map(|range| {
            (0..2 * self.cleared).map(move |number| (Self::key(range, number), [7; 16]))
        });
        self.runtime.block_on(fill(db, keys.into_iter().flatten()));
    }

    /// Clears the first half of a range, key by key.
    fn clear_head(&self, db: &Embedded) {
        const CLEARS_PER_COMMIT: u64 = 1_000;
        for first in (0..self.cleared).step_by(CLEARS_PER_COMMIT as usize) {
            let mut tr = db.begin().expect("the store serves");
            let end = self.cleared.min(first + CLEARS_PER_COMMIT);
            (first..end).for_each(|number| tr.clear(&Self::key(Self::HEADLESS, number)));
            self.runtime
                .block_on(tr.commit())
                .expect("nothing conflicts");
        }
    }

    /// Reads the first keys of both by turns.
    fn compare(&self, db: &Embedded, place: &str, extent: Extent) -> Row {
        let reads = extent.choose(10, 20_000, 50_000);
        let first_of = |range: u8| {
            let query = RangeQuery::keys(vec![range], vec![range + 1])
                .limit(1)
                .mode(StreamingMode::Exact);
            seconds_per_read(reads, || {
                let tr = db.begin().expect("the store serves");
                let rows = ready(tr.get_range(&query, Isolation::Serializable));
                assert_eq!(rows.expect("the store serves").rows.len(), 1);
            })
        };
        Row {
            workload: format!("first key of a range after 200,000 clears at its head, {place}"),
            yardstick: "of a range without clears".to_owned(),
            pairs: Pairs::by_turns(
                rounds(extent),
                || first_of(Self::WHOLE),
                || first_of(Self::HEADLESS),
            ),
            unit: row::time,
            target: "at most 2",
        }
    }
}

/// The first key of a range whose head was cleared, for each place of the clears.
pub(crate) fn first_key(extent: Extent) -> Vec<Row> {
    let ranges = Ranges {
        cleared: extent.choose(200, 200_000, 200_000),
        runtime: runtime(cores()),
    };
    let memory = Options::new().memory().expect("a new store");
    ranges.fill(&memory);
    ranges.clear_head(&memory);

    let mut store = TempStore::new();
    ranges.fill(&store.db);
    store.reopen();
    ranges.clear_head(&store.db);
    let mut rows = vec![
        ranges.compare(&memory, "`memory:`", extent),
        ranges.compare(&store.db, "`embedded:`", extent),
    ];
    let spread_rows = extent.choose(2_000, 500_000, 500_000);
    let overwrite = || set_scattered(&ranges.runtime, &store.db, spread_rows, spread_rows);
    overwrite();
    rows.push(ranges.compare(
        &store.db,
        "`embedded:`, before 58 MiB of other sets",
        extent,
    ));
    store.reopen();
    rows.push(ranges.compare(&store.db, "`embedded:`, closed and opened again", extent));
    rows
}

/// Reads through rows that were just written, compared with those of a store with the same rows that was closed
/// and opened again.
pub(crate) fn layers(extent: Extent) -> Vec<Row> {
    let rows = extent.choose(2_000, 500_000, 500_000);
    let written_bytes: u64 = extent.choose(64 << 10, 40 << 20, 40 << 20);
    let runtime = runtime(cores());
    let store = || {
        let mut store = TempStore::new();
        runtime.block_on(fill(&store.db, all_spread(rows).map(|key| (key, VALUE))));
        store.reopen();
        read_all(&store.db);
        set_scattered(&runtime, &store.db, rows, written_bytes / ROW_BYTES);
        store
    };
    let mut settled = store();
    settled.reopen();
    read_all(&settled.db);
    let fresh = store();

    let get = |db: &Embedded| {
        let mut rng = StdRng::seed_from_u64(3);
        seconds_in_transaction(db, extent.choose(100, 50_000, 200_000), |tr| {
            let value = ready(tr.get(&any_spread(&mut rng, rows), Isolation::Snapshot));
            assert!(value.expect("the store serves").is_some());
        })
    };
    let scan = |db: &Embedded| {
        let mut rng = StdRng::seed_from_u64(3);
        seconds_in_transaction(db, extent.choose(10, 2_000, 10_000), |tr| {
            let query = RangeQuery::keys(any_spread(&mut rng, rows).to_vec(), &b"\xff"[..])
                .limit(100)
                .mode(StreamingMode::Exact);
            let page = ready(tr.get_range(&query, Isolation::Snapshot));
            assert!(!page.expect("the store serves").rows.is_empty());
        })
    };
    let row = |name, seconds: &dyn Fn(&Embedded) -> f64| Row {
        workload: format!(
            "{name} among {} rows, after 40 MiB of random sets",
            row::rate(rows as f64)
        ),
        yardstick: "closed and opened again".to_owned(),
        pairs: Pairs::by_turns(
            rounds(extent),
            || seconds(&settled.db),
            || seconds(&fresh.db),
        ),
        unit: row::time,
        target: "at most 1.5",
    };
    vec![row("get", &get), row("scan of 100", &scan)]
}

/// Sets `sets` random ones of the `rows` rows.
fn set_scattered(runtime: &Runtime, db: &Embedded, rows: u64, sets: u64) {
    let setter = Setter {
        db: db.clone(),
        next_key: scattered(rows, 1),
        rows_per_commit: 100,
        rows_left: Arc::new(AtomicU64::new(sets)),
    };
    work(runtime, [setter], NO_HURRY);
}

/// Reads every row once, so that what follows finds the blocks in memory.
fn read_all(db: &Embedded) {
    let mut begin = Vec::new();
    loop {
        let tr = db.begin().expect("the store serves");
        let query = RangeQuery::keys(begin, &b"\xff"[..]).mode(StreamingMode::WantAll);
        let page = ready(tr.get_range(&query, Isolation::Snapshot)).expect("the store serves");
        let Some(last) = page.rows.last() else {
            return;
        };
        begin = [last.key(), b"\0"].concat();
    }
}

/// Takes the answer of a read, which the embedded store has ready at the call.
fn ready<T>(read: impl Future<Output = T>) -> T {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::pin!(read).poll(&mut context) {
        std::task::Poll::Ready(value) => value,
        std::task::Poll::Pending => panic!("a read of the embedded store is never pending"),
    }
}

//! Sets of random keys in a large store, each of which belongs to another block of the runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use benches::arguments::Extent;
use benches::shift::{Act, Burst, Work};
use benches::{TempStore, cores, fill, runtime};
use keyspace::Environment;
use keyspace::embedded::Embedded;
use tokio::runtime::Runtime;

use crate::keys::{ROW_BYTES, VALUE, all_spread};
use crate::row::{self, Pairs, Row};
use crate::setter::{NO_HURRY, Setter, in_order, latency, no_limit, rate, scattered, work};

const WRITERS: u64 = 8;
const ROWS_PER_COMMIT: u64 = 100;

/// How long a writer rests after each commit where the load is to stay below what the store can take: together
/// the writers set about 50,000 rows a second.
const REST: Duration = Duration::from_millis(13);

/// The sets of the writers, and the commits of a task that commits one set at a time meanwhile.
struct Phase {
    rows_per_second: f64,
    lone_late_seconds: f64,
    lone_longest_seconds: f64,
}

/// A burst from a store at rest, and what is left of its rate in the long run.
pub(crate) fn measure(extent: Extent) -> Vec<Row> {
    let rows = extent.choose(2_000, 1_000_000, 10_000_000);
    let burst_bytes = extent.choose(256 << 10, 48 << 20, 48 << 20);
    let time = Duration::from_millis(extent.choose(20, 15_000, 60_000));
    let runtime = runtime(cores());
    let ordered = burst_in_order(&runtime, burst_bytes);

    let mut store = TempStore::new();
    runtime.block_on(fill(&store.db, all_spread(rows).map(|key| (key, VALUE))));
    store.reopen();
    let mut load = Scattered {
        db: &store.db,
        rows,
        seed: 0,
    };
    let at_rest = latency(work(&runtime, [load.setter(1, &no_limit())], time / 5), 99);
    let burst = load.run(&runtime, &row_limit(burst_bytes), NO_HURRY, None);
    // Until the window is full, what follows is still a burst.
    load.run(&runtime, &no_limit(), time / 3, None);
    let sustained = load.run(&runtime, &no_limit(), time, None);
    let rest = Some(extent.choose(Duration::from_millis(1), REST, REST));
    let resting = load.run(&runtime, &no_limit(), time, rest);

    let setting = format!("random keys among {}", row::rate(rows as f64));
    let late = |phase: &Phase, name: &str| Row {
        workload: format!("a lone commit's 99th percentile during {name}"),
        yardstick: "in the store at rest".to_owned(),
        pairs: Pairs::once(at_rest, phase.lone_late_seconds),
        unit: row::time,
        target: "at most 5",
    };
    vec![
        Row {
            workload: format!("sets per second, {setting}, the first 48 MiB"),
            yardstick: "keys in order, in a new store".to_owned(),
            pairs: Pairs::once(ordered, burst.rows_per_second),
            unit: row::rate,
            target: "at least 250,000",
        },
        late(&burst, "the first sets"),
        Row {
            workload: format!("sets per second, {setting}, sustained"),
            yardstick: "keys in order, in a new store".to_owned(),
            pairs: Pairs::once(ordered, sustained.rows_per_second),
            unit: row::rate,
            target: "at least 250,000",
        },
        late(&sustained, "the sustained sets"),
        Row {
            workload: "the longest lone commit during the sustained sets".to_owned(),
            yardstick: "the 99th percentile in the store at rest".to_owned(),
            pairs: Pairs::once(at_rest, sustained.lone_longest_seconds),
            unit: row::time,
            target: "",
        },
        late(
            &resting,
            &format!(
                "{} such sets per second",
                row::rate(resting.rows_per_second)
            ),
        ),
    ]
}

/// Sets rows of `bytes` bytes together, in key order and in a new store; returns the rows per second.
fn burst_in_order(runtime: &Runtime, bytes: u64) -> f64 {
    let store = TempStore::new();
    let next_key = in_order(0);
    let rows_left = row_limit(bytes);
    let setters = (0..WRITERS).map(|_| Setter {
        db: store.db.clone(),
        next_key: next_key.clone(),
        rows_per_commit: ROWS_PER_COMMIT,
        rows_left: rows_left.clone(),
    });
    rows_per_second(&work(runtime, setters, NO_HURRY))
}

/// Tasks that set random rows of a store.
struct Scattered<'a> {
    db: &'a Embedded,
    /// How many rows the store has.
    rows: u64,
    /// Another one for each task.
    seed: u64,
}

impl Scattered<'_> {
    fn setter(
        &mut self,
        rows_per_commit: u64,
        rows_left: &Arc<AtomicU64>,
    ) -> Setter<impl FnMut() -> [u8; 16] + Send + use<>> {
        self.seed += 1;
        Setter {
            db: self.db.clone(),
            next_key: scattered(self.rows, self.seed),
            rows_per_commit,
            rows_left: rows_left.clone(),
        }
    }

    /// Has writers set rows, until there are enough or the time is over, and a task commit one set at a
    /// time.
    fn run(
        &mut self,
        runtime: &Runtime,
        rows_left: &Arc<AtomicU64>,
        time: Duration,
        rest: Option<Duration>,
    ) -> Phase {
        let lone = self.setter(1, rows_left);
        let writers: Vec<_> = (0..WRITERS)
            .map(|_| Resting {
                worker: self.setter(ROWS_PER_COMMIT, rows_left),
                rest,
            })
            .collect();
        // It has a thread of its own, so that it waits for the store, and not for the tasks of the writers.
        let alone_runtime = benches::runtime(1);
        let (written, alone) = thread::scope(|scope| {
            let alone = scope.spawn(|| work(&alone_runtime, [lone], time));
            let written = work(runtime, writers, time);
            // The lone task ends with the others.
            rows_left.store(0, Ordering::Relaxed);
            (written, alone.join().expect("the lone task does not panic"))
        });
        let longest = alone.took_micros.iter().max().copied();
        Phase {
            rows_per_second: rows_per_second(&written),
            lone_longest_seconds: longest.map_or(f64::NAN, |micros| f64::from(micros) / 1e6),
            lone_late_seconds: latency(alone, 99),
        }
    }
}

/// A worker that may rest after each act.
struct Resting<W> {
    worker: W,
    rest: Option<Duration>,
}

impl<W: Work> Work for Resting<W> {
    async fn act(&mut self, deadline: Duration) -> Act {
        let act = self.worker.act(deadline).await;
        if let Some(rest) = self.rest {
            Environment::system().sleep(rest).await;
        }
        act
    }
}

fn row_limit(bytes: u64) -> Arc<AtomicU64> {
    Arc::new(AtomicU64::new(bytes / ROW_BYTES))
}

fn rows_per_second(burst: &Burst) -> f64 {
    rate(burst) * ROWS_PER_COMMIT as f64
}

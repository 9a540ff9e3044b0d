//! Bytes written to the store's files for items that live for a moment, as those of a queue do.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use benches::arguments::Extent;
use benches::shift::{Act, Work};
use benches::{TempStore, cores, runtime};
use keyspace::embedded::Embedded;
use keyspace::{Database, Environment, OwnedTransaction, Transaction};

use crate::disk::written_bytes;
use crate::keys::{VALUE, ascending};
use crate::row::{self, Pairs, Row};
use crate::setter::work;

/// How long an item lives.
const LIFE: Duration = Duration::from_millis(10);

/// A task that sets items, and clears each when it has lived long enough: two commits an item.
struct Passing {
    db: Embedded,
    env: Environment,
    /// The number of the next item of any task.
    next: Arc<AtomicU64>,
    /// The live items, and when they were set; the oldest first.
    live: VecDeque<([u8; 16], Duration)>,
}

impl Work for Passing {
    async fn act(&mut self, _deadline: Duration) -> Act {
        let key = ascending(self.next.fetch_add(1, Ordering::Relaxed));
        self.commit(|tr| tr.set(&key, &VALUE)).await;
        let now = self.env.now();
        self.live.push_back((key, now));
        while let Some((key, since)) = self.live.front()
            && now - *since >= LIFE
        {
            self.commit(|tr| tr.clear(key)).await;
            self.live.pop_front();
        }
        Act::Done
    }
}

impl Passing {
    async fn commit(&self, stage: impl FnOnce(&<Embedded as Database>::Transaction)) {
        let mut tr = self.db.begin().expect("the store serves");
        stage(&tr);
        tr.commit().await.expect("nothing conflicts");
    }
}

/// Sets a large value `times` times over. Enough of it, and the log uses its files again, which are written with
/// zeros when they are made.
async fn turn_log_over(db: &Embedded, times: usize) {
    let value = vec![7; 90_000];
    for _ in 0..times {
        let mut tr = db.begin().expect("the store serves");
        tr.set(b"large", &value);
        tr.commit().await.expect("nothing conflicts");
    }
}

/// Items by one task, and by tasks that share flushes.
pub(crate) fn measure(extent: Extent) -> Vec<Row> {
    let time = Duration::from_millis(extent.choose(20, 5_000, 20_000));
    let turns = extent.choose(1, 2_000, 2_000);
    let mut rows = Vec::new();
    for (tasks, target) in [
        (1, "at most 85"),
        (16, "at most 3.5"),
        (32, "at most 3.5"),
        (64, "at most 3.5"),
    ] {
        let Some(measured) = bytes_per_item(tasks, turns, time) else {
            let skipped =
                "skipped: written: the system does not report the bytes that a process writes";
            writeln!(io::stderr(), "{skipped}").expect("the standard error is there");
            return rows;
        };
        rows.push(Row {
            workload: format!("bytes written for an item that lives 10 ms, tasks: {tasks}"),
            yardstick: "the item".to_owned(),
            pairs: Pairs::once(VALUE.len() as f64, measured),
            unit: row::bytes,
            target,
        });
    }
    rows
}

/// Returns the bytes written per item, after a warm-up. `None` if the system does not report them.
fn bytes_per_item(tasks: usize, turns: usize, time: Duration) -> Option<f64> {
    let runtime = runtime(cores());
    let store = TempStore::new();
    let next = Arc::new(AtomicU64::new(0));
    let pass = |time| {
        let passing = (0..tasks).map(|_| Passing {
            db: store.db.clone(),
            env: Environment::system(),
            next: next.clone(),
            live: VecDeque::new(),
        });
        work(&runtime, passing, time);
    };
    runtime.block_on(turn_log_over(&store.db, turns));
    pass(time / 2);
    let items = next.load(Ordering::Relaxed);
    let bytes = written_bytes()?;
    pass(time);
    let items = next.load(Ordering::Relaxed) - items;
    Some((written_bytes()? - bytes) as f64 / items as f64)
}

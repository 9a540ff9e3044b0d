//! A measure by x, y and time with its sums: a tree of combine queues. Each level adds its changes to the
//! levels below it, in the transaction that makes them.
//!
//! ```text
//! xyt -+- xy -+- x
//!      |      +- y
//!      +- xt --- t
//!      +- yt
//! ```
//!
//! Every measurement counts exactly once on every level, even if processes die at any moment.

use std::collections::BTreeMap;
use std::time::Duration;

use combine::keyspace::{self, Isolation, Runner, Store, Subspace, Transaction};
use combine::{BoxError, Change, ChangeObserver, CombineQueue, Error, Result, Sum, WorkerOptions};
use futures::future::try_join_all;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

use crate::say;

/// The levels, each with the levels below it. A level comes after the one that adds to it.
const TREE: [(&str, &[&str]); 7] = [
    ("xyt", &["xy", "xt", "yt"]),
    ("xy", &["x", "y"]),
    ("xt", &["t"]),
    ("yt", &[]),
    ("x", &[]),
    ("y", &[]),
    ("t", &[]),
];

const WAVES: u64 = 4;

/// A cell, without the coordinates that are summed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Cell {
    x: Option<u8>,
    y: Option<u8>,
    t: Option<u8>,
}

impl Cell {
    /// Returns the cell of a level that contains this one.
    fn on(self, level: &str) -> Self {
        let keep = |name, coordinate: Option<u8>| coordinate.filter(|_| level.contains(name));
        Self {
            x: keep('x', self.x),
            y: keep('y', self.y),
            t: keep('t', self.t),
        }
    }
}

type Cube = BTreeMap<Cell, i64>;

/// Returns the sums of a level for another level.
fn sum_up(cells: impl IntoIterator<Item = (Cell, i64)>, level: &str) -> Cube {
    let mut cube = Cube::new();
    for (cell, measure) in cells {
        *cube.entry(cell.on(level)).or_default() += measure;
    }
    cube.retain(|_, sum| *sum != 0);
    cube
}

type Sums = CombineQueue<Cell, i64>;

/// Adds the changes of a level to the levels below it.
struct RollUp(Vec<(&'static str, Sums)>);

impl ChangeObserver<Cell, i64> for RollUp {
    async fn observe<T: Transaction>(
        &self,
        tr: &T,
        changes: &[Change<Cell, i64>],
    ) -> Result<(), BoxError> {
        let difference = |change: &Change<Cell, i64>| {
            let measure = change.new.unwrap_or(0) - change.old.unwrap_or(0);
            (change.key, measure)
        };
        for (level, sums) in &self.0 {
            let updates = sum_up(changes.iter().map(difference), level);
            sums.add_all(tr, &updates).await?;
        }
        Ok(())
    }
}

/// Measures in waves, and checks every level after each.
///
/// # Errors
/// Those of the queue.
pub async fn run(runner: &Runner<Store>, root: &Subspace) -> Result<()> {
    let mut levels = BTreeMap::new();
    for (level, _) in TREE {
        let sums = CombineQueue::open(runner, root.subspace(&level), Sum);
        levels.insert(level, sums.await?);
    }
    let mut workers = Vec::new();
    for (level, below) in TREE {
        let below = below.iter().map(|below| (*below, levels[below].clone()));
        let work = levels[level].work(runner, WorkerOptions::default(), RollUp(below.collect()));
        workers.push(work.await?);
    }

    let mut expected = read(runner, &levels["xyt"]).await?;
    for wave in 0..WAVES {
        let measured = match wave {
            // The last wave takes all measurements back.
            _ if wave == WAVES - 1 => expected.iter().map(|(cell, sum)| (*cell, -sum)).collect(),
            _ => measure(wave),
        };
        expected = sum_up(expected.into_iter().chain(measured.clone()), "xyt");
        add(runner, &levels["xyt"], &measured).await?;
        for (level, _) in TREE {
            // Once the levels above are idle, nothing is added to this level any more.
            levels[level].wait_idle(runner).await?;
            let sums = read(runner, &levels[level]).await?;
            assert_eq!(sums, sum_up(expected.clone(), level), "{level}");
            say(format_args!("wave {wave}: {} cells by {level}", sums.len()));
        }
    }
    assert!(expected.is_empty());
    for worker in workers {
        worker.shut_down(Duration::from_secs(60)).await?;
    }
    Ok(())
}

/// Returns measurements, some of them of the same cell.
fn measure(seed: u64) -> Vec<(Cell, i64)> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut coordinate = |end| Some(rng.random_range(0..end));
    let mut cell = || Cell {
        x: coordinate(5),
        y: coordinate(4),
        t: coordinate(10),
    };
    (1..=300).map(|measure| (cell(), measure)).collect()
}

/// Adds measurements in many concurrent transactions.
async fn add(runner: &Runner<Store>, sums: &Sums, measured: &[(Cell, i64)]) -> Result<()> {
    let transactions = measured.chunks(10).map(|updates| {
        let add = move |tr| async move {
            sums.add_all(&tr, updates.iter().map(|(key, value)| (key, value)))
                .await
        };
        runner.run(add)
    });
    try_join_all(transactions).await?;
    Ok(())
}

/// Reads a level.
async fn read(runner: &Runner<Store>, sums: &Sums) -> Result<Cube> {
    let read = |tr| async move {
        let sums = sums
            .values(&tr, None, usize::MAX, Isolation::Snapshot)
            .await?
            .into_iter()
            .map(|listed| listed.value);
        Ok::<_, Error>(
            sums.collect::<Result<_, _>>()
                .map_err(keyspace::Error::from)?,
        )
    };
    runner.run(read).await
}

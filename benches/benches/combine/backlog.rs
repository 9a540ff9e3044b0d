//! A worker that drains a backlog.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use benches::adder::{Added, Adder};
use benches::contender::Site;
use benches::plot::{self, Curve, Hue, Panel};
use benches::stage::{Stage, runtime};
use benches::table::Table;
use benches::{load, run_tasks};
use conformance::scale;
use keyspace::Environment;

use crate::spread::Spread;
use crate::trial::{BYTES_PER_PASS, site};

/// How many updates are put into the queue in a commit.
const UPDATES_PER_COMMIT: u64 = 1_000;

/// How many tasks do so.
const FILLERS: usize = 8;

/// How many updates each key has, on average.
const UPDATES_PER_KEY: u64 = 10;

/// A backlog, and what came of it.
pub(crate) struct Drained {
    updates: u64,
    took: Duration,
}

impl Drained {
    fn rate(&self) -> f64 {
        self.updates as f64 / self.took.as_secs_f64()
    }
}

/// Drains backlogs of several sizes.
pub(crate) fn measure(stage: &Stage) -> Vec<Drained> {
    let mut sizes = vec![10_000, 100_000, 1_000_000];
    // What a cluster of one process holds in memory ends at a few millions.
    if stage.kind() != "fdb" && scale(0, 1) == 1 {
        sizes.push(10_000_000);
    }
    let drain = |updates| {
        stage.on_a_clean_place(|place| {
            let site = site(stage, place);
            let took = runtime().block_on(async {
                fill(&site, updates).await;
                drain(&site, updates).await
            });
            Drained { updates, took }
        })
    };
    sizes.into_iter().map(drain).collect()
}

/// Puts updates into a queue, and lets the store digest them.
async fn fill(site: &Site, updates: u64) {
    let queue = Arc::new(Added::open(site).await);
    let spread = Spread::Even(updates / UPDATES_PER_KEY);
    let add = move |number| {
        let queue = queue.clone();
        async move {
            let keys = spread.keys(number).take(UPDATES_PER_COMMIT as usize);
            queue.add(&keys.collect::<Vec<_>>()).await;
        }
    };
    let commits = updates / UPDATES_PER_COMMIT;
    run_tasks(&Environment::system(), FILLERS, commits, add).await;
    load::digest(updates).await;
}

/// Returns how long a worker takes for all updates of a queue.
async fn drain(site: &Site, updates: u64) -> Duration {
    let queue = Added::open(site).await;
    let env = Environment::system();
    let began = env.now();
    let worker = queue.work(BYTES_PER_PASS).await;
    queue.settle().await;
    let took = env.now() - began;
    assert_eq!(queue.total().await, updates);
    worker.stop().await;
    took
}

/// Returns the table of what was drained.
pub(crate) fn table(drained: &[Drained]) -> String {
    let mut table = Table::new(["backlog", "time", "updates per second"]);
    for backlog in drained {
        table.push([
            backlog.updates.to_string(),
            format!("{:.2} s", backlog.took.as_secs_f64()),
            format!("{:.0}", backlog.rate()),
        ]);
    }
    format!("A backlog drained by one worker, {UPDATES_PER_KEY} updates of each key\n\n{table}")
}

/// Draws the rate over the backlog, and returns the file.
pub(crate) fn draw(stage: &Stage, drained: &[Drained]) -> PathBuf {
    let point = |backlog: &Drained| (backlog.updates as f64, backlog.rate());
    let panel = Panel {
        title: "updates per second",
        over: "backlog",
        factor: 10.0,
        digits: 0,
        curves: vec![Curve {
            name: "one worker",
            hue: Hue::Blue,
            points: drained.iter().map(point).collect(),
        }],
    };
    plot::draw(&format!("combine-backlog-{}", stage.kind()), &[panel])
}

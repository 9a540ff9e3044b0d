//! An exporter whose calls take a while, called for several buckets at once.

use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

use benches::figures::{Figures, Rounds, turns};
use benches::plot::{self, Curve, Hue, Panel};
use benches::stage::{Stage, runtime};
use benches::table::Table;
use conformance::scale;
use export_queue::{Settings, WorkerOptions};

use crate::log::{ENTRIES_PER_COMMIT, Log};

/// How long a call takes.
const CALL_TAKES: Duration = Duration::from_millis(10);

/// How many bytes of entries a call gets: so few that the calls take longer than everything else.
const BYTES_PER_BATCH: usize = 5_000;

/// The outcome with a number of buckets at once.
struct ConcurrencyOutcome {
    concurrency: usize,
    rounds: Rounds,
    calls: u64,
}

/// Exports logs with several concurrencies.
pub(crate) fn measure(stage: &Stage, draws: bool) -> String {
    let commits = scale(8, 32) as u64;
    let mut outcomes = [1, 2, 4, 8, 16].map(|concurrency| ConcurrencyOutcome {
        concurrency,
        rounds: Rounds::default(),
        calls: 0,
    });
    for turn in turns(outcomes.len(), scale(1, 3)) {
        outcomes[turn].measure(stage, commits);
    }
    let mut told = format!(
        "A log of {} entries in {} buckets, calls of {} ms\n\n{}",
        commits * ENTRIES_PER_COMMIT,
        Settings::default().bucket_count(),
        CALL_TAKES.as_millis(),
        table(&outcomes)
    );
    if draws {
        let path = draw(stage, &outcomes);
        write!(told, "\n\n{}", path.display()).expect("a text can be written");
    }
    told
}

impl ConcurrencyOutcome {
    fn measure(&mut self, stage: &Stage, commits: u64) {
        let exported = stage.on_a_clean_place(|place| {
            runtime().block_on(async {
                let log = Log::fill(stage, place, commits).await;
                let options = WorkerOptions::new()
                    .with_concurrency(self.concurrency)
                    .with_max_batch_bytes(BYTES_PER_BATCH);
                log.export(options, CALL_TAKES).await
            })
        });
        let entries = (commits * ENTRIES_PER_COMMIT) as f64;
        let rate = entries / exported.took.as_secs_f64();
        self.rounds.push(Figures::of_rate(rate));
        self.calls = exported.calls;
    }

    fn rate(&self) -> f64 {
        self.rounds.median(|figures| figures.rate)
    }
}

fn table(outcomes: &[ConcurrencyOutcome]) -> Table {
    let mut table = Table::new([
        "buckets at once",
        "entries per second",
        "times one",
        "calls",
    ]);
    for outcome in outcomes {
        table.push([
            outcome.concurrency.to_string(),
            format!("{:.0}", outcome.rate()),
            format!("{:.2}", outcome.rounds.median_ratio(&outcomes[0].rounds)),
            outcome.calls.to_string(),
        ]);
    }
    table
}

/// Draws the rate over the concurrency, and returns the file.
fn draw(stage: &Stage, outcomes: &[ConcurrencyOutcome]) -> PathBuf {
    let point = |outcome: &ConcurrencyOutcome| (outcome.concurrency as f64, outcome.rate());
    let panel = Panel {
        title: "entries per second",
        over: "buckets at once",
        factor: 2.0,
        digits: 0,
        curves: vec![Curve {
            name: "calls of 10 ms",
            hue: Hue::Blue,
            points: outcomes.iter().map(point).collect(),
        }],
    };
    let name = format!("export_queue-concurrency-{}", stage.kind());
    plot::draw(&name, &[panel])
}

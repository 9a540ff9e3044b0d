//! The workloads by name, and their rounds.

use std::path::PathBuf;
use std::time::Duration;

use benches::figures::Figures;
use benches::plot::{self, Curve, Hue, Panel};
use benches::stage::Stage;
use conformance::scale;

use crate::spread::Spread;
use crate::trial::{Setting, Way};

/// Settings that belong into one table, and the ways to add that are compared in them.
pub(crate) type Workload = benches::workload::Workload<Setting, Way>;

/// The outcome of a way to add in a setting.
pub(crate) type Outcome = benches::workload::Outcome<Setting, Way>;

/// The outcome of a workload, setting by setting.
pub(crate) type Results = Vec<Outcome>;

/// Returns all workloads.
pub(crate) fn all() -> [Workload; 4] {
    [
        Workload {
            name: "writers",
            title: "Writers of one hot key, one update in a commit",
            is_curve: true,
            settings: [1, 4, 16, 64, 256]
                .map(|writers| setting(writers, Spread::Hot, 1))
                .into(),
            ways: &[Way::BlindSets, Way::ReadModifyWrite, Way::Added],
        },
        Workload {
            name: "spread",
            title: "64 writers of a million keys, one update in a commit",
            is_curve: false,
            settings: spreads(1),
            ways: &[
                Way::BlindSets,
                Way::ReadModifyWrite,
                Way::Staged,
                Way::Added,
            ],
        },
        Workload {
            name: "batches",
            title: "64 writers of a million keys, a hundred updates in a commit",
            is_curve: false,
            settings: spreads(100),
            ways: &[Way::BlindSets, Way::Staged, Way::Added],
        },
        Workload {
            name: "settled",
            title: "64 writers of a million keys, while a worker combines, until nothing is left",
            is_curve: false,
            settings: spreads(1),
            ways: &[Way::BlindSets, Way::Settled],
        },
    ]
}

/// Returns the settings of 64 writers of a million keys.
fn spreads(keys_per_commit: usize) -> Vec<Setting> {
    [Spread::EVEN, Spread::Zipf]
        .map(|spread| setting(64, spread, keys_per_commit))
        .into()
}

fn setting(writers: u64, spread: Spread, keys_per_commit: usize) -> Setting {
    Setting {
        writers,
        spread,
        keys_per_commit,
        time: Duration::from_millis(scale(1_000, 5_000) as u64),
    }
}

/// Runs all rounds.
pub(crate) fn run(workload: &Workload, stage: &Stage) -> Results {
    workload.run(scale(3, 7), |setting, way| setting.measure(way, stage))
}

/// Draws throughput and conflicts over the number of writers, and returns the file.
pub(crate) fn draw(workload: &Workload, stage: &Stage, results: &Results) -> PathBuf {
    let panel = |title, digits, figure: fn(&Figures) -> f64| Panel {
        title,
        over: "writers",
        factor: 2.0,
        digits,
        curves: (workload.ways.iter().map(|way| curve(*way, results, figure))).collect(),
    };
    let panels = [
        panel("updates per second", 0, |figures| figures.rate),
        panel("conflicts per update", 1, |figures| {
            figures.conflicts_per_item
        }),
    ];
    plot::draw(
        &format!("combine-{}-{}", workload.name, stage.kind()),
        &panels,
    )
}

fn curve(way: Way, results: &Results, figure: fn(&Figures) -> f64) -> Curve {
    let point = |outcome: &Outcome| {
        let writers = outcome.setting.writers as f64;
        (writers, outcome.rounds.median(figure))
    };
    let of_way = results.iter().filter(|outcome| outcome.way == way);
    Curve {
        name: way.name(),
        hue: match way {
            Way::BlindSets => Hue::Gray,
            Way::ReadModifyWrite => Hue::Red,
            Way::Staged => Hue::Sky,
            Way::Added => Hue::Blue,
            Way::Settled => Hue::Orange,
        },
        points: of_way.map(point).collect(),
    }
}

//! Results as curves over the number of consumers.

use std::path::PathBuf;

use benches::figures::Figures;
use benches::plot::{self, Curve, Hue, Panel};
use benches::stage::Stage;

use crate::trial::Way;
use crate::workload::{Outcome, Results};

/// Draws throughput and conflicts and returns the file.
pub(crate) fn draw(workload: &str, stage: &Stage, results: &Results) -> PathBuf {
    let panel = |title, digits, figure: fn(&Figures) -> f64| Panel {
        title,
        over: "consumers",
        factor: 2.0,
        digits,
        curves: Way::WITHOUT_GROUPS
            .map(|way| curve(way, results, figure))
            .into(),
    };
    let panels = [
        panel("items per second", 0, |figures| figures.rate),
        panel("conflicts per item", 1, |figures| {
            figures.conflicts_per_item
        }),
    ];
    plot::draw(&format!("hc_dequeue-{workload}-{}", stage.kind()), &panels)
}

fn curve(way: Way, results: &Results, figure: fn(&Figures) -> f64) -> Curve {
    let point = |outcome: &Outcome| {
        let consumers = outcome.setting.consumers() as f64;
        (consumers, outcome.rounds.median(figure))
    };
    let of_way = results.iter().filter(|outcome| outcome.way == way);
    Curve {
        name: way.name(),
        hue: hue(way),
        points: of_way.map(point).collect(),
    }
}

fn hue(way: Way) -> Hue {
    match way {
        Way::Naive => Hue::Red,
        Way::Classic => Hue::Orange,
        Way::Popped => Hue::Blue,
        Way::Acknowledged => Hue::Sky,
        // Ways with groups are in no curve.
        _ => Hue::Gray,
    }
}

//! Results as a table.

use benches::figures::Figures;
use benches::table::Table;

use crate::spread::Spread;
use crate::trial::{Setting, Way};
use crate::workload::{Outcome, Results};

/// Returns the table of a workload: a line for each way in each setting.
pub(crate) fn of(results: &Results) -> Table {
    let mut titles: Vec<_> = ["writers", "keys", "way", "updates per second"]
        .map(str::to_owned)
        .into();
    titles.extend(Way::YARDSTICKS.map(|yardstick| format!("times {}", yardstick.name())));
    let figures = [
        "times the same on even keys",
        "conflicts per commit",
        "median",
        "99th percentile",
        "bytes written per commit",
    ];
    titles.extend(figures.map(str::to_owned));
    let mut table = Table::new(titles);
    for outcome in results {
        table.push(cells(outcome, results));
    }
    table
}

fn cells(outcome: &Outcome, results: &Results) -> Vec<String> {
    let setting = outcome.setting;
    let rounds = &outcome.rounds;
    let median = |figure: fn(&Figures) -> f64| rounds.median(figure);
    let times = |setting: Setting, way| {
        let other = results
            .iter()
            .find(|other| other.setting == setting && other.way == way);
        other.map_or_else(String::new, |other| {
            format!("{:.2}", rounds.median_ratio(&other.rounds))
        })
    };
    let mut cells = vec![
        setting.writers.to_string(),
        setting.spread.name(),
        outcome.way.name().to_owned(),
        format!("{:.0}", median(|figures| figures.rate)),
    ];
    cells.extend(Way::YARDSTICKS.map(|yardstick| times(setting, yardstick)));
    let even = Setting {
        spread: Spread::EVEN,
        ..setting
    };
    cells.extend([
        times(even, outcome.way),
        format!("{:.3}", median(|figures| figures.conflicts_per_item)),
        format!("{:.1} ms", median(|figures| figures.median_millis)),
        format!("{:.1} ms", median(|figures| figures.late_millis)),
        format!("{:.0}", median(|figures| figures.bytes_per_item)),
    ]);
    cells
}

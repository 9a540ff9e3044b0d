//! Results as a table.

use benches::figures::Figures;
use benches::table::Table;

use crate::trial::Way;
use crate::workload::{Outcome, Results};

/// Returns the table of a workload: a line for each way in each setting.
pub(crate) fn of(results: &Results) -> Table {
    let mut titles: Vec<_> = ["processes", "sessions", "consumers", "backlog", "way"]
        .map(str::to_owned)
        .into();
    titles.push("items per second".to_owned());
    titles.extend(Way::YARDSTICKS.map(|yardstick| format!("times {}", yardstick.name())));
    let figures = [
        "conflicts per item",
        "median",
        "99th percentile",
        "commits per item",
        "bytes written per item",
    ];
    titles.extend(figures.map(str::to_owned));
    let mut table = Table::new(titles);
    for ways in results.chunk_by(|one, next| one.setting == next.setting) {
        for outcome in ways {
            table.push(cells(outcome, ways));
        }
    }
    table
}

fn cells(outcome: &Outcome, ways: &[Outcome]) -> Vec<String> {
    let setting = &outcome.setting;
    let median = |figure: fn(&Figures) -> f64| outcome.rounds.median(figure);
    let mut cells = vec![
        setting.processes.to_string(),
        setting.sessions().to_string(),
        setting.consumers().to_string(),
        setting.backlog().to_string(),
        outcome.way.name().to_owned(),
        format!("{:.0}", median(|figures| figures.rate)),
    ];
    let yardsticks = Way::YARDSTICKS.map(|yardstick| {
        let other = ways.iter().find(|other| other.way == yardstick);
        other.map_or_else(String::new, |other| {
            format!("{:.2}", outcome.rounds.median_ratio(&other.rounds))
        })
    });
    cells.extend(yardsticks);
    cells.extend([
        format!("{:.3}", median(|figures| figures.conflicts_per_item)),
        format!("{:.1} ms", median(|figures| figures.median_millis)),
        format!("{:.1} ms", median(|figures| figures.late_millis)),
        format!("{:.2}", median(|figures| figures.commits_per_item)),
        format!("{:.0}", median(|figures| figures.bytes_per_item)),
    ]);
    cells
}

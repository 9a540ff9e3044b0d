//! What groups cost: each way against the same without groups.

use benches::stage::Stage;
use benches::table::Table;

use crate::trial::{Setting, Way};
use crate::workload::{Workload, pop, run};

/// A way in a setting, and what it is measured by.
pub(crate) struct Comparison {
    pub(crate) way: Way,
    pub(crate) yardstick: Way,
    pub(crate) setting: Setting,
    /// The setting of the yardstick, if it is another one.
    pub(crate) other: Option<Setting>,
}

fn comparisons() -> Vec<Comparison> {
    let compare = |way, yardstick, setting| Comparison {
        way,
        yardstick,
        setting,
        other: None,
    };
    let waiting = pop(1, 1, 64).with_backlog(100_000);
    vec![
        compare(Way::ThousandGroups, Way::Popped, pop(1, 1, 64)),
        compare(Way::ThousandGroupsOfWeight8, Way::Popped, pop(1, 1, 64)),
        compare(
            Way::ThousandGroupsAcknowledged,
            Way::Acknowledged,
            pop(1, 1, 64),
        ),
        compare(Way::Rated, Way::ThousandGroups, pop(1, 1, 64)),
        compare(Way::Limited, Way::Acknowledged, pop(4, 1, 16)),
        compare(Way::ManyGroups, Way::HundredGroups, waiting),
        Comparison {
            other: Some(pop(1, 1, 1)),
            ..compare(Way::Ordered, Way::Acknowledged, pop(1, 1, 16))
        },
    ]
}

/// Returns the table of groups.
pub(crate) fn table(stage: &Stage) -> Table {
    table_of(stage, comparisons())
}

/// Returns the table of comparisons.
pub(crate) fn table_of(stage: &Stage, comparisons: Vec<Comparison>) -> Table {
    let mut table = Table::new([
        "items",
        "processes",
        "consumers",
        "items per second",
        "measured by",
        "times as many",
        "conflicts per item",
        "99th percentile",
    ]);
    for comparison in comparisons {
        let Comparison {
            way,
            yardstick,
            setting,
            other,
        } = comparison;
        if setting.processes > 1 && !stage.is_shared() {
            continue;
        }
        let measure = |setting, ways| {
            let workload = Workload {
                name: "groups",
                title: "",
                is_curve: false,
                settings: vec![setting],
                ways,
            };
            run(&workload, stage)
        };
        let ways: &'static [Way] = Box::leak(Box::new([way, yardstick]));
        let mut outcomes = measure(setting, ways);
        if let Some(other) = other {
            outcomes[1] = measure(other, &ways[1..]).remove(0);
        }
        let [with, without] = &outcomes[..] else {
            unreachable!("two ways");
        };
        let median = |figure: fn(&benches::figures::Figures) -> f64| with.rounds.median(figure);
        table.push([
            way.name().to_owned(),
            setting.processes.to_string(),
            setting.consumers().to_string(),
            format!("{:.0}", median(|figures| figures.rate)),
            yardstick.name().to_owned(),
            format!("{:.2}", with.rounds.median_ratio(&without.rounds)),
            format!("{:.3}", median(|figures| figures.conflicts_per_item)),
            format!("{:.1} ms", median(|figures| figures.late_millis)),
        ]);
    }
    table
}

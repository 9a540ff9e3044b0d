//! Workloads: ways to do something, measured in settings, in turns.

use crate::figures::{Figures, Rounds, turns};

/// Settings that belong into one table, and the ways that are compared in them.
#[derive(Debug)]
pub struct Workload<S, W: 'static> {
    /// What it is called on the command line.
    pub name: &'static str,
    /// What stands above its table.
    pub title: &'static str,
    /// Whether the settings differ by a number over which a curve can be drawn.
    pub is_curve: bool,
    /// The settings.
    pub settings: Vec<S>,
    /// The ways.
    pub ways: &'static [W],
}

/// The outcome of a way in a setting.
#[derive(Debug)]
pub struct Outcome<S, W> {
    /// The setting.
    pub setting: S,
    /// The way.
    pub way: W,
    /// The figures of each round.
    pub rounds: Rounds,
}

impl<S: Copy, W: Copy> Workload<S, W> {
    /// Runs a number of rounds. In each round every way takes its turn in every setting, and the order rotates.
    /// Returns the outcomes, setting by setting.
    pub fn run(&self, rounds: usize, measure: impl Fn(S, W) -> Figures) -> Vec<Outcome<S, W>> {
        let in_setting = |&setting: &S| {
            self.ways.iter().map(move |&way| Outcome {
                setting,
                way,
                rounds: Rounds::default(),
            })
        };
        let mut outcomes: Vec<_> = self.settings.iter().flat_map(in_setting).collect();
        for turn in turns(outcomes.len(), rounds) {
            let outcome = &mut outcomes[turn];
            let figures = measure(outcome.setting, outcome.way);
            outcome.rounds.push(figures);
        }
        outcomes
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn every_way_takes_its_turn_in_every_setting_of_every_round() {
        let workload = Workload {
            name: "name",
            title: "title",
            is_curve: false,
            settings: vec![1, 2],
            ways: &['a', 'b'],
        };
        let measured = RefCell::new(Vec::new());
        let outcomes = workload.run(2, |setting, way| {
            measured.borrow_mut().push((setting, way));
            Figures::of_rate(f64::from(setting))
        });
        let all = [(1, 'a'), (1, 'b'), (2, 'a'), (2, 'b')];
        let of = |outcome: &Outcome<i32, char>| (outcome.setting, outcome.way);
        assert_eq!(outcomes.iter().map(of).collect::<Vec<_>>(), all);
        let mut measured = measured.into_inner();
        assert_ne!(measured[0], measured[4]);
        measured.sort_unstable();
        assert_eq!(measured, all.map(|one| [one, one]).concat());
        assert_eq!(outcomes[3].rounds.median(|figures| figures.rate), 2.0);
    }
}

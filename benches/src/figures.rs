//! The figures of a load in each round, and their medians.

use crate::load::Sample;
use crate::statistics::{median, percentile};

/// The outcome of a load in one round.
#[derive(Debug, Clone, Copy)]
pub struct Figures {
    /// Items per second.
    pub rate: f64,
    /// Refused commits per item.
    pub conflicts_per_item: f64,
    /// Commits with writes, per item.
    pub commits_per_item: f64,
    /// Bytes written per item.
    pub bytes_per_item: f64,
    /// The median time of an item, in milliseconds.
    pub median_millis: f64,
    /// The 99th percentile of the time of an item, in milliseconds.
    pub late_millis: f64,
    /// The processor time of this process per item, in microseconds.
    pub processor_micros: f64,
}

impl Figures {
    /// Returns the figures of a load whose rate alone is known.
    #[must_use]
    pub fn of_rate(rate: f64) -> Self {
        Self::from(Sample {
            rate,
            ..Sample::default()
        })
    }
}

impl From<Sample> for Figures {
    /// Summarizes a sample. A figure without measurements is not a number, such as the processor time, which a
    /// sample does not have.
    fn from(mut sample: Sample) -> Self {
        sample.took_micros.sort_unstable();
        let took = &sample.took_micros;
        let millis = |percent| {
            let micros = percentile(took, percent).map_or(f64::NAN, f64::from);
            micros / 1e3
        };
        let per_item = |count: u64| count as f64 / took.len() as f64;
        Self {
            rate: sample.rate,
            conflicts_per_item: per_item(sample.reading.conflicts),
            commits_per_item: per_item(sample.reading.commits),
            bytes_per_item: per_item(sample.reading.bytes_written),
            median_millis: millis(50),
            late_millis: millis(99),
            processor_micros: f64::NAN,
        }
    }
}

/// Returns the order of turns in each round, for a number of sides. The order rotates, so that no side always runs
/// after the same other side.
pub fn turns(count: usize, rounds: usize) -> impl Iterator<Item = usize> {
    (0..rounds).flat_map(move |round| (0..count).map(move |turn| (turn + round) % count))
}

/// The outcomes of the same load in each round.
#[derive(Debug, Clone, Default)]
pub struct Rounds(Vec<Figures>);

impl Rounds {
    /// Adds a round.
    pub fn push(&mut self, figures: Figures) {
        self.0.push(figures);
    }

    /// Returns of each round the figures with the highest rate, of systems that were measured in the same
    /// rounds.
    #[must_use]
    pub fn best_of(systems: &[Self]) -> Self {
        let rounds = systems.iter().map(|rounds| rounds.0.len()).min();
        let best = |round: usize| {
            let figures = systems.iter().map(|rounds| rounds.0[round]);
            figures.max_by(|one, other| one.rate.total_cmp(&other.rate))
        };
        Self((0..rounds.unwrap_or(0)).filter_map(best).collect())
    }

    /// Returns the median over the rounds.
    ///
    /// # Panics
    /// If there were none.
    #[must_use]
    pub fn median(&self, figure: impl Fn(&Figures) -> f64) -> f64 {
        median(self.0.iter().map(figure))
    }

    /// Returns the median over the rounds of the rate in those of a yardstick.
    ///
    /// # Panics
    /// If there were no rounds.
    #[must_use]
    pub fn median_ratio(&self, yardstick: &Self) -> f64 {
        let pairs = self.0.iter().zip(&yardstick.0);
        median(pairs.map(|(own, other)| own.rate / other.rate))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meter::Reading;

    fn rounds(rates: [f64; 3]) -> Rounds {
        let mut rounds = Rounds::default();
        for rate in rates {
            rounds.push(Figures::from(Sample {
                rate,
                took_micros: vec![3_000, 1_000, 2_000, 4_000],
                reading: Reading {
                    commits: 8,
                    mutations: 16,
                    conflicts: 2,
                    bytes_written: 400,
                },
            }));
        }
        rounds
    }

    #[test]
    fn in_each_round_everybody_has_a_turn_and_another_one_begins() {
        let turns: Vec<_> = turns(3, 2).collect();
        assert_eq!(turns, [0, 1, 2, 1, 2, 0]);
    }

    #[test]
    fn what_was_counted_is_told_by_items() {
        let rounds = rounds([1.0; 3]);
        assert_eq!(rounds.median(|figures| figures.commits_per_item), 2.0);
        assert_eq!(rounds.median(|figures| figures.conflicts_per_item), 0.5);
        assert_eq!(rounds.median(|figures| figures.bytes_per_item), 100.0);
        assert_eq!(rounds.median(|figures| figures.median_millis), 3.0);
        assert_eq!(rounds.median(|figures| figures.late_millis), 4.0);
    }

    #[test]
    fn the_best_is_found_round_by_round() {
        let systems = [rounds([10.0, 20.0, 30.0]), rounds([15.0, 5.0, 40.0])];
        let best = Rounds::best_of(&systems);
        let rates: Vec<_> = best.0.iter().map(|figures| figures.rate).collect();
        assert_eq!(rates, [15.0, 20.0, 40.0]);
    }

    #[test]
    fn a_ratio_is_the_median_of_the_rounds_ratios_and_not_the_ratio_of_their_medians() {
        let own = rounds([10.0, 20.0, 90.0]);
        let yardstick = rounds([10.0, 4.0, 5.0]);
        assert_eq!(own.median_ratio(&yardstick), 5.0);
    }
}

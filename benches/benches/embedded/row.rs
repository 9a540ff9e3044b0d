//! Lines of the table, and figures of which each has a yardstick.

use std::fmt;

use benches::statistics::median;

/// A figure and that of its yardstick, in each of some rounds.
#[derive(Debug, Default)]
pub(crate) struct Pairs(Vec<Pair>);

#[derive(Debug)]
struct Pair {
    yardstick: f64,
    measured: f64,
}

impl Pairs {
    /// Measures both in alternating rounds. Which of them begins changes.
    pub(crate) fn by_turns(
        rounds: usize,
        mut yardstick: impl FnMut() -> f64,
        mut measured: impl FnMut() -> f64,
    ) -> Self {
        let mut pairs = Self::default();
        for round in 0..rounds {
            if round % 2 == 0 {
                let first = yardstick();
                pairs.push(first, measured());
            } else {
                let first = measured();
                pairs.push(yardstick(), first);
            }
        }
        pairs
    }

    /// Returns the pair of a single round.
    pub(crate) fn once(yardstick: f64, measured: f64) -> Self {
        let mut pairs = Self::default();
        pairs.push(yardstick, measured);
        pairs
    }

    /// Adds a round.
    pub(crate) fn push(&mut self, yardstick: f64, measured: f64) {
        self.0.push(Pair {
            yardstick,
            measured,
        });
    }

    fn median(&self, figure: impl Fn(&Pair) -> f64) -> f64 {
        median(self.0.iter().map(figure))
    }
}

/// A line of the table.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) workload: String,
    pub(crate) yardstick: String,
    pub(crate) pairs: Pairs,
    /// How a figure is written, with its unit.
    pub(crate) unit: fn(f64) -> String,
    pub(crate) target: &'static str,
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let yardstick = (self.unit)(self.pairs.median(|pair| pair.yardstick));
        let measured = (self.unit)(self.pairs.median(|pair| pair.measured));
        let ratio = self.pairs.median(|pair| pair.measured / pair.yardstick);
        write!(
            f,
            "| {} | {}: {yardstick} | {measured} | {ratio:.2} | {} |",
            self.workload, self.yardstick, self.target
        )
    }
}

/// Writes a time in seconds.
pub(crate) fn time(seconds: f64) -> String {
    match seconds {
        1.0.. => format!("{seconds:.2} s"),
        1e-3.. => format!("{:.2} ms", seconds * 1e3),
        _ => format!("{:.2} µs", seconds * 1e6),
    }
}

/// Writes how often something happens in a second, with a comma after the thousands.
pub(crate) fn rate(per_second: f64) -> String {
    let count = per_second.round() as u64;
    match count {
        0..1_000 => count.to_string(),
        1_000..1_000_000 => format!("{},{:03}", count / 1_000, count % 1_000),
        _ => format!(
            "{},{:03},{:03}",
            count / 1_000_000,
            count / 1_000 % 1_000,
            count % 1_000
        ),
    }
}

/// Writes a number of bytes.
pub(crate) fn bytes(count: f64) -> String {
    format!("{count:.0} B")
}

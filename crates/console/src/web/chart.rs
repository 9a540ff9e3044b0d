//! Lines of the last minutes as coordinates of an SVG.

use std::time::Duration;

use askama::Template;

use super::history::{Rates, SPAN, Series};
use super::text::{age, rate};

/// The width of the drawing in its own units. Time goes from left to right, and the right edge is now.
const WIDTH: f64 = 300.0;

/// The height of the drawing in its own units.
const HEIGHT: f64 = 60.0;

/// The shortest time that the width stands for.
const MIN_SPAN: Duration = Duration::from_secs(60);

/// A drawing of one or two lines over the same time, with what it shows in words.
#[derive(Debug, Default, Template)]
#[template(path = "chart.html")]
pub(super) struct Chart {
    /// What it shows, in words.
    pub(super) label: String,
    /// The coordinates of the first line. Empty: there is nothing to draw yet.
    pub(super) line: String,
    /// Those of the second line, which is drawn dashed.
    pub(super) dashed: String,
    /// The value at the top.
    pub(super) top: String,
    /// How long ago the left edge was.
    pub(super) left: String,
}

impl Chart {
    /// Draws how many items came in, and dashed how many left.
    pub(super) fn of_rates(series: &Series) -> Self {
        let rates = series.all_rates();
        let line = |value: fn(&Rates) -> f64| -> Vec<_> {
            let values = rates.iter().map(|(at, rates)| (*at, value(rates)));
            values.collect()
        };
        let entering = line(|rates| rates.entering);
        let leaving = line(|rates| rates.leaving);
        let label = match series.rates() {
            Some(now) => format!(
                "Rates: {} in and {} out, now",
                rate(now.entering),
                rate(now.leaving)
            ),
            None => "Rates: not known yet".to_owned(),
        };
        draw(label, &entering, &leaving, rate)
    }

    /// Draws the age of the oldest item.
    pub(super) fn of_ages(series: &Series) -> Self {
        let now = series.newest().map_or(0.0, |newest| newest.age_seconds);
        let label = format!("Age of the oldest: {} now", age(now));
        draw(label, &series.ages(), &[], age)
    }
}

fn draw(
    label: String,
    line: &[(Duration, f64)],
    dashed: &[(Duration, f64)],
    text: fn(f64) -> String,
) -> Chart {
    let (Some((first, _)), Some((last, _))) = (line.first(), line.last()) else {
        return Chart {
            label,
            ..Chart::default()
        };
    };
    let span = (*last - *first).clamp(MIN_SPAN, SPAN);
    let values = line.iter().chain(dashed).map(|(_, value)| *value);
    let top = values.fold(0.0, f64::max);
    let points = |values: &[(Duration, f64)]| match values {
        [_, _, ..] => coordinates(values, *last, span, top),
        _ => String::new(),
    };
    Chart {
        label,
        line: points(line),
        dashed: points(dashed),
        top: text(top),
        left: age(span.as_secs_f64()),
    }
}

fn coordinates(values: &[(Duration, f64)], now: Duration, span: Duration, top: f64) -> String {
    let point = |(at, value): &(Duration, f64)| {
        let ago = now.saturating_sub(*at).as_secs_f64() / span.as_secs_f64();
        // Half a unit at the top and at the bottom is for the width of the line.
        let height = if top > 0.0 { value / top } else { 0.0 };
        let x = WIDTH * (1.0 - ago);
        let y = (HEIGHT - 3.0) * (1.0 - height) + 1.5;
        format!("{x:.0},{y:.1}")
    };
    let points: Vec<_> = values.iter().map(point).collect();
    points.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::web::history::Sample;

    #[test]
    fn the_newest_value_is_at_the_right_and_the_greatest_at_the_top() {
        let mut series = Series::default();
        for second in [0, 30, 60] {
            series.record(Sample {
                at: Duration::from_secs(second),
                flow: Some((second * second, 0)),
                age_seconds: second as f64,
            });
        }
        let ages = Chart::of_ages(&series);
        assert_eq!(ages.line, "0,58.5 150,30.0 300,1.5");
        assert_eq!((&*ages.top, &*ages.left), ("1 min", "1 min"));
        let rates = Chart::of_rates(&series);
        assert_eq!(rates.line, "150,39.5 300,1.5");
        assert_eq!(rates.dashed, "150,58.5 300,58.5");
        assert_eq!(rates.label, "Rates: 90/s in and 0/s out, now");
    }

    #[test]
    fn nothing_is_drawn_of_a_single_value() {
        let mut series = Series::default();
        assert_eq!(Chart::of_ages(&series).line, "");
        series.record(Sample {
            at: Duration::ZERO,
            flow: None,
            age_seconds: 0.0,
        });
        assert_eq!(Chart::of_ages(&series).line, "");
        assert_eq!(Chart::of_rates(&series).line, "");
    }
}

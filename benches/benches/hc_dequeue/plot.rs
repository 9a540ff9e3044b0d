//! Results as curves over the number of consumers.

use std::fs;
use std::path::{Path, PathBuf};

use benches::figures::Figures;
use plotters::coord::Shift;
use plotters::prelude::*;

use crate::stage::Stage;
use crate::trial::Way;
use crate::workload::{Outcome, Results};

const PANEL: (u32, u32) = (560, 420);

/// A figure over the number of consumers.
struct Panel {
    title: &'static str,
    /// Digits after the point on the axis.
    digits: usize,
    figure: fn(&Figures) -> f64,
}

const PANELS: [Panel; 2] = [
    Panel {
        title: "items a second",
        digits: 0,
        figure: |figures| figures.rate,
    },
    Panel {
        title: "conflicts per item",
        digits: 1,
        figure: |figures| figures.conflicts_per_item,
    },
];

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), DrawingAreaErrorKind<std::io::Error>>;

/// Draws throughput and conflicts and returns the file.
pub(crate) fn draw(workload: &str, stage: &Stage, results: &Results) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/plots");
    fs::create_dir_all(&folder).expect("the folder of the documents can be written");
    let path = folder.join(format!("hc_dequeue-{workload}-{}.svg", stage.kind()));
    let size = (PANEL.0 * PANELS.len() as u32, PANEL.1);
    let area = SVGBackend::new(&path, size).into_drawing_area();
    draw_panels(&area, results).expect("a plot can be drawn");
    drop(area);
    path
}

fn draw_panels(area: &Area<'_>, results: &Results) -> Drawn {
    area.fill(&WHITE)?;
    for (panel, area) in PANELS.iter().zip(area.split_evenly((1, PANELS.len()))) {
        panel.draw(&area, results)?;
    }
    area.present()
}

impl Panel {
    fn draw(&self, area: &Area<'_>, results: &Results) -> Drawn {
        let point = |outcome: &Outcome| {
            let consumers = outcome.setting.consumers() as f64;
            (consumers, outcome.rounds.median(self.figure))
        };
        let points: Vec<_> = results.iter().map(point).collect();
        let (first, last) = (points[0].0, points[points.len() - 1].0);
        // An axis has a length, also where there is nothing to show.
        let highest = points.iter().map(|point| point.1).fold(0.1, f64::max);
        let mut chart = ChartBuilder::on(area)
            .caption(self.title, ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(40)
            .y_label_area_size(60)
            .build_cartesian_2d((first..last).log_scale().base(2.0), 0.0..highest * 1.05)?;
        chart
            .configure_mesh()
            .x_desc("consumers")
            .x_label_formatter(&|consumers| format!("{consumers:.0}"))
            .y_label_formatter(&|figure| format!("{figure:.0$}", self.digits))
            .max_light_lines(1)
            .bold_line_style(BLACK.mix(0.15))
            .draw()?;
        for way in Way::ALL {
            let color = color(way);
            let of_way = results.iter().filter(|outcome| outcome.way == way);
            let line: Vec<_> = of_way.map(point).collect();
            chart
                .draw_series(LineSeries::new(line, color.stroke_width(2)).point_size(3))?
                .label(way.name())
                .legend(move |(x, y)| {
                    PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2))
                });
        }
        chart
            .configure_series_labels()
            .background_style(WHITE)
            .border_style(BLACK.mix(0.3))
            .position(SeriesLabelPosition::UpperLeft)
            .draw()?;
        Ok(())
    }
}

/// Returns the color of a way, which the color-blind tell from the others, too.
fn color(way: Way) -> RGBColor {
    match way {
        Way::BlindSets => RGBColor(120, 120, 120),
        Way::Naive => RGBColor(213, 94, 0),
        Way::Classic => RGBColor(230, 159, 0),
        Way::Popped => RGBColor(0, 114, 178),
        Way::Acknowledged => RGBColor(86, 180, 233),
    }
}

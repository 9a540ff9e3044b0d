//! Results as curves, in `docs/plots`.

use std::fs;
use std::path::{Path, PathBuf};

use plotters::coord::Shift;
use plotters::prelude::*;

/// A panel's width and height.
const PANEL: (u32, u32) = (560, 420);

/// A figure over something that grows by factors.
#[derive(Debug, Clone)]
pub struct Panel {
    /// What the figure is.
    pub title: &'static str,
    /// What it is over.
    pub over: &'static str,
    /// By which factor that grows from one grid line to the next.
    pub factor: f64,
    /// Digits after the point on the axis of the figure.
    pub digits: usize,
    /// The curves.
    pub curves: Vec<Curve>,
}

/// A curve, and what it is of.
#[derive(Debug, Clone)]
pub struct Curve {
    /// What it is of.
    pub name: &'static str,
    /// Its color.
    pub hue: Hue,
    /// Its points, from left to right.
    pub points: Vec<(f64, f64)>,
}

/// Colors that color-blind readers can distinguish, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hue {
    /// For yardsticks.
    Gray,
    /// Warm and strong.
    Red,
    /// Warm and light.
    Orange,
    /// Cold and strong.
    Blue,
    /// Cold and light.
    Sky,
}

impl From<Hue> for RGBColor {
    fn from(hue: Hue) -> Self {
        match hue {
            Hue::Gray => Self(120, 120, 120),
            Hue::Red => Self(213, 94, 0),
            Hue::Orange => Self(230, 159, 0),
            Hue::Blue => Self(0, 114, 178),
            Hue::Sky => Self(86, 180, 233),
        }
    }
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), DrawingAreaErrorKind<std::io::Error>>;

/// Draws panels side by side into the file of this name, and returns its path.
///
/// # Panics
/// If the folder of the documents cannot be written.
#[must_use]
pub fn draw(name: &str, panels: &[Panel]) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/plots");
    fs::create_dir_all(&folder).expect("the folder of the documents can be written");
    let path = folder.join(format!("{name}.svg"));
    let size = (PANEL.0 * panels.len() as u32, PANEL.1);
    let area = SVGBackend::new(&path, size).into_drawing_area();
    draw_panels(&area, panels).expect("a plot can be drawn");
    drop(area);
    path
}

fn draw_panels(area: &Area<'_>, panels: &[Panel]) -> Drawn {
    area.fill(&WHITE)?;
    for (panel, area) in panels.iter().zip(area.split_evenly((1, panels.len()))) {
        panel.draw(&area)?;
    }
    area.present()
}

impl Panel {
    fn draw(&self, area: &Area<'_>) -> Drawn {
        let points = || self.curves.iter().flat_map(|curve| &curve.points);
        let (first, last) = points().fold((f64::MAX, 0.0_f64), |(first, last), point| {
            (first.min(point.0), last.max(point.0))
        });
        // An axis has a length, also where there is nothing to show.
        let highest = points().map(|point| point.1).fold(0.1, f64::max);
        let mut chart = ChartBuilder::on(area)
            .caption(self.title, ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(40)
            .y_label_area_size(60)
            .build_cartesian_2d(
                (first..last).log_scale().base(self.factor),
                0.0..highest * 1.05,
            )?;
        chart
            .configure_mesh()
            .x_desc(self.over)
            .x_label_formatter(&|over| format!("{over:.0}"))
            .y_label_formatter(&|figure| format!("{figure:.0$}", self.digits))
            .max_light_lines(1)
            .bold_line_style(BLACK.mix(0.15))
            .draw()?;
        for curve in &self.curves {
            let style = RGBColor::from(curve.hue).stroke_width(2);
            let line = LineSeries::new(curve.points.iter().copied(), style).point_size(3);
            chart
                .draw_series(line)?
                .label(curve.name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
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

//! Plots of figures: one SVG per metric, with a bar and an interval for each configuration.

use crate::file;
use crate::report::{Figure, number};
use anyhow::anyhow;
use plotters::prelude::{
    BLACK, Color as _, IntoDrawingArea as _, PathElement, RGBColor, Rectangle, SVGBackend, Text,
    WHITE,
};
use plotters::style::{IntoFont as _, ShapeStyle, TextStyle};
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// Metrics that are plotted.
const METRICS: &[&str] = &[
    "throughput",
    "packets",
    "transactions",
    "latency_us.p50",
    "cycles_per_byte.total",
    "cycles_per_packet.total",
    "cycles_per_packet.driver",
    "lro_rate",
    "flush_latency_us.p50",
    "acks",
    "up_ms",
];

const ROW: i32 = 20;
const TOP: i32 = 44;
/// Widths of the columns for names, bars and numbers.
const NAMES: i32 = 470;
const BARS: i32 = 420;
const NUMBERS: i32 = 190;
const BAR: RGBColor = RGBColor(66, 116, 166);
const UNRESOLVED: RGBColor = RGBColor(170, 170, 170);

/// Writes `FOLDER/PLAN.METRIC.svg` for every metric of several configurations, and returns the
/// paths.
///
/// # Errors
/// Returns an error if a file cannot be written.
pub fn save(folder: &Path, plan: &str, figures: &[Figure]) -> anyhow::Result<Vec<PathBuf>> {
    let mut written = Vec::new();
    for metric in METRICS {
        let rows: Vec<&Figure> = figures
            .iter()
            .filter(|f| f.metric == *metric && f.value.is_some_and(f64::is_finite))
            .collect();
        if rows.len() < 2 {
            continue;
        }
        let path = folder.join(format!("{plan}.{metric}.svg"));
        let text = picture(plan, metric, &rows)?;
        file::replace(&path, |out| Ok(out.write_all(text.as_bytes())?))?;
        written.push(path);
    }
    Ok(written)
}

/// Draws one plot.
fn picture(plan: &str, metric: &str, rows: &[&Figure]) -> anyhow::Result<String> {
    let height = TOP + ROW * rows.len() as i32 + ROW;
    let size = ((NAMES + BARS + NUMBERS) as u32, height as u32);
    let mut text = String::new();
    draw(&mut text, size, plan, metric, rows).map_err(|why| anyhow!("the picture: {why}"))?;
    Ok(text)
}

fn draw(
    out: &mut String,
    size: (u32, u32),
    plan: &str,
    metric: &str,
    rows: &[&Figure],
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let area = SVGBackend::with_string(out, size).into_drawing_area();
    area.fill(&WHITE)?;
    let font = |size: i32| TextStyle::from(("sans-serif", size).into_font()).color(&BLACK);
    let unit = rows.first().map_or("", |figure| figure.unit);
    let least = rows.iter().filter_map(|figure| figure.covers);
    let covers = least.reduce(f64::min).unwrap_or(0.0) * 100.0;
    let title = format!("{plan}: {metric} ({unit}), median, interval that covers {covers:.0} %");
    area.draw(&Text::new(title, (10, 12), font(16)))?;
    let most = rows
        .iter()
        .filter_map(|figure| figure.hi.or(figure.value))
        .fold(0.0, f64::max);
    let x = |value: f64| {
        let share = if most > 0.0 { value / most } else { 0.0 };
        NAMES + (share.clamp(0.0, 1.0) * f64::from(BARS)) as i32
    };
    for (row, figure) in (0i32..).zip(rows) {
        let y = TOP + row * ROW;
        let value = figure.value.unwrap_or(0.0);
        let (lo, hi) = (figure.lo.unwrap_or(value), figure.hi.unwrap_or(value));
        let colour = if figure.note.is_some() {
            UNRESOLVED
        } else {
            BAR
        };
        area.draw(&Text::new(figure.config.clone(), (10, y + 2), font(13)))?;
        area.draw(&Rectangle::new(
            [(NAMES, y), (x(value), y + ROW - 6)],
            colour.filled(),
        ))?;
        let middle = y + (ROW - 6) / 2;
        let line = ShapeStyle::from(&BLACK).stroke_width(1);
        area.draw(&PathElement::new([(x(lo), middle), (x(hi), middle)], line))?;
        for end in [x(lo), x(hi)] {
            let tick = [(end, middle - 3), (end, middle + 3)];
            area.draw(&PathElement::new(tick, line))?;
        }
        let label = match hi > lo {
            true => format!("{} [{}, {}]", number(value), number(lo), number(hi)),
            false => number(value),
        };
        area.draw(&Text::new(label, (NAMES + BARS + 8, y + 2), font(13)))?;
    }
    area.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::Estimate;

    #[test]
    fn comparable_metrics_have_a_plot() {
        let folder = tempfile::tempdir().unwrap();
        let figure = |config: &str, metric: &str, value: f64| {
            let (lo, hi, n) = (value * 0.9, value * 1.1, 5);
            Figure::new("lro", config, metric, Estimate { value, lo, hi, n })
        };
        let figures = [
            figure("none", "throughput", 4.0),
            figure("physical-skb-scatter-poll<&>", "throughput", 8.0),
            figure("none", "transactions", 9000.0),
            Figure::not_measurable("lro", "bridge-gro-on", "throughput", "no `ip`"),
        ];
        let written = save(folder.path(), "lro", &figures).unwrap();
        assert_eq!(written, [folder.path().join("lro.throughput.svg")]);
        let text = std::fs::read_to_string(&written[0]).unwrap();
        assert!(text.starts_with("<svg") && text.trim_end().ends_with("</svg>"));
        assert!(text.contains("poll&lt;&amp;&gt;"), "names are escaped");
        assert!(!text.contains("bridge-gro-on"));
        // The first rectangle is the background, and the others are bars. The larger value has the
        // longer bar.
        let widths: Vec<i32> = text
            .split("<rect")
            .skip(2)
            .filter_map(|rect| {
                rect.split("width=\"")
                    .nth(1)?
                    .split('"')
                    .next()?
                    .parse()
                    .ok()
            })
            .collect();
        assert_eq!(widths.len(), 2, "{text}");
        assert!(widths[1] > widths[0]);
    }
}

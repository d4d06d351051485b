//! Bar charts: our values beside the paper's. A bar's length is its value divided by the first one
//! of its source. The ratio behind a value is the table's.

use super::axis;
use super::cell::{Cell, ValueSource, escape};
use super::values::PaperPart;
use super::verdicts::{self, ComparedRatio};
use figures::metric::words;
use figures::report::{Index, exact, number};
use std::fmt::Write as _;

const ROW: f64 = 18.0;
const NAMES: f64 = 300.0;
const BARS: f64 = 280.0;
const NUMBERS: f64 = 260.0;
/// Suffix of a metric that is a total and not a class.
pub(super) const TOTAL: &str = "total";

/// A row with a bar: its source, configuration, value and interval.
struct Row<'a> {
    who: ValueSource,
    config: &'a str,
    metric: &'a str,
    value: f64,
    range: Option<(f64, f64)>,
    /// Value by which the bar's length is divided.
    base: f64,
    /// The table's ratio of the value, with its baseline.
    ratio: Option<(f64, &'a str)>,
    /// Heading, if the row is the first of a group.
    heading: Option<&'a str>,
}

/// Draws the bars of one metric. Returns an empty string for fewer than two.
pub(super) fn bars(
    part: &PaperPart<'_>,
    metric: &str,
    cells: &[Cell<'_>],
    index: &Index<'_>,
) -> String {
    let of_metric: Vec<&Cell<'_>> = cells.iter().filter(|cell| cell.metric == metric).collect();
    let first = |of: &dyn Fn(&Cell<'_>) -> Option<f64>| {
        let mut known = of_metric.iter().filter_map(|cell| of(cell));
        known.find(|value| *value > 0.0)
    };
    let bases = [first(&ours), first(&|cell| cell.paper)];
    let all = rows(part, &of_metric, bases, index);
    draw(metric, "× the first configuration's", &all)
}

/// Draws the bars of classes, one group for each: the metrics with prefix `stem`. `bases` holds the
/// first configuration's totals, ours and the paper's.
pub(super) fn classes(
    part: &PaperPart<'_>,
    stem: &str,
    cells: &[Cell<'_>],
    bases: [Option<f64>; 2],
    index: &Index<'_>,
) -> String {
    let mut classes: Vec<&str> = Vec::new();
    for class in cells
        .iter()
        .filter_map(|cell| cell.metric.strip_prefix(stem))
    {
        if class != TOTAL && !classes.contains(&class) {
            classes.push(class);
        }
    }
    let mut all = Vec::new();
    for class in classes {
        let of_class: Vec<&Cell<'_>> = cells
            .iter()
            .filter(|cell| cell.metric.strip_prefix(stem) == Some(class))
            .collect();
        let mut group = rows(part, &of_class, bases, index);
        if let Some(first) = group.first_mut() {
            first.heading = Some(class);
        }
        all.extend(group);
    }
    let title = stem.trim_end_matches('.');
    draw(title, "× the first configuration's total", &all)
}

fn ours(cell: &Cell<'_>) -> Option<f64> {
    cell.ours.and_then(|figure| figure.value)
}

/// Returns the table's ratios of a value, ours and the paper's, each with its baseline: the first
/// ones that were measured.
fn ratios<'a>(
    part: &PaperPart<'a>,
    cell: &Cell<'a>,
    index: &Index<'a>,
) -> [Option<(f64, &'a str)>; 2] {
    let all = verdicts::of(part, cell, index);
    let is_measured = |compared: &&ComparedRatio<'_>| compared.own().is_some();
    let Some(compared) = all.iter().find(is_measured).or(all.first()) else {
        return [None; 2];
    };
    let ratio = compared.ratio.as_ref();
    let with_base = |value: Option<f64>| Some((value?, ratio?.to));
    [compared.own(), ratio.map(|ratio| ratio.ratio)].map(with_base)
}

fn rows<'a>(
    part: &PaperPart<'a>,
    cells: &[&'a Cell<'a>],
    [our_base, their_base]: [Option<f64>; 2],
    index: &Index<'a>,
) -> Vec<Row<'a>> {
    let mut rows: Vec<Row<'a>> = Vec::new();
    for cell in cells {
        let [our_ratio, their_ratio] = ratios(part, cell, index);
        let row = |who, config, value, range, base, ratio| Row {
            who,
            config,
            metric: &cell.metric,
            value,
            range,
            base,
            ratio,
            heading: None,
        };
        if let (Some(value), Some(base)) = (ours(cell), our_base) {
            let range = cell.ours.and_then(|figure| figure.lo.zip(figure.hi));
            let config = cell.config.as_str();
            rows.push(row(
                ValueSource::Ours,
                config,
                value,
                range,
                base,
                our_ratio,
            ));
        }
        // Several of our configurations may correspond to one of the paper's, which is then drawn
        // once.
        let drawn = |row: &Row<'_>| row.who == ValueSource::Paper && row.config == cell.theirs;
        if let (Some(value), Some(base), false) = (cell.paper, their_base, rows.iter().any(drawn)) {
            let config = cell.theirs;
            rows.push(row(
                ValueSource::Paper,
                config,
                value,
                None,
                base,
                their_ratio,
            ));
        }
    }
    rows
}

/// Draws rows and the axis of their bars, which has this unit.
fn draw(title: &str, unit: &str, bars: &[Row<'_>]) -> String {
    if bars.len() < 2 {
        return String::new();
    }
    let headings = bars.iter().filter(|bar| bar.heading.is_some()).count();
    let height = ROW * ((bars.len() + headings) as f64 + 3.0);
    let most = bars
        .iter()
        .map(|bar| bar.value.max(bar.range.map_or(0.0, |r| r.1)) / bar.base);
    let (end, step) = axis::rounded(most.fold(0.0, f64::max));
    let x = |value: f64| NAMES + BARS * (value / end).clamp(0.0, 1.0);
    let mut out = format!(
        "<svg viewBox=\"0 0 {} {height}\" role=\"img\" aria-label=\"{}\">\n\
         <text x=\"0\" y=\"{}\">{}</text>\n",
        NAMES + BARS + NUMBERS,
        escape(title),
        ROW * 0.8,
        escape(&words(title)),
    );
    let mut y = ROW * 1.2;
    for bar in bars {
        if let Some(heading) = bar.heading {
            let (below, class) = (y + ROW * 0.65, "middle");
            let _infallible = writeln!(
                out,
                "<text class=\"{class}\" x=\"{:.1}\" y=\"{below:.1}\">{}</text>",
                NAMES + BARS / 2.0,
                escape(heading)
            );
            y += ROW;
        }
        one(&mut out, bar, y, &x);
        y += ROW;
    }
    let _infallible = writeln!(
        out,
        "<path class=\"axis\" d=\"M{NAMES} {y:.1} h{BARS}\"/>\
         <text x=\"{}\" y=\"{:.1}\">{unit}</text>",
        NAMES + BARS + 32.0,
        y + 17.0,
    );
    for value in axis::linear(end, step) {
        let _infallible = writeln!(
            out,
            "<path class=\"axis\" d=\"M{0:.1} {y:.1} v4\"/>\
             <text class=\"middle\" x=\"{0:.1}\" y=\"{1:.1}\">{2}</text>",
            x(value),
            y + 17.0,
            axis::label(value, step)
        );
    }
    out.push_str("</svg>\n");
    out
}

fn one(out: &mut String, bar: &Row<'_>, y: f64, x: &dyn Fn(f64) -> f64) {
    let (who, middle) = (bar.who.name(), y + ROW * 0.4);
    let end = x(bar.value / bar.base);
    let _infallible = writeln!(
        out,
        "<rect class=\"{who}\" x=\"{NAMES}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\" \
         data-config=\"{}\" data-metric=\"{}\" data-who=\"{who}\" data-value=\"{}\"/>",
        end - NAMES,
        ROW * 0.8,
        escape(bar.config),
        escape(bar.metric),
        bar.value,
    );
    if let Some((lo, hi)) = bar.range {
        let _infallible = writeln!(
            out,
            "<line class=\"range\" x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{middle:.1}\" \
             y2=\"{middle:.1}\"/>",
            x(lo / bar.base),
            x(hi / bar.base),
        );
    }
    let ratio = bar.ratio.map_or_else(String::new, |(ratio, to)| {
        format!(" ({} × {})", number(ratio), escape(to))
    });
    let _infallible = writeln!(
        out,
        "<text x=\"0\" y=\"{0:.1}\">{1}, {2}</text>\
         <text x=\"{3:.1}\" y=\"{0:.1}\">{4}{ratio}</text>",
        y + ROW * 0.65,
        escape(bar.config),
        bar.who.word(),
        NAMES + BARS + 8.0,
        match bar.who {
            ValueSource::Ours => number(bar.value),
            ValueSource::Paper => exact(bar.value),
        },
    );
}

//! Bar charts: our values beside the paper's, each divided by its first one.

use super::cell::{Cell, ValueSource, escape};
use figures::metric::words;
use figures::report::{exact, number};
use std::fmt::Write as _;

const ROW: f64 = 18.0;
const NAMES: f64 = 300.0;
const BARS: f64 = 380.0;
const NUMBERS: f64 = 160.0;
/// Suffix of a metric that is a total and not a class.
pub(super) const TOTAL: &str = "total";

/// A row with a bar: its source, configuration, value and interval.
struct Row<'a> {
    who: ValueSource,
    config: &'a str,
    metric: &'a str,
    value: f64,
    range: Option<(f64, f64)>,
    /// Value by which the bar is divided.
    base: f64,
    /// Heading, if the row is the first of a group.
    heading: Option<&'a str>,
}

/// Draws the bars of one metric. Returns an empty string for fewer than two.
pub(super) fn bars(metric: &str, cells: &[Cell<'_>]) -> String {
    let of_metric: Vec<&Cell<'_>> = cells.iter().filter(|cell| cell.metric == metric).collect();
    let first = |of: &dyn Fn(&Cell<'_>) -> Option<f64>| {
        let mut known = of_metric.iter().filter_map(|cell| of(cell));
        known.find(|value| *value > 0.0)
    };
    let bases = [first(&ours), first(&|cell| cell.paper)];
    draw(metric, &rows(&of_metric, bases))
}

/// Draws the bars of classes, one group for each: the metrics with prefix `stem`. `bases` holds the
/// first configuration's totals, ours and the paper's.
pub(super) fn classes(stem: &str, cells: &[Cell<'_>], bases: [Option<f64>; 2]) -> String {
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
        let mut group = rows(&of_class, bases);
        if let Some(first) = group.first_mut() {
            first.heading = Some(class);
        }
        all.extend(group);
    }
    draw(stem.trim_end_matches('.'), &all)
}

fn ours(cell: &Cell<'_>) -> Option<f64> {
    cell.ours.and_then(|figure| figure.value)
}

fn rows<'a>(cells: &[&'a Cell<'_>], [our_base, their_base]: [Option<f64>; 2]) -> Vec<Row<'a>> {
    let mut rows: Vec<Row<'a>> = Vec::new();
    for cell in cells {
        let row = |who, config, value, range, base| Row {
            who,
            config,
            metric: &cell.metric,
            value,
            range,
            base,
            heading: None,
        };
        if let (Some(value), Some(base)) = (ours(cell), our_base) {
            let range = cell.ours.and_then(|figure| figure.lo.zip(figure.hi));
            rows.push(row(ValueSource::Ours, &cell.config, value, range, base));
        }
        // Several of our configurations may correspond to one of the paper's, which is then drawn
        // once.
        let drawn = |row: &Row<'_>| row.who == ValueSource::Paper && row.config == cell.theirs;
        if let (Some(value), Some(base), false) = (cell.paper, their_base, rows.iter().any(drawn)) {
            rows.push(row(ValueSource::Paper, cell.theirs, value, None, base));
        }
    }
    rows
}

fn draw(title: &str, bars: &[Row<'_>]) -> String {
    if bars.len() < 2 {
        return String::new();
    }
    let headings = bars.iter().filter(|bar| bar.heading.is_some()).count();
    let height = ROW * ((bars.len() + headings) as f64 + 1.5);
    let most = bars
        .iter()
        .map(|bar| bar.value.max(bar.range.map_or(0.0, |r| r.1)) / bar.base);
    let most = most.fold(f64::MIN_POSITIVE, f64::max);
    let x = |value: f64| NAMES + BARS * (value / most).clamp(0.0, 1.0);
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
    let _infallible = writeln!(
        out,
        "<text x=\"0\" y=\"{0:.1}\">{1}, {2}</text><text x=\"{3:.1}\" y=\"{0:.1}\">{4} (× {5})\
         </text>",
        y + ROW * 0.65,
        escape(bar.config),
        bar.who.word(),
        NAMES + BARS + 8.0,
        match bar.who {
            ValueSource::Ours => number(bar.value),
            ValueSource::Paper => exact(bar.value),
        },
        number(bar.value / bar.base),
    );
}

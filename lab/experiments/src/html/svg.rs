//! Bars: ours and the paper's beside each other, each divided by its own first one.

use super::cell::{Cell, escape};
use figures::report::number;
use std::fmt::Write as _;

const ROW: f64 = 18.0;
const NAMES: f64 = 220.0;
const BARS: f64 = 420.0;
const NUMBERS: f64 = 200.0;

/// Whose value a bar shows.
#[derive(Clone, Copy)]
enum Who {
    Ours,
    Paper,
}

impl Who {
    const fn name(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::Paper => "paper",
        }
    }

    const fn word(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::Paper => "the paper's",
        }
    }
}

/// A row with a bar: whose value it is, of which configuration, and its interval.
struct Row<'a> {
    who: Who,
    config: &'a str,
    value: f64,
    range: Option<(f64, f64)>,
    /// The value that it is divided by.
    base: f64,
}

/// The bars of one metric; nothing if there are fewer than two.
pub(super) fn bars(metric: &str, cells: &[Cell<'_>]) -> String {
    let of_metric: Vec<&Cell<'_>> = cells.iter().filter(|cell| cell.metric == metric).collect();
    let ours = |cell: &Cell<'_>| cell.ours.and_then(|figure| figure.value);
    let first = |of: &dyn Fn(&Cell<'_>) -> Option<f64>| {
        let mut known = of_metric.iter().filter_map(|cell| of(cell));
        known.find(|value| *value > 0.0)
    };
    let (our_base, their_base) = (first(&ours), first(&|cell| cell.paper));
    let mut bars = Vec::new();
    for cell in &of_metric {
        if let (Some(value), Some(base)) = (ours(cell), our_base) {
            let range = cell.ours.and_then(|figure| figure.lo.zip(figure.hi));
            bars.push(Row {
                who: Who::Ours,
                config: &cell.config,
                value,
                range,
                base,
            });
        }
        if let (Some(value), Some(base)) = (cell.paper, their_base) {
            bars.push(Row {
                who: Who::Paper,
                config: cell.theirs,
                value,
                range: None,
                base,
            });
        }
    }
    if bars.len() < 2 {
        return String::new();
    }
    draw(metric, &bars)
}

fn draw(metric: &str, bars: &[Row<'_>]) -> String {
    let height = ROW * (bars.len() as f64 + 1.5);
    let most = bars
        .iter()
        .map(|bar| bar.value.max(bar.range.map_or(0.0, |r| r.1)) / bar.base);
    let most = most.fold(f64::MIN_POSITIVE, f64::max);
    let x = |value: f64| NAMES + BARS * (value / most).clamp(0.0, 1.0);
    let mut out = format!(
        "<svg viewBox=\"0 0 {} {height}\" role=\"img\" aria-label=\"{}\">\n\
         <text x=\"0\" y=\"{}\">{}</text>\n",
        NAMES + BARS + NUMBERS,
        escape(metric),
        ROW * 0.8,
        escape(metric),
    );
    let mut y = ROW * 1.2;
    for bar in bars {
        let (who, middle) = (bar.who.name(), y + ROW * 0.4);
        let end = x(bar.value / bar.base);
        let _infallible = writeln!(
            out,
            "<rect class=\"{who}\" x=\"{NAMES}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\" \
             data-config=\"{}\" data-metric=\"{}\" data-who=\"{who}\" data-value=\"{}\"/>",
            end - NAMES,
            ROW * 0.8,
            escape(bar.config),
            escape(metric),
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
            number(bar.value),
            number(bar.value / bar.base),
        );
        y += ROW;
    }
    out.push_str("</svg>\n");
    out
}

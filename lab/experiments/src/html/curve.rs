//! Curves: a metric against a key of the configurations, or a cumulative distribution. The paper's
//! panel, with the values that its text states, is beside ours. Each panel has a separate axis.

use super::axis;
use super::cell::{Cell, ValueSource, escape};
use figures::metric::words;
use figures::report::{Figure, exact, number};
use std::fmt::Write as _;

const WIDTH: f64 = 840.0;
const GAP: f64 = 30.0;
/// Heights of a panel's title, curves and axis labels.
const TOP: f64 = 30.0;
const PLOT: f64 = 200.0;
const BELOW: f64 = 48.0;
const LEFT: f64 = 56.0;
/// Half of the width of an axis' last label.
const RIGHT: f64 = 24.0;
const LEGEND: f64 = 18.0;
/// Number of distinguishable colours and line patterns.
const STYLES: usize = 6;
/// Minimum ratio of an axis' ends for a logarithmic scale.
const LOG_AXIS_RATIO: f64 = 10.0;

/// A point.
struct Point<'a> {
    config: &'a str,
    x: f64,
    y: f64,
    range: Option<(f64, f64)>,
}

/// Points of one curve.
struct Curve<'a> {
    name: String,
    /// Colour and pattern. A configuration of the paper has the same ones as ours.
    style: usize,
    points: Vec<Point<'a>>,
}

impl<'a> Curve<'a> {
    fn new(name: String, style: usize, points: Vec<Point<'a>>) -> Self {
        Self {
            name,
            style: style % STYLES,
            points,
        }
    }
}

/// A value that a paper gives for a distribution, with its configuration.
pub(super) struct PaperMark<'a> {
    pub(super) config: &'a str,
    pub(super) metric: &'a str,
    pub(super) value: f64,
}

/// All curves from one source.
struct Panel<'a> {
    who: ValueSource,
    metric: &'a str,
    axis: &'a str,
    curves: Vec<Curve<'a>>,
    /// Positions on the x-axis whose y values are unknown.
    marks: Vec<PaperMark<'a>>,
}

/// Returns a description of a configuration key, with its unit.
fn axis_words(key: &str) -> &str {
    match key {
        "wires" => "number of NICs",
        "buffer" => "the application's receive buffer, bytes",
        "offered" => "offered requests per second",
        other => other,
    }
}

/// Draws the curves of one metric against a key. Returns an empty string if no configuration has
/// two points.
pub(super) fn against(key: &str, metric: &str, cells: &[Cell<'_>]) -> String {
    let (mut ours, mut theirs) = (Vec::<Curve<'_>>::new(), Vec::<Curve<'_>>::new());
    for cell in cells.iter().filter(|cell| cell.metric == metric) {
        let Some((name, x)) = without(&cell.config, key) else {
            continue;
        };
        let known = ours.iter().position(|curve| curve.name == name);
        let style = known.unwrap_or(ours.len());
        if let Some((figure, y)) = cell.ours.and_then(|figure| Some((figure, figure.value?))) {
            let (config, range) = (cell.config.as_str(), figure.lo.zip(figure.hi));
            let point = Point {
                config,
                x,
                y,
                range,
            };
            match ours.get_mut(style) {
                Some(curve) => curve.points.push(point),
                None => ours.push(Curve::new(name, style, vec![point])),
            }
        }
        let drawn = theirs.iter().any(|curve| curve.name == cell.theirs);
        if let (Some(&(x, y)), false) = (cell.points.first(), drawn) {
            let (config, range) = (cell.theirs, None);
            let point = Point {
                config,
                x,
                y,
                range,
            };
            theirs.push(Curve::new(config.to_owned(), style, vec![point]));
        }
    }
    if ours.iter().all(|curve| curve.points.len() < 2) {
        return String::new();
    }
    let mut both = vec![(ValueSource::Paper, theirs), (ValueSource::Ours, ours)];
    both.retain(|(_, curves)| !curves.is_empty());
    let panel = |(who, curves)| Panel {
        who,
        metric,
        axis: axis_words(key),
        curves,
        marks: Vec::new(),
    };
    let panels: Vec<Panel<'_>> = both.into_iter().map(panel).collect();
    draw(metric, &panels)
}

/// Draws a cumulative distribution by configuration, and the paper's values as marks on the axis.
pub(super) fn distribution(
    metric: &str,
    shares: &[(&str, Vec<(&str, &Figure)>)],
    marks: Vec<PaperMark<'_>>,
) -> String {
    let panel = Panel {
        who: ValueSource::Ours,
        metric,
        axis: match metric.ends_with("_us") {
            true => "at most, µs",
            false => "at most",
        },
        curves: (0..)
            .zip(shares)
            .map(|(style, (of, shares))| shares_of(of, style, shares))
            .collect(),
        marks,
    };
    match panel.curves.iter().all(|curve| curve.points.len() < 2) {
        true => String::new(),
        false => draw(metric, &[panel]),
    }
}

fn shares_of<'a>(config: &'a str, style: usize, shares: &[(&str, &Figure)]) -> Curve<'a> {
    let point = |(most, figure): &(&str, &Figure)| {
        Some(Point {
            config,
            x: most.parse().ok()?,
            y: figure.value?,
            range: figure.lo.zip(figure.hi),
        })
    };
    let points = shares.iter().filter_map(point).collect();
    Curve::new(config.to_owned(), style, points)
}

/// Splits a configuration's name into the name without a key, and the key's value.
fn without(config: &str, key: &str) -> Option<(String, f64)> {
    let (column, keys) = config.split_once('@')?;
    let (of_key, others): (Vec<&str>, Vec<&str>) = keys
        .split(',')
        .partition(|part| part.split('=').next() == Some(key));
    let value = of_key.first()?.split_once('=')?.1.parse().ok()?;
    let name = match others.is_empty() {
        true => column.to_owned(),
        false => format!("{column}@{}", others.join(",")),
    };
    Some((name, value))
}

/// Maps values to coordinates.
struct Scale {
    lo: f64,
    hi: f64,
    log: bool,
    from: f64,
    to: f64,
}

impl Scale {
    fn at(&self, value: f64) -> f64 {
        let of = |value: f64| if self.log { value.ln() } else { value };
        let (lo, hi) = (of(self.lo), of(self.hi));
        let share = if hi > lo {
            (of(value) - lo) / (hi - lo)
        } else {
            1.0
        };
        self.from + share.clamp(0.0, 1.0) * (self.to - self.from)
    }

    /// Returns an axis that contains all values. It begins at 0, or, if it is logarithmic, at the
    /// smallest value.
    fn along(values: &[f64], from: f64, to: f64) -> Self {
        let lo = values.iter().copied().fold(f64::MAX, f64::min);
        let hi = values.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
        let log = lo > 0.0 && hi / lo >= LOG_AXIS_RATIO;
        let lo = if log { lo } else { 0.0 };
        Self {
            lo,
            hi,
            log,
            from,
            to,
        }
    }
}

fn draw(metric: &str, panels: &[Panel<'_>]) -> String {
    let rows = panels.iter().map(|p| p.curves.len() + p.marks.len()).max();
    let height = TOP + PLOT + BELOW + LEGEND * rows.unwrap_or(0) as f64;
    let width = (WIDTH - GAP * (panels.len() as f64 - 1.0)) / panels.len() as f64;
    let mut out = format!(
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{}\">\n",
        escape(metric)
    );
    let mut left = 0.0;
    for panel in panels {
        one(&mut out, panel, left, width);
        left += width + GAP;
    }
    out.push_str("</svg>\n");
    out
}

/// Draws one panel: title, axes, curves and legend.
fn one(out: &mut String, panel: &Panel<'_>, left: f64, width: f64) {
    let (from, to, bottom) = (left + LEFT, left + width - RIGHT, TOP + PLOT);
    let points = || panel.curves.iter().flat_map(|curve| &curve.points);
    let marks = panel.marks.iter().map(|mark| mark.value);
    let measured: Vec<f64> = points().map(|point| point.x).collect();
    let places: Vec<f64> = measured.iter().copied().chain(marks).collect();
    let most = points().map(|p| p.range.map_or(p.y, |(_, hi)| hi.max(p.y)));
    let across = Scale::along(&places, from, to);
    let (end, step) = axis::rounded(most.fold(0.0, f64::max));
    let up = Scale {
        lo: 0.0,
        hi: end,
        log: false,
        from: bottom,
        to: TOP,
    };
    let _infallible = writeln!(
        out,
        "<text x=\"{left}\" y=\"14\">{}: {}</text>\
         <path class=\"axis\" d=\"M{from} {TOP} V{bottom} H{to}\"/>",
        escape(&words(panel.metric)),
        panel.who.word(),
    );
    for value in axis::linear(end, step) {
        let y = up.at(value);
        let _infallible = writeln!(
            out,
            "<path class=\"axis\" d=\"M{from} {y:.1} h-4\"/>\
             <text class=\"end\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            from - 6.0,
            y + 4.0,
            axis::label(value, step)
        );
    }
    ticks(out, &round_places(measured, &across), &across, bottom);
    let _infallible = writeln!(
        out,
        "<text class=\"end\" x=\"{to}\" y=\"{}\">{}</text>",
        bottom + 34.0,
        escape(panel.axis)
    );
    let mut y = bottom + BELOW + 8.0;
    for curve in &panel.curves {
        line(out, panel, curve, [&across, &up]);
        legend(out, &curve.name, curve.style, left, &mut y);
    }
    for (style, mark) in (panel.curves.len()..).zip(&panel.marks) {
        let (style, at) = (style % STYLES, across.at(mark.value));
        let (config, metric) = (escape(mark.config), escape(mark.metric));
        let _infallible = writeln!(
            out,
            "<path class=\"s{style} line\" d=\"M{at:.1} {TOP} V{bottom}\" data-config=\"{config}\" \
             data-metric=\"{metric}\" data-who=\"paper\" data-value=\"{}\"/>",
            mark.value,
        );
        let label = format!("{}, the paper's: {}", mark.config, exact(mark.value));
        legend(out, &label, style, left, &mut y);
    }
}

/// Returns the ticks of the x-axis of these values: round ones, or the values if all are sizes in
/// whole kilobytes.
fn round_places(mut measured: Vec<f64>, across: &Scale) -> Vec<f64> {
    if measured.iter().all(|value| is_size(*value)) {
        measured.sort_by(f64::total_cmp);
        return measured;
    }
    if across.log {
        return axis::logarithmic(across.lo, across.hi);
    }
    let step = axis::step(across.hi);
    let step = match measured.iter().all(|value| value.fract() == 0.0) {
        true => step.max(1.0),
        false => step,
    };
    axis::linear(across.hi, step)
}

fn is_size(value: f64) -> bool {
    value >= 1024.0 && value % 1024.0 == 0.0
}

/// Draws the labels below an axis, and omits those that do not fit.
fn ticks(out: &mut String, places: &[f64], across: &Scale, bottom: f64) {
    let mut free = f64::MIN;
    for &value in places {
        let (x, text) = (across.at(value), short(value));
        let half = 4.0 * text.chars().count() as f64;
        if x - half > free {
            let _infallible = writeln!(
                out,
                "<path class=\"axis\" d=\"M{x:.1} {bottom} v4\"/>\
                 <text class=\"middle\" x=\"{x:.1}\" y=\"{}\">{text}</text>",
                bottom + 18.0
            );
            free = x + half;
        }
    }
}

/// Formats a value of an axis. Powers of two have a unit suffix.
fn short(value: f64) -> String {
    match value {
        size if is_size(size) => format!("{}K", size / 1024.0),
        whole if whole.fract() == 0.0 && whole < 999.5 => format!("{whole}"),
        other => number(other),
    }
}

fn line(out: &mut String, panel: &Panel<'_>, curve: &Curve<'_>, on: [&Scale; 2]) {
    let ([across, up], style) = (on, curve.style);
    let mut points: Vec<&Point<'_>> = curve.points.iter().collect();
    points.sort_by(|a, b| a.x.total_cmp(&b.x));
    let places = points.iter().map(|p| (across.at(p.x), up.at(p.y)));
    let path: Vec<String> = places.map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let _infallible = writeln!(
        out,
        "<polyline class=\"s{style} line\" points=\"{}\"/>",
        path.join(" ")
    );
    for point in points {
        let x = across.at(point.x);
        if let Some((lo, hi)) = point.range.filter(|(lo, hi)| lo < hi) {
            let _infallible = writeln!(
                out,
                "<path class=\"s{style} range\" d=\"M{x:.1} {:.1} V{:.1}\"/>",
                up.at(lo),
                up.at(hi)
            );
        }
        let _infallible = writeln!(
            out,
            "<circle class=\"s{style}\" cx=\"{x:.1}\" cy=\"{:.1}\" r=\"3\" data-config=\"{}\" \
             data-metric=\"{}\" data-who=\"{}\" data-at=\"{}\" data-value=\"{}\"/>",
            up.at(point.y),
            escape(point.config),
            escape(panel.metric),
            panel.who.name(),
            point.x,
            point.y,
        );
    }
}

fn legend(out: &mut String, name: &str, style: usize, left: f64, y: &mut f64) {
    let _infallible = writeln!(
        out,
        "<path class=\"s{style} line\" d=\"M{left} {0:.1} h30\"/>\
         <text x=\"{1}\" y=\"{2:.1}\">{3}</text>",
        *y - 4.0,
        left + 38.0,
        *y,
        escape(name)
    );
    *y += LEGEND;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_split_from_a_name() {
        let of = |config| without(config, "offered");
        let alone = Some(("menon-linux".to_owned(), 2000.0));
        assert_eq!(of("menon-linux@offered=2000"), alone);
        let two = Some(("x@place=split".to_owned(), 5.0));
        assert_eq!(of("x@offered=5,place=split"), two);
        assert_eq!(of("x@offered=any"), None);
        assert_eq!(of("x"), None);
    }

    #[test]
    fn axes_have_descriptions() {
        let figure = Figure::single("menon", "menon-linux", "throughput", 2.0);
        let cells = ["1", "2"].map(|number| Cell {
            config: format!("menon-linux@wires={number}"),
            theirs: "menon-linux",
            metric: "throughput".to_owned(),
            ours: Some(&figure),
            paper: None,
            points: Vec::new(),
            used_in_ratios: true,
        });
        let svg = against("wires", "throughput", &cells);
        assert!(svg.contains(">number of NICs</text>"), "{svg}");
        assert!(!svg.contains(">wires</text>"), "{svg}");
        let ticks = svg
            .split("</text>")
            .filter_map(|text| text.split('>').next_back());
        let ticks: Vec<&str> = ticks.filter(|text| text.parse::<f64>().is_ok()).collect();
        let (up, across) = (["0", "0.5", "1.0", "1.5", "2.0"], ["0", "1", "2"]);
        assert_eq!(ticks, [&up[..], &across[..]].concat());
    }

    #[test]
    fn sizes_are_ticks_themselves() {
        let sizes = [8192.0, 1024.0, 262_144.0];
        let across = Scale::along(&sizes, 0.0, 100.0);
        let ticks = round_places(sizes.to_vec(), &across);
        assert_eq!(ticks, [1024.0, 8192.0, 262_144.0]);
        assert_eq!(short(8192.0), "8K");
    }

    #[test]
    fn wide_axes_are_logarithmic() {
        let even = Scale::along(&[1.0, 4.0], 0.0, 100.0);
        assert_eq!(
            (even.at(0.0), even.at(1.0), even.at(4.0)),
            (0.0, 25.0, 100.0)
        );
        let wide = Scale::along(&[1.0, 10.0, 100.0], 0.0, 100.0);
        assert_eq!((wide.at(1.0), wide.at(100.0)), (0.0, 100.0));
        assert!((wide.at(10.0) - 50.0).abs() < 1e-9);
        assert_eq!(Scale::along(&[7.0], 0.0, 100.0).at(7.0), 100.0, "one value");
    }

    #[test]
    fn a_distribution_rises_to_all() {
        let figure = |most: &str, share| {
            Figure::single("oi", "oi-da", &format!("flush_within_us.{most}"), share)
        };
        let of = [("20", 0.25), ("50", 1.0)].map(|(most, share)| (most, figure(most, share)));
        let shares: Vec<(&str, &Figure)> = of.iter().map(|(most, f)| (*most, f)).collect();
        let mark = vec![PaperMark {
            config: "oi-da",
            metric: "flush_latency_us.mean",
            value: 33.17,
        }];
        let svg = distribution("flush_within_us", &[("oi-da", shares)], mark);
        assert!(svg.contains("data-at=\"20\" data-value=\"0.25\""), "{svg}");
        assert!(svg.contains(">at most, µs</text>"), "{svg}");
        assert!(
            svg.contains("data-who=\"paper\" data-value=\"33.17\""),
            "{svg}"
        );
        assert!(distribution("flush_within_us", &[("oi-lro", vec![])], vec![]).is_empty());
    }
}

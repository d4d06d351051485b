//! Figures and their output: JSON lines for scripts, cells for users, data files.

use crate::file;
use crate::metric;
use crate::provenance::Provenance;
use crate::stats::{self, ComparisonVerdict, Estimate};
use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::path::Path;
pub use tool::number;

/// One figure, printed as a line of JSON.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// Plan name.
    pub plan: String,
    /// Column and keys: see [`config()`].
    pub config: String,
    /// Metric name.
    pub metric: String,
    /// Median. `None` if not measurable.
    pub value: Option<f64>,
    /// Lower end of the interval.
    pub lo: Option<f64>,
    /// Upper end of the interval.
    pub hi: Option<f64>,
    /// Unit.
    pub unit: &'static str,
    /// Number of samples.
    pub n: usize,
    /// Coverage: the probability that the interval contains the true median; `None` without an
    /// interval.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub covers: Option<f64>,
    /// Verdict of a comparison.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict: Option<ComparisonVerdict>,
    /// Reason why the figure is not measurable or was disturbed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

impl Figure {
    /// Creates a figure. Its unit follows from the metric.
    #[must_use]
    pub fn new(plan: &str, config: &str, metric: &str, estimate: Estimate) -> Self {
        Self {
            plan: plan.to_owned(),
            config: config.to_owned(),
            metric: metric.to_owned(),
            value: Some(estimate.value),
            lo: Some(estimate.lo),
            hi: Some(estimate.hi),
            unit: metric::unit(metric),
            n: estimate.n,
            covers: (estimate.n > 1).then(|| stats::coverage(estimate.n)),
            verdict: None,
            note: None,
        }
    }

    /// Creates a figure of a single count or time.
    #[must_use]
    pub fn single(plan: &str, config: &str, metric: &str, value: f64) -> Self {
        let (lo, hi) = (value, value);
        Self::new(
            plan,
            config,
            metric,
            Estimate {
                value,
                lo,
                hi,
                n: 1,
            },
        )
    }

    /// Creates a figure that is not measurable here.
    #[must_use]
    pub fn not_measurable(plan: &str, config: &str, metric: &str, why: &str) -> Self {
        Self {
            plan: plan.to_owned(),
            config: config.to_owned(),
            metric: metric.to_owned(),
            value: None,
            lo: None,
            hi: None,
            unit: metric::unit(metric),
            n: 0,
            covers: None,
            verdict: Some(ComparisonVerdict::NotMeasurable),
            note: Some(why.to_owned()),
        }
    }
}

/// Returns the name of a configuration: `column@key=value,…`, keys sorted.
#[must_use]
pub fn config(column: &str, keys: &BTreeMap<String, String>) -> String {
    let keys: Vec<String> = keys.iter().map(|(k, v)| format!("{k}={v}")).collect();
    if keys.is_empty() {
        return column.to_owned();
    }
    format!("{column}@{}", keys.join(","))
}

/// Prints provenance and figures as JSON lines.
///
/// # Errors
/// Returns an error if standard output is closed.
pub fn print_json(provenance: &Provenance, figures: &[Figure]) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    write_json(&mut out, provenance, figures)?;
    out.flush()?;
    Ok(())
}

fn write_json(
    out: &mut dyn std::io::Write,
    provenance: &Provenance,
    figures: &[Figure],
) -> anyhow::Result<()> {
    let head = serde_json::json!({ "provenance": provenance });
    writeln!(out, "{head}")?;
    for figure in figures {
        let line = Line {
            figure,
            quick: provenance.quick,
        };
        writeln!(out, "{}", serde_json::to_string(&line)?)?;
    }
    Ok(())
}

/// A figure as a line of JSON. Figures of a short run are marked, because they are not results.
#[derive(Serialize)]
struct Line<'a> {
    #[serde(flatten)]
    figure: &'a Figure,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    quick: bool,
}

/// Returns a line that states the coverage of the figures' intervals.
#[must_use]
pub fn covered(figures: &[Figure]) -> String {
    let mut by_n: BTreeMap<usize, f64> = BTreeMap::new();
    for figure in figures {
        by_n.extend(figure.covers.map(|covers| (figure.n, covers)));
    }
    let mut parts: Vec<String> = by_n
        .iter()
        .map(|(n, covers)| format!("of {n} samples {:.0} %", covers * 100.0))
        .collect();
    if parts.len() > COVERAGES {
        parts.truncate(COVERAGES);
        parts.push("…".to_owned());
    }
    match parts.is_empty() {
        true => String::new(),
        false => format!("intervals cover: {}", parts.join(", ")),
    }
}

/// Returns a line for every configuration that was not measured, with the reason.
#[must_use]
pub fn missing(figures: &[Figure]) -> String {
    let mut printed = BTreeSet::new();
    let mut out = String::new();
    // Comparisons are skipped, because their sides are listed.
    let sides = figures.iter().filter(|f| {
        let compares = ["ratio.", "quotient.", "difference."];
        f.verdict == Some(ComparisonVerdict::NotMeasurable)
            && !compares.iter().any(|start| f.metric.starts_with(start))
    });
    for figure in sides {
        let why = figure.note.as_deref().unwrap_or("the run gives no reason");
        if printed.insert((&figure.config, why)) {
            out.push_str(&format!("{}: not measurable: {why}\n", figure.config));
        }
    }
    out
}

/// Maximum number of different sample sizes that [`covered`] lists.
const COVERAGES: usize = 4;

/// Writes the lines of [`print_json`] to `FOLDER/PLAN.jsonl`, replacing the file of an earlier run.
///
/// # Errors
/// Returns an error if the folder or file cannot be written.
pub fn save(
    folder: &Path,
    plan: &str,
    provenance: &Provenance,
    figures: &[Figure],
) -> anyhow::Result<()> {
    std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let path = folder.join(format!("{plan}.jsonl"));
    file::replace(&path, |out| write_json(out, provenance, figures))
}

/// Loads a file that [`save`] wrote. Returns the provenance as JSON, and the figures.
///
/// # Errors
/// Returns an error if the file does not exist or is malformed.
pub fn load(folder: &Path, plan: &str) -> anyhow::Result<(serde_json::Value, Vec<Figure>)> {
    let path = folder.join(format!("{plan}.jsonl"));
    let wrong = || path.display().to_string();
    let text = std::fs::read_to_string(&path).with_context(wrong)?;
    let mut lines = text.lines();
    let mut head: serde_json::Value =
        serde_json::from_str(lines.next().unwrap_or_default()).with_context(wrong)?;
    let figures = lines.map(|line| Ok(serde_json::from_str::<StoredFigure>(line)?.into()));
    let figures = figures.collect::<anyhow::Result<_>>().with_context(wrong)?;
    Ok((head["provenance"].take(), figures))
}

/// A figure in a file. Its unit follows from the metric.
#[derive(Deserialize)]
struct StoredFigure {
    plan: String,
    config: String,
    metric: String,
    value: Option<f64>,
    lo: Option<f64>,
    hi: Option<f64>,
    n: usize,
    covers: Option<f64>,
    verdict: Option<ComparisonVerdict>,
    note: Option<String>,
}

impl From<StoredFigure> for Figure {
    fn from(kept: StoredFigure) -> Self {
        Self {
            unit: metric::unit(&kept.metric),
            plan: kept.plan,
            config: kept.config,
            metric: kept.metric,
            value: kept.value,
            lo: kept.lo,
            hi: kept.hi,
            n: kept.n,
            covers: kept.covers,
            verdict: kept.verdict,
            note: kept.note,
        }
    }
}

/// Formats a value with all of its digits and with separators between thousands: `0.5054`.
#[must_use]
pub fn exact(value: f64) -> String {
    let text = value.to_string();
    match value.is_finite() && value.abs() < 999.5 {
        true => text,
        false => number(value),
    }
}

/// Formats a figure as a table cell, which has the median, the interval if it exists, and a mark if
/// the figure is unresolved. The cell can wrap only before the interval.
#[must_use]
pub fn cell(figure: Option<&Figure>) -> String {
    let Some((figure, value)) = figure.and_then(|f| Some((f, f.value?))) else {
        return "–".to_owned();
    };
    let mark = match figure.verdict {
        Some(ComparisonVerdict::Unresolved) => "\u{a0}?",
        _ => "",
    };
    match (figure.lo, figure.hi) {
        (Some(lo), Some(hi)) if figure.n > 1 && lo != hi => {
            let (lo, hi) = (number(lo), number(hi));
            format!("{}{mark} [{lo},\u{a0}{hi}]", number(value))
        }
        _ => format!("{}{mark}", number(value)),
    }
}

/// Figures by configuration and metric.
#[derive(Debug)]
pub struct Index<'a>(BTreeMap<(&'a str, &'a str), &'a Figure>);

impl<'a> Index<'a> {
    /// Creates an index of figures.
    #[must_use]
    pub fn new(figures: &'a [Figure]) -> Self {
        Self(
            figures
                .iter()
                .map(|f| ((f.config.as_str(), f.metric.as_str()), f))
                .collect(),
        )
    }

    /// Returns a figure.
    #[must_use]
    pub fn get(&self, config: &str, metric: &str) -> Option<&'a Figure> {
        self.0.get(&(config, metric)).copied()
    }

    /// Returns the metrics of a configuration whose names start with `prefix`, sorted by name. The
    /// names are returned without the prefix.
    #[must_use]
    pub fn below(&self, config: &str, prefix: &str) -> Vec<(&'a str, &'a Figure)> {
        self.0
            .iter()
            .filter(|((c, _), _)| *c == config)
            .filter_map(|((_, metric), figure)| Some((metric.strip_prefix(prefix)?, *figure)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_one_line_in_the_contracts_order() {
        let figure = Figure::single("base", "grantway@dir=to_guest", "throughput", 9.5);
        assert_eq!(
            serde_json::to_string(&figure).unwrap(),
            concat!(
                r#"{"plan":"base","config":"grantway@dir=to_guest","metric":"throughput","#,
                r#""value":9.5,"lo":9.5,"hi":9.5,"unit":"Gb/s","n":1}"#
            )
        );
        let (lo, value, hi, n) = (1.0, 2.0, 3.0, 3);
        let figure = Figure::new("base", "x", "throughput", Estimate { value, lo, hi, n });
        let line = serde_json::to_string(&figure).unwrap();
        assert!(line.ends_with(r#""n":3,"covers":0.75}"#), "{line}");
        assert_eq!(covered(&[figure]), "intervals cover: of 3 samples 75 %");
        let absent = Figure::not_measurable("base", "bridge-gro-on", "throughput", "no `ip`");
        let line = serde_json::to_string(&absent).unwrap();
        assert!(
            line.contains(r#""value":null"#) && line.contains(r#""not-measurable""#),
            "{line}"
        );
    }

    #[test]
    fn every_figure_of_a_short_run_is_marked() {
        let figure = Figure::single("base", "x", "throughput", 1.0);
        for quick in [true, false] {
            let mut out = Vec::new();
            let provenance = Provenance::collect("here".to_owned(), quick);
            write_json(&mut out, &provenance, std::slice::from_ref(&figure)).unwrap();
            let text = String::from_utf8(out).unwrap();
            let line = text.lines().nth(1).unwrap();
            assert_eq!(line.ends_with(r#","quick":true}"#), quick, "{line}");
        }
    }

    #[test]
    fn saved_figures_can_be_loaded() {
        let folder = tempfile::tempdir().unwrap();
        let (lo, value, hi, n) = (1.0, 2.0, 3.0, 9);
        let mut doubtful = Figure::new("base", "x", "throughput", Estimate { value, lo, hi, n });
        doubtful.verdict = Some(ComparisonVerdict::Unresolved);
        let absent = Figure::not_measurable("base", "y", "throughput", "no `ip`");
        let figures = [doubtful, absent];
        let provenance = Provenance::collect("here".to_owned(), true);
        save(folder.path(), "base", &provenance, &figures).unwrap();
        let (from, loaded) = load(folder.path(), "base").unwrap();
        assert_eq!(loaded, figures);
        assert_eq!(from["placement"], "here");
        assert!(load(folder.path(), "lro").is_err());
        std::fs::write(folder.path().join("lro.jsonl"), "{}\n[]\n").unwrap();
        assert!(load(folder.path(), "lro").is_err());
    }

    #[test]
    fn keys_are_sorted() {
        let keys = [("wake", "awake"), ("dir", "to_guest"), ("place", "split")]
            .map(|(k, v)| (k.to_owned(), v.to_owned()))
            .into();
        assert_eq!(
            config("veth-gro-on", &keys),
            "veth-gro-on@dir=to_guest,place=split,wake=awake"
        );
        assert_eq!(config("veth-gro-on", &BTreeMap::new()), "veth-gro-on");
    }

    #[test]
    fn each_absent_configuration_has_its_reason_once() {
        let absent = |config, metric| Figure::not_measurable("ram", config, metric, "no `ip`");
        let figures = [
            absent("ram-linux", "throughput"),
            absent("ram-linux", "transactions"),
            Figure::single("ram", "ram-xen", "throughput", 1.0),
            absent("ram-xen", "quotient.ram-linux.throughput"),
            absent("ram-transmit-linux", "throughput"),
        ];
        assert_eq!(
            missing(&figures),
            "ram-linux: not measurable: no `ip`\nram-transmit-linux: not measurable: no `ip`\n"
        );
        assert_eq!(missing(&figures[2..3]), "");
    }

    #[test]
    fn stated_values_keep_their_digits() {
        for (value, text) in [
            (0.5054, "0.5054"),
            (0.5084, "0.5084"),
            (354_000.0, "354\u{202f}000"),
            (4.5, "4.5"),
            (f64::NAN, "–"),
        ] {
            assert_eq!(exact(value), text);
        }
    }

    #[test]
    fn an_index_finds_by_prefix() {
        let figures = [
            Figure::single("demo", "grantway", "cycles_per_packet.driver.hop.nic", 1.0),
            Figure::single("demo", "grantway", "cycles_per_packet.driver.hop.copy", 2.0),
            Figure::single("demo", "grantway", "cycles_per_packet.driver", 3.0),
        ];
        let index = Index::new(&figures);
        let hops: Vec<&str> = index
            .below("grantway", "cycles_per_packet.driver.hop.")
            .iter()
            .map(|(hop, _)| *hop)
            .collect();
        assert_eq!(hops, ["copy", "nic"]);
    }
}

//! A report of a paper's tables and figures beside ours, as one page: no script, no external
//! resources, light and dark themes, printable. Every drawn value is also an attribute
//! (`data-config`, `data-metric`, `data-who`, `data-value`), so that a program can read the page.

mod bars;
mod cell;
mod curve;
mod flames;

use crate::lane::events::EVENTS_COUNTED;
use crate::papers::{Item, Paper, PaperRatio, SWEPT, Stated, Value};
use crate::plan::Config;
use crate::runner::{Stands, words};
use cell::{Cell, escape};
use curve::PaperMark;
use figures::metric::words as words_of;
use figures::provenance::Provenance;
use figures::repeat;
use figures::report::{Figure, Index, cell, covered, exact, number};
use figures::stats::Verdict;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

pub use flames::Flames;

/// A paper, with our figures beside it.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// The paper.
    pub paper: &'a Paper,
    /// The paper's configuration that each column reproduces.
    pub stands: &'a Stands<'a>,
    /// Our figures.
    pub figures: &'a [Figure],
    /// Length of a window, seconds.
    pub window_s: f64,
}

/// Returns the page.
#[must_use]
pub fn page(provenance: &Provenance, parts: &[Part<'_>], flames: &Flames) -> String {
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n\
         <title>Papers beside Grantway</title>\n<style>{STYLE}</style></head><body>\n\
         <h1>Papers beside Grantway</h1>\n"
    );
    let _infallible = writeln!(out, "<pre>{}</pre>", escape(&provenance.text()));
    if provenance.quick {
        out.push_str(
            "<p class=\"warn\">A short run shows only that everything works. None of its figures \
             is a result.</p>\n",
        );
    }
    out.push_str(HOW_TO_READ);
    out.push_str("<ul>\n");
    for part in parts {
        let (name, title) = (&part.paper.name, escape(&part.paper.title));
        let _infallible = writeln!(out, "<li><a href=\"#{name}\">{title}</a></li>");
    }
    out.push_str("</ul>\n");
    for part in parts {
        out.push_str(&section(part, flames));
    }
    out.push_str("</body></html>\n");
    out
}

const HOW_TO_READ: &str = "<p>Each of our figures is beside the paper's. The machines are more \
    than ten years apart, so verdicts are about the <em>quotient</em>: our ratio to our baseline, \
    divided by the paper's ratio to its own. <em>Equal as in the paper</em>: all of the quotient's \
    interval lies in 0.80–1.25, and both ratios on one side of 1. <em>Same sign</em>, \
    <em>opposite</em>: the side of 1 that our interval is on. <em>No effect seen</em>: the paper \
    has an effect, and our interval contains 1 and lies in 0.80–1.25. <em>Differs in size</em>: \
    the paper's ratio lies within 5 % of 1, and ours clearly does not. <em>Unresolved</em>: the \
    rounds do not suffice for a verdict. <em>Not comparable</em>: the set-ups differ in the \
    subject of the ratio. Bars show each value ÷ the first configuration's; classes are shares of \
    the first configuration's total. Curves show absolute values; the paper's curve has the points \
    that its text states.</p>\n";

const STYLE: &str = "\
    :root{--ink:#1a1a1a;--paper:#fff;--soft:#666;--line:#ccc;--ours:#1f5f99;--theirs:#c47a1c;\
    --bad:#a02020;--c2:#2e7d4f;--c3:#8a3fa0;--c4:#a02020;--c5:#4b5563;color-scheme:light dark}\
    @media screen and (prefers-color-scheme:dark){:root{--ink:#e6e6e6;--paper:#16181b;\
    --soft:#a0a0a0;--line:#444;--ours:#6aa8e0;--theirs:#e0a45a;--bad:#ff8080;--c2:#6cc18c;\
    --c3:#c08ad6;--c4:#ff8080;--c5:#a3adba}}\
    body{font:16px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);\
    max-width:60rem;margin:auto;padding:1rem;overflow-wrap:anywhere}\
    table{border-collapse:collapse;font-size:.85rem;display:block;overflow-x:auto;\
    overflow-wrap:normal}\
    th,td{padding:.2rem .6rem;border-bottom:1px solid var(--line);text-align:right}\
    th:first-child,td:first-child,td:last-child,th:last-child{text-align:left}\
    pre{white-space:pre-wrap;color:var(--soft)}.soft{color:var(--soft)}.warn{color:var(--bad)}\
    svg{max-width:100%;height:auto}svg text{fill:var(--ink);font:12px system-ui,sans-serif}\
    svg .end{text-anchor:end}svg .middle{text-anchor:middle}\
    .ours{fill:var(--ours)}.paper{fill:var(--theirs)}.range{stroke:var(--ink)}\
    .s0{stroke:var(--ours);fill:var(--ours)}.s1{stroke:var(--theirs);fill:var(--theirs)}\
    .s2{stroke:var(--c2);fill:var(--c2)}.s3{stroke:var(--c3);fill:var(--c3)}\
    .s4{stroke:var(--c4);fill:var(--c4)}.s5{stroke:var(--c5);fill:var(--c5)}\
    .line{fill:none;stroke-width:1.8}.s1.line{stroke-dasharray:7 3}.s2.line{stroke-dasharray:2 2}\
    .s3.line{stroke-dasharray:9 3 2 3}.s4.line{stroke-dasharray:4 4}\
    .s5.line{stroke-dasharray:12 4}.axis{stroke:var(--soft);fill:none}\
    @media print{body{max-width:none;padding:0}h2,h3{break-after:avoid}svg,tr{break-inside:avoid}\
    table{display:table;overflow:visible;font-size:.6rem;overflow-wrap:anywhere}\
    th,td{padding:.1rem .3rem}}";

fn section(part: &Part<'_>, flames: &Flames) -> String {
    let Part { paper, figures, .. } = part;
    let mut out = format!(
        "<h2 id=\"{}\">{}</h2>\n<p>They: {}.<br>Here: {}.</p>\n<p class=\"soft\">{}</p>\n",
        paper.name,
        escape(&paper.title),
        escape(&paper.setup),
        escape(&paper.differs),
        escape(&covered(figures)),
    );
    out.push_str(&flames.links(part.stands.keys()));
    let index = Index::new(figures);
    let counted = figures.iter().any(|figure| figure.metric == EVENTS_COUNTED);
    for item in &paper.item {
        let _infallible = writeln!(
            out,
            "<h3>{}: {}</h3>",
            escape(&item.id),
            escape(&item.about)
        );
        let cells = cells(part, item, &index);
        out.push_str(&drawn(part, item, &cells, &index));
        out.push_str(&table(part, &cells, &index));
        if item.by_window {
            let _infallible = writeln!(
                out,
                "<p class=\"soft\">These grow with the window length. Our windows have {} s.</p>",
                part.window_s
            );
        }
        out.push_str(&unstated(paper, item));
        if let Some(stated) = &item.stated {
            out.push_str(&stated_table(stated));
        }
        if let Some(why) = &item.why {
            let _infallible = writeln!(
                out,
                "<p class=\"soft\">Not measured here: {}.</p>",
                escape(why)
            );
        }
        if let Some(missing) = item.without_counters.as_ref().filter(|_| !counted) {
            let _infallible = writeln!(
                out,
                "<p class=\"soft\">This run had no performance counters, so these are missing: \
                 {}.</p>",
                escape(missing)
            );
        }
    }
    out
}

/// Draws the item: curves if its axis is a key of our configurations, else bars.
fn drawn(part: &Part<'_>, item: &Item, cells: &[Cell<'_>], index: &Index<'_>) -> String {
    let mut out = String::new();
    let mut stems: Vec<&str> = Vec::new();
    for metric in metrics(cells) {
        let stem = item.metrics.iter().find_map(|all| {
            let stem = all.strip_suffix('*')?;
            metric.starts_with(stem).then_some(stem)
        });
        match (stem, &item.against) {
            (Some(stem), _) if stems.contains(&stem) => {}
            (Some(stem), _) => {
                stems.push(stem);
                out.push_str(&bars::classes(stem, cells, whole(part, cells, stem)));
            }
            (None, Some(key)) => match curve::against(key, metric, cells) {
                none if none.is_empty() => out.push_str(&bars::bars(metric, cells)),
                curves => out.push_str(&curves),
            },
            (None, None) => out.push_str(&bars::bars(metric, cells)),
        }
    }
    if let Some(of) = &item.distribution {
        let of_config = |config: &str| index.below(config, &format!("{}.", of.share));
        let mut shares: Vec<(&str, Vec<(&str, &Figure)>)> = Vec::new();
        let mut marks = Vec::new();
        for cell in cells.iter().filter(|cell| cell.metric == of.mark) {
            shares.push((&cell.config, of_config(&cell.config)));
            marks.extend(cell.paper.map(|value| PaperMark {
                config: cell.theirs,
                metric: &of.mark,
                value,
            }));
        }
        out.push_str(&curve::distribution(&of.share, &shares, marks));
    }
    out
}

/// Returns the first configuration's total of the classes with prefix `stem`, ours and the paper's:
/// the total metric if it exists, else the sum of the classes.
fn whole(part: &Part<'_>, cells: &[Cell<'_>], stem: &str) -> [Option<f64>; 2] {
    let of = |value: &dyn Fn(&Cell<'_>) -> Option<f64>| {
        let known = |cell: &&Cell<'_>| cell.metric.starts_with(stem) && value(cell).is_some();
        let first = cells.iter().find(known)?;
        let own = || {
            cells
                .iter()
                .filter(|cell| cell.config == first.config && known(cell))
        };
        let total = own().find(|cell| cell.metric.strip_prefix(stem) == Some(bars::TOTAL));
        let sum = || own().filter_map(value).sum::<f64>();
        let whole = total.and_then(value).unwrap_or_else(sum);
        Some((first.theirs, whole))
    };
    let ours = of(&|cell| cell.ours?.value).map(|(_, sum)| sum);
    // A paper may state only some classes, and the total of all.
    let of_all = stem.trim_end_matches('.').trim_end_matches(".class");
    let theirs = of(&|cell| cell.paper).map(|(config, sum)| {
        let mut all = part.paper.values(config, of_all);
        all.next().map_or(sum, |(all, _)| all)
    });
    [ours, theirs].map(|sum| sum.filter(|sum| *sum > 0.0))
}

/// Returns a sentence that lists the values missing from the paper's text.
fn unstated(paper: &Paper, item: &Item) -> String {
    let mut missing: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for config in &item.configs {
        let stated = paper.config(config).map(|config| config.values.as_slice());
        for metric in &item.metrics {
            let one_of = |name: &str| match metric.strip_suffix('*') {
                Some(start) => name.starts_with(start),
                None => name == metric,
            };
            let values = stated.into_iter().flatten();
            let stated = |value: &&Value| one_of(&value.metric) && item.shows(value);
            if !values.into_iter().any(|value| stated(&value)) {
                missing.entry(metric).or_default().push(config);
            }
        }
    }
    let parts: Vec<String> = missing
        .into_iter()
        .map(|(metric, configs)| format!("{} ({})", words_of(metric), configs.join(", ")))
        .collect();
    match parts.is_empty() {
        true => String::new(),
        false => format!(
            "<p class=\"soft\">The paper's text states no value of: {}.</p>\n",
            escape(&parts.join("; "))
        ),
    }
}

/// Returns a table of the paper's values without a counterpart here.
fn stated_table(stated: &Stated) -> String {
    let mut out = format!("<table><tr><th>{}</th>", escape(&stated.unit));
    for column in &stated.columns {
        let _infallible = write!(out, "<th>{}</th>", escape(column));
    }
    out.push_str("</tr>\n");
    for (name, values) in &stated.rows {
        let _infallible = write!(out, "<tr><td>{}</td>", escape(name));
        for value in values {
            let _infallible = write!(out, "<td>{}</td>", escape(value));
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</table>\n");
    out
}

/// Returns all values of an item, by configuration.
fn cells<'a>(part: &Part<'a>, item: &'a Item, index: &Index<'a>) -> Vec<Cell<'a>> {
    let mut cells = Vec::new();
    for theirs in &item.configs {
        let columns = part.stands.iter().filter(|(_, config)| *config == theirs);
        for (column, _) in columns {
            let of_column = |figure: &&Figure| {
                let name = figure.config.split('@').next().unwrap_or_default();
                name == *column
            };
            let mut configs: Vec<&str> = Vec::new();
            for figure in part.figures.iter().filter(of_column) {
                if item.has(&Config::keys_of(&figure.config))
                    && !configs.contains(&figure.config.as_str())
                {
                    configs.push(&figure.config);
                }
            }
            for config in configs {
                let absent = absence(config, part.figures);
                for metric in &item.metrics {
                    for metric in matching(metric, config, index) {
                        let PaperValues {
                            value,
                            points,
                            judged,
                        } = said(part.paper, item, [theirs, config], &metric);
                        cells.push(Cell {
                            config: config.to_owned(),
                            theirs,
                            ours: index.get(config, &metric).or(absent),
                            paper: value,
                            points,
                            judged,
                            metric,
                        });
                    }
                }
            }
        }
    }
    let Some(key) = &item.against else {
        // The paper's value has a separate row only if none of our configurations is beside it.
        let of = |cell: &Cell<'_>| (cell.theirs.to_owned(), cell.metric.clone());
        let measured = cells.iter().filter(|cell| cell.ours.is_some()).map(of);
        let measured: BTreeSet<_> = measured.collect();
        cells.retain(|cell| {
            cell.ours.is_some() || (cell.paper.is_some() && !measured.contains(&of(cell)))
        });
        return cells;
    };
    // Points on the axis are shown only in curves.
    cells.retain(|cell| cell.ours.is_some());
    let point = |cell: &Cell<'_>| Config::keys_of(&cell.config).contains_key(key.as_str());
    let of = |cell: &Cell<'_>| (cell.theirs.to_owned(), cell.metric.clone());
    let curves: BTreeSet<_> = cells.iter().filter(|cell| point(cell)).map(of).collect();
    cells.retain(|cell| point(cell) || !curves.contains(&of(cell)));
    cells
}

/// Returns the figure with the reason why a configuration was not measured.
fn absence<'a>(config: &str, figures: &'a [Figure]) -> Option<&'a Figure> {
    let is_absent = |f: &&Figure| f.verdict == Some(Verdict::NotMeasurable) && f.config == config;
    let mut of_itself = figures.iter().filter(|f| !f.metric.contains("quotient."));
    of_itself.find(is_absent)
}

/// The paper's values of a configuration, as an item shows them.
struct PaperValues {
    /// Value of the whole configuration.
    value: Option<f64>,
    /// Points on the item's axis.
    points: Vec<(f64, f64)>,
    /// True if the value is the paper's first statement, which ratios use.
    judged: bool,
}

/// Returns the paper's values for a configuration. If the paper states a value twice, an item shows
/// the statement that is in it.
fn said(paper: &Paper, item: &Item, [theirs, config]: [&str; 2], metric: &str) -> PaperValues {
    let shown = || {
        let values = paper.values(theirs, metric);
        values.filter(|(_, said)| item.shows(said))
    };
    let keys = Config::keys_of(config);
    let here = || shown().filter(|(_, said)| said.is_of(&keys));
    let own = here().find(|(_, said)| item.states(said));
    let first = here().next();
    let point = |(value, said): (f64, &Value)| {
        let at = item.against.as_ref().and_then(|key| said.at.get(key))?;
        Some((*at, value))
    };
    let found = own.or(first);
    PaperValues {
        value: found.map(|(value, _)| value),
        points: shown().filter_map(point).collect(),
        judged: match (found, first) {
            (Some((_, found)), Some((_, first))) => std::ptr::eq(found, first),
            _ => true,
        },
    }
}

/// Returns the metrics of a configuration that match a name.
fn matching(metric: &str, config: &str, index: &Index<'_>) -> Vec<String> {
    let Some(start) = metric.strip_suffix('*') else {
        return vec![metric.to_owned()];
    };
    let below = index.below(config, start);
    below
        .iter()
        .map(|(rest, _)| format!("{start}{rest}"))
        .collect()
}

/// Returns the metrics of an item in the order of their first use.
fn metrics<'a>(cells: &'a [Cell<'_>]) -> Vec<&'a str> {
    let mut found: Vec<&str> = Vec::new();
    for cell in cells {
        if !found.contains(&cell.metric.as_str()) {
            found.push(&cell.metric);
        }
    }
    found
}

/// Returns the item as a table: each value with its baseline, ratios and verdict.
fn table(part: &Part<'_>, cells: &[Cell<'_>], index: &Index<'_>) -> String {
    if cells.is_empty() {
        return String::new();
    }
    let mut out = "<table><tr><th>configuration</th><th>metric</th><th>ours</th><th>paper's</th>\
                   <th>ours ÷</th><th>paper's ÷</th><th>quotient</th><th>verdict</th></tr>\n"
        .to_owned();
    for item in cells {
        let keys = Config::keys_of(&item.config);
        let point = SWEPT.iter().any(|key| keys.contains_key(key));
        let ratios = part.paper.ratios(item.theirs);
        let mut ratios: Vec<Option<&PaperRatio<'_>>> = ratios
            .iter()
            .filter(|r| r.metric == item.metric && !point && item.judged && r.is_of(&keys))
            .map(Some)
            .collect();
        if ratios.is_empty() {
            ratios.push(None);
        }
        for ratio in ratios {
            out.push_str(&row(part, item, ratio, index));
        }
    }
    out.push_str("</table>\n");
    out
}

fn row(
    part: &Part<'_>,
    item: &Cell<'_>,
    ratio: Option<&PaperRatio<'_>>,
    index: &Index<'_>,
) -> String {
    let quotient = ratio.and_then(|ratio| {
        let mut others = part
            .stands
            .iter()
            .filter(|(_, config)| **config == ratio.to);
        others.find_map(|(column, _)| {
            index.get(&item.config, &format!("quotient.{column}.{}", item.metric))
        })
    });
    let is_absent = |figure: &&Figure| figure.verdict == Some(Verdict::NotMeasurable);
    let absent = quotient.filter(is_absent).or(item.ours.filter(is_absent));
    let verdict = match (absent, quotient) {
        (Some(Figure { note, .. }), _) => {
            let why = note.as_deref().unwrap_or("the run gives no reason");
            format!("{}: {why}", words(Verdict::NotMeasurable))
        }
        (None, Some(figure)) => figure.verdict.map_or(String::new(), |verdict| {
            let why = ratio.and_then(|ratio| ratio.not_comparable);
            match why.filter(|_| verdict == Verdict::NotComparable) {
                Some(why) => format!("{}: {why}", words(verdict)),
                None => words(verdict).to_owned(),
            }
        }),
        (None, None) => String::new(),
    };
    let before = match quotient.is_some_and(repeat::differs_from_previous) {
        true => ", differs from the last run",
        false => "",
    };
    let own = quotient.and_then(|q| Some(q.value? * ratio?.ratio));
    let known = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), number);
    let stated = item.paper.map_or_else(|| "–".to_owned(), exact);
    let to = ratio.map_or_else(String::new, |ratio| format!(" ({})", ratio.to));
    format!(
        "<tr><td>{}</td><td title=\"{}\">{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>\
         <td>{}</td><td>{}</td></tr>\n",
        escape(&item.config),
        escape(&item.metric),
        escape(&words_of(&item.metric)),
        escape(&cell(item.ours)),
        stated,
        known(own),
        escape(&format!("{}{to}", known(ratio.map(|ratio| ratio.ratio)))),
        escape(&cell(quotient)),
        escape(&format!("{verdict}{before}")),
    )
}

#[cfg(test)]
mod tests;

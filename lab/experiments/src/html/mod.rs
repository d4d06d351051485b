//! A report of a paper's tables and figures beside ours, as one printable page with light and dark
//! themes, and without scripts or external resources. Every drawn value is also an attribute
//! (`data-config`, `data-metric`, `data-who`, `data-value`), so that a program can read the page.

mod axis;
mod bars;
mod cell;
mod contents;
mod curve;
mod download;
mod flames;
mod questions;
mod style;
mod values;
mod verdicts;

use crate::lane::events::EVENTS_COUNTED;
use crate::papers::{Item, Paper, Stated, Value};
use cell::{Cell, escape, prose};
use curve::PaperMark;
use figures::metric::words as words_of;
use figures::provenance::Provenance;
use figures::report::{Figure, Index, cell, covered, exact, number};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use values::cells;
use verdicts::ComparedRatio;

pub use flames::Flames;
pub use values::PaperPart;

/// Returns the page.
#[must_use]
pub fn page(provenance: &Provenance, parts: &[PaperPart<'_>], flames: &Flames) -> String {
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n\
         <title>Papers beside Grantway</title>\n<style>{}</style></head><body>\n\
         <h1>Papers beside Grantway</h1>\n",
        style::page()
    );
    let _infallible = writeln!(out, "<pre>{}</pre>", escape(&provenance.text()));
    if provenance.quick {
        out.push_str(
            "<p class=\"warn\">A short run shows only that everything works. None of its figures \
             is a result.</p>\n",
        );
    }
    out.push_str(HOW_TO_READ);
    out.push_str(&verdicts::legend());
    out.push_str(&contents::claims(parts));
    out.push_str(&contents::contents(parts));
    for part in parts {
        out.push_str(&section(part, flames));
    }
    out.push_str("</body></html>\n");
    out
}

const HOW_TO_READ: &str = "<p>Each of our figures is beside the paper's. The machines are more \
    than ten years apart, so verdicts are about the <em>quotient</em>: our ratio to our baseline, \
    divided by the paper's ratio to its own. A bar's length is its value ÷ the first \
    configuration's, and a class is a share of the first configuration's total; in brackets is the \
    ratio of the table below with its baseline. Curves show absolute values; the \
    paper's curve has the points that its text states.</p>\n";

fn section(part: &PaperPart<'_>, flames: &Flames) -> String {
    let PaperPart { paper, figures, .. } = part;
    let mut out = format!(
        "<h2 id=\"{}\">{}</h2>\n<p>They: {}.<br>Here: {}.</p>\n<p class=\"soft\">{}</p>\n",
        paper.name,
        prose(&paper.title),
        prose(&paper.setup),
        prose(&paper.differs),
        escape(&covered(figures)),
    );
    out.push_str(&configurations(part));
    out.push_str(&flames.links(part.reproduced.keys()));
    let index = Index::new(figures);
    let counted = figures.iter().any(|figure| figure.metric == EVENTS_COUNTED);
    for item in &paper.item {
        let _infallible = writeln!(
            out,
            "<h3 id=\"{}\">{}: {}</h3>",
            contents::anchor(paper, item),
            escape(&item.id),
            prose(&item.about)
        );
        let cells = cells(part, item, &index);
        out.push_str(&drawn(part, item, &cells, &index));
        out.push_str(&table(part, &cells, &index));
        out.push_str(&download::csv(part, item, &cells, &index));
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
        let classes = paper.classes.as_ref().filter(|_| item.has_classes());
        for remark in item.differs.iter().chain(classes) {
            let _infallible = writeln!(out, "<p class=\"soft\">{}.</p>", prose(remark));
        }
        if let Some(why) = &item.why {
            let _infallible = writeln!(
                out,
                "<p class=\"soft\">Not measured here: {}.</p>",
                prose(why)
            );
        }
        if let Some(missing) = item.without_counters.as_ref().filter(|_| !counted) {
            let _infallible = writeln!(
                out,
                "<p class=\"soft\">This run had no performance counters, so these are missing: \
                 {}.</p>",
                prose(missing)
            );
        }
    }
    out.push_str(&questions::table(part, &index));
    out
}

/// Returns the list of the paper's configurations, each with its description and our columns of
/// other names that reproduce it.
fn configurations(part: &PaperPart<'_>) -> String {
    let mut out = "<dl>\n".to_owned();
    for config in &part.paper.config {
        let columns = part.reproduced.iter();
        let also = columns.filter(|(column, other)| {
            other.config == config.name.as_str() && **column != config.name.as_str()
        });
        let also: Vec<String> = also
            .map(|(column, _)| format!("<code>{}</code>", escape(column)))
            .collect();
        let also = match also.is_empty() {
            true => String::new(),
            false => format!("; also {}", also.join(", ")),
        };
        let _infallible = writeln!(
            out,
            "<dt>{}</dt><dd>{}{also}</dd>",
            escape(&config.name),
            prose(&config.about)
        );
    }
    out.push_str("</dl>\n");
    out
}

/// Draws the item, as curves if its axis is a key of our configurations, otherwise as bars.
fn drawn(part: &PaperPart<'_>, item: &Item, cells: &[Cell<'_>], index: &Index<'_>) -> String {
    let mut out = String::new();
    let mut save = |metric: &str, svg: String| {
        let name = format!("{}.{metric}", contents::anchor(part.paper, item));
        out.push_str(&download::figure(&svg, &name));
    };
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
                let classes = bars::classes(part, stem, cells, whole(part, cells, stem), index);
                save(stem.trim_end_matches('.'), classes);
            }
            (None, Some(key)) => match curve::against(key, metric, cells) {
                none if none.is_empty() => save(metric, bars::bars(part, metric, cells, index)),
                curves => save(metric, curves),
            },
            (None, None) => save(metric, bars::bars(part, metric, cells, index)),
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
        save(&of.share, curve::distribution(&of.share, &shares, marks));
    }
    out
}

/// Returns the first configuration's totals of the classes with prefix `stem`, ours and the
/// paper's: the total metric if it exists, otherwise the sum of the classes.
fn whole(part: &PaperPart<'_>, cells: &[Cell<'_>], stem: &str) -> [Option<f64>; 2] {
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
    // A paper may state the total but only some of its classes.
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

/// Returns the item as a table of values, each with its baseline, ratios and verdict.
fn table(part: &PaperPart<'_>, cells: &[Cell<'_>], index: &Index<'_>) -> String {
    if cells.is_empty() {
        return String::new();
    }
    let mut out = "<table><tr><th>configuration</th><th>metric</th><th>ours</th><th>paper's</th>\
                   <th>ours ÷</th><th>paper's ÷</th><th>quotient</th><th>verdict</th></tr>\n"
        .to_owned();
    for item in cells {
        for compared in verdicts::of(part, item, index) {
            out.push_str(&row(item, &compared));
        }
    }
    out.push_str("</table>\n");
    out
}

fn row(item: &Cell<'_>, compared: &ComparedRatio<'_>) -> String {
    let known = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), number);
    let stated = item.paper.map_or_else(|| "–".to_owned(), exact);
    let ratio = compared.ratio.as_ref();
    let to = ratio.map_or_else(String::new, |ratio| format!(" ({})", ratio.to));
    format!(
        "<tr><td>{}</td><td title=\"{}\">{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>\
         <td>{}</td><td>{}</td></tr>\n",
        escape(&item.config),
        escape(&item.metric),
        escape(&words_of(&item.metric)),
        escape(&cell(item.ours)),
        stated,
        known(compared.own()),
        escape(&format!("{}{to}", known(ratio.map(|ratio| ratio.ratio)))),
        escape(&cell(compared.quotient)),
        prose(&compared.text()),
    )
}

#[cfg(test)]
mod tests;

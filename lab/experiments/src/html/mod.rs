//! A report of a paper's tables and figures beside ours, as one page: no script, nothing from
//! elsewhere, light and dark, for paper too. Every value that is drawn is an attribute as well
//! (`data-config`, `data-metric`, `data-who`, `data-value`), so that a program can read the page.

mod cell;
mod svg;

use crate::papers::{Item, Paper, PaperRatio};
use crate::runner::{Stands, words};
use cell::{Cell, escape};
use figures::provenance::Provenance;
use figures::report::{Figure, Index, cell, covered, number};
use figures::stats::Verdict;
use std::fmt::Write as _;

/// A paper, and what was measured beside it.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// The paper.
    pub paper: &'a Paper,
    /// Which of its configurations each column stands for.
    pub stands: &'a Stands<'a>,
    /// What was measured.
    pub figures: &'a [Figure],
}

/// The page.
#[must_use]
pub fn page(provenance: &Provenance, parts: &[Part<'_>]) -> String {
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n\
         <title>Papers beside Grantway</title>\n<style>{STYLE}</style></head><body>\n\
         <h1>Papers beside Grantway</h1>\n"
    );
    let _infallible = writeln!(out, "<pre>{}</pre>", escape(&provenance.text()));
    if provenance.quick {
        out.push_str(
            "<p class=\"warn\">A short run: it shows that everything works. None of its figures \
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
        out.push_str(&section(part));
    }
    out.push_str("</body></html>\n");
    out
}

const HOW_TO_READ: &str = "<p>Each figure of ours stands beside the paper's. The machines lie more \
    than a decade apart, so what is judged is the <em>quotient</em>: our ratio to our baseline, \
    divided by the paper's ratio to its own. <em>Equal as in the paper</em>: all of the quotient's \
    interval lies in 0.80–1.25. <em>Same sign</em>: our ratio lies on the paper's side of 1. Bars \
    show each value divided by that of the first configuration.</p>\n";

const STYLE: &str = "\
    :root{--ink:#1a1a1a;--paper:#fff;--soft:#666;--line:#ccc;--ours:#1f5f99;--theirs:#c47a1c;\
    --bad:#a02020;color-scheme:light dark}\
    @media (prefers-color-scheme:dark){:root{--ink:#e6e6e6;--paper:#16181b;--soft:#a0a0a0;\
    --line:#444;--ours:#6aa8e0;--theirs:#e0a45a;--bad:#ff8080}}\
    @media print{:root{--ink:#000;--paper:#fff}h3,table,svg{break-inside:avoid}}\
    body{font:16px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);\
    max-width:60rem;margin:auto;padding:1rem}\
    table{border-collapse:collapse;font-size:.85rem;display:block;overflow-x:auto}\
    th,td{padding:.2rem .6rem;border-bottom:1px solid var(--line);text-align:right}\
    th:first-child,td:first-child,td:last-child,th:last-child{text-align:left}\
    pre{white-space:pre-wrap;color:var(--soft)}.soft{color:var(--soft)}.warn{color:var(--bad)}\
    svg{max-width:100%;height:auto}svg text{fill:var(--ink);font:12px system-ui,sans-serif}\
    .ours{fill:var(--ours)}.paper{fill:var(--theirs)}.range{stroke:var(--ink)}";

fn section(part: &Part<'_>) -> String {
    let Part { paper, figures, .. } = part;
    let mut out = format!(
        "<h2 id=\"{}\">{}</h2>\n<p>They: {}.<br>Here: {}.</p>\n<p class=\"soft\">{}</p>\n",
        paper.name,
        escape(&paper.title),
        escape(&paper.setup),
        escape(&paper.differs),
        escape(&covered(figures)),
    );
    let index = Index::new(figures);
    for item in &paper.item {
        let _infallible = writeln!(
            out,
            "<h3>{}: {}</h3>",
            escape(&item.id),
            escape(&item.about)
        );
        let cells = cells(part, item, &index);
        for metric in metrics(&cells) {
            out.push_str(&svg::bars(metric, &cells));
        }
        out.push_str(&table(part, &cells, &index));
        if let Some(why) = &item.why {
            let _infallible = writeln!(out, "<p class=\"soft\">Not here: {}.</p>", escape(why));
        }
    }
    out
}

/// Everything of an item, by configuration.
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
                if !configs.contains(&figure.config.as_str()) {
                    configs.push(&figure.config);
                }
            }
            for config in configs {
                for metric in &item.metrics {
                    for metric in matching(metric, config, index) {
                        cells.push(Cell {
                            config: config.to_owned(),
                            theirs,
                            ours: index.get(config, &metric),
                            paper: part.paper.value(theirs, &metric).and_then(|v| v.value),
                            metric,
                        });
                    }
                }
            }
        }
    }
    cells.retain(|cell| cell.ours.is_some() || cell.paper.is_some());
    cells
}

/// The metrics of a configuration that a name stands for.
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

/// The metrics of an item in the order in which they are met.
fn metrics<'a>(cells: &'a [Cell<'_>]) -> Vec<&'a str> {
    let mut found: Vec<&str> = Vec::new();
    for cell in cells {
        if !found.contains(&cell.metric.as_str()) {
            found.push(&cell.metric);
        }
    }
    found
}

/// The item as a table: every cell, and what it is related to.
fn table(part: &Part<'_>, cells: &[Cell<'_>], index: &Index<'_>) -> String {
    if cells.is_empty() {
        return String::new();
    }
    let mut out = "<table><tr><th>configuration</th><th>metric</th><th>ours</th><th>paper's</th>\
                   <th>ours ÷</th><th>paper's ÷</th><th>quotient</th><th>verdict</th></tr>\n"
        .to_owned();
    for item in cells {
        let ratios = part.paper.ratios(item.theirs);
        let mut ratios: Vec<Option<&PaperRatio<'_>>> = ratios
            .iter()
            .filter(|r| r.metric == item.metric)
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
    let absent = item
        .ours
        .is_some_and(|f| f.verdict == Some(Verdict::NotMeasurable));
    let verdict = match quotient.and_then(|figure| figure.verdict) {
        Some(verdict) => words(verdict),
        None if absent => words(Verdict::NotMeasurable),
        None => "",
    };
    let own = quotient.and_then(|q| Some(q.value? * ratio?.ratio));
    let known = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), number);
    let to = ratio.map_or_else(String::new, |ratio| format!(" ({})", ratio.to));
    format!(
        "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>\
         <td>{}</td></tr>\n",
        escape(&item.config),
        escape(&item.metric),
        escape(&cell(item.ours)),
        known(item.paper),
        known(own),
        escape(&format!("{}{to}", known(ratio.map(|ratio| ratio.ratio)))),
        escape(&cell(quotient)),
        verdict,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Config;
    use crate::runner::Samples;
    use std::collections::BTreeMap;

    /// What stands in an attribute of every element that has it.
    fn attributes<'a>(page: &'a str, name: &str) -> Vec<&'a str> {
        let start = format!("{name}=\"");
        let parts = page.split(start.as_str()).skip(1);
        parts.map(|part| part.split('"').next().unwrap()).collect()
    }

    fn measured() -> Vec<Figure> {
        let mut samples = Samples::default();
        for round in 0..9 {
            for (column, rate) in [
                ("sccp-xen", 2.0),
                ("sccp-lro", 4.0),
                ("sccp-optimized", 4.5),
            ] {
                let values = [
                    ("throughput", rate + 0.001 * round as f64),
                    ("lro_rate", rate),
                    ("cycles_per_byte.driver", 8.0 / rate),
                ];
                let values = values.map(|(name, value)| (name.to_owned(), value));
                samples.add(&Config::new(column, &[]), round, &BTreeMap::from(values));
            }
        }
        let paper = Paper::find("sccp").unwrap();
        let mut figures = samples.figures("sccp");
        figures.extend(samples.beside("sccp", &paper, &stands()));
        figures
    }

    fn stands() -> Stands<'static> {
        ["sccp-xen", "sccp-lro", "sccp-optimized"]
            .map(|name| (name, name))
            .into()
    }

    #[test]
    fn what_is_drawn_is_what_was_measured() {
        let (figures, paper) = (measured(), Paper::find("sccp").unwrap());
        let part = Part {
            paper: &paper,
            stands: &stands(),
            figures: &figures,
        };
        let page = page(&Provenance::collect("here".to_owned(), true), &[part]);
        let index = Index::new(&figures);
        let [configs, metrics, who, values] =
            ["data-config", "data-metric", "data-who", "data-value"].map(|a| attributes(&page, a));
        // Three metrics of three configurations are measured, four are known of each.
        assert_eq!(who.iter().filter(|who| **who == "ours").count(), 9);
        assert_eq!(who.iter().filter(|who| **who == "paper").count(), 12);
        for (at, who) in who.iter().enumerate() {
            let known = match *who {
                "ours" => index.get(configs[at], metrics[at]).unwrap().value,
                _ => paper.value(configs[at], metrics[at]).unwrap().value,
            };
            assert_eq!(
                values[at].parse().ok(),
                known,
                "{} {}",
                configs[at],
                metrics[at]
            );
        }
        assert!(page.contains("None of its figures is a result"));
        // 2 against 1.02: on the same side, and not equal without a word.
        assert!(page.contains("<td>same sign</td>") || page.contains("<td>opposite</td>"));
        assert!(
            !page.contains("<script") && !page.contains("http"),
            "nothing from elsewhere"
        );
    }

    #[test]
    fn every_item_is_there_or_says_why_not() {
        for name in ["hatori", "sccp", "oi", "ram", "menon"] {
            let paper = Paper::find(name).unwrap();
            let stands = Stands::new();
            let part = Part {
                paper: &paper,
                stands: &stands,
                figures: &[],
            };
            let page = page(&Provenance::collect("here".to_owned(), false), &[part]);
            for item in &paper.item {
                assert!(
                    page.contains(&format!("<h3>{}: ", escape(&item.id))),
                    "{}",
                    item.id
                );
            }
            assert_eq!(page.matches("<p class=\"soft\">Not here: ").count(), {
                paper.item.iter().filter(|item| item.why.is_some()).count()
            });
        }
    }
}

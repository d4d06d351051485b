//! The first screen of a report: the papers' main claims with verdicts, and the list of contents.

use super::cell::{Cell, escape, prose};
use super::questions;
use super::values::{PaperPart, cells};
use super::verdicts;
use crate::papers::{Item, Paper};
use figures::report::{Index, number};
use figures::stats::ComparisonVerdict;
use std::fmt::Write as _;

/// Returns a table of the papers' main claims: the paper's ratio, ours, the verdict, and why.
pub(super) fn claims(parts: &[PaperPart<'_>]) -> String {
    let mut out = "<h2 id=\"claims\">Main claims</h2>\n<table class=\"claims\">\
                   <tr><th>paper</th><th>claim</th><th>paper's ratio</th><th>our ratio</th>\
                   <th>verdict</th><th>why</th></tr>\n"
        .to_owned();
    for part in parts {
        let index = Index::new(part.figures);
        for (number_of, claim) in part.paper.claim.iter().enumerate() {
            let first = match number_of {
                0 => format!(
                    "<th rowspan=\"{}\"><a href=\"#{1}\">{1}</a></th>",
                    part.paper.claim.len(),
                    part.paper.name
                ),
                _ => String::new(),
            };
            let theirs = part.paper.claimed(claim);
            let theirs = theirs.map_or_else(String::new, |ratio| number(ratio.ratio));
            let (own, verdict) = match verdicts::of_claim(part, claim, &index) {
                Some(compared) => (own(&compared), verdict(&compared)),
                None => ("–".to_owned(), "not in this run".to_owned()),
            };
            let _infallible = writeln!(
                out,
                "<tr>{first}<td title=\"{} ÷ {}, {}\">{}</td><td>{theirs}</td><td>{own}</td>\
                 <td>{verdict}</td><td>{}</td></tr>",
                escape(&claim.config),
                escape(&claim.to),
                escape(&claim.metric),
                prose(&claim.text),
                prose(&claim.why),
            );
        }
    }
    out.push_str("</table>\n");
    out
}

fn own(compared: &verdicts::ComparedRatio<'_>) -> String {
    match (compared.own(), compared.own_range()) {
        (Some(own), Some((lo, hi))) => {
            format!("{} [{}, {}]", number(own), number(lo), number(hi))
        }
        (Some(own), None) => number(own),
        (None, _) => "–".to_owned(),
    }
}

fn verdict(compared: &verdicts::ComparedRatio<'_>) -> String {
    let mark = compared.verdict().map_or_else(String::new, verdicts::mark);
    format!("{mark} {}", prose(&compared.text()))
}

/// Returns the list of all papers, tables and figures, each with a mark per verdict.
pub(super) fn contents(parts: &[PaperPart<'_>]) -> String {
    let mut out = "<h2 id=\"contents\">Contents</h2>\n<ul>\n".to_owned();
    for part in parts {
        let PaperPart { paper, .. } = part;
        let index = Index::new(part.figures);
        let _infallible = writeln!(
            out,
            "<li><a href=\"#{}\">{}</a><ul class=\"items\">",
            paper.name,
            prose(&paper.title)
        );
        for item in &paper.item {
            let cells = cells(part, item, &index);
            let _infallible = writeln!(
                out,
                "<li><a href=\"#{}\" title=\"{}\">{}</a> {}</li>",
                anchor(paper, item),
                escape(&item.about),
                escape(&item.id),
                marks(part, &cells, &index)
            );
        }
        out.push_str(&questions::link(paper));
        out.push_str("</ul></li>\n");
    }
    out.push_str("</ul>\n");
    out
}

/// Returns the marks of an item's verdicts, each with its number.
fn marks(part: &PaperPart<'_>, cells: &[Cell<'_>], index: &Index<'_>) -> String {
    let mut counted: Vec<(ComparisonVerdict, usize)> = Vec::new();
    let compared = cells
        .iter()
        .flat_map(|cell| verdicts::of(part, cell, index));
    for verdict in compared.filter_map(|compared| compared.verdict()) {
        match counted.iter_mut().find(|(known, _)| *known == verdict) {
            Some((_, count)) => *count += 1,
            None => counted.push((verdict, 1)),
        }
    }
    let marks = counted.into_iter().map(|(verdict, count)| match count {
        1 => verdicts::mark(verdict),
        _ => format!("{count}{}", verdicts::mark(verdict)),
    });
    marks.collect::<Vec<String>>().join(" ")
}

/// Returns the anchor of an item: `oi-table-5`.
pub(super) fn anchor(paper: &Paper, item: &Item) -> String {
    let id = item
        .id
        .to_lowercase()
        .replace(|letter: char| !letter.is_alphanumeric(), "-");
    format!("{}-{id}", paper.name)
}

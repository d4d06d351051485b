//! The first screen of a report: the papers' main claims with verdicts, and the list of contents.

use super::cell::{Cell, escape, prose};
use super::questions;
use super::values::{PaperPart, cells};
use super::verdicts;
use crate::papers::{Claim, Item, Paper};
use crate::plan::WireNic;
use figures::report::{Index, number};
use figures::stats::ComparisonVerdict;
use std::fmt::Write as _;

/// One kind of NIC's line of a claim.
struct ClaimLine {
    nic: &'static str,
    own: String,
    verdict: String,
}

/// Returns a table of the papers' main claims: the paper's ratio, ours and the verdict on each kind
/// of NIC, and why.
pub(super) fn claims(parts: &[PaperPart<'_>]) -> String {
    let mut out = "<h2 id=\"claims\">Main claims</h2>\n<table class=\"claims\">\
                   <tr><th>paper</th><th>claim</th><th>paper's ratio</th><th>NIC</th>\
                   <th>our ratio</th><th>verdict</th><th>why, in our runs</th></tr>\n"
        .to_owned();
    for part in parts {
        let index = Index::new(part.figures);
        let claims = part.paper.claim.iter();
        let claims = claims.map(|claim| (claim, lines(part, claim, &index)));
        let claims: Vec<(&Claim, Vec<ClaimLine>)> = claims.collect();
        let all: usize = claims.iter().map(|(_, lines)| lines.len()).sum();
        let name = &part.paper.name;
        let mut paper = format!("<th rowspan=\"{all}\"><a href=\"#{name}\">{name}</a></th>");
        for (claim, lines) in &claims {
            out.push_str("<tr>");
            out.push_str(&std::mem::take(&mut paper));
            out.push_str(&claim_rows(part.paper, claim, lines));
        }
    }
    out.push_str("</table>\n");
    out
}

/// Returns the rows of a claim after the column of the paper's name.
fn claim_rows(paper: &Paper, claim: &Claim, lines: &[ClaimLine]) -> String {
    let theirs = paper.claimed(claim);
    let theirs = theirs.map_or_else(String::new, |ratio| number(ratio.ratio));
    let rows = lines.len();
    let mut out = format!(
        "<td rowspan=\"{rows}\" title=\"{} ÷ {}, {}\">{}</td><td rowspan=\"{rows}\">{theirs}</td>",
        escape(&claim.config),
        escape(&claim.to),
        escape(&claim.metric),
        prose(&claim.text),
    );
    let mut why = format!("<td rowspan=\"{rows}\">{}</td>", prose(&claim.why));
    for (row, line) in lines.iter().enumerate() {
        if row > 0 {
            out.push_str("<tr>");
        }
        let ClaimLine { nic, own, verdict } = line;
        let why = std::mem::take(&mut why);
        let _infallible = writeln!(
            out,
            "<td>{nic}</td><td>{own}</td><td>{verdict}</td>{why}</tr>"
        );
    }
    out
}

/// Returns the lines of a claim: one for each kind of NIC, or one without a ratio.
fn lines(part: &PaperPart<'_>, claim: &Claim, index: &Index<'_>) -> Vec<ClaimLine> {
    let compared = verdicts::of_claim(part, claim, index);
    let line = |(nic, compared): &(WireNic, verdicts::ComparedRatio<'_>)| ClaimLine {
        nic: match nic {
            WireNic::Tap => "TAP",
            WireNic::Xdp => "AF_XDP",
            WireNic::Soft => "soft",
        },
        own: own(compared),
        verdict: verdict(compared),
    };
    match compared.is_empty() {
        true => vec![ClaimLine {
            nic: "",
            own: "–".to_owned(),
            verdict: verdicts::missing(part, claim).unwrap_or_else(|| "not in this run".to_owned()),
        }],
        false => compared.iter().map(line).collect(),
    }
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

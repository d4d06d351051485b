//! Verdicts on our ratios beside the paper's, each with the symbol that marks it in the contents.

use super::cell::{Cell, escape};
use super::values::PaperPart;
use crate::lane::events::{EVENTS_COUNTED, requires_counters};
use crate::papers::{Claim, PaperRatio, SWEPT};
use crate::plan::{ColumnConfig, WireNic};
use crate::runner::words;
use figures::repeat;
use figures::report::{Figure, Index};
use figures::stats::ComparisonVerdict;
use std::fmt::Write as _;

/// All verdicts, each with its symbol and definition.
const VERDICTS: [(ComparisonVerdict, &str, &str); 8] = [
    (
        ComparisonVerdict::Equal,
        "=",
        "all of the quotient's interval lies in 0.80–1.25, and both ratios on one side of 1",
    ),
    (
        ComparisonVerdict::SameSign,
        "≈",
        "our interval is on the paper's side of 1",
    ),
    (
        ComparisonVerdict::NoEffect,
        "○",
        "the paper has an effect, and our interval contains 1 and lies in 0.80–1.25",
    ),
    (
        ComparisonVerdict::DiffersInSize,
        "±",
        "the paper's ratio lies within 5 % of 1, and ours clearly does not",
    ),
    (
        ComparisonVerdict::Opposite,
        "≠",
        "our interval is on the other side of 1",
    ),
    (
        ComparisonVerdict::Unresolved,
        "?",
        "the rounds do not suffice for a verdict",
    ),
    (
        ComparisonVerdict::NotComparable,
        "∥",
        "the set-ups differ in the subject of the ratio",
    ),
    (
        ComparisonVerdict::NotMeasurable,
        "–",
        "one side was not measured or is 0 in every round, for the reason given",
    ),
];

/// A ratio of the paper, compared with ours.
pub(super) struct ComparedRatio<'a> {
    /// The paper's ratio.
    pub(super) ratio: Option<PaperRatio<'a>>,
    /// Our ratio ÷ the paper's.
    pub(super) quotient: Option<&'a Figure>,
    /// The figure whose note is the reason why one side was not measured.
    absent: Option<&'a Figure>,
}

impl ComparedRatio<'_> {
    /// Returns our ratio.
    pub(super) fn own(&self) -> Option<f64> {
        Some(self.quotient?.value? * self.ratio.as_ref()?.ratio)
    }

    /// Returns the interval of our ratio.
    pub(super) fn own_range(&self) -> Option<(f64, f64)> {
        let (quotient, ratio) = (self.quotient?, self.ratio.as_ref()?.ratio);
        Some((quotient.lo? * ratio, quotient.hi? * ratio))
    }

    /// Returns the verdict, if the paper has a ratio.
    pub(super) fn verdict(&self) -> Option<ComparisonVerdict> {
        match self.absent {
            Some(_) => Some(ComparisonVerdict::NotMeasurable),
            None => self.quotient?.verdict,
        }
    }

    /// Returns the verdict as text, with its reason if it has one.
    pub(super) fn text(&self) -> String {
        let Some(verdict) = self.verdict() else {
            return String::new();
        };
        let reason = match verdict {
            ComparisonVerdict::NotMeasurable => self.absent.map(|figure| {
                let note = figure.note.as_deref();
                note.unwrap_or("the run gives no reason")
            }),
            ComparisonVerdict::NotComparable => {
                self.ratio.as_ref().and_then(|ratio| ratio.not_comparable)
            }
            _ => None,
        };
        let reason = reason.map_or_else(String::new, |reason| format!(": {reason}"));
        let before = match self.quotient.is_some_and(repeat::differs_from_previous) {
            true => ", differs from the last run",
            false => "",
        };
        format!("{}{reason}{before}", words(verdict))
    }
}

/// Returns the paper's ratios of a value, each with ours. Returns one entry without a ratio if the
/// paper has none.
pub(super) fn of<'a>(
    part: &PaperPart<'a>,
    item: &Cell<'a>,
    index: &Index<'a>,
) -> Vec<ComparedRatio<'a>> {
    let keys = ColumnConfig::keys_of(&item.config);
    let is_point = SWEPT.iter().any(|key| keys.contains_key(key));
    let ratios = part.paper.ratios(item.theirs).into_iter();
    let is_own = |ratio: &PaperRatio<'_>| {
        ratio.metric == item.metric && !is_point && item.used_in_ratios && ratio.is_of(&keys)
    };
    let with = |ratio| compare(part, &item.config, item.ours, Some(ratio), index);
    let all: Vec<ComparedRatio<'a>> = ratios.filter(is_own).map(with).collect();
    match all.is_empty() {
        true => vec![compare(part, &item.config, item.ours, None, index)],
        false => all,
    }
}

/// Returns the verdicts on a claim, one for each kind of NIC on which this run has columns for it.
pub(super) fn of_claim<'a>(
    part: &PaperPart<'a>,
    claim: &Claim,
    index: &Index<'a>,
) -> Vec<(WireNic, ComparedRatio<'a>)> {
    let Some(ratio) = part.paper.claimed(claim) else {
        return Vec::new();
    };
    let is_quotient = |figure: &&Figure| {
        figure.metric.starts_with("quotient.")
            && figure.metric.ends_with(&format!(".{}", claim.metric))
            && ratio.is_of(&ColumnConfig::keys_of(&figure.config))
    };
    let mut found: Vec<(WireNic, ComparedRatio<'a>)> = Vec::new();
    for figure in part.figures.iter().filter(is_quotient) {
        let Some(nic) = nic_of(part, claim, &figure.config) else {
            continue;
        };
        let own = index.get(&figure.config, &claim.metric);
        let compared = compare(part, &figure.config, own, Some(ratio.clone()), index);
        let is_known = found.iter().any(|(known, _)| *known == nic);
        if !is_known && compared.quotient.is_some() {
            found.push((nic, compared));
        }
    }
    found.sort_by_key(|(nic, _)| *nic);
    found
}

/// Returns the NIC of a configuration whose column reproduces the claim's configuration, otherwise
/// `None`.
fn nic_of(part: &PaperPart<'_>, claim: &Claim, config: &str) -> Option<WireNic> {
    let name = config.split('@').next().unwrap_or_default();
    let column = part.reproduced.get(name)?;
    (column.config == claim.config).then_some(column.nic)
}

/// Returns why this run has no verdict on a claim that its columns could reproduce, or `None` if it
/// has no such columns.
pub(super) fn missing(part: &PaperPart<'_>, claim: &Claim) -> Option<String> {
    let mut figures = part.figures.iter();
    let has_column = figures.any(|figure| nic_of(part, claim, &figure.config).is_some());
    let mut figures = part.figures.iter();
    let counted = figures.any(|figure| figure.metric == EVENTS_COUNTED);
    (has_column && !counted && requires_counters(&claim.metric)).then(|| {
        let verdict = ComparisonVerdict::NotMeasurable;
        let reason = "this run had no performance counters";
        format!("{} {}: {reason}", mark(verdict), words(verdict))
    })
}

fn compare<'a>(
    part: &PaperPart<'a>,
    config: &str,
    ours: Option<&'a Figure>,
    ratio: Option<PaperRatio<'a>>,
    index: &Index<'a>,
) -> ComparedRatio<'a> {
    let quotient = ratio.as_ref().and_then(|ratio| {
        let mut others = part
            .reproduced
            .iter()
            .filter(|(_, other)| other.config == ratio.to);
        others.find_map(|(column, _)| {
            index.get(config, &format!("quotient.{column}.{}", ratio.metric))
        })
    });
    let is_absent = |figure: &&Figure| figure.verdict == Some(ComparisonVerdict::NotMeasurable);
    ComparedRatio {
        absent: quotient.filter(is_absent).or(ours.filter(is_absent)),
        ratio,
        quotient,
    }
}

/// Returns the symbol of a verdict, as an element that names the verdict.
pub(super) fn mark(verdict: ComparisonVerdict) -> String {
    let known = VERDICTS.iter().find(|(known, ..)| *known == verdict);
    let symbol = known.map_or("", |(_, symbol, _)| *symbol);
    format!(
        "<abbr class=\"mark\" title=\"{}\">{}</abbr>",
        words(verdict),
        escape(symbol)
    )
}

/// Returns the definitions of all verdicts.
pub(super) fn legend() -> String {
    let mut out = "<details><summary>Verdicts</summary><dl>\n".to_owned();
    for (verdict, _, definition) in VERDICTS {
        let _infallible = writeln!(
            out,
            "<dt>{} {}</dt><dd>{definition}</dd>",
            mark(verdict),
            words(verdict)
        );
    }
    out.push_str("</dl></details>\n");
    out
}

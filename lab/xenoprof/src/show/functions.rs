//! The functions of a domain: their own samples, those of their callees, and their callers.

use super::cells::{percent, shortened};
use super::sums::DomainSums;
use crate::attribute::functions_of;
use crate::model::{ProfiledDomain, Session};
use crate::select::Selection;
use figures::table::table;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

/// Maximum number of callers of one function in a report.
const CALLERS_MAX: usize = 5;

/// The part of a session that a report shows, and its tables of functions.
#[derive(Clone, Copy, Debug, Default)]
pub struct Listing<'a> {
    /// The part of the session that is shown, if it is not all of it.
    pub selection: Option<&'a Selection>,
    /// Whether to omit exact times, which an earlier section has, and which belong to no event.
    pub only_samples: bool,
    /// The class of the session's samples, or `None` if it has all classes.
    pub class: Option<&'a str>,
    /// The only domain to show, or `None` for all domains.
    pub domain: Option<&'a str>,
    /// Number of functions of each domain.
    pub most: usize,
    /// Whether to add the time of callees.
    pub children: bool,
    /// Whether to name callers.
    pub callers: bool,
    /// Whether to add tables of source lines.
    pub lines: bool,
    /// Whether to sort by time including callees.
    pub by_total: bool,
}

impl Listing<'_> {
    /// Returns a listing of the functions with the most self time.
    #[must_use]
    pub fn first(most: usize) -> Self {
        Self {
            most,
            ..Self::default()
        }
    }
}

/// Module and name of a function.
pub(super) type Name<'a> = (&'a str, &'a str);

/// Samples of a function.
#[derive(Debug, Default)]
pub(super) struct FunctionSamples<'a> {
    /// Samples in the function.
    pub(super) own: u64,
    /// Samples in the function and its callees.
    pub(super) total: u64,
    /// Samples in the function and its callees by caller.
    callers: BTreeMap<Name<'a>, u64>,
}

impl<'a> FunctionSamples<'a> {
    /// Returns the callers with the most samples.
    pub(super) fn callers(&self) -> Vec<(Name<'a>, u64)> {
        let mut callers: Vec<_> = self.callers.iter().map(|(name, n)| (*name, *n)).collect();
        callers.sort_by_key(|(name, count)| (Reverse(*count), *name));
        callers.truncate(CALLERS_MAX);
        callers
    }
}

/// Returns the functions that a listing shows of a domain.
pub(super) fn listed<'a>(
    session: &'a Session,
    sums: &DomainSums<'_>,
    listing: &Listing<'_>,
) -> Vec<(Name<'a>, FunctionSamples<'a>)> {
    let mut functions: Vec<_> = all(session, sums).into_iter().collect();
    let size = |function: &FunctionSamples<'_>| match listing.by_total {
        true => function.total,
        false => function.own,
    };
    functions.retain(|(_, function)| size(function) > 0);
    functions.sort_by_key(|(name, function)| (Reverse(size(function)), *name));
    functions.truncate(listing.most);
    functions
}

/// Returns the number of samples of each stack in a domain.
pub(crate) fn stacks(session: &Session, of: &ProfiledDomain) -> BTreeMap<u32, u64> {
    let mut counts: BTreeMap<u32, u64> = BTreeMap::new();
    for sample in &session.samples {
        let domain = session.domains.get(session.domain_of(sample));
        if domain.is_some_and(|domain| std::ptr::eq(domain, of)) {
            *counts.entry(sample.3).or_default() += 1;
        }
    }
    counts
}

fn all<'a>(session: &'a Session, sums: &DomainSums<'_>) -> BTreeMap<Name<'a>, FunctionSamples<'a>> {
    let mut functions: BTreeMap<Name<'a>, FunctionSamples<'a>> = BTreeMap::new();
    for (stack, count) in stacks(session, sums.domain) {
        let name = |frame: &'a crate::model::StackFrame| {
            let module = session.module(frame).map_or("", |module| module.name());
            (module, frame.symbol.as_str())
        };
        let names: Vec<Name<'a>> = functions_of(session, stack).map(name).collect();
        if let Some(innermost) = names.first() {
            functions.entry(*innermost).or_default().own += count;
        }
        // A recursive function counts once.
        for name in names.iter().collect::<BTreeSet<_>>() {
            functions.entry(*name).or_default().total += count;
        }
        let calls = names.windows(2).filter_map(|pair| match pair {
            [callee, caller] if callee != caller => Some((*callee, *caller)),
            _ => None,
        });
        for (callee, caller) in calls.collect::<BTreeSet<_>>() {
            let callee = functions.entry(callee).or_default();
            *callee.callers.entry(caller).or_default() += count;
        }
    }
    functions
}

/// Returns a table of the functions of each domain.
pub(super) fn text(session: &Session, all: &[DomainSums<'_>], listing: &Listing<'_>) -> String {
    let mut out = String::new();
    let is_listed = |sums: &&DomainSums<'_>| sums.counts() || listing.domain.is_some();
    for sums in all.iter().filter(is_listed) {
        if listing.most == 0 || sums.refusal().is_some() {
            continue;
        }
        let mut header = vec!["function", "module", "%"];
        if listing.children {
            header = vec!["function", "module", "self %", "total %"];
        }
        let mut rows = Vec::new();
        for ((module, symbol), function) in listed(session, sums, listing) {
            let share = |count| percent(sums.share(count));
            let mut row = vec![shortened(symbol), module.to_owned(), share(function.own)];
            if listing.children {
                row.push(share(function.total));
            }
            rows.push(row);
            let callers = match listing.callers {
                true => function.callers(),
                false => Vec::new(),
            };
            for ((module, caller), count) in callers {
                let name = format!("  from {}", shortened(caller));
                let mut row = vec![name, module.to_owned()];
                row.resize(header.len() - 1, String::new());
                row.push(share(count));
                rows.push(row);
            }
        }
        let (name, rows) = (&sums.domain.name, table(&header, &rows));
        let _infallible = writeln!(out, "\nFunctions of {name}\n{rows}");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attribute::rules::Rules;
    use crate::attribute::{Attribution, Classing};
    use crate::testing::session;

    fn shown(listing: &Listing<'_>) -> String {
        let session = session();
        let found = Attribution::new(&session, &Rules::thesis(), Classing::Nearest);
        text(&session, &DomainSums::of(&session, &found), listing)
    }

    fn has_row(text: &str, cells: &[&str]) -> bool {
        text.lines()
            .any(|line| line.split_whitespace().eq(cells.iter().copied()))
    }

    #[test]
    fn times_with_callees_sort_functions() {
        let listing = Listing {
            most: 2,
            children: true,
            by_total: true,
            ..Listing::default()
        };
        let text = shown(&listing);
        assert!(
            has_row(&text, &["driver::turn::run", "driver", "0.0", "100.0"]),
            "{text}"
        );
        assert!(
            has_row(&text, &["shmem::engine::copy", "driver", "60.0", "60.0"]),
            "{text}"
        );
        assert!(!text.contains("tcp_v4_rcv"), "only two: {text}");
    }

    #[test]
    fn callers_have_their_part_of_the_time() {
        let listing = Listing {
            most: 5,
            callers: true,
            ..Listing::default()
        };
        let text = shown(&listing);
        assert!(
            has_row(&text, &["tcp_v4_rcv", "[kernel]", "40.0"]),
            "{text}"
        );
        // A function that calls itself is not listed as its caller.
        assert!(
            has_row(&text, &["from", "tun_get_user", "[kernel]", "40.0"]),
            "{text}"
        );
        assert!(
            has_row(&text, &["from", "driver::turn::run", "driver", "60.0"]),
            "{text}"
        );
        assert!(!text.contains("from tcp_v4_rcv"), "{text}");
    }
}

//! The source lines of a domain: their own samples, and those of their callees.

use super::cells::percent;
use super::functions::{Listing, stacks};
use super::sums::DomainSums;
use crate::attribute::functions_of;
use crate::model::{Session, StackFrame};
use figures::table::table;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

/// Number of components of a path in a table.
const COMPONENTS: usize = 3;
/// Maximum characters of a function, whose end is shown.
const FUNCTION_MAX: usize = 32;

/// A source line and the function that contains it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SourceLine<'a> {
    pub(super) file: &'a str,
    pub(super) line: u32,
    pub(super) function: &'a str,
}

impl SourceLine<'_> {
    /// Returns the end of the path and the line number.
    pub(super) fn place(&self) -> String {
        format!("{}:{}", short_path(self.file), self.line)
    }
}

/// Samples of a line.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LineSamples {
    /// Samples in the line.
    pub(super) own: u64,
    /// Samples in the line and the functions that it calls.
    pub(super) total: u64,
}

/// Source lines of a domain, each with this key.
#[derive(Debug, Default)]
struct Lines<'a, Key> {
    all: Vec<(Key, LineSamples)>,
    /// Samples in functions without known lines, by module.
    without: BTreeMap<&'a str, u64>,
}

/// Returns the last components of a path.
pub(crate) fn short_path(path: &str) -> &str {
    let mut slashes = path.rmatch_indices('/').map(|(at, _)| at + 1);
    let start = slashes.nth(COMPONENTS - 1).unwrap_or(0);
    path.get(start..).unwrap_or(path)
}

/// Returns the end of a function's name.
fn tail(function: &str) -> String {
    let excess = function.chars().count().saturating_sub(FUNCTION_MAX);
    match excess {
        0 => function.to_owned(),
        _ => std::iter::once('…')
            .chain(function.chars().skip(excess + 1))
            .collect(),
    }
}

/// Returns the source lines that a listing shows of a domain, by file and number. A line may
/// belong to several functions.
pub(super) fn by_place<'a>(
    session: &'a Session,
    sums: &DomainSums<'_>,
    listing: &Listing<'_>,
) -> Vec<((&'a str, u32), LineSamples)> {
    listed(session, sums, listing, |frame| session.source(frame)).all
}

/// Returns the source lines that a listing shows of a domain.
fn listed<'a, Key: Copy + Ord>(
    session: &'a Session,
    sums: &DomainSums<'_>,
    listing: &Listing<'_>,
    line_of: impl Fn(&'a StackFrame) -> Option<Key>,
) -> Lines<'a, Key> {
    let mut counts: BTreeMap<Key, LineSamples> = BTreeMap::new();
    let mut without = BTreeMap::new();
    for (stack, count) in stacks(session, sums.domain) {
        let frames: Vec<&'a StackFrame> = functions_of(session, stack).collect();
        if let Some(innermost) = frames.first() {
            match line_of(innermost) {
                Some(line) => counts.entry(line).or_default().own += count,
                None => {
                    let module = session.module(innermost).map_or("", |m| m.path.as_str());
                    *without.entry(module).or_default() += count;
                }
            }
        }
        // A recursive call counts once.
        for line in frames
            .into_iter()
            .filter_map(&line_of)
            .collect::<BTreeSet<_>>()
        {
            counts.entry(line).or_default().total += count;
        }
    }
    let mut all: Vec<_> = counts.into_iter().collect();
    let size = |samples: &LineSamples| match listing.by_total {
        true => samples.total,
        false => samples.own,
    };
    all.retain(|(_, samples)| size(samples) > 0);
    all.sort_by_key(|(line, samples)| (Reverse(size(samples)), *line));
    all.truncate(listing.most);
    Lines { all, without }
}

/// Returns a table of the source lines of each domain.
pub(super) fn text(session: &Session, all: &[DomainSums<'_>], listing: &Listing<'_>) -> String {
    let mut out = String::new();
    let is_listed = |sums: &&DomainSums<'_>| sums.counts() || listing.domain.is_some();
    for sums in all.iter().filter(is_listed) {
        if !listing.lines || listing.most == 0 || sums.refusal().is_some() {
            continue;
        }
        let lines = listed(session, sums, listing, |frame| {
            let (file, line) = session.source(frame)?;
            let function = &frame.symbol;
            Some(SourceLine {
                file,
                line,
                function,
            })
        });
        let share = |count| percent(sums.share(count));
        let row = |(line, samples): &(SourceLine<'_>, LineSamples)| {
            vec![
                line.place(),
                tail(line.function),
                share(samples.own),
                share(samples.total),
            ]
        };
        let rows: Vec<Vec<String>> = lines.all.iter().map(row).collect();
        let header = ["source line", "function", "self %", "total %"];
        let name = &sums.domain.name;
        let _infallible = writeln!(out, "\nSource lines of {name}\n{}", table(&header, &rows));
        if let Some((module, _)) = lines.without.iter().max_by_key(|(_, count)| **count) {
            let count = lines.without.values().sum();
            let why = why_without_lines(module);
            let _infallible = writeln!(
                out,
                "{} % has no source lines, mainly because {why}.",
                share(count)
            );
        }
    }
    out
}

/// Returns the reason for the missing lines of a module, and a remedy.
pub(crate) fn why_without_lines(module: &str) -> String {
    match module {
        crate::resolve::KERNEL => "[kernel] has names only".to_owned(),
        path if path.starts_with('/') => format!(
            "{path} has no line information (Rust: `debug = \"line-tables-only\"` in the \
             profile of Cargo.toml; C: `-g`; a distribution's file: its package -dbgsym or \
             -debuginfo)"
        ),
        path => format!("{path} is not a file"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attribute::rules::Rules;
    use crate::attribute::{Attribution, Classing};
    use crate::testing::session;

    fn shown(session: &Session, by_total: bool) -> String {
        let found = Attribution::new(session, &Rules::thesis(), Classing::Nearest);
        let listing = Listing {
            lines: true,
            by_total,
            ..Listing::first(5)
        };
        text(session, &DomainSums::of(session, &found), &listing)
    }

    fn rows(text: &str) -> Vec<Vec<&str>> {
        let lines = text.lines().filter(|line| line.contains(".rs:"));
        lines
            .map(|line| line.split_whitespace().collect())
            .collect()
    }

    #[test]
    fn lines_have_self_and_total_time() {
        let session = session();
        let by_self = shown(&session, false);
        let copy = [
            "src/shmem/engine.rs:20",
            "shmem::engine::copy",
            "60.0",
            "60.0",
        ];
        assert_eq!(rows(&by_self), [copy], "{by_self}");
        let by_total = shown(&session, true);
        let run = ["src/driver/turn.rs:10", "driver::turn::run", "0.0", "100.0"];
        assert_eq!(rows(&by_total)[0], run, "{by_total}");
        let rest = "40.0 % has no source lines, mainly because [kernel] has names only.";
        assert!(by_self.contains(rest), "{by_self}");
    }

    #[test]
    fn missing_line_information_has_a_remedy() {
        let mut session = session();
        session.frames[1].source = None;
        let text = shown(&session, false);
        assert!(
            text.contains("/bin/driver has no line information"),
            "{text}"
        );
        assert!(text.contains("-dbgsym"), "{text}");
    }

    #[test]
    fn paths_are_shortened_to_their_end() {
        assert_eq!(short_path("/a/b/c/d/e.rs"), "c/d/e.rs");
        assert_eq!(short_path("d/e.rs"), "d/e.rs");
        assert_eq!(tail("driver::turn::run"), "driver::turn::run");
        let long = tail(&"ü::".repeat(20));
        assert!(long.starts_with('…') && long.chars().count() == FUNCTION_MAX);
    }
}

//! Search for a function by name.

use crate::model::Session;
use figures::Failure;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of names in an error.
const NAMES_MAX: usize = 8;

/// Returns the module and the name of a sampled function: by its whole name, by the end of its path
/// (`engine::copy`), or by a part that only one function has.
///
/// # Errors
/// Returns an error with similar names if no function or several functions match.
pub(super) fn function<'a>(
    session: &'a Session,
    name: &str,
    only: Option<usize>,
) -> anyhow::Result<(u32, &'a str)> {
    let sampled = sampled(session, only);
    let symbols: BTreeSet<&str> = sampled.keys().map(|(_, symbol)| *symbol).collect();
    let end = format!("::{name}");
    let tests: [&dyn Fn(&str) -> bool; 3] = [
        &|symbol| symbol == name,
        &|symbol| symbol.ends_with(&end),
        &|symbol| symbol.contains(name),
    ];
    let mut found = tests.iter().map(|is_it| {
        let matching = symbols.iter().copied().filter(|symbol| is_it(symbol));
        matching.collect::<Vec<&str>>()
    });
    let found = found.find(|found| !found.is_empty());
    match found.as_deref() {
        Some([symbol]) => {
            let modules = sampled.iter().filter(|((_, other), _)| other == symbol);
            let most = modules.max_by_key(|(_, samples)| **samples);
            let module = most.map_or(0, |((module, _), _)| *module);
            Ok((module, symbol))
        }
        Some(several) => Err(Failure::Usage(format!(
            "`{name}` is a part of several functions: {}",
            listed(several)
        ))
        .into()),
        None => {
            let mut near: Vec<&str> = symbols.into_iter().collect();
            near.sort_by_cached_key(|symbol| Reverse(likeness(name, symbol)));
            near.truncate(NAMES_MAX);
            Err(Failure::Usage(format!(
                "no samples in a function `{name}`; similar names: {}",
                listed(&near)
            ))
            .into())
        }
    }
}

/// Returns the samples of each function, callees included.
fn sampled(session: &Session, only: Option<usize>) -> BTreeMap<(u32, &str), u64> {
    let mut of_stack: BTreeMap<u32, u64> = BTreeMap::new();
    for sample in &session.samples {
        if only.is_none_or(|only| session.domain_of(sample) == only) {
            *of_stack.entry(sample.3).or_default() += 1;
        }
    }
    let mut sampled = BTreeMap::new();
    for (stack, count) in of_stack {
        for (_, frame) in session.frames_of(stack) {
            let samples: &mut u64 = sampled.entry((frame.module, &*frame.symbol)).or_default();
            *samples += count;
        }
    }
    sampled
}

fn listed(names: &[&str]) -> String {
    let mut text = names
        .iter()
        .take(NAMES_MAX)
        .copied()
        .collect::<Vec<_>>()
        .join(", ");
    if names.len() > NAMES_MAX {
        text.push_str(", …");
    }
    text
}

/// Returns the similarity of two function names in thousandths. Only their last components count.
fn likeness(name: &str, symbol: &str) -> u32 {
    let last = |name: &str| name.rsplit("::").next().unwrap_or_default().to_lowercase();
    (strsim::jaro_winkler(&last(name), &last(symbol)) * 1000.0) as u32
}

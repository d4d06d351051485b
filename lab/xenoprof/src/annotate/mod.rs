//! The command `prof annotate`: one function's source lines and instructions, with the share of
//! each domain's time.

mod code;
mod counts;
mod find;
mod text;

use crate::host::files;
use crate::model::{Session, Space, StackFrame};
use crate::show::lines::why_without_lines;
use code::Instruction;
use counts::FunctionCounts;
pub use counts::TimeShare;
use figures::Failure;
use rustix::fs::OFlags;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;

/// Maximum number of domains that are shown side by side.
const DOMAINS_MAX: usize = 4;
/// Lines before and after a sampled line.
const LINES_AROUND: u32 = 2;
/// Maximum bytes of a source file.
const SOURCE_MAX: u64 = 16 << 20;

/// An annotated function.
#[derive(Debug, Serialize)]
pub struct Annotation {
    /// Name.
    pub function: String,
    /// Program or library.
    pub module: String,
    /// The whole that shares divide: `time`, or an event that does not measure time.
    pub whole: String,
    /// Domains that ran it, most samples first.
    pub domains: Vec<String>,
    /// Their time in the function.
    pub shares: Vec<TimeShare>,
    /// Its source lines by file, each with those around it.
    pub lines: Vec<AnnotatedLine>,
    /// Its instructions, each with those around it.
    pub instructions: Vec<Instruction>,
    /// Missing data.
    pub notes: Vec<String>,
}

/// A source line.
#[derive(Debug, Serialize)]
pub struct AnnotatedLine {
    /// File.
    pub file: String,
    /// Line number.
    pub line: u32,
    /// Shares by domain; empty without samples.
    pub shares: Vec<TimeShare>,
    /// Text, if the file is readable.
    pub text: Option<String>,
}

/// Annotates a function in the domains that ran it, or in one of them, with samples of the first
/// event.
///
/// # Errors
/// Returns an error if no function or domain has this name, or the session has neither lines nor
/// instructions of it.
pub fn annotate(
    session: &Session,
    function: &str,
    domain: Option<&str>,
) -> anyhow::Result<Annotation> {
    let session = &*session.of_event(0);
    let only = domain
        .map(|name| crate::show::flame::domain(session, name))
        .transpose()?;
    let (module, symbol) = find::function(session, function, only)?;
    let is_it = |frame: &StackFrame| frame.module == module && frame.symbol == symbol;
    let of_module = session.modules.get(module as usize);
    let path = of_module.map_or("", |module| module.path.as_str());
    if of_module.is_some_and(|module| module.space == Space::Kernel) {
        return Err(Failure::Usage(format!(
            "`{symbol}` is a function of the kernel, of which a session has only names: `grantway \
             prof report --callers` shows its callers"
        ))
        .into());
    }
    let mut counts: Vec<FunctionCounts<'_>> = (0..session.domains.len())
        .filter(|index| only.is_none_or(|only| only == *index))
        .filter_map(|index| FunctionCounts::of(session, index, is_it))
        .collect();
    counts.sort_by_key(|counts| std::cmp::Reverse((counts.own, counts.total)));
    let mut notes = Vec::new();
    if counts.len() > DOMAINS_MAX {
        let others = counts.split_off(DOMAINS_MAX);
        let names: Vec<&str> = others.iter().map(|counts| counts.name).collect();
        notes.push(format!(
            "without {}: choose with --domain",
            names.join(", ")
        ));
    }
    let lines = lines(&counts, &mut notes);
    if lines.is_empty() {
        notes.push(format!("no source lines: {}", why_without_lines(path)));
    }
    let build_id = of_module.and_then(|module| module.build_id.as_deref());
    let instructions = code::instructions(path, build_id, &counts).unwrap_or_else(|why| {
        notes.push(why);
        code::sampled(&counts)
    });
    Ok(Annotation {
        function: symbol.to_owned(),
        module: path.to_owned(),
        whole: session.head.whole().to_owned(),
        domains: counts.iter().map(|counts| counts.name.to_owned()).collect(),
        shares: counts
            .iter()
            .map(|counts| counts.share([counts.own, counts.total]))
            .collect(),
        lines,
        instructions,
        notes,
    })
}

/// Returns the sampled source lines with those around them.
fn lines(counts: &[FunctionCounts<'_>], notes: &mut Vec<String>) -> Vec<AnnotatedLine> {
    let mut by_file: BTreeMap<&str, BTreeSet<u32>> = BTreeMap::new();
    for (file, line) in counts.iter().flat_map(|counts| counts.lines.keys()) {
        by_file.entry(file).or_default().insert(*line);
    }
    let mut shown = Vec::new();
    for (file, sampled) in by_file {
        let text = match source(file) {
            Ok(text) => text,
            Err(why) => {
                notes.push(why);
                String::new()
            }
        };
        let text: Vec<&str> = text.lines().collect();
        let text_of = |line: u32| text.get(line.checked_sub(1)? as usize).copied();
        let around = sampled
            .iter()
            .flat_map(|line| line.saturating_sub(LINES_AROUND)..=line.saturating_add(LINES_AROUND));
        let is_shown = |line: &u32| text_of(*line).is_some() || sampled.contains(line);
        for line in around.filter(is_shown).collect::<BTreeSet<u32>>() {
            let share = |counts: &FunctionCounts<'_>| {
                let samples = counts.lines.get(&(file, line)).copied();
                counts.share(samples.unwrap_or_default())
            };
            let shares = match sampled.contains(&line) {
                true => counts.iter().map(share).collect(),
                false => Vec::new(),
            };
            shown.push(AnnotatedLine {
                file: file.to_owned(),
                line,
                shares,
                text: text_of(line).map(|text| figures::clean::line(text).into_owned()),
            });
        }
    }
    shown
}

/// Reads a source file. The path is from the session, whose author may be hostile.
fn source(path: &str) -> Result<String, String> {
    let read = || {
        let file = files::open(path, OFlags::empty())?;
        let mut bytes = Vec::new();
        file.take(SOURCE_MAX).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).replace('\t', "    "))
    };
    let remedy = match path.starts_with("/rustc/") {
        true => "; `rustup component add rust-src` installs Rust's library elsewhere",
        false => "; copy the sources there to see their text",
    };
    read().map_err(|error: std::io::Error| format!("source {path}: {error}{remedy}"))
}

#[cfg(test)]
mod tests;

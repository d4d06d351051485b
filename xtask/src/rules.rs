//! Reads `layering.txt`: the permissions of each crate, as commented data.

use anyhow::{Context, Result, ensure};
use std::collections::{BTreeMap, BTreeSet};

type Names = BTreeSet<String>;

/// The rules. Each maps a crate's name to names.
#[derive(Debug, Default)]
pub(crate) struct LayeringRules {
    /// `layer: NAME`, lowest first: the crates whose `may` lines follow, in order.
    pub(crate) layers: Vec<Layer>,
    /// `may A: B C`: A may name B and C as dependencies; a crate without this line is unknown.
    pub(crate) may: BTreeMap<String, Names>,
    /// `never A: B C`: A must not reach B or C, even through other crates.
    pub(crate) never: BTreeMap<String, Names>,
    /// `outside A: x y`: A may name x and y from outside the workspace. Without this line A may
    /// name any crate.
    pub(crate) outside: BTreeMap<String, Names>,
    /// `without A: x y`: A, when built alone, must link neither x nor y, even indirectly.
    pub(crate) without: BTreeMap<String, Names>,
    /// `unsafe: A B`: the crates that may contain `unsafe`.
    pub(crate) unsafe_in: Names,
    /// `trusted: A B/src/x`: folders of the trusted base.
    pub(crate) trusted: Vec<String>,
    /// `attacker: A/src/bin`: folders within the trusted base that hold the hostile programs of its
    /// tests.
    pub(crate) attackers: Vec<String>,
    /// `program NAME LIMIT: A/src B/src/x.rs`: the parts of a trusted program.
    pub(crate) programs: Vec<TrustedProgram>,
    /// `capabilities NAME: CAP_X`: the capabilities that a program keeps.
    pub(crate) capabilities: BTreeMap<String, Vec<String>>,
    /// `beside: A/src/x.rs`: parts of trusted crates that no trusted program uses.
    pub(crate) beside: Vec<String>,
}

/// A trusted program.
#[derive(Debug)]
pub(crate) struct TrustedProgram {
    pub(crate) name: String,
    /// Maximum number of lines.
    pub(crate) limit: usize,
    /// Folders and files. Parts of an earlier program are not counted again.
    pub(crate) parts: Vec<String>,
}

/// Crates of one layer, which may use each other.
#[derive(Debug)]
pub(crate) struct Layer {
    pub(crate) name: String,
    pub(crate) crates: Vec<String>,
}

/// Returns the rules of this workspace.
pub(crate) fn read() -> Result<LayeringRules> {
    parse(include_str!("../layering.txt"))
}

pub(crate) fn parse(text: &str) -> Result<LayeringRules> {
    let mut rules = LayeringRules::default();
    for (number, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        rule(&mut rules, line).with_context(|| format!("layering.txt, line {}", number + 1))?;
    }
    Ok(rules)
}

fn rule(rules: &mut LayeringRules, line: &str) -> Result<()> {
    let (subject, names) = line.split_once(':').context("no colon")?;
    if subject == "layer" {
        rules.layers.push(Layer {
            name: names.trim().to_owned(),
            crates: Vec::new(),
        });
        return Ok(());
    }
    if let Some(name) = subject.strip_prefix("may ") {
        let layer = rules.layers.last_mut();
        let layer = layer.context("`may` before the first `layer`")?;
        layer.crates.push(name.trim().to_owned());
    }
    let names = names.split_whitespace().map(str::to_owned);
    if let Some(program) = subject.strip_prefix("program ") {
        let (name, limit) = program
            .split_once(' ')
            .context("a program without a limit")?;
        rules.programs.push(TrustedProgram {
            name: name.to_owned(),
            limit: limit.trim().parse().context("the limit is not a number")?,
            parts: names.collect(),
        });
        return Ok(());
    }
    if let Some(name) = subject.strip_prefix("capabilities ") {
        rules.capabilities.insert(name.to_owned(), names.collect());
        return Ok(());
    }
    let table = match subject.split_once(' ') {
        Some(("may", name)) => Some((&mut rules.may, name)),
        Some(("never", name)) => Some((&mut rules.never, name)),
        Some(("outside", name)) => Some((&mut rules.outside, name)),
        Some(("without", name)) => Some((&mut rules.without, name)),
        _ => None,
    };
    match (table, subject) {
        (Some((table, name)), _) => {
            let old = table.insert(name.trim().to_owned(), names.collect());
            ensure!(old.is_none(), "a second line for {subject}");
        }
        (None, "unsafe") => rules.unsafe_in.extend(names),
        (None, "trusted") => rules.trusted.extend(names),
        (None, "attacker") => rules.attackers.extend(names),
        (None, "beside") => rules.beside.extend(names),
        _ => anyhow::bail!("no such rule: {subject}"),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rules_can_be_read() {
        let rules = read().unwrap();
        assert!(rules.may.contains_key("monitor"));
        assert!(rules.unsafe_in.contains("shmem"));
        assert!(!rules.unsafe_in.contains("monitor"));
    }

    #[test]
    fn invalid_lines_are_rejected_with_their_number() {
        for text in [
            "layer: f\nmay a: b\nmay a: c",
            "\n\nwill a: b",
            "# x\n\nmay a",
            "\n\nmay a: b",
        ] {
            let error = format!("{:#}", parse(text).unwrap_err());
            assert!(error.contains("line 3"), "{error}");
        }
    }
}

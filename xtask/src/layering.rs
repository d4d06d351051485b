//! Checks the layering: dependencies between crates, import cycles between the modules of each, and
//! uses of `unsafe`.

use crate::modules;
use crate::rules::{self, LayeringRules};
use crate::source;
use crate::workspace::{self, Crate};
use anyhow::{Result, ensure};
use std::collections::{BTreeMap, BTreeSet};

/// The page whose table lists each crate below the crates that it uses.
const PAGE: &str = "ARCHITECTURE.md";

/// Prints every violation of the rules. Fails if it finds any.
pub(crate) fn check() -> Result<()> {
    let (rules, crates) = (rules::read()?, workspace::crates()?);
    print!("{}", drawing(&rules));
    let mut violations = upward_rules(&rules);
    violations.extend(dependencies(&rules, &crates));
    violations.extend(missing_crates(&rules, &crates));
    violations.extend(excluded_links(&rules)?);
    let page = std::fs::read_to_string(workspace::root().join(PAGE))?;
    violations.extend(missing_rows(&page, &crates));
    for found in &crates {
        violations.extend(unsafe_code(&rules, found)?);
        for target in &found.targets {
            violations.extend(modules::cycles_of_crate(&found.name, target)?);
        }
    }
    for breach in &violations {
        eprintln!("layering: {breach}");
    }
    ensure!(
        violations.is_empty(),
        "{} violations of xtask/layering.txt",
        violations.len()
    );
    println!("layering: {} crates match xtask/layering.txt", crates.len());
    Ok(())
}

/// Returns the crates in the order of a received frame, with the crates that each may use.
fn drawing(rules: &LayeringRules) -> String {
    let mut text = String::new();
    for layer in &rules.layers {
        text += &format!("{}\n", layer.name);
        for name in &layer.crates {
            let may: Vec<&str> = rules.may[name].iter().map(String::as_str).collect();
            let line = format!("    {name:<12} {}", may.join(" "));
            text += &format!("{}\n", line.trim_end());
        }
    }
    text
}

/// Returns rules that let a crate use an unknown crate, or a crate above its own layer.
fn upward_rules(rules: &LayeringRules) -> Vec<String> {
    let mut heights = BTreeMap::new();
    for (height, layer) in rules.layers.iter().enumerate() {
        heights.extend(layer.crates.iter().map(|name| (name, height)));
    }
    let mut violations = Vec::new();
    for (name, may) in &rules.may {
        for to in may {
            match heights.get(to) {
                None => violations.push(format!("{name} may use {to}, which has no line")),
                Some(height) if *height > heights[name] => {
                    let layer = &rules.layers[*height].name;
                    violations.push(format!("{name} may use {to}, above it, on layer {layer}"));
                }
                Some(_) => {}
            }
        }
    }
    violations
}

/// Returns crates without a row in the page's table, and crates whose row is above the row of a
/// crate that they use.
fn missing_rows(page: &str, crates: &[Crate]) -> Vec<String> {
    let folders = page.lines().filter_map(|line| {
        let (folder, _) = line.strip_prefix("| `")?.split_once('`')?;
        Some(folder)
    });
    let rows: Vec<&str> = folders.collect();
    let row = |of: &Crate| rows.iter().position(|folder| of.root.ends_with(folder));
    let mut violations = Vec::new();
    for found in crates {
        let Some(own) = row(found) else {
            violations.push(format!("{PAGE} has no row for {}", found.name));
            continue;
        };
        let uses = crates
            .iter()
            .filter(|used| found.inside.contains(&used.name));
        for used in uses.filter(|used| row(used).is_some_and(|row| row > own)) {
            let (name, used) = (&found.name, &used.name);
            violations.push(format!("{PAGE} lists {name} above {used}, which it uses"));
        }
    }
    violations
}

/// Returns the names in the rules to which no crate corresponds.
fn missing_crates(rules: &LayeringRules, crates: &[Crate]) -> Vec<String> {
    let exists = |name: &str| crates.iter().any(|found| found.name == name);
    let missing = rules.may.keys().filter(|name| !exists(name));
    missing
        .map(|name| format!("crate {name} does not exist"))
        .collect()
}

/// Returns the dependencies that violate a rule.
fn dependencies(rules: &LayeringRules, crates: &[Crate]) -> Vec<String> {
    let mut violations = Vec::new();
    let edges: BTreeMap<&str, &Crate> = crates
        .iter()
        .map(|found| (found.name.as_str(), found))
        .collect();
    for found in crates {
        let name = &found.name;
        match rules.may.get(name) {
            None => violations.push(format!("{name} has no line in the rules")),
            Some(may) => violations.extend(
                (found.inside.iter().filter(|to| !may.contains(*to)))
                    .map(|to| format!("{name} must not depend on {to}")),
            ),
        }
        if let Some(may) = rules.outside.get(name) {
            violations.extend(
                (found.outside.iter().filter(|to| !may.contains(*to)))
                    .map(|to| format!("{name} must not link {to}")),
            );
        }
        if let Some(never) = rules.never.get(name) {
            violations.extend(
                (reachable(name, &edges)
                    .into_iter()
                    .filter(|to| never.contains(*to)))
                .map(|to| format!("{name} reaches {to}")),
            );
        }
    }
    violations
}

/// Returns crates that another crate links indirectly although a rule excludes them.
fn excluded_links(rules: &LayeringRules) -> Result<Vec<String>> {
    let mut violations = Vec::new();
    for (name, without) in &rules.without {
        let linked = workspace::linked(name)?;
        let found = without.iter().filter(|to| linked.contains(*to));
        violations.extend(found.map(|to| format!("{name} links {to}, through others")));
    }
    Ok(violations)
}

/// Returns every crate of the workspace that `name` links, directly or through others.
fn reachable<'a>(name: &'a str, edges: &BTreeMap<&'a str, &'a Crate>) -> BTreeSet<&'a str> {
    let mut seen = BTreeSet::new();
    let mut next = vec![name];
    while let Some(name) = next.pop() {
        for to in edges.get(name).into_iter().flat_map(|found| &found.inside) {
            if seen.insert(to.as_str()) {
                next.push(to);
            }
        }
    }
    seen
}

/// Returns crates that violate the rule about `unsafe`. The workspace's lints deny `unsafe`, so a
/// crate outside the list must use these lints and must not allow it.
fn unsafe_code(rules: &LayeringRules, found: &Crate) -> Result<Vec<String>> {
    let name = &found.name;
    let mut violations = Vec::new();
    let manifest = std::fs::read_to_string(found.root.join("Cargo.toml"))?;
    let lints = manifest
        .split("[lints]")
        .nth(1)
        .unwrap_or_default()
        .trim_start();
    if !lints.starts_with("workspace = true") {
        violations.push(format!("{name} does not use the workspace's lints"));
    }
    if rules.unsafe_in.contains(name) {
        return Ok(violations);
    }
    for file in source::files(&found.root)? {
        let text = std::fs::read_to_string(&file)?;
        for (number, line) in text.lines().enumerate() {
            if source::allows_unsafe(line) {
                let file = file.display();
                violations.push(format!("{name} must not use unsafe: {file}:{}", number + 1));
            }
        }
    }
    Ok(violations)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn a_crate(name: &str, inside: &[&str], outside: &[&str]) -> Crate {
        let owned = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        Crate {
            name: name.to_owned(),
            root: "nowhere".into(),
            targets: Vec::new(),
            inside: owned(inside),
            outside: owned(outside),
        }
    }

    #[test]
    fn a_rule_that_points_up_is_found() {
        let text = "layer: low\nmay a:\nmay b: a c\nlayer: high\nmay c: a\nmay d: c e f\nmay e:";
        let rules = rules::parse(text).unwrap();
        assert_eq!(
            upward_rules(&rules),
            [
                "b may use c, above it, on layer high",
                "d may use f, which has no line"
            ]
        );
        let drawing = drawing(&rules);
        let lines: Vec<&str> = drawing.lines().collect();
        assert_eq!(lines[..3], ["low", "    a", "    b            a c"]);
        assert_eq!(lines[3..5], ["high", "    c            a"]);
        let crates = ["a", "b", "c", "d"].map(|name| a_crate(name, &[], &[]));
        assert_eq!(missing_crates(&rules, &crates), ["crate e does not exist"]);
    }

    #[test]
    fn the_page_lists_each_crate_below_its_uses() {
        let at = |name: &str, root: &str, inside: &[&str]| Crate {
            root: root.into(),
            ..a_crate(name, inside, &[])
        };
        let crates = [
            at("low", "/x/tcb/low", &[]),
            at("high", "/x/high", &["low"]),
            at("tool", "/x/tool", &[]),
        ];
        let page = "| `high` | uses |\n| `grantway` (the CLI) | |\n| `tcb/low` | nothing |";
        assert_eq!(
            missing_rows(page, &crates),
            [
                "ARCHITECTURE.md lists high above low, which it uses",
                "ARCHITECTURE.md has no row for tool"
            ]
        );
    }

    #[test]
    fn each_kind_of_violation_is_found() {
        let rules = rules::read().unwrap();
        let crates = [
            a_crate("abi", &[], &["serde"]),
            a_crate("shmem", &["abi"], &["libc", "left-pad"]),
            a_crate("nic", &["shmem"], &[]),
            a_crate("sandbox", &["abi", "nic"], &[]),
            a_crate("monitor", &["abi", "sandbox"], &[]),
            a_crate("newcomer", &[], &[]),
        ];
        let violations = dependencies(&rules, &crates);
        for breach in [
            "shmem must not link left-pad",
            "sandbox must not depend on nic",
            "monitor reaches nic",
            "newcomer has no line in the rules",
        ] {
            assert!(
                violations.iter().any(|found| found == breach),
                "{breach}: {violations:?}"
            );
        }
    }
}

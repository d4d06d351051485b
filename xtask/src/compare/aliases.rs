//! Reads `aliases.txt`: older names of plans, columns, keys, metrics and programs.

use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;

/// Kinds of names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NameKind {
    Plan,
    Column,
    Key,
    Config,
    Metric,
    Bench,
    Package,
    Program,
}

impl NameKind {
    fn from_word(word: &str) -> Option<Self> {
        Some(match word {
            "plan" => Self::Plan,
            "column" => Self::Column,
            "key" => Self::Key,
            "config" => Self::Config,
            "metric" => Self::Metric,
            "bench" => Self::Bench,
            "package" => Self::Package,
            "program" => Self::Program,
            _ => return None,
        })
    }
}

#[derive(Debug)]
struct Rename {
    kind: NameKind,
    old: String,
    new: String,
}

/// The renames, oldest first.
#[derive(Debug, Default)]
pub(super) struct Aliases(Vec<Rename>);

/// Returns the renames of this tree.
pub(super) fn read() -> Result<Aliases> {
    Aliases::parse(include_str!("../../aliases.txt"))
}

impl Aliases {
    pub(super) fn parse(text: &str) -> Result<Self> {
        let mut renames = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if !line.is_empty() {
                let rename = rename(line);
                renames.push(rename.with_context(|| format!("aliases.txt, line {}", number + 1))?);
            }
        }
        Ok(Self(renames))
    }

    /// Returns the tree's name for a configuration that an older commit calls `name`.
    pub(super) fn config(&self, name: &str) -> String {
        let mut config = Config::parse(name);
        for rename in &self.0 {
            match rename.kind {
                NameKind::Column if config.column == rename.old => {
                    config.column.clone_from(&rename.new);
                }
                NameKind::Key => config.rename_key(&rename.old, &rename.new),
                NameKind::Config if config.name() == rename.old => {
                    config = Config::parse(&rename.new)
                }
                _ => {}
            }
        }
        config.name()
    }

    /// Returns the tree's name for a metric that an older commit calls `name`.
    pub(super) fn metric(&self, name: &str) -> String {
        let mut name = name.to_owned();
        for rename in self
            .0
            .iter()
            .filter(|rename| rename.kind == NameKind::Metric)
        {
            let rest = name.strip_prefix(&rename.old);
            if let Some(rest) = rest.filter(|rest| rest.is_empty() || rest.starts_with('.')) {
                name = format!("{}{rest}", rename.new);
            }
        }
        name
    }

    /// Returns all names that an item of the tree has ever had, newest first.
    pub(super) fn of(&self, kind: NameKind, name: &str) -> Vec<String> {
        let mut names = vec![name.to_owned()];
        for rename in self.0.iter().rev().filter(|rename| rename.kind == kind) {
            if names.contains(&rename.new) {
                names.push(rename.old.clone());
            }
        }
        names
    }
}

fn rename(line: &str) -> Result<Rename> {
    let (kind, names) = line.split_once(':').context("no colon")?;
    let kind = NameKind::from_word(kind).with_context(|| format!("no such kind: {kind}"))?;
    let (old, new) = names.split_once("->").context("no arrow")?;
    let (old, new) = (old.trim().to_owned(), new.trim().to_owned());
    ensure!(!old.is_empty() && !new.is_empty(), "a name is missing");
    ensure!(old != new, "both names are {old}");
    Ok(Rename { kind, old, new })
}

/// The parts of a configuration: `column@key=value,…`.
#[derive(Debug)]
pub(super) struct Config {
    pub(super) column: String,
    pub(super) keys: BTreeMap<String, String>,
}

impl Config {
    pub(super) fn parse(name: &str) -> Self {
        let (column, keys) = name.split_once('@').unwrap_or((name, ""));
        let pairs = keys.split(',').filter_map(|key| key.split_once('='));
        Self {
            column: column.to_owned(),
            keys: pairs
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .collect(),
        }
    }

    fn name(&self) -> String {
        figures::report::config(&self.column, &self.keys)
    }

    /// Renames a key, or a key with its value.
    fn rename_key(&mut self, old: &str, new: &str) {
        let (old_key, old_value) = old.split_once('=').unwrap_or((old, ""));
        let (new_key, new_value) = new.split_once('=').unwrap_or((new, ""));
        let is_old = |value: &String| old_value.is_empty() || value == old_value;
        if self.keys.get(old_key).is_some_and(is_old)
            && let Some(value) = self.keys.remove(old_key)
        {
            let value = match new_value {
                "" => value,
                new => new.to_owned(),
            };
            self.keys.insert(new_key.to_owned(), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RENAMES: &str = "
        column: ngm-64 -> counted-64          # twice
        column: counted-64 -> counted-small
        key: place -> driver_at
        key: wake=awake -> wake=spin
        metric: cycles_per_packet.guest -> cycles_per_packet.vm
        config: odd@x=1 -> even@y=2
        package: domain -> driver
        bench: small_frames -> frames
        package: driver -> switch
    ";

    #[test]
    fn the_trees_renames_can_be_read() {
        read().unwrap();
    }

    #[test]
    fn old_configurations_get_current_names() {
        let aliases = Aliases::parse(RENAMES).unwrap();
        for (old, new) in [
            ("ngm-64@load=1", "counted-small@load=1"),
            ("counted-64", "counted-small"),
            ("ngm-1514@load=1", "ngm-1514@load=1"),
            (
                "grantway@dir=to_guest,place=split,wake=awake",
                "grantway@dir=to_guest,driver_at=split,wake=spin",
            ),
            (
                "grantway@place=one-core,wake=halt",
                "grantway@driver_at=one-core,wake=halt",
            ),
            ("odd@x=1", "even@y=2"),
            ("odd@x=2", "odd@x=2"),
        ] {
            assert_eq!(aliases.config(old), new);
            assert_eq!(aliases.config(new), new, "a new name is unchanged");
        }
    }

    #[test]
    fn metrics_are_renamed_up_to_a_dot() {
        let aliases = Aliases::parse(RENAMES).unwrap();
        for (old, new) in [
            ("cycles_per_packet.guest", "cycles_per_packet.vm"),
            (
                "cycles_per_packet.guest.hop.nic",
                "cycles_per_packet.vm.hop.nic",
            ),
            ("cycles_per_packet.guests", "cycles_per_packet.guests"),
            ("throughput", "throughput"),
        ] {
            assert_eq!(aliases.metric(old), new);
        }
    }

    #[test]
    fn older_names_are_known_newest_first() {
        let aliases = Aliases::parse(RENAMES).unwrap();
        assert_eq!(
            aliases.of(NameKind::Package, "switch"),
            ["switch", "driver", "domain"]
        );
        assert_eq!(
            aliases.of(NameKind::Column, "counted-small"),
            ["counted-small", "counted-64", "ngm-64"]
        );
        assert_eq!(
            aliases.of(NameKind::Bench, "frames"),
            ["frames", "small_frames"]
        );
        assert_eq!(aliases.of(NameKind::Plan, "base"), ["base"]);
    }

    #[test]
    fn invalid_lines_are_rejected_with_their_number() {
        for text in [
            "\nplan a -> b",
            "\nplan: a b",
            "\nplan: a -> a",
            "\nplan: -> b",
            "\nhue: a -> b",
        ] {
            let error = format!("{:#}", Aliases::parse(text).unwrap_err());
            assert!(error.contains("line 2"), "{error}");
        }
    }
}

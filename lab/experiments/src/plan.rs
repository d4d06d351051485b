//! Plans: what an experiment measures, as data.
//!
//! The files lie in `plans/` and are part of the program.

use crate::lane::Place;
use crate::lane::kernel_path::Gro;
use crate::lane::window::Times;
use crate::stats::Side;
use crate::{Failure, metric};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

const EMBEDDED: &[(&str, &str)] = &[("base", include_str!("../plans/base.toml"))];

/// A plan.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// Its name, the argument of `exp`.
    pub name: String,
    /// What it is about, for people.
    pub about: String,
    /// Bytes of a request and of its response.
    pub request_bytes: usize,
    /// How long and how often.
    pub full: Rounds,
    /// The same for a run that only shows that everything works.
    pub quick: Rounds,
    /// What is compared.
    pub column: Vec<Column>,
    /// Raw frames from guest to guest.
    #[serde(default)]
    pub frames: Vec<Frames>,
    /// How long machines take to come up.
    pub up: Option<Up>,
    /// Which columns are divided by which.
    #[serde(default)]
    pub ratio: Vec<Ratio>,
    /// Figures to be met.
    #[serde(default)]
    pub bar: Vec<Bar>,
}

/// How often, how long.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rounds {
    /// Rounds of every configuration, at least 3.
    pub rounds: usize,
    /// Seconds of load before a window.
    pub warm_up_s: f64,
    /// Seconds of a window.
    pub window_s: f64,
}

impl Rounds {
    /// As durations.
    #[must_use]
    pub fn times(&self) -> Times {
        Times {
            warm_up: Duration::from_secs_f64(self.warm_up_s),
            window: Duration::from_secs_f64(self.window_s),
        }
    }
}

/// A column.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// What lies between wire and guest.
    pub path: PathKind,
    /// Where that runs.
    #[serde(default)]
    pub place: Vec<Place>,
    /// How the kernel's paths look at frames.
    pub gro: Option<Gro>,
}

/// What lies between wire and guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PathKind {
    /// Monitor, driver domain, guest domain.
    Machine,
    /// The one-process TAP forwarder.
    Forwarder,
    /// The kernel's bridge between two veth pairs.
    Bridge,
    /// A veth pair.
    Veth,
}

/// Raw frames from a guest through the driver to another.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Frames {
    /// The column's name.
    pub name: String,
    /// How the driver gets at granted pages, as a configuration file has it.
    pub grants: String,
    /// Bytes of a frame.
    pub size: Vec<u32>,
}

/// Times to come up.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Up {
    /// The column's name.
    pub column: String,
    /// Guests of the machine.
    pub guests: Vec<u32>,
}

/// A division of columns.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ratio {
    /// What is divided.
    pub own: String,
    /// By what, at the same keys (less those that it does not have).
    pub to: String,
}

/// A figure to be met.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bar {
    /// The column.
    pub column: String,
    /// The metric.
    pub metric: String,
    /// Keys that a configuration must have for the bar to be its own.
    #[serde(default)]
    pub keys: BTreeMap<String, String>,
    /// The figure must not be below.
    pub at_least: Option<f64>,
    /// The figure must not be above.
    pub at_most: Option<f64>,
}

impl Bar {
    /// The bar and the side to be on.
    #[must_use]
    pub fn line(&self) -> Option<(f64, Side)> {
        match (self.at_least, self.at_most) {
            (Some(bar), None) => Some((bar, Side::Above)),
            (None, Some(bar)) => Some((bar, Side::Below)),
            _ => None,
        }
    }

    /// Whether it applies to a figure.
    #[must_use]
    pub fn applies(&self, column: &str, keys: &BTreeMap<String, String>, metric: &str) -> bool {
        self.column == column
            && self.metric == metric
            && self
                .keys
                .iter()
                .all(|(key, value)| keys.get(key) == Some(value))
    }
}

/// Names of all plans.
#[must_use]
pub fn names() -> Vec<&'static str> {
    EMBEDDED.iter().map(|(name, _)| *name).collect()
}

impl Plan {
    /// The embedded plan of this name.
    ///
    /// # Errors
    /// [`Failure::Usage`] if there is none.
    pub fn find(name: &str) -> Result<Self, Failure> {
        let (_, text) = EMBEDDED
            .iter()
            .find(|(known, _)| *known == name)
            .ok_or_else(|| {
                Failure::Usage(format!(
                    "no plan `{name}`; there is: {}",
                    names().join(", ")
                ))
            })?;
        Self::parse(text)
    }

    /// From a plan file's text.
    ///
    /// # Errors
    /// [`Failure::Usage`] saying what is wrong.
    pub fn parse(text: &str) -> Result<Self, Failure> {
        let plan: Self = toml::from_str(text).map_err(|e| Failure::Usage(e.to_string()))?;
        plan.check().map_err(Failure::Usage)?;
        Ok(plan)
    }

    /// The plan as a command line changes it: the length of its rounds, the columns.
    ///
    /// # Errors
    /// [`Failure::Usage`] if what is left makes no plan.
    pub fn adjusted(mut self, args: &crate::exp::Args) -> Result<Self, Failure> {
        if args.quick {
            self.full = self.quick;
        }
        if let Some(rounds) = args.rounds {
            self.full.rounds = rounds;
        }
        if let Some(seconds) = args.seconds {
            self.full.window_s = seconds;
        }
        if let Some(part) = &args.only {
            self.column.retain(|column| column.name.contains(part));
            self.frames.retain(|frames| frames.name.contains(part));
            let left: BTreeSet<&str> = self.column.iter().map(|c| c.name.as_str()).collect();
            self.up = self.up.filter(|up| left.contains(up.column.as_str()));
            self.ratio.retain(|ratio| {
                left.contains(ratio.own.as_str()) && left.contains(ratio.to.as_str())
            });
            if self.column.is_empty() && self.frames.is_empty() {
                return Err(Failure::Usage(format!("no column contains `{part}`")));
            }
        }
        self.check().map_err(Failure::Usage)?;
        Ok(self)
    }

    fn check(&self) -> Result<(), String> {
        for (name, rounds) in [("full", self.full), ("quick", self.quick)] {
            if rounds.rounds < 3 || !(0.0..=1.0e3).contains(&rounds.warm_up_s) {
                return Err(format!("{name}: at least 3 rounds, warm_up_s not negative"));
            }
            if !(0.05..=600.0).contains(&rounds.window_s) {
                return Err(format!("{name}: window_s from 0.05 to 600"));
            }
        }
        if self.quick.window_s > 1.0 {
            return Err("quick: window_s is at most 1".to_owned());
        }
        let mut seen = BTreeSet::new();
        for column in &self.column {
            if !seen.insert(column.name.as_str()) {
                return Err(format!("column `{}` twice", column.name));
            }
            let ours = matches!(column.path, PathKind::Machine | PathKind::Forwarder);
            if ours == column.place.is_empty() || ours == column.gro.is_some() {
                return Err(format!(
                    "column `{}`: `place` belongs to machine and forwarder, `gro` to bridge and veth",
                    column.name
                ));
            }
        }
        for name in self.ratio.iter().flat_map(|r| [&r.own, &r.to]) {
            if !seen.contains(name.as_str()) {
                return Err(format!("ratio: no column `{name}`"));
            }
        }
        for bar in &self.bar {
            if bar.line().is_none() {
                return Err(format!("bar {}: one of at_least, at_most", bar.metric));
            }
            if metric::unit(&bar.metric).is_empty() && !bar.metric.starts_with("ratio.") {
                return Err(format!("bar: no metric `{}`", bar.metric));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn embedded_plans_are_valid_and_named_as_their_file() {
        for name in names() {
            assert_eq!(Plan::find(name).unwrap().name, name);
        }
    }

    #[test]
    fn base_has_the_columns_that_scripts_know() {
        let plan = Plan::find("base").unwrap();
        let columns: Vec<&str> = plan.column.iter().map(|c| c.name.as_str()).collect();
        assert_eq!(
            columns,
            [
                "grantway",
                "forwarder",
                "bridge-gro-off",
                "bridge-gro-on",
                "bridge-gro-napi",
                "veth-gro-off",
                "veth-gro-on",
                "veth-gro-napi"
            ]
        );
        let frames: Vec<&str> = plan.frames.iter().map(|f| f.name.as_str()).collect();
        assert_eq!(frames, ["frames-map", "frames-mapped"]);
    }

    #[test]
    fn a_quick_run_fits_into_two_minutes() {
        let plan = Plan::find("base").unwrap();
        // Directions, states of the cores, works; 30 ms to read everything at a window's ends.
        let lanes: usize = plan.column.iter().map(|c| c.place.len().max(1)).sum();
        let windows = lanes * 2 * 2 * 2 * plan.quick.rounds;
        let seconds = windows as f64 * (plan.quick.warm_up_s + plan.quick.window_s + 0.03);
        assert!(seconds < 90.0, "{seconds}");
    }

    #[test]
    fn mistakes_are_named() {
        let base = EMBEDDED[0].1;
        for (from, to, message) in [
            ("rounds = 3", "rounds = 2", "at least 3 rounds"),
            ("window_s = 0.2", "window_s = 2", "at most 1"),
            ("gro = \"off\"", "gro = \"of\"", "unknown variant"),
            ("about =", "abuot =", "unknown field"),
            ("name = \"veth-gro-on\"", "name = \"veth-gro-off\"", "twice"),
            ("to = \"forwarder\"", "to = \"fowarder\"", "no column"),
            ("at_least = 0.8", "", "one of at_least, at_most"),
        ] {
            let text = base.replacen(from, to, 1);
            assert_ne!(text, base, "{from}");
            let error = Plan::parse(&text).unwrap_err().to_string();
            assert!(error.contains(message), "{from}: {error}");
        }
        assert_eq!(Plan::find("bsae").unwrap_err().exit_code(), 2);
    }
}

//! Reads `compare.toml`: plans to run, ratios to judge, benches to count.

use super::aliases::Config;
use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use std::collections::BTreeMap;

/// The whole file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Plans {
    plan: Vec<Plan>,
    bench: Vec<Bench>,
}

/// The settings of a plan of `grantway exp` for the comparison.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Plan {
    pub(super) name: String,
    pub(super) columns: Vec<String>,
    pub(super) rounds: usize,
    pub(super) seconds: f64,
    pub(super) minutes: f64,
    pub(super) benches: Vec<String>,
    key: Vec<Cells>,
    #[serde(default)]
    shown: Vec<Cells>,
}

/// Metrics that apply to configurations with these keys.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Cells {
    metrics: Vec<String>,
    #[serde(default)]
    keys: BTreeMap<String, String>,
}

/// A bench whose instructions are counted.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Bench {
    pub(super) name: String,
    pub(super) package: String,
    pub(super) toggle: String,
    pub(super) cell_in: Option<String>,
    #[serde(default)]
    pub(super) cells: Vec<String>,
}

/// Purpose of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// The cell determines the result of the comparison.
    Key,
    /// The cell is only printed.
    Shown,
}

/// Returns the plans of this tree.
pub(super) fn read() -> Result<Plans> {
    Plans::parse(include_str!("../../compare.toml"))
}

impl Plans {
    pub(super) fn parse(text: &str) -> Result<Self> {
        let plans: Self = toml::from_str(text).context("compare.toml")?;
        for plan in &plans.plan {
            for bench in &plan.benches {
                let known = plans.bench.iter().any(|known| known.name == *bench);
                ensure!(known, "compare.toml: {}: no bench {bench}", plan.name);
            }
        }
        Ok(plans)
    }

    /// Returns the names of all plans.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.plan.iter().map(|plan| plan.name.as_str())
    }

    /// Returns the plans of these names, in their order.
    pub(super) fn named(&self, names: &[String]) -> Result<Vec<Plan>> {
        let find = |name: &String| {
            let found = self.plan.iter().find(|plan| plan.name == *name).cloned();
            found.with_context(|| {
                let known = self.names().collect::<Vec<_>>().join(", ");
                format!("compare.toml has no plan {name} (it has {known})")
            })
        };
        names.iter().map(find).collect()
    }

    /// Returns the benches whose counts decide on a plan's cells.
    pub(super) fn benches(&self, plan: &Plan) -> impl Iterator<Item = &Bench> {
        let of_plan = |bench: &&Bench| plan.benches.contains(&bench.name);
        self.bench.iter().filter(of_plan)
    }
}

impl Plan {
    /// Returns the purpose of a figure, or `None` if it is not used. `config` and `metric` are the
    /// tree's names.
    pub(super) fn part(&self, config: &str, metric: &str) -> Option<Part> {
        let config = Config::parse(config);
        if !self.columns.contains(&config.column) {
            return None;
        }
        let here = |cells: &Cells| {
            let has = |(key, value): (&String, &String)| config.keys.get(key) == Some(value);
            cells.metrics.iter().any(|known| known == metric) && cells.keys.iter().all(has)
        };
        if self.key.iter().any(here) {
            return Some(Part::Key);
        }
        self.shown.iter().any(here).then_some(Part::Shown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_trees_plans_can_be_read() {
        let plans = read().unwrap();
        let names = ["base", "isolation", "peers", "tcp", "lro"].map(str::to_owned);
        assert_eq!(plans.named(&names).unwrap().len(), names.len());
        let error = plans.named(&["bass".to_owned()]).unwrap_err().to_string();
        assert!(error.contains("no plan bass (it has base,"), "{error}");
    }

    #[test]
    fn cells_are_selected_by_column_and_key() {
        let plans = read().unwrap();
        let base = &plans.named(&["base".to_owned()]).unwrap()[0];
        for (config, metric, part) in [
            ("grantway@dir=to_guest", "throughput", Some(Part::Key)),
            ("grantway@guests=64", "up_ms", Some(Part::Shown)),
            ("grantway@dir=to_guest", "latency_us.p50", None),
            ("grantway-x@dir=to_guest", "throughput", None),
            ("forwarder@dir=to_guest", "throughput", None),
        ] {
            assert_eq!(base.part(config, metric), part, "{config} {metric}");
        }
        assert_eq!(plans.benches(base).count(), base.benches.len());
    }

    #[test]
    fn a_missing_bench_is_an_error() {
        let text = include_str!("../../compare.toml");
        let text = text.replace("name = \"small_frames\"", "name = \"large_frames\"");
        let error = Plans::parse(&text).unwrap_err().to_string();
        assert!(error.contains("no bench small_frames"), "{error}");
    }
}

//! The papers that this project implements: what they measured, as data (`papers/*.toml`).
//!
//! A paper's configurations carry the paper's name (`hatori-guest1`); each value carries the table,
//! figure or sentence that it stands in. What a paper says of the relation of two configurations
//! and not in figures is a value too, a ratio.

use figures::Failure;
use serde::Deserialize;
use std::collections::BTreeMap;

/// The texts of their files.
const TEXTS: [(&str, &str); 5] = [
    ("hatori", include_str!("../../papers/hatori.toml")),
    ("sccp", include_str!("../../papers/sccp.toml")),
    ("oi", include_str!("../../papers/oi.toml")),
    ("ram", include_str!("../../papers/ram.toml")),
    ("menon", include_str!("../../papers/menon.toml")),
];

/// A paper.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Paper {
    /// Its name here.
    pub name: String,
    /// Who wrote what.
    pub title: String,
    /// The machines that it measured on, in a sentence.
    pub setup: String,
    /// How this machine and these loads differ from it.
    pub differs: String,
    /// What it measured.
    #[serde(default)]
    pub config: Vec<PaperConfig>,
    /// Its tables and figures.
    pub item: Vec<Item>,
}

/// A configuration of a paper's.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PaperConfig {
    /// Its name, beginning with the paper's.
    pub name: String,
    /// What it is.
    pub about: String,
    /// What it is compared with: the first of them that has the metric.
    #[serde(default)]
    pub to: Vec<String>,
    /// What the paper says of it.
    #[serde(default)]
    pub values: Vec<Value>,
}

/// A value of a paper's: of a configuration, or its ratio to another.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Value {
    /// The metric, as it is named here.
    pub metric: String,
    /// The value, in this project's unit of the metric.
    pub value: Option<f64>,
    /// Or the ratio to configuration `to`.
    pub ratio: Option<f64>,
    /// The other one of a ratio.
    pub to: Option<String>,
    /// Of which of the configuration's points it is: keys and their values.
    #[serde(default)]
    pub at: BTreeMap<String, f64>,
    /// Where it stands.
    pub source: String,
}

/// A table or figure of a paper.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Item {
    /// Its name there: `table 2`, `figure 4.10`.
    pub id: String,
    /// What it shows.
    pub about: String,
    /// Configurations in it.
    #[serde(default)]
    pub configs: Vec<String>,
    /// Metrics in it; one that ends in `.*` stands for all that begin so.
    #[serde(default)]
    pub metrics: Vec<String>,
    /// The key of our configurations that is the axis of its curves; none: it has bars.
    pub against: Option<String>,
    /// Where on an axis it is: keys and their values.
    #[serde(default)]
    pub at: BTreeMap<String, String>,
    /// Its values grow with the length of a window.
    #[serde(default)]
    pub by_window: bool,
    /// A distribution in it.
    pub distribution: Option<Distribution>,
    /// Why it, or the rest of it, cannot be measured here.
    pub why: Option<String>,
    /// What of it is missing where the machine has no performance counters.
    pub without_counters: Option<String>,
}

/// Shares of what was at most so much.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Distribution {
    /// The metric of a share; so much is behind a dot at its end.
    pub share: String,
    /// The metric whose value in the paper is all that the paper says of it.
    pub mark: String,
}

/// Keys of points of one curve: only a table or figure that is about them has such configurations,
/// and what a paper says of a configuration it says of none of its points.
pub const SWEPT: [&str; 2] = ["buffer", "offered"];

/// A paper's own ratio of two configurations, and where it stands.
#[derive(Clone, Debug, PartialEq)]
pub struct PaperRatio<'a> {
    /// The other configuration.
    pub to: &'a str,
    /// The metric.
    pub metric: &'a str,
    /// Own ÷ other.
    pub ratio: f64,
    /// Of which points of both it is: keys and their values.
    pub at: BTreeMap<&'a str, f64>,
    /// Where it stands.
    pub source: &'a str,
}

impl Value {
    /// Whether it is of a configuration with these keys.
    #[must_use]
    pub fn is_of(&self, keys: &BTreeMap<&str, &str>) -> bool {
        let mut at = self.at.iter();
        at.all(|(key, value)| has(keys, key, *value))
    }
}

impl PaperRatio<'_> {
    /// Whether it is of a configuration with these keys.
    #[must_use]
    pub fn is_of(&self, keys: &BTreeMap<&str, &str>) -> bool {
        let mut at = self.at.iter();
        at.all(|(key, value)| has(keys, key, *value))
    }
}

fn has(keys: &BTreeMap<&str, &str>, key: &str, value: f64) -> bool {
    let own = keys.get(key).and_then(|own| own.parse().ok());
    own == Some(value)
}

/// Where a ratio of two values is; none, if they are of points apart.
fn common<'a>(own: &'a Value, other: &'a Value) -> Option<BTreeMap<&'a str, f64>> {
    let apart = |(key, value)| other.at.get(key).is_some_and(|other| other != value);
    let both = || own.at.iter().chain(&other.at);
    (!own.at.iter().any(apart)).then(|| both().map(|(key, at)| (key.as_str(), *at)).collect())
}

impl Item {
    /// Whether a configuration with these keys belongs to it.
    #[must_use]
    pub fn has(&self, keys: &BTreeMap<&str, &str>) -> bool {
        let swept = SWEPT.iter().filter_map(|key| Some((*key, *keys.get(key)?)));
        let fits = |(key, value): (&str, &str)| match self.at.get(key) {
            Some(only) => only == value,
            None => self.against.as_deref() == Some(key),
        };
        let mut swept = swept.peekable();
        // What is only about points of a curve has nothing of what is none.
        (self.at.is_empty() || swept.peek().is_some()) && swept.all(fits)
    }

    /// Whether it can show this value of its paper's: not if that is a point of another curve.
    #[must_use]
    pub fn shows(&self, value: &Value) -> bool {
        let axis = self.against.as_ref();
        value.at.is_empty() || axis.is_none_or(|key| value.at.contains_key(key))
    }
}

impl Paper {
    /// The paper of this name.
    ///
    /// # Errors
    /// [`Failure::Usage`] if there is none.
    pub fn find(name: &str) -> Result<Self, Failure> {
        let Some((_, text)) = TEXTS.iter().find(|(known, _)| *known == name) else {
            return Err(Failure::Usage(format!("no paper `{name}`")));
        };
        Self::parse(text)
    }

    fn parse(text: &str) -> Result<Self, Failure> {
        let paper: Self =
            toml::from_str(text).map_err(|error| Failure::Usage(error.to_string()))?;
        paper.check().map_err(Failure::Usage)?;
        Ok(paper)
    }

    /// Says what is wrong.
    fn check(&self) -> Result<(), String> {
        let prefix = format!("{}-", self.name);
        for config in &self.config {
            let name = &config.name;
            if !name.starts_with(&prefix) {
                return Err(format!("`{name}` does not begin with `{prefix}`"));
            }
            let others = config.values.iter().filter_map(|value| value.to.as_ref());
            for other in config.to.iter().chain(others) {
                if self.config(other).is_none() {
                    return Err(format!("`{name}`: no configuration `{other}`"));
                }
            }
            for value in &config.values {
                let whole = (value.value, value.ratio, &value.to);
                if !matches!(whole, (Some(_), None, None) | (None, Some(_), Some(_))) {
                    let metric = &value.metric;
                    return Err(format!("`{name}`, {metric}: `value`, or `ratio` and `to`"));
                }
            }
        }
        for item in &self.item {
            if let Some(name) = item.configs.iter().find(|name| self.config(name).is_none()) {
                return Err(format!("{}: no configuration `{name}`", item.id));
            }
            let shows_nothing = item.configs.is_empty() || item.metrics.is_empty();
            if item.why.is_none() && shows_nothing {
                return Err(format!("{}: `configs` and `metrics`, or `why`", item.id));
            }
        }
        Ok(())
    }

    /// A configuration by its name.
    #[must_use]
    pub fn config(&self, name: &str) -> Option<&PaperConfig> {
        self.config.iter().find(|config| config.name == name)
    }

    /// The paper's values of a metric of a configuration: several, if they are of several points.
    pub fn values<'a>(
        &'a self,
        config: &str,
        metric: &'a str,
    ) -> impl Iterator<Item = (f64, &'a Value)> {
        let values = self.config(config).into_iter().flat_map(|c| &c.values);
        let of_metric = values.filter(move |value| value.metric == metric);
        of_metric.filter_map(|value| Some((value.value?, value)))
    }

    /// What the paper says of a configuration in relation to others, of the same point of both.
    #[must_use]
    pub fn ratios<'a>(&'a self, config: &str) -> Vec<PaperRatio<'a>> {
        let Some(own) = self.config(config) else {
            return Vec::new();
        };
        let ratio = |value: &'a Value| {
            let of = |to, ratio, at| PaperRatio {
                to,
                metric: &value.metric,
                ratio,
                at,
                source: &value.source,
            };
            if let (Some(ratio), Some(to)) = (value.ratio, &value.to) {
                return Some(of(to, ratio, common(value, value)?));
            }
            own.to.iter().find_map(|to| {
                let mut others = self.values(to, &value.metric);
                let (theirs, at) =
                    others.find_map(|(theirs, other)| Some((theirs, common(value, other)?)))?;
                Some(of(to, value.value? / theirs, at))
            })
        };
        own.values.iter().filter_map(ratio).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_paper_is_named_as_its_file_and_all_42_tables_and_figures_are_there() {
        let mut items = 0;
        for (name, text) in TEXTS {
            let paper = Paper::parse(text).unwrap();
            assert_eq!(paper.name, name);
            items += paper.item.len();
        }
        assert_eq!(items, 42);
        assert_eq!(Paper::find("xen").unwrap_err().exit_code(), 2);
    }

    #[test]
    fn ratios_are_to_the_first_baseline_that_has_the_metric() {
        let ram = Paper::find("ram").unwrap();
        let of = |config: &str, to: &str, metric: &str| {
            let ratios = ram.ratios(config);
            let found = ratios.iter().find(|r| r.to == to && r.metric == metric);
            found.map(|ratio| (ratio.ratio * 100.0).round())
        };
        let (total, driver) = ("cycles_per_packet.total", "cycles_per_packet.driver");
        assert_eq!(of("ram-xen", "ram-linux", total), Some(450.0));
        assert_eq!(
            of("ram-xen", "ram-linux", driver),
            None,
            "Linux has no such domain"
        );
        assert_eq!(of("ram-mq", "ram-xen", driver), Some(33.0));
        assert_eq!(
            of("ram-mq-ngm", "ram-xen", total),
            Some(49.0),
            "a ratio in the text"
        );
        assert!(ram.ratios("ram-linux").is_empty());
    }

    #[test]
    fn a_ratio_is_of_one_point_of_both() {
        let menon = Paper::find("menon").unwrap();
        let of = |config: &str| {
            let ratios = menon.ratios(config).into_iter();
            let streams = ratios.filter(|ratio| ratio.metric == "throughput");
            streams.map(|r| (r.to, r.at)).collect::<Vec<_>>()
        };
        // Two NICs there, three in Linux: no ratio.
        assert_eq!(of("menon-domain0"), []);
        let at = |wires| BTreeMap::from([("wires", wires)]);
        assert_eq!(of("menon-guest1"), [("menon-domain0", at(1.0))]);
        assert_eq!(of("menon-send-guest0"), [("menon-send-domain0", at(4.0))]);
        let ratio = &menon.ratios("menon-guest1")[0];
        assert!(ratio.is_of(&[("wires", "1"), ("dir", "to_guest")].into()));
        assert!(!ratio.is_of(&[("wires", "4")].into()) && !ratio.is_of(&BTreeMap::new()));
    }

    #[test]
    fn points_of_a_curve_belong_to_what_is_about_them() {
        let menon = Paper::find("menon").unwrap();
        let of = |id: &str, keys: &[(&'static str, &'static str)]| {
            let item = menon.item.iter().find(|item| item.id == id).unwrap();
            item.has(&keys.iter().copied().collect())
        };
        let (wires, buffer) = (("wires", "4"), ("buffer", "1024"));
        assert!(of("figure 1", &[buffer]) && !of("figure 3", &[buffer]));
        assert!(of("figure 3", &[wires]) && of("figure 5", &[]) && !of("figure 5", &[buffer]));
        let offered = |rate| of("figure 7", &[("offered", rate)]);
        assert!(offered("1000") && offered("5000"));
        // At one rate there, and nothing of a stream.
        assert!(of("figure 8", &[("offered", "5000")]));
        assert!(!of("figure 8", &[("offered", "1000")]) && !of("figure 8", &[wires]));
    }

    #[test]
    fn mistakes_are_named() {
        let text = TEXTS[1].1;
        for (from, to, message) in [
            (
                "name = \"sccp-lro\"",
                "name = \"lro\"",
                "does not begin with",
            ),
            (
                "to = [\"sccp-xen\"]",
                "to = [\"sccp-nex\"]",
                "no configuration `sccp-nex`",
            ),
            (
                "metrics = [\"throughput\"",
                "metric = [\"throughput\"",
                "unknown field",
            ),
            (
                "value = 0.58865",
                "ratio = 0.58865",
                "`value`, or `ratio` and `to`",
            ),
            (
                "configs = [\"sccp-xen\", ",
                "configs = [\"sccp\", ",
                "no configuration `sccp`",
            ),
        ] {
            let text = text.replacen(from, to, 1);
            let error = Paper::parse(&text).unwrap_err().to_string();
            assert!(error.contains(message), "{from}: {error}");
        }
    }
}

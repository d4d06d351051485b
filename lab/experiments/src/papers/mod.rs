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
    /// Why ratios to it cannot be compared with ours, in which a different path stands for it.
    pub not_comparable: Option<String>,
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
    /// Where it stands: the name of the table or figure first, if it is in one.
    pub source: String,
    /// Whether it holds by the metric's definition, so that a ratio to it says nothing.
    #[serde(default)]
    pub by_definition: bool,
    /// Whether the text calls its ratio an effect although that lies within 5 % of 1.
    #[serde(default)]
    pub effect: bool,
    /// Why its ratio cannot be compared with ours.
    pub not_comparable: Option<String>,
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
    /// Values of the paper's that nothing here stands beside.
    pub stated: Option<Stated>,
}

/// A table of the paper's, as it stands there.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stated {
    /// The unit of its values.
    pub unit: String,
    /// The names of its columns, behind that of a row.
    pub columns: Vec<String>,
    /// The names of its rows, each with a value for every column, `-` for none.
    pub rows: Vec<(String, Vec<String>)>,
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
    /// Whether the paper's text calls it an effect, however small.
    pub effect: bool,
    /// Why it cannot be compared with ours.
    pub not_comparable: Option<&'a str>,
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

    /// Returns whether it can show this value of its paper's: not if that is a point of another
    /// curve.
    #[must_use]
    pub fn shows(&self, value: &Value) -> bool {
        let axis = self.against.as_ref();
        value.at.is_empty() || axis.is_none_or(|key| value.at.contains_key(key))
    }

    /// Returns whether this value stands in it.
    #[must_use]
    pub fn states(&self, value: &Value) -> bool {
        let rest = value.source.strip_prefix(&self.id);
        rest.is_some_and(|rest| !rest.starts_with(|next: char| next.is_ascii_digit()))
    }

    fn check(&self, paper: &Paper) -> Result<(), String> {
        if let Some(name) = self
            .configs
            .iter()
            .find(|name| paper.config(name).is_none())
        {
            return Err(format!("{}: no configuration `{name}`", self.id));
        }
        let shows_nothing = self.configs.is_empty() || self.metrics.is_empty();
        if self.why.is_none() && shows_nothing {
            return Err(format!("{}: `configs` and `metrics`, or `why`", self.id));
        }
        if let Some(stated) = &self.stated
            && let Some((name, _)) = stated
                .rows
                .iter()
                .find(|(_, values)| values.len() != stated.columns.len())
        {
            return Err(format!("{}: `{name}`: a value for every column", self.id));
        }
        Ok(())
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
        self.item.iter().try_for_each(|item| item.check(self))
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

    /// Returns what the paper says of a configuration in relation to others, of the same point of
    /// both. Of two statements of one ratio it has the first.
    #[must_use]
    pub fn ratios<'a>(&'a self, config: &str) -> Vec<PaperRatio<'a>> {
        let Some(own) = self.config(config) else {
            return Vec::new();
        };
        let ratio = |value: &'a Value| {
            let of = |to: &'a str, ratio, at| PaperRatio {
                to,
                metric: &value.metric,
                ratio,
                at,
                source: &value.source,
                effect: value.effect,
                not_comparable: value
                    .not_comparable
                    .as_ref()
                    .or_else(|| self.config(to)?.not_comparable.as_ref())
                    .map(String::as_str),
            };
            if let (Some(ratio), Some(to)) = (value.ratio, &value.to) {
                return Some(of(to, ratio, common(value, value)?));
            }
            own.to.iter().find_map(|to| {
                let others = self.values(to, &value.metric);
                let mut others = others.filter(|(_, other)| !other.by_definition);
                let (theirs, at) =
                    others.find_map(|(theirs, other)| Some((theirs, common(value, other)?)))?;
                Some(of(to, value.value? / theirs, at))
            })
        };
        let mut ratios: Vec<PaperRatio<'_>> = Vec::new();
        for ratio in own.values.iter().filter_map(ratio) {
            let again = |known: &PaperRatio<'_>| {
                (known.to, known.metric, &known.at) == (ratio.to, ratio.metric, &ratio.at)
            };
            if !ratios.iter().any(again) {
                ratios.push(ratio);
            }
        }
        ratios
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_paper_has_all_of_its_tables_and_figures() {
        let mut items = 0;
        for (name, text) in TEXTS {
            let paper = Paper::parse(text).unwrap();
            assert_eq!(paper.name, name);
            items += paper.item.len();
        }
        assert_eq!(items, 44);
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
        // Two NICs there and three in Linux are no ratio; what the text divides is of three.
        let at = |wires| BTreeMap::from([("wires", wires)]);
        assert_eq!(of("menon-domain0"), [("menon-linux", at(3.0))]);
        assert_eq!(of("menon-guest1"), [("menon-domain0", at(1.0))]);
        assert_eq!(of("menon-send-guest0"), [("menon-send-domain0", at(4.0))]);
        let ratio = &menon.ratios("menon-guest1")[0];
        assert!(ratio.is_of(&[("wires", "1"), ("dir", "to_guest")].into()));
        assert!(!ratio.is_of(&[("wires", "4")].into()) && !ratio.is_of(&BTreeMap::new()));
    }

    #[test]
    fn a_ratio_to_what_holds_by_definition_is_none() {
        for (name, config, others) in [
            ("hatori", "hatori-guest2", 0),
            ("hatori", "hatori-guest3", 0),
            ("sccp", "sccp-lro", 0),
            ("oi", "oi-lro", 0),
            ("oi", "oi-da", 1),
            ("sccp", "sccp-optimized", 1),
        ] {
            let paper = Paper::find(name).unwrap();
            let ratios = paper.ratios(config).into_iter();
            let rates = ratios.filter(|ratio| ratio.metric == "lro_rate");
            assert_eq!(rates.count(), others, "{config}");
        }
    }

    #[test]
    fn a_ratio_to_another_path_is_marked() {
        for (name, config, metric, marked) in [
            ("oi", "oi-xen", "throughput", true),
            ("oi", "oi-lro", "throughput", false),
            ("menon", "menon-guest1", "throughput", true),
            ("menon", "menon-guest0", "throughput", false),
            ("ram", "ram-transmit-ngm", "throughput", true),
        ] {
            let paper = Paper::find(name).unwrap();
            let ratios = paper.ratios(config);
            let found = ratios.iter().find(|ratio| ratio.metric == metric).unwrap();
            assert_eq!(found.not_comparable.is_some(), marked, "{config}");
        }
    }

    #[test]
    fn what_a_paper_states_twice_is_judged_once() {
        let oi = Paper::find("oi").unwrap();
        let ratios = oi.ratios("oi-lro");
        let of: Vec<f64> = ratios
            .iter()
            .filter(|ratio| ratio.metric == "throughput")
            .map(|ratio| ratio.ratio)
            .collect();
        assert_eq!(of, [0.5772 / 0.5359], "table 4's, not table 1's");
        let claims = oi.ratios("oi-bo");
        let claims = claims.iter().filter(|ratio| ratio.effect);
        let claims: Vec<&str> = claims.map(|ratio| ratio.metric).collect();
        assert_eq!(claims, ["cycles_per_byte.driver"]);
    }

    /// Values that a reader of the papers found missing or misplaced.
    #[test]
    fn values_stand_where_the_papers_have_them() {
        for (name, config, metric, value, source) in [
            ("hatori", "hatori-native", "lro_rate", 1.0, "table 2"),
            ("hatori", "hatori-guest1", "wire_sent", 386_000.0, "table 5"),
            ("hatori", "hatori-guest2", "wire_sent", 277_000.0, "table 5"),
            ("hatori", "hatori-guest3", "wire_sent", 149_000.0, "table 5"),
            ("hatori", "hatori-guest1", "segments", 742_000.0, "table 5"),
            ("hatori", "hatori-guest2", "segments", 374_000.0, "table 5"),
            ("hatori", "hatori-guest3", "segments", 151_000.0, "table 5"),
            ("hatori", "hatori-guest1", "acks", 354_000.0, "table 6"),
            ("oi", "oi-linux", "throughput", 0.7151, "table 1"),
            ("oi", "oi-xen", "throughput", 0.569, "table 1"),
            ("oi", "oi-xen", "lro_rate", 1.0, "table 1"),
            ("oi", "oi-lro", "throughput", 0.606, "table 1"),
            ("oi", "oi-lro", "lro_rate", 2.65, "table 1"),
            (
                "ram",
                "ram-xen",
                "cycles_per_packet.driver.grants",
                1623.0,
                "section 2.4.2",
            ),
        ] {
            let paper = Paper::find(name).unwrap();
            let mut values = paper.values(config, metric);
            let stands = |(known, said): (f64, &Value)| known == value && said.source == source;
            assert!(values.any(stands), "{config} {metric} {value}");
        }
        let menon = Paper::find("menon").unwrap();
        for (config, metric, ratio, wires) in [
            ("menon-domain0", "instructions_per_packet.total", 1.11, 3.0),
            ("menon-domain0", "dtlb_misses_per_second.total", 13.0, 3.0),
            ("menon-domain0", "itlb_misses_per_second.total", 17.0, 3.0),
            ("menon-guest0", "instructions_per_packet.total", 2.25, 1.0),
            ("menon-guest1", "instructions_per_packet.total", 2.52, 1.0),
            (
                "menon-guest0",
                "cache_misses_per_instruction.total",
                1.97,
                1.0,
            ),
            (
                "menon-guest1",
                "cache_misses_per_instruction.total",
                1.52,
                1.0,
            ),
            (
                "menon-guest0",
                "itlb_misses_per_instruction.total",
                0.31,
                1.0,
            ),
            (
                "menon-guest1",
                "itlb_misses_per_instruction.total",
                0.72,
                1.0,
            ),
            (
                "menon-guest0",
                "dtlb_misses_per_instruction.total",
                0.54,
                1.0,
            ),
            (
                "menon-guest1",
                "dtlb_misses_per_instruction.total",
                0.87,
                1.0,
            ),
            (
                "menon-send-guest0",
                "instructions_per_second.total",
                6.0,
                1.0,
            ),
        ] {
            let ratios = menon.ratios(config);
            let stands = |known: &PaperRatio<'_>| {
                (known.metric, known.ratio) == (metric, ratio) && known.at["wires"] == wires
            };
            assert!(ratios.iter().any(stands), "{config} {metric} {ratio}");
        }
        let peaks = menon.ratios("menon-domain0");
        let peak = peaks.iter().find(|ratio| ratio.metric == "peak_throughput");
        assert_eq!(peak.unwrap().ratio, 1.878 / 2.462);
        let tables = menon.item.iter().filter(|item| item.stated.is_some());
        assert_eq!(tables.count(), 8, "tables 1 to 8");
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
                "id = \"table 2\"\n",
                "id = \"table 2\"\nstated = { unit = \"%\", columns = [\"A\", \"B\"], \
                 rows = [[\"x\", [\"1\"]]] }\n",
                "table 2: `x`: a value for every column",
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

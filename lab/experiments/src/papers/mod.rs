//! Measurements published in the papers that this project implements, as data (`papers/*.toml`).
//!
//! The names of a paper's configurations start with the paper's name (`hatori-guest1`). Each value
//! cites the table, figure or sentence that states it. A statement that relates two configurations
//! without absolute values is stored as a ratio.

use crate::plan::WireNic;
use figures::Failure;
use serde::Deserialize;
use std::collections::BTreeMap;

/// Embedded data files, by paper.
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
    /// Name of the paper in this project.
    pub name: String,
    /// Authors and title.
    pub title: String,
    /// The machines of the paper's measurements, in one sentence.
    pub setup: String,
    /// Differences between the paper's set-up and this machine and its loads.
    pub differs: String,
    /// Meaning of our classes of functions. The page prints it below each item with classes.
    pub classes: Option<String>,
    /// Measured configurations.
    #[serde(default)]
    pub config: Vec<PaperConfig>,
    /// Tables and figures of the paper.
    pub item: Vec<Item>,
    /// Its main claims.
    pub claim: Vec<Claim>,
    /// Questions that it leaves open.
    #[serde(default)]
    pub question: Vec<Question>,
}

/// A question that a paper leaves open: whether a mechanism takes fewer cycles than others.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Question {
    /// The question.
    pub text: String,
    /// Our column with the mechanism.
    pub column: String,
    /// Our columns with which it is compared.
    pub to: Vec<String>,
}

impl Question {
    /// Metric of the ratio that answers a question.
    pub const ANSWER: &str = "cycles_per_packet.total";
    /// Metrics of the other ratios that are shown.
    pub const OTHER_METRICS: [&str; 3] = [
        "cycles_per_packet.driver",
        "cycles_per_packet.guest",
        "throughput",
    ];
}

/// A main claim of a paper, about one of its ratios.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// The claim in one sentence.
    pub text: String,
    /// Configuration in the ratio's numerator.
    pub config: String,
    /// Configuration in its denominator.
    pub to: String,
    /// Metric of the ratio.
    pub metric: String,
    /// Why our ratio agrees with the paper's, or why it does not, in one sentence.
    pub why: String,
}

/// A configuration that a paper measured.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PaperConfig {
    /// Name, starting with the paper's name.
    pub name: String,
    /// Description of the configuration.
    pub about: String,
    /// Baselines. A ratio uses the first one that has the metric.
    #[serde(default)]
    pub to: Vec<String>,
    /// Reason why ratios to this configuration cannot be compared with ours: a different path
    /// replaces it here.
    pub not_comparable: Option<String>,
    /// Values that the paper reports for it.
    #[serde(default)]
    pub values: Vec<Value>,
}

/// A value from a paper: an absolute figure of a configuration, or its ratio to another one.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Value {
    /// Metric name, as used in this project.
    pub metric: String,
    /// Absolute value, in this project's unit of the metric.
    pub value: Option<f64>,
    /// Ratio to configuration `to`, stated instead of `value`.
    pub ratio: Option<f64>,
    /// Denominator of `ratio`.
    pub to: Option<String>,
    /// The point of the configuration to which the value belongs, as keys and values.
    #[serde(default)]
    pub at: BTreeMap<String, f64>,
    /// Source in the paper. It begins with the name of the table or figure, if the value is in one.
    pub source: String,
    /// True if the value follows from the metric's definition, so that a ratio to it has no
    /// meaning.
    #[serde(default)]
    pub by_definition: bool,
    /// True if the text calls the ratio an effect although it lies within 5 % of 1.
    #[serde(default)]
    pub effect: bool,
    /// Reason why the ratio cannot be compared with ours.
    pub not_comparable: Option<String>,
    /// Kind of NIC on which `not_comparable` does not apply to our columns.
    pub comparable_on: Option<WireNic>,
}

/// A table or figure of a paper.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Item {
    /// Name in the paper: `table 2`, `figure 4.10`.
    pub id: String,
    /// Subject of the table or figure.
    pub about: String,
    /// Configurations that it contains.
    #[serde(default)]
    pub configs: Vec<String>,
    /// Metrics that it contains. A name that ends in `.*` matches every metric with that prefix.
    #[serde(default)]
    pub metrics: Vec<String>,
    /// The configuration key on the x-axis. Unset for bar charts.
    pub against: Option<String>,
    /// Restricts the item to points with these keys and values.
    #[serde(default)]
    pub at: BTreeMap<String, String>,
    /// True if its values grow with the length of the measurement window.
    #[serde(default)]
    pub by_window: bool,
    /// A distribution that it contains.
    pub distribution: Option<Distribution>,
    /// How our mechanism differs from the paper's.
    pub differs: Option<String>,
    /// Reason why the item, or the rest of it, cannot be measured here.
    pub why: Option<String>,
    /// The part of the item that is missing on a machine without performance counters.
    pub without_counters: Option<String>,
    /// Values of the paper without a counterpart here.
    pub stated: Option<Stated>,
}

/// A table copied from a paper.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stated {
    /// Unit of its values.
    pub unit: String,
    /// Column names, after the column of row names.
    pub columns: Vec<String>,
    /// Row names, each with one value per column; `-` marks an empty cell.
    pub rows: Vec<(String, Vec<String>)>,
}

/// Cumulative distribution: shares of the samples at or below each value.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Distribution {
    /// Metric prefix of a share; the upper bound follows after a dot.
    pub share: String,
    /// Metric of the only value that the paper gives for the distribution.
    pub mark: String,
}

/// Keys that enumerate the points of a curve. Only a table or figure about that curve contains such
/// configurations. A paper's value for a whole configuration does not apply to these points.
pub const SWEPT: [&str; 2] = ["buffer", "offered"];

/// A ratio of two configurations that a paper reports, with its source.
#[derive(Clone, Debug, PartialEq)]
pub struct PaperRatio<'a> {
    /// Name of the denominator.
    pub to: &'a str,
    /// Metric name.
    pub metric: &'a str,
    /// Numerator ÷ denominator.
    pub ratio: f64,
    /// The point of both configurations to which the ratio belongs, as keys and values.
    pub at: BTreeMap<&'a str, f64>,
    /// Source in the paper.
    pub source: &'a str,
    /// True if the paper's text calls it an effect, even if it is small.
    pub effect: bool,
    /// Reason why it cannot be compared with ours.
    pub not_comparable: Option<&'a str>,
    /// Kind of NIC on which `not_comparable` does not apply to our columns.
    pub comparable_on: Option<WireNic>,
}

impl Value {
    /// Returns whether the value belongs to a configuration with these keys.
    #[must_use]
    pub fn is_of(&self, keys: &BTreeMap<&str, &str>) -> bool {
        let mut at = self.at.iter();
        at.all(|(key, value)| has(keys, key, *value))
    }
}

impl PaperRatio<'_> {
    /// Returns whether the ratio belongs to a configuration with these keys.
    #[must_use]
    pub fn is_of(&self, keys: &BTreeMap<&str, &str>) -> bool {
        let mut at = self.at.iter();
        at.all(|(key, value)| has(keys, key, *value))
    }
}

/// Returns whether a key of a configuration has this value. The name of a column of one NIC has no
/// key `wires`.
fn has(keys: &BTreeMap<&str, &str>, key: &str, value: f64) -> bool {
    let own = match keys.get(key) {
        Some(own) => own.parse().ok(),
        None => (key == "wires").then_some(1.0),
    };
    own == Some(value)
}

/// Returns the point that two values share, or `None` if they belong to different points.
fn common<'a>(own: &'a Value, other: &'a Value) -> Option<BTreeMap<&'a str, f64>> {
    let apart = |(key, value)| other.at.get(key).is_some_and(|other| other != value);
    let both = || own.at.iter().chain(&other.at);
    (!own.at.iter().any(apart)).then(|| both().map(|(key, at)| (key.as_str(), *at)).collect())
}

impl Item {
    /// Returns whether the item has cycles by class of functions.
    #[must_use]
    pub fn has_classes(&self) -> bool {
        self.metrics.iter().any(|name| name.contains(".class."))
    }

    /// Returns whether the item contains a configuration with these keys.
    #[must_use]
    pub fn has(&self, keys: &BTreeMap<&str, &str>) -> bool {
        let swept = SWEPT.iter().filter_map(|key| Some((*key, *keys.get(key)?)));
        let fits = |(key, value): (&str, &str)| match self.at.get(key) {
            Some(only) => only == value,
            None => self.against.as_deref() == Some(key),
        };
        let mut swept = swept.peekable();
        // An item restricted to points of a curve contains only configurations with a swept key.
        (self.at.is_empty() || swept.peek().is_some()) && swept.all(fits)
    }

    /// Returns whether the item can show this value. It cannot show a point of another curve.
    #[must_use]
    pub fn shows(&self, value: &Value) -> bool {
        let axis = self.against.as_ref();
        value.at.is_empty() || axis.is_none_or(|key| value.at.contains_key(key))
    }

    /// Returns whether the paper states this value in this item.
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
    /// Returns the paper with this name.
    ///
    /// # Errors
    /// Returns [`Failure::Usage`] if no paper has this name.
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

    /// Checks that the data are consistent. Returns a description of the first error.
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
                if value.comparable_on.is_some() && value.not_comparable.is_none() {
                    let metric = &value.metric;
                    return Err(format!(
                        "`{name}`, {metric}: `comparable_on` needs `not_comparable`"
                    ));
                }
            }
        }
        for claim in &self.claim {
            if self.claimed(claim).is_none() {
                return Err(format!(
                    "claim `{}`: the paper has no such ratio",
                    claim.text
                ));
            }
            if !claim.why.ends_with('.') {
                return Err(format!("claim `{}`: `why` is no sentence", claim.text));
            }
        }
        self.item.iter().try_for_each(|item| item.check(self))
    }

    /// Returns the ratio that a claim is about.
    #[must_use]
    pub fn claimed(&self, claim: &Claim) -> Option<PaperRatio<'_>> {
        let mut ratios = self.ratios(&claim.config).into_iter();
        ratios.find(|ratio| ratio.to == claim.to && ratio.metric == claim.metric)
    }

    /// Returns the configuration with this name.
    #[must_use]
    pub fn config(&self, name: &str) -> Option<&PaperConfig> {
        self.config.iter().find(|config| config.name == name)
    }

    /// Returns the paper's values of a metric of a configuration, one for each point that the paper
    /// reports.
    pub fn values<'a>(
        &'a self,
        config: &str,
        metric: &'a str,
    ) -> impl Iterator<Item = (f64, &'a Value)> {
        let values = self.config(config).into_iter().flat_map(|c| &c.values);
        let of_metric = values.filter(move |value| value.metric == metric);
        of_metric.filter_map(|value| Some((value.value?, value)))
    }

    /// Returns the ratios that the paper reports between a configuration and others. Both values of
    /// a ratio belong to the same point. If the paper states a ratio twice, the first statement is
    /// used.
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
                comparable_on: value.comparable_on,
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
mod tests;

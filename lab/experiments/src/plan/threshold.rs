//! Ratios between columns, and values that figures must reach.

use figures::stats::ThresholdSide;
use serde::Deserialize;
use std::collections::BTreeMap;

/// A ratio between columns.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ratio {
    /// Numerator: a column name, or a prefix followed by `*`.
    pub own: String,
    /// Denominator: a column at the same keys, except keys that it does not have.
    pub to: String,
    /// Metrics to divide in addition to the default ones.
    #[serde(default)]
    pub metrics: Vec<String>,
}

/// A value that a figure must reach.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Threshold {
    /// Column name, or a prefix followed by `*`.
    pub column: String,
    /// Metric name.
    pub metric: String,
    /// Keys that a configuration must have for the threshold to apply.
    #[serde(default)]
    pub keys: BTreeMap<String, String>,
    /// Lower bound.
    pub at_least: Option<f64>,
    /// Upper bound.
    pub at_most: Option<f64>,
}

impl Threshold {
    /// Returns the bound and the side of it that passes.
    #[must_use]
    pub fn bound(&self) -> Option<(f64, ThresholdSide)> {
        match (self.at_least, self.at_most) {
            (Some(least), None) => Some((least, ThresholdSide::Above)),
            (None, Some(most)) => Some((most, ThresholdSide::Below)),
            _ => None,
        }
    }

    /// Returns whether the threshold applies to a figure.
    #[must_use]
    pub fn applies(&self, column: &str, keys: &BTreeMap<&str, &str>, metric: &str) -> bool {
        names_column(&self.column, column)
            && self.metric == metric
            && self
                .keys
                .iter()
                .all(|(key, value)| keys.get(key.as_str()) == Some(&value.as_str()))
    }
}

/// Returns whether `pattern` (a name, or a prefix followed by `*`) matches `column`.
#[must_use]
pub fn names_column(pattern: &str, column: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => column.starts_with(start),
        None => pattern == column,
    }
}

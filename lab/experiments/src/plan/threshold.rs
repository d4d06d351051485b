//! Which columns are compared, and what their figures have to reach.

use figures::stats::Side;
use serde::Deserialize;
use std::collections::BTreeMap;

/// A division of columns.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ratio {
    /// What is divided: a column, or with a `*` at its end all that begin so.
    pub own: String,
    /// By what, at the same keys (less those that it does not have).
    pub to: String,
}

/// The value that a figure has to reach.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Threshold {
    /// The column, or with a `*` at its end all that begin so.
    pub column: String,
    /// The metric.
    pub metric: String,
    /// Keys that a configuration must have for the threshold to be its own.
    #[serde(default)]
    pub keys: BTreeMap<String, String>,
    /// The figure must not be below.
    pub at_least: Option<f64>,
    /// The figure must not be above.
    pub at_most: Option<f64>,
}

impl Threshold {
    /// The value, and the side of it to be on.
    #[must_use]
    pub fn line(&self) -> Option<(f64, Side)> {
        match (self.at_least, self.at_most) {
            (Some(least), None) => Some((least, Side::Above)),
            (None, Some(most)) => Some((most, Side::Below)),
            _ => None,
        }
    }

    /// Whether it applies to a figure.
    #[must_use]
    pub fn applies(&self, column: &str, keys: &BTreeMap<String, String>, metric: &str) -> bool {
        names_column(&self.column, column)
            && self.metric == metric
            && self
                .keys
                .iter()
                .all(|(key, value)| keys.get(key) == Some(value))
    }
}

/// Whether `pattern`, a name or the beginning of one and `*`, names `column`.
#[must_use]
pub fn names_column(pattern: &str, column: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => column.starts_with(start),
        None => pattern == column,
    }
}

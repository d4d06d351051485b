//! Configuration names of figures.

use figures::report;
use std::collections::BTreeMap;

/// A configuration: a column name and its keys.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ColumnConfig {
    /// Column name.
    pub column: String,
    /// Keys and values.
    pub keys: BTreeMap<String, String>,
}

impl ColumnConfig {
    /// Creates a configuration from a column name and keys.
    #[must_use]
    pub fn new(column: &str, keys: &[(&str, &str)]) -> Self {
        Self {
            column: column.to_owned(),
            keys: keys
                .iter()
                .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
                .collect(),
        }
    }

    /// Adds a key.
    #[must_use]
    pub fn with(mut self, key: &str, value: &str) -> Self {
        self.keys.insert(key.to_owned(), value.to_owned());
        self
    }

    /// Returns the keys in a configuration name.
    #[must_use]
    pub fn keys_of(name: &str) -> BTreeMap<&str, &str> {
        let keys = name.split_once('@').map_or("", |(_, keys)| keys);
        keys.split(',')
            .filter_map(|key| key.split_once('='))
            .collect()
    }

    /// Returns the keys as borrowed strings, like `keys_of`.
    #[must_use]
    pub fn keys(&self) -> BTreeMap<&str, &str> {
        let keys = self.keys.iter();
        keys.map(|(key, value)| (key.as_str(), value.as_str()))
            .collect()
    }

    /// Returns the printed name, `column@key=value,…`.
    #[must_use]
    pub fn name(&self) -> String {
        report::config(&self.column, &self.keys)
    }
}

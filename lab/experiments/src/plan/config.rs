//! The name of a figure's configuration.

use figures::report;
use std::collections::BTreeMap;

/// A configuration: a column and its keys.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Config {
    /// The column.
    pub column: String,
    /// The keys.
    pub keys: BTreeMap<String, String>,
}

impl Config {
    /// A column with keys.
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

    /// The same with one key more.
    #[must_use]
    pub fn with(mut self, key: &str, value: &str) -> Self {
        self.keys.insert(key.to_owned(), value.to_owned());
        self
    }

    /// The keys of a name.
    #[must_use]
    pub fn keys_of(name: &str) -> BTreeMap<&str, &str> {
        let keys = name.split_once('@').map_or("", |(_, keys)| keys);
        keys.split(',')
            .filter_map(|key| key.split_once('='))
            .collect()
    }

    /// Its keys, as those of a name.
    #[must_use]
    pub fn keys(&self) -> BTreeMap<&str, &str> {
        let keys = self.keys.iter();
        keys.map(|(key, value)| (key.as_str(), value.as_str()))
            .collect()
    }

    /// As it is printed.
    #[must_use]
    pub fn name(&self) -> String {
        report::config(&self.column, &self.keys)
    }
}

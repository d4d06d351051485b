//! A configuration in several files: the main file and fragments that extend it.

use abi::machine::ConfigValue;
use serde::Deserialize;
use std::collections::BTreeMap;
use toml::Spanned;
use toml::de::{DeTable, DeValue, ValueDeserializer};

/// A file: the name for messages, and the text.
#[derive(Clone, Debug)]
pub struct ConfigFile {
    /// Its name.
    pub name: String,
    /// Its text.
    pub text: String,
}

/// Returns the merged settings of the files as written, without defaults.
///
/// # Errors
///
/// Returns an error if a file is not TOML, or has a number that is too large.
pub(crate) fn settings(files: &[ConfigFile]) -> Result<BTreeMap<String, ConfigValue>, String> {
    let mut root = DeTable::new();
    for file in files {
        let table = DeTable::parse(&file.text).map_err(|error| error.to_string())?;
        merge(&mut root, table.into_inner());
    }
    let root = Spanned::new(0..0, DeValue::Table(root));
    let read = BTreeMap::deserialize(ValueDeserializer::from(root));
    read.map_err(|error| error.to_string())
}

/// Formats a value as in a file.
pub(crate) fn written(value: &ConfigValue) -> String {
    // A setting has only values that TOML has.
    toml::Value::try_from(value).map_or_else(|_| String::new(), |value| value.to_string())
}

/// Merges a later file's table into an earlier one: sections (`[driver]`) key by key, where the
/// later value replaces the earlier; lists of sections (`[[guest]]`) by appending.
pub(crate) fn merge<'t>(into: &mut DeTable<'t>, later: DeTable<'t>) {
    for (key, value) in later {
        let name: &str = key.get_ref();
        let rest = match into.get_mut(name) {
            Some(before) => join(before, value),
            None => Some(value),
        };
        if let Some(value) = rest {
            // The key's span moves to the later file with its value.
            into.remove(name);
            into.insert(key, value);
        }
    }
}

/// Appends a list to an earlier one, or merges two sections. Returns the later value if it replaces
/// the earlier one instead.
fn join<'t>(
    before: &mut Spanned<DeValue<'t>>,
    later: Spanned<DeValue<'t>>,
) -> Option<Spanned<DeValue<'t>>> {
    let span = later.span();
    match (before.get_mut(), later.into_inner()) {
        (DeValue::Table(before), DeValue::Table(later)) => merge(before, later),
        (DeValue::Array(before), DeValue::Array(later)) if are_tables(before, &later) => {
            later.into_iter().for_each(|table| before.push(table));
        }
        (_, later) => return Some(Spanned::new(span, later)),
    }
    None
}

fn are_tables(one: &[Spanned<DeValue<'_>>], other: &[Spanned<DeValue<'_>>]) -> bool {
    let mut all = one.iter().chain(other);
    !one.is_empty() && !other.is_empty() && all.all(|value| value.get_ref().is_table())
}

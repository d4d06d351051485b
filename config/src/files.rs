//! A configuration in several files: the first one, and fragments that add to it.

use abi::machine::Setting;
use serde::Deserialize;
use std::collections::BTreeMap;
use toml::Spanned;
use toml::de::{DeTable, DeValue, ValueDeserializer};

/// A file, as it is named in messages, and its text.
#[derive(Clone, Debug)]
pub struct File {
    /// Its name.
    pub name: String,
    /// Its text.
    pub text: String,
}

/// What files say together, key by key, as it is written.
///
/// # Errors
/// They are no TOML, or have a number that is too large.
pub(crate) fn settings(files: &[File]) -> Result<BTreeMap<String, Setting>, String> {
    let mut root = DeTable::new();
    for file in files {
        let table = DeTable::parse(&file.text).map_err(|error| error.to_string())?;
        merge(&mut root, table.into_inner());
    }
    let root = Spanned::new(0..0, DeValue::Table(root));
    let read = BTreeMap::deserialize(ValueDeserializer::from(root));
    read.map_err(|error| error.to_string())
}

/// Adds a later file's table to what stands already: sections (`[driver]`) key by key, the later
/// value instead of the earlier; lists of sections (`[[guest]]`) one behind the other.
pub(crate) fn merge<'t>(into: &mut DeTable<'t>, later: DeTable<'t>) {
    for (key, value) in later {
        let name: &str = key.get_ref();
        let rest = match into.get_mut(name) {
            Some(before) => join(before, value),
            None => Some(value),
        };
        if let Some(value) = rest {
            // The key has a place, too: that of its value.
            into.remove(name);
            into.insert(key, value);
        }
    }
}

/// Adds a value to an earlier one; what cannot be added, but stands in its place, is returned.
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

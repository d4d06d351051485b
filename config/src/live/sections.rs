//! Sections of files as written, and the differences between two of them.

use crate::files::written;
use abi::machine::ConfigValue;
use std::collections::{BTreeMap, BTreeSet};

/// Sections by name, as written.
pub(super) type Sections = BTreeMap<String, ConfigValue>;

/// Returns the keys of two sections.
pub(super) fn keys_of<'a>(one: &'a ConfigValue, other: &'a ConfigValue) -> BTreeSet<&'a String> {
    let keys = |section: &'a ConfigValue| match section {
        ConfigValue::Section(keys) => Some(keys.keys()),
        _ => None,
    };
    let all = keys(one).into_iter().chain(keys(other));
    all.flatten().collect()
}

pub(super) fn value<'a>(section: &'a ConfigValue, key: &str) -> Option<&'a ConfigValue> {
    match section {
        ConfigValue::Section(keys) => keys.get(key),
        _ => None,
    }
}

/// Returns the name in the description of a guest or a NIC, if it has one.
#[must_use]
pub fn name_of(section: &ConfigValue) -> Option<&str> {
    match value(section, "name")? {
        ConfigValue::Text(name) => Some(name),
        _ => None,
    }
}

pub(super) fn empty_section() -> ConfigValue {
    ConfigValue::Section(BTreeMap::new())
}

/// Returns the list of sections with this name.
pub(super) fn section_list<'a>(all: &'a Sections, name: &str) -> &'a [ConfigValue] {
    match all.get(name) {
        Some(ConfigValue::List(list)) => list,
        _ => &[],
    }
}

/// Returns the section of the list whose `name` is this.
pub(super) fn find(list: &[ConfigValue], name: &str) -> ConfigValue {
    let found = list.iter().find(|section| name_of(section) == Some(name));
    found.cloned().unwrap_or_else(empty_section)
}

/// Describes the differences between two sections, key by key; `path` names the section.
pub(super) fn differences(
    path: &str,
    before: &ConfigValue,
    now: &ConfigValue,
    found: &mut Vec<String>,
) {
    for key in keys_of(before, now) {
        match (value(before, key), value(now, key)) {
            (before, now) if before == now => {}
            (Some(ConfigValue::List(before)), Some(ConfigValue::List(now)))
                if has_sections(before) && has_sections(now) =>
            {
                for n in 0..before.len().max(now.len()) {
                    let path = format!("{path}{key} {}", n + 1);
                    match (before.get(n), now.get(n)) {
                        (Some(before), Some(now)) => {
                            differences(&format!("{path}: "), before, now, found);
                        }
                        (None, _) => found.push(format!("{path} is new")),
                        (_, None) => found.push(format!("{path} is removed")),
                    }
                }
            }
            (Some(before), Some(now)) => {
                let (before, now) = (shown(before), shown(now));
                found.push(format!("{path}`{key}`: {before} → {now}"));
            }
            (None, now) => {
                let now = now.map(shown).unwrap_or_default();
                found.push(format!("{path}`{key}`: unset → {now}"));
            }
            (Some(before), None) => {
                let before = shown(before);
                found.push(format!("{path}`{key}`: {before} → unset"));
            }
        }
    }
}

fn has_sections(list: &[ConfigValue]) -> bool {
    list.iter()
        .any(|value| matches!(value, ConfigValue::Section(_)))
}

/// Formats a value as in a file, in one line.
fn shown(value: &ConfigValue) -> String {
    written(value).replace(char::is_control, " ")
}

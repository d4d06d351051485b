//! Sections of files as written, and the differences between two of them.

use super::format::write;
use abi::machine::Setting;
use std::collections::{BTreeMap, BTreeSet};

/// Sections by name, as written.
pub(super) type Sections = BTreeMap<String, Setting>;

/// Returns the keys of two sections.
pub(super) fn keys_of<'a>(one: &'a Setting, other: &'a Setting) -> BTreeSet<&'a String> {
    let keys = |section: &'a Setting| match section {
        Setting::Section(keys) => Some(keys.keys()),
        _ => None,
    };
    let all = keys(one).into_iter().chain(keys(other));
    all.flatten().collect()
}

pub(super) fn value<'a>(section: &'a Setting, key: &str) -> Option<&'a Setting> {
    match section {
        Setting::Section(keys) => keys.get(key),
        _ => None,
    }
}

/// Returns the name in the description of a guest or a NIC, if it has one.
#[must_use]
pub fn name_of(section: &Setting) -> Option<&str> {
    match value(section, "name")? {
        Setting::Text(name) => Some(name),
        _ => None,
    }
}

pub(super) fn empty() -> Setting {
    Setting::Section(BTreeMap::new())
}

/// Returns the list of sections with this name.
pub(super) fn list<'a>(all: &'a Sections, name: &str) -> &'a [Setting] {
    match all.get(name) {
        Some(Setting::List(list)) => list,
        _ => &[],
    }
}

/// Returns the section of the list whose `name` is this.
pub(super) fn find(list: &[Setting], name: &str) -> Setting {
    let found = list.iter().find(|section| name_of(section) == Some(name));
    found.cloned().unwrap_or_else(empty)
}

/// Describes the differences between two sections, key by key; `path` names the section.
pub(super) fn differences(path: &str, before: &Setting, now: &Setting, found: &mut Vec<String>) {
    for key in keys_of(before, now) {
        match (value(before, key), value(now, key)) {
            (before, now) if before == now => {}
            (Some(Setting::List(before)), Some(Setting::List(now)))
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

fn has_sections(list: &[Setting]) -> bool {
    list.iter()
        .any(|value| matches!(value, Setting::Section(_)))
}

/// Formats a value as in a file.
fn shown(value: &Setting) -> String {
    let mut text = String::new();
    write(value, &mut text);
    text
}

//! Compares a running machine with edited files. Returns guests to remove and add, and changes that
//! need a new machine.
//!
//! The comparison is by meaning: writing a default explicitly changes nothing. Differences are
//! described by the old and the new text.

use super::sections::{Sections, differences, empty_section, find, keys_of, section_list, value};
use super::{LiveConfig, LiveSpec, NicsStep, nics, with_macs};
use crate::files::settings;
use crate::guest::GuestSection;
use crate::model::Config;
use crate::parse::parse_with_source;
use crate::problem::{ConfigPart, Finding, SourceInfo};
use crate::{ConfigFile, MacAddress};
use abi::machine::ConfigValue;
use std::collections::BTreeSet;

/// The difference between a machine and files.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Difference {
    /// Guests of the previous files that the new files do not name.
    pub to_detach: Vec<String>,
    /// Guests to add, in the order of the files.
    pub to_attach: Vec<FileGuest>,
    /// Attached guests that the files do not name. They keep running.
    pub kept: Vec<String>,
    /// The steps that change the NICs.
    pub nics: Vec<NicsStep>,
    /// All guests that the files name.
    pub named: BTreeSet<String>,
}

/// A guest to add.
#[derive(Clone, Debug, PartialEq)]
pub struct FileGuest {
    /// Its name.
    pub name: String,
    /// Its description, with the MACs that it already has.
    pub guest: ConfigValue,
    /// Descriptions of the differences if the guest exists and has changed. It must then be removed
    /// before it is added, unless `in_place` is set.
    pub changes: Option<Vec<String>>,
    /// Whether the guest keeps running: only its firewall rules and limits have changed.
    pub in_place: bool,
}

/// Returns the difference between files and a running machine.
///
/// # Errors
///
/// Returns all mistakes of the files, and all changes that need a new machine, one per line.
pub fn difference(
    live: &LiveSpec,
    running: &LiveConfig,
    files: &[ConfigFile],
) -> Result<Difference, String> {
    let (mut config, source) = parse_with_source(files).map_err(|wrong| wrong.to_string())?;
    let (before, now) = (settings(&live.files())?, settings(files)?);
    let nics = nics::steps(live, &running.config, &before, &mut config, &now);
    let mut fixed = fixed(&running.config, &before, &config, (&now, &source));
    if nics.is_none() {
        fixed.extend(fixed_nics(
            &running.config,
            &before,
            &config,
            (&now, &source),
        ));
    }
    source.check(fixed).map_err(|wrong| wrong.to_string())?;
    let named: BTreeSet<String> = config.guests.iter().map(|of| of.name.clone()).collect();
    let mut to_attach = Vec::new();
    for (mut guest, described) in config.guests.into_iter().zip(section_list(&now, "guest")) {
        let mut in_place = false;
        let changes = match running.config.guest(&guest.name) {
            None => None,
            Some(existing) if is_same(&mut guest, existing) => continue,
            Some(existing) => {
                in_place = is_in_place(&guest, existing);
                let before = with_macs(&written(live, &before, &guest.name), &macs(existing));
                let mut changes = Vec::new();
                let now = with_macs(described, &macs(&guest));
                differences("", &before, &now, &mut changes);
                Some(changes)
            }
        };
        to_attach.push(FileGuest {
            guest: with_macs(described, &macs(&guest)),
            name: guest.name,
            changes,
            in_place,
        });
    }
    let unnamed = running.config.guests.iter().map(|guest| &guest.name);
    let unnamed = unnamed.filter(|name| !named.contains(*name)).cloned();
    let by_hand = |name: &String| live.is_attached_by_hand(name);
    let (kept, to_detach) = unnamed.partition(by_hand);
    Ok(Difference {
        to_detach,
        to_attach,
        kept,
        nics: nics.unwrap_or_default(),
        named,
    })
}

/// Returns the current description of a guest, with its MACs, so that it can be attached again.
/// Returns `None` if the machine has no guest of this name.
#[must_use]
pub fn current_guest(live: &LiveSpec, running: &LiveConfig, name: &str) -> Option<ConfigValue> {
    let existing = running.config.guest(name)?;
    let files = settings(&live.files()).ok()?;
    Some(with_macs(&written(live, &files, name), &macs(existing)))
}

/// Returns the current descriptions of all NICs, with their MACs.
#[must_use]
pub fn current_nics(live: &LiveSpec, running: &LiveConfig) -> Option<Vec<ConfigValue>> {
    let files = settings(&live.files()).ok()?;
    let all = running.config.nics.iter();
    Some(
        all.map(|nic| nics::current_nic(live, &files, nic))
            .collect(),
    )
}

/// Returns the latest description of a guest, as written.
fn written(live: &LiveSpec, files: &Sections, name: &str) -> ConfigValue {
    let since = live.section(name).cloned();
    since.unwrap_or_else(|| find(section_list(files, "guest"), name))
}

/// Returns whether a guest equals the existing one. An interface without a configured MAC keeps its
/// current one.
fn is_same(guest: &mut GuestSection, existing: &GuestSection) -> bool {
    for (vif, existing) in guest.vifs.iter_mut().zip(&existing.vifs) {
        vif.mac = vif.mac.or(existing.mac);
    }
    guest == existing
}

/// Returns whether an existing guest can change to `guest` while it runs.
pub(super) fn is_in_place(guest: &GuestSection, existing: &GuestSection) -> bool {
    let mut like = existing.clone();
    for (vif, becomes) in like.vifs.iter_mut().zip(&guest.vifs) {
        vif.apply_changes(becomes);
    }
    like == *guest
}

/// Returns the MACs of a guest's first interfaces, up to the first interface without one.
fn macs(guest: &GuestSection) -> Vec<MacAddress> {
    guest.vifs.iter().map_while(|vif| vif.mac).collect()
}

/// Returns the changes that need a new machine.
fn fixed(
    running: &Config,
    before: &Sections,
    config: &Config,
    (now, source): (&Sections, &SourceInfo),
) -> Vec<Finding> {
    let mut buffers = config.buffers;
    if !matches!(now.get("buffers"), Some(ConfigValue::Section(keys)) if keys.contains_key("size"))
    {
        // Computed from the guests at the machine's start.
        buffers.size = running.buffers.size;
    }
    let machine = |of: &Config| {
        let groups = (of.look_group.clone(), of.change_group.clone());
        (groups, of.metrics_port)
    };
    let is_same = [
        (
            "machine",
            ConfigPart::Machine,
            machine(running) == machine(config),
        ),
        (
            "driver",
            ConfigPart::Driver,
            running.driver == config.driver,
        ),
        ("buffers", ConfigPart::Buffers, running.buffers == buffers),
        ("ring", ConfigPart::Ring, running.ring == config.ring),
        ("lro", ConfigPart::Lro, running.lro == config.lro),
    ];
    let mut found = Vec::new();
    for (name, part, _) in is_same.into_iter().filter(|(.., is_same)| !is_same) {
        let (before, now) = (section(before, name), section(now, name));
        compare((part, source), &before, &now, &mut found);
    }
    found
}

/// Returns the changes of NICs that need a new machine.
fn fixed_nics(
    running: &Config,
    before: &Sections,
    config: &Config,
    (now, source): (&Sections, &SourceInfo),
) -> Vec<Finding> {
    let mut found = Vec::new();
    for (n, nic) in config.nics.iter().enumerate() {
        match running.nic(&nic.name) {
            None => found.push(finding(
                ConfigPart::Nic(n),
                "",
                format!("NIC {} is new", nic.name),
            )),
            Some(existing) if existing == nic => {}
            Some(_) => {
                let [before, now] =
                    [before, now].map(|all| find(section_list(all, "nic"), &nic.name));
                compare((ConfigPart::Nic(n), source), &before, &now, &mut found);
            }
        }
    }
    for nic in &running.nics {
        if config.nic(&nic.name).is_none() {
            let what = format!("NIC {} is removed", nic.name);
            found.push(finding(ConfigPart::Machine, "", what));
        }
    }
    found
}

/// Describes the differences in a section whose meaning has changed.
fn compare(
    (part, source): (ConfigPart, &SourceInfo),
    before: &ConfigValue,
    now: &ConfigValue,
    found: &mut Vec<Finding>,
) {
    let only = |section: &ConfigValue, key: &String| {
        let kept = value(section, key).map(|value| (key.clone(), value.clone()));
        ConfigValue::Section(kept.into_iter().collect())
    };
    let known = found.len();
    for key in keys_of(before, now) {
        let mut changes = Vec::new();
        differences("", &only(before, key), &only(now, key), &mut changes);
        let key = source.key(part, key);
        found.extend(changes.into_iter().map(|what| finding(part, key, what)));
    }
    if found.len() == known {
        found.push(finding(part, "", "its contents have changed".to_owned()));
    }
}

fn finding(part: ConfigPart, key: &'static str, what: String) -> Finding {
    Finding {
        part,
        key,
        what,
        remedy: "this cannot change while the machine runs: restart the machine, or write it as \
                 it was"
            .to_owned(),
    }
}

/// Returns a section without the keys that are not part of the machine.
fn section(all: &Sections, name: &str) -> ConfigValue {
    let mut section = all.get(name).cloned().unwrap_or_else(empty_section);
    if let (ConfigValue::Section(keys), "machine") = (&mut section, name) {
        // The caller selects the machine.
        keys.remove("name");
    }
    section
}

#[cfg(test)]
mod tests;

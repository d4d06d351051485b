//! What it takes to make a machine that runs what files say: which guests go, which come, and what
//! cannot change while it runs.
//!
//! Meanings are compared, so that a default that is written out changes nothing. Words tell people
//! of a difference: what was written, and what is written now.

use super::sections::{Sections, differences, empty, find, keys_of, list, value};
use super::{LiveConfig, NicsStep, files_of, nics, with_macs};
use crate::files::settings;
use crate::model::{Config, Guest};
use crate::parse::parse_located;
use crate::problem::{Finding, Located, Place};
use crate::{File, Mac};
use abi::machine::{Live, Setting};
use std::collections::BTreeSet;

/// What it takes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Difference {
    /// Guests of the files before that these do not name.
    pub gone: Vec<String>,
    /// Guests that come, in the order of the files.
    pub coming: Vec<Coming>,
    /// Guests that were attached one by one and that the files do not name: they stay.
    pub stays: Vec<String>,
    /// What becomes of NICs, step by step.
    pub nics: Vec<NicsStep>,
    /// All guests that the files name.
    pub named: BTreeSet<String>,
}

/// A guest that comes.
#[derive(Clone, Debug, PartialEq)]
pub struct Coming {
    /// Its name.
    pub name: String,
    /// Its description, with the MACs that it has already.
    pub guest: Setting,
    /// If it is there and is described otherwise: what of it, in words. It has to go before.
    pub changes: Option<Vec<String>>,
    /// Or it stays: only what the driver domain has of it is described otherwise, firewall rules
    /// and limits.
    pub in_place: bool,
}

/// What is different in files from a machine as it has become.
///
/// # Errors
/// Everything that is wrong with the files, or cannot change while the machine runs, a line each.
pub fn difference(live: &Live, running: &LiveConfig, files: &[File]) -> Result<Difference, String> {
    let (mut config, located) = parse_located(files).map_err(|wrong| wrong.to_string())?;
    let (before, now) = (settings(&files_of(live))?, settings(files)?);
    let nics = nics::steps(live, &running.config, &before, &mut config, &now);
    let mut fixed = fixed(&running.config, &before, &config, (&now, &located));
    if nics.is_none() {
        fixed.extend(fixed_nics(
            &running.config,
            &before,
            &config,
            (&now, &located),
        ));
    }
    located.check(fixed).map_err(|wrong| wrong.to_string())?;
    let named: BTreeSet<String> = config.guests.iter().map(|of| of.name.clone()).collect();
    let mut coming = Vec::new();
    for (mut guest, described) in config.guests.into_iter().zip(list(&now, "guest")) {
        let mut there = running.config.guests.iter();
        let there = there.find(|there| there.name == guest.name);
        let written = |name: &str| {
            let since = live.attached.get(name).or(live.changed.get(name));
            since
                .cloned()
                .unwrap_or_else(|| find(&before, "guest", name))
        };
        let mut in_place = false;
        let changes = match there {
            None => None,
            Some(there) if is_same(&mut guest, there) => continue,
            Some(there) => {
                in_place = is_in_place(&guest, there);
                let before = with_macs(&written(&guest.name), &macs(there));
                let mut changes = Vec::new();
                let now = with_macs(described, &macs(&guest));
                differences("", &before, &now, &mut changes);
                Some(changes)
            }
        };
        coming.push(Coming {
            guest: with_macs(described, &macs(&guest)),
            name: guest.name,
            changes,
            in_place,
        });
    }
    let unnamed = running.config.guests.iter().map(|guest| &guest.name);
    let unnamed = unnamed.filter(|name| !named.contains(*name)).cloned();
    let by_hand = |name: &String| running.is_attached(name) && !live.of_files.contains(name);
    let (stays, gone) = unnamed.partition(by_hand);
    Ok(Difference {
        gone,
        coming,
        stays,
        nics: nics.unwrap_or_default(),
        named,
    })
}

/// Whether a guest is described as one that is there. An interface whose MAC is not written keeps
/// the one that it has.
fn is_same(guest: &mut Guest, there: &Guest) -> bool {
    for (vif, there) in guest.vifs.iter_mut().zip(&there.vifs) {
        vif.mac = vif.mac.or(there.mac);
    }
    guest == there
}

/// Whether a guest need not go to become this one.
fn is_in_place(guest: &Guest, there: &Guest) -> bool {
    let mut like = there.clone();
    for (vif, becomes) in like.vifs.iter_mut().zip(&guest.vifs) {
        vif.change_to(becomes);
    }
    like == *guest
}

/// The MACs of a guest's first interfaces, up to one that has none yet.
fn macs(guest: &Guest) -> Vec<Mac> {
    guest.vifs.iter().map_while(|vif| vif.mac).collect()
}

/// What of the files cannot change while the machine runs, and has.
fn fixed(
    running: &Config,
    before: &Sections,
    config: &Config,
    (now, located): (&Sections, &Located),
) -> Vec<Finding> {
    let mut buffers = config.buffers;
    if !matches!(now.get("buffers"), Some(Setting::Section(keys)) if keys.contains_key("size")) {
        // It goes by all guests of a machine that is started.
        buffers.size = running.buffers.size;
    }
    let machine = |of: &Config| {
        let groups = (of.look_group.clone(), of.change_group.clone());
        (groups, of.metrics_port)
    };
    let is_same = [
        (
            "machine",
            Place::Machine,
            machine(running) == machine(config),
        ),
        ("driver", Place::Driver, running.driver == config.driver),
        ("buffers", Place::Buffers, running.buffers == buffers),
        ("ring", Place::Ring, running.ring == config.ring),
        ("lro", Place::Lro, running.lro == config.lro),
    ];
    let mut found = Vec::new();
    for (name, place, _) in is_same.into_iter().filter(|(.., is_same)| !is_same) {
        let (before, now) = (section(before, name), section(now, name));
        compare((place, located), &before, &now, &mut found);
    }
    found
}

/// The same of NICs that cannot change while a machine runs.
fn fixed_nics(
    running: &Config,
    before: &Sections,
    config: &Config,
    (now, located): (&Sections, &Located),
) -> Vec<Finding> {
    let mut found = Vec::new();
    for (n, nic) in config.nics.iter().enumerate() {
        match running.nics.iter().find(|there| there.name == nic.name) {
            None => found.push(finding(
                Place::Nic(n),
                "",
                format!("NIC {} is new", nic.name),
            )),
            Some(there) if there == nic => {}
            Some(_) => {
                let [before, now] = [before, now].map(|all| find(all, "nic", &nic.name));
                compare((Place::Nic(n), located), &before, &now, &mut found);
            }
        }
    }
    for nic in &running.nics {
        if config.nics.iter().all(|of| of.name != nic.name) {
            let what = format!("NIC {} is not there any more", nic.name);
            found.push(finding(Place::Machine, "", what));
        }
    }
    found
}

/// Tells what is written otherwise in a section whose meaning has changed.
fn compare(
    (place, located): (Place, &Located),
    before: &Setting,
    now: &Setting,
    found: &mut Vec<Finding>,
) {
    let only = |section: &Setting, key: &String| {
        let kept = value(section, key).map(|value| (key.clone(), value.clone()));
        Setting::Section(kept.into_iter().collect())
    };
    let told = found.len();
    for key in keys_of(before, now) {
        let mut changes = Vec::new();
        differences("", &only(before, key), &only(now, key), &mut changes);
        let key = located.key(place, key);
        found.extend(changes.into_iter().map(|what| finding(place, key, what)));
    }
    if found.len() == told {
        found.push(finding(place, "", "it is described otherwise".to_owned()));
    }
}

fn finding(place: Place, key: &'static str, what: String) -> Finding {
    Finding {
        place,
        key,
        what,
        remedy: "that cannot change while the machine runs: restart the machine, or write it as \
                 it was"
            .to_owned(),
    }
}

/// A section, but for what is no part of the machine.
fn section(all: &Sections, name: &str) -> Setting {
    let mut section = all.get(name).cloned().unwrap_or_else(empty);
    if let (Setting::Section(keys), "machine") = (&mut section, name) {
        // Which machine it is about is said otherwise.
        keys.remove("name");
    }
    section
}

#[cfg(test)]
mod tests;

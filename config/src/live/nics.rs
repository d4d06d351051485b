//! Adds NICs to a running machine and removes them: TAPs and local ports, with or without an uplink
//! or dedicated queues, AF_XDP sockets, and in-memory cables. The workers of the driver domain must
//! restart for this, because they receive frames and devices only at start-up. All other devices
//! keep their numbers.

use super::LiveSpec;
use super::sections::{Sections, differences, find, section_list};
use crate::MacAddress;
use crate::domain::NicConfig;
use crate::model::Config;
use crate::nic::{NicKind, NicSection};
use abi::machine::{ConfigValue, DomainSpec};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// All NICs of a machine after a step of a reload.
#[derive(Clone, Debug, PartialEq)]
pub struct NicsStep {
    /// The NICs as sections `[[nic]]`, with their assigned MACs.
    pub nics: Vec<ConfigValue>,
    /// Names of the added NICs.
    pub added: BTreeSet<String>,
    /// Descriptions of the changes.
    pub changes: Vec<String>,
}

/// A worker of the driver domain with changed NICs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WorkerNics {
    /// The domain, without its configuration text.
    pub domain: DomainSpec,
    /// The configuration of its NICs.
    pub nics: Vec<NicConfig>,
}

/// Returns the steps that change the NICs to those of the files: the first step removes the removed
/// and changed NICs, the second adds the new ones. Returns `None` if a change needs a new machine.
pub(super) fn steps(
    live: &LiveSpec,
    running: &Config,
    before: &Sections,
    config: &mut Config,
    now: &Sections,
) -> Option<Vec<NicsStep>> {
    resolve_macs(running, config);
    let stays = |nic: &NicSection| config.nics.iter().any(|now| now == nic);
    let is_added = |nic: &NicSection| running.nic(&nic.name) != Some(nic);
    let added_nics = || config.nics.iter().filter(|nic| is_added(nic));
    let removed_nics = || running.nics.iter().filter(|nic| !stays(nic));
    if added_nics().chain(removed_nics()).next().is_none() {
        return Some(Vec::new());
    }
    let has_device = |nic: &NicSection| nic.has_device_domain();
    let may = !added_nics().chain(removed_nics()).any(has_device)
        && added_nics().all(can_be_added)
        && running.nics.iter().all(can_be_removed)
        && running.driver.restart;
    if !may {
        return None;
    }
    let mut remaining: Vec<ConfigValue> = Vec::new();
    let mut changes = Vec::new();
    for nic in &running.nics {
        let setting = current_nic(live, before, nic);
        if stays(nic) {
            remaining.push(setting);
        } else if let Some(becomes) = config.nic(&nic.name) {
            let becoming = with_mac(&find(section_list(now, "nic"), &nic.name), becomes.mac);
            let mut words = Vec::new();
            differences(
                &format!("NIC {}: ", nic.name),
                &setting,
                &becoming,
                &mut words,
            );
            changes.append(&mut words);
        } else {
            changes.push(format!("NIC {} is no longer in the file", nic.name));
        }
    }
    let mut steps = Vec::new();
    if removed_nics().next().is_some() {
        steps.push(NicsStep {
            nics: remaining.clone(),
            added: BTreeSet::new(),
            changes,
        });
    }
    if added_nics().next().is_some() {
        let (mut nics, mut changes) = (remaining, Vec::new());
        for nic in added_nics() {
            nics.push(with_mac(
                &find(section_list(now, "nic"), &nic.name),
                nic.mac,
            ));
            changes.push(match running.nic(&nic.name) {
                Some(_) => format!("NIC {} is added again", nic.name),
                None => format!("NIC {} is new", nic.name),
            });
        }
        steps.push(NicsStep {
            nics,
            added: added_nics().map(|nic| nic.name.clone()).collect(),
            changes,
        });
    }
    Some(steps)
}

/// Returns the current description of a NIC, with its MAC.
pub(super) fn current_nic(live: &LiveSpec, files: &Sections, nic: &NicSection) -> ConfigValue {
    let written = match &live.nics {
        Some(nics) => find(nics, &nic.name),
        None => find(section_list(files, "nic"), &nic.name),
    };
    with_mac(&written, nic.mac)
}

/// Returns whether a NIC can be added. A `pcap` NIC cannot, because its files must be known when
/// the machine starts.
fn can_be_added(nic: &NicSection) -> bool {
    can_be_removed(nic) && !matches!(nic.kind, NicKind::Pcap(_))
}

/// Returns whether the NIC can be removed, and can remain when others are added or removed. This
/// requires that no guest owns one of its queues, and that its buffers may move.
fn can_be_removed(nic: &NicSection) -> bool {
    match nic.kind {
        NicKind::Xdp { .. } => nic.settings.vmq.is_none(),
        NicKind::Vfio { .. } => false,
        _ => true,
    }
}

/// Keeps the current MACs of NICs without configured ones, and assigns unused MACs to new NICs.
fn resolve_macs(running: &Config, config: &mut Config) {
    let mut taken: BTreeSet<MacAddress> = running.nics.iter().filter_map(|nic| nic.mac).collect();
    taken.extend(config.nics.iter().filter_map(|nic| nic.mac));
    for nic in &mut config.nics {
        let name = nic.name.clone();
        let Some(mac) = nic.mac_mut() else { continue };
        if mac.is_none() {
            *mac = running.nic(&name).and_then(|nic| nic.mac);
        }
        if mac.is_none() {
            let mut free = (0..u16::MAX).map(|number| MacAddress::derived(0, number, 0));
            *mac = free.find(|mac| !taken.contains(mac));
            taken.extend(*mac);
        }
    }
}

/// Sets every NIC's derived MAC explicitly, so that it does not change when NICs before it are
/// added or removed.
pub(super) fn set_explicit_macs(config: &mut Config) {
    for (n, nic) in config.nics.iter_mut().enumerate() {
        if let Some(mac) = nic.mac_mut() {
            mac.get_or_insert(MacAddress::derived(0, n as u16, 0));
        }
    }
}

/// Returns the description with this MAC.
pub(super) fn with_mac(nic: &ConfigValue, mac: Option<MacAddress>) -> ConfigValue {
    let mut nic = nic.clone();
    if let (ConfigValue::Section(keys), Some(mac)) = (&mut nic, mac) {
        keys.insert("mac".into(), ConfigValue::Text(mac.to_string()));
    }
    nic
}

//! Adds guests to a running machine and removes them, for the manager.
//!
//! A file describes a machine at its start; [`machine`] reserves resources for later changes.
//! [`LiveConfig`] is the current configuration of the machine. It checks a new guest against all
//! existing ones by the rules of a file.

mod network;
mod nics;
pub mod reload;
mod rules;
mod sections;
mod spec;
pub mod state;
mod worker_nics;

pub use nics::{NicsStep, WorkerNics};
pub use spec::LiveSpec;

use crate::domain::{DriverConfig, GrantMode, VifConfig};
use crate::guest::GuestSection;
use crate::machine;
use crate::model::Config;
use crate::parse::{parse_with_source, read_guest, read_nics};
use crate::problem::{ConfigPart, Finding, Problems};
use crate::sizes::{COLLATERAL_PAGES, grant_entries, ring_pages, rings_slots, sum, table_slots};
use crate::{ConfigFile, Endpoint, MacAddress, Vif};
use abi::layout::WINDOW_SLOTS_MAX;
use abi::machine::{ConfigValue, Connection, DomainSpec, HotplugState, Machine, Program};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::Range;

/// The number of guests, with one interface each, that fit the driver domain's window in addition
/// to those of the file. The kernel's limit of mappings per process bounds the slots of the window.
const EXTRA_GUESTS: u32 = 256;
/// The number of such guests if guests revoke pages individually, which scatters their granted
/// pages. Every page of a pool of the default size can then be a separate mapping.
const EXTRA_GUESTS_SCATTERED: u32 = 64;

/// The maximum number of remembered addresses of removed guests.
const REMOVED_ADDRESSES_MAX: usize = 4096;

/// The number of slots at the end of a window that are reserved for the rings of AF_XDP NICs added
/// later: enough for eight NICs with 4096 buffers each.
pub const RINGS_SLOTS: u32 = 8 * rings_slots(4096);

/// Returns the machine of a configuration that was read from `files`. Guests can be attached to it.
///
/// # Errors
///
/// Returns all mistakes of the configuration, without lines: see [`Config::check`].
pub fn machine(config: &Config, files: &[ConfigFile]) -> Result<Machine, Problems> {
    let mut machine = config.machine()?;
    let guest = GuestSection {
        vifs: vec![Vif::new(Endpoint::Echo {})],
        ..GuestSection::default()
    };
    let entries = grant_entries(config, &guest);
    let slots = sum([entries, table_slots(config, entries)]);
    let collateral = match config.driver.grants.has_tables() {
        true => sum([ring_pages(config), COLLATERAL_PAGES]),
        false => 0,
    };
    let room = match config.buffers.release_threshold {
        Some(_) => EXTRA_GUESTS_SCATTERED,
        None => EXTRA_GUESTS,
    };
    let drivers = machine.domains.iter_mut();
    for driver in drivers.filter(|domain| domain.program == Program::Driver) {
        let slots = sum([driver.window_slots, slots.saturating_mul(room), RINGS_SLOTS]);
        driver.window_slots = slots.min(WINDOW_SLOTS_MAX);
        driver.collateral = sum([driver.collateral, collateral.saturating_mul(room)]);
    }
    machine.live = Some(HotplugState {
        files: files.iter().map(|file| file.text.clone()).collect(),
        first_slot: machine::nic_slots(config),
        ..HotplugState::default()
    });
    Ok(machine)
}

/// A guest to be added or changed.
#[derive(Clone, Debug, PartialEq)]
pub struct ResolvedGuest {
    /// Its domain.
    pub domain: DomainSpec,
    /// Its connections, in the order in which it numbers them.
    pub connections: Vec<Connection>,
    /// The configuration of its interfaces for a worker of the driver domain, without connections
    /// and slots.
    pub vifs: Vec<VifConfig>,
    /// Its description, with its assigned MACs.
    pub guest: ConfigValue,
    /// The assigned MACs.
    pub macs: Vec<MacAddress>,
    /// Warnings about valid settings that may be unintended, one sentence each.
    pub warnings: Vec<String>,
}

/// The configuration of a running machine.
#[derive(Clone, Debug, PartialEq)]
pub struct LiveConfig {
    config: Config,
    /// Addresses of removed guests, with the MACs that other stations may have cached for them.
    removed_addresses: BTreeMap<IpAddr, MacAddress>,
}

impl LiveConfig {
    /// Returns the current configuration of a machine.
    ///
    /// # Errors
    ///
    /// Returns all mistakes. A configuration that was valid before has none.
    pub fn of(live: &LiveSpec) -> Result<Self, Problems> {
        let (mut config, _) = parse_with_source(&live.files())?;
        set_explicit_macs(&mut config);
        nics::set_explicit_macs(&mut config);
        if let Some(described) = &live.nics {
            config.nics = read_nics(described)?;
        }
        config
            .guests
            .retain(|guest| !live.detached.contains(&guest.name));
        for guest in &mut config.guests {
            if let Some(changed) = live.changed.get(&guest.name) {
                *guest = read_guest(0, changed)?;
            }
        }
        for attached in live.attached.values() {
            let guest = read_guest(config.guests.len(), &attached.guest)?;
            config.guests.push(guest);
        }
        let removed_addresses = BTreeMap::new();
        Ok(Self {
            config,
            removed_addresses,
        })
    }

    /// Adds a guest, described as in a section `[[guest]]`. An interface may have a key `network`
    /// instead of addresses; it is then assigned an unused address.
    ///
    /// # Errors
    ///
    /// Returns all mistakes, one per line. On an error, nothing changes.
    pub fn add(&mut self, described: &ConfigValue) -> Result<ResolvedGuest, String> {
        let g = self.config.guests.len();
        let named = |wrong: Problems| self.by_name(described, &wrong.to_string());
        let described = &network::resolve(&self.config, described)?;
        let mut guest = read_guest(g, described).map_err(named)?;
        self.check_attachable(&guest)?;
        let macs = self.assign_macs(&mut guest);
        self.config.guests.push(guest);
        self.resolved(g, described, macs).map_err(|wrong| {
            self.config.guests.pop();
            self.by_name(described, &wrong.to_string())
        })
    }

    /// Replaces section numbers in the mistakes of a new guest by guests' names, because no file
    /// has these sections.
    fn by_name(&self, described: &ConfigValue, wrong: &str) -> String {
        let is_good = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
        let own = state::name_of(described);
        let own = own.filter(|name| (1..=32).contains(&name.len()) && name.chars().all(is_good));
        let own = own.map_or_else(|| "the guest".to_owned(), |name| format!("guest {name}"));
        let others = self.config.guests.iter();
        let names = others.map(|guest| format!("guest {}", guest.name));
        let names: Vec<String> = names.chain([own]).collect();
        // Replaces the highest number first, because "[[guest]] 1" is a prefix of "[[guest]] 10".
        let numbered = (1..).zip(&names).collect::<Vec<_>>().into_iter().rev();
        numbered.fold(wrong.to_owned(), |text, (number, name)| {
            text.replace(&format!("[[guest]] {number}"), name)
        })
    }

    /// Changes the description of an existing guest.
    ///
    /// # Errors
    ///
    /// Returns an error if no guest has this name, or the description has mistakes. On an error,
    /// nothing changes.
    pub fn change(&mut self, described: &ConfigValue) -> Result<ResolvedGuest, String> {
        let guest = read_guest(0, described).map_err(|wrong| wrong.to_string())?;
        let mut existing = self.config.guests.iter_mut().enumerate();
        let existing = existing.find(|(_, existing)| existing.name == guest.name);
        let (g, existing) = existing.ok_or_else(|| format!("no guest is named {}", guest.name))?;
        let macs = guest.vifs.iter().filter_map(|vif| vif.mac).collect();
        let before = std::mem::replace(existing, guest);
        self.resolved(g, described, macs).map_err(|wrong| {
            if let Some(existing) = self.config.guests.get_mut(g) {
                *existing = before;
            }
            self.by_name(described, &wrong.to_string())
        })
    }

    /// Returns guest number `g`, or its mistakes.
    fn resolved(
        &self,
        g: usize,
        guest: &ConfigValue,
        macs: Vec<MacAddress>,
    ) -> Result<ResolvedGuest, Problems> {
        let (domain, connections, mut vifs) = machine::guest_of(&self.config, g);
        for vif in &mut vifs {
            let others = |address| {
                self.removed_addresses
                    .get(address)
                    .is_some_and(|mac| mac.0 != vif.mac)
            };
            vif.announces = vif.guard.addresses.iter().any(others);
        }
        let found = self.config.findings_with(g, &domain);
        let warnings = self.config.warnings().into_iter();
        let warnings =
            warnings.filter(|of| matches!(of.part, ConfigPart::Vif(guest, _) if guest == g));
        let warnings = warnings.map(|Finding { what, remedy, .. }| format!("{what}; {remedy}"));
        let resolved = ResolvedGuest {
            domain,
            connections,
            vifs,
            guest: with_macs(guest, &macs),
            macs,
            warnings: warnings.collect(),
        };
        Problems::from_findings(found, resolved)
    }

    /// Rejects settings that are valid in a file, but not for an attached guest.
    fn check_attachable(&self, guest: &GuestSection) -> Result<(), String> {
        if self.config.driver.grants == GrantMode::Copy {
            return Err(
                "the driver's `grants` is \"copy\": the pages that it copies to are assigned at \
                 the start; write another one in [driver]"
                    .into(),
            );
        }
        if guest.vifs.iter().any(|vif| vif.pdev.is_some()) {
            return Err(
                "`pdev`: these queues are assigned at the start; add the guest to the file".into(),
            );
        }
        Ok(())
    }

    /// Assigns an unused MAC to each interface without one.
    fn assign_macs(&self, guest: &mut GuestSection) -> Vec<MacAddress> {
        let extra = |guest: &GuestSection| -> Vec<MacAddress> {
            let vifs = guest.vifs.iter();
            vifs.flat_map(|vif| vif.security.extra_macs.clone())
                .collect()
        };
        let mut own: Vec<MacAddress> = guest.vifs.iter().filter_map(|vif| vif.mac).collect();
        own.extend(extra(guest));
        own.extend(self.config.guests.iter().flat_map(extra));
        let vifs = self.config.vifs();
        let vifs = vifs.filter_map(|((g, v), ..)| self.config.vif_mac(g, v));
        let nics = (0..self.config.nics.len()).filter_map(|nic| self.config.nic_mac(nic));
        let taken: BTreeSet<MacAddress> = vifs.chain(nics).chain(own).collect();
        let vifs = guest.vifs.len();
        let is_free = |station: &u16| (0..vifs).all(|v| !taken.contains(&derived(*station, v)));
        // There are more station numbers than guests, so the last one is never reached.
        let station = (0..u16::MAX).find(is_free).unwrap_or(u16::MAX);
        for (v, vif) in guest.vifs.iter_mut().enumerate() {
            vif.mac.get_or_insert(derived(station, v));
        }
        guest.vifs.iter().filter_map(|vif| vif.mac).collect()
    }

    /// Checks whether a guest can be removed.
    ///
    /// # Errors
    ///
    /// Returns the reason as text if no guest has this name, or it cannot be removed.
    pub fn check_removable(&self, name: &str) -> Result<(), String> {
        let guest = self.config.guest(name);
        let guest = guest.ok_or_else(|| format!("no guest is named {name}"))?;
        match guest.vifs.iter().find_map(|vif| vif.pdev.as_ref()) {
            Some(pdev) => Err(format!(
                "guest {name} owns queue {} of NIC {}: such a guest cannot be removed from the \
                 machine",
                pdev.queue, pdev.nic
            )),
            None => Ok(()),
        }
    }

    /// Removes a guest.
    pub fn remove(&mut self, name: &str) {
        let vifs = self.config.vifs();
        for ((g, v), _, vif) in vifs.filter(|(_, guest, _)| guest.name == name) {
            let mac = self.config.vif_mac(g, v);
            let addresses = vif.stations().ips();
            self.removed_addresses
                .extend(addresses.zip(mac.into_iter().cycle()));
        }
        while self.removed_addresses.len() > REMOVED_ADDRESSES_MAX {
            self.removed_addresses.pop_first();
        }
        self.config.guests.retain(|guest| guest.name != name);
    }
}

/// Returns the end of the guests' part of a worker's window.
#[must_use]
pub const fn guests_end(window_slots: u32) -> u32 {
    window_slots.saturating_sub(RINGS_SLOTS)
}

/// Allocates the slots of the interfaces `vifs` in a worker's window of `slots` slots, from slot
/// `first` on, and records them in each interface. Returns whether all fit.
#[must_use]
pub fn allocate_slots(
    driver: &DriverConfig,
    first: u32,
    slots: u32,
    vifs: &mut [VifConfig],
) -> bool {
    let (mut taken, end) = (taken_by_guests(driver), guests_end(slots));
    for vif in vifs {
        let wanted = vif
            .slots
            .saturating_add(following_slots(driver.driver.grants, vif));
        let Some(at) = free(&mut taken, first..end, wanted) else {
            return false;
        };
        (vif.first_slot, vif.tables_slot) = (at, at.saturating_add(vif.slots));
    }
    true
}

/// Returns the slots of a worker's guests.
fn taken_by_guests(driver: &DriverConfig) -> Vec<Range<u32>> {
    let range = |vif: &VifConfig| {
        let following_slots = following_slots(driver.driver.grants, vif);
        vif.first_slot..vif.tables_slot.saturating_add(following_slots)
    };
    driver.vifs.iter().map(range).collect()
}

/// Allocates `wanted` consecutive free slots.
fn free(taken: &mut Vec<Range<u32>>, within: Range<u32>, wanted: u32) -> Option<u32> {
    taken.sort_unstable_by_key(|range| range.start);
    let mut at = within.start;
    for range in &*taken {
        if range.start.saturating_sub(at) >= wanted {
            break;
        }
        at = at.max(range.end);
    }
    let found = (within.end.saturating_sub(at) >= wanted).then_some(at)?;
    taken.push(found..found.saturating_add(wanted));
    Some(found)
}

/// Returns the number of slots that follow those of an interface's grants: for sub-tables, or for
/// pages to exchange.
fn following_slots(grants: GrantMode, vif: &VifConfig) -> u32 {
    match grants.has_tables() {
        true => abi::counted::table_slots(vif.slots),
        false => vif.flip_pages,
    }
}

/// Sets every guest's derived MACs explicitly, so that they do not change when guests before it in
/// the file are added or removed.
fn set_explicit_macs(config: &mut Config) {
    for (g, guest) in config.guests.iter_mut().enumerate() {
        for (v, vif) in guest.vifs.iter_mut().enumerate() {
            vif.mac.get_or_insert(derived(g as u16, v));
        }
    }
}

fn derived(station: u16, vif: usize) -> MacAddress {
    MacAddress::derived(1, station, vif as u8)
}

/// Returns the description with these MACs for its interfaces.
fn with_macs(guest: &ConfigValue, macs: &[MacAddress]) -> ConfigValue {
    let mut guest = guest.clone();
    if let ConfigValue::Section(keys) = &mut guest
        && let Some(ConfigValue::List(vifs)) = keys.get_mut("vif")
    {
        for (vif, mac) in vifs.iter_mut().zip(macs) {
            *vif = nics::with_mac(vif, Some(*mac));
        }
    }
    guest
}

/// Parses a text in TOML.
///
/// # Errors
///
/// Returns an error if the text is not TOML, or contains a date.
pub fn setting(text: &str) -> Result<ConfigValue, String> {
    toml::from_str(text).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests;

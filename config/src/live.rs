//! Guests that come and go while a machine runs: what the manager needs of a configuration.
//!
//! A file says what a machine begins with; [`machine`] adds what it takes to go on from there.
//! [`LiveConfig`] is the file again, as the machine has become: a guest that comes is checked
//! against all that are there by the same rules as the file was.

mod network;
mod nics;
mod refit;
pub mod reload;
mod sections;
pub mod state;
mod written;

pub use nics::{NicsStep, Refitted};

use crate::domain::{DriverConfig, GrantMode, VifConfig};
use crate::machine;
use crate::model::{Config, Guest};
use crate::parse::{parse_located, read_guest};
use crate::problem::{Finding, Place, Problems};
use crate::sizes::{COLLATERAL_PAGES, grant_entries, ring_pages, rings_slots, table_slots};
use crate::{Endpoint, File, Mac, Vif};
use abi::layout::WINDOW_SLOTS_MAX;
use abi::machine::{Domain, Live, Machine, Program, Setting};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::ops::Range;
use written::written;

/// Guests of one interface each that there is room for in the driver domain's window, beside those
/// of the file. The mappings that a process may have are shared by slots of the window.
const ROOM: u32 = 256;
/// The same where guests give pages back one by one, so that what they grant lies scattered: each
/// has mappings for a pool of the usual size, every page of which stands alone.
const ROOM_SCATTERED: u32 = 64;

/// Addresses of guests who have left that are known.
const LEFT_MAX: usize = 4096;

/// Slots at the end of a window that are kept for the rings of AF_XDP NICs that come: of eight with
/// 4096 buffers each.
pub const RINGS_SLOTS: u32 = 8 * rings_slots(4096);

/// The machine of a configuration that was read from `files`, to which guests can be attached.
///
/// # Errors
/// What is wrong with the configuration, without lines: see [`Config::check`].
pub fn machine(config: &Config, files: &[File]) -> Result<Machine, Problems> {
    let mut machine = config.machine()?;
    let guest = Guest {
        vifs: vec![Vif::new(Endpoint::Echo)],
        ..Guest::default()
    };
    let entries = grant_entries(config, &guest);
    let slots = entries.saturating_add(table_slots(config, entries));
    let collateral = match config.driver.grants.has_tables() {
        true => ring_pages(config).saturating_add(COLLATERAL_PAGES),
        false => 0,
    };
    let room = match config.buffers.release_threshold {
        Some(_) => ROOM_SCATTERED,
        None => ROOM,
    };
    let drivers = machine.domains.iter_mut();
    for driver in drivers.filter(|domain| domain.program == Program::Driver) {
        let slots = driver
            .window_slots
            .saturating_add(slots.saturating_mul(room))
            .saturating_add(RINGS_SLOTS);
        driver.window_slots = slots.min(WINDOW_SLOTS_MAX);
        let collateral = collateral.saturating_mul(room);
        driver.collateral = driver.collateral.saturating_add(collateral);
    }
    machine.live = Some(Live {
        files: files.iter().map(|file| file.text.clone()).collect(),
        first_slot: machine::nic_slots(config),
        ..Live::default()
    });
    Ok(machine)
}

/// A guest that is to come, or to change.
#[derive(Clone, Debug, PartialEq)]
pub struct Newcomer {
    /// Its domain.
    pub domain: Domain,
    /// What a worker of the driver domain is told of its interfaces, but for connections and slots.
    pub vifs: Vec<VifConfig>,
    /// Its description, with the MACs that it has been given.
    pub guest: Setting,
    /// These MACs.
    pub macs: Vec<Mac>,
    /// What is allowed and may not be meant, a sentence each.
    pub warnings: Vec<String>,
}

/// The configuration of a machine that runs.
#[derive(Clone, Debug, PartialEq)]
pub struct LiveConfig {
    config: Config,
    /// Guests that were attached.
    attached: BTreeSet<String>,
    /// Addresses that guests had who have left, with the MACs under which others may know them.
    left: BTreeMap<IpAddr, Mac>,
}

impl LiveConfig {
    /// As a machine has become.
    ///
    /// # Errors
    /// What is wrong with it: nothing, if it was ever right.
    pub fn of(live: &Live) -> Result<Self, Problems> {
        let (mut config, _) = parse_located(&files_of(live))?;
        name_macs(&mut config);
        nics::name_macs(&mut config);
        if let Some(described) = &live.nics {
            config.nics = nics::read(described)?;
        }
        config
            .guests
            .retain(|guest| !live.detached.contains(&guest.name));
        for guest in &mut config.guests {
            if let Some(changed) = live.changed.get(&guest.name) {
                *guest = read_guest(0, &written(changed))?;
            }
        }
        let mut attached = BTreeSet::new();
        for (name, guest) in &live.attached {
            config
                .guests
                .push(read_guest(config.guests.len(), &written(guest))?);
            attached.insert(name.clone());
        }
        let left = BTreeMap::new();
        Ok(Self {
            config,
            attached,
            left,
        })
    }

    /// Adds a guest, described as by a section `[[guest]]`. An interface may have a key `network`
    /// instead of its addresses: it gets one that nobody has.
    ///
    /// # Errors
    /// Everything that is wrong with it, a line for each thing; nothing has changed then.
    pub fn add(&mut self, described: &Setting) -> Result<Newcomer, String> {
        let g = self.config.guests.len();
        let named = |wrong: Problems| self.by_name(described, &wrong.to_string());
        let described = &network::resolve(&self.config, described)?;
        let mut guest = read_guest(g, &written(described)).map_err(named)?;
        self.refuse(&guest)?;
        let macs = self.give_macs(&mut guest);
        let name = guest.name.clone();
        self.config.guests.push(guest);
        match self.newcomer(g, described, macs) {
            Ok(newcomer) => {
                self.attached.insert(name);
                Ok(newcomer)
            }
            Err(wrong) => {
                self.config.guests.pop();
                Err(self.by_name(described, &wrong.to_string()))
            }
        }
    }

    /// Returns what is wrong with a guest that comes, with guests by their names: they are sections
    /// of no file that the reader could look at.
    fn by_name(&self, described: &Setting, wrong: &str) -> String {
        let is_good = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
        let own = state::name_of(described);
        let own = own.filter(|name| (1..=32).contains(&name.len()) && name.chars().all(is_good));
        let own = own.map_or_else(|| "the guest".to_owned(), |name| format!("guest {name}"));
        let others = self.config.guests.iter();
        let names = others.map(|guest| format!("guest {}", guest.name));
        let names: Vec<String> = names.chain([own]).collect();
        // From the last one on: "[[guest]] 1" is the beginning of "[[guest]] 10".
        let numbered = (1..).zip(&names).collect::<Vec<_>>().into_iter().rev();
        numbered.fold(wrong.to_owned(), |text, (number, name)| {
            text.replace(&format!("[[guest]] {number}"), name)
        })
    }

    /// Describes a guest that is there otherwise.
    ///
    /// # Errors
    /// There is none of this name, or something is wrong with it; nothing has changed then.
    pub fn change(&mut self, described: &Setting) -> Result<Newcomer, String> {
        let guest = read_guest(0, &written(described)).map_err(|wrong| wrong.to_string())?;
        let mut there = self.config.guests.iter_mut().enumerate();
        let there = there.find(|(_, there)| there.name == guest.name);
        let (g, there) = there.ok_or_else(|| format!("there is no guest {}", guest.name))?;
        let macs = guest.vifs.iter().filter_map(|vif| vif.mac).collect();
        let before = std::mem::replace(there, guest);
        self.newcomer(g, described, macs).map_err(|wrong| {
            if let Some(there) = self.config.guests.get_mut(g) {
                *there = before;
            }
            wrong.to_string()
        })
    }

    /// Guest number `g`, if nothing is wrong with it.
    fn newcomer(&self, g: usize, guest: &Setting, macs: Vec<Mac>) -> Result<Newcomer, Problems> {
        let (domain, mut vifs) = machine::guest_of(&self.config, g);
        for vif in &mut vifs {
            let others = |address| self.left.get(address).is_some_and(|mac| mac.0 != vif.mac);
            vif.announces = vif.addresses.iter().any(others);
        }
        let found = self.config.findings_with(g, &domain);
        let warnings = self.config.warnings().into_iter();
        let warnings = warnings.filter(|of| matches!(of.place, Place::Vif(guest, _) if guest == g));
        let warnings = warnings.map(|Finding { what, remedy, .. }| format!("{what}; {remedy}"));
        let newcomer = Newcomer {
            domain,
            vifs,
            guest: with_macs(guest, &macs),
            macs,
            warnings: warnings.collect(),
        };
        Problems::found(found, newcomer)
    }

    /// What a file may say, and a guest that is attached may not have.
    fn refuse(&self, guest: &Guest) -> Result<(), String> {
        if self.config.driver.grants == GrantMode::Copy {
            return Err(
                "the driver's `grants` is \"copy\": the pages that it copies to are given out at \
                 the start; write another one in [driver]"
                    .into(),
            );
        }
        if guest.vifs.iter().any(|vif| vif.pdev.is_some()) {
            return Err(
                "`pdev`: queues of a wire are given out at the start; write the guest into the file"
                    .into(),
            );
        }
        Ok(())
    }

    /// Gives each interface without a MAC one that nobody has.
    fn give_macs(&self, guest: &mut Guest) -> Vec<Mac> {
        let extra = |guest: &Guest| -> Vec<Mac> {
            let vifs = guest.vifs.iter();
            vifs.flat_map(|vif| vif.claims.extra_macs.clone()).collect()
        };
        let mut own: Vec<Mac> = guest.vifs.iter().filter_map(|vif| vif.mac).collect();
        own.extend(extra(guest));
        own.extend(self.config.guests.iter().flat_map(extra));
        let guests = self.config.guests.iter().enumerate();
        let vifs = guests.flat_map(|(g, guest)| (0..guest.vifs.len()).map(move |v| (g, v)));
        let vifs = vifs.filter_map(|(g, v)| self.config.vif_mac(g, v));
        let nics = (0..self.config.nics.len()).filter_map(|nic| self.config.nic_mac(nic));
        let taken: BTreeSet<Mac> = vifs.chain(nics).chain(own).collect();
        let vifs = guest.vifs.len();
        let is_free = |station: &u16| (0..vifs).all(|v| !taken.contains(&derived(*station, v)));
        // There are more numbers of stations than guests: the last one is never come to.
        let station = (0..u16::MAX).find(is_free).unwrap_or(u16::MAX);
        for (v, vif) in guest.vifs.iter_mut().enumerate() {
            vif.mac.get_or_insert(derived(station, v));
        }
        guest.vifs.iter().filter_map(|vif| vif.mac).collect()
    }

    /// Whether a guest can be taken away.
    ///
    /// # Errors
    /// There is none of this name, or why not.
    pub fn may_leave(&self, name: &str) -> Result<(), String> {
        let guest = self.config.guests.iter().find(|guest| guest.name == name);
        let guest = guest.ok_or_else(|| format!("there is no guest {name}"))?;
        match guest.vifs.iter().find_map(|vif| vif.pdev.as_ref()) {
            Some(pdev) => Err(format!(
                "guest {name} has queue {} of NIC {} for its own: such guests stay as long as the \
                 machine",
                pdev.queue, pdev.nic
            )),
            None => Ok(()),
        }
    }

    /// Whether a guest was attached while the machine ran.
    #[must_use]
    pub fn is_attached(&self, name: &str) -> bool {
        self.attached.contains(name)
    }

    /// A guest is no more.
    pub fn remove(&mut self, name: &str) {
        let guests = self.config.guests.iter().enumerate();
        for (g, guest) in guests.filter(|(_, guest)| guest.name == name) {
            for (v, vif) in guest.vifs.iter().enumerate() {
                let addresses = vif.addresses().0.iter().map(|cidr| cidr.address);
                let mac = self.config.vif_mac(g, v);
                self.left.extend(addresses.zip(mac.into_iter().cycle()));
            }
        }
        while self.left.len() > LEFT_MAX {
            self.left.pop_first();
        }
        self.config.guests.retain(|guest| guest.name != name);
        self.attached.remove(name);
    }
}

/// Where the guests' part of a worker's window ends.
#[must_use]
pub const fn guests_end(window_slots: u32) -> u32 {
    window_slots.saturating_sub(RINGS_SLOTS)
}

/// Finds room in a worker's window of so many slots, from slot `first` on, for all that it maps of
/// the interfaces `vifs`, and notes in each where that lies. Whether there is room for all.
#[must_use]
pub fn place(driver: &DriverConfig, first: u32, slots: u32, vifs: &mut [VifConfig]) -> bool {
    let (mut taken, end) = (taken_by_guests(driver), guests_end(slots));
    for vif in vifs {
        let wanted = vif.slots.saturating_add(behind(driver.grants, vif));
        let Some(at) = free(&mut taken, first..end, wanted) else {
            return false;
        };
        (vif.first_slot, vif.tables_slot) = (at, at.saturating_add(vif.slots));
    }
    true
}

/// The slots that a worker's guests have.
fn taken_by_guests(driver: &DriverConfig) -> Vec<Range<u32>> {
    let range = |vif: &VifConfig| {
        let behind = behind(driver.grants, vif);
        vif.first_slot..vif.tables_slot.saturating_add(behind)
    };
    driver.vifs.iter().map(range).collect()
}

/// Takes so many slots in a row that nobody has.
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

/// Slots behind those of an interface's grants: for sub-tables, or pages that are exchanged.
fn behind(grants: GrantMode, vif: &VifConfig) -> u32 {
    match grants.has_tables() {
        true => abi::counted::table_slots(vif.slots),
        false => vif.flip_pages,
    }
}

/// The files that a machine was built from.
fn files_of(live: &Live) -> Vec<File> {
    let file = |text: &String| File {
        name: String::new(),
        text: text.clone(),
    };
    live.files.iter().map(file).collect()
}

/// Every guest keeps the MACs that it has when guests before it in the file come or go.
fn name_macs(config: &mut Config) {
    for g in 0..config.guests.len() {
        let vifs = config.guests.get(g).map_or(0, |guest| guest.vifs.len());
        for v in 0..vifs {
            let mac = config.vif_mac(g, v);
            let vif = config
                .guests
                .get_mut(g)
                .and_then(|guest| guest.vifs.get_mut(v));
            if let Some(vif) = vif {
                vif.mac = mac;
            }
        }
    }
}

fn derived(station: u16, vif: usize) -> Mac {
    Mac::derived(1, station, vif as u8)
}

/// The same description with these MACs for its interfaces.
fn with_macs(guest: &Setting, macs: &[Mac]) -> Setting {
    let mut guest = guest.clone();
    if let Setting::Section(keys) = &mut guest
        && let Some(Setting::List(vifs)) = keys.get_mut("vif")
    {
        for (vif, mac) in vifs.iter_mut().zip(macs) {
            if let Setting::Section(keys) = vif {
                keys.insert("mac".into(), Setting::Text(mac.to_string()));
            }
        }
    }
    guest
}

/// What a text in TOML says.
///
/// # Errors
/// It is no TOML, or has a date.
pub fn setting(text: &str) -> Result<Setting, String> {
    toml::from_str(text).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests;

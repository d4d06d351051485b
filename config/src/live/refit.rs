//! Workers of the driver domain with other NICs: what each has of them.

use super::nics::{self, Refitted};
use super::{LiveConfig, free, guests_end, taken_by_guests};
use crate::check;
use crate::domain::{DriverConfig, NicConfig, NicKind};
use crate::machine;
use crate::problem::Problems;
use crate::sizes::{nic_pages, rings_slots};
use abi::machine::{Device, Domain, Setting};
use std::collections::BTreeSet;
use std::ops::Range;

impl LiveConfig {
    /// The machine has these NICs from now on.
    ///
    /// # Errors
    /// Everything that is wrong with that, a line for each thing; nothing has changed then.
    pub fn set_nics(&mut self, nics: &[Setting]) -> Result<(), String> {
        let nics = nics::read(nics).map_err(|wrong| wrong.to_string())?;
        let before = std::mem::replace(&mut self.config.nics, nics);
        Problems::found(self.config.findings_of_parts(), ()).map_err(|wrong| {
            self.config.nics = before;
            wrong.to_string()
        })
    }

    /// A worker with the NICs that the machine has now; before it was this domain, and was told
    /// `driver`. Those of `come` have come since.
    ///
    /// # Errors
    /// The worker would be larger than a domain may be.
    pub fn refit(
        &self,
        worker: u32,
        before: &Domain,
        driver: &DriverConfig,
        come: &BTreeSet<String>,
    ) -> Result<Refitted, String> {
        let told = &driver.nics;
        let (mut nics, devices) = machine::nics_of(&self.config, worker);
        let mut domain = before.clone();
        let stays = |name: &String| {
            let is_there = self.config.nics.iter().any(|nic| nic.name == *name);
            is_there && !come.contains(name)
        };
        for nic in told.iter().filter(|nic| !stays(&nic.name)) {
            for number in numbers(&nic.kind) {
                if let Some(device) = domain.devices.get_mut(number as usize) {
                    *device = Device::Nothing;
                }
            }
        }
        let mut taken = taken_by_guests(driver);
        let staying = told.iter().filter(|nic| stays(&nic.name));
        taken.extend(staying.filter_map(|nic| rings(&nic.kind)));
        let kept = guests_end(domain.window_slots)..domain.window_slots;
        for nic in &mut nics {
            match told.iter().find(|before| before.name == nic.name) {
                Some(before) if stays(&nic.name) => {
                    let own = number(&mut nic.kind).map(|number| *number as usize);
                    let own = own.and_then(|number| devices.get(number));
                    nic.kind.clone_from(&before.kind);
                    let place = number(&mut nic.kind).map(|number| *number as usize);
                    let device = place.and_then(|place| domain.devices.get_mut(place));
                    // Its buffers lie behind those of the NICs before it.
                    if let (Some(Device::Xdp(now)), Some(Device::Xdp(own))) = (device, own) {
                        now.first_frame = own.first_frame;
                    }
                }
                _ => {
                    let own = numbers(&nic.kind);
                    let own = own
                        .iter()
                        .filter_map(|number| devices.get(*number as usize));
                    let mut own: Vec<Device> = own.cloned().collect();
                    if let (NicKind::Xdp { rings_slot, .. }, [Device::Xdp(own)]) =
                        (&mut nic.kind, &mut own[..])
                    {
                        let wanted = rings_slots(own.entries);
                        let place = free(&mut taken, kept.clone(), wanted);
                        let place = place.ok_or_else(|| no_room(&nic.name, wanted))?;
                        (*rings_slot, own.rings_slot) = (place, place);
                    }
                    take_over(&mut nic.kind, own, &mut domain.devices);
                }
            }
        }
        let pages = |nics: &[NicConfig]| -> u32 {
            let each = nics.iter().map(|nic| nic_pages(nic.buffers));
            each.fold(0, u32::saturating_add)
        };
        let other = domain.frames.saturating_sub(pages(told));
        domain.frames = other.saturating_add(pages(&nics));
        let whole = DriverConfig {
            nics,
            ..driver.clone()
        };
        let config = std::mem::replace(&mut domain.config, machine::json(&whole));
        check::size(&domain).map_err(|wrong| wrong.to_string())?;
        domain.config = config;
        let nics = whole.nics;
        Ok(Refitted { domain, nics })
    }
}

fn no_room(nic: &str, slots: u32) -> String {
    format!(
        "NIC {nic}: its rings take {slots} slots of the driver domain's window, and so many are \
         not left for NICs that come; write fewer `buffers`, or restart the machine"
    )
}

/// Where a NIC's rings lie.
fn rings(kind: &NicKind) -> Option<Range<u32>> {
    match kind {
        NicKind::Xdp {
            rings_slot,
            entries,
            ..
        } => Some(*rings_slot..rings_slot.saturating_add(rings_slots(*entries))),
        _ => None,
    }
}

/// The number of the device that a NIC is, if that outlives a domain.
fn number(kind: &mut NicKind) -> Option<&mut u32> {
    match kind {
        NicKind::Tap { device, .. }
        | NicKind::Local { device, .. }
        | NicKind::Xdp { device, .. } => Some(device),
        NicKind::Sim { .. } | NicKind::Pcap(_) => None,
    }
}

/// Numbers of all of a NIC's devices.
fn numbers(kind: &NicKind) -> Vec<u32> {
    match kind {
        NicKind::Tap { device, queues, .. } => [&[*device], &queues[..]].concat(),
        NicKind::Local { device, .. } | NicKind::Xdp { device, .. } => vec![*device],
        NicKind::Pcap(files) => files.read.into_iter().chain(files.write).collect(),
        NicKind::Sim { .. } => Vec::new(),
    }
}

/// Puts a NIC's devices among a domain's, one behind the other: where some have gone, or behind
/// all.
fn take_over(nic: &mut NicKind, own: Vec<Device>, to: &mut Vec<Device>) {
    let Some(number) = number(nic).filter(|_| !own.is_empty()) else {
        return;
    };
    let is_free = |devices: &[Device]| devices.iter().all(|device| *device == Device::Nothing);
    let count = own.len();
    let free = to.windows(count).position(is_free);
    let last = to.iter().rposition(|device| *device != Device::Nothing);
    let place = free.unwrap_or(last.map_or(0, |last| last + 1));
    to.splice(place..(place + count).min(to.len()), own);
    *number = place as u32;
    if let NicKind::Tap { queues, .. } = nic {
        let behind = place as u32 + 1..;
        queues
            .iter_mut()
            .zip(behind)
            .for_each(|(queue, at)| *queue = at);
    }
}

//! Computes the workers of the driver domain for changed NICs.

use super::nics::WorkerNics;
use super::{LiveConfig, free, guests_end, taken_by_guests};
use crate::check;
use crate::domain::{DriverConfig, NicConfig, NicKindConfig};
use crate::machine;
use crate::parse::read_nics;
use crate::problem::Problems;
use crate::sizes::{nic_pages, rings_slots, sum};
use abi::machine::{ConfigValue, Device, DomainSpec};
use std::collections::BTreeSet;
use std::iter;
use std::ops::Range;

impl LiveConfig {
    /// Sets the machine's NICs.
    ///
    /// # Errors
    ///
    /// Returns all mistakes, one per line. On an error, nothing changes.
    pub fn set_nics(&mut self, nics: &[ConfigValue]) -> Result<(), String> {
        let nics = read_nics(nics).map_err(|wrong| wrong.to_string())?;
        let before = std::mem::replace(&mut self.config.nics, nics);
        Problems::from_findings(self.config.findings_of_parts(), ()).map_err(|wrong| {
            self.config.nics = before;
            wrong.to_string()
        })
    }

    /// Returns a worker with the machine's current NICs. `before` is its domain before the change,
    /// with the configuration `driver`. The change added the NICs in `added`.
    ///
    /// # Errors
    ///
    /// Returns an error if the worker would exceed the limits of a domain.
    pub fn worker_with_nics(
        &self,
        worker: u32,
        before: &DomainSpec,
        driver: &DriverConfig,
        added: &BTreeSet<String>,
    ) -> Result<WorkerNics, String> {
        let present = &driver.nics;
        let (mut nics, devices) = machine::nics_of(&self.config, worker);
        let mut domain = before.clone();
        let stays = |name: &String| self.config.nic(name).is_some() && !added.contains(name);
        for nic in present.iter().filter(|nic| !stays(&nic.name)) {
            for number in numbers(&mut nic.kind.clone()) {
                if let Some(device) = domain.devices.get_mut(*number as usize) {
                    *device = Device::Nothing;
                }
            }
        }
        let mut taken = taken_by_guests(driver);
        let staying = present.iter().filter(|nic| stays(&nic.name));
        taken.extend(staying.filter_map(|nic| rings(&nic.kind)));
        let kept = guests_end(domain.window_slots)..domain.window_slots;
        for nic in &mut nics {
            match present.iter().find(|before| before.name == nic.name) {
                Some(before) if stays(&nic.name) => {
                    let first = |kind: &mut NicKindConfig| Some(**numbers(kind).first()? as usize);
                    let own = first(&mut nic.kind).and_then(|number| devices.get(number));
                    nic.kind.clone_from(&before.kind);
                    let device = first(&mut nic.kind);
                    let device = device.and_then(|number| domain.devices.get_mut(number));
                    // The NIC's buffers follow those of the NICs before it, which may have changed.
                    if let (Some(Device::Xdp(now)), Some(Device::Xdp(own))) = (device, own) {
                        now.first_frame = own.first_frame;
                    }
                }
                _ => {
                    let own = numbers(&mut nic.kind).into_iter();
                    let own = own.filter_map(|number| devices.get(*number as usize));
                    let mut own: Vec<Device> = own.cloned().collect();
                    if let (NicKindConfig::Xdp { rings_slot, .. }, [Device::Xdp(own)]) =
                        (&mut nic.kind, &mut own[..])
                    {
                        let wanted = rings_slots(own.entries);
                        let place = free(&mut taken, kept.clone(), wanted);
                        let place = place.ok_or_else(|| too_few_slots(&nic.name, wanted))?;
                        (*rings_slot, own.rings_slot) = (place, place);
                    }
                    assign_devices(&mut nic.kind, own, &mut domain.devices);
                }
            }
        }
        let pages = |nics: &[NicConfig]| sum(nics.iter().map(nic_pages));
        let other = domain.frames.saturating_sub(pages(present));
        domain.frames = other.saturating_add(pages(&nics));
        let whole = DriverConfig {
            nics,
            ..driver.clone()
        };
        let config = std::mem::replace(&mut domain.config, machine::json(&whole));
        check::size(&domain).map_err(|wrong| wrong.to_string())?;
        domain.config = config;
        let nics = whole.nics;
        Ok(WorkerNics { domain, nics })
    }
}

fn too_few_slots(nic: &str, slots: u32) -> String {
    format!(
        "NIC {nic}: its rings need {slots} slots of the driver domain's window, which has \
         too few left for added NICs; write fewer `buffers`, or restart the machine"
    )
}

/// Returns the slots of a NIC's rings.
fn rings(kind: &NicKindConfig) -> Option<Range<u32>> {
    match kind {
        NicKindConfig::Xdp {
            rings_slot,
            entries,
            ..
        } => Some(*rings_slot..rings_slot.saturating_add(rings_slots(*entries))),
        _ => None,
    }
}

/// Returns the numbers of a NIC's devices, the interface's first.
fn numbers(kind: &mut NicKindConfig) -> Vec<&mut u32> {
    match kind {
        NicKindConfig::Tap { device, queues, .. } => iter::once(device).chain(queues).collect(),
        NicKindConfig::Local { device, .. }
        | NicKindConfig::Vfio { device, .. }
        | NicKindConfig::Xdp { device, .. } => vec![device],
        NicKindConfig::Pcap(files) => files.read.iter_mut().chain(&mut files.write).collect(),
        NicKindConfig::Sim(_) | NicKindConfig::Soft { .. } | NicKindConfig::Device { .. } => {
            Vec::new()
        }
    }
}

/// Places a NIC's devices consecutively among a domain's: in a gap that removed devices have left,
/// or at the end.
fn assign_devices(nic: &mut NicKindConfig, own: Vec<Device>, to: &mut Vec<Device>) {
    if own.is_empty() {
        return;
    }
    let is_free = |devices: &[Device]| devices.iter().all(|device| *device == Device::Nothing);
    let count = own.len();
    let free = to.windows(count).position(is_free);
    let last = to.iter().rposition(|device| *device != Device::Nothing);
    let place = free.unwrap_or(last.map_or(0, |last| last + 1));
    to.splice(place..(place + count).min(to.len()), own);
    for (number, place) in numbers(nic).into_iter().zip(place as u32..) {
        *number = place;
    }
}

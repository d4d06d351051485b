//! Workers of the driver domain with other NICs: what each has of them.

use super::LiveConfig;
use super::nics::{self, Refitted};
use crate::check;
use crate::domain::{DriverConfig, NicConfig, NicKind};
use crate::machine;
use crate::problem::Problems;
use crate::sizes::nic_pages;
use abi::machine::{Device, Domain, Setting};
use std::collections::BTreeSet;

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
        for nic in &mut nics {
            match told.iter().find(|before| before.name == nic.name) {
                Some(before) if stays(&nic.name) => nic.kind.clone_from(&before.kind),
                _ => take_over(nic, &devices, &mut domain.devices),
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

/// Numbers of a NIC's devices.
fn numbers(kind: &NicKind) -> Vec<u32> {
    match kind {
        NicKind::Tap { device, queues, .. } => [&[*device], &queues[..]].concat(),
        NicKind::Local { device, .. } => vec![*device],
        NicKind::Pcap(files) => files.read.into_iter().chain(files.write).collect(),
        NicKind::Xdp { .. } | NicKind::Sim { .. } => Vec::new(),
    }
}

/// Puts a NIC's device among a domain's, where one has gone or behind all.
fn take_over(nic: &mut NicConfig, from: &[Device], to: &mut Vec<Device>) {
    if let NicKind::Tap { device, .. } | NicKind::Local { device, .. } = &mut nic.kind
        && let Some(own) = from.get(*device as usize)
    {
        let free = to.iter().position(|device| *device == Device::Nothing);
        let place = free.unwrap_or(to.len());
        match to.get_mut(place) {
            Some(free) => free.clone_from(own),
            None => to.push(own.clone()),
        }
        *device = place as u32;
    }
}

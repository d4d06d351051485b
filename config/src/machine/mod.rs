//! From a [`Config`] to what the monitor builds: domains with their sizes, devices, connections,
//! and the text for each domain's program.

mod dedicated;
mod devices;
mod driver;
mod guest;
mod nic;
mod told;
mod waiting;

use crate::domain::{NicConfig, VifConfig};
use crate::model::Config;
use crate::sizes::worker_name;
use abi::machine::{Access, Connection, Device, Domain, Machine};
pub(crate) use told::json;

/// The machine of a configuration, whether that is valid or not: no size overflows, too large ones
/// are as large as their types.
pub(crate) fn build(config: &Config) -> Machine {
    let workers = 0..config.driver.workers.max(1);
    let mut domains: Vec<_> = workers
        .clone()
        .map(|worker| driver::domain(config, worker))
        .collect();
    let mut connections = Vec::new();
    for (g, guest) in config.guests.iter().enumerate() {
        domains.push(guest::domain(config, g, guest));
        for handle in 0..guest.vifs.len() {
            connections.extend(workers.clone().map(|worker| Connection {
                backend: worker_name(worker),
                frontend: guest.name.clone(),
                handle: handle as u16,
            }));
        }
    }
    Machine {
        name: config.name.clone(),
        domains,
        connections,
        // Who belongs to a group is known to the system alone.
        access: Access::default(),
        live: None,
    }
}

/// The domain of guest number `g`, and what a worker of the driver domain is told of its
/// interfaces, but for connections and slots.
pub(crate) fn guest_of(config: &Config, g: usize) -> (Domain, Vec<VifConfig>) {
    let guest = config.guests.get(g).cloned().unwrap_or_default();
    let vifs = guest.vifs.iter().enumerate();
    let vifs = vifs.map(|(v, vif)| driver::told_of(config, (g, v), vif));
    let vifs = vifs.collect();
    (guest::domain(config, g, &guest), vifs)
}

/// What a worker is told of its NICs, and their devices.
pub(crate) fn nics_of(config: &Config, worker: u32) -> (Vec<NicConfig>, Vec<Device>) {
    let nics = nic::Nics::build(config, worker);
    (nics.nics, nics.devices.0)
}

/// Slots of each worker's window that its NICs take, from the first one on.
pub(crate) fn nic_slots(config: &Config) -> u32 {
    nic::Nics::build(config, 0).window_slots
}

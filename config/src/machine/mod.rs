//! Converts a [`Config`] to the machine that the monitor builds: domains with their sizes, devices,
//! connections, and each program's configuration text.

mod dedicated;
pub(crate) mod device;
mod devices;
mod driver;
mod encode;
mod guest;
mod nic;
mod polling;

use crate::domain::{NicConfig, VifConfig};
use crate::model::Config;
use crate::sizes::worker_name;
use abi::machine::{Access, Connection, Device, DomainSpec, Machine};
pub(crate) use encode::json;

/// Returns the machine of a configuration, which may be invalid: sizes saturate instead of
/// overflowing.
pub(crate) fn build(config: &Config) -> Machine {
    let workers = 0..config.driver.workers.max(1);
    let mut domains: Vec<_> = workers
        .map(|worker| driver::domain(config, worker))
        .collect();
    let mut connections = Vec::new();
    for (g, guest) in config.guests.iter().enumerate() {
        domains.push(guest::domain(config, g, guest));
        connections.extend(guest::connections(config, guest));
    }
    for (n, nic) in config.nics.iter().enumerate() {
        let Some(device) = device::domain(config, n, nic) else {
            continue;
        };
        connections.push(Connection {
            backend: device.name.clone(),
            frontend: worker_name(0),
            handle: n as u16,
        });
        domains.push(device);
    }
    Machine {
        name: config.name.clone(),
        domains,
        connections,
        // The command line fills in the access rights, because it reads the members of groups.
        access: Access::default(),
        live: None,
    }
}

/// Returns the domain of guest number `g` and its connections, and a worker's configuration of its
/// interfaces, without the numbers of connections and slots.
pub(crate) fn guest_of(config: &Config, g: usize) -> (DomainSpec, Vec<Connection>, Vec<VifConfig>) {
    let guest = config.guests.get(g).cloned().unwrap_or_default();
    let vifs = guest.vifs.iter().enumerate();
    let vifs = vifs.map(|(v, vif)| driver::vif_config(config, (g, v), vif));
    let vifs = vifs.collect();
    let connections = guest::connections(config, &guest).collect();
    (guest::domain(config, g, &guest), connections, vifs)
}

/// Returns a worker's configuration of its NICs, and their devices.
pub(crate) fn nics_of(config: &Config, worker: u32) -> (Vec<NicConfig>, Vec<Device>) {
    let nics = nic::Nics::build(config, worker);
    (nics.nics, nics.devices.0)
}

/// Returns the number of slots that the NICs occupy at the start of each worker's window.
pub(crate) fn nic_slots(config: &Config) -> u32 {
    nic::Nics::build(config, 0).window_slots
}

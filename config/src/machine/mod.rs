//! From a [`Config`] to what the monitor builds: domains with their sizes, devices, connections,
//! and the text for each domain's program.

mod dedicated;
mod devices;
mod driver;
mod guest;
mod nic;
mod told;
mod waiting;

use crate::model::Config;
use crate::sizes::worker_name;
use abi::machine::{Connection, Machine};

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
    }
}

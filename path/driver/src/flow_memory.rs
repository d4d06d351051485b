//! Memory of the flow tables ([`net::flows`]): places in the driver domain's own frames, which
//! outlive its process.
//!
//! The next process finds the table of a port by the port's identity. A place with a table that no
//! port has adopted is reused only when no other place is free.

use config::domain::{DriverConfig, NicConfig, VifConfig, flow_table_pages};
use net::flows::Flows;
use shmem::Span;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher};

/// Time for which a new table picks up connections that are older than itself.
const PICK_UP_NS: u64 = 30_000_000_000;

/// Places for tables.
#[derive(Debug, Default)]
pub struct FlowMemory {
    /// Each place with the port that uses it.
    places: Vec<(Span, Option<usize>)>,
}

impl FlowMemory {
    /// Returns the number of bytes that a driver domain with this configuration needs.
    #[must_use]
    pub fn bytes(config: &DriverConfig) -> usize {
        place_bytes(config) * config.flow_tables as usize
    }

    /// Divides `memory` into places.
    #[must_use]
    pub fn new(memory: Span, config: &DriverConfig) -> Self {
        let (each, bytes) = (place_bytes(config), Flows::bytes(config.flows as usize));
        let places = (0..config.flow_tables as usize).filter_map(|n| memory.sub(n * each, bytes));
        Self {
            places: places.map(|span| (span, None)).collect(),
        }
    }

    /// Returns the table of a port: the previous process's, or an empty one.
    ///
    /// # Errors
    /// All places are taken.
    pub fn table(&mut self, port: usize, identity: u64, now_ns: u64) -> Result<Flows, String> {
        let free = || {
            self.places
                .iter()
                .enumerate()
                .filter(|(_, (_, of))| of.is_none())
        };
        let adopted = free().find_map(|(n, (span, _))| {
            let flows = Flows::adopt(*span, identity, now_ns)?;
            Some((n, flows))
        });
        let begun = || {
            let mut unused = free().filter(|(_, (span, _))| Flows::is_free(*span));
            let (n, (span, _)) = unused.next().or_else(|| free().next())?;
            let flows = Flows::new(*span, identity, random(), now_ns.saturating_add(PICK_UP_NS))?;
            Some((n, flows))
        };
        let (n, flows) = adopted.or_else(begun).ok_or_else(|| {
            let all = self.places.len();
            format!("all {all} flow tables are in use; raise `flow_tables` in [driver]")
        })?;
        if let Some((_, of)) = self.places.get_mut(n) {
            *of = Some(port);
        }
        Ok(flows)
    }

    /// Frees the table of a port.
    pub fn give_up(&mut self, port: usize, flows: Flows) {
        flows.give_up();
        for (_, of) in self.places.iter_mut().filter(|(_, of)| *of == Some(port)) {
            *of = None;
        }
    }
}

fn place_bytes(config: &DriverConfig) -> usize {
    flow_table_pages(config.flows) as usize * abi::PAGE
}

/// Returns two unpredictable words. The standard library seeds its maps from the kernel.
fn random() -> [u64; 2] {
    [(); 2].map(|()| RandomState::new().hash_one(0))
}

/// Returns the identity of a NIC's port, which is the same in every driver domain that serves the
/// NIC.
#[must_use]
pub fn of_nic(nic: &NicConfig) -> u64 {
    identity(&("nic", &nic.name))
}

/// Returns the identity of an interface's port, which is the same in every driver domain that
/// serves the interface. It includes the connection, in which interfaces with the same name or MAC
/// differ.
#[must_use]
pub fn of_vif(vif: &VifConfig) -> u64 {
    identity(&(vif.conn, &vif.name, vif.mac))
}

fn identity(of: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests;

//! Memory of the flow tables ([`net::flows`]): places in the driver domain's frames, which outlive
//! the driver's process.
//!
//! The next process finds a port's table by the port's identity. A place whose table no port has
//! adopted is reused only if no other place is free.

use config::domain::{DriverConfig, NicConfig, VifConfig, flow_table_pages};
use net::flows::Flows;
use shmem::Span;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, DefaultHasher, Hash, Hasher};

/// Time during which a new table adopts connections that are older than the table.
const ADOPTION_NS: u64 = 30_000_000_000;

/// Places for flow tables.
#[derive(Debug, Default)]
pub struct FlowMemory {
    /// Each place, and the port that uses it.
    places: Vec<(Span, Option<usize>)>,
}

impl FlowMemory {
    /// Returns the number of bytes that a driver domain with this configuration needs.
    #[must_use]
    pub fn bytes(config: &DriverConfig) -> usize {
        place_bytes(config) * config.driver.flow_tables as usize
    }

    /// Divides `memory` into places.
    #[must_use]
    pub fn new(memory: Span, config: &DriverConfig) -> Self {
        let (each, bytes) = (
            place_bytes(config),
            Flows::bytes(config.driver.flows as usize),
        );
        let places =
            (0..config.driver.flow_tables as usize).filter_map(|n| memory.sub(n * each, bytes));
        Self {
            places: places.map(|span| (span, None)).collect(),
        }
    }

    /// Returns the flow table of a port: the table of the previous process if it had one, otherwise
    /// an empty table.
    ///
    /// # Errors
    /// Returns an error if all places are in use.
    pub fn table(&mut self, port: usize, identity: u64, now_ns: u64) -> Result<Flows, String> {
        let free = || {
            self.places
                .iter()
                .enumerate()
                .filter(|(_, (_, user))| user.is_none())
        };
        let adopted = free().find_map(|(n, (span, _))| {
            let flows = Flows::adopt(*span, identity, now_ns)?;
            Some((n, flows))
        });
        let created = || {
            let mut unused = free().filter(|(_, (span, _))| Flows::is_free(*span));
            let (n, (span, _)) = unused.next().or_else(|| free().next())?;
            let flows = Flows::new(
                *span,
                identity,
                random(),
                now_ns.saturating_add(ADOPTION_NS),
            )?;
            Some((n, flows))
        };
        let (n, flows) = adopted.or_else(created).ok_or_else(|| {
            let all = self.places.len();
            format!("all {all} flow tables are in use; raise `flow_tables` in [driver]")
        })?;
        if let Some((_, user)) = self.places.get_mut(n) {
            *user = Some(port);
        }
        Ok(flows)
    }

    /// Frees the flow table of a port.
    pub fn release(&mut self, port: usize, flows: Flows) {
        flows.release_memory();
        for (_, user) in self
            .places
            .iter_mut()
            .filter(|(_, user)| *user == Some(port))
        {
            *user = None;
        }
    }
}

fn place_bytes(config: &DriverConfig) -> usize {
    flow_table_pages(config.driver.flows) as usize * abi::PAGE
}

/// Returns two unpredictable words: the standard library seeds its hashers with random numbers of
/// the kernel.
fn random() -> [u64; 2] {
    [(); 2].map(|()| RandomState::new().hash_one(0))
}

/// Returns the identity of a NIC's port. It is the same in each driver process that serves the NIC.
#[must_use]
pub fn nic_identity(nic: &NicConfig) -> u64 {
    identity(&("nic", &nic.name))
}

/// Returns the identity of an interface's port. It is the same in each driver process that serves
/// the interface. It includes the connection, which distinguishes interfaces with the same name or
/// MAC.
#[must_use]
pub fn vif_identity(vif: &VifConfig) -> u64 {
    identity(&(vif.conn, &vif.name, vif.mac))
}

fn identity(of: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests;

//! Maps IP addresses to ports.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// The owner of an IP address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// A port that has the address.
    Port(usize),
    /// A gateway of some stations that is behind no port.
    Gateway,
    /// No known owner.
    Unknown,
}

/// The configured addresses of all ports.
#[derive(Debug, Default)]
pub(super) struct Addresses {
    ports: BTreeMap<IpAddr, usize>,
    /// Gateways, each with a port whose stations use it.
    gateways: BTreeSet<(IpAddr, usize)>,
}

impl Addresses {
    pub(super) fn add(&mut self, port: usize, own: &[IpAddr], gateways: &[IpAddr]) {
        self.ports
            .extend(own.iter().map(|address| (*address, port)));
        let gateways = gateways.iter().map(|address| (*address, port));
        self.gateways.extend(gateways);
    }

    pub(super) fn remove(&mut self, port: usize) {
        self.ports.retain(|_, owner| *owner != port);
        self.gateways.retain(|(_, user)| *user != port);
    }

    /// Returns whether a port has the address.
    pub(super) fn is_taken(&self, address: &IpAddr) -> bool {
        self.ports.contains_key(address)
    }

    pub(super) fn owner(&self, address: IpAddr) -> Owner {
        if let Some(port) = self.ports.get(&address) {
            return Owner::Port(*port);
        }
        let mut users = self.gateways.range((address, 0)..=(address, usize::MAX));
        match users.next() {
            Some(_) => Owner::Gateway,
            None => Owner::Unknown,
        }
    }
}

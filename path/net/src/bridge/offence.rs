//! Record of the first frame of each kind that a guest forged, to help an operator find the cause.

use super::addresses::{Addresses, Owner};
use super::drops::DropReason;
use crate::packet::{Mac, Network, Packet};
use std::net::IpAddr;

/// A forged identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForgedIdentity {
    /// An Ethernet source.
    Mac(Mac),
    /// An IP address.
    Address(IpAddr),
    /// The role of a router or of a DHCP server.
    Role,
}

/// The first frame from a port that was dropped for a given reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offence {
    /// The reason; [`DropReason::is_forgery`] holds for it.
    pub reason: DropReason,
    /// The claimed identity.
    pub claim: ForgedIdentity,
    /// The other port that owns the MAC or address, if known.
    pub owner: Option<usize>,
}

impl Offence {
    /// Describes the claim of `header`, which was dropped for `reason`. `station` finds the port of
    /// a MAC.
    #[cold]
    pub(super) fn of(
        reason: DropReason,
        header: &[u8],
        addresses: &Addresses,
        station: impl Fn(Mac) -> Option<usize>,
    ) -> Self {
        let claim = claim(reason, header);
        let owner = match claim {
            ForgedIdentity::Address(address) => match addresses.owner(address) {
                Owner::Port(port) => Some(port),
                Owner::Gateway | Owner::Unknown => None,
            },
            ForgedIdentity::Mac(mac) => station(mac),
            ForgedIdentity::Role => None,
        };
        Self {
            reason,
            claim,
            owner,
        }
    }
}

fn claim(reason: DropReason, header: &[u8]) -> ForgedIdentity {
    let source = header.get(6..12).and_then(|mac| mac.try_into().ok());
    let mac = source.map_or(ForgedIdentity::Role, |mac| ForgedIdentity::Mac(Mac(mac)));
    match (reason, Packet::parse(header).map(|packet| packet.network)) {
        (DropReason::ForgedSource, _) => mac,
        (DropReason::ForgedArp, Ok(Network::Arp(arp))) => {
            ForgedIdentity::Address(arp.sender.into())
        }
        (DropReason::ForgedNd, Ok(Network::Ipv6(ip))) => {
            ForgedIdentity::Address(super::guard::advertised(header, &ip).into())
        }
        (DropReason::ForgedAddress, Ok(Network::Ipv4(ip))) => {
            ForgedIdentity::Address(ip.source.into())
        }
        (DropReason::ForgedAddress, Ok(Network::Ipv6(ip))) => {
            ForgedIdentity::Address(ip.source.into())
        }
        _ => ForgedIdentity::Role,
    }
}

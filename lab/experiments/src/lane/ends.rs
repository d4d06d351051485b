//! Both ends of a lane: namespaces, and the addresses in them.

use crate::ns::Namespace;
use std::net::{IpAddr, Ipv4Addr};

/// Name of the interface at both ends of a lane.
pub const IFNAME: &str = "gw0";
/// The wire's address.
pub const WIRE: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 77, 0, 1));
/// The guest's address; further guests have those after it.
pub const GUEST: IpAddr = guest_address(0);

const fn guest_address(number: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 77, 0, 2 + number))
}

/// Bits of the network's prefix.
pub const PREFIX: u8 = 24;

/// The namespaces at both ends.
#[derive(Debug)]
pub struct Ends {
    /// Behind the wire.
    pub wire: Namespace,
    /// Behind the guest.
    pub guest: Namespace,
    /// Behind further guests.
    pub further: Vec<Namespace>,
}

impl Ends {
    /// Two new namespaces.
    ///
    /// # Errors
    /// If this user may not make them.
    pub fn new() -> anyhow::Result<Self> {
        Self::of_guests(1)
    }

    /// New namespaces of a wire and of so many guests, at least one.
    ///
    /// # Errors
    /// As [`Ends::new`].
    pub fn of_guests(guests: u32) -> anyhow::Result<Self> {
        let further = (1..guests).map(|_| Namespace::new("guest namespace"));
        Ok(Self {
            wire: Namespace::new("wire namespace")?,
            guest: Namespace::new("guest namespace")?,
            further: further.collect::<Result<_, _>>()?,
        })
    }

    /// The guests' namespaces, and the addresses in them.
    pub fn guests(&self) -> impl Iterator<Item = (&Namespace, IpAddr)> {
        let all = std::iter::once(&self.guest).chain(&self.further);
        (0..).zip(all).map(|(n, guest)| (guest, guest_address(n)))
    }
}

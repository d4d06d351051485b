//! Both ends of a lane: namespaces, and the addresses in them.

use super::cores::Cores;
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

/// What is to be said of a lane whose driver domain (or forwarder) writes to the wire's TAP.
pub const WIRE_INSIDE: &str =
    "`driver` contains the wire's own TCP, which a write to the wire's TAP runs";

/// Has what arrives at an end handled on `core`: receive packet steering.
///
/// # Errors
/// If this user may not.
pub(super) fn steer(end: &mut Namespace, core: usize) -> anyhow::Result<()> {
    // Groups of 32 CPUs, the last first.
    let mut mask = format!("{:x}", 1u32 << (core % 32));
    for _ in 0..core / 32 {
        mask.push_str(",00000000");
    }
    let mut queue = |number| {
        let file = format!("/sys/class/net/{IFNAME}/queues/rx-{number}/rps_cpus");
        end.write(&file, &mask)
    };
    queue(0)?;
    // As many queues as there are.
    let _further = (1..).take_while(|&number| queue(number).is_ok()).count();
    Ok(())
}

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

    /// Has what arrives at the wire's end handled on the wire's core (receive packet steering), as
    /// on another machine, not by who writes to the wire.
    ///
    /// # Errors
    /// In words what that means for the lane's figures, where this user may not.
    pub fn wire_apart(&mut self, cores: Cores) -> Result<(), String> {
        steer(&mut self.wire, cores.wire).map_err(|error| format!("{WIRE_INSIDE} ({error:#})"))
    }

    /// The guests' namespaces, and the addresses in them.
    pub fn guests(&self) -> impl Iterator<Item = (&Namespace, IpAddr)> {
        let all = std::iter::once(&self.guest).chain(&self.further);
        (0..).zip(all).map(|(n, guest)| (guest, guest_address(n)))
    }
}

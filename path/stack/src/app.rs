//! What every program of a station is, and what it works with.

use smoltcp::iface::{Interface, SocketSet};
use smoltcp::wire::IpAddress;

/// First port that programs connect from.
pub(crate) const FIRST_PORT: u16 = 49_152;

/// What a program works with during a step.
pub(crate) struct Context<'a> {
    /// Nanoseconds since the station's first turn.
    pub(crate) since_start_ns: u64,
    pub(crate) interface: &'a mut Interface,
    pub(crate) sockets: &'a mut SocketSet<'static>,
    pub(crate) next_port: &'a mut u16,
}

impl Context<'_> {
    /// A port to connect from.
    pub(crate) fn port(&mut self) -> u16 {
        let port = *self.next_port;
        *self.next_port = port.checked_add(1).unwrap_or(FIRST_PORT);
        port
    }
}

/// A program of the station.
pub(crate) trait App {
    /// Does what can be done now.
    fn step(&mut self, context: &mut Context<'_>);

    /// When it wants its next step although no frame comes: nanoseconds since the station's first
    /// turn.
    fn due_ns(&self) -> Option<u64> {
        None
    }

    /// What it has counted: always the same names in the same order.
    fn counters(&self) -> Vec<(&'static str, u64)>;
}

/// An address for smoltcp, which has its own name for the same type of thing.
pub(crate) fn endpoint(address: std::net::SocketAddr) -> smoltcp::wire::IpEndpoint {
    smoltcp::wire::IpEndpoint::new(IpAddress::from(address.ip()), address.port())
}

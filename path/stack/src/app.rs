//! The interface of a station's programs, and the context of their steps.

use smoltcp::iface::{Interface, SocketSet};
use smoltcp::wire::IpAddress;

/// First local port of outgoing connections.
pub(crate) const FIRST_PORT: u16 = 49_152;

/// Context of a program's step.
pub(crate) struct Context<'a> {
    /// Time in nanoseconds since the station's first turn.
    pub(crate) since_start_ns: u64,
    pub(crate) interface: &'a mut Interface,
    pub(crate) sockets: &'a mut SocketSet<'static>,
    pub(crate) next_port: &'a mut u16,
}

impl Context<'_> {
    /// Returns a local port for a connection.
    pub(crate) fn allocate_port(&mut self) -> u16 {
        let port = *self.next_port;
        *self.next_port = port.checked_add(1).unwrap_or(FIRST_PORT);
        port
    }
}

/// A program of the station.
pub(crate) trait App {
    /// Does all work that is currently possible.
    fn step(&mut self, context: &mut Context<'_>);

    /// Returns the time at which the next step is due even without a frame, in nanoseconds since
    /// the station's first turn.
    fn due_ns(&self) -> Option<u64> {
        None
    }

    /// Returns the program's counters, always with the same names in the same order.
    fn counters(&self) -> Vec<(&'static str, u64)>;
}

/// Converts an address to smoltcp's type.
pub(crate) fn endpoint(address: std::net::SocketAddr) -> smoltcp::wire::IpEndpoint {
    smoltcp::wire::IpEndpoint::new(IpAddress::from(address.ip()), address.port())
}

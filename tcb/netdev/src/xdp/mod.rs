//! Sets up AF_XDP sockets for the monitor. A socket receives all packets that an interface
//! receives.
//!
//! ```text
//!   wire's namespace            a namespace without a name          domain
//!   stations ── veth ─────────── veth ── XDP program ── socket ───► rings (window), UMEM (frames)
//! ```
//!
//! If the wire is not an interface of the system, it is a veth pair with one end in the wire's
//! namespace. The other end is in a separate, unnamed namespace in which no other program sends or
//! listens. The kernel removes that namespace and the pair when the monitor exits for any reason.
//!
//! With dedicated queues for guests, `queues.rs` selects the socket of a frame, and `rules` selects
//! the frames that may pass.
//!
//! Between the two ends of a veth pair, the kernel does not compute checksums, and a socket cannot
//! recognize such packets. So the sending end is configured to compute checksums.

mod queues;
mod rules;
mod shared;
mod socket;
mod wire;

pub use queues::QueueSocket;
pub use shared::RingPages;
pub use socket::XdpSocket;
pub use wire::{XdpDevice, XdpInterface, inspect, open, probe};

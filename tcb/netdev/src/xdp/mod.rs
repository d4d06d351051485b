//! Set-up of an AF_XDP socket, by the monitor: everything that comes by an interface goes to it.
//!
//! ```text
//!   wire's namespace            a namespace without a name          domain
//!   stations ── veth ─────────── veth ── XDP program ── socket ───► rings (window), UMEM (frames)
//! ```
//!
//! Without an interface of the system's own a veth pair is made, with one end where the wire is.
//! The other end lies in a namespace of its own, where nobody else sends or listens; when the
//! monitor ends, however it does, that namespace goes and takes the pair along.
//!
//! With queues for single guests `queues.rs` has what leads to which socket, and `rules` what of it
//! may.
//!
//! Between the two ends of a veth pair the kernel leaves checksums undone, and nothing tells a
//! socket which ones. So a sender over the pair is made to fill them in.

mod queues;
mod rules;
mod shared;
mod socket;
mod wire;

pub use queues::QueueSocket;
pub use shared::RingPages;
pub use socket::Socket;
pub use wire::{Wire, XdpDevice, inspect, open, probe};

//! What a domain's program is told: the opaque `config` text of [`abi::machine::Domain`], as JSON.
//!
//! The command line writes these, the monitor relays them unread, the programs `driver` and
//! `guest` read them at their start. Devices and connections are named by number: a device by its
//! place in [`abi::machine::Domain::devices`], a connection by its place among the domain's own
//! (in the order of [`abi::machine::Machine::connections`]).

mod capture;
mod driver;
mod guest;
mod link;
mod station;

pub use crate::address::Cidr;
pub use crate::lro::Lro;
pub use capture::Capture;
pub use driver::{
    BURST_BYTES, DedicatedQueue, DriverConfig, FRAME_EXTRA_BYTES, GSO_BYTES, LINEAR_BUFFERS,
    LINEAR_BYTES, Limit, Moderation, NicConfig, NicKind, QUEUE_BYTES, VifConfig, Vmq, XDP_MTU_MAX,
};
pub use guest::{EndpointConfig, FILE_GRANTS, GuestConfig, GuestVif};
pub use link::{BUFFER_BYTES, BufferSize, GrantMode, Offloads, RING_ORDER_MAX, RingFormat};
pub use station::{Stack, StackApp};

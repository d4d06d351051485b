//! What stands behind a netfront when it is not a TAP: devices that make, take or answer frames
//! inside the guest domain.
//!
//! | module | what it is |
//! |---|---|
//! | [`sink`] | counts frames and throws them away |
//! | [`source`] | makes frames of one size |
//! | [`echo`] | sends every frame back |
//! | [`shared`] | one of them behind several queues |
//! | `waiting` | frames that wait for buffers |
//! | [`stack`] | a TCP/IP station with programs; also the far end of a `sim` NIC |

pub mod echo;
pub mod shared;
pub mod sink;
pub mod source;
pub mod stack;
mod waiting;

pub use echo::Echo;
pub use shared::Shared;
pub use sink::Sink;
pub use source::Source;
pub use stack::StackEndpoint;

/// Bytes of the largest frame that any endpoint takes: an IP packet of 64 KB and its Ethernet
/// header with a VLAN tag.
const FRAME_MAX: usize = 65_535 + 18;

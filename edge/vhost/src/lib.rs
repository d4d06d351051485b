//! The network device of a virtual machine, served over vhost-user by a shim domain.
//!
//! Only the shim maps the virtual machine's memory. It copies frames between virtqueue buffers and
//! the buffers of its netfront, so the driver domain never has access to the virtual machine.
//!
//! Both peers may be hostile: the virtual machine writes the rings, and its monitor (the *front
//! end*) sends the messages and may truncate or punch the memory at any time. So every access is a
//! faultable copy of `shmem`, every length, chain and count has a bound, and faults have three
//! grades:
//!
//! | grade | type | consequence |
//! |---|---|---|
//! | a bad chain | [`queue::BadChain`] | the frame is dropped and counted, the chain is returned |
//! | a bad ring | [`queue::RingError`] | the ring stops and its error descriptor is signalled |
//! | a bad message | [`ProtocolError`] | the connection ends with a message on the console |
//!
//! | module | contents |
//! |---|---|
//! | [`system`] | the shim's system, as a trait: mappings, and descriptors to sleep on |
//! | [`features`] | feature bits, and the offer |
//! | `request`, `message` | codes of requests, and their payloads |
//! | `socket` | messages and descriptors from a stream |
//! | [`log`] | the log of written pages |
//! | [`memory`] | regions of the virtual machine's memory |
//! | [`queue`] | the split virtqueue |
//! | `vring` | one ring of a connection, with its descriptors |
//! | `control` | the control queue: how many pairs the driver uses |
//! | `connection` | the state of one connection, and the answer to each request |
//! | `link` | the state of the virtual machine's link |
//! | [`backend`] | successive connections |
//! | [`device`] | queue pairs as [`nic::Nic`]s |
//!
//! Names are those of the virtio and vhost-user specifications.

pub mod backend;
mod connection;
mod control;
pub mod device;
pub mod features;
mod link;
pub mod log;
pub mod memory;
mod message;
mod protocol_error;
pub mod queue;
mod request;
mod socket;
pub mod system;
#[cfg(feature = "testing")]
pub mod testing;
mod vring;

pub use backend::{ConnectionSource, VhostBackend};
pub use device::QueueDevice;
pub use features::Offer;
pub use link::DOWN_AFTER_NS;
pub use protocol_error::ProtocolError;
pub use system::VhostSystem;

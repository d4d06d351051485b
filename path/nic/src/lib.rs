//! Frames, buffers and devices: what a packet is while it passes through Grantway, and what
//! yields and takes packets.
//!
//! The one rule that shapes everything here: *pages stay writable by a peer while we look at
//! them*. So a [`Frame`] is a private snapshot of its header plus opaque payload pieces; every
//! decision is made on the snapshot, and the snapshot is what is sent on.

pub mod buffer;
pub mod device;
pub mod frame;
pub mod moderation;
pub mod rate;

pub use buffer::{Buffer, BufferId, Buffers, Pool};
pub use device::{Caps, Nic, TxReport};
pub use frame::{Checksum, CopyError, Frame, Gso, GsoKind, Offload, Piece};

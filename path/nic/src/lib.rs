//! Frames, buffers and devices: what a packet is while it passes through Grantway, and what
//! yields and takes packets.
//!
//! The one rule that shapes everything here: *pages stay writable by a peer while we look at
//! them*. So a [`Frame`] is a private snapshot of its header plus opaque payload pieces; every
//! decision is made on the snapshot, and the snapshot is what is sent on.
//!
//! | module | job |
//! |---|---|
//! | [`frame`] | a frame on its way |
//! | [`offload`] | checksums and segmentation that are left to others, or done |
//! | [`buffer`] | where a device puts what it receives |
//! | [`device`] | the trait [`Nic`] |
//! | [`small_frame`] | small frames, for the fast path |
//! | [`sim`] | a cable in memory |
//! | [`pcap`] | frames from and to capture files; [`pcap::Tee`] records what passes |
//! | [`fault`] | a device that drops, doubles, reorders and spoils, by a seed |
//! | [`trace`] | a device that remembers the last frames |
//! | [`limited`] | a device behind a token bucket |
//! | [`rate`] | token buckets |
//! | [`moderation`] | when received frames are looked at |
//! | [`vmq`] | NICs with a queue per guest |

pub mod buffer;
pub mod device;
pub mod fault;
pub mod frame;
pub mod limited;
pub mod moderation;
pub mod offload;
pub mod pcap;
mod seed;
pub mod sim;
pub mod small_frame;
pub mod trace;
pub mod vmq;

pub use buffer::{Buffer, BufferId, Buffers, Piece, Pool};
pub use device::{Caps, Nic, SmallFrames, TxReport};
pub use frame::Frame;
pub use frame::copy::CopyError;
pub use offload::{Checksum, Gso, GsoKind, Offload};
pub use shmem::rate;
pub use small_frame::{SmallBatch, SmallFrame};

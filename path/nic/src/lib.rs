//! Frames, buffers and devices: the form of a packet in Grantway, and the devices that receive and
//! send packets.
//!
//! The basic rule: *a peer can write to pages while this domain reads them*. So a [`Frame`] is a
//! private snapshot of its header plus opaque payload pieces; every decision uses the snapshot, and
//! the snapshot is what is sent.
//!
//! | module | job |
//! |---|---|
//! | [`frame`] | a frame in transit |
//! | [`offload`] | checksums and segmentation, pending or done |
//! | [`buffer`] | receive buffers of devices |
//! | [`device`] | the traits [`Nic`], and [`Middleware`] for a device around another |
//! | [`small_frame`] | small frames, for the fast path |
//! | [`sim`] | a cable in memory |
//! | [`dma`] | NICs with descriptor rings and DMA; a device in software |
//! | [`pcap`] | capture files: playback, and recording of a device's traffic ([`pcap::Tee`]) |
//! | [`fault`] | a device that drops, duplicates, reorders and corrupts frames at random from a seed |
//! | [`trace`] | a device that records the last frames |
//! | [`limited`] | a device behind a token bucket |
//! | [`rate`] | token buckets |
//! | [`moderation`] | interrupt moderation: when a NIC is polled |
//! | [`vmq`] | NICs with a queue per guest |
//! | [`prefetch`] | prefetching of a batch |
//! | [`virtio`] | the header in front of a frame of a TAP or a virtqueue |

pub mod buffer;
pub mod device;
pub mod dma;
pub mod fault;
pub mod frame;
pub mod limited;
pub mod moderation;
pub mod offload;
pub mod pcap;
pub mod prefetch;
mod seed;
pub mod sim;
pub mod small_frame;
pub mod trace;
pub mod virtio;
pub mod vmq;

pub use buffer::{Buffer, BufferId, Buffers, Piece, Pool};
pub use device::{Caps, Middleware, Nic, Notified, SmallFrames, TxReport};
pub use frame::Frame;
pub use frame::copy::CopyError;
pub use offload::{Checksum, Gso, GsoKind, Offload};
pub use shmem::rate;
pub use small_frame::{SmallBatch, SmallFrame};

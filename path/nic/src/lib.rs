//! Frames, buffers and devices: the representation of a packet in Grantway, and the devices that
//! receive and send packets.
//!
//! The basic rule: *a peer can write to pages while this domain reads them*. A [`Frame`] therefore
//! consists of a private snapshot of its header and opaque payload pieces. Every decision uses the
//! snapshot, and devices send the header from the snapshot.
//!
//! | module | job |
//! |---|---|
//! | [`frame`] | a frame in transit |
//! | [`offload`] | pending and completed checksums and segmentation |
//! | [`buffer`] | receive buffers of devices |
//! | [`device`] | the traits [`Nic`], and [`Middleware`] for a device that wraps another |
//! | [`small_frame`] | small frames, for the fast path |
//! | [`sim`] | a cable in memory |
//! | [`dma`] | NICs with descriptor rings and DMA; a device in software |
//! | [`pcap`] | capture files: playback, and recording of a device's traffic ([`pcap::Tee`]) |
//! | [`fault`] | a device that drops, duplicates, reorders and corrupts random frames from a seed |
//! | [`trace`] | a device that records its last frames |
//! | [`limited`] | a device with a rate limit |
//! | [`rate`] | token buckets |
//! | [`moderation`] | interrupt moderation: when a NIC is polled |
//! | [`vmq`] | NICs with a queue per guest |
//! | [`prefetch`] | prefetching of a batch |
//! | [`virtio`] | the header that precedes each frame of a TAP or a virtqueue |

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

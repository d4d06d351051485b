//! What a guest domain is told.

use super::capture::Capture;
use super::link::{BufferSize, Offloads, RingFormat};
use super::station::Stack;
use crate::lro::Lro;
use serde::{Deserialize, Serialize};

/// What a guest domain is told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GuestConfig {
    /// Its interfaces.
    pub vifs: Vec<GuestVif>,
    /// Microseconds that it looks for work before it sleeps; 0 when it shares a CPU with the
    /// driver.
    pub spin_us: u32,
    /// Whether it offers the CPU to others after each look that found nothing.
    pub yields: bool,
    /// Whether `spin_us` is the most, and how long it looks follows from how long its pauses are.
    #[serde(default)]
    pub adapts: bool,
    /// Whether the hop ledger keeps its stamps.
    pub ledger: bool,
    /// Large receive offload of its interfaces.
    pub lro: Lro,
}

/// One interface of a guest: a netfront for each queue, and what stands behind all of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GuestVif {
    /// Number of the guest's connection of each queue: one to each worker of the driver domain.
    pub conns: Vec<u32>,
    /// Its MAC.
    pub mac: [u8; 6],
    /// Bytes of IP in its longest frame (a TSO packet may be larger).
    pub mtu: u32,
    /// What stands behind the netfront.
    pub endpoint: EndpointConfig,
    /// log2 of the pages of a ring that it asks for, 0 … `RING_ORDER_MAX`.
    pub ring_order: u8,
    /// How its rings lie in their pages, if the driver domain offers that; else as Xen's.
    pub ring_format: RingFormat,
    /// Size of a buffer.
    pub buffers: BufferSize,
    /// Pages of its pool of granted buffers, both directions together.
    pub pool_pages: u32,
    /// Buffers of the pool that may wait for frames to the guest; the rest is kept for frames
    /// from it.
    pub to_guest_buffers: u32,
    /// Buffers beside the pool whose pages are granted when there are to be more.
    pub spare_buffers: u32,
    /// Whole free pages of receive buffers that stay granted; none: all do.
    pub release_threshold: Option<u32>,
    /// Received frames ahead of the one that is looked at whose headers are fetched into the cache.
    pub prefetch: u32,
    /// The most that it asks for.
    pub offloads: Offloads,
    /// Whether the guest forwards packets that come in by it.
    pub forwards: bool,
    /// The frame from which on a device receives into its pool, if one does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rx_pool: Option<u32>,
    /// Pages of a file that what stands behind it sends from where it lies; 0: there is none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub file_pages: u32,
}

/// Pages of a file that an interface grants at once, at the most. Each may be a mapping of the
/// driver domain's, of which a connection has so many even with hundreds of others.
pub const FILE_GRANTS: u32 = 512;

fn is_zero(pages: &u32) -> bool {
    *pages == 0
}

/// What stands behind a netfront.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum EndpointConfig {
    /// A TAP with virtio-net headers in a network namespace: any unmodified program.
    Tap {
        /// Number of the device of each queue.
        devices: Vec<u32>,
    },
    /// A TCP/IP stack inside the guest domain.
    Stack {
        /// Its addresses and programs.
        stack: Stack,
    },
    /// Takes every frame and counts it.
    Sink {
        /// Whether every byte is read.
        touch: bool,
    },
    /// Sends frames of one size.
    Source {
        /// Where to.
        to: [u8; 6],
        /// Bytes of a frame, 60 … 1514 (a VLAN tag not counted).
        size: u32,
        /// Frames a second; none: as fast as they are taken.
        rate_pps: Option<f64>,
        /// Frames that may be under way at once; 0: as many as the ring and the pool allow.
        window: u32,
        /// Frames in all; none: without end.
        count: Option<u64>,
        /// Whether every byte is written for every frame.
        touch: bool,
    },
    /// Sends every frame back to where it came from.
    Echo {},
    /// Frames from a capture file, frames to a capture file.
    Pcap(Capture),
}

//! What the driver domain is told.

use super::capture::Capture;
use super::link::{BUFFER_BYTES, GrantMode, Offloads, RingFormat};
use super::station::Stack;
use crate::address::Cidr;
use crate::lro::Lro;
use crate::rule::{Firewall, Rule};
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// What the driver domain is told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DriverConfig {
    /// The network interfaces that it owns; all are ports of one bridge.
    pub nics: Vec<NicConfig>,
    /// The virtual interfaces that it serves.
    pub vifs: Vec<VifConfig>,
    /// How it gets at the pages that guests grant.
    pub grants: GrantMode,
    /// The most that it offers to guests; what a NIC cannot do is done in software.
    pub offloads: Offloads,
    /// log2 of the pages of a ring that it offers, 0 … `RING_ORDER_MAX`.
    pub ring_order: u8,
    /// How rings lie in their pages, if the guest wants them so; else as Xen's.
    pub ring_format: RingFormat,
    /// Broadcast and multicast frames that each port may send, per second.
    pub broadcast_pps: u32,
    /// Whether reports of members of multicast groups go to all guests: what a guest asks that
    /// routes multicast comes to one worker of several.
    #[serde(default)]
    pub reports_to_all: bool,
    /// Seconds after which a silent station behind a NIC is forgotten.
    pub mac_ageing_s: u32,
    /// Microseconds that it looks for work before it sleeps; 0 when it shares a CPU with a peer.
    pub spin_us: u32,
    /// Whether it offers the CPU to others after each look that found nothing.
    #[serde(default)]
    pub yields: bool,
    /// Whether `spin_us` is the most, and how long it looks follows from how long its pauses are.
    #[serde(default)]
    pub adapts: bool,
    /// Microseconds between two wake-ups of sleeping guests while a NIC has more frames; 0: none
    /// waits.
    pub notify_us: u32,
    /// Whether the hop ledger keeps its stamps.
    pub ledger: bool,
    /// Large receive offload of its NICs.
    pub lro: Lro,
}

/// Bytes of a buffer that a whole aggregate fits, and how many of them each NIC has.
pub const LINEAR_BYTES: u32 = 1 << 16;
/// See [`LINEAR_BYTES`].
pub const LINEAR_BUFFERS: u32 = 16;
/// Bytes of the buffers in which a worker keeps frames of guests that wait for other guests.
pub const QUEUE_BYTES: u32 = 4 << 20;

/// One network interface of the driver domain.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NicConfig {
    /// Its name, for people: `nic.<name>` in the counters.
    pub name: String,
    /// What it is.
    pub kind: NicKind,
    /// Bytes of IP in the longest frame that may leave by it.
    pub mtu: u32,
    /// The NIC's own token bucket, megabits of frames a second, both directions alike; none: no
    /// limit.
    pub rate_mbps: Option<f64>,
    /// How far the bucket fills, bytes of frames.
    pub burst_bytes: u32,
    /// When received frames are looked at.
    pub moderation: Moderation,
    /// Buffers of its receive pool, [`BUFFER_BYTES`] each.
    pub buffers: u32,
    /// Addresses of the stations behind it, which no guest may claim.
    #[serde(default)]
    pub addresses: Vec<IpAddr>,
    /// Routers that these stations send to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gateways: Vec<IpAddr>,
    /// Its dedicated queues, if it has any.
    #[serde(default)]
    pub vmq: Option<Vmq>,
    /// Which frames may pass it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<Rule>,
}

/// Bytes beyond the MTU that a buffer has which a frame is received into in one piece: an Ethernet
/// header, a VLAN tag, and one that shows that the frame was not cut.
pub const FRAME_EXTRA_BYTES: u32 = 19;

/// Bytes of IP in the longest frame that is still to be cut into segments.
pub const GSO_BYTES: u32 = u16::MAX as u32;

/// Bytes of IP in the longest frame that an AF_XDP socket receives into a buffer of
/// [`BUFFER_BYTES`]: the kernel keeps the first 256, a header and a VLAN tag take 18.
pub const XDP_MTU_MAX: u32 = BUFFER_BYTES - 256 - 18;

/// Dedicated queues of a NIC, one for a guest interface, that are given by load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vmq {
    /// How many.
    pub queues: u32,
    /// Milliseconds after which the busiest guests get them; 0: a guest that has one keeps it.
    pub rebalance_ms: u32,
}

/// Kinds of network interface.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum NicKind {
    /// A TAP: what stands behind it, in the kernel, is "the wire".
    Tap {
        /// Number of the device.
        device: u32,
        /// Whether frames carry a virtio-net header.
        vnet_header: bool,
        /// Whether either side may leave checksums to fill in (needs `vnet_header`).
        checksum: bool,
        /// Whether either side may leave TCP data of up to 64 KB to cut (needs `checksum`).
        #[serde(default)]
        tso: bool,
        /// Number of the device of each dedicated queue.
        #[serde(default)]
        queues: Vec<u32>,
    },
    /// An AF_XDP socket over the NIC's buffers.
    Xdp {
        /// Number of the device.
        device: u32,
        /// First slot of the grant window that is kept for its rings.
        rings_slot: u32,
        /// Entries of each ring, a power of two.
        entries: u32,
    },
    /// A cable in memory with a TCP/IP station at its far end, inside the driver domain.
    Sim {
        /// One-way delay, microseconds.
        delay_us: u32,
        /// Share of frames lost, 0.0 … 1.0, in each direction.
        loss: f64,
        /// Seed of the losses.
        seed: u64,
        /// The station's MAC.
        mac: [u8; 6],
        /// The station.
        far: Stack,
    },
    /// Frames from a capture file, frames to a capture file.
    Pcap(Capture),
    /// The driver domain's own end of the bridge: a TAP with checksum and TSO, no ring, no grants.
    Local {
        /// Number of the device.
        device: u32,
        /// The MAC of the kernel's end.
        mac: [u8; 6],
    },
}

/// When a NIC's received frames are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Moderation {
    /// All the time: the driver never sleeps.
    Spin,
    /// Every n microseconds.
    Tick(u32),
    /// When the NIC says that there are some.
    Event,
}

/// Bytes that may pass a limit at once unless something else is written: two packets of 64 KB.
pub const BURST_BYTES: u32 = 128 << 10;

fn burst_bytes() -> u32 {
    BURST_BYTES
}

fn is_usual_burst(bytes: &u32) -> bool {
    *bytes == BURST_BYTES
}

/// A limit on frames: a token bucket.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limit {
    /// Megabits of frames a second.
    pub rate_mbps: f64,
    /// Bytes of frames that may pass at once after a pause.
    pub burst_bytes: u32,
}

/// One virtual interface, as its backend knows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VifConfig {
    /// Number of the driver's connection.
    pub conn: u32,
    /// Its name, for people: `vif.<name>` in the counters.
    pub name: String,
    /// The guest's MAC.
    pub mac: [u8; 6],
    /// Other MACs that the guest may use. Frames to them go to the guest, too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub extra_macs: Vec<[u8; 6]>,
    /// Addresses of the guest that no other guest may claim.
    #[serde(default)]
    pub addresses: Vec<IpAddr>,
    /// Routers that the guest sends to, which no guest may claim to be without their addresses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gateways: Vec<IpAddr>,
    /// Whether ARP and neighbour discovery may claim `addresses` only.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub confined: bool,
    /// Prefixes of the IP sources that the guest may use beside `addresses`. `None`: any source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sources: Option<Vec<Cidr>>,
    /// Whether the guest may send to DHCP clients.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dhcp_server: bool,
    /// Whether others are told where these are, once it is connected: it was away, and they may
    /// have asked in vain, or they may know who has had them before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub announces: bool,
    /// The most that the guest may send, megabits of frames a second; none: no limit.
    pub rate_mbps: Option<f64>,
    /// Bytes of frames that it may send at once after a pause.
    #[serde(default = "burst_bytes", skip_serializing_if = "is_usual_burst")]
    pub burst_bytes: u32,
    /// The limit on what goes to it; none: there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to_guest: Option<Limit>,
    /// Its share against the other vifs when the driver is busy, 1 … 1000.
    pub weight: u32,
    /// First slot of the grant window that is kept for this vif's grants.
    pub first_slot: u32,
    /// Slots kept: grant references from here on cannot be mapped.
    pub slots: u32,
    /// First slot of the grant window that is kept for the sub-tables of [`GrantMode::Counted`],
    /// or for the pages of [`GrantMode::Flip`].
    pub tables_slot: u32,
    /// Pages that [`GrantMode::Flip`] exchanges, as many as the guest's; 0 with other modes.
    #[serde(default)]
    pub flip_pages: u32,
    /// Pages of the driver's own that [`GrantMode::Copy`] copies to and from; 0 with other modes.
    pub staging_pages: u32,
    /// Whether the guest forwards packets that come in by it.
    pub forwards: bool,
    /// Which frames may pass it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<Rule>,
    /// What rules mean for its queues of NICs.
    #[serde(default, skip_serializing_if = "Firewall::is_default")]
    pub firewall: Firewall,
    /// The queue of an AF_XDP wire that is its alone, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<DedicatedQueue>,
}

impl VifConfig {
    /// Takes over what may change while it is served: its rules and its limits.
    pub fn change_to(&mut self, becomes: &Self) {
        self.rules.clone_from(&becomes.rules);
        self.rate_mbps = becomes.rate_mbps;
        self.burst_bytes = becomes.burst_bytes;
        self.to_guest = becomes.to_guest;
    }

    /// An interface without limit and rules, for which nothing of the grant window or of the
    /// driver's own memory is kept.
    #[must_use]
    pub fn new(conn: u32, name: String, mac: [u8; 6]) -> Self {
        Self {
            conn,
            name,
            mac,
            extra_macs: Vec::new(),
            addresses: Vec::new(),
            gateways: Vec::new(),
            confined: false,
            sources: None,
            dhcp_server: false,
            announces: false,
            rate_mbps: None,
            burst_bytes: BURST_BYTES,
            to_guest: None,
            weight: 1,
            first_slot: 0,
            slots: 0,
            tables_slot: 0,
            flip_pages: 0,
            staging_pages: 0,
            forwards: false,
            rules: Vec::new(),
            firewall: Firewall::default(),
            queue: None,
        }
    }

    /// The name of a guest's interface of this number; [`VifConfig::guest_of`] is the way back.
    #[must_use]
    pub fn name_of(guest: &str, number: usize) -> String {
        format!("{guest}-{number}")
    }

    /// The guest whose interface has this name; none: it is no name of an interface.
    #[must_use]
    pub fn guest_of(name: &str) -> Option<&str> {
        name.rsplit_once('-').map(|(guest, _)| guest)
    }
}

/// A queue of an AF_XDP wire that receives into the pages of one guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DedicatedQueue {
    /// Place of the wire among the NICs.
    pub nic: u32,
    /// Number of the device.
    pub device: u32,
    /// First slot of the grant window that is kept for its rings.
    pub rings_slot: u32,
    /// Entries of each ring, a power of two.
    pub entries: u32,
    /// Bytes of a chunk, which is a buffer of the guest's.
    pub chunk_bytes: u32,
    /// The guest's frames that it receives into: the first one.
    pub first_frame: u32,
    /// How many frames there are.
    pub frames: u32,
}

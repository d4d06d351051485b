//! What a domain's program is told: the opaque `config` text of [`abi::machine::Domain`], as JSON.
//!
//! The command line writes these, the monitor relays them unread, the programs `driver` and
//! `guest` read them at their start. Devices and connections are named by number: a device by its
//! place in [`abi::machine::Domain::devices`], a connection by its place among the domain's own
//! (in the order of [`abi::machine::Machine::connections`]).

use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};

pub use crate::address::Cidr;
pub use crate::lro::Lro;
use crate::rule::{Firewall, Rule};

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
    /// log2 of the pages of a ring that it offers, 0 … [`RING_ORDER_MAX`].
    pub ring_order: u8,
    /// How rings lie in their pages, if the guest wants them so; else as Xen's.
    pub ring_format: RingFormat,
    /// Broadcast and multicast frames that each port may send, per second.
    pub broadcast_pps: u32,
    /// Seconds after which a silent station behind a NIC is forgotten.
    pub mac_ageing_s: u32,
    /// Microseconds that it looks for work before it sleeps; 0 when it shares a CPU with a peer.
    pub spin_us: u32,
    /// Microseconds of a polling tick between spinning and sleeping; 0: sleep at once.
    pub tick_us: u32,
    /// Ticks without work until it sleeps for good.
    pub empty_ticks: u32,
    /// Frames taken from one port before the next has its turn.
    pub poll_budget: u32,
    /// Microseconds from one word to sleeping guests to the next while a NIC has more for them.
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

/// The largest `ring_order`: 16 pages, 4096 slots.
pub const RING_ORDER_MAX: u8 = 4;

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
    /// Addresses behind it that no guest may claim: its stations' own, and gateways.
    #[serde(default)]
    pub addresses: Vec<IpAddr>,
    /// Its queues for single guests, if it has any.
    #[serde(default)]
    pub vmq: Option<Vmq>,
    /// Which frames may pass it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<Rule>,
}

/// Bytes beyond the MTU that a buffer has which a frame is received into in one piece: an Ethernet
/// header, a VLAN tag, and one that shows that the frame was not cut.
pub const FRAME_EXTRA_BYTES: u32 = 19;

/// Bytes of IP in the longest frame that an AF_XDP socket receives into a buffer of
/// [`BUFFER_BYTES`]: the kernel keeps the first 256, a header and a VLAN tag take 18.
pub const XDP_MTU_MAX: u32 = BUFFER_BYTES - 256 - 18;

/// Queues of a NIC for single guests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vmq {
    /// How many.
    pub queues: u32,
    /// Milliseconds after which the busiest guests get them; 0: who has one keeps it.
    pub rebalance_ms: u32,
}

/// Bytes of a buffer of the driver domain's own, and of a half-page buffer.
pub const BUFFER_BYTES: u32 = 2048;

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
        /// Number of the device of each queue for a single guest.
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
    Pcap {
        /// Number of the device to read, if any.
        read: Option<u32>,
        /// Number of the device to write, if any.
        write: Option<u32>,
    },
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
    /// Every so many microseconds.
    Tick(u32),
    /// When the NIC says that there are some.
    Event,
}

/// One virtual interface, as its backend knows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VifConfig {
    /// Number of the driver's connection.
    pub conn: u32,
    /// Its name, for people: `vif.<name>` in the counters.
    pub name: String,
    /// The only source MAC that the guest may use, and where frames to it go.
    pub mac: [u8; 6],
    /// Addresses of the guest that no other guest may claim.
    #[serde(default)]
    pub addresses: Vec<IpAddr>,
    /// The most that the guest may send, megabits of frames a second; none: no limit.
    pub rate_mbps: Option<f64>,
    /// Its share against the other vifs when the driver is busy, 1 … 1000.
    pub weight: u32,
    /// First slot of the grant window that is kept for this vif's grants.
    pub first_slot: u32,
    /// Slots kept: grant references from here on cannot be mapped.
    pub slots: u32,
    /// First slot of the grant window that is kept for the sub-tables of [`GrantMode::New`], or for the
    /// pages of [`GrantMode::Flip`].
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
    pub queue: Option<OwnQueue>,
}

/// A queue of an AF_XDP wire that receives into the pages of one guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OwnQueue {
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

/// How the driver domain gets at granted pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GrantMode {
    /// A hypercall copies, many packets at once.
    Copy,
    /// Every page is mapped for its packet and unmapped after it (`frames-map`).
    Map,
    /// Pages change hands: the one that holds a frame for the one that the guest has posted, zeroed. What
    /// guests send is mapped as with [`GrantMode::Map`].
    Flip,
    /// A page is mapped at its first use and stays until the connection ends (`frames-mapped`).
    Mapped,
    /// The new mechanism: the guest has its pages mapped and unmapped, and can take back any of
    /// them at any moment; the driver asks nobody, and counts its uses.
    #[default]
    New,
    /// As [`GrantMode::New`], but the driver neither checks nor counts: all of the guest's buffers
    /// are shared as long as the connection lasts. To measure what checking and counting cost.
    Shared,
}

impl GrantMode {
    /// Whether guests grant by tables of the new mechanism.
    #[must_use]
    pub const fn is_new(self) -> bool {
        matches!(self, Self::New | Self::Shared)
    }
}

/// What a packet on a ring may leave undone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Offloads {
    /// Nothing.
    None,
    /// The TCP or UDP checksum.
    Checksum,
    /// That, and cutting TCP data of up to 64 KB into segments.
    #[default]
    Tso,
}

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
    /// Microseconds of a polling tick between spinning and sleeping; 0: sleep at once.
    pub tick_us: u32,
    /// Ticks without work until it sleeps for good.
    pub empty_ticks: u32,
    /// Frames taken from one side before the other has its turn.
    pub poll_budget: u32,
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
    pub endpoint: Endpoint,
    /// log2 of the pages of a ring that it asks for, 0 … [`RING_ORDER_MAX`].
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
}

/// How rings lie in their pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RingFormat {
    /// Requests, responses and indices apart from each other: no line of the cache is written by
    /// both ends.
    #[default]
    Native,
    /// As Xen's `ring.h` has it.
    Xen,
}

/// Size of a guest's buffers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BufferSize {
    /// Two to a page: a frame of 1514 bytes fits, and the pool is half as large.
    #[default]
    Half,
    /// One to a page, as stock netfronts have it.
    Full,
}

impl BufferSize {
    /// Bytes of a buffer.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::Half => BUFFER_BYTES as usize,
            Self::Full => abi::PAGE,
        }
    }

    /// Buffers of a page.
    #[must_use]
    pub const fn per_page(self) -> u32 {
        (abi::PAGE / self.bytes()) as u32
    }
}

/// What stands behind a netfront.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum Endpoint {
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
    Pcap {
        /// Number of the device to read, if any.
        read: Option<u32>,
        /// Number of the device to write, if any.
        write: Option<u32>,
    },
}

/// A TCP/IP station in user space.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stack {
    /// Its addresses, IPv4 or IPv6.
    #[serde(default)]
    pub addresses: Vec<Cidr>,
    /// Its default route, if any.
    #[serde(default)]
    pub gateway: Option<IpAddr>,
    /// The programs that it runs.
    #[serde(default)]
    pub apps: Vec<StackApp>,
}

/// A program of a TCP/IP station in user space. Each counts what it does: `app.<n>.…` in the
/// domain's counters.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "app", rename_all = "kebab-case", deny_unknown_fields)]
pub enum StackApp {
    /// Takes connections and throws away what comes.
    TcpSink {
        /// The port.
        port: u16,
    },
    /// Takes connections and sends back what comes.
    TcpEcho {
        /// The port.
        port: u16,
    },
    /// Sends a stream.
    TcpSource {
        /// Where to.
        to: SocketAddr,
        /// For how long, seconds.
        seconds: u32,
        /// Seconds until it begins.
        #[serde(default)]
        after_s: u32,
    },
    /// Sends requests to an echo, the next when the last has come back whole, and keeps the times.
    TcpClient {
        /// Where to.
        to: SocketAddr,
        /// Bytes of a request and of its reply.
        size: u32,
        /// For how long, seconds.
        seconds: u32,
        /// Seconds until it begins.
        #[serde(default)]
        after_s: u32,
    },
    /// Sends echo requests, one every 100 ms.
    Ping {
        /// Where to.
        to: IpAddr,
        /// How many.
        count: u32,
        /// Seconds until it begins.
        #[serde(default)]
        after_s: u32,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_survives_json() {
        let stack = Stack {
            addresses: vec![
                "10.0.0.2/24".parse().unwrap(),
                "fd00::2/64".parse().unwrap(),
            ],
            gateway: Some("10.0.0.1".parse().unwrap()),
            apps: vec![
                StackApp::TcpSink { port: 5001 },
                StackApp::TcpEcho { port: 7 },
                StackApp::TcpSource {
                    to: "10.0.0.1:5001".parse().unwrap(),
                    seconds: 2,
                    after_s: 1,
                },
                StackApp::TcpClient {
                    to: "[fd00::1]:7".parse().unwrap(),
                    size: 1,
                    seconds: 2,
                    after_s: 0,
                },
                StackApp::Ping {
                    to: "fd00::1".parse().unwrap(),
                    count: 3,
                    after_s: 0,
                },
            ],
        };
        let endpoints = [
            Endpoint::Tap {
                devices: vec![0, 1],
            },
            Endpoint::Stack {
                stack: stack.clone(),
            },
            Endpoint::Sink { touch: true },
            Endpoint::Source {
                to: [2; 6],
                size: 60,
                rate_pps: Some(1e6),
                window: 32,
                count: None,
                touch: false,
            },
            Endpoint::Echo {},
            Endpoint::Pcap {
                read: Some(1),
                write: None,
            },
        ];
        let guest = GuestConfig {
            vifs: endpoints
                .into_iter()
                .zip(0..)
                .map(|(endpoint, conn)| GuestVif {
                    conns: vec![2 * conn, 2 * conn + 1],
                    mac: [2, 0, 0, 0, 0, 1],
                    mtu: 1500,
                    endpoint,
                    ring_order: 2,
                    ring_format: RingFormat::Native,
                    buffers: BufferSize::Half,
                    pool_pages: 256,
                    to_guest_buffers: 256,
                    spare_buffers: 64,
                    release_threshold: Some(16),
                    prefetch: 8,
                    offloads: Offloads::Tso,
                    forwards: true,
                    rx_pool: (conn > 0).then_some(11),
                })
                .collect(),
            spin_us: 0,
            yields: false,
            tick_us: 0,
            empty_ticks: 0,
            poll_budget: 64,
            ledger: true,
            lro: Lro::default(),
        };
        let text = serde_json::to_string(&guest).unwrap();
        assert_eq!(serde_json::from_str::<GuestConfig>(&text).unwrap(), guest);

        let kinds = [
            NicKind::Tap {
                device: 0,
                vnet_header: true,
                checksum: false,
                queues: vec![1, 2],
            },
            NicKind::Xdp {
                device: 4,
                rings_slot: 8,
                entries: 1024,
            },
            NicKind::Sim {
                delay_us: 10,
                loss: 0.5,
                seed: 1,
                mac: [2; 6],
                far: stack,
            },
            NicKind::Pcap {
                read: Some(1),
                write: Some(2),
            },
            NicKind::Local {
                device: 3,
                mac: [2; 6],
            },
        ];
        let moderations = [
            Moderation::Spin,
            Moderation::Tick(50),
            Moderation::Event,
            Moderation::Event,
            Moderation::Event,
        ];
        let driver = DriverConfig {
            nics: kinds
                .into_iter()
                .zip(moderations)
                .map(|(kind, moderation)| NicConfig {
                    name: "wire".into(),
                    kind,
                    mtu: 1500,
                    rate_mbps: Some(1000.0),
                    burst_bytes: 65536,
                    moderation,
                    buffers: 1024,
                    addresses: vec!["10.0.0.1".parse().unwrap()],
                    vmq: Some(Vmq {
                        queues: 2,
                        rebalance_ms: 100,
                    }),
                    rules: vec![Rule::any("1", true)],
                })
                .collect(),
            vifs: vec![VifConfig {
                conn: 0,
                name: "g-0".into(),
                mac: [2; 6],
                addresses: vec!["fd00::2".parse().unwrap()],
                rate_mbps: None,
                weight: 1,
                first_slot: 0,
                slots: 1024,
                tables_slot: 1024,
                flip_pages: 0,
                staging_pages: 0,
                forwards: false,
                rules: vec![Rule::any("all", false)],
                firewall: Firewall::Shared,
                queue: Some(OwnQueue {
                    nic: 0,
                    device: 3,
                    rings_slot: 9,
                    entries: 512,
                    chunk_bytes: BUFFER_BYTES,
                    first_frame: 11,
                    frames: 256,
                }),
            }],
            grants: GrantMode::Mapped,
            offloads: Offloads::Checksum,
            ring_order: 0,
            ring_format: RingFormat::Xen,
            broadcast_pps: 1000,
            mac_ageing_s: 300,
            spin_us: 50,
            tick_us: 50,
            empty_ticks: 20,
            poll_budget: 64,
            notify_us: 300,
            ledger: false,
            lro: Lro {
                flush: crate::lro::Flush::After(20),
                ..Lro::default()
            },
        };
        let text = serde_json::to_string(&driver).unwrap();
        assert_eq!(serde_json::from_str::<DriverConfig>(&text).unwrap(), driver);
    }

    #[test]
    fn unknown_fields_are_refused() {
        assert!(
            serde_json::from_str::<Endpoint>(r#"{"kind":"sink","touch":true,"speed":1}"#).is_err()
        );
        assert!(serde_json::from_str::<Endpoint>(r#"{"kind":"sink","touch":true}"#).is_ok());
    }
}

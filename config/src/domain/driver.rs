//! Configuration of the driver domain.

use super::link::RingFormat;
use crate::cable::CableConfig;
use crate::capture::CaptureSpec;
use crate::driver::DriverSection;
use crate::guest::{FrameLimit, PortSettings};
use crate::lro::LroConfig;
use crate::nic::{FRAME_EXTRA_BYTES, NicSettings, PCI_HEADER_BYTES};
use crate::port_security::PortGuard;
use crate::soft::Rings;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// Configuration of a worker of the driver domain.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DriverConfig {
    /// The network interfaces that it owns; all are ports of one bridge.
    pub nics: Vec<NicConfig>,
    /// The virtual interfaces that it serves.
    pub vifs: Vec<VifConfig>,
    /// Its section of the file, with the rates of one worker and the computed `spin_us`.
    #[serde(flatten)]
    pub driver: DriverSection,
    /// log2 of the maximum number of pages of a ring, 0 … `RING_ORDER_MAX`.
    pub ring_order: u8,
    /// The layout of rings. The driver uses Xen's if the guest does not support it.
    pub ring_format: RingFormat,
    /// Whether to send reports of multicast group members to all guests. Several workers require
    /// this, because only one of them receives the query of a guest that routes multicast.
    #[serde(default)]
    pub reports_to_all: bool,
    /// Whether it yields the CPU after each empty poll.
    #[serde(default)]
    pub yields: bool,
    /// Whether the polling time adapts to the lengths of the domain's pauses, up to `spin_us`.
    #[serde(default)]
    pub adapts: bool,
    /// Microseconds between two wake-ups of sleeping guests while a NIC has more frames; 0: guests
    /// are woken immediately.
    pub notify_us: u32,
    /// Large receive offload of its NICs.
    pub lro: LroConfig,
}

/// Size of a buffer for a linearized aggregate, bytes.
pub const LINEAR_BYTES: u32 = 1 << 16;
/// Number of such buffers of each NIC; see [`LINEAR_BYTES`].
pub const LINEAR_BUFFERS: u32 = 16;
/// Bytes of the buffers in which a worker queues guests' frames to other guests.
pub const QUEUE_BYTES: u32 = 4 << 20;

/// Returns the number of pages of a table of `flows` flows: 64 bytes for each, and a header.
#[must_use]
pub const fn flow_table_pages(flows: u32) -> u32 {
    match flows {
        0 => 0,
        _ => flows.saturating_add(1).div_ceil(abi::PAGE as u32 / 64),
    }
}

/// One network interface of the driver domain.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NicConfig {
    /// Its name: `nic.<name>` in the counters.
    pub name: String,
    /// Its kind.
    pub kind: NicKindConfig,
    /// Its settings, with the rate of one worker.
    #[serde(flatten)]
    pub settings: NicSettings,
    /// Addresses of the stations behind it, which no guest may claim.
    #[serde(default)]
    pub addresses: Vec<IpAddr>,
    /// Addresses of the routers to which these stations send.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gateways: Vec<IpAddr>,
}

/// Maximum length of an IP packet before segmentation, bytes.
pub const GSO_BYTES: u32 = u16::MAX as u32;

/// Kinds of network interfaces.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum NicKindConfig {
    /// A TAP; "the wire" is behind it, in the kernel.
    Tap {
        /// Number of the device.
        device: u32,
        /// Whether frames carry a virtio-net header.
        vnet_header: bool,
        /// Whether either side may leave checksums blank (needs `vnet_header`).
        checksum: bool,
        /// Whether either side may leave up to 64 KB of TCP data unsegmented (needs `checksum`).
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
        /// First slot of the grant window for its rings.
        rings_slot: u32,
        /// Entries of each ring, a power of two.
        entries: u32,
    },
    /// One end of a cable in memory.
    Sim(CableConfig),
    /// A device in software with descriptor rings, at one end of a cable in memory.
    Soft {
        /// The cable.
        cable: CableConfig,
        /// The rings.
        rings: Rings,
    },
    /// A device with descriptor rings, in a separate domain.
    Device {
        /// Number of the driver's connection to it.
        conn: u32,
        /// Entries of each ring, a power of two.
        descriptors: u32,
        /// Number of dedicated queues.
        #[serde(default)]
        queues: u32,
        /// Whether the device merges received frames.
        #[serde(default)]
        merges: bool,
        /// Whether the device stores headers of received frames in separate buffers.
        #[serde(default)]
        splits: bool,
    },
    /// A PCI device, which accesses the NIC's buffers and rings through an IOMMU.
    Vfio {
        /// Number of the device.
        device: u32,
        /// First slot of the grant window for its registers.
        registers_slot: u32,
        /// Entries of each queue, a power of two.
        descriptors: u32,
    },
    /// Reads frames from a capture file, and writes frames to one.
    Pcap(CaptureSpec),
    /// The driver domain's port in the kernel: a TAP with checksum and TSO, no ring, no grants.
    Local {
        /// Number of the device.
        device: u32,
        /// The MAC of the kernel's end.
        mac: [u8; 6],
    },
}

impl NicKindConfig {
    /// Returns whether a received frame is copied into a buffer by the driver domain or a system
    /// call, so that the buffer can be any memory of the domain. Other devices write by themselves,
    /// and only to the buffers in the NIC's area.
    #[must_use]
    pub const fn copies_frames(&self) -> bool {
        match self {
            Self::Tap { .. } | Self::Sim(_) | Self::Pcap(_) | Self::Local { .. } => true,
            Self::Xdp { .. } | Self::Soft { .. } | Self::Device { .. } | Self::Vfio { .. } => false,
        }
    }
}

impl NicConfig {
    /// Returns the number of pages for its rings, split headers and frames to send, in addition to
    /// its buffers. The driver verifies that they suffice.
    #[must_use]
    pub fn ring_pages(&self) -> u32 {
        let descriptors = match &self.kind {
            NicKindConfig::Soft { rings, .. } => rings.descriptors,
            NicKindConfig::Device { descriptors, .. } => *descriptors,
            NicKindConfig::Vfio { descriptors, .. } => return self.virtqueue_pages(*descriptors),
            _ => return 0,
        };
        let pages = |bytes: u32| bytes.saturating_mul(descriptors).div_ceil(PAGE);
        // Without a device domain, only headers of dedicated queues are split.
        let by_load = self.settings.vmq.map_or(0, |vmq| vmq.queues);
        let (dedicated, split) = match self.kind {
            NicKindConfig::Device { queues, splits, .. } if splits => (queues, queues + 1),
            NicKindConfig::Device { queues, .. } => (queues, 0),
            _ => (by_load, by_load),
        };
        let ring = 1 + pages(DESCRIPTOR_BYTES) + pages(COMPLETION_BYTES);
        let frame = self.settings.mtu.saturating_add(FRAME_EXTRA_BYTES);
        let sent = pages(frame.next_multiple_of(64));
        ring.saturating_mul(dedicated + 2)
            .saturating_add(pages(HEADER_BYTES).saturating_mul(split))
            .saturating_add(sent)
    }

    /// Returns the number of pages for two virtqueues and for frames to send.
    fn virtqueue_pages(&self, entries: u32) -> u32 {
        let pages = |bytes: u32| {
            bytes
                .saturating_mul(entries)
                .saturating_add(4)
                .div_ceil(PAGE)
        };
        let sent = self.settings.mtu.saturating_add(PCI_HEADER_BYTES + 18);
        // Each frame lies in one page.
        let sent = sent.checked_next_power_of_two().unwrap_or(u32::MAX);
        let sent = sent.saturating_mul(entries).div_ceil(PAGE);
        // A descriptor with its entry of the available ring, and an element of the used ring.
        (pages(16 + 2) + pages(8))
            .saturating_mul(2)
            .saturating_add(sent)
    }
}

/// Bytes of a page.
const PAGE: u32 = abi::PAGE as u32;
/// Bytes of a descriptor of a ring.
const DESCRIPTOR_BYTES: u32 = 32;
/// Bytes of a completion of a ring.
const COMPLETION_BYTES: u32 = 16;
/// Bytes reserved for a split header.
const HEADER_BYTES: u32 = 128;

/// The driver domain's configuration of a virtual interface.
///
/// During an upgrade, a driver domain and a manager of different versions work together. A driver
/// accepts the configuration of an older manager, because every added key has a default with the
/// old behaviour. It rejects unknown keys, because ignoring one could lift a restriction.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VifConfig {
    /// Number of the driver's connection.
    pub conn: u32,
    /// Its name: `vif.<name>` in the counters.
    pub name: String,
    /// The guest's MAC.
    pub mac: [u8; 6],
    /// The identities that the guest may claim.
    #[serde(flatten)]
    pub guard: PortGuard,
    /// The settings of its port, with the rate of one worker and the rules that `firewall` adds.
    #[serde(flatten)]
    pub settings: PortSettings,
    /// Whether to announce the addresses once the interface is connected. Queries may have failed
    /// while it was disconnected, or other stations may have cached another guest's MAC for them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub announces: bool,
    /// Limit of the traffic to the guest; `None`: unlimited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to_guest: Option<FrameLimit>,
    /// First slot of the grant window for this vif's grants.
    pub first_slot: u32,
    /// Number of these slots. The driver cannot map higher grant references.
    pub slots: u32,
    /// First slot of the grant window for the sub-tables of `counted` grants, or for the pages of
    /// `flip`.
    pub tables_slot: u32,
    /// Number of pages that `flip` exchanges, equal to the guest's number; 0 in other modes.
    #[serde(default)]
    pub flip_pages: u32,
    /// Number of the driver's own pages that the mode `copy` copies to and from; 0 in other modes.
    pub staging_pages: u32,
    /// Its dedicated queue of an AF_XDP NIC, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<DedicatedQueueConfig>,
    /// Its dedicated queue of a device in a separate domain, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_queue: Option<DeviceQueueConfig>,
}

impl VifConfig {
    /// Adopts the settings that may change while the interface is in use: rules and limits.
    pub fn apply_changes(&mut self, becomes: &Self) {
        self.settings.apply_changes(&becomes.settings);
        self.to_guest = becomes.to_guest;
    }

    /// Returns an interface without limits and rules. It uses neither the grant window nor the
    /// driver's own memory.
    #[must_use]
    pub fn new(conn: u32, name: String, mac: [u8; 6]) -> Self {
        Self {
            conn,
            name,
            mac,
            ..Self::default()
        }
    }

    /// Returns the name of a guest's interface number `number`. [`VifConfig::guest_of`] is the
    /// inverse.
    #[must_use]
    pub fn name_of(guest: &str, number: usize) -> String {
        format!("{guest}-{number}")
    }

    /// Returns the guest whose interface has this name, or `None` if it is not an interface's name.
    #[must_use]
    pub fn guest_of(name: &str) -> Option<&str> {
        name.rsplit_once('-').map(|(guest, _)| guest)
    }
}

/// A dedicated queue of a device in a separate domain, which receives into the pages of one guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceQueueConfig {
    /// Index of the NIC.
    pub nic: u32,
    /// Number of the queue, from 1.
    pub queue: u32,
    /// Number of the driver's connection to the device.
    pub conn: u32,
    /// Slot of the device's window that maps entry 0 of the guest's grants.
    pub first_slot: u32,
    /// Number of the guest's receive buffers.
    pub buffers: u32,
}

/// A queue of an AF_XDP NIC that receives into the pages of one guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DedicatedQueueConfig {
    /// Index of the NIC.
    pub nic: u32,
    /// Number of the device.
    pub device: u32,
    /// First slot of the grant window for its rings.
    pub rings_slot: u32,
    /// Entries of each ring, a power of two.
    pub entries: u32,
    /// Bytes of a chunk, which is one of the guest's buffers.
    pub chunk_bytes: u32,
    /// First of the guest's frames into which it receives.
    pub first_frame: u32,
    /// Number of these frames.
    pub frames: u32,
}

//! A network interface of the driver domain.

use super::capture::CaptureFiles;
use super::station::KernelPort;
use crate::address::{Cidr, MacAddress};
use crate::domain::{FrameSource, ModerationConfig, Offloads, Rings, StackConfig, VmqConfig};
use crate::rule::FirewallRule;
use abi::machine::Uplink;
use std::net::IpAddr;

/// One network interface of the driver domain.
#[derive(Clone, Debug, PartialEq)]
pub struct NicSection {
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: NicKind,
    /// Maximum transmission unit, bytes of IP.
    pub mtu: u32,
    /// Rate of the token bucket, megabits of frames per second; `None`: unlimited.
    pub rate_mbps: Option<f64>,
    /// Capacity of the bucket, bytes of frames.
    pub burst_bytes: u32,
    /// Schedule by which the driver polls for received frames.
    pub moderation: ModerationConfig,
    /// Buffers of its receive pool, of 2048 bytes.
    pub buffers: u32,
    /// Dedicated queues, each for one guest, if any.
    pub vmq: Option<VmqConfig>,
    /// Firewall rules: the first match decides; unmatched frames pass.
    pub rules: Vec<FirewallRule>,
    /// The uplink that joins the kernel's end to the network of its namespace, if any.
    pub uplink: Option<Uplink>,
}

impl NicSection {
    /// Returns a NIC with default values.
    #[must_use]
    pub fn new(name: impl Into<String>, kind: NicKind) -> Self {
        let buffers = kind.buffers();
        Self {
            name: name.into(),
            kind,
            mtu: 1500,
            rate_mbps: None,
            burst_bytes: 65_536,
            moderation: ModerationConfig::Event,
            buffers,
            vmq: None,
            rules: Vec::new(),
            uplink: None,
        }
    }

    /// Returns whether its device runs in a separate domain.
    #[must_use]
    pub fn has_device_domain(&self) -> bool {
        self.kind.has_device_domain()
    }

    /// Returns whether each of its dedicated queues belongs to the interface whose `pdev` names it.
    #[must_use]
    pub fn assigns_by_pdev(&self) -> bool {
        self.kind.assigns_by_pdev()
    }

    /// Returns the number of its dedicated queues.
    #[must_use]
    pub fn dedicated_queues(&self) -> u32 {
        self.vmq.map_or(0, |vmq| vmq.queues)
    }

    /// Returns the addresses of the routers to which the stations behind it send, if they are
    /// known.
    #[must_use]
    pub fn gateways(&self) -> Vec<IpAddr> {
        match self.kind.cable() {
            Some(cable) => cable.station.gateway.into_iter().collect(),
            None => {
                let port = self.kind.port();
                port.map(KernelPort::gateways).unwrap_or_default()
            }
        }
    }

    /// Returns the addresses and the default route of the stations behind it, if they are known.
    #[must_use]
    pub fn addresses(&self) -> (&[Cidr], Option<IpAddr>) {
        if let Some(cable) = self.kind.cable() {
            return (&cable.station.addresses, cable.station.gateway);
        }
        let port = self.kind.port();
        port.map_or((&[], None), |port| (&port.addresses, port.gateway))
    }
}

/// Kinds of network interface.
#[derive(Clone, Debug, PartialEq)]
pub enum NicKind {
    /// A TAP with "the wire" behind it, in the kernel.
    Tap {
        /// The kernel's end.
        port: KernelPort,
        /// Offloads that each end may leave to the other.
        offloads: Offloads,
    },
    /// One end of a cable in memory.
    Sim(Cable),
    /// A device in software with descriptor rings.
    Soft {
        /// Its wire.
        wire: SoftWire,
        /// The rings.
        rings: Rings,
        /// Domain in which the device runs.
        place: DevicePlace,
        /// CPUs on which the device's domain may run; empty: all.
        cpus: Vec<usize>,
        /// Whether the device merges received TCP segments.
        lro: bool,
        /// Whether the device stores headers of received frames in separate buffers.
        header_split: bool,
    },
    /// A PCI device behind an IOMMU.
    Vfio {
        /// Its address.
        device: String,
        /// Entries of each queue, a power of two.
        descriptors: u32,
    },
    /// Capture files.
    Pcap(CaptureFiles),
    /// An AF_XDP socket.
    Xdp {
        /// The interface below it.
        wire: XdpWire,
    },
    /// The driver domain's port in the kernel.
    Local {
        /// The kernel's end.
        port: KernelPort,
    },
}

/// The wire of a device in software.
#[derive(Clone, Debug, PartialEq)]
pub enum SoftWire {
    /// One end of a cable in memory.
    Cable(Cable),
    /// A TAP with "the wire" behind it, in the kernel.
    Tap(KernelPort),
    /// A generator, which sends frames as fast as the wire and the device can carry them.
    Source(FrameSource),
}

/// Domain in which a device in software runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DevicePlace {
    /// In a separate domain.
    #[default]
    Domain,
    /// In the driver domain.
    Driver,
}

/// A cable in memory with a station at its far end.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cable {
    /// One-way delay, microseconds.
    pub delay_us: u32,
    /// Share of frames lost in each direction, 0.0 … 1.0.
    pub loss: f64,
    /// Seed of the losses.
    pub seed: u64,
    /// The station's MAC; `None`: derived.
    pub mac: Option<MacAddress>,
    /// The station.
    pub station: StackConfig,
}

/// The interface below an AF_XDP socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum XdpWire {
    /// The other end of a veth pair that is created.
    Veth(KernelPort),
    /// An existing interface.
    Netdev {
        /// Its name.
        name: String,
        /// Network namespace, like [`KernelPort::netns`].
        netns: Option<String>,
    },
}

impl NicKind {
    fn has_device_domain(&self) -> bool {
        let place = match self {
            Self::Soft { place, .. } => Some(*place),
            _ => None,
        };
        place == Some(DevicePlace::Domain)
    }

    /// See [`NicSection::assigns_by_pdev`].
    pub(crate) fn assigns_by_pdev(&self) -> bool {
        self.has_device_domain() || matches!(self, Self::Xdp { .. })
    }

    /// Returns the default number of receive buffers. A segment of 64 KB takes 33 buffers, and
    /// segments that wait for guests must leave enough buffers to the NIC.
    #[must_use]
    pub const fn buffers(&self) -> u32 {
        match self {
            Self::Local { .. }
            | Self::Tap {
                offloads: Offloads::Tso,
                ..
            } => 4096,
            _ => 1024,
        }
    }

    /// Returns its cable in memory, if it has one.
    #[must_use]
    pub fn cable(&self) -> Option<&Cable> {
        match self {
            Self::Sim(cable)
            | Self::Soft {
                wire: SoftWire::Cable(cable),
                ..
            } => Some(cable),
            _ => None,
        }
    }

    /// Returns the kernel's end that is created for it, if any.
    #[must_use]
    pub fn port(&self) -> Option<&KernelPort> {
        match self {
            Self::Tap { port, .. }
            | Self::Local { port }
            | Self::Xdp {
                wire: XdpWire::Veth(port),
            }
            | Self::Soft {
                wire: SoftWire::Tap(port),
                ..
            } => Some(port),
            Self::Sim(_)
            | Self::Soft { .. }
            | Self::Vfio { .. }
            | Self::Pcap(_)
            | Self::Xdp { .. } => None,
        }
    }
}

//! A network interface of the driver domain.

use super::capture::CaptureFiles;
use super::station::{KernelPort, Station};
use crate::address::{Cidr, Mac};
use crate::domain::{Moderation, Offloads, Vmq};
use crate::rule::Rule;
use abi::machine::Uplink;
use std::net::IpAddr;

/// One network interface of the driver domain.
#[derive(Clone, Debug, PartialEq)]
pub struct Nic {
    /// Its name.
    pub name: String,
    /// What it is.
    pub kind: Kind,
    /// Maximum transmission unit, bytes of IP.
    pub mtu: u32,
    /// Token bucket, megabits of frames a second; none: no limit.
    pub rate_mbps: Option<f64>,
    /// How far the bucket fills, bytes of frames.
    pub burst_bytes: u32,
    /// When received frames are looked at.
    pub moderation: Moderation,
    /// Buffers of its receive pool, of 2048 bytes.
    pub buffers: u32,
    /// Where it puts what it receives.
    pub queues: Queues,
    /// Which frames may pass it: the first rule that fits decides, what none fits may.
    pub rules: Vec<Rule>,
    /// What joins the kernel's end to the network of its namespace, if anything does.
    pub uplink: Option<Uplink>,
}

/// Where a NIC puts what it receives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Queues {
    /// Everything into one queue.
    #[default]
    Shared,
    /// What is for a guest into that guest's queue, as far as there are queues.
    Vmq(Vmq),
}

impl Nic {
    /// A NIC with the usual values.
    #[must_use]
    pub fn new(name: impl Into<String>, kind: Kind) -> Self {
        let buffers = kind.buffers();
        Self {
            name: name.into(),
            kind,
            mtu: 1500,
            rate_mbps: None,
            burst_bytes: 65_536,
            moderation: Moderation::Event,
            buffers,
            queues: Queues::Shared,
            rules: Vec::new(),
            uplink: None,
        }
    }

    /// How many dedicated queues it has.
    #[must_use]
    pub fn dedicated_queues(&self) -> u32 {
        match self.queues {
            Queues::Shared => 0,
            Queues::Vmq(vmq) => vmq.queues,
        }
    }

    /// The routers that the stations behind it send to, as far as they are known.
    #[must_use]
    pub fn gateways(&self) -> Vec<IpAddr> {
        match &self.kind {
            Kind::Sim { station, .. } => station.gateway.into_iter().collect(),
            kind => kind.port().map(KernelPort::gateways).unwrap_or_default(),
        }
    }

    /// The addresses and the default route of what is behind it, as far as they are known.
    #[must_use]
    pub fn addresses(&self) -> (&[Cidr], Option<IpAddr>) {
        match &self.kind {
            Kind::Sim { station, .. } => (&station.addresses, station.gateway),
            kind => kind
                .port()
                .map_or((&[], None), |port| (&port.addresses, port.gateway)),
        }
    }
}

/// Kinds of network interface.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// A TAP with "the wire" behind it, in the kernel.
    Tap {
        /// The kernel's end.
        port: KernelPort,
        /// What either end may leave to the other.
        offloads: Offloads,
    },
    /// A cable in memory with a station at its far end.
    Sim {
        /// One-way delay, microseconds.
        delay_us: u32,
        /// Share of frames lost in each direction, 0.0 … 1.0.
        loss: f64,
        /// Seed of the losses.
        seed: u64,
        /// The station's MAC; none: one is derived.
        mac: Option<Mac>,
        /// The station.
        station: Station,
    },
    /// Capture files.
    Pcap(CaptureFiles),
    /// An AF_XDP socket.
    Xdp {
        /// What it is on.
        wire: XdpWire,
    },
    /// The driver domain's own end of the bridge, in the kernel.
    Local {
        /// The kernel's end.
        port: KernelPort,
    },
}

/// What an AF_XDP socket is on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum XdpWire {
    /// A veth pair that is made: this is its other end.
    Veth(KernelPort),
    /// An interface that is there already.
    Netdev {
        /// Its name.
        name: String,
        /// Network namespace, as [`KernelPort::netns`].
        netns: Option<String>,
    },
}

impl Kind {
    /// The usual number of receive buffers. Where segments of 64 KB come, these take 33 buffers
    /// each, and those that wait for guests must leave the NIC enough.
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

    /// The kernel's end that is made for it, if any.
    #[must_use]
    pub fn port(&self) -> Option<&KernelPort> {
        match self {
            Self::Tap { port, .. }
            | Self::Local { port }
            | Self::Xdp {
                wire: XdpWire::Veth(port),
            } => Some(port),
            Self::Sim { .. } | Self::Pcap(_) | Self::Xdp { .. } => None,
        }
    }
}

//! A machine as people think of it. Every value has a default; [`crate::parse`] fills one in from
//! a file, experiments and tests build theirs by hand.

use crate::domain::{BufferSize, GrantMode, Moderation, Offloads, RingFormat, StackApp, Vmq};
use crate::lro::Lro;
use crate::pdev::Pdev;
use crate::rule::{Firewall, Rule};
use crate::{Cidr, Mac};
use std::net::IpAddr;

/// A whole machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The instance's name.
    pub name: String,
    /// The driver domain.
    pub driver: Driver,
    /// Every guest's buffers.
    pub buffers: Buffers,
    /// Every vif's rings.
    pub ring: Ring,
    /// Large receive offload, of NICs and vifs.
    pub lro: Lro,
    /// The driver domain's network interfaces: ports of one bridge.
    pub nics: Vec<Nic>,
    /// The guests.
    pub guests: Vec<Guest>,
}

/// Name of an instance that has none of its own.
pub const DEFAULT_NAME: &str = "grantway";

impl Default for Config {
    fn default() -> Self {
        Self {
            name: DEFAULT_NAME.to_owned(),
            driver: Driver::default(),
            buffers: Buffers::default(),
            ring: Ring::default(),
            lro: Lro::default(),
            nics: Vec::new(),
            guests: Vec::new(),
        }
    }
}

/// The driver domain.
#[derive(Clone, Debug, PartialEq)]
pub struct Driver {
    /// CPUs that it may run on; empty: all.
    pub cpus: Vec<usize>,
    /// Domains that it consists of, 1 … [`Driver::WORKERS_MAX`]. They share nothing: each has a queue
    /// of every NIC and of every guest interface.
    pub workers: u32,
    /// How it gets at granted pages.
    pub grants: GrantMode,
    /// The most that it offers to guests.
    pub offloads: Offloads,
    /// When it sleeps.
    pub polling: Polling,
    /// Frames taken from one port before the next has its turn.
    pub poll_budget: u32,
    /// Microseconds from one word to sleeping guests to the next while a NIC has more for them;
    /// none: 0 if the driver domain's CPUs are given and no guest may use them, else
    /// [`Driver::NOTIFY_SHARED_US`].
    pub notify_us: Option<u32>,
    /// Broadcast and multicast frames that each port may send, per second.
    pub broadcast_pps: u32,
    /// Seconds after which a silent station behind a NIC is forgotten.
    pub mac_ageing_s: u32,
    /// Whether all domains keep the hop ledger.
    pub ledger: bool,
    /// Whether it is started again when it has ended.
    pub restart: bool,
    /// Milliseconds that this waits at the most, where it keeps ending.
    pub restart_pause_ms: u32,
}

impl Driver {
    /// How long guests on the driver's own CPU are left asleep under load. A guest that is woken
    /// takes the CPU from the driver; this is some batches of a wire at several Gb/s.
    pub const NOTIFY_SHARED_US: u32 = 300;
    /// The most workers.
    pub const WORKERS_MAX: u32 = 16;

    /// CPUs that a worker may run on: from its own place in the list on every so manyth; empty: all.
    pub(crate) fn worker_cpus(&self, worker: u32) -> Vec<usize> {
        let first = worker as usize % self.cpus.len().max(1);
        let every = self.workers.max(1) as usize;
        let own = self.cpus.iter().skip(first).step_by(every);
        own.copied().collect()
    }
}

impl Default for Driver {
    fn default() -> Self {
        Self {
            cpus: Vec::new(),
            workers: 1,
            grants: GrantMode::default(),
            offloads: Offloads::default(),
            polling: Polling::default(),
            poll_budget: 64,
            notify_us: None,
            broadcast_pps: 10_000,
            mac_ageing_s: 300,
            ledger: true,
            restart: true,
            restart_pause_ms: 5_000,
        }
    }
}

/// How a domain waits: it spins, then looks again every tick, then sleeps until it is woken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Polling {
    /// Microseconds of spinning; none: [`Polling::SPIN_APART_US`] if the driver domain's CPUs are
    /// given and no guest may use them, else 0, because who spins on its peer's CPU waits for
    /// itself.
    pub spin_us: Option<u32>,
    /// Microseconds of a tick; 0: none.
    pub tick_us: u32,
    /// Ticks without work until it sleeps.
    pub empty_ticks: u32,
}

impl Polling {
    /// The spin budget of domains that have CPUs of their own: about the cost of a wake-up.
    pub const SPIN_APART_US: u32 = 50;
}

/// Buffers of every vif.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffers {
    /// Size of a buffer.
    pub size: BufferSize,
    /// Buffers that wait for frames to the guest.
    pub to_guest: u32,
    /// Buffers beside those that take the place of buffers whose frames the guest still has.
    pub spare: u32,
    /// Whole pages of free buffers for frames to the guest that stay granted, more are revoked;
    /// none: all stay.
    pub release_threshold: Option<u32>,
    /// Buffers for frames from the guest.
    pub from_guest: u32,
    /// Received frames ahead of the one that a guest looks at whose headers it fetches into the
    /// cache; 0: none.
    pub prefetch: u32,
}

impl Default for Buffers {
    // 1.5 MB in half pages: the buffers in use stay within a second-level cache. Towards the guest
    // there are as many as a wire may bring before a guest on a shared CPU has its turn.
    fn default() -> Self {
        Self {
            size: BufferSize::Half,
            to_guest: 512,
            spare: 0,
            release_threshold: None,
            from_guest: 256,
            prefetch: 64,
        }
    }
}

/// Rings of every vif.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ring {
    /// Slots of each of the two rings: 256, 512, 1024, 2048 or 4096. A stock peer takes 256.
    pub slots: u32,
    /// How they lie in their pages.
    pub format: RingFormat,
}

impl Default for Ring {
    fn default() -> Self {
        Self {
            slots: 1024,
            format: RingFormat::default(),
        }
    }
}

/// Slots of a ring of one page.
pub(crate) const SLOTS_PER_PAGE: u32 = 256;

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
        Self {
            name: name.into(),
            kind,
            mtu: 1500,
            rate_mbps: None,
            burst_bytes: 65_536,
            moderation: Moderation::Event,
            buffers: 1024,
            queues: Queues::Shared,
            rules: Vec::new(),
        }
    }

    /// Its queues for single guests.
    #[must_use]
    pub fn single_queues(&self) -> u32 {
        match self.queues {
            Queues::Shared => 0,
            Queues::Vmq(vmq) => vmq.queues,
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
        /// What the wire may leave undone: nothing, or checksums.
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
    Pcap {
        /// File to read.
        read: Option<String>,
        /// File to write; it must not exist.
        write: Option<String>,
    },
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
    /// The kernel's end that is made for it, if any.
    #[must_use]
    pub fn port(&self) -> Option<&KernelPort> {
        match self {
            Self::Tap { port, .. }
            | Self::Local { port }
            | Self::Xdp {
                wire: XdpWire::Veth(port),
            } => Some(port),
            Self::Sim { .. } | Self::Pcap { .. } | Self::Xdp { .. } => None,
        }
    }
}

/// The kernel's end of a TAP, or of a veth pair.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelPort {
    /// Name of the interface; none: that of the NIC, or `eth` and the vif's number.
    pub ifname: Option<String>,
    /// Network namespace: a name or an absolute path; none: the one `grantway` runs in.
    pub netns: Option<String>,
    /// MAC; none: one is derived. Guests have the vif's.
    pub mac: Option<Mac>,
    /// Addresses.
    pub addresses: Vec<Cidr>,
    /// Default route.
    pub gateway: Option<IpAddr>,
    /// Transmit queue of the kernel's end, packets; 0: the kernel's default.
    pub tx_queue: u32,
}

/// A TCP/IP station in user space.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Station {
    /// Addresses.
    pub addresses: Vec<Cidr>,
    /// Default route.
    pub gateway: Option<IpAddr>,
    /// Programs.
    pub apps: Vec<StackApp>,
}

/// One guest domain.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Guest {
    /// Its name.
    pub name: String,
    /// CPUs that it may run on; empty: all.
    pub cpus: Vec<usize>,
    /// When it sleeps.
    pub polling: Polling,
    /// Its interfaces.
    pub vifs: Vec<Vif>,
}

/// One interface of a guest.
#[derive(Clone, Debug, PartialEq)]
pub struct Vif {
    /// MAC; none: one is derived.
    pub mac: Option<Mac>,
    /// What stands behind it.
    pub endpoint: Endpoint,
    /// Maximum transmission unit, bytes of IP.
    pub mtu: u32,
    /// The most that it asks the driver for.
    pub offloads: Offloads,
    /// The most that it may send, megabits of frames a second; none: no limit.
    pub rate_mbps: Option<f64>,
    /// Its share against other vifs, 1 … 1000.
    pub weight: u32,
    /// Whether the guest forwards packets that come in by it.
    pub forwards: bool,
    /// The queue of an AF_XDP wire that is its alone.
    pub pdev: Option<Pdev>,
    /// Which frames may pass it: the first rule that fits decides, what none fits may.
    pub rules: Vec<Rule>,
    /// What rules mean for its queues of NICs.
    pub firewall: Firewall,
}

impl Vif {
    /// A vif with the usual values.
    #[must_use]
    pub fn new(endpoint: Endpoint) -> Self {
        Self {
            mac: None,
            endpoint,
            mtu: 1500,
            offloads: Offloads::default(),
            rate_mbps: None,
            weight: 1,
            forwards: false,
            pdev: None,
            rules: Vec::new(),
            firewall: Firewall::default(),
        }
    }

    /// The addresses and the default route of what is behind it, as far as they are known.
    #[must_use]
    pub fn addresses(&self) -> (&[Cidr], Option<IpAddr>) {
        match &self.endpoint {
            Endpoint::Tap { port } => (&port.addresses, port.gateway),
            Endpoint::Stack { station } => (&station.addresses, station.gateway),
            _ => (&[], None),
        }
    }
}

/// What stands behind a guest's interface.
#[derive(Clone, Debug, PartialEq)]
pub enum Endpoint {
    /// A TAP in a network namespace.
    Tap {
        /// The kernel's end; its MAC must be none or the vif's.
        port: KernelPort,
    },
    /// A TCP/IP stack inside the guest domain.
    Stack {
        /// Its addresses and programs.
        station: Station,
    },
    /// Takes every frame.
    Sink {
        /// Whether every byte is read.
        touch: bool,
    },
    /// Sends frames.
    Source {
        /// Where to.
        to: Mac,
        /// Bytes of a frame.
        size: u32,
        /// Frames a second; none: as fast as they are taken.
        rate_pps: Option<f64>,
        /// Frames under way at once; 0: as many as fit.
        window: u32,
        /// Frames in all; none: without end.
        count: Option<u64>,
        /// Whether every byte is written for every frame.
        touch: bool,
    },
    /// Sends every frame back.
    Echo,
    /// Capture files.
    Pcap {
        /// File to read.
        read: Option<String>,
        /// File to write; it must not exist.
        write: Option<String>,
    },
}

impl Config {
    /// The MAC of NIC number `nic`'s kernel end or station: as given, or derived.
    #[must_use]
    pub fn nic_mac(&self, nic: usize) -> Option<Mac> {
        let given = match &self.nics.get(nic)?.kind {
            Kind::Sim { mac, .. } => *mac,
            kind => kind.port()?.mac,
        };
        Some(given.unwrap_or(Mac::derived(0, nic as u16, 0)))
    }

    /// The MAC of a guest's vif: as given, or derived.
    #[must_use]
    pub fn vif_mac(&self, guest: usize, vif: usize) -> Option<Mac> {
        let given = self.vif(guest, vif)?.mac;
        Some(given.unwrap_or(Mac::derived(1, guest as u16, vif as u8)))
    }

    /// Name of the kernel's interface of a NIC.
    #[must_use]
    pub fn nic_ifname(&self, nic: usize) -> Option<String> {
        let nic = self.nics.get(nic)?;
        let port = nic.kind.port()?;
        Some(port.ifname.clone().unwrap_or_else(|| nic.name.clone()))
    }

    /// Name of the kernel's interface behind a guest's vif, if it has one.
    #[must_use]
    pub fn vif_ifname(&self, guest: usize, vif: usize) -> Option<String> {
        match &self.vif(guest, vif)?.endpoint {
            Endpoint::Tap { port } => {
                Some(port.ifname.clone().unwrap_or_else(|| format!("eth{vif}")))
            }
            _ => None,
        }
    }

    pub(crate) fn vif(&self, guest: usize, vif: usize) -> Option<&Vif> {
        self.guests.get(guest)?.vifs.get(vif)
    }

    /// Whether the driver domain has CPUs that no guest may use, one for each worker.
    #[must_use]
    pub fn is_driver_apart(&self) -> bool {
        !self.driver.cpus.is_empty()
            && self.driver.cpus.len() >= self.driver.workers as usize
            && self.guests.iter().all(|guest| {
                !guest.cpus.is_empty()
                    && guest.cpus.iter().all(|cpu| !self.driver.cpus.contains(cpu))
            })
    }

    /// log2 of the pages of a ring.
    #[must_use]
    pub fn ring_order(&self) -> u8 {
        (self.ring.slots / SLOTS_PER_PAGE)
            .checked_ilog2()
            .unwrap_or(0) as u8
    }
}

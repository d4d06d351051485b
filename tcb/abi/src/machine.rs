//! What the monitor is told to build. The command line makes it from a validated configuration
//! file and passes it as JSON on standard input.

use crate::firewall;
use crate::reload::SourceFile;
pub use crate::restarts::{DomainStatus, Restarts};
pub use crate::status::{Audit, ConnectionStatus, DomainAudit, DomainReport, GrantInUse, Program};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

/// A whole machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// The instance's name (letters, digits, `-` and `_`).
    pub name: String,
    /// Every domain, in the order of start.
    pub domains: Vec<Domain>,
    /// Every connection between two of them.
    pub connections: Vec<Connection>,
    /// What the manager has to know to attach guests while it runs; none: it stays as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub live: Option<Live>,
    /// Who may speak to the manager beside root and the user who has started it.
    #[serde(default)]
    pub access: Access,
}

/// Who may speak to the manager beside root and the user who has started it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Access {
    /// Who may ask what there is, and change nothing.
    pub look: Option<Group>,
    /// Who may also change the machine, and end it.
    pub change: Option<Group>,
}

/// A group of users, as it was when the machine was described.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// Its id: users who act as it belong to it.
    pub id: u32,
    /// The ids of users who belong to it whatever group they act as.
    pub members: Vec<u32>,
}

/// What it takes to attach guests to a machine that runs, and to detach some.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Live {
    /// The configuration files that the machine is built from: their texts.
    pub files: Vec<String>,
    /// Slots of the window of each worker of the driver domain from here on are guests', but for
    /// those at its end, which are kept for NICs that come.
    pub first_slot: u32,
    /// Guests that were attached since the start, by name, with the MACs that they were given.
    #[serde(default)]
    pub attached: BTreeMap<String, Setting>,
    /// Guests of the file that were detached.
    #[serde(default)]
    pub detached: BTreeSet<String>,
    /// Guests of the file that were described otherwise since.
    #[serde(default)]
    pub changed: BTreeMap<String, Setting>,
    /// All NICs, if they are not those of the files any more: sections `[[nic]]`, with the MACs
    /// that they were given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nics: Option<Vec<Setting>>,
    /// Guests among those that were attached that the files of a later reload name: they are no
    /// more than others of a file's.
    #[serde(default)]
    pub of_files: BTreeSet<String>,
    /// What the machine before has left of guests that were attached to it, as it was written.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub left: String,
}

/// A value of a configuration, as it is written in TOML or in JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Setting {
    /// `true` or `false`.
    Flag(bool),
    /// A whole number.
    Number(i64),
    /// Another number.
    Real(f64),
    /// A text.
    Text(String),
    /// Several.
    List(Vec<Setting>),
    /// A section: values under their keys.
    Section(BTreeMap<String, Setting>),
}

/// One domain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Domain {
    /// Its name, unique in the machine.
    pub name: String,
    /// Its program.
    pub program: Program,
    /// Page frames of its own.
    pub frames: u32,
    /// Entries of its grant table.
    pub grant_entries: u32,
    /// Slots of its grant window.
    pub window_slots: u32,
    /// Frames that others' forced revocations may cost it at a time: see
    /// [`crate::counted::Revocation::Force`].
    #[serde(default)]
    pub collateral: u32,
    /// Its share of what all granters may cost the users of their grants, beside others' shares.
    #[serde(default = "one")]
    pub weight: u32,
    /// Whether it is started again when it has ended: the longest pause before that, milliseconds.
    #[serde(default)]
    pub restart_pause_ms: Option<u32>,
    /// CPUs that it may run on; empty: all.
    pub cpus: Vec<usize>,
    /// Devices that it may attach, in order.
    pub devices: Vec<Device>,
    /// Its configuration: opaque to the monitor.
    pub config: String,
}

fn one() -> u32 {
    1
}

/// Something with descriptors that the monitor opens for a domain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Device {
    /// A TAP interface of the kernel.
    Tap(Tap),
    /// The next queue of the TAP before it in the list.
    TapQueue,
    /// The next shared queue ([`Tap::shares`]) of a TAP that is before it in the machine, this
    /// domain's or another's.
    TapShare {
        /// [`Tap::ifname`].
        ifname: String,
        /// [`Tap::netns`], written alike.
        netns: Option<String>,
    },
    /// An AF_XDP socket on an interface of the kernel.
    Xdp(Xdp),
    /// A queue of the AF_XDP interface before it in the list, for one guest alone.
    XdpQueue(XdpQueue),
    /// A file that is only read.
    Read(String),
    /// A file that is only written; it must not exist.
    Write(String),
    /// None any more: a number that no other device has.
    Nothing,
}

/// What netd is asked to open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Opening {
    /// The device.
    pub device: Device,
    /// How many domains had it before: a file is written anew for each.
    pub life: u64,
    /// What netd notes for the next one: settings of the system that it has switched on.
    #[serde(default)]
    pub switched_on: Vec<String>,
    /// The same: which network namespace a TAP was made in, by the device and inode of its file.
    #[serde(default)]
    pub namespace: Option<[u64; 2]>,
    /// The only namespace that it may be made in; none: whichever has the name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<NetnsPlace>,
}

/// What the name of a network namespace stands for: device and inode of its file, and since when:
/// where the name is that of a process's, when that began (`/proc/PID/stat`).
pub type NetnsPlace = [u64; 3];

/// What netd has to say of a device that it has opened.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OpenedNotes {
    /// What the system could not provide, in words.
    pub lacks: Vec<String>,
    /// The network namespace of a TAP.
    pub place: Option<NetnsPlace>,
}

/// A TAP interface: created, configured, brought up, and handed over as a descriptor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tap {
    /// Interface name, at most 15 bytes.
    pub ifname: String,
    /// Network namespace: a name under /run/netns or an absolute path; none: the monitor's own.
    pub netns: Option<String>,
    /// The MAC that the kernel's end of the TAP has.
    pub mac: Option<[u8; 6]>,
    /// Addresses with prefix length, IPv4 or IPv6.
    pub addresses: Vec<String>,
    /// Whether their networks may overlap an address or route that the namespace has already.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allow_overlap: bool,
    /// IPv6 settings of the interface; none: [`Ipv6::QUIET`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv6: Option<Ipv6>,
    /// Address of a default route, if any.
    pub gateway: Option<String>,
    /// Routes beside that one, in this order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<Route>,
    /// Maximum transmission unit, bytes of IP.
    pub mtu: u32,
    /// Whether packets carry a virtio-net header, and so offloads.
    pub vnet_header: bool,
    /// Whether the kernel may hand over checksums to fill in (needs `vnet_header`).
    pub checksum: bool,
    /// Whether the kernel may hand over TCP segments of up to 64 KB (needs `checksum`).
    pub tso: bool,
    /// Transmit queue of the kernel's end, packets.
    pub tx_queue: u32,
    /// Queues beside the shared one, each a [`Device::TapQueue`] of its own.
    #[serde(default)]
    pub queues: u32,
    /// Shared queues beside the first, each a [`Device::TapShare`]; the kernel spreads flows over
    /// all of them. Not together with `queues`.
    #[serde(default)]
    pub shares: u32,
    /// What joins it to the network of its namespace, if anything does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uplink: Option<Uplink>,
    /// Whose it is, if it stays until it is closed, also when all who have it die before that: the
    /// next one to open it for the same owner takes it up with all that it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistent: Option<String>,
}

/// Settings below `net.ipv6.conf.IFNAME`; none: the kernel's default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ipv6 {
    /// Whether router advertisements configure it: 0, 1, or 2 (also where it forwards).
    pub accept_ra: Option<i32>,
    /// Whether it looks for duplicates of its addresses: 0, 1, or 2 (a duplicate disables IPv6).
    pub accept_dad: Option<i32>,
    /// Router solicitations that it sends; -1: without end.
    pub router_solicitations: Option<i32>,
}

impl Ipv6 {
    /// An interface that uses its addresses at once and asks for no router.
    pub const QUIET: Self = Self {
        accept_ra: Some(0),
        accept_dad: Some(0),
        router_solicitations: Some(0),
    };
}

/// A MAC that no interface has. Led to the shared queue of a TAP it stands for all MACs.
pub const EVERY_MAC: [u8; 6] = [0; 6];

/// A network that is reached by an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Route {
    /// The network.
    pub to: IpAddr,
    /// Bits of its prefix.
    pub prefix: u8,
    /// The neighbour that leads there; none: who is there is a neighbour.
    pub via: Option<IpAddr>,
}

/// What joins a TAP to the network of its namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Uplink {
    /// It is a port of the bridge of this name, which is there.
    Bridge(String),
    /// What comes from its networks leaves with the address of the interface it leaves by.
    Nat(Nat),
}

/// Address translation of a TAP's networks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nat {
    /// Ports of the system that are forwarded into these networks.
    pub forward: Vec<Forward>,
}

/// A port of the system that is forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Forward {
    /// The protocol.
    pub transport: Transport,
    /// The port of the system.
    pub port: u16,
    /// Where to.
    pub to: SocketAddr,
}

/// A protocol that has ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// An AF_XDP socket, which receives everything that comes by its interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Xdp {
    /// The interface.
    pub netdev: Netdev,
    /// The domain's page frames that hold packets (the socket's UMEM): the first one.
    pub first_frame: u32,
    /// How many frames there are.
    pub frames: u32,
    /// Bytes of a chunk, which holds one packet: 2048 or 4096.
    pub chunk_bytes: u32,
    /// Entries of each of the four rings, a power of two.
    pub entries: u32,
    /// Slot of the domain's window from which on the rings lie, [`crate::xdp::Ring::slots`] each.
    pub rings_slot: u32,
    /// Queues beside the shared one.
    #[serde(default)]
    pub queues: u32,
}

/// A queue of an AF_XDP interface that receives into memory of one guest, and sends nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct XdpQueue {
    /// Its number, from 1 on: 0 is the shared one.
    pub queue: u32,
    /// The guest's name.
    pub guest: String,
    /// The only MAC whose frames come by it.
    pub mac: [u8; 6],
    /// The guest's page frames that it receives into (the socket's UMEM): the first one.
    pub first_frame: u32,
    /// How many frames there are.
    pub frames: u32,
    /// Bytes of a chunk, which holds one packet: 2048 or 4096.
    pub chunk_bytes: u32,
    /// Entries of each of its two rings, a power of two.
    pub entries: u32,
    /// Slot of the domain's window from which on these lie, [`crate::xdp::Ring::slots`] each.
    pub rings_slot: u32,
    /// What passes these only is written there.
    #[serde(default, skip_serializing_if = "firewall::Rules::is_empty")]
    pub rules: firewall::Rules,
}

/// The interface of an AF_XDP socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Netdev {
    /// One end of a veth pair, both of which are made; this describes the other end. It has no
    /// offloads and no queues.
    Veth(Tap),
    /// One that exists, and is up.
    Existing {
        /// Its name.
        ifname: String,
        /// Network namespace, as [`Tap::netns`].
        netns: Option<String>,
    },
}

/// One connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Connection {
    /// Name of the domain that serves.
    pub backend: String,
    /// Name of the domain that is served.
    pub frontend: String,
    /// Number of the interface within the frontend.
    pub handle: u16,
}

/// One line on the control socket, from the command line to the monitor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase", deny_unknown_fields)]
pub enum Control {
    /// Domains, processes and connections: answered by [`Status`].
    Status,
    /// The audit: answered by [`Audit`].
    Grants,
    /// Pass bytes to a domain's mailbox and its answer back: answered by [`Relayed`].
    Relay {
        /// The domain's name.
        domain: String,
        /// The request, opaque.
        request: String,
    },
    /// End a domain and start it again, now: answered by [`Restarted`] when it is connected.
    Restart {
        /// The domain's name.
        domain: String,
    },
    /// Attach one guest more: answered by [`Attached`] when all of its interfaces are up.
    Attach {
        /// What a section `[[guest]]` of the configuration file would say of it.
        guest: Setting,
    },
    /// Take a guest away: answered by [`Detached`] when nothing is left of it.
    Detach {
        /// The domain's name.
        domain: String,
    },
    /// Make the machine what configuration files say: answered by
    /// [`Reloaded`](crate::reload::Reloaded) when that is done, or cannot go on.
    Reload {
        /// The files, the first one and its fragments.
        files: Vec<SourceFile>,
        /// Whether it is only to be said what would be done.
        #[serde(default)]
        dry_run: bool,
    },
    /// End everything; answered by `{}` when it is done.
    Down,
}

/// The answer to a request that could not be carried out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlError {
    /// What went wrong.
    pub error: String,
}

/// The answer of a domain's mailbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Relayed {
    /// The domain's bytes, as text.
    pub reply: String,
}

/// The answer when a domain is back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restarted {
    /// Its name.
    pub domain: String,
    /// Its id from now on.
    pub id: u16,
    /// Nanoseconds from the end of the one before until this one was ready.
    pub ready_ns: u64,
    /// The same until all its connections were up, but for those whose other end is dead.
    pub connected_ns: u64,
}

/// The answer when a guest is attached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attached {
    /// Its name.
    pub domain: String,
    /// Its id.
    pub id: u16,
    /// The MAC of each of its interfaces.
    pub macs: Vec<String>,
    /// Nanoseconds that it took.
    pub took_ns: u64,
    /// What is allowed and may not be meant, and what the guest lacks, a sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// The answer when a guest is detached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Detached {
    /// Its name.
    pub domain: String,
    /// Nanoseconds that it took.
    pub took_ns: u64,
    /// What went wrong beside it, in a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
}

/// The answer when the machine has ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// Why guests that were attached are not forgotten, in a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
}

/// In the refusal of a second request to detach a guest, after its name.
pub const BEING_DETACHED: &str = "is being detached by another request";

/// What `grantway status` shows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The instance's name.
    pub name: String,
    /// Process id of the monitor.
    pub pid: u32,
    /// Nanoseconds since the machine was complete.
    pub up_ns: u64,
    /// Nanoseconds from the start of the monitor until every domain was ready and every
    /// connection was up; none: not yet.
    pub up_took_ns: Option<u64>,
    /// CPU time of the monitor's own threads, nanoseconds.
    pub monitor_cpu_ns: u64,
    /// What the start had to do without (no own uid, no mseal …), in words.
    pub missing: Vec<String>,
    /// Every domain.
    pub domains: Vec<DomainStatus>,
    /// Every connection.
    pub connections: Vec<ConnectionStatus>,
}

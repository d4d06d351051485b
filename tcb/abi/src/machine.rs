//! The description of a machine, for the monitor. The command line derives it from a validated
//! configuration file, and passes it as JSON on standard input.

use crate::firewall;
use crate::reload::SourceFile;
pub use crate::restarts::{DomainStatus, Restarts};
pub use crate::status::{Audit, ConnectionStatus, DomainAudit, DomainReport, GrantInUse, Program};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

/// A whole machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// The instance's name (letters, digits, `-` and `_`).
    pub name: String,
    /// Every domain, in the order of start.
    pub domains: Vec<DomainSpec>,
    /// Every connection between two of them.
    pub connections: Vec<Connection>,
    /// The manager's data for attaching guests at run time; unset: the machine is fixed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub live: Option<HotplugState>,
    /// Rights to the control socket, besides those of root and the user who started the manager.
    #[serde(default)]
    pub access: Access,
}

/// Rights to the control socket, besides those of root and the user who started the manager.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Access {
    /// The group that may query the machine, but not change it.
    #[serde(rename = "look")]
    pub query: Option<Group>,
    /// The group that may also change and stop the machine.
    pub change: Option<Group>,
}

/// A group of users, as it was when the machine was described.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// The group's id. A client whose current group has this id is a member.
    pub id: u32,
    /// The ids of the users who are members, whatever their current group.
    pub members: Vec<u32>,
}

/// Data for attaching guests to a running machine, and for detaching them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HotplugState {
    /// The texts of the configuration files that the machine is built from.
    pub files: Vec<String>,
    /// The first window slot for guests, in each worker of the driver domain. Slots at the end of
    /// the window are reserved for NICs that are added later.
    pub first_slot: u32,
    /// The previous machine's record of its attached guests, unparsed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub left: String,
}

/// A value of a configuration, in TOML or in JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ConfigValue {
    /// `true` or `false`.
    Flag(bool),
    /// A whole number.
    Number(i64),
    /// A number that is not whole.
    Real(f64),
    /// A text.
    Text(String),
    /// A list.
    List(Vec<ConfigValue>),
    /// A section: values under their keys.
    Section(BTreeMap<String, ConfigValue>),
}

/// One domain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DomainSpec {
    /// Its name, unique in the machine.
    pub name: String,
    /// Its program.
    pub program: Program,
    /// The number of its page frames.
    pub frames: u32,
    /// Entries of its grant table.
    pub grant_entries: u32,
    /// Slots of its grant window.
    pub window_slots: u32,
    /// The maximum number of its frames that forced revocations by its granters may use up at a
    /// time: see [`crate::counted::Revocation::Force`].
    #[serde(default)]
    pub collateral: u32,
    /// Its weight among the granters that share the machine-wide rate of revocations.
    #[serde(default = "one")]
    pub weight: u32,
    /// The longest pause before the domain is restarted, in milliseconds; unset: it is not
    /// restarted.
    #[serde(default)]
    pub restart_pause_ms: Option<u32>,
    /// The maximum number of pages of foreign memory that it may have mapped, if it serves a
    /// virtual machine.
    #[serde(default)]
    pub foreign_pages: u32,
    /// CPUs that it may run on; empty: all.
    pub cpus: Vec<usize>,
    /// Devices that it may attach, in order.
    pub devices: Vec<Device>,
    /// Its configuration, which the monitor does not interpret.
    pub config: String,
}

fn one() -> u32 {
    1
}

/// A device with descriptors that the monitor opens for a domain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Device {
    /// A TAP interface of the kernel.
    Tap(Tap),
    /// The next queue of the last TAP before it in the list.
    TapQueue,
    /// The next shared queue ([`Tap::shares`]) of a TAP that precedes it in the machine, in this or
    /// another domain.
    TapShare {
        /// [`Tap::ifname`].
        ifname: String,
        /// [`Tap::netns`], in the same spelling.
        netns: Option<String>,
    },
    /// An AF_XDP socket on an interface of the kernel.
    Xdp(Xdp),
    /// A dedicated queue of the AF_XDP interface that precedes it in the list.
    XdpQueue(XdpQueue),
    /// A PCI network device behind an IOMMU.
    Pci(Pci),
    /// A vhost-user socket of a virtual machine monitor.
    #[serde(rename = "vhost-user")]
    VhostUser(VhostUser),
    /// A read-only file.
    Read(String),
    /// A write-only file, which must not exist.
    Write(String),
    /// A removed device: its number is not reused.
    Nothing,
}

/// A vhost-user socket of a virtual machine monitor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VhostUser {
    /// Its path.
    pub path: String,
    /// Whether the virtual machine monitor listens at this path. netd then connects to it, and the
    /// domain receives one end of a socket pair. To request a connection, the domain sends the byte
    /// `C` through the pair, and receives the connection as a descriptor. Otherwise the domain
    /// receives the listening socket.
    pub client: bool,
    /// The owner of the listening socket: a name of `/etc/passwd`, or a number.
    pub owner: Option<String>,
    /// Its group: a name of `/etc/group`, or a number.
    pub group: Option<String>,
    /// Its mode.
    pub mode: u32,
}

/// A request to netd to open a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OpenRequest {
    /// The device.
    pub device: Device,
    /// The number of domains that had the device before. Each domain receives a new file.
    pub life: u64,
    /// netd's note for its successor: system settings that netd has enabled.
    #[serde(default)]
    pub switched_on: Vec<String>,
    /// netd's note for its successor: the network namespace of a TAP, given by the device and inode
    /// of its file.
    #[serde(default)]
    pub namespace: Option<[u64; 2]>,
    /// The only namespace in which netd may create it; unset: any with this name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<NetnsId>,
}

/// Identifies the namespace behind a name: device and inode of its file, and the start time of the
/// process if the name is a process's (`/proc/PID/stat`), otherwise 0.
pub type NetnsId = [u64; 3];

/// netd's notes on a device that it has opened.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OpenedNotes {
    /// Features that the system lacks.
    #[serde(rename = "lacks")]
    pub missing_features: Vec<String>,
    /// The network namespace of a TAP.
    #[serde(rename = "place")]
    pub namespace: Option<NetnsId>,
}

/// A TAP interface, which the monitor creates, configures and brings up. Domains receive its
/// descriptor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tap {
    /// Interface name, at most 15 bytes.
    pub ifname: String,
    /// Network namespace: a name under /run/netns or an absolute path; unset: the monitor's own.
    pub netns: Option<String>,
    /// The MAC of the kernel's end of the TAP.
    pub mac: Option<[u8; 6]>,
    /// Addresses with prefix length, IPv4 or IPv6.
    pub addresses: Vec<String>,
    /// Whether their networks may overlap an existing address or route of the namespace.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub allow_overlap: bool,
    /// IPv6 settings of the interface; unset: [`Ipv6Settings::NO_SOLICITATION`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv6: Option<Ipv6Settings>,
    /// The gateway of a default route, if any.
    pub gateway: Option<String>,
    /// Further routes, in this order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<Route>,
    /// Maximum transmission unit, bytes of IP.
    pub mtu: u32,
    /// Whether packets carry a virtio-net header, which offloads require.
    pub vnet_header: bool,
    /// Whether the kernel may pass packets with incomplete checksums (needs `vnet_header`).
    pub checksum: bool,
    /// Whether the kernel may pass TCP segments of up to 64 KB (needs `checksum`).
    pub tso: bool,
    /// Length of the transmit queue of the kernel's end, in packets.
    pub tx_queue: u32,
    /// Whether the kernel receives packets on a thread for each queue, which merges TCP segments.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub napi_threads: bool,
    /// Dedicated queues in addition to the shared one, each a [`Device::TapQueue`].
    #[serde(default)]
    pub queues: u32,
    /// Shared queues besides the first, each a [`Device::TapShare`]. The kernel distributes flows
    /// over all of them. Excludes `queues`.
    #[serde(default)]
    pub shares: u32,
    /// How the TAP joins the network of its namespace, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uplink: Option<Uplink>,
    /// The owner of a persistent TAP. The TAP exists until it is closed, even if all processes with
    /// a descriptor of it exit. The next process that opens it for the same owner reuses it with
    /// its settings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistent: Option<String>,
}

/// Settings below `net.ipv6.conf.IFNAME`; unset: the kernel's default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ipv6Settings {
    /// Whether router advertisements configure it: 0, 1, or 2 (even if it forwards).
    pub accept_ra: Option<i32>,
    /// Whether the kernel performs duplicate address detection: 0, 1, or 2 (a duplicate disables
    /// IPv6).
    pub accept_dad: Option<i32>,
    /// The number of router solicitations that it sends; -1: unlimited.
    pub router_solicitations: Option<i32>,
}

impl Ipv6Settings {
    /// An interface that uses its addresses immediately and solicits no router.
    pub const NO_SOLICITATION: Self = Self {
        accept_ra: Some(0),
        accept_dad: Some(0),
        router_solicitations: Some(0),
    };
}

/// A MAC that no interface has. A call that steers this MAC to the shared queue of a TAP steers all
/// MACs there.
pub const ALL_MACS: [u8; 6] = [0; 6];

/// A route of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Route {
    /// The network.
    pub to: IpAddr,
    /// Bits of its prefix.
    pub prefix: u8,
    /// The gateway; unset: the destinations are on the link.
    pub via: Option<IpAddr>,
}

/// How a TAP joins the network of its namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Uplink {
    /// As a port of the existing bridge of this name.
    Bridge(String),
    /// By address translation: packets from its networks have the outgoing interface's address as
    /// their source.
    Nat(Nat),
}

/// Address translation of a TAP's networks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nat {
    /// Forwarded ports of the system, whose destinations are in these networks.
    pub forward: Vec<Forward>,
    /// The maximum number of open connections per guest; 0: unlimited.
    pub connections: u32,
}

/// A forwarded port of the system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Forward {
    /// The protocol.
    pub transport: PortProtocol,
    /// The port of the system.
    pub port: u16,
    /// The destination.
    pub to: SocketAddr,
}

/// A protocol that has ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PortProtocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// An AF_XDP socket, which receives all frames of its interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Xdp {
    /// The interface.
    pub netdev: Netdev,
    /// The first of the domain's page frames for packets (the socket's UMEM).
    pub first_frame: u32,
    /// The number of frames.
    pub frames: u32,
    /// Size of a chunk, which holds one packet: 2048 or 4096 bytes.
    pub chunk_bytes: u32,
    /// Entries of each of the four rings, a power of two.
    pub entries: u32,
    /// The first slot of the rings in the domain's window; each ring has
    /// [`crate::xdp::Ring::slots`] slots.
    pub rings_slot: u32,
    /// Dedicated queues in addition to the shared one.
    #[serde(default)]
    pub queues: u32,
}

/// A dedicated queue of an AF_XDP interface, which receives into memory of one guest and does not
/// send.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct XdpQueue {
    /// Its number, starting at 1; 0 is the shared queue.
    pub queue: u32,
    /// The guest's name.
    pub guest: String,
    /// The only MAC whose frames it receives.
    pub mac: [u8; 6],
    /// The first of the guest's page frames into which it receives (the socket's UMEM).
    pub first_frame: u32,
    /// The number of frames.
    pub frames: u32,
    /// Size of a chunk, which holds one packet: 2048 or 4096 bytes.
    pub chunk_bytes: u32,
    /// Entries of each of its two rings, a power of two.
    pub entries: u32,
    /// The first slot of its rings in the domain's window; each ring has
    /// [`crate::xdp::Ring::slots`] slots.
    pub rings_slot: u32,
    /// The firewall rules that a frame must pass before the kernel writes it.
    #[serde(default, skip_serializing_if = "firewall::RuleLists::is_empty")]
    pub rules: firewall::RuleLists,
}

/// A PCI network device, which accesses a part of the domain's page frames through an IOMMU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pci {
    /// Its address, like 0000:00:03.0.
    pub address: String,
    /// The first of the domain's page frames that it may access.
    pub first_frame: u32,
    /// The number of frames.
    pub frames: u32,
    /// Entries of each queue, a power of two.
    pub entries: u32,
    /// The first slot of its registers in the domain's window; each structure has
    /// [`crate::pci::WINDOW_SLOTS`] slots.
    pub registers_slot: u32,
}

/// The interface of an AF_XDP socket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Netdev {
    /// One end of a new veth pair. The value describes the other end, which has no offloads and no
    /// queues.
    Veth(Tap),
    /// An existing interface, which must be up.
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
    /// Name of the serving domain.
    pub backend: String,
    /// Name of the served domain.
    pub frontend: String,
    /// Number of the interface within the frontend.
    pub handle: u16,
}

/// A request on the control socket, as one line of JSON.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase", deny_unknown_fields)]
pub enum ControlRequest {
    /// Returns domains, processes and connections, as [`Status`].
    Status,
    /// Returns the audit, as [`Audit`].
    Grants,
    /// Passes bytes to a domain's mailbox, and returns the domain's reply as [`RelayReply`].
    Relay {
        /// The domain's name.
        domain: String,
        /// The request, uninterpreted.
        request: String,
    },
    /// Kills a domain and restarts it immediately. Answered by [`RestartReply`] when it is
    /// connected.
    Restart {
        /// The domain's name.
        domain: String,
    },
    /// Attaches a guest. Answered by [`AttachReply`] when all its interfaces are up.
    Attach {
        /// The contents of a `[[guest]]` section of the configuration file.
        guest: ConfigValue,
    },
    /// Detaches a guest. Answered by [`DetachReply`] when it is torn down.
    Detach {
        /// The domain's name.
        domain: String,
    },
    /// Replaces the firewall rules of an attached guest. Answered by
    /// [`RulesReply`](crate::reload::RulesReply) when the driver domain applies them.
    Rules {
        /// The guest's `name`, and for each interface in `vif[]` the keys `firewall`, `inbound` and
        /// `rule[]`, as in a `[[guest]]` section of the configuration file.
        guest: ConfigValue,
    },
    /// Applies edited configuration files. Answered by [`ReloadReply`](crate::reload::ReloadReply)
    /// when all steps are done or one has failed.
    Reload {
        /// The main file and its fragments.
        files: Vec<SourceFile>,
        /// Whether to report the steps without executing them.
        #[serde(default)]
        dry_run: bool,
    },
    /// Stops the machine. Answered by [`DownReply`] when it has stopped.
    Down,
}

/// The answer to a request that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControlError {
    /// The reason.
    pub error: String,
}

/// The reply of a domain's mailbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RelayReply {
    /// The domain's bytes as text.
    pub reply: String,
}

/// The answer when a restarted domain is connected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestartReply {
    /// Its name.
    pub domain: String,
    /// Its new id.
    pub id: u16,
    /// Nanoseconds from the exit of the previous process until the new one was ready.
    pub ready_ns: u64,
    /// Nanoseconds until all its connections were up, except those whose other end is dead.
    pub connected_ns: u64,
}

/// The answer when a guest is attached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachReply {
    /// Its name.
    pub domain: String,
    /// Its id.
    pub id: u16,
    /// The MAC of each of its interfaces.
    pub macs: Vec<String>,
    /// Duration in nanoseconds.
    pub took_ns: u64,
    /// Warnings: allowed settings that may be unintended, and features that the guest lacks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// The answer when a guest is detached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DetachReply {
    /// Its name.
    pub domain: String,
    /// Duration in nanoseconds.
    pub took_ns: u64,
    /// A failure of a secondary step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
}

/// The answer when the machine has stopped.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DownReply {
    /// The reason for which the record of attached guests was not removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
}

/// Text after the guest's name in the error for a second request to detach it.
pub const BEING_DETACHED: &str = "is being detached by another request";

/// The output of `grantway status`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The instance's name.
    pub name: String,
    /// Process id of the monitor.
    pub pid: u32,
    /// Nanoseconds since every domain was ready and every connection was up.
    pub up_ns: u64,
    /// Nanoseconds from the start of the monitor until every domain was ready and every connection
    /// was up; `None` before that.
    pub up_took_ns: Option<u64>,
    /// CPU time of the monitor's own threads, nanoseconds.
    pub monitor_cpu_ns: u64,
    /// Features that this system lacks (no separate uid, no mseal …).
    pub missing: Vec<String>,
    /// Every domain.
    pub domains: Vec<DomainStatus>,
    /// Every connection.
    pub connections: Vec<ConnectionStatus>,
}

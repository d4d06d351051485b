//! A column of a plan: the path between wire and guest, and its variants.

use super::lro::{LroColumn, LroRules};
use super::topology::{Mechanisms, Place, Topology};
use super::wire::{PollMode, WireFaults, WireNic, WireOffload, WireSpeed};
use super::workload::PayloadDirection;
use serde::{Deserialize, Serialize};

/// A column of a plan.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Column {
    /// Column name.
    pub name: String,
    /// The path between wire and guest.
    pub path: PathKind,
    /// Core placements of the path.
    #[serde(default)]
    pub place: Vec<Place>,
    /// Device that the machine uses as its wire.
    #[serde(default)]
    pub nic: WireNic,
    /// Interrupt moderations of the machine's wire.
    #[serde(default = "at_events")]
    pub moderation: Vec<PollMode>,
    /// The configuration of the plan's paper that this column reproduces.
    pub paper: Option<String>,
    /// True if the wire's TCP stack runs on the wire's core, as on a separate machine, and not in
    /// the driver domain, which writes to the wire's TAP.
    #[serde(default)]
    pub apart: bool,
    /// Work that the ends of the wire leave to each other.
    #[serde(default)]
    pub offload: WireOffload,
    /// Packet loss and reordering on the wire; `None`: neither.
    pub faults: Option<WireFaults>,
    /// True if the guests acknowledge every segment immediately (no delayed ACKs).
    #[serde(default)]
    pub quick_ack: bool,
    /// Differences from the default machine.
    #[serde(default)]
    pub machine: Mechanisms,
    /// Numbers of measured guests, which all have the same load.
    #[serde(default = "just_one")]
    pub guests: Vec<u32>,
    /// Numbers of further guests, each with a stream that competes for CPU and link.
    #[serde(default = "no_rivals", alias = "beside")]
    pub rivals: Vec<u32>,
    /// True if these guests have different loads, in turn: a web server, requests, a stream, none.
    #[serde(default)]
    pub mixed: bool,
    /// Numbers of NICs, each with a separate wire, neighbour and stream.
    #[serde(default = "just_one")]
    pub wires: Vec<u32>,
    /// True if each guest has a separate NIC, over which no other guest receives or sends.
    #[serde(default)]
    pub own_wires: bool,
    /// Numbers of streams per guest.
    #[serde(default = "just_one")]
    pub flows: Vec<u32>,
    /// The only direction in which the column is measured; `None`: every direction of the plan.
    pub direction: Option<PayloadDirection>,
    /// Aggregation on the kernel's paths, or at the end of a machine's AF_XDP wire.
    pub gro: Option<Gro>,
    /// LRO configuration. Columns with the same place share one machine, whose LRO settings change
    /// between windows.
    pub lro: Option<LroColumn>,
    /// The rules by which LRO merges packets.
    #[serde(default)]
    pub rules: LroRules,
    /// Wire speeds of the column. Empty: every speed of the plan. With the thesis's accounting,
    /// they may differ from the plan's.
    #[serde(default)]
    pub wire: Vec<WireSpeed>,
    /// True if the column has no web server and no streams by receive buffer.
    #[serde(default)]
    pub only_streams: bool,
}

impl Column {
    /// Returns the aggregation at the wire's end, if its TCP stack runs on the wire's core.
    #[must_use]
    pub fn gro_at_wire(&self) -> Gro {
        self.gro.unwrap_or(match self.nic {
            WireNic::Tap | WireNic::Soft => Gro::Rps,
            WireNic::Xdp => Gro::Napi,
        })
    }

    /// Returns whether the column is measured in this direction.
    #[must_use]
    pub fn runs_in(&self, direction: PayloadDirection) -> bool {
        self.direction.is_none_or(|only| only == direction)
    }

    /// Iterates over the machine variants of the column: place, interrupt moderation and topology.
    pub fn variants(&self) -> impl Iterator<Item = (Place, PollMode, Topology)> {
        let machines = self.machines();
        let moderated = self.place.iter().flat_map(|&place| {
            let with = move |&moderation: &PollMode| (place, moderation);
            self.moderation.iter().map(with)
        });
        moderated.flat_map(move |(place, moderation)| {
            let with = |&topology: &Topology| (place, moderation, topology);
            machines.iter().map(with).collect::<Vec<_>>()
        })
    }

    /// Returns the topologies of the column.
    #[must_use]
    pub fn machines(&self) -> Vec<Topology> {
        let mut machines = Vec::new();
        for &guests in &self.guests {
            for &rivals in &self.rivals {
                for &wires in &self.wires {
                    machines.extend(self.flows.iter().map(|&flows| Topology {
                        mechanisms: self.machine,
                        guests,
                        rivals,
                        mixed: self.mixed,
                        wires: if self.own_wires { guests } else { wires },
                        own_wires: self.own_wires,
                        flows,
                        restarts: false,
                    }));
                }
            }
        }
        machines
    }
}

fn at_events() -> Vec<PollMode> {
    vec![PollMode::Event]
}

fn just_one() -> Vec<u32> {
    vec![1]
}

fn no_rivals() -> Vec<u32> {
    vec![0]
}

/// The path between wire and guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PathKind {
    /// Monitor, driver domain and guest domain.
    Machine,
    /// Monitor and driver domain. The receiver is a socket behind a TAP on the driver domain's
    /// bridge, without a ring or grants.
    Local,
    /// The TAP forwarder in one process.
    Forwarder,
    /// The kernel's bridge between two veth pairs.
    Bridge,
    /// A veth pair.
    Veth,
    /// Monitor, driver domain and shim. The guest is a virtual machine (User-Mode Linux).
    Vm,
    /// A vhost-user back end in one process. The guest is a virtual machine.
    #[serde(rename = "vm-one-process")]
    VmOneProcess,
    /// The kernel's bridge between a veth pair and a TAP of a virtual machine.
    #[serde(rename = "vm-bridge")]
    VmBridge,
}

impl PathKind {
    /// Returns whether the guest is a virtual machine.
    #[must_use]
    pub const fn has_vm(self) -> bool {
        matches!(self, Self::Vm | Self::VmOneProcess | Self::VmBridge)
    }
}

/// Generic receive offload at the receiving ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Gro {
    /// No aggregation.
    Off,
    /// No aggregation; receive packet steering runs softirqs on each end's core.
    Rps,
    /// Aggregation in softirq context.
    On,
    /// Aggregation in a kernel thread on the receiver's core.
    Napi,
    /// Aggregation also at the bridge's ports, where frames arrive from the wire, in softirq
    /// context.
    In,
    /// Like `In`, in kernel threads on the guest's core.
    InNapi,
}

impl Gro {
    /// Returns whether the bridge's ports aggregate.
    #[must_use]
    pub const fn at_ports(self) -> bool {
        matches!(self, Self::In | Self::InNapi)
    }

    /// Returns whether kernel threads aggregate.
    #[must_use]
    pub const fn threaded(self) -> bool {
        matches!(self, Self::Napi | Self::InNapi)
    }
}

//! A column: what lies between wire and guest, and in which variants.

use super::lro::{Lro, LroRules};
use super::topology::{Mechanisms, Place, Topology};
use super::wire::{Faults, Moderation, Wire, WireNic};
use super::workload::Direction;
use serde::{Deserialize, Serialize};

/// A column.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// What lies between wire and guest.
    pub path: PathKind,
    /// Where that runs.
    #[serde(default)]
    pub place: Vec<Place>,
    /// What the machine's wire is.
    #[serde(default)]
    pub nic: WireNic,
    /// Interrupt moderations of the machine's wire.
    #[serde(default = "at_events")]
    pub moderation: Vec<Moderation>,
    /// The configuration of the plan's paper that it stands for.
    pub paper: Option<String>,
    /// Whether the wire's own TCP runs on the wire's core, as on another machine, and not in the
    /// driver domain that writes to the wire's TAP.
    #[serde(default)]
    pub apart: bool,
    /// Whether the wire carries segments of TCP whole (segmentation offload), not frames of the
    /// MTU.
    #[serde(default)]
    pub segments: bool,
    /// What becomes of packets on the wire; none: all come, in order.
    pub faults: Option<Faults>,
    /// Whether the guests acknowledge at once what they receive.
    #[serde(default)]
    pub quick_ack: bool,
    /// In which ways the machine differs from the usual one.
    #[serde(default)]
    pub machine: Mechanisms,
    /// Guests that have the same load at once.
    #[serde(default = "just_one")]
    pub guests: Vec<u32>,
    /// Further guests, each of which has a stream while those are measured, for its CPU and link.
    #[serde(default = "none_beside")]
    pub beside: Vec<u32>,
    /// NICs of the machine, each with a wire, a neighbour and a stream of its own.
    #[serde(default = "just_one")]
    pub wires: Vec<u32>,
    /// Streams of each guest's load.
    #[serde(default = "just_one")]
    pub flows: Vec<u32>,
    /// The only direction that it is measured in; none: all of the plan's.
    pub direction: Option<Direction>,
    /// How the kernel's paths look at frames.
    pub gro: Option<Gro>,
    /// How the machine aggregates. Columns of one place share a machine, which is switched.
    pub lro: Option<Lro>,
    /// Which packets it merges.
    #[serde(default)]
    pub rules: LroRules,
    /// Speeds of the wire that it is measured at; none: all of the plan's.
    #[serde(default)]
    pub wire: Vec<Wire>,
}

impl Column {
    /// Whether it is measured in this direction.
    #[must_use]
    pub fn goes(&self, direction: Direction) -> bool {
        self.direction.is_none_or(|only| only == direction)
    }

    /// Everything of ours that it is measured with: where it runs, how its wire is moderated, what
    /// it is.
    pub fn variants(&self) -> impl Iterator<Item = (Place, Moderation, Topology)> {
        let machines = self.machines();
        let moderated = self.place.iter().flat_map(|&place| {
            let with = move |&moderation: &Moderation| (place, moderation);
            self.moderation.iter().map(with)
        });
        moderated.flat_map(move |(place, moderation)| {
            let with = |&topology: &Topology| (place, moderation, topology);
            machines.iter().map(with).collect::<Vec<_>>()
        })
    }

    /// The machines that it is measured with.
    #[must_use]
    pub fn machines(&self) -> Vec<Topology> {
        let mut machines = Vec::new();
        for &guests in &self.guests {
            for &beside in &self.beside {
                for &wires in &self.wires {
                    machines.extend(self.flows.iter().map(|&flows| Topology {
                        mechanisms: self.machine,
                        guests,
                        beside,
                        wires,
                        flows,
                        restarts: false,
                    }));
                }
            }
        }
        machines
    }

    /// Whether it is measured at this speed of the wire.
    #[must_use]
    pub fn is_at(&self, wire: &Wire) -> bool {
        self.wire.is_empty() || self.wire.contains(wire)
    }
}

fn at_events() -> Vec<Moderation> {
    vec![Moderation::Event]
}

fn just_one() -> Vec<u32> {
    vec![1]
}

fn none_beside() -> Vec<u32> {
    vec![0]
}

/// What lies between wire and guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PathKind {
    /// Monitor, driver domain, guest domain.
    Machine,
    /// Monitor and driver domain: the receiver is a socket behind a TAP on the driver domain's own
    /// bridge, without ring and grants.
    Local,
    /// The one-process TAP forwarder.
    Forwarder,
    /// The kernel's bridge between two veth pairs.
    Bridge,
    /// A veth pair.
    Veth,
}

/// How the receiving ends look at frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Gro {
    /// One by one.
    Off,
    /// One by one, by softirqs on the core of each end (receive packet steering).
    Rps,
    /// Merged in softirq context.
    On,
    /// Merged in a kernel thread on the receiver's core.
    Napi,
    /// A bridge's own ports merge too, where frames come in from the wire, in softirq context.
    In,
    /// The same, in kernel threads on the guest's core.
    InNapi,
}

impl Gro {
    /// Whether a bridge's own ports merge.
    #[must_use]
    pub const fn at_ports(self) -> bool {
        matches!(self, Self::In | Self::InNapi)
    }

    /// Whether kernel threads merge.
    #[must_use]
    pub const fn threaded(self) -> bool {
        matches!(self, Self::Napi | Self::InNapi)
    }
}

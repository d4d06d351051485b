//! A column: what lies between wire and guest, and in which variants.

use super::lro::Lro;
use super::topology::{Mechanisms, Place, Topology};
use super::wire::{Wire, WireNic};
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
    /// Interrupt moderation of the machine's wire: microseconds from one look to the next; none:
    /// a look for every event.
    pub tick_us: Option<u32>,
    /// In which ways the machine differs from the usual one.
    #[serde(default)]
    pub machine: Mechanisms,
    /// Guests that have the same load at once.
    #[serde(default = "one_guest")]
    pub guests: Vec<u32>,
    /// Streams of each guest's load.
    #[serde(default = "one_flow")]
    pub flows: Vec<u32>,
    /// The only direction that it is measured in; none: all of the plan's.
    pub direction: Option<Direction>,
    /// How the kernel's paths look at frames.
    pub gro: Option<Gro>,
    /// How the machine aggregates. Columns of one place share a machine, which is switched.
    pub lro: Option<Lro>,
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

    /// The machines that it is measured with.
    #[must_use]
    pub fn machines(&self) -> Vec<Topology> {
        let of = |&guests| {
            self.flows.iter().map(move |&flows| Topology {
                mechanisms: self.machine,
                guests,
                flows,
                restarts: false,
            })
        };
        self.guests.iter().flat_map(of).collect()
    }

    /// Whether it is measured at this speed of the wire.
    #[must_use]
    pub fn is_at(&self, wire: &Wire) -> bool {
        self.wire.is_empty() || self.wire.contains(wire)
    }
}

fn one_guest() -> Vec<u32> {
    vec![1]
}

fn one_flow() -> Vec<u32> {
    vec![1]
}

/// What lies between wire and guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PathKind {
    /// Monitor, driver domain, guest domain.
    Machine,
    /// The one-process TAP forwarder.
    Forwarder,
    /// The kernel's bridge between two veth pairs.
    Bridge,
    /// A veth pair.
    Veth,
}

/// How the receiving ends look at frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Gro {
    /// One by one.
    Off,
    /// Merged in softirq context.
    On,
    /// Merged in a kernel thread on the receiver's core.
    Napi,
}

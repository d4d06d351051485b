//! Machines, and the cores on which their domains run.

use config::domain::{BufferSize, GrantMode, Offloads};
use config::lro::Meta;
use serde::{Deserialize, Serialize};

/// Differences of a machine from the default one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Mechanisms {
    /// Grant mechanism of the driver domain.
    pub grants: GrantMode,
    /// True if each guest has a dedicated queue of the wire.
    pub vmq: bool,
    /// Size of the guests' buffers.
    pub buffers: BufferSize,
    /// Number of posted buffers for frames to a guest; `None`: the default.
    pub to_guest: Option<u32>,
    /// Number of packets that the wire's queue holds, and of NIC buffers. For a device domain, the
    /// number of entries of each queue. `None`: the default.
    pub wire_queue: Option<u32>,
    /// Microseconds from a received frame to the interrupt of a device domain.
    pub interrupt_us: u32,
    /// True if a device domain merges received TCP segments.
    pub wire_lro: bool,
    /// True if a device domain stores headers of received frames in separate buffers.
    pub wire_split: bool,
    /// Number of received frames ahead of the current one whose headers a guest prefetches; `None`:
    /// the default.
    pub prefetch: Option<u32>,
    /// Bytes that a guest leaves free in front of each receive buffer, which move its payload.
    pub headroom: u32,
    /// Number of spare buffers, which replace those whose frames the guest still holds.
    pub spare: u32,
    /// Number of pages of free buffers that stay granted; `None`: all.
    pub release_threshold: Option<u32>,
    /// Location of the segment size of an aggregate on the ring; `None`: in the first response.
    pub meta: Option<Meta>,
    /// Offloads that guest interfaces may leave to the driver domain.
    pub offloads: Offloads,
    /// Number of workers of the driver domain; `None`: one.
    pub workers: Option<u32>,
    /// Number of firewall rules per guest interface. The driver evaluates all of them for each
    /// frame to the guest, because none matches the load.
    pub rules: u16,
    /// True if the guest interfaces have a stateful firewall that admits new flows to loads alone.
    pub stateful: bool,
}

/// A machine of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Topology {
    /// Differences from the default machine.
    pub mechanisms: Mechanisms,
    /// Number of measured guests.
    pub guests: u32,
    /// Number of further guests that have loads but are not measured.
    pub rivals: u32,
    /// True if these have different loads, not a stream each.
    pub mixed: bool,
    /// Number of wires. Every guest has a stream over each of them.
    pub wires: u32,
    /// True if every guest has a stream over only one wire, which no other guest uses.
    pub own_wires: bool,
    /// Number of streams of each guest's load.
    pub flows: u32,
    /// True if its domains always restart without delay.
    pub restarts: bool,
}

impl Default for Topology {
    fn default() -> Self {
        Self {
            mechanisms: Mechanisms::default(),
            guests: 1,
            rivals: 0,
            mixed: false,
            wires: 1,
            own_wires: false,
            flows: 1,
            restarts: false,
        }
    }
}

impl Topology {
    /// Returns whether the machine has only one wire and one guest.
    #[must_use]
    pub const fn is_alone(&self) -> bool {
        self.guests == 1 && self.rivals == 0 && self.wires == 1
    }
}

/// Cores of the components between the ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// Driver and guest on the guest's core; only the wire's socket on the other.
    OneCore,
    /// The driver on the wire's core; the guest, and the driver's second worker, on the guest's
    /// core.
    Split,
}

impl Place {
    /// Returns the value of the `place` key.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::OneCore => "one-core",
            Self::Split => "split",
        }
    }
}

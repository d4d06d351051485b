//! What a machine is, and where its domains run.

use config::domain::{BufferSize, GrantMode, Offloads};
use config::lro::Meta;
use serde::{Deserialize, Serialize};

/// In which ways a machine differs from the usual one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Mechanisms {
    /// How the driver domain gets at granted pages.
    pub grants: GrantMode,
    /// Whether guests have queues of the wire of their own.
    pub vmq: bool,
    /// Size of the guests' buffers.
    pub buffers: BufferSize,
    /// Buffers that wait for frames to a guest; none: as many as usual.
    pub to_guest: Option<u32>,
    /// Packets that the wire's queue holds, and as many buffers of the NIC; none: as usual.
    pub wire_queue: Option<u32>,
    /// Received frames ahead whose headers a guest fetches; none: as usual.
    pub prefetch: Option<u32>,
    /// Buffers that replace those whose frames the guest still has.
    pub spare: u32,
    /// Pages of free buffers that stay granted; none: all do.
    pub release_threshold: Option<u32>,
    /// Where the segment size of an aggregate travels on the ring; none: as usual.
    pub meta: Option<Meta>,
    /// What the guests' interfaces may leave to the driver domain.
    pub offloads: Offloads,
    /// Workers of the driver domain; none: one.
    pub workers: Option<u32>,
    /// Firewall rules of each guest's interface that are asked about every frame to it, and none of
    /// which fits a load's.
    pub rules: u16,
}

/// What a lane's machine is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Topology {
    /// In which ways it differs from the usual one.
    pub mechanisms: Mechanisms,
    /// How many guests it has that are measured.
    pub guests: u32,
    /// Further guests that have streams meanwhile, and are not.
    pub beside: u32,
    /// How many wires it has; every guest has a stream over each.
    pub wires: u32,
    /// Streams of each guest's load.
    pub flows: u32,
    /// Whether its domains are started again at once, however often they end.
    pub restarts: bool,
}

impl Default for Topology {
    fn default() -> Self {
        Self {
            mechanisms: Mechanisms::default(),
            guests: 1,
            beside: 0,
            wires: 1,
            flows: 1,
            restarts: false,
        }
    }
}

impl Topology {
    /// Whether one wire and one guest are all that there is.
    #[must_use]
    pub const fn is_alone(&self) -> bool {
        self.guests == 1 && self.beside == 0 && self.wires == 1
    }
}

/// Where what stands between the ends runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// Driver and guest on the guest's core, only the wire's socket on the other.
    OneCore,
    /// The driver on the wire's core, the guest on its own; a second worker of the driver's on the
    /// guest's.
    Split,
}

impl Place {
    /// Its name as a key.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::OneCore => "one-core",
            Self::Split => "split",
        }
    }
}

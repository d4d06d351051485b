//! The flow table of a port (connection tracking): recognizes packets of flows that the rules have
//! admitted. `specs/firewall.md` numbers its clauses (FW-1 …).
//!
//! | module | job |
//! |---|---|
//! | `key` | identity of a flow, and its keyed hash |
//! | `identity` | extracts the identity of a flow from a frame's header |
//! | `plain_packet` | the same for the most common packets |
//! | `phase` | phases of a flow, TCP transitions, timeouts |
//! | `entry` | one flow as eight words, and their validation after another process wrote them |
//! | `table` | hash table of entries: look-up, admission, eviction |
//! | `fragments` | flows of recent first fragments |
//!
//! The caller classifies a frame ([`Flows::classify`]), evaluates its rules, and reports a frame
//! that passes ([`Flows::pass`]). Classifying changes nothing. Most packets of admitted flows take
//! a shorter path: [`Flows::find_established`] finds their flow, and [`SteadyFlow::count`] counts
//! them.
//! Every operation accesses a bounded number of entries and allocates nothing.
//!
//! The table is an array of words in memory that the caller provides, so it can outlive the
//! process. The next process validates every word ([`Flows::adopt`]). Time and keys are arguments.

mod entry;
mod fragments;
mod identity;
mod key;
mod phase;
mod plain_packet;
mod table;

pub use entry::{FlowStatus, SteadyFlow};
pub use identity::Subject;
pub use phase::FlowPhase;
pub use plain_packet::PlainPacket;
pub use table::{FlowTotals, Flows, Lookup, TableFull};

/// Direction in which a frame passes a port, as the bridge sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Ingress: from the port to the bridge.
    In,
    /// Egress: from the bridge to the port.
    Out,
}

impl Direction {
    /// Returns the other direction.
    #[must_use]
    pub const fn opposite(self) -> Self {
        match self {
            Self::In => Self::Out,
            Self::Out => Self::In,
        }
    }
}

/// Relation of a packet to the flows of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FlowState {
    /// The packet may begin a flow: a SYN, a datagram, an echo request.
    New,
    /// The packet belongs to an admitted flow.
    Established,
    /// The packet concerns an admitted flow: an ICMP error, or the answer to a DHCP request.
    Related,
}

/// Classification of a frame by a flow table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Classification {
    /// The frame has this state.
    Is(FlowState),
    /// The frame belongs to no flow and cannot begin one: a TCP segment of an unknown connection,
    /// an unsolicited reply, a later fragment without its first one, or unparsable headers.
    Unknown,
    /// The frame has no flow: ARP, neighbour discovery, multicast membership messages.
    Untracked,
}

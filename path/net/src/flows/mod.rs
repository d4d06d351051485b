//! Flow table of a port: tells packets of conversations that the rules have admitted from others.
//! `specs/firewall.md` numbers its clauses (FW-1 …).
//!
//! | module | job |
//! |---|---|
//! | `key` | identity of a flow, and its keyed hash |
//! | `subject` | extracts from a frame's header what identifies its flow |
//! | `plain` | the same for the most common packets |
//! | `phase` | phases of a flow, TCP transitions, time-outs |
//! | `entry` | one flow as eight words, and the check of words that another process wrote |
//! | `table` | hash table of entries: look-up, admission, eviction |
//! | `fragments` | flows of recent first fragments |
//!
//! The caller looks a frame up ([`Flows::look`]), asks its rules, and reports a frame that
//! passes ([`Flows::pass`]). A look changes nothing. Most packets of known flows need neither:
//! [`Flows::carries`] finds their flow, and [`Flows::count`] counts them. Every operation touches a
//! bounded number of entries and allocates nothing.
//!
//! The table lies in plain words that the caller provides, so it can outlive the process. A process
//! that takes it over ([`Flows::adopt`]) checks every word. Time and keys are arguments.

mod entry;
mod fragments;
mod key;
mod phase;
mod plain;
mod subject;
mod table;

pub use entry::FlowStatus;
pub use phase::Phase;
pub use plain::Plain;
pub use subject::Subject;
pub use table::{Flows, Full, Place, Sighting, Totals};

/// Direction in which a frame passes a port, seen from the bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Ingress: from the port to the bridge.
    In,
    /// Egress: from the bridge to the port.
    Out,
}

impl Direction {
    /// The other direction.
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
pub enum State {
    /// It may begin a flow: a SYN, a datagram, an echo request.
    New,
    /// It belongs to a flow that was admitted.
    Established,
    /// It belongs to none but concerns one: an ICMP error, or the answer to a DHCP request.
    Related,
}

/// Standing of a frame to a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// In this state.
    Is(State),
    /// It belongs to no flow and cannot begin one: a TCP segment out of nowhere, an unsolicited
    /// reply, a fragment without its first one, headers that cannot be followed.
    Unknown,
    /// Flows do not apply: ARP, neighbour discovery, reports and queries of multicast members.
    Untracked,
}

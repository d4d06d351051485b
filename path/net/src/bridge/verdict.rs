//! Forwarding decisions.

use super::drops::DropReason;
use super::ports::PortSet;

/// A forwarding decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Forward to this port.
    Unicast(usize),
    /// Forward by each of these ports, at least one.
    Multiple(PortSet),
    /// Drop.
    Drop(DropReason),
}

impl Verdict {
    /// Returns the verdict that forwards to each port of a set.
    pub(super) fn to(set: PortSet) -> Result<Self, DropReason> {
        let (first, second) = (set.iter().next(), set.iter().nth(1));
        match (first, second) {
            (None, _) => Err(DropReason::NoPort),
            (Some(port), None) => Ok(Self::Unicast(port)),
            _ => Ok(Self::Multiple(set)),
        }
    }
}

//! Where a frame goes.

use super::drops::DropReason;
use super::ports::PortSet;

/// Where a frame goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Out by this port.
    Unicast(usize),
    /// Out by each of these ports, at least one.
    Many(PortSet),
    /// Nowhere.
    Drop(DropReason),
}

impl Verdict {
    /// The verdict that sends to each of a set.
    pub(super) fn to(set: PortSet) -> Result<Self, DropReason> {
        let (first, second) = (set.iter().next(), set.iter().nth(1));
        match (first, second) {
            (None, _) => Err(DropReason::NoPort),
            (Some(port), None) => Ok(Self::Unicast(port)),
            _ => Ok(Self::Many(set)),
        }
    }
}

//! The cores of a run.

use crate::plan::Place;
use serde::{Deserialize, Serialize};

/// The cores of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cores {
    /// Where the wire's socket lives.
    pub wire: usize,
    /// Where the guest's socket, and the guest, live.
    pub guest: usize,
}

impl Cores {
    /// Of this machine: the first two cores that may be used, or the only one twice.
    #[must_use]
    pub fn choose() -> Self {
        let cores = figures::measure::cores();
        let wire = cores.first().copied().unwrap_or(0);
        Self {
            wire,
            guest: cores.get(1).copied().unwrap_or(wire),
        }
    }

    /// The driver's (or forwarder's) core.
    #[must_use]
    pub const fn driver(self, place: Place) -> usize {
        match place {
            Place::OneCore => self.guest,
            Place::Split => self.wire,
        }
    }
}

//! Cores of a run.

use crate::plan::Place;
use serde::{Deserialize, Serialize};

/// Cores of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cores {
    /// Core of the wire's socket.
    pub wire: usize,
    /// Core of the guest and its socket.
    pub guest: usize,
}

impl Cores {
    /// Returns the first two cores that this process may use, or the only one twice.
    #[must_use]
    pub fn choose() -> Self {
        let cores = figures::measure::cores();
        let wire = cores.first().copied().unwrap_or(0);
        Self {
            wire,
            guest: cores.get(1).copied().unwrap_or(wire),
        }
    }

    /// Returns the core of the driver (or forwarder).
    #[must_use]
    pub const fn driver(self, place: Place) -> usize {
        match place {
            Place::OneCore => self.guest,
            Place::Split => self.wire,
        }
    }
}

//! A cable in memory.

use crate::findings::Findings;
use crate::problem::ConfigPart;
use crate::station::{self, StackConfig};
use crate::table::TomlTable;
use serde::{Deserialize, Serialize};

/// A cable in memory with a TCP/IP station at its far end, both in one domain.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cable {
    /// One-way delay, microseconds.
    pub delay_us: u32,
    /// Share of frames lost in each direction, 0.0 … 1.0.
    pub loss: f64,
    /// Seed of the losses.
    pub seed: u64,
    /// The station.
    #[serde(rename = "far")]
    pub station: StackConfig,
}

/// A cable of a domain.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CableConfig {
    /// The station's MAC.
    #[serde(default)]
    pub mac: [u8; 6],
    /// The cable.
    #[serde(flatten)]
    pub cable: Cable,
}

impl Default for Cable {
    fn default() -> Self {
        Self {
            delay_us: 0,
            loss: 0.0,
            seed: 1,
            station: StackConfig::default(),
        }
    }
}

impl Cable {
    /// Reads the cable of NIC number `n`.
    pub(crate) fn read(n: usize, t: &TomlTable<'_, '_>) -> Self {
        Self {
            station: station::read(t, "nic.app", |app| ConfigPart::NicApp(n, app)),
            ..t.fields_except(&["far"])
        }
    }

    /// Checks the cable of NIC number `n`.
    pub(crate) fn check(&self, found: &mut Findings, n: usize) {
        let (part, loss) = (ConfigPart::Nic(n), self.loss);
        found.range(part, "delay_us", self.delay_us, 0..=10_000_000);
        if !(0.0..=1.0).contains(&loss) {
            let remedy = "write a share from 0.0 to 1.0";
            found.add(part, "loss", format!("`loss` is {loss}"), remedy);
        }
        let app = |app| ConfigPart::NicApp(n, app);
        station::check(found, part, &self.station, None, app);
    }

    /// Returns the cable of a domain, whose station has this MAC.
    pub(crate) fn with_mac(&self, mac: [u8; 6]) -> CableConfig {
        let cable = self.clone();
        CableConfig { mac, cable }
    }
}

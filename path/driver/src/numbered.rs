//! A configuration whose NICs and interfaces have become ports. A configuration counts its NICs and
//! its interfaces from 0; this is the one place that knows which ports they are.

use config::domain::{DriverConfig, NicConfig, VifConfig};

/// What is configured for each port, with the port's number.
#[derive(Clone, Debug)]
pub struct Numbered<'a> {
    /// In the configuration's order.
    nics: Vec<(usize, &'a NicConfig)>,
    /// In the configuration's order.
    vifs: Vec<(usize, &'a VifConfig)>,
}

impl<'a> Numbered<'a> {
    /// A configuration whose NICs, then interfaces, have these numbers.
    #[must_use]
    pub fn new(config: &'a DriverConfig, nics: &[usize], vifs: &[usize]) -> Self {
        Self {
            nics: nics.iter().copied().zip(&config.nics).collect(),
            vifs: vifs.iter().copied().zip(&config.vifs).collect(),
        }
    }

    /// Each NIC and its port.
    pub fn nics(&self) -> impl Iterator<Item = (usize, &'a NicConfig)> {
        self.nics.iter().copied()
    }

    /// Each interface and its port.
    pub fn vifs(&self) -> impl Iterator<Item = (usize, &'a VifConfig)> {
        self.vifs.iter().copied()
    }

    /// The NIC that the configuration gives this number, and its port.
    #[must_use]
    pub fn nic(&self, index: u32) -> Option<(usize, &'a NicConfig)> {
        self.nics.get(index as usize).copied()
    }
}

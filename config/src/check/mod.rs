//! Checks the meaning of a configuration: names, addresses, numbers, sizes. Only a valid
//! configuration is converted to a machine.

mod bridge;
mod dedicated;
mod driver;
mod guest;
mod limits;
mod lro;
mod nic;
mod stateful;
mod warnings;

use crate::findings::Findings;
use crate::machine;
use crate::model::Config;
use crate::problem::{ConfigPart, Finding, Problems};
use abi::machine::{DomainSpec, Machine};

/// Checks a worker of the driver domain against the limits of a domain.
pub(crate) fn size(worker: &DomainSpec) -> Result<(), Problems> {
    let mut found = Findings::default();
    limits::domain(worker, ConfigPart::Driver, &mut found);
    Problems::from_findings(found.0, ())
}

impl Config {
    /// Checks the configuration, as [`crate::parse`] does after it has read a file.
    ///
    /// # Errors
    ///
    /// Returns all mistakes of the configuration.
    pub fn check(&self) -> Result<(), Problems> {
        Problems::from_findings(self.findings(), ())
    }

    /// Returns the machine to build.
    ///
    /// # Errors
    ///
    /// Returns all mistakes of the configuration, without lines: see [`Config::check`].
    pub fn machine(&self) -> Result<Machine, Problems> {
        self.check()?;
        Ok(machine::build(self))
    }

    /// Returns the mistakes in the configuration of a running machine after guest number `g`, with
    /// the domain `domain`, was added.
    pub(crate) fn findings_with(&self, g: usize, domain: &DomainSpec) -> Vec<Finding> {
        let mut found = self.parts();
        if found.0.is_empty() {
            limits::domain(domain, ConfigPart::Guest(g), &mut found);
        }
        found.0
    }

    /// Returns all mistakes except those of sizes.
    pub(crate) fn findings_of_parts(&self) -> Vec<Finding> {
        self.parts().0
    }

    pub(crate) fn findings(&self) -> Vec<Finding> {
        let mut found = self.parts();
        if found.0.is_empty() {
            // Sizes can be checked only if all parts are valid.
            limits::check(self, &mut found);
        }
        found.0
    }

    /// Returns the mistakes in its parts.
    fn parts(&self) -> Findings {
        let mut found = Findings::default();
        driver::check(self, &mut found);
        nic::check(self, &mut found);
        guest::check(self, &mut found);
        dedicated::check(self, &mut found);
        stateful::check(self, &mut found);
        bridge::check(self, &mut found);
        lro::check(self, &mut found);
        found
    }
}

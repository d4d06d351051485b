//! What a configuration means, checked: names, addresses, numbers, sizes. Only what is right
//! becomes a machine.

mod bridge;
mod claims;
mod dedicated;
mod driver;
mod findings;
mod guest;
mod limits;
mod lro;
mod neighbour;
mod nic;
mod route;
mod rule;
mod station;
mod uplink;
mod warnings;

use crate::machine;
use crate::model::Config;
use crate::problem::{Finding, Place, Problems};
use abi::machine::{Domain, Machine};
use findings::Findings;

/// Looks at a worker of the driver domain for what it has more of than a domain may have.
pub(crate) fn size(worker: &Domain) -> Result<(), Problems> {
    let mut found = Findings::default();
    limits::domain(worker, Place::Driver, &mut found);
    Problems::found(found.0, ())
}

impl Config {
    /// Check it, as [`crate::parse`] does with what it has read.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn check(&self) -> Result<(), Problems> {
        Problems::found(self.findings(), ())
    }

    /// The machine to build.
    ///
    /// # Errors
    /// What is wrong with the configuration, without lines: see [`Config::check`].
    pub fn machine(&self) -> Result<Machine, Problems> {
        self.check()?;
        Ok(machine::build(self))
    }

    /// What is wrong with the configuration of a machine that runs, and has got guest number `g`,
    /// which is `domain`.
    pub(crate) fn findings_with(&self, g: usize, domain: &Domain) -> Vec<Finding> {
        let mut found = self.parts();
        if found.0.is_empty() {
            limits::domain(domain, Place::Guest(g), &mut found);
        }
        found.0
    }

    /// What is wrong with it, but for sizes.
    pub(crate) fn findings_of_parts(&self) -> Vec<Finding> {
        self.parts().0
    }

    pub(crate) fn findings(&self) -> Vec<Finding> {
        let mut found = self.parts();
        if found.0.is_empty() {
            // Sizes are worth a look only when their parts are sound.
            limits::check(self, &mut found);
        }
        found.0
    }

    /// What is wrong with its parts.
    fn parts(&self) -> Findings {
        let mut found = Findings::default();
        driver::check(self, &mut found);
        nic::check(self, &mut found);
        guest::check(self, &mut found);
        dedicated::check(self, &mut found);
        bridge::check(self, &mut found);
        lro::check(self, &mut found);
        found
    }
}

//! Who has which slots of the windows of the driver domain's workers.

use config::domain::{DriverConfig, VifConfig};
use config::live;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// They, by the worker's place in the machine.
#[derive(Debug)]
pub(crate) struct Windows<'a> {
    /// From this slot on they are guests', up to those that are kept for NICs.
    first: u32,
    /// What a worker serves, and where its window ends.
    of: BTreeMap<usize, (Cow<'a, DriverConfig>, u32)>,
}

impl<'a> Windows<'a> {
    pub(crate) fn new(first: u32, of: BTreeMap<usize, (Cow<'a, DriverConfig>, u32)>) -> Self {
        Self { first, of }
    }

    /// The interfaces of a guest, with slots in each window.
    pub(crate) fn place(
        &self,
        vifs: &[VifConfig],
    ) -> Result<BTreeMap<usize, Vec<VifConfig>>, String> {
        let mut all = BTreeMap::new();
        for (&worker, (driver, end)) in &self.of {
            let mut vifs = vifs.to_vec();
            if !live::place(driver, self.first, *end, &mut vifs) {
                let slots = live::guests_end(*end).saturating_sub(self.first);
                return Err(format!(
                    "the machine is full: the window of the driver domain has {slots} slots for \
                     guests, and no room for what this guest grants; detach another one first"
                ));
            }
            all.insert(worker, vifs);
        }
        Ok(all)
    }

    /// They are in these slots.
    pub(crate) fn take(&mut self, placed: BTreeMap<usize, Vec<VifConfig>>) {
        for (worker, mut vifs) in placed {
            if let Some((driver, _)) = self.of.get_mut(&worker) {
                driver.to_mut().vifs.append(&mut vifs);
            }
        }
    }

    /// A guest's slots are free again.
    pub(crate) fn free(&mut self, guest: &str) {
        for (driver, _) in self.of.values_mut() {
            let vifs = &mut driver.to_mut().vifs;
            vifs.retain(|vif| !is_of(vif, guest));
        }
    }
}

/// Whether an interface is a guest's: its name is the guest's and a number.
pub(crate) fn is_of(vif: &VifConfig, guest: &str) -> bool {
    VifConfig::guest_of(&vif.name) == Some(guest)
}

//! Slots of the workers' grant windows.

use config::domain::{DriverConfig, VifConfig};
use config::live;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// A guest's ports, by the worker's place.
pub(crate) type Ports = BTreeMap<usize, Vec<VifConfig>>;

/// The windows of all workers, by place.
#[derive(Debug)]
pub(crate) struct WorkerWindows<'a> {
    /// The first slot for guests. The last slots of a window are reserved for NICs.
    first: u32,
    /// The worker's configuration, and the length of its window.
    of: BTreeMap<usize, (Cow<'a, DriverConfig>, u32)>,
}

impl<'a> WorkerWindows<'a> {
    pub(crate) fn new(first: u32, of: BTreeMap<usize, (Cow<'a, DriverConfig>, u32)>) -> Self {
        Self { first, of }
    }

    /// Returns a guest's interfaces with slots in each window.
    pub(crate) fn place(&self, vifs: &[VifConfig]) -> Result<Ports, String> {
        let mut all = BTreeMap::new();
        for (&worker, (driver, end)) in &self.of {
            let mut vifs = vifs.to_vec();
            if !live::allocate_slots(driver, self.first, *end, &mut vifs) {
                let slots = live::guests_end(*end).saturating_sub(self.first);
                return Err(format!(
                    "the machine is full: the window of the driver domain has {slots} slots for \
                     guests, and too few are free for this guest; detach another guest first"
                ));
            }
            all.insert(worker, vifs);
        }
        Ok(all)
    }

    /// Adds the interfaces with these slots.
    pub(crate) fn reserve(&mut self, placed: Ports) {
        for (worker, mut vifs) in placed {
            if let Some((driver, _)) = self.of.get_mut(&worker) {
                driver.to_mut().vifs.append(&mut vifs);
            }
        }
    }

    /// Removes a guest's interfaces.
    pub(crate) fn free(&mut self, guest: &str) {
        for (driver, _) in self.of.values_mut() {
            let vifs = &mut driver.to_mut().vifs;
            vifs.retain(|vif| !belongs_to_guest(vif, guest));
        }
    }
}

/// Returns whether an interface belongs to a guest. The interface's name begins with the guest's
/// name.
pub(crate) fn belongs_to_guest(vif: &VifConfig, guest: &str) -> bool {
    VifConfig::guest_of(&vif.name) == Some(guest)
}

//! Ports of guests at the workers of the driver domain, and their slots in the workers' windows.

use super::MachineSpec;
use super::change::Ports;
use abi::machine::Program;
use config::domain::VifConfig;
use config::live;
use std::collections::BTreeMap;

impl MachineSpec {
    /// Returns the ports of a guest that connects now, with free slots in the windows of all
    /// workers.
    pub(crate) fn ports(&self, vifs: &[VifConfig]) -> Result<Ports, String> {
        let first = self.live.as_ref().map_or(0, |live| live.start.first_slot);
        let workers = self.domains.iter();
        let workers = workers.filter(|(_, domain)| domain.program == Program::Driver);
        let mut all = BTreeMap::new();
        for (&worker, domain) in workers {
            let driver = self.drivers.get(&worker);
            let invalid = || format!("domain {}: its configuration is invalid", domain.name);
            let driver = driver.ok_or_else(invalid)?;
            let mut vifs = vifs.to_vec();
            if !live::allocate_slots(driver, first, domain.window_slots, &mut vifs) {
                let slots = live::guests_end(domain.window_slots).saturating_sub(first);
                return Err(format!(
                    "the machine is full: the window of the driver domain has {slots} slots for \
                     guests, and too few are free for this guest; detach another guest first"
                ));
            }
            all.insert(worker, vifs);
        }
        Ok(all)
    }

    /// Returns each worker's ports of the interfaces `vifs`, with the rules and limits of `vifs`.
    pub(crate) fn changed_ports(&self, vifs: &[VifConfig]) -> Ports {
        let changed = |vif: &VifConfig| {
            let mut changed = vif.clone();
            changed.apply_changes(vifs.iter().find(|one| one.name == vif.name)?);
            Some(changed)
        };
        let drivers = self.drivers.iter();
        drivers
            .map(|(worker, driver)| (*worker, driver.vifs.iter().filter_map(changed).collect()))
            .collect()
    }

    /// Returns the connection numbers of a guest's interfaces at a worker.
    pub(crate) fn served(&self, worker: usize, name: &str) -> Vec<u32> {
        let driver = self.drivers.get(&worker).into_iter();
        let vifs = driver.flat_map(|driver| &driver.vifs);
        let vifs = vifs.filter(|vif| belongs_to_guest(vif, name));
        vifs.map(|vif| vif.conn).collect()
    }
}

/// Returns whether an interface belongs to a guest. The interface's name begins with the guest's
/// name.
pub(super) fn belongs_to_guest(vif: &VifConfig, guest: &str) -> bool {
    VifConfig::guest_of(&vif.name) == Some(guest)
}

//! Applies changes of the specification, and builds the changes of guests and NICs.

use super::change::{GuestSpec, NicChange, PendingNicChange, SpecChange};
use super::ports::belongs_to_guest;
use super::{MachineSpec, outlives_domain};
use abi::machine::Device;
use config::domain::VifConfig;
use config::live::WorkerNics;
use config::live::state::AttachedGuest;

impl MachineSpec {
    /// Applies one change.
    pub(crate) fn apply(&mut self, change: SpecChange) {
        match change {
            SpecChange::SetGuest(guest) => self.set_guest(*guest),
            SpecChange::RemoveGuest(name) => self.remove_guest(&name),
            SpecChange::SetNics { nics, pending } => {
                if let Some(nics) = nics {
                    self.set_nics(nics);
                }
                self.pending_nic_change = pending;
            }
            SpecChange::SetSaved(guests) => {
                self.saved = guests;
                if let Some(live) = &mut self.live {
                    live.start.left.clear();
                }
            }
            SpecChange::RemoveSaved(name) => {
                self.saved.retain(|one| one.name() != Some(&name));
            }
            SpecChange::SetLost { device, lost } => {
                match lost {
                    true => self.lost.insert(device),
                    false => self.lost.remove(&device),
                };
            }
            SpecChange::SetRestarts(place, restarts) => {
                self.restarts.insert(place, restarts);
            }
            SpecChange::SetMissing(missing) => self.missing = missing,
        }
    }

    /// Returns the entry of a guest.
    pub(crate) fn guest(&self, name: &str) -> Option<GuestSpec> {
        let place = self.place(name)?;
        let is_own = |vif: &&VifConfig| belongs_to_guest(vif, name);
        let ports = self.drivers.iter().map(|(worker, driver)| {
            let ports = driver.vifs.iter().filter(is_own);
            (*worker, ports.cloned().collect())
        });
        Some(GuestSpec {
            place,
            domain: self.domains.get(&place)?.clone(),
            is_changing: self.is_changing(name),
            section: self.section(name).cloned(),
            origin: self.origin(name).cloned(),
            ports: ports.collect(),
        })
    }

    fn set_guest(&mut self, guest: GuestSpec) {
        let GuestSpec {
            place,
            domain,
            is_changing,
            section,
            origin,
            mut ports,
        } = guest;
        let name = domain.name.clone();
        for (worker, driver) in &mut self.drivers {
            let mut ports = ports.remove(worker).unwrap_or_default();
            // The order of the ports does not change.
            driver.vifs.retain_mut(|vif| {
                let at = ports.iter().position(|port| port.conn == vif.conn);
                match at.filter(|_| belongs_to_guest(vif, &name)) {
                    Some(at) => *vif = ports.remove(at),
                    None => return !belongs_to_guest(vif, &name),
                }
                true
            });
            driver.vifs.append(&mut ports);
        }
        self.domains.insert(place, domain);
        match is_changing {
            true => self.changing.insert(name.clone()),
            false => self.changing.remove(&name),
        };
        let (Some(live), Some(guest)) = (&mut self.live, section) else {
            return;
        };
        match origin {
            None => drop(live.changed.insert(name, guest)),
            Some(origin) => {
                let attached = AttachedGuest { guest, origin };
                live.attached.insert(name, attached);
            }
        }
    }

    fn remove_guest(&mut self, name: &str) {
        let Some(place) = self.place(name) else {
            return;
        };
        self.domains.remove(&place);
        for driver in self.drivers.values_mut() {
            driver.vifs.retain(|vif| !belongs_to_guest(vif, name));
        }
        self.lost.retain(|(of, _)| *of != place);
        self.restarts.remove(&place);
        self.changing.remove(name);
        if let Some(live) = &mut self.live {
            live.changed.remove(name);
            if live.attached.remove(name).is_none() {
                live.detached.insert(name.to_owned());
            }
        }
    }

    fn set_nics(&mut self, nics: NicChange) {
        for (place, WorkerNics { domain, nics }) in nics.workers {
            let all = (self.domains.get_mut(&place), self.drivers.get_mut(&place));
            if let (Some(before), Some(driver)) = all {
                *before = domain;
                driver.nics = nics;
            }
        }
        if let Some(live) = &mut self.live {
            live.nics = nics.nics;
        }
    }

    /// Returns the change to other NICs. The current NICs can be restored until
    /// [`MachineSpec::end_nic_change`].
    pub(super) fn begin_nics(&self, nics: NicChange) -> SpecChange {
        let mut pending = PendingNicChange::default();
        let mut workers = Vec::new();
        for (place, changed) in &nics.workers {
            let all = (self.domains.get(place), self.drivers.get(place));
            let (Some(domain), Some(driver)) = all else {
                continue;
            };
            let (before, after) = (&domain.devices, &changed.domain.devices);
            for number in 0..before.len().max(after.len()) {
                let lasts = |devices: &[Device]| devices.get(number).is_some_and(outlives_domain);
                match (lasts(before), lasts(after)) {
                    (false, true) => pending.opens.push((*place, number)),
                    (true, false) => pending.closes.push((*place, number)),
                    _ => {}
                }
            }
            let (domain, nics) = (domain.clone(), driver.nics.clone());
            workers.push((*place, WorkerNics { domain, nics }));
        }
        let before = self.live.as_ref().and_then(|live| live.nics.clone());
        pending.back = Some(NicChange {
            nics: before,
            workers,
        });
        SpecChange::SetNics {
            nics: Some(nics),
            pending: Some(pending),
        }
    }

    /// Returns the change that ends a change of NICs. Afterwards, only devices remain to be closed.
    /// With `back`, the previous NICs are restored.
    pub(crate) fn end_nic_change(&self, back: bool) -> SpecChange {
        let pending = self.pending_nic_change.clone().unwrap_or_default();
        let nics = pending.back.filter(|_| back);
        let closes = match nics {
            Some(_) => pending.opens,
            None => pending.closes,
        };
        SpecChange::SetNics {
            nics,
            pending: Some(PendingNicChange {
                closes,
                ..PendingNicChange::default()
            }),
        }
    }
}

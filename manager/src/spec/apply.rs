//! Applies changes of the specification.

use super::change::{NicChange, PendingNicChange, SpecChange};
use super::{Spec, lasts};
use abi::machine::Device;
use config::live::WorkerNics;

impl Spec {
    /// Applies one change.
    pub(crate) fn apply(&mut self, change: SpecChange) {
        match change {
            SpecChange::Attaching {
                place,
                domain,
                guest,
            } => {
                let name = domain.name.clone();
                self.domains.insert(place, *domain);
                self.attaching.insert(name.clone());
                if let Some(live) = &mut self.live {
                    live.attached.insert(name, guest);
                }
            }
            SpecChange::Serves { worker, mut vifs } => {
                if let Some(driver) = self.drivers.get_mut(&worker) {
                    driver.vifs.append(&mut vifs);
                }
            }
            SpecChange::Attached { name } => {
                self.attaching.remove(&name);
            }
            SpecChange::Detaching { name } => {
                self.detaching.insert(name);
            }
            SpecChange::PortReleased { worker, conn } => {
                if let Some(driver) = self.drivers.get_mut(&worker) {
                    driver.vifs.retain(|vif| vif.conn != conn);
                }
            }
            SpecChange::Removed { name } => self.release(&name),
            SpecChange::PortsChanged { vifs } => {
                let drivers = self.drivers.values_mut();
                for vif in drivers.flat_map(|driver| &mut driver.vifs) {
                    if let Some(now) = vifs.iter().find(|now| now.name == vif.name) {
                        vif.change_to(now);
                    }
                }
            }
            SpecChange::Described { name, guest } => {
                if let Some(live) = &mut self.live {
                    let of = match live.attached.contains_key(&name) {
                        true => &mut live.attached,
                        false => &mut live.changed,
                    };
                    of.insert(name, guest);
                }
            }
            SpecChange::Adopted { names } => {
                if let Some(live) = &mut self.live {
                    live.of_files.extend(names);
                }
            }
            SpecChange::ChangeNics(nic_change) => {
                self.pending_nic_change = Some(self.worker_with_nics(nic_change))
            }
            SpecChange::NicsChanged { back } => self.finish_nic_change(back),
            SpecChange::NicDevicesClosed => self.pending_nic_change = None,
            SpecChange::AwaitReattach { guests } => {
                self.returning = guests;
                if let Some(live) = &mut self.live {
                    live.left.clear();
                }
            }
            SpecChange::Reattached { name } => {
                self.returning.retain(|one| one.name() != Some(&name));
            }
            SpecChange::Lost { device, back } => self.lose(device, back),
            SpecChange::RequestedBy { name, user } => {
                self.origins.entry(name).or_default().user = user;
            }
            SpecChange::NamespaceFound {
                guest,
                netns,
                place,
            } => {
                let origin = self.origins.entry(guest).or_default();
                origin.places.insert(netns, place);
            }
        }
    }

    fn lose(&mut self, device: (usize, usize), back: bool) {
        match back {
            true => self.lost.remove(&device),
            false => self.lost.insert(device),
        };
    }

    /// Replaces the NICs. Returns the devices that this opens and closes.
    fn worker_with_nics(&mut self, nic_change: NicChange) -> PendingNicChange {
        let mut pending_nic_change = PendingNicChange::default();
        let mut had = Vec::new();
        for (place, changed) in nic_change.workers {
            let all = (self.domains.get_mut(&place), self.drivers.get_mut(&place));
            let (Some(domain), Some(driver)) = all else {
                continue;
            };
            let (before, after) = (&domain.devices, &changed.domain.devices);
            for number in 0..before.len().max(after.len()) {
                let lasts = |devices: &[Device]| devices.get(number).is_some_and(lasts);
                match (lasts(before), lasts(after)) {
                    (false, true) => pending_nic_change.opens.push((place, number)),
                    (true, false) => pending_nic_change.closes.push((place, number)),
                    _ => {}
                }
            }
            let WorkerNics { domain: now, nics } = changed;
            let domain = std::mem::replace(domain, now);
            let nics = std::mem::replace(&mut driver.nics, nics);
            had.push((place, WorkerNics { domain, nics }));
        }
        let live = self.live.as_mut();
        let nics = live.and_then(|live| std::mem::replace(&mut live.nics, nic_change.nics));
        pending_nic_change.back = Some(NicChange { nics, workers: had });
        pending_nic_change
    }

    /// Settles a change of NICs: only the closing of devices remains.
    fn finish_nic_change(&mut self, back: bool) {
        let mut pending_nic_change = self.pending_nic_change.take().unwrap_or_default();
        let opened = std::mem::take(&mut pending_nic_change.opens);
        if let Some(had) = pending_nic_change.back.take().filter(|_| back) {
            self.worker_with_nics(had);
            pending_nic_change.closes = opened;
        }
        self.pending_nic_change = Some(pending_nic_change);
    }

    fn release(&mut self, name: &str) {
        if let Some(place) = self.place(name) {
            self.domains.remove(&place);
            self.lost.retain(|(of, _)| *of != place);
        }
        self.attaching.remove(name);
        self.detaching.remove(name);
        self.origins.remove(name);
        if let Some(live) = &mut self.live {
            live.of_files.remove(name);
            live.changed.remove(name);
            if live.attached.remove(name).is_none() {
                live.detached.insert(name.to_owned());
            }
        }
    }
}

//! Applies changes of the specification.

use super::change::{Refits, Refitting, SpecChange};
use super::{Spec, lasts};
use abi::machine::Device;
use config::live::Refitted;

impl Spec {
    /// Applies one change.
    pub(crate) fn apply(&mut self, change: SpecChange) {
        match change {
            SpecChange::Comes {
                place,
                domain,
                guest,
            } => {
                let name = domain.name.clone();
                self.domains.insert(place, *domain);
                self.coming.insert(name.clone());
                if let Some(live) = &mut self.live {
                    live.attached.insert(name, guest);
                }
            }
            SpecChange::Serves { worker, mut vifs } => {
                if let Some(driver) = self.drivers.get_mut(&worker) {
                    driver.vifs.append(&mut vifs);
                }
            }
            SpecChange::Up { name } => {
                self.coming.remove(&name);
            }
            SpecChange::Leaves { name } => {
                self.leaving.insert(name);
            }
            SpecChange::Unserves { worker, conn } => {
                if let Some(driver) = self.drivers.get_mut(&worker) {
                    driver.vifs.retain(|vif| vif.conn != conn);
                }
            }
            SpecChange::Gone { name } => self.release(&name),
            SpecChange::Changes { vifs } => {
                for vif in self
                    .drivers
                    .values_mut()
                    .flat_map(|driver| &mut driver.vifs)
                {
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
            SpecChange::Refits(refits) => self.refitting = Some(self.refit(refits)),
            SpecChange::Refitted { back } => self.refitted(back),
            SpecChange::HasRefitted => self.refitting = None,
            SpecChange::Return { guests } => {
                self.returning = guests;
                if let Some(live) = &mut self.live {
                    live.left.clear();
                }
            }
            SpecChange::Returned { name } => {
                self.returning.retain(|one| one.name() != Some(&name));
            }
            SpecChange::Lost { device, back } => self.lose(device, back),
            SpecChange::Asked { name, user } => {
                self.origins.entry(name).or_default().user = user;
            }
            SpecChange::Found {
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
    fn refit(&mut self, refits: Refits) -> Refitting {
        let mut refitting = Refitting::default();
        let mut had = Vec::new();
        for (place, refitted) in refits.workers {
            let all = (self.domains.get_mut(&place), self.drivers.get_mut(&place));
            let (Some(domain), Some(driver)) = all else {
                continue;
            };
            let (before, after) = (&domain.devices, &refitted.domain.devices);
            for number in 0..before.len().max(after.len()) {
                let lasts = |devices: &[Device]| devices.get(number).is_some_and(lasts);
                match (lasts(before), lasts(after)) {
                    (false, true) => refitting.opens.push((place, number)),
                    (true, false) => refitting.closes.push((place, number)),
                    _ => {}
                }
            }
            let Refitted { domain: now, nics } = refitted;
            let domain = std::mem::replace(domain, now);
            let nics = std::mem::replace(&mut driver.nics, nics);
            had.push((place, Refitted { domain, nics }));
        }
        let live = self.live.as_mut();
        let nics = live.and_then(|live| std::mem::replace(&mut live.nics, refits.nics));
        refitting.back = Some(Refits { nics, workers: had });
        refitting
    }

    /// Settles a change of NICs: only the closing of devices remains.
    fn refitted(&mut self, back: bool) {
        let mut refitting = self.refitting.take().unwrap_or_default();
        let opened = std::mem::take(&mut refitting.opens);
        if let Some(had) = refitting.back.take().filter(|_| back) {
            self.refit(had);
            refitting.closes = opened;
        }
        self.refitting = Some(refitting);
    }

    fn release(&mut self, name: &str) {
        if let Some(place) = self.place(name) {
            self.domains.remove(&place);
            self.lost.retain(|(of, _)| *of != place);
        }
        self.coming.remove(name);
        self.leaving.remove(name);
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

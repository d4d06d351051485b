//! The machine's specification: its domains, and the guests and NICs that were added and removed
//! since the start.
//!
//! Every edit is a [`SpecChange`], whose length depends on the edit and not on the size of the
//! machine. The next manager reads the changes and repeats them.

mod apply;
mod change;

pub(crate) use change::{GuestSpec, PendingNicChange, SpecChange};

use crate::window_slots::{self, Ports, Windows};
use abi::machine::{Device, DomainSpec, HotplugState, NetnsId, Program, Setting};
use change::NicChange;
use config::domain::{DriverConfig, VifConfig};
use config::live::state::{Origin, SavedGuest};
use config::live::{LiveConfig, NicsStep};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

/// The specification, which the next manager reads.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MachineSpec {
    /// Every domain, by its place, which it keeps until it is removed.
    domains: BTreeMap<usize, DomainSpec>,
    /// `None`: guests are neither attached nor detached.
    live: Option<HotplugState>,
    /// Guests that are being attached or detached. The next manager removes them.
    changing: BTreeSet<String>,
    /// Devices that a change of NICs opens and closes, until the workers run with it.
    pending_nic_change: Option<PendingNicChange>,
    /// The workers' configurations, by place. Their domains' texts are empty.
    drivers: BTreeMap<usize, DriverConfig>,
    /// Origins of attached guests, by name.
    origins: BTreeMap<String, Origin>,
    /// Guests of the previous machine that have not been attached again yet.
    saved: Vec<SavedGuest>,
    /// Devices whose interfaces were removed, by their domains' places and their numbers there.
    lost: BTreeSet<(usize, usize)>,
}

/// A guest on its way in.
#[derive(Clone, Debug)]
pub(crate) struct AdmittedGuest {
    pub(crate) place: usize,
    pub(crate) name: String,
    /// The MAC of each interface.
    pub(crate) macs: Vec<String>,
    /// Warnings about the section, a sentence each.
    pub(crate) warnings: Vec<String>,
    /// Its interfaces, which get slots and connections later: others may connect before it.
    pub(crate) vifs: Vec<VifConfig>,
}

/// Whether a device outlives its domain.
pub(crate) fn lasts(device: &Device) -> bool {
    matches!(
        device,
        Device::Tap(_) | Device::Xdp(_) | Device::Pci(_) | Device::VhostUser(_)
    )
}

impl MachineSpec {
    /// Returns the specification of a machine with these domains.
    pub(crate) fn new(
        mut domains: BTreeMap<usize, DomainSpec>,
        live: Option<HotplugState>,
    ) -> Self {
        let mut drivers = BTreeMap::new();
        let all = domains.iter_mut();
        for (place, domain) in all.filter(|(_, domain)| domain.program == Program::Driver) {
            // An invalid text is passed on unchanged, and the domain reports it.
            if let Ok(driver) = serde_json::from_str(&domain.config) {
                drivers.insert(*place, driver);
                domain.config.clear();
            }
        }
        Self {
            domains,
            live,
            drivers,
            ..Self::default()
        }
    }

    /// Whether the interface of a device was removed.
    pub(crate) fn is_lost(&self, device: (usize, usize)) -> bool {
        self.lost.contains(&device)
    }

    /// Returns the devices of the domain at a place whose interfaces were removed.
    pub(crate) fn lost_devices(&self, place: usize) -> Vec<(usize, usize)> {
        let lost = self.lost.range((place, 0)..=(place, usize::MAX));
        lost.copied().collect()
    }

    /// Returns every domain, by place. [`MachineSpec::config_text`] returns its configuration.
    pub(crate) fn domains(&self) -> &BTreeMap<usize, DomainSpec> {
        &self.domains
    }

    /// Returns the configuration of the domain at a place, as text.
    pub(crate) fn config_text(&self, place: usize) -> Cow<'_, str> {
        match (self.drivers.get(&place), self.domains.get(&place)) {
            (Some(driver), _) => serde_json::to_string(driver).unwrap_or_default().into(),
            (None, Some(domain)) => domain.config.as_str().into(),
            (None, None) => "".into(),
        }
    }

    /// Returns the description that attaches and detaches are checked against.
    pub(crate) fn live(&self) -> Option<&HotplugState> {
        self.live.as_ref()
    }

    /// Returns the place of the domain of a name.
    pub(crate) fn place(&self, name: &str) -> Option<usize> {
        let mut domains = self.domains.iter();
        let found = domains.find(|(_, domain)| domain.name == name);
        found.map(|(place, _)| *place)
    }

    /// Whether a guest is being attached or detached.
    pub(crate) fn is_changing(&self, name: &str) -> bool {
        self.changing.contains(name)
    }

    /// Returns the guests that are being attached or detached.
    pub(crate) fn changing(&self) -> impl Iterator<Item = &String> {
        self.changing.iter()
    }

    /// Parses the present configuration.
    pub(crate) fn config(&self) -> Result<LiveConfig, String> {
        let live = self
            .live
            .as_ref()
            .ok_or("its guests are those that it was started with")?;
        LiveConfig::of(live).map_err(|wrong| wrong.to_string())
    }

    /// Finds a place for a new guest, and checks that the windows of all workers have room for it.
    /// `user` has requested it; `None`: files name it.
    pub(crate) fn admit(
        &self,
        config: &mut LiveConfig,
        guest: &Setting,
        user: Option<u32>,
    ) -> Result<(AdmittedGuest, SpecChange), String> {
        let resolved = config.add(guest)?;
        let name = resolved.domain.name.clone();
        if let Err(full) = self.ports(&resolved.vifs) {
            config.remove(&name);
            return Err(full);
        }
        let place = (0..).find(|place| !self.domains.contains_key(place));
        let place = place.unwrap_or(usize::MAX);
        let origin = Origin {
            user,
            ..Origin::UNKNOWN
        };
        let change = SpecChange::SetGuest(Box::new(GuestSpec {
            place,
            domain: resolved.domain,
            is_changing: true,
            section: Some(resolved.guest),
            origin: Some(origin),
            ports: BTreeMap::new(),
        }));
        let admitted = AdmittedGuest {
            place,
            name,
            macs: resolved.macs.iter().map(ToString::to_string).collect(),
            warnings: resolved.warnings,
            vifs: resolved.vifs,
        };
        Ok((admitted, change))
    }

    /// Returns the places of the driver domain's workers.
    pub(crate) fn workers(&self) -> Vec<usize> {
        self.drivers.keys().copied().collect()
    }

    /// Returns the windows of all workers.
    pub(crate) fn windows(&self) -> Result<Windows<'_>, String> {
        let first = self.live.as_ref().map_or(0, |live| live.first_slot);
        let mut of = BTreeMap::new();
        for (worker, domain) in &self.domains {
            if domain.program == Program::Driver {
                let driver = self.drivers.get(worker).ok_or_else(|| {
                    format!("domain {}: its configuration makes no sense", domain.name)
                })?;
                of.insert(*worker, (Cow::Borrowed(driver), domain.window_slots));
            }
        }
        Ok(Windows::new(first, of))
    }

    /// Returns the ports of a guest that connects now, with slots that are free in the windows of
    /// all workers.
    pub(crate) fn ports(&self, vifs: &[VifConfig]) -> Result<Ports, String> {
        self.windows()?.place(vifs)
    }

    /// Returns the change to the NICs and worker domains of a step. `config` has the NICs already.
    ///
    /// # Errors
    /// A worker has no room for them.
    pub(crate) fn nic_change(
        &self,
        config: &LiveConfig,
        step: &NicsStep,
    ) -> Result<SpecChange, String> {
        let drivers = (0..).zip(&self.drivers);
        let workers = drivers.filter_map(|(worker, (&place, driver))| {
            let domain = self.domains.get(&place)?;
            let changed = config.worker_with_nics(worker, domain, driver, &step.added);
            Some(changed.map(|changed| (place, changed)))
        });
        let workers = workers.collect::<Result<_, _>>()?;
        let nics = Some(step.nics.clone());
        Ok(self.begin_nics(NicChange { nics, workers }))
    }

    /// Returns the devices that a change of NICs opens and closes now.
    pub(crate) fn pending_nic_change(&self) -> Option<&PendingNicChange> {
        self.pending_nic_change.as_ref()
    }

    /// Returns the ports of these interfaces at each worker, with the rules and limits of `vifs`.
    pub(crate) fn changed(&self, vifs: &[VifConfig]) -> Ports {
        let changed = |vif: &VifConfig| {
            let mut changed = vif.clone();
            changed.change_to(vifs.iter().find(|one| one.name == vif.name)?);
            Some(changed)
        };
        let drivers = self.drivers.iter();
        drivers
            .map(|(worker, driver)| (*worker, driver.vifs.iter().filter_map(changed).collect()))
            .collect()
    }

    /// Returns the worker's connections of a guest's interfaces.
    pub(crate) fn served(&self, worker: usize, name: &str) -> Vec<u32> {
        let driver = self.drivers.get(&worker).into_iter();
        let vifs = driver.flat_map(|driver| &driver.vifs);
        let vifs = vifs.filter(|vif| window_slots::is_of(vif, name));
        vifs.map(|vif| vif.conn).collect()
    }

    /// Returns the guests of the previous machine that were not attached again yet.
    pub(crate) fn saved_guests(&self) -> &[SavedGuest] {
        &self.saved
    }

    /// Returns one of them.
    pub(crate) fn saved_guest(&self, name: &str) -> Option<&SavedGuest> {
        self.saved.iter().find(|saved| saved.name() == Some(name))
    }

    /// Returns the section of a guest, if it was attached or changed since the start.
    pub(crate) fn section(&self, name: &str) -> Option<&Setting> {
        let live = self.live.as_ref()?;
        live.attached.get(name).or_else(|| live.changed.get(name))
    }

    /// Returns the origin of an attached guest.
    pub(crate) fn origin(&self, name: &str) -> Option<&Origin> {
        self.origins.get(name)
    }

    /// Returns the only network namespace that a name may denote in a saved guest's section.
    pub(crate) fn expected(&self, guest: &str, netns: &str) -> Option<NetnsId> {
        self.saved_guest(guest)?.origin.places.get(netns).copied()
    }
}

#[cfg(test)]
mod tests;

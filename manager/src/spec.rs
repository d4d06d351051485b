//! The machine's specification: its domains, and the guests and NICs added and removed since the
//! start.
//!
//! Every edit is a [`SpecChange`], whose length does not depend on the size of the machine. The
//! next manager reads and repeats the changes.

mod apply;
mod change;
mod ports;

pub(crate) use change::{GuestSpec, PendingNicChange, Ports, SpecChange};

use abi::machine::{
    ConfigValue, Connection, Device, DomainSpec, HotplugState, NetnsId, Program, Restarts,
};
use change::NicChange;
use config::domain::{DriverConfig, VifConfig};
use config::live::state::{AttachedGuest, Origin};
use config::live::{LiveConfig, LiveSpec, NicsStep};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

/// The specification, which the next manager reads from the journal.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MachineSpec {
    /// All domains, by place. A domain's place is its number in the machine, and is constant until
    /// the domain is removed.
    domains: BTreeMap<usize, DomainSpec>,
    /// The basis of attaches and detaches; `None` if guests cannot change.
    live: Option<LiveSpec>,
    /// Guests that are being attached or detached. The next manager removes them.
    changing: BTreeSet<String>,
    /// Devices that the pending change of NICs opens and closes.
    pending_nic_change: Option<PendingNicChange>,
    /// The workers' configurations, by place. The `config` of their domains is empty.
    drivers: BTreeMap<usize, DriverConfig>,
    /// Guests of the previous machine that are not attached again yet.
    saved: Vec<AttachedGuest>,
    /// Devices whose interfaces were removed: the domain's place, and the number within the domain.
    lost: BTreeSet<(usize, usize)>,
    /// Restarts of the domains that have restarted, by place.
    restarts: BTreeMap<usize, Restarts>,
    /// Properties that the system lacks, as text.
    missing: BTreeSet<String>,
}

/// A guest that is being attached.
#[derive(Clone, Debug)]
pub(crate) struct AdmittedGuest {
    pub(crate) place: usize,
    pub(crate) name: String,
    /// The MAC of each interface.
    pub(crate) macs: Vec<String>,
    /// Warnings about the section, one sentence each.
    pub(crate) warnings: Vec<String>,
    /// The guest's connections, in the order in which it numbers them.
    pub(crate) connections: Vec<Connection>,
    /// The guest's interfaces. They receive slots and connections later, because other guests may
    /// connect first.
    pub(crate) vifs: Vec<VifConfig>,
    /// The guest's ports if no other guest connects first, without connections.
    pub(crate) ports: Ports,
}

/// Returns whether a device outlives its domain.
pub(crate) fn outlives_domain(device: &Device) -> bool {
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
            // An invalid configuration remains unchanged, and the domain reports the error.
            if let Ok(driver) = serde_json::from_str(&domain.config) {
                drivers.insert(*place, driver);
                domain.config.clear();
            }
        }
        Self {
            domains,
            live: live.map(LiveSpec::from),
            drivers,
            ..Self::default()
        }
    }

    /// Returns whether the interface of a device was removed.
    pub(crate) fn is_lost(&self, device: (usize, usize)) -> bool {
        self.lost.contains(&device)
    }

    /// Returns the devices of the domain at a place whose interfaces were removed.
    pub(crate) fn lost_devices(&self, place: usize) -> Vec<(usize, usize)> {
        let lost = self.lost.range((place, 0)..=(place, usize::MAX));
        lost.copied().collect()
    }

    /// Returns the restarts of the domain at a place.
    pub(crate) fn restarts(&self, place: usize) -> Restarts {
        self.restarts.get(&place).cloned().unwrap_or_default()
    }

    /// Returns the properties that the system lacks, as text.
    pub(crate) fn missing(&self) -> &BTreeSet<String> {
        &self.missing
    }

    /// Returns all domains, by place. [`MachineSpec::config_text`] returns a domain's
    /// configuration.
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

    /// Returns the description against which attaches and detaches are checked.
    pub(crate) fn live(&self) -> Option<&LiveSpec> {
        self.live.as_ref()
    }

    /// Returns the place of the domain with a name.
    pub(crate) fn place(&self, name: &str) -> Option<usize> {
        let mut domains = self.domains.iter();
        let found = domains.find(|(_, domain)| domain.name == name);
        found.map(|(place, _)| *place)
    }

    /// Returns whether a guest is being attached or detached.
    pub(crate) fn is_changing(&self, name: &str) -> bool {
        self.changing.contains(name)
    }

    /// Returns the guests that are being attached or detached.
    pub(crate) fn changing(&self) -> impl Iterator<Item = &String> {
        self.changing.iter()
    }

    /// Parses the current configuration.
    pub(crate) fn config(&self) -> Result<LiveConfig, String> {
        let live = self
            .live
            .as_ref()
            .ok_or("the machine was started without a file, so its guests cannot change")?;
        LiveConfig::of(live).map_err(|wrong| wrong.to_string())
    }

    /// Finds a place for a new guest, and checks that the windows of all workers have free slots
    /// for it. `user` is the user who requested it, or `None` if a file describes it.
    pub(crate) fn admit(
        &self,
        config: &mut LiveConfig,
        guest: &ConfigValue,
        user: Option<u32>,
    ) -> Result<(AdmittedGuest, GuestSpec), String> {
        let resolved = config.add(guest)?;
        let name = resolved.domain.name.clone();
        let ports = self.ports(&resolved.vifs);
        let ports = ports.inspect_err(|_| config.remove(&name))?;
        let place = (0..).find(|place| !self.domains.contains_key(place));
        let place = place.unwrap_or(usize::MAX);
        let origin = Origin {
            user,
            ..Origin::default()
        };
        let entry = GuestSpec {
            place,
            domain: resolved.domain,
            is_changing: true,
            section: Some(resolved.guest),
            origin: Some(origin),
            ports: BTreeMap::new(),
        };
        let admitted = AdmittedGuest {
            place,
            name,
            macs: resolved.macs.iter().map(ToString::to_string).collect(),
            warnings: resolved.warnings,
            connections: resolved.connections,
            vifs: resolved.vifs,
            ports,
        };
        Ok((admitted, entry))
    }

    /// Returns the places of the driver domain's workers.
    pub(crate) fn workers(&self) -> Vec<usize> {
        self.drivers.keys().copied().collect()
    }

    /// Returns the change of NICs and worker domains for a step. `config` already has the new NICs.
    ///
    /// # Errors
    /// Returns an error if a worker has no free window slots for the NICs.
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

    /// Returns the devices that the pending change of NICs opens and closes.
    pub(crate) fn pending_nic_change(&self) -> Option<&PendingNicChange> {
        self.pending_nic_change.as_ref()
    }

    /// Returns the guests of the previous machine that are not attached again yet.
    pub(crate) fn saved_guests(&self) -> &[AttachedGuest] {
        &self.saved
    }

    /// Returns the guest with a name among the [saved guests](Self::saved_guests).
    pub(crate) fn saved_guest(&self, name: &str) -> Option<&AttachedGuest> {
        self.saved.iter().find(|saved| saved.name() == Some(name))
    }

    /// Returns the section of a guest that was attached or changed since the start.
    pub(crate) fn section(&self, name: &str) -> Option<&ConfigValue> {
        self.live.as_ref()?.section(name)
    }

    /// Returns the origin of an attached guest.
    pub(crate) fn origin(&self, name: &str) -> Option<&Origin> {
        let attached = self.live.as_ref()?.attached.get(name)?;
        Some(&attached.origin)
    }

    /// Returns the identity that the namespace at the path `netns`, from a saved guest's section,
    /// must have.
    pub(crate) fn expected(&self, guest: &str, netns: &str) -> Option<NetnsId> {
        self.saved_guest(guest)?.origin.places.get(netns).copied()
    }
}

#[cfg(test)]
mod tests;

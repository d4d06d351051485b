//! The machine: its specification, and the state of its domains according to the core's reports.

use crate::spec::{AdmittedGuest, GuestSpec, MachineSpec, SpecChange};
use abi::DomId;
use abi::core::Stage;
use abi::machine::{
    Access, ConfigValue, Connection, Device, DomainSpec, Machine, Netdev, Restarts,
};
use config::live::LiveConfig;
use std::collections::{BTreeMap, BTreeSet};

/// A machine.
#[derive(Debug, Default)]
pub(crate) struct MachineState {
    /// The instance's name.
    pub(crate) name: String,
    spec: MachineSpec,
    /// Changes of the specification that are not in the journal yet.
    changes: Vec<SpecChange>,
    /// Whether the state file may have to change as well.
    is_file_stale: bool,
    /// Groups with rights, in addition to root and the machine's user.
    pub(crate) access: Access,
    /// Connections from the start of the machine.
    connections: Vec<Connection>,
    /// The domains that the core has built, by place.
    reported: BTreeMap<usize, ReportedDomain>,
}

/// The core's reports about a domain.
#[derive(Debug)]
struct ReportedDomain {
    id: DomId,
    stage: Option<Stage>,
    /// The stage as text, or how the domain exited.
    text: String,
    /// Whether all connections are up, except those whose other end is dead.
    is_connected: bool,
}

impl MachineState {
    pub(crate) fn new(machine: Machine) -> Self {
        Self {
            name: machine.name,
            spec: MachineSpec::new(
                machine.domains.into_iter().enumerate().collect(),
                machine.live,
            ),
            access: machine.access,
            connections: machine.connections,
            ..Self::default()
        }
    }

    /// Returns the specification.
    pub(crate) fn spec(&self) -> &MachineSpec {
        &self.spec
    }

    /// Changes the specification.
    pub(crate) fn change(&mut self, change: SpecChange) {
        self.is_file_stale |= match &change {
            SpecChange::SetGuest(guest) => {
                let (name, spec) = (&guest.domain.name, &self.spec);
                let before = spec.section(name).zip(spec.origin(name));
                let after = guest.section.as_ref().zip(guest.origin.as_ref());
                let is_settled = |is_changing: bool| move |_: &_| !is_changing;
                before.filter(is_settled(spec.is_changing(name)))
                    != after.filter(is_settled(guest.is_changing))
            }
            SpecChange::RemoveGuest(_) | SpecChange::SetSaved(_) | SpecChange::RemoveSaved(_) => {
                true
            }
            SpecChange::SetNics { .. }
            | SpecChange::SetLost { .. }
            | SpecChange::SetRestarts(..)
            | SpecChange::SetMissing(_) => false,
        };
        self.spec.apply(change.clone());
        // Only the last of a guest's consecutive changes takes effect.
        if let (SpecChange::SetGuest(guest), Some(SpecChange::SetGuest(last))) =
            (&change, self.changes.last())
            && last.place == guest.place
        {
            self.changes.pop();
        }
        self.changes.push(change);
    }

    /// Changes the entry of a guest. Does nothing if no guest has this name.
    pub(crate) fn edit_guest(&mut self, name: &str, edit: impl FnOnce(&mut GuestSpec)) {
        if let Some(mut guest) = self.spec.guest(name) {
            edit(&mut guest);
            self.change(SpecChange::SetGuest(Box::new(guest)));
        }
    }

    /// Adds a guest: see [`MachineSpec::admit`]. An error leaves the specification unchanged.
    pub(crate) fn admit(
        &mut self,
        config: &mut LiveConfig,
        guest: &ConfigValue,
        user: Option<u32>,
    ) -> Result<AdmittedGuest, String> {
        let (admitted, entry) = self.spec.admit(config, guest, user)?;
        self.change(SpecChange::SetGuest(entry.into()));
        Ok(admitted)
    }

    /// Restores the specification that an earlier manager saved.
    pub(crate) fn resume(&mut self, spec: Option<MachineSpec>, changes: Vec<SpecChange>) {
        let started = std::mem::take(&mut self.spec);
        let missing = started.missing().clone();
        self.spec = spec.unwrap_or(started);
        changes.into_iter().for_each(|it| self.spec.apply(it));
        self.add_missing(missing);
    }

    /// Removes and returns the changes that are not in the journal yet.
    pub(crate) fn take_changes(&mut self) -> Vec<SpecChange> {
        std::mem::take(&mut self.changes)
    }

    /// Returns whether the state file may have to change since the last call.
    pub(crate) fn take_file_stale(&mut self) -> bool {
        std::mem::take(&mut self.is_file_stale)
    }

    /// Returns whether changes are not in the journal yet.
    pub(crate) fn has_changed(&self) -> bool {
        !self.changes.is_empty()
    }

    /// Returns the description of the domain at a place.
    pub(crate) fn domain(&self, place: usize) -> Option<&DomainSpec> {
        self.spec.domains().get(&place)
    }

    /// Returns the connections from the start of the machine in which a domain is the frontend, in
    /// the order in which the domain numbers them.
    pub(crate) fn connections_of(&self, frontend: &str) -> Vec<Connection> {
        let all = self.connections.iter();
        let own = all.filter(|connection| connection.frontend == frontend);
        own.cloned().collect()
    }

    /// Returns the name of the domain at a place, or an empty text without a domain.
    pub(crate) fn name_of(&self, place: usize) -> &str {
        self.domain(place).map_or("", |domain| &domain.name)
    }

    /// Records the id of the domain at a place.
    pub(crate) fn set_id(&mut self, place: usize, id: DomId) {
        if self.id(place) != Some(id) {
            let reported = ReportedDomain {
                id,
                stage: None,
                text: String::new(),
                is_connected: false,
            };
            self.reported.insert(place, reported);
        }
    }

    /// Records whether the interface of a device was removed.
    pub(crate) fn mark_lost(&mut self, device: (usize, usize), is_lost: bool) {
        if self.spec.is_lost(device) != is_lost {
            self.change(SpecChange::SetLost {
                device,
                lost: is_lost,
            });
        }
    }

    /// Records the restarts of the domain at a place.
    pub(crate) fn record_restarts(&mut self, place: usize, restarts: &Restarts) {
        if self.spec.restarts(place) != *restarts {
            self.change(SpecChange::SetRestarts(place, restarts.clone()));
        }
    }

    /// Adds properties that the system lacks.
    pub(crate) fn add_missing(&mut self, more: impl IntoIterator<Item = String>) {
        let known = self.spec.missing().iter().cloned();
        self.set_missing(known.chain(more).collect());
    }

    /// Replaces the properties that the system lacks.
    pub(crate) fn set_missing(&mut self, missing: BTreeSet<String>) {
        if *self.spec.missing() != missing {
            self.change(SpecChange::SetMissing(missing));
        }
    }

    /// Returns the names of a domain's removed interfaces.
    pub(crate) fn lost_interfaces(&self, place: usize) -> Vec<String> {
        let lost = self.spec.lost_devices(place).into_iter();
        lost.filter_map(|device| self.interface(device)).collect()
    }

    /// Returns whether a domain maps a virtual machine's memory.
    pub(crate) fn serves_vm(&self, place: usize) -> bool {
        self.domain(place)
            .is_some_and(|domain| domain.foreign_pages > 0)
    }

    /// Returns the name of a device's interface.
    pub(crate) fn interface(&self, (place, number): (usize, usize)) -> Option<String> {
        match self.domain(place)?.devices.get(number)? {
            Device::Tap(tap) => Some(tap.ifname.clone()),
            Device::Xdp(spec) => match &spec.netdev {
                Netdev::Veth(far) => Some(far.ifname.clone()),
                Netdev::Existing { ifname, .. } => Some(ifname.clone()),
            },
            _ => None,
        }
    }

    /// Records that the domain at a place is removed.
    pub(crate) fn clear_id(&mut self, place: usize) {
        self.reported.remove(&place);
    }

    /// Returns the id of the domain at a place.
    pub(crate) fn id(&self, place: usize) -> Option<DomId> {
        self.reported.get(&place).map(|reported| reported.id)
    }

    /// Returns the place of the domain with an id.
    pub(crate) fn place_of(&self, id: DomId) -> Option<usize> {
        let mut reported = self.reported.iter();
        let (&place, _) = reported.find(|(_, reported)| reported.id == id)?;
        Some(place)
    }

    /// Returns the id of the domain with a name.
    pub(crate) fn find(&self, name: &str) -> Option<DomId> {
        self.id(self.place(name)?)
    }

    /// Returns the place of the domain with a name.
    pub(crate) fn place(&self, name: &str) -> Option<usize> {
        self.spec.place(name)
    }

    /// Records the stage of the domain at a place.
    pub(crate) fn set_stage(&mut self, place: usize, stage: Stage, text: &str) {
        if let Some(reported) = self.reported.get_mut(&place) {
            reported.is_connected &= stage == Stage::Running;
            (reported.stage, reported.text) = (Some(stage), text.to_owned());
        }
    }

    /// Records that all connections of the domain at a place are up.
    pub(crate) fn connect(&mut self, place: usize) {
        if let Some(reported) = self.reported.get_mut(&place) {
            reported.is_connected = true;
        }
    }

    /// Returns the stage of the domain at a place.
    pub(crate) fn stage(&self, place: usize) -> Option<Stage> {
        self.reported.get(&place)?.stage
    }

    /// Returns the stage as text, or how the domain at a place exited.
    pub(crate) fn text(&self, place: usize) -> &str {
        let reported = self.reported.get(&place);
        reported.map_or("", |reported| &reported.text)
    }

    /// Returns whether all connections of the domain at a place are up, except those whose other
    /// end is dead.
    pub(crate) fn is_connected(&self, place: usize) -> bool {
        let reported = self.reported.get(&place);
        reported.is_some_and(|reported| reported.is_connected)
    }

    /// Returns whether every domain runs and every connection is up.
    pub(crate) fn is_complete(&self) -> bool {
        let is_up = |place| self.stage(place) == Some(Stage::Running) && self.is_connected(place);
        self.spec.domains().keys().all(|place| is_up(*place))
    }
}

//! What the manager knows of the domains: as the core has told it.

use crate::shape::{Admitted, Shape, ShapeChange};
use abi::DomId;
use abi::core::Stage;
use abi::machine::{Access, Connection, Device, Domain, Machine, Netdev, NetnsPlace, Setting};
use config::live::LiveConfig;
use std::collections::{BTreeMap, BTreeSet};

/// A machine and what has become of it.
#[derive(Debug)]
pub(crate) struct World {
    /// The instance's name.
    pub(crate) name: String,
    shape: Shape,
    /// What has become of it since somebody has taken that.
    changes: Vec<ShapeChange>,
    /// Who may speak to us beside root and the user who has started it.
    pub(crate) access: Access,
    /// Connections that it begins with.
    pub(crate) connections: Vec<Connection>,
    /// By place in the machine, the id of the domain there now.
    ids: BTreeMap<usize, DomId>,
    lives: BTreeMap<DomId, (Stage, String)>,
    connected: BTreeSet<DomId>,
    /// What the system could not provide, in words.
    pub(crate) missing: BTreeSet<String>,
}

impl World {
    pub(crate) fn new(machine: Machine) -> Self {
        Self {
            name: machine.name,
            shape: Shape::new(
                machine.domains.into_iter().enumerate().collect(),
                machine.live,
            ),
            changes: Vec::new(),
            access: machine.access,
            connections: machine.connections,
            ids: BTreeMap::new(),
            lives: BTreeMap::new(),
            connected: BTreeSet::new(),
            missing: BTreeSet::new(),
        }
    }

    /// The machine as it has become.
    pub(crate) fn shape(&self) -> &Shape {
        &self.shape
    }

    /// It becomes so.
    pub(crate) fn change(&mut self, change: ShapeChange) {
        self.shape.apply(change.clone());
        self.changes.push(change);
    }

    /// A guest is to come: see [`Shape::admit`]. Nothing has changed if it is refused.
    pub(crate) fn admit(
        &mut self,
        config: &mut LiveConfig,
        guest: &Setting,
    ) -> Result<Admitted, String> {
        let (admitted, comes) = self.shape.admit(config, guest)?;
        self.change(comes);
        Ok(admitted)
    }

    /// What the name of a network namespace stands for, where a guest that was attached names it.
    pub(crate) fn note_place(&mut self, guest: &str, netns: String, place: NetnsPlace) {
        if self.shape.origin(guest).is_some() {
            let guest = guest.to_owned();
            self.change(ShapeChange::Found {
                guest,
                netns,
                place,
            });
        }
    }

    /// It has become so before this manager began.
    pub(crate) fn take_up(&mut self, shape: Shape) {
        self.shape = shape;
    }

    /// The same, of what has become of it since.
    pub(crate) fn take_up_change(&mut self, change: ShapeChange) {
        self.shape.apply(change);
    }

    /// What has become of it since this was last asked for.
    pub(crate) fn take_changes(&mut self) -> Vec<ShapeChange> {
        std::mem::take(&mut self.changes)
    }

    /// The same, to be looked at.
    pub(crate) fn changes(&self) -> &[ShapeChange] {
        &self.changes
    }

    /// Whether anything has.
    pub(crate) fn has_changed(&self) -> bool {
        !self.changes.is_empty()
    }

    /// The description of the domain at a place.
    pub(crate) fn domain(&self, place: usize) -> Option<&Domain> {
        self.shape.domains().get(&place)
    }

    /// The domain at a place of the machine is this one from now on.
    pub(crate) fn set(&mut self, place: usize, id: DomId) {
        let before = self.ids.insert(place, id);
        if before != Some(id) {
            // Also what is known of one that had this id long ago.
            for old in before.into_iter().chain([id]) {
                self.lives.remove(&old);
                self.connected.remove(&old);
            }
        }
    }

    /// The interface of a device was removed.
    pub(crate) fn lose(&mut self, device: (usize, usize)) {
        if !self.shape.is_lost(device) {
            let back = false;
            self.change(ShapeChange::Lost { device, back });
        }
    }

    /// A device is open again, or is no more.
    pub(crate) fn regain(&mut self, device: (usize, usize)) {
        if self.shape.is_lost(device) {
            let back = true;
            self.change(ShapeChange::Lost { device, back });
        }
    }

    /// The names of a domain's interfaces that were removed, by its place.
    pub(crate) fn lost(&self, place: usize) -> Vec<String> {
        let lost = self.shape.lost_devices(place).into_iter();
        lost.filter_map(|device| self.interface(device)).collect()
    }

    /// The name of a device's interface.
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

    /// There is no domain at a place of the machine any more.
    pub(crate) fn unset(&mut self, place: usize) {
        if let Some(id) = self.ids.remove(&place) {
            self.lives.remove(&id);
            self.connected.remove(&id);
        }
    }

    /// The id of the domain at a place of the machine.
    pub(crate) fn id(&self, place: usize) -> Option<DomId> {
        self.ids.get(&place).copied()
    }

    /// The domain of a name.
    pub(crate) fn find(&self, name: &str) -> Option<DomId> {
        self.id(self.place(name)?)
    }

    /// The place of a name in the machine.
    pub(crate) fn place(&self, name: &str) -> Option<usize> {
        self.shape.place(name)
    }

    /// A domain's name in the machine.
    pub(crate) fn name(&self, id: DomId) -> Option<&str> {
        let (&place, _) = self.ids.iter().find(|(_, of)| **of == id)?;
        Some(&self.domain(place)?.name)
    }

    /// Every domain.
    pub(crate) fn all(&self) -> impl Iterator<Item = DomId> {
        self.ids.values().copied()
    }

    /// A domain's life has come to another stage; the stage before.
    pub(crate) fn live(&mut self, id: DomId, stage: Stage, text: &str) -> Option<Stage> {
        if stage != Stage::Running {
            self.connected.remove(&id);
        }
        let before = self.lives.insert(id, (stage, text.to_owned()));
        before.map(|(stage, _)| stage)
    }

    /// All its connections are up.
    pub(crate) fn connect(&mut self, id: DomId) {
        self.connected.insert(id);
    }

    /// Where a domain stands.
    pub(crate) fn stage(&self, id: DomId) -> Option<Stage> {
        self.lives.get(&id).map(|(stage, _)| *stage)
    }

    /// The same in words.
    pub(crate) fn text(&self, id: DomId) -> &str {
        self.lives.get(&id).map_or("", |(_, text)| text)
    }

    /// Whether all its connections are up, but for those whose other end is dead.
    pub(crate) fn is_connected(&self, id: DomId) -> bool {
        self.connected.contains(&id)
    }

    /// Whether every domain runs and every connection is up.
    pub(crate) fn is_complete(&self) -> bool {
        let up = |id: DomId| self.stage(id) == Some(Stage::Running) && self.is_connected(id);
        self.ids.len() == self.shape.domains().len() && self.all().all(up)
    }
}

//! What the manager knows of the domains: as the core has told it.

use abi::DomId;
use abi::core::Stage;
use abi::machine::Machine;
use std::collections::{BTreeMap, BTreeSet};

/// A machine and what has become of it.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) machine: Machine,
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
            machine,
            ids: BTreeMap::new(),
            lives: BTreeMap::new(),
            connected: BTreeSet::new(),
            missing: BTreeSet::new(),
        }
    }

    /// The domain at a place of the machine is this one from now on.
    pub(crate) fn set(&mut self, place: usize, id: DomId) {
        if let Some(before) = self.ids.insert(place, id)
            && before != id
        {
            self.lives.remove(&before);
            self.connected.remove(&before);
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
        let mut domains = self.machine.domains.iter();
        domains.position(|domain| domain.name == name)
    }

    /// A domain's name in the machine.
    pub(crate) fn name(&self, id: DomId) -> Option<&str> {
        let (&place, _) = self.ids.iter().find(|(_, of)| **of == id)?;
        Some(&self.machine.domains.get(place)?.name)
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
        self.ids.len() == self.machine.domains.len() && self.all().all(up)
    }
}

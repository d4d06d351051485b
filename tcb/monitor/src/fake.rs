//! An address space that only records what is mapped, for tests and fuzz targets.

use crate::space::{AddressSpace, PageMap, SpaceError};
use abi::Slot;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Records of mapped pages. Panics when the monitor makes a request that it must never make.
#[derive(Debug, Default)]
pub struct FakeSpace {
    /// Every mapped page.
    pub mapped: BTreeMap<Slot, PageMap>,
    /// Every registered memory.
    pub memories: BTreeSet<u32>,
    /// The numbers of the domain's descriptors.
    pub descriptors: BTreeSet<i32>,
    /// Rejects the next change.
    pub refuse_next: bool,
    /// Makes the next change, but reports it as lost.
    pub lose_next: bool,
    /// Why the domain was killed, if it was.
    pub destroyed: Option<String>,
}

impl FakeSpace {
    /// Returns an error if the domain was killed.
    fn check_alive(&self) -> Result<(), SpaceError> {
        match &self.destroyed {
            Some(why) => Err(SpaceError::Lost(why.clone())),
            None => Ok(()),
        }
    }

    fn fate(&mut self) -> Result<(), SpaceError> {
        self.check_alive()?;
        if std::mem::take(&mut self.refuse_next) {
            return Err(SpaceError::Refused("as the test asked".into()));
        }
        Ok(())
    }

    fn lost(&mut self) -> Result<(), SpaceError> {
        if std::mem::take(&mut self.lose_next) {
            return Err(SpaceError::Lost("as the test asked".into()));
        }
        Ok(())
    }

    /// Maps a page, and returns the page that its slot showed before.
    fn show(&mut self, map: &PageMap) -> Option<PageMap> {
        let PageMap { memory, slot, .. } = *map;
        assert!(
            self.memories.contains(&memory),
            "memory {memory} is not registered"
        );
        self.mapped.insert(slot, *map)
    }
}

impl AddressSpace for FakeSpace {
    fn add_memory(
        &mut self,
        memory: u32,
        _rw: BorrowedFd<'_>,
        _ro: BorrowedFd<'_>,
    ) -> Result<(), SpaceError> {
        self.fate()?;
        assert!(
            self.memories.insert(memory),
            "memory {memory} was added twice"
        );
        self.lost()
    }

    fn remove_memory(&mut self, memory: u32) -> Result<(), SpaceError> {
        self.check_alive()?;
        assert!(
            self.memories.remove(&memory),
            "memory {memory} was not registered"
        );
        assert!(
            self.mapped.values().all(|m| m.memory != memory),
            "memory {memory} was removed while it was mapped"
        );
        self.lost()
    }

    fn map(&mut self, maps: &[PageMap]) -> Result<(), SpaceError> {
        self.fate()?;
        for map in maps {
            let before = self.show(map);
            assert!(before.is_none(), "slot {} was mapped over", map.slot);
        }
        self.lost()
    }

    fn replace(&mut self, maps: &[PageMap]) -> Result<(), SpaceError> {
        self.fate().map_err(SpaceError::fatal)?;
        for map in maps {
            let before = self.show(map);
            assert!(before.is_some(), "slot {} showed nothing", map.slot);
        }
        self.lost()
    }

    fn unmap(&mut self, slots: &[Slot]) -> Result<(), SpaceError> {
        self.check_alive()?;
        for slot in slots {
            assert!(
                self.mapped.remove(slot).is_some(),
                "slot {slot} is not mapped"
            );
        }
        self.lost()
    }

    fn has_descriptor(&self, number: i32) -> bool {
        self.descriptors.contains(&number)
    }

    fn destroy(&mut self, why: &str) {
        self.mapped.clear();
        self.memories.clear();
        self.destroyed.get_or_insert_with(|| why.to_owned());
    }
}

/// A fake space that a test inspects while a server uses it.
pub type SharedFake = Arc<Mutex<FakeSpace>>;

fn lock(space: &SharedFake) -> MutexGuard<'_, FakeSpace> {
    space.lock().unwrap_or_else(PoisonError::into_inner)
}

impl AddressSpace for SharedFake {
    fn add_memory(
        &mut self,
        memory: u32,
        rw: BorrowedFd<'_>,
        ro: BorrowedFd<'_>,
    ) -> Result<(), SpaceError> {
        lock(self).add_memory(memory, rw, ro)
    }

    fn remove_memory(&mut self, memory: u32) -> Result<(), SpaceError> {
        lock(self).remove_memory(memory)
    }

    fn map(&mut self, maps: &[PageMap]) -> Result<(), SpaceError> {
        lock(self).map(maps)
    }

    fn replace(&mut self, maps: &[PageMap]) -> Result<(), SpaceError> {
        lock(self).replace(maps)
    }

    fn unmap(&mut self, slots: &[Slot]) -> Result<(), SpaceError> {
        lock(self).unmap(slots)
    }

    fn has_descriptor(&self, number: i32) -> bool {
        lock(self).has_descriptor(number)
    }

    fn destroy(&mut self, why: &str) {
        lock(self).destroy(why);
    }
}

//! An address space that only records its mappings, for tests and fuzz targets.

use crate::space::{AddressSpace, PageMap, SpaceError};
use abi::Slot;
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Record of the mapped pages. Panics when the monitor makes a request that it must never make.
#[derive(Debug, Default)]
pub struct FakeSpace {
    /// Every mapped page.
    pub mapped: BTreeMap<Slot, PageMap>,
    /// Every registered memory.
    pub memories: BTreeSet<u32>,
    /// The numbers of the domain's descriptors.
    pub descriptors: BTreeSet<i32>,
    /// Refuses the next change.
    pub refuse_next: bool,
    /// Makes the next change, but reports it as [`SpaceError::Lost`].
    pub lose_next: bool,
    /// The reason for which the domain was killed, if it was.
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

    fn check_refusal(&mut self) -> Result<(), SpaceError> {
        self.check_alive()?;
        if std::mem::take(&mut self.refuse_next) {
            return Err(SpaceError::Refused("as the test requested".into()));
        }
        Ok(())
    }

    fn check_loss(&mut self) -> Result<(), SpaceError> {
        if std::mem::take(&mut self.lose_next) {
            return Err(SpaceError::Lost("as the test requested".into()));
        }
        Ok(())
    }

    /// Maps a page, and returns the page that was mapped at its slot before.
    fn insert_page(&mut self, map: &PageMap) -> Option<PageMap> {
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
        self.check_refusal()?;
        assert!(
            self.memories.insert(memory),
            "memory {memory} was added twice"
        );
        self.check_loss()
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
        self.check_loss()
    }

    fn map(&mut self, maps: &[PageMap]) -> Result<(), SpaceError> {
        self.check_refusal()?;
        for map in maps {
            let before = self.insert_page(map);
            assert!(before.is_none(), "slot {} was mapped over", map.slot);
        }
        self.check_loss()
    }

    fn replace(&mut self, maps: &[PageMap]) -> Result<(), SpaceError> {
        self.check_refusal().map_err(SpaceError::fatal)?;
        for map in maps {
            let before = self.insert_page(map);
            assert!(before.is_some(), "slot {} was empty", map.slot);
        }
        self.check_loss()
    }

    fn unmap(&mut self, slots: &[Slot]) -> Result<(), SpaceError> {
        self.check_alive()?;
        for slot in slots {
            assert!(
                self.mapped.remove(slot).is_some(),
                "slot {slot} is not mapped"
            );
        }
        self.check_loss()
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

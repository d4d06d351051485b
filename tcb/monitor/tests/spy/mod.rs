//! An address space whose memories a test can read.

use abi::Slot;
use monitor::fake::FakeSpace;
use monitor::space::{AddressSpace, PageMap, SpaceError};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::BorrowedFd;

/// A fake address space that keeps the descriptors, so that a test can read through them.
#[derive(Debug, Default)]
pub(crate) struct Spy {
    pub(crate) fake: FakeSpace,
    pub(crate) files: BTreeMap<u32, File>,
}

impl AddressSpace for Spy {
    fn add_memory(
        &mut self,
        memory: u32,
        rw: BorrowedFd<'_>,
        ro: BorrowedFd<'_>,
    ) -> Result<(), SpaceError> {
        self.fake.add_memory(memory, rw, ro)?;
        let file = rw.try_clone_to_owned().unwrap();
        self.files.insert(memory, file.into());
        Ok(())
    }

    fn remove_memory(&mut self, memory: u32) -> Result<(), SpaceError> {
        self.files.remove(&memory);
        self.fake.remove_memory(memory)
    }

    fn map(&mut self, maps: &[PageMap]) -> Result<(), SpaceError> {
        self.fake.map(maps)
    }

    fn replace(&mut self, maps: &[PageMap]) -> Result<(), SpaceError> {
        self.fake.replace(maps)
    }

    fn unmap(&mut self, slots: &[Slot]) -> Result<(), SpaceError> {
        self.fake.unmap(slots)
    }

    fn has_descriptor(&self, number: i32) -> bool {
        self.fake.has_descriptor(number)
    }

    fn destroy(&mut self, why: &str) {
        self.fake.destroy(why);
    }
}

//! What the grant code needs of an address space: pages enter it and leave it.

use abi::Slot;
pub use sandbox::PageMap;
use std::os::fd::BorrowedFd;

/// Why an address space did not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpaceError {
    /// Nothing was changed.
    #[error("refused: {0}")]
    Refused(String),
    /// It is unknown what was changed: the deadline passed, or the agent is gone. The domain must
    /// be killed before its pins end.
    #[error("lost: {0}")]
    Lost(String),
}

impl SpaceError {
    /// The same where nothing less than success will do: pages that are not taken away by
    /// themselves are taken away with the domain.
    #[must_use]
    pub fn fatal(self) -> Self {
        match self {
            Self::Refused(why) | Self::Lost(why) => Self::Lost(why),
        }
    }
}

/// An address space that the monitor can change. No other code maps anything in its window.
pub trait AddressSpace: std::fmt::Debug {
    /// Makes a memory known under a number: once for reading and writing, once for reading only,
    /// so that a read-only page cannot become writable by any later call.
    ///
    /// # Errors
    /// See [`SpaceError`].
    fn add_memory(
        &mut self,
        memory: u32,
        rw: BorrowedFd<'_>,
        ro: BorrowedFd<'_>,
    ) -> Result<(), SpaceError>;

    /// Forgets a memory. No page of it is mapped.
    ///
    /// # Errors
    /// See [`SpaceError`].
    fn remove_memory(&mut self, memory: u32) -> Result<(), SpaceError>;

    /// Maps all pages, or none.
    ///
    /// # Errors
    /// See [`SpaceError`].
    fn map(&mut self, maps: &[PageMap]) -> Result<(), SpaceError>;

    /// Maps pages over others, which are out of reach when this returns.
    ///
    /// # Errors
    /// [`SpaceError::Lost`] alone: a slot that shows neither is as bad as an unknown one.
    fn replace(&mut self, maps: &[PageMap]) -> Result<(), SpaceError> {
        self.map(maps).map_err(SpaceError::fatal)
    }

    /// Takes the pages out again. When this returns, no access to them is possible any more.
    ///
    /// # Errors
    /// See [`SpaceError`]; after any error the domain must be killed.
    fn unmap(&mut self, slots: &[Slot]) -> Result<(), SpaceError>;

    /// Whether the domain has a descriptor at `number` of its table.
    fn has_descriptor(&self, number: i32) -> bool;

    /// Ends the domain. When this returns nothing of it runs any more.
    fn destroy(&mut self, why: &str);
}

/// Makes a memory known and maps pages, some of which are of it: both, or neither.
///
/// # Errors
/// See [`SpaceError`].
pub fn enter(
    space: &mut dyn AddressSpace,
    memory: u32,
    (rw, ro): (BorrowedFd<'_>, BorrowedFd<'_>),
    maps: &[PageMap],
) -> Result<(), SpaceError> {
    space.add_memory(memory, rw, ro)?;
    let mapped = space.map(maps);
    if let Err(SpaceError::Refused(_)) = mapped {
        space.remove_memory(memory)?;
    }
    mapped
}

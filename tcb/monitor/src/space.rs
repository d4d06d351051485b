//! The address space that the grant code changes by mapping and unmapping pages.

use abi::Slot;
use abi::hypercall::ForeignMap;
use rustix::io::Errno;
pub use sandbox::PageMap;
use std::os::fd::BorrowedFd;

/// Failure of a change of an address space.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpaceError {
    /// Nothing has changed.
    #[error("refused: {0}")]
    Refused(String),
    /// The extent of the change is unknown: the deadline has passed, or the agent has died. The
    /// domain must be killed before its pins are released.
    #[error("the address space is lost: {0}")]
    Lost(String),
}

impl SpaceError {
    /// Turns a rejection into a loss, for changes that must succeed: if pages cannot be unmapped,
    /// the domain must be killed.
    #[must_use]
    pub fn fatal(self) -> Self {
        match self {
            Self::Refused(why) | Self::Lost(why) => Self::Lost(why),
        }
    }
}

/// An address space that the monitor changes. No other code maps anything into its window.
pub trait AddressSpace: std::fmt::Debug {
    /// Registers a memory under a number, with one descriptor for reading and writing and one for
    /// reading only, so that no later call can make a read-only page writable.
    ///
    /// # Errors
    /// See [`SpaceError`].
    fn add_memory(
        &mut self,
        memory: u32,
        rw: BorrowedFd<'_>,
        ro: BorrowedFd<'_>,
    ) -> Result<(), SpaceError>;

    /// Removes a memory, none of whose pages may be mapped.
    ///
    /// # Errors
    /// See [`SpaceError`].
    fn remove_memory(&mut self, memory: u32) -> Result<(), SpaceError>;

    /// Maps all pages, or none.
    ///
    /// # Errors
    /// See [`SpaceError`].
    fn map(&mut self, maps: &[PageMap]) -> Result<(), SpaceError>;

    /// Maps pages in place of others, which are inaccessible when this returns.
    ///
    /// # Errors
    /// Returns only [`SpaceError::Lost`]: a slot without a page is as harmful as one with an
    /// unknown page.
    fn replace(&mut self, maps: &[PageMap]) -> Result<(), SpaceError> {
        self.map(maps).map_err(SpaceError::fatal)
    }

    /// Unmaps pages, which are inaccessible when this returns.
    ///
    /// # Errors
    /// See [`SpaceError`]; after any error the domain must be killed.
    fn unmap(&mut self, slots: &[Slot]) -> Result<(), SpaceError>;

    /// Maps one of the domain's files into its range for foreign memory. The inner error means that
    /// nothing was mapped. A space without an agent rejects all files.
    ///
    /// # Errors
    /// Returns only [`SpaceError::Lost`].
    fn map_foreign(&mut self, _map: &ForeignMap) -> Result<Result<(), Errno>, SpaceError> {
        Ok(Err(Errno::NOSPC))
    }

    /// Unmaps the file that was mapped at this page of the range. The inner error means that no
    /// file is mapped there.
    ///
    /// # Errors
    /// Returns only [`SpaceError::Lost`].
    fn unmap_foreign(&mut self, _page: u64) -> Result<Result<(), Errno>, SpaceError> {
        Ok(Err(Errno::NOENT))
    }

    /// Returns whether the domain has a descriptor with this number.
    fn has_descriptor(&self, number: i32) -> bool;

    /// Kills the domain. When this returns, none of its threads runs.
    fn destroy(&mut self, why: &str);
}

/// Registers a memory, and maps pages, some of which may belong to it. If one of the two is
/// refused, neither takes effect.
///
/// # Errors
/// See [`SpaceError`].
pub fn map_into(
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

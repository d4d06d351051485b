//! The shim's system.

use shmem::Span;
use std::io;
use std::os::fd::BorrowedFd;

/// Maps memory of the virtual machine, and waits for descriptors of its monitor. No method is
/// called per frame.
pub trait VhostSystem {
    /// Maps `bytes` bytes of `file` starting at `offset`, shared and writable. Both numbers are
    /// multiples of the page size. The caller closes `file` afterwards. Pages beyond the end of the
    /// file fault, even if the file is truncated later.
    ///
    /// # Errors
    /// Returns an error if the file cannot be mapped, or the region exceeds the system's bounds.
    fn map(&mut self, file: BorrowedFd<'_>, offset: u64, bytes: u64) -> io::Result<Span>;

    /// Unmaps a region, exactly as [`VhostSystem::map`] returned it.
    fn unmap(&mut self, region: Span);

    /// Lets a descriptor wake the shim: at each edge if `edges` is true, otherwise as long as the
    /// descriptor is readable.
    ///
    /// # Errors
    /// Returns an error if the system cannot wait for the descriptor.
    fn watch(&mut self, fd: BorrowedFd<'_>, edges: bool) -> io::Result<()>;

    /// Removes a descriptor that [`VhostSystem::watch`] added, before it is closed.
    fn unwatch(&mut self, fd: BorrowedFd<'_>);
}

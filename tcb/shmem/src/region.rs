//! The monitor's mapping of a domain's memory.

use crate::reserve;
use crate::span::Span;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise};
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Shared memory with a descriptor: a memfd that is mapped read-write and not inherited by a fork.
/// It is sealed: it can neither shrink nor grow, and accepts no further seal.
///
/// Dropping a region unmaps it. Accesses through its spans then fault, or access another region
/// that reuses the addresses.
#[derive(Debug)]
pub struct Region {
    fd: OwnedFd,
    span: Span,
}

impl Region {
    /// Allocates zeroed memory of `bytes` bytes, rounded up to whole pages. The name is for
    /// debugging only.
    ///
    /// # Errors
    /// Returns the kernel's error if no memory, descriptors or addresses remain, or if /proc is
    /// missing.
    pub fn create(name: &str, bytes: usize) -> io::Result<Self> {
        let bytes = reserve::whole_pages(bytes)?;
        let fd = sealed_memfd(name, bytes)?;
        let start = reserve::for_region(bytes)?;
        // Construct the region before mapping can fail, so that dropping it returns the addresses.
        let region = Self {
            fd,
            span: Span::new(start, bytes),
        };
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the addresses belong to the reservation and are unused. The advice on the new
        // mapping affects only forks and core dumps.
        unsafe {
            let file = Some((region.fd.as_fd(), 0));
            reserve::map_over(start, bytes, protection, MapFlags::SHARED, file)?;
            for advice in [Advice::LinuxDontFork, Advice::LinuxDontDump] {
                madvise(region.span.as_ptr().cast(), bytes, advice)?;
            }
        }
        Ok(region)
    }

    /// Returns the memfd, read-write.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Returns a descriptor of the same memory that cannot be mapped writable.
    ///
    /// # Errors
    /// Returns the kernel's error if no descriptors remain or /proc is missing.
    pub fn readonly_fd(&self) -> io::Result<OwnedFd> {
        let path = format!("/proc/self/fd/{}", self.fd.as_raw_fd());
        Ok(OpenOptions::new().read(true).open(path)?.into())
    }

    /// Returns the whole span.
    #[must_use]
    #[inline]
    pub fn span(&self) -> Span {
        self.span
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the addresses belong to this region. Later accesses through remaining spans may
        // fault, and recover from that.
        unsafe { reserve::unmap(self.span.addr(), self.span.len()) };
    }
}

/// Creates a memfd of `bytes` bytes that can be neither resized nor sealed further.
fn sealed_memfd(name: &str, bytes: usize) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Linux before 6.3 does not support NOEXEC_SEAL.
    let made = memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL);
    let fd = made.or_else(|_| memfd_create(name, flags))?;
    ftruncate(&fd, bytes as u64)?;
    fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(fd)
}

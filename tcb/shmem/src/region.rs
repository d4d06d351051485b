//! A domain's memory as the monitor holds it.

use crate::reserve;
use crate::span::Span;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise};
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Shared memory with a descriptor: a sealed memfd (it can neither shrink nor grow, and no seal
/// can be added), mapped here read-write and not inherited by a fork.
///
/// Dropping it unmaps it; spans of it then fault, or see another region that took the addresses.
#[derive(Debug)]
pub struct Region {
    fd: OwnedFd,
    span: Span,
}

impl Region {
    /// New zeroed memory, `bytes` in whole pages. The name is for debugging only.
    ///
    /// # Errors
    /// What the kernel says: out of memory, descriptors or addresses, or no /proc.
    pub fn create(name: &str, bytes: usize) -> io::Result<Self> {
        let bytes = reserve::whole_pages(bytes)?;
        let fd = sealed_memfd(name, bytes)?;
        let start = reserve::for_region(bytes)?;
        // Made before anything can fail, so that the addresses go back in every case.
        let region = Self {
            fd,
            span: Span::new(start, bytes),
        };
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: addresses of our own reservation that nothing uses now; advice on the fresh
        // mapping changes only what a fork or a core dump does with it.
        unsafe {
            let file = Some(region.fd.as_fd());
            reserve::map_over(start, bytes, protection, MapFlags::SHARED, file)?;
            for advice in [Advice::LinuxDontFork, Advice::LinuxDontDump] {
                madvise(region.span.as_ptr().cast(), bytes, advice)?;
            }
        }
        Ok(region)
    }

    /// The memfd, read-write.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// A descriptor of the same memory that cannot be mapped writable.
    ///
    /// # Errors
    /// What the kernel says: out of descriptors, or no /proc.
    pub fn readonly_fd(&self) -> io::Result<OwnedFd> {
        let path = format!("/proc/self/fd/{}", self.fd.as_raw_fd());
        Ok(OpenOptions::new().read(true).open(path)?.into())
    }

    /// All of it.
    #[must_use]
    #[inline]
    pub fn span(&self) -> Span {
        self.span
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        let (start, bytes) = (self.span.addr(), self.span.len());
        // SAFETY: the addresses are this region's own; who still holds a span of it faults from
        // now on, and survives it.
        let unmapped = unsafe { reserve::map_over(start, bytes, ProtFlags::empty(), flags, None) };
        // If even that failed the memory stays mapped and its addresses are never used again.
        if unmapped.is_ok() {
            reserve::give_back(start, bytes);
        }
    }
}

/// A memfd of `bytes` bytes that can neither be resized nor sealed any further.
fn sealed_memfd(name: &str, bytes: usize) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Linux before 6.3 does not know NOEXEC_SEAL.
    let made = memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL);
    let fd = made.or_else(|_| memfd_create(name, flags))?;
    ftruncate(&fd, bytes as u64)?;
    fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(fd)
}

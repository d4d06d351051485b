//! A mapping of another program's file, in a process that no monitor confines.

use crate::reserve;
use crate::span::Span;
use rustix::mm::{MapFlags, ProtFlags};
use std::io;
use std::os::fd::BorrowedFd;

/// A part of a file, mapped shared and read-write, for tests and for programs that no monitor
/// confines. Other users of the file may write to it, truncate it and punch holes at any time.
///
/// Dropping a mapping unmaps it. Accesses through its spans then fault, or access a later region at
/// the same addresses.
#[derive(Debug)]
pub struct Mapping {
    span: Span,
}

impl Mapping {
    /// Maps `bytes` bytes of `file`, rounded up to whole pages, starting at `offset`, which must be
    /// a multiple of the page size. Accesses to pages beyond the end of the file fault.
    ///
    /// # Errors
    /// Returns an error if the kernel cannot map the descriptor, or addresses are exhausted.
    pub fn new(file: BorrowedFd<'_>, offset: u64, bytes: usize) -> io::Result<Self> {
        let bytes = reserve::whole_pages(bytes)?;
        let start = reserve::for_region(bytes)?;
        // Construct the mapping before mapping can fail, so that dropping it returns the addresses.
        let mapping = Self {
            span: Span::new(start, bytes),
        };
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let file = Some((file, offset));
        // SAFETY: the addresses belong to the reservation and are unused.
        unsafe { reserve::map_over(start, bytes, protection, MapFlags::SHARED, file)? };
        Ok(mapping)
    }

    /// Returns a span over the whole mapping.
    #[must_use]
    #[inline]
    pub fn span(&self) -> Span {
        self.span
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the addresses belong to this mapping. Later accesses through remaining spans may
        // fault, and recover from that.
        unsafe { reserve::unmap(self.span.addr(), self.span.len()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Fault;
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    use std::os::fd::AsFd;

    #[test]
    fn pages_past_the_end_of_a_file_fault() {
        let file = memfd_create("mapping", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 3 * 4096).unwrap();
        let one = Mapping::new(file.as_fd(), 4096, 8192).unwrap();
        let two = Mapping::new(file.as_fd(), 0, 8192).unwrap();
        one.span().write(b"shared").unwrap();
        let mut content = [0; 6];
        two.span().skip(4096).read(&mut content).unwrap();
        assert_eq!(&content, b"shared");
        ftruncate(&file, 4096).unwrap();
        assert_eq!(one.span().read(&mut content), Err(Fault));
        assert_eq!(two.span().skip(4096).write(&content), Err(Fault));
        assert_eq!(two.span().read(&mut content), Ok(()));
        ftruncate(&file, 8192).unwrap();
        assert_eq!(one.span().read(&mut content), Ok(()));
        assert_eq!(content, [0; 6]);
    }
}

//! Address ranges in which pages of other domains and of files are mapped.

use abi::PAGE;
use shmem::{Area, Span};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// A part of this process's address space for foreign pages. It is never freed, so a span into it
/// stays valid. Every access fails where nothing is mapped.
#[derive(Clone, Copy, Debug)]
pub struct ForeignWindow(Area);

impl ForeignWindow {
    /// Reserves `pages` pages without mapping anything.
    ///
    /// # Errors
    ///
    /// Returns an error if the address space is exhausted.
    pub fn new(pages: usize) -> io::Result<Self> {
        let window = Self(Area::anonymous(pages * PAGE)?);
        window.blank()?;
        Ok(window)
    }

    /// Returns pages `first .. first + count` of the window.
    #[must_use]
    pub fn part(self, first: usize, count: usize) -> Option<Self> {
        let part = self
            .0
            .part(first.checked_mul(PAGE)?, count.checked_mul(PAGE)?);
        part.map(Self)
    }

    /// Returns the whole window.
    #[must_use]
    pub fn span(self) -> Span {
        self.0.span()
    }

    /// Returns the window for code that only reads and writes mapped pages.
    #[must_use]
    pub fn area(self) -> Area {
        self.0
    }

    /// Maps as many pages of a descriptor into the window as fit.
    ///
    /// # Errors
    ///
    /// Returns an error if the descriptor cannot be mapped this way; nothing is then mapped.
    pub fn map_device(
        self,
        fd: BorrowedFd<'_>,
        offset: u64,
        rights: PageRights,
    ) -> io::Result<Span> {
        let rights = match rights {
            PageRights::Read => libc::PROT_READ,
            PageRights::ReadWrite => libc::PROT_READ | libc::PROT_WRITE,
        };
        let shared = self.over(libc::MAP_SHARED, rights, fd.as_raw_fd(), offset);
        if let Err(error) = shared {
            self.unmap();
            return Err(error);
        }
        Ok(self.span())
    }

    /// Unmaps everything in the window.
    ///
    /// # Panics
    ///
    /// Panics if the kernel has no memory for the description of a mapping. A page that stays
    /// mapped after the end of its grant would make a frontend disable itself permanently, and the
    /// kernel may have left a hole into which Rust's memory could be mapped. The end of the process
    /// unmaps all pages even if the kernel has no memory. The next process continues with the
    /// rings, and guests notice only a pause.
    pub fn unmap(self) {
        if let Err(error) = self.blank() {
            panic!("pages of other domains cannot be unmapped: {error}");
        }
    }

    fn blank(self) -> io::Result<()> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        self.over(flags, libc::PROT_NONE, -1, 0)
    }

    fn over(self, flags: i32, rights: i32, fd: i32, offset: u64) -> io::Result<()> {
        let offset = i64::try_from(offset).map_err(|_| io::ErrorKind::InvalidInput)?;
        let span = self.span();
        // SAFETY: the addresses are a reserved area, which contains no Rust object and is accessed
        // only through spans. Any contents are sound, and so is an unmapped area.
        let at = unsafe {
            libc::mmap(
                span.as_ptr().cast(),
                span.len(),
                rights,
                flags | libc::MAP_FIXED,
                fd,
                offset,
            )
        };
        if at == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }
}

/// Access rights of mapped pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageRights {
    /// Read-only: the other end has not granted write access, or this end does not need it.
    Read,
    /// Read-write.
    ReadWrite,
}

//! Where pages of other domains and of files appear.

use abi::PAGE;
use shmem::{Area, Span};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// A part of this process's memory for pages from elsewhere. It is never given back, so a span into
/// it is good for ever; where nothing appears, every access fails.
#[derive(Clone, Copy, Debug)]
pub struct Window(Area);

impl Window {
    /// Room for `pages` pages. Nothing appears there.
    ///
    /// # Errors
    /// Out of addresses.
    pub fn new(pages: usize) -> io::Result<Self> {
        let window = Self(Area::anonymous(pages * PAGE)?);
        window.blank()?;
        Ok(window)
    }

    /// Pages `first .. first + count` of the window.
    #[must_use]
    pub fn part(self, first: usize, count: usize) -> Option<Self> {
        let part = self
            .0
            .part(first.checked_mul(PAGE)?, count.checked_mul(PAGE)?);
        part.map(Self)
    }

    /// All of it.
    #[must_use]
    pub fn span(self) -> Span {
        self.0.span()
    }

    /// The same memory, for those who only read and write what appears.
    #[must_use]
    pub fn area(self) -> Area {
        self.0
    }

    /// Lets pages of a descriptor appear in the window: as many as there is room for.
    ///
    /// # Errors
    /// The descriptor cannot be mapped so. Nothing appears then.
    pub fn show(self, fd: BorrowedFd<'_>, offset: u64, rights: PageRights) -> io::Result<Span> {
        let rights = match rights {
            PageRights::Read => libc::PROT_READ,
            PageRights::ReadWrite => libc::PROT_READ | libc::PROT_WRITE,
        };
        let shared = self.over(libc::MAP_SHARED, rights, fd.as_raw_fd(), offset);
        if let Err(error) = shared {
            self.hide();
            return Err(error);
        }
        Ok(self.span())
    }

    /// Lets what appears in the window disappear.
    ///
    /// # Panics
    /// If the kernel is out of memory for the description of a mapping. A page that stayed beyond
    /// its grant's end would make a frontend disable itself for good, and the kernel may have left
    /// a hole where Rust's memory could be put. With the process all pages go, whatever the kernel
    /// has memory for; the next process goes on with the rings, and guests notice a pause.
    pub fn hide(self) {
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
        // SAFETY: the addresses are an area of our own, which holds no Rust object and is only ever
        // touched through spans: any contents, and none, are fine.
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

/// What may be done with pages that appear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageRights {
    /// They may be read: the other end has granted no more, or no more is needed.
    Read,
    /// They may be read and written.
    ReadWrite,
}

//! Long-lived memory of this process.

use crate::reserve;
use crate::span::Span;
use rustix::mm::{MapFlags, ProtFlags};
use std::io;

/// Long-lived memory of this process: a handle that may be copied; the memory stays for ever.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Area {
    span: Span,
}

impl Area {
    /// Memory at fixed addresses that the monitor laid out for this domain.
    pub(crate) const fn at_fixed(addr: usize, len: usize) -> Self {
        Self {
            span: Span::new(addr, len),
        }
    }

    /// New zeroed memory, `bytes` in whole pages, never unmapped: for tests, `sim` and programs
    /// that are not confined.
    ///
    /// # Errors
    /// What the kernel says: out of memory, or of the reserved addresses.
    pub fn anonymous(bytes: usize) -> io::Result<Self> {
        let bytes = reserve::whole_pages(bytes)?;
        let start = reserve::for_area(bytes)?;
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: fresh addresses of our own reservation.
        unsafe {
            reserve::map_over(
                start,
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                flags,
                None,
            )?;
        }
        Ok(Self {
            span: Span::new(start, bytes),
        })
    }

    /// A part of it, `len` bytes from `offset` on, if they lie inside.
    #[must_use]
    pub fn part(self, offset: usize, len: usize) -> Option<Self> {
        self.at(offset, len).map(|span| Self { span })
    }

    /// All of it.
    #[must_use]
    #[inline]
    pub const fn span(self) -> Span {
        self.span
    }

    /// Length in bytes.
    #[must_use]
    #[inline]
    pub const fn len(self) -> usize {
        self.span.len()
    }

    /// Whether it has no bytes.
    #[must_use]
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.span.is_empty()
    }

    /// Page `n`, if there is one.
    #[must_use]
    #[inline]
    pub const fn page(self, n: u32) -> Option<Span> {
        self.span.page(n)
    }

    /// `len` bytes from `offset` on, if they lie inside.
    #[must_use]
    #[inline]
    pub const fn at(self, offset: usize, len: usize) -> Option<Span> {
        self.span.sub(offset, len)
    }
}

//! Long-lived memory of this process.

use crate::reserve;
use crate::span::Span;
use rustix::mm::{MapFlags, ProtFlags};
use std::io;

/// A copyable handle to long-lived memory of this process, which is never unmapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Area {
    span: Span,
}

impl Area {
    /// Returns memory at fixed addresses that the monitor mapped for this domain.
    pub(crate) const fn at_fixed(addr: usize, len: usize) -> Self {
        Self {
            span: Span::new(addr, len),
        }
    }

    /// Allocates zeroed memory of `bytes` bytes, rounded up to whole pages, for tests, `sim` and
    /// unconfined programs. It is never unmapped.
    ///
    /// # Errors
    /// Returns the kernel's error if no memory or no reserved addresses remain.
    pub fn anonymous(bytes: usize) -> io::Result<Self> {
        let bytes = reserve::whole_pages(bytes)?;
        let start = reserve::for_area(bytes)?;
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: the addresses belong to the reservation and are unused.
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

    /// Returns the part of `len` bytes that starts at `offset`, if it lies inside.
    #[must_use]
    pub fn part(self, offset: usize, len: usize) -> Option<Self> {
        self.at(offset, len).map(|span| Self { span })
    }

    /// Returns the whole span.
    #[must_use]
    #[inline]
    pub const fn span(self) -> Span {
        self.span
    }

    /// Returns the length in bytes.
    #[must_use]
    #[inline]
    pub const fn len(self) -> usize {
        self.span.len()
    }

    /// Returns whether the length is 0.
    #[must_use]
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.span.is_empty()
    }

    /// Returns page `n`, if it exists.
    #[must_use]
    #[inline]
    pub const fn page(self, n: u32) -> Option<Span> {
        self.span.page(n)
    }

    /// Returns `len` bytes starting at `offset`, if they lie inside.
    #[must_use]
    #[inline]
    pub const fn at(self, offset: usize, len: usize) -> Option<Span> {
        self.span.sub(offset, len)
    }
}

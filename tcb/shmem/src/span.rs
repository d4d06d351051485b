//! Spans: ranges of memory that other processes may access.

use crate::engine;
use crate::fault::Fault;
use abi::PAGE;
use core::sync::atomic::{AtomicU32, AtomicU64};

/// A range inside an [`crate::Area`] or [`crate::Region`]: an address and a length. Copying a span
/// copies the address, not the bytes.
///
/// A span never becomes a Rust reference to bytes. The possible addresses of spans are reserved for
/// spans for the life of the process. So a stale span can fault, or access the bytes of another
/// packet, but it can never access a Rust object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    addr: usize,
    len: usize,
}

impl Span {
    /// Creates a span. The caller promises that its memory is reserved for spans.
    pub(crate) const fn new(addr: usize, len: usize) -> Self {
        Self { addr, len }
    }

    /// Returns the length in bytes.
    #[must_use]
    #[inline]
    pub const fn len(self) -> usize {
        self.len
    }

    /// Returns the address of the first byte.
    #[must_use]
    #[inline]
    pub const fn addr(self) -> usize {
        self.addr
    }

    /// Returns `len` bytes starting at `offset`, if they lie inside.
    #[must_use]
    #[inline]
    pub const fn sub(self, offset: usize, len: usize) -> Option<Self> {
        if offset <= self.len && len <= self.len - offset {
            Some(Self::new(self.addr + offset, len))
        } else {
            None
        }
    }

    /// Returns page number `index`, if it exists.
    #[must_use]
    #[inline]
    pub const fn page(self, index: u32) -> Option<Self> {
        self.sub(index as usize * PAGE, PAGE)
    }

    /// Returns all but the first `n` bytes, or an empty span if it has no more.
    #[must_use]
    #[inline]
    pub const fn skip(self, n: usize) -> Self {
        let n = if n < self.len { n } else { self.len };
        Self::new(self.addr + n, self.len - n)
    }

    /// Returns the first `n` bytes, or the whole span if it is shorter.
    #[must_use]
    #[inline]
    pub const fn take(self, n: usize) -> Self {
        Self::new(self.addr, if n < self.len { n } else { self.len })
    }

    /// Copies bytes into `dst`, up to the length of the shorter of the two. The copy is a single
    /// instruction, for the trusted base, which copies few bytes and must have little code. Other
    /// programs use [`Span::read`].
    ///
    /// # Errors
    /// Returns [`Fault`] if a page is unmapped; `dst` then contains unspecified bytes.
    pub fn get(self, dst: &mut [u8]) -> Result<(), Fault> {
        let len = dst.len().min(self.len);
        // SAFETY: this function has exclusive access to `dst`, which is at least `len` long. The
        // span's range is reserved for spans (its invariant) and at least `len` long.
        done(unsafe { engine::copy_plainly(dst.as_mut_ptr(), self.as_ptr(), len) })
    }

    /// Copies bytes of `src` into the span, up to the length of the shorter of the two. Like
    /// [`Span::get`], this is for the trusted base; other programs use [`Span::write`].
    ///
    /// # Errors
    /// Returns [`Fault`] if a page is unmapped or read-only; the span then contains unspecified
    /// bytes.
    pub fn put(self, src: &[u8]) -> Result<(), Fault> {
        let len = src.len().min(self.len);
        // SAFETY: as in `get`, with the roles exchanged; `src` is only read.
        done(unsafe { engine::copy_plainly(self.as_ptr(), src.as_ptr(), len) })
    }

    /// Returns the control word at `offset`, or `None` if it is not aligned or not inside.
    ///
    /// An access to the word crashes the process if its page is unmapped. Use this for pages that
    /// stay mapped (own memory, rings that only this process unmaps), and [`Span::load_u32`] for
    /// others.
    #[must_use]
    #[inline]
    pub fn u32(self, offset: usize) -> Option<&'static AtomicU32> {
        let word = self.word(offset, 4)?;
        // SAFETY: the word is aligned, and lies inside a range whose only Rust objects are atomics,
        // so any bit pattern and any concurrent writer is permitted. A reference to an atomic does
        // not assert that the memory stays mapped: only accesses need the memory.
        Some(unsafe { &*word.cast::<AtomicU32>() })
    }

    /// Returns the control word at `offset`, or `None` if it is not aligned or not inside. See
    /// [`Span::u32`].
    #[must_use]
    #[inline]
    pub fn u64(self, offset: usize) -> Option<&'static AtomicU64> {
        let word = self.word(offset, 8)?;
        // SAFETY: as in `u32`.
        Some(unsafe { &*word.cast::<AtomicU64>() })
    }

    /// Returns the address as a pointer, for system calls. Creating a Rust reference from it is
    /// unsound, because a peer may write there at any moment.
    #[must_use]
    #[inline]
    pub fn as_ptr(self) -> *mut u8 {
        core::ptr::with_exposed_provenance_mut(self.addr)
    }

    /// Returns a pointer to the aligned word of `size` bytes at `offset`.
    #[inline]
    pub(crate) fn word(self, offset: usize, size: usize) -> Option<*mut u8> {
        self.words(offset, size, 1)
    }

    /// Returns a pointer to `count` aligned words of `size` bytes at `offset`.
    #[inline]
    pub(crate) fn words(self, offset: usize, size: usize, count: usize) -> Option<*mut u8> {
        let words = self.sub(offset, size.checked_mul(count)?)?;
        words.addr.is_multiple_of(size).then_some(words.as_ptr())
    }
}

#[inline]
pub(crate) fn done(ok: bool) -> Result<(), Fault> {
    if ok { Ok(()) } else { Err(Fault) }
}

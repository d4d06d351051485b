//! Spans: ranges of memory that somebody else may touch.

use crate::engine;
use crate::fault::Fault;
use abi::PAGE;
use core::sync::atomic::{AtomicU32, AtomicU64};

/// A range inside an [`crate::Area`] or [`crate::Region`]: address and length. Copying one copies
/// the address, not the bytes.
///
/// It never becomes a Rust reference to bytes. The addresses that spans can have are reserved for
/// such memory for the life of the process, so a stale span can fault or see somebody else's
/// packet bytes, but it can never touch a Rust object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    addr: usize,
    len: usize,
}

impl Span {
    /// A span of memory that is reserved for spans; the caller vouches for that.
    pub(crate) const fn new(addr: usize, len: usize) -> Self {
        Self { addr, len }
    }

    /// Length in bytes.
    #[must_use]
    #[inline]
    pub const fn len(self) -> usize {
        self.len
    }

    /// Address of the first byte.
    #[must_use]
    #[inline]
    pub const fn addr(self) -> usize {
        self.addr
    }

    /// `len` bytes from `offset` on, if they lie inside.
    #[must_use]
    #[inline]
    pub const fn sub(self, offset: usize, len: usize) -> Option<Self> {
        if offset <= self.len && len <= self.len - offset {
            Some(Self::new(self.addr + offset, len))
        } else {
            None
        }
    }

    /// Page number `index` of it, if it has so many.
    #[must_use]
    #[inline]
    pub const fn page(self, index: u32) -> Option<Self> {
        self.sub(index as usize * PAGE, PAGE)
    }

    /// All but the first `n` bytes; empty if there are no more.
    #[must_use]
    #[inline]
    pub const fn skip(self, n: usize) -> Self {
        let n = if n < self.len { n } else { self.len };
        Self::new(self.addr + n, self.len - n)
    }

    /// The first `n` bytes, or as many as there are.
    #[must_use]
    #[inline]
    pub const fn take(self, n: usize) -> Self {
        Self::new(self.addr, if n < self.len { n } else { self.len })
    }

    /// Copies the first bytes into `dst`: as many as the shorter of the two has. One instruction
    /// does it, for who copies little and must be short: the trusted base. Others use
    /// [`Span::read`].
    ///
    /// # Errors
    /// [`Fault`] if a page is not there; `dst` then holds anything.
    pub fn get(self, dst: &mut [u8]) -> Result<(), Fault> {
        let len = dst.len().min(self.len);
        // SAFETY: `dst` is exclusively ours and at least `len` long; the span's range is reserved
        // for spans (its invariant) and at least `len` long.
        done(unsafe { engine::copy_plainly(dst.as_mut_ptr(), self.as_ptr(), len) })
    }

    /// Copies the first bytes of `src` here: as many as the shorter of the two has. As
    /// [`Span::get`]; others use [`Span::write`].
    ///
    /// # Errors
    /// [`Fault`] if a page is not there or read-only; the span then holds anything.
    pub fn put(self, src: &[u8]) -> Result<(), Fault> {
        let len = src.len().min(self.len);
        // SAFETY: as in `get`, the other way round; `src` is only read.
        done(unsafe { engine::copy_plainly(self.as_ptr(), src.as_ptr(), len) })
    }

    /// The control word at `offset`; none unless it is aligned and inside.
    ///
    /// A touch of it is not survived if its page is gone: for pages that stay (own memory, rings
    /// that only we unmap). Otherwise [`Span::load_u32`].
    #[must_use]
    #[inline]
    pub fn u32(self, offset: usize) -> Option<&'static AtomicU32> {
        let word = self.word(offset, 4)?;
        // SAFETY: aligned and inside a range that never holds a Rust object other than such
        // atomics, so any bit pattern and any concurrent writer is fine. A reference to an atomic
        // makes no claim that the memory stays mapped: only accesses touch it.
        Some(unsafe { &*word.cast::<AtomicU32>() })
    }

    /// The control word at `offset`; none unless it is aligned and inside. See [`Span::u32`].
    #[must_use]
    #[inline]
    pub fn u64(self, offset: usize) -> Option<&'static AtomicU64> {
        let word = self.word(offset, 8)?;
        // SAFETY: as in `u32`.
        Some(unsafe { &*word.cast::<AtomicU64>() })
    }

    /// The address as a pointer, for system calls. To make a Rust reference of it is unsound: a
    /// peer may write there at any moment.
    #[must_use]
    #[inline]
    pub fn as_ptr(self) -> *mut u8 {
        core::ptr::with_exposed_provenance_mut(self.addr)
    }

    /// Pointer to the aligned word of `size` bytes at `offset`.
    #[inline]
    pub(crate) fn word(self, offset: usize, size: usize) -> Option<*mut u8> {
        self.words(offset, size, 1)
    }

    /// Pointer to `count` aligned words of `size` bytes at `offset`.
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

//! Operations on spans that only domains need: fast copies, single words of pages that may be
//! unmapped, batches of words, prefetches, sums. The monitor does not use them.

use crate::engine;
use crate::fault::Fault;
use crate::span::{Span, done};
use core::sync::atomic::{AtomicU32, AtomicU64};

impl Span {
    /// An empty span at address 0.
    pub const EMPTY: Self = Self::new(0, 0);

    /// Returns whether the length is 0.
    #[must_use]
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Joins this span and `next`, if `next` begins where this one ends. Both lie in ranges
    /// reserved for spans, so the joined span does, too.
    #[must_use]
    #[inline]
    pub const fn join(self, next: Self) -> Option<Self> {
        if !self.is_empty() && self.addr() + self.len() == next.addr() {
            Some(Self::new(self.addr(), self.len() + next.len()))
        } else {
            None
        }
    }

    /// Returns the first `count` control words. Returns `None` if `count` is 0, or if the words are
    /// not aligned or not inside. See [`Span::u32`].
    #[must_use]
    pub fn u32s(self, count: usize) -> Option<&'static [AtomicU32]> {
        let words = self.words(0, 4, count).filter(|_| count > 0)?;
        // SAFETY: as in `u32`, for each word. The words lie inside a range, so the address is not
        // null, and their size fits the address space.
        Some(unsafe { core::slice::from_raw_parts(words.cast::<AtomicU32>(), count) })
    }

    /// Returns the first `count` control words. Returns `None` if `count` is 0, or if the words are
    /// not aligned or not inside. See [`Span::u32`].
    #[must_use]
    pub fn u64s(self, count: usize) -> Option<&'static [AtomicU64]> {
        let words = self.words(0, 8, count).filter(|_| count > 0)?;
        // SAFETY: as in `u32s`.
        Some(unsafe { core::slice::from_raw_parts(words.cast::<AtomicU64>(), count) })
    }

    /// Copies bytes into `dst`, up to the length of the shorter of the two.
    ///
    /// # Errors
    /// Returns [`Fault`] if a page is unmapped; `dst` then contains unspecified bytes.
    #[inline]
    pub fn read(self, dst: &mut [u8]) -> Result<(), Fault> {
        let len = dst.len().min(self.len());
        // SAFETY: this function has exclusive access to `dst`, which is at least `len` long. The
        // span's range is reserved for spans (its invariant) and at least `len` long.
        let ok = unsafe {
            match len {
                64 => engine::copy_64(dst.as_mut_ptr(), self.as_ptr()),
                96 => engine::copy_96(dst.as_mut_ptr(), self.as_ptr()),
                _ => engine::copy(dst.as_mut_ptr(), self.as_ptr(), len),
            }
        };
        done(ok)
    }

    /// Copies bytes of `src` into the span, up to the length of the shorter of the two.
    ///
    /// # Errors
    /// Returns [`Fault`] if a page is unmapped or read-only; the span then contains unspecified
    /// bytes.
    #[inline]
    pub fn write(self, src: &[u8]) -> Result<(), Fault> {
        let len = src.len().min(self.len());
        // SAFETY: as in `read`, with the roles exchanged; `src` is only read.
        let ok = unsafe {
            match len {
                64 => engine::copy_64(self.as_ptr(), src.as_ptr()),
                96 => engine::copy_96(self.as_ptr(), src.as_ptr()),
                _ => engine::copy(self.as_ptr(), src.as_ptr(), len),
            }
        };
        done(ok)
    }

    /// Sets every byte to `byte`.
    ///
    /// # Errors
    /// Returns [`Fault`] if a page is unmapped or read-only; the span then contains unspecified
    /// bytes.
    pub fn fill(self, byte: u8) -> Result<(), Fault> {
        // SAFETY: the span's range is reserved for spans.
        done(unsafe { engine::fill(self.as_ptr(), self.len(), byte) })
    }

    /// Reads the byte at `offset` in one access, as device registers require.
    ///
    /// # Errors
    /// Returns [`Fault`] if the page is unmapped, or the byte is not inside.
    pub fn load_u8(self, offset: usize) -> Result<u8, Fault> {
        let byte = self.word(offset, 1).ok_or(Fault)?;
        // SAFETY: the byte lies inside the span's range.
        unsafe { engine::load_u8(byte) }.ok_or(Fault)
    }

    /// Reads the 2-byte word at `offset` in one access.
    ///
    /// # Errors
    /// Returns [`Fault`] if the page is unmapped, or the word is not aligned or not inside.
    pub fn load_u16(self, offset: usize) -> Result<u16, Fault> {
        let word = self.word(offset, 2).ok_or(Fault)?;
        // SAFETY: the word is aligned and lies inside the span's range.
        unsafe { engine::load_u16(word) }.ok_or(Fault)
    }

    /// Writes the byte at `offset` in one access.
    ///
    /// # Errors
    /// Returns [`Fault`] if the page is unmapped or read-only, or the byte is not inside.
    pub fn store_u8(self, offset: usize, value: u8) -> Result<(), Fault> {
        let byte = self.word(offset, 1).ok_or(Fault)?;
        // SAFETY: the byte lies inside the span's range.
        done(unsafe { engine::store_u8(byte, value) })
    }

    /// Writes the 2-byte word at `offset` in one access.
    ///
    /// # Errors
    /// Returns [`Fault`] if the page is unmapped or read-only, or the word is not aligned or not
    /// inside.
    pub fn store_u16(self, offset: usize, value: u16) -> Result<(), Fault> {
        let word = self.word(offset, 2).ok_or(Fault)?;
        // SAFETY: the word is aligned and lies inside the span's range.
        done(unsafe { engine::store_u16(word, value) })
    }

    /// Reads the word at `offset` once, as an atomic load with acquire ordering.
    ///
    /// # Errors
    /// Returns [`Fault`] if the page is unmapped, or the word is not aligned or not inside.
    #[inline]
    pub fn load_u32(self, offset: usize) -> Result<u32, Fault> {
        let word = self.word(offset, 4).ok_or(Fault)?;
        // SAFETY: the word is aligned and lies inside the span's range.
        unsafe { engine::load_u32(word) }.ok_or(Fault)
    }

    /// Reads the word at `offset` once, as an atomic load with acquire ordering.
    ///
    /// # Errors
    /// Returns [`Fault`] if the page is unmapped, or the word is not aligned or not inside.
    #[inline]
    pub fn load_u64(self, offset: usize) -> Result<u64, Fault> {
        let word = self.word(offset, 8).ok_or(Fault)?;
        // SAFETY: the word is aligned and lies inside the span's range.
        unsafe { engine::load_u64(word) }.ok_or(Fault)
    }

    /// Writes the word at `offset`, as an atomic store with release ordering.
    ///
    /// # Errors
    /// Returns [`Fault`] if the page is unmapped or read-only, or the word is not aligned or not
    /// inside.
    #[inline]
    pub fn store_u32(self, offset: usize, value: u32) -> Result<(), Fault> {
        let word = self.word(offset, 4).ok_or(Fault)?;
        // SAFETY: the word is aligned and lies inside the span's range.
        done(unsafe { engine::store_u32(word, value) })
    }

    /// Copies words starting at `offset` into `dst`, at the cost of one access. The order of the
    /// reads is unspecified, so the writer must have published the words by another word, which the
    /// caller has already read.
    ///
    /// # Errors
    /// Returns [`Fault`] if a page is unmapped, or the words are not aligned or not inside; `dst`
    /// then contains unspecified words.
    #[inline]
    pub fn read_words(self, offset: usize, dst: &mut [u32]) -> Result<(), Fault> {
        let words = self.words(offset, 4, dst.len()).ok_or(Fault)?;
        // SAFETY: this function has exclusive access to `dst`, and the words lie inside the span's
        // range.
        done(unsafe { engine::copy(dst.as_mut_ptr().cast(), words, size_of_val(dst)) })
    }

    /// Copies `words` into the span, starting at `offset`, at the cost of one access. The order of
    /// the writes is unspecified, so the caller must publish the words by a word that it writes
    /// later.
    ///
    /// # Errors
    /// Returns [`Fault`] if a page is unmapped or read-only, or the words are not aligned or not
    /// inside; the span then contains unspecified words.
    #[inline]
    pub fn write_words(self, offset: usize, words: &[u32]) -> Result<(), Fault> {
        let to = self.words(offset, 4, words.len()).ok_or(Fault)?;
        // SAFETY: as in `read_words`, with the roles exchanged; `words` is only read.
        done(unsafe { engine::copy(to, words.as_ptr().cast(), size_of_val(words)) })
    }

    /// Writes `N` words (1, 2 or 3) starting at `offset`, as atomic stores with release ordering.
    /// All of them cost no more than one store.
    ///
    /// # Errors
    /// Returns [`Fault`] if the page is unmapped or read-only, or the words are not aligned or not
    /// inside.
    #[inline]
    pub fn store_words<const N: usize>(self, offset: usize, words: [u32; N]) -> Result<(), Fault> {
        const { assert!(1 <= N && N <= 3) };
        let at = self.words(offset, 4, N).ok_or(Fault)?;
        // SAFETY: the words are aligned and lie inside the span's range.
        done(unsafe {
            match *words.as_slice() {
                [a] => engine::store_u32(at, a),
                [a, b] => engine::store_2(at, [a, b]),
                [a, b, c] => engine::store_3(at, [a, b, c]),
                _ => true,
            }
        })
    }

    /// Writes the word at `offset` and returns its old value, in one atomic access with
    /// sequentially consistent ordering.
    ///
    /// # Errors
    /// Returns [`Fault`] if the page is unmapped or read-only, or the word is not aligned or not
    /// inside.
    #[inline]
    pub fn swap_u32(self, offset: usize, value: u32) -> Result<u32, Fault> {
        let word = self.word(offset, 4).ok_or(Fault)?;
        // SAFETY: the word is aligned and lies inside the span's range.
        unsafe { engine::swap_u32(word, value) }.ok_or(Fault)
    }

    /// Writes the word at `offset`, as an atomic store with release ordering.
    ///
    /// # Errors
    /// Returns [`Fault`] if the page is unmapped or read-only, or the word is not aligned or not
    /// inside.
    #[inline]
    pub fn store_u64(self, offset: usize, value: u64) -> Result<(), Fault> {
        let word = self.word(offset, 8).ok_or(Fault)?;
        // SAFETY: the word is aligned and lies inside the span's range.
        done(unsafe { engine::store_u64(word, value) })
    }

    /// Prefetches every cache line of the span for reading. Never faults. Use [`Span::take`] to
    /// prefetch only bytes that will be read.
    #[inline]
    pub fn prefetch(self) {
        self.each_line(engine::prefetch);
    }

    /// Prefetches every cache line of the span for writing. Never faults. Use [`Span::take`] to
    /// prefetch only bytes that will be written.
    #[inline]
    pub fn prefetch_write(self) {
        self.each_line(engine::prefetch_write);
    }

    /// Calls `act` with the address of each cache line of the span; once if the span is empty.
    #[inline(always)]
    fn each_line(self, act: impl Fn(*const u8)) {
        const LINE: usize = 64;
        let mut line = self.addr();
        loop {
            act(core::ptr::without_provenance(line));
            line = (line & !(LINE - 1)) + LINE;
            if line >= self.addr() + self.len() {
                break;
            }
        }
    }
}

/// Copies bytes of `src` to `dst`, up to the length of the shorter of the two. The contents of
/// overlapping spans are unspecified afterwards.
///
/// # Errors
/// Returns [`Fault`] if a page is unmapped or not writable; `dst` then contains unspecified bytes.
#[inline]
pub fn copy(dst: Span, src: Span) -> Result<(), Fault> {
    let len = dst.len().min(src.len());
    // SAFETY: both ranges are reserved for spans and at least `len` long.
    done(unsafe { engine::copy(dst.as_ptr(), src.as_ptr(), len) })
}

/// Adds the bytes of `src` to a running Internet checksum: the one's-complement sum of its
/// **big-endian** 2-byte words (RFC 1071). Numbers in host order, such as a pseudo header's length,
/// may be added to `initial` unchanged.
///
/// `src` must start at an even offset of the summed data; an odd last byte counts as the high half
/// of a word. The result may exceed 16 bits: the caller folds and complements it at the end.
///
/// # Errors
/// Returns [`Fault`] if a page is unmapped.
#[inline]
pub fn ones_sum(src: Span, initial: u32) -> Result<u32, Fault> {
    // SAFETY: the range is reserved for spans; `best` returns an engine that the processor
    // supports.
    let sum = unsafe { engine::sum::sum(engine::sum::best(), src.as_ptr(), src.len()) };
    Ok(add_ones(initial, sum.ok_or(Fault)?))
}

/// Returns [`ones_sum`] of private bytes.
#[must_use]
#[inline]
pub fn ones_sum_bytes(src: &[u8], initial: u32) -> u32 {
    // SAFETY: the slice is readable for its length; `best` returns an engine that the processor
    // supports.
    let sum = unsafe { engine::sum::sum(engine::sum::best(), src.as_ptr(), src.len()) };
    add_ones(initial, sum.unwrap_or_default())
}

/// Folds a sum to 16 bits (RFC 1071).
#[must_use]
pub const fn fold_ones_sum(sum: u32) -> u16 {
    let once = (sum & 0xffff) + (sum >> 16);
    let twice = (once & 0xffff) + (once >> 16);
    twice as u16
}

/// Returns the 32-bit one's-complement sum of two numbers.
#[inline]
fn add_ones(a: u32, b: u16) -> u32 {
    let (sum, carry) = a.overflowing_add(b.into());
    // After a carry, `sum` is less than the maximum, so this cannot wrap.
    sum.wrapping_add(u32::from(carry))
}

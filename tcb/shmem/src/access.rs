//! How domains use spans: copies at the processor's speed, single words of pages that may be taken
//! away, batches of words, prefetches, sums. The monitor does none of it.

use crate::engine;
use crate::fault::Fault;
use crate::span::{Span, done};
use core::sync::atomic::{AtomicU32, AtomicU64};

impl Span {
    /// The span of no bytes, at no address.
    pub const EMPTY: Self = Self::new(0, 0);

    /// Whether it has no bytes.
    #[must_use]
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// This span and `next`, if `next` begins where this one ends: both ends lie in ranges that
    /// are reserved for spans, so what is between them does.
    #[must_use]
    #[inline]
    pub const fn join(self, next: Self) -> Option<Self> {
        if !self.is_empty() && self.addr() + self.len() == next.addr() {
            Some(Self::new(self.addr(), self.len() + next.len()))
        } else {
            None
        }
    }

    /// The first `count` control words, at least one; none unless they are aligned and inside. See
    /// [`Span::u32`].
    #[must_use]
    pub fn u32s(self, count: usize) -> Option<&'static [AtomicU32]> {
        let words = self.words(0, 4, count).filter(|_| count > 0)?;
        // SAFETY: as in `u32`, for each of them. They lie inside a range, so the address is not
        // null, and they are no more bytes than an address space has.
        Some(unsafe { core::slice::from_raw_parts(words.cast::<AtomicU32>(), count) })
    }

    /// The first `count` control words, at least one; none unless they are aligned and inside. See
    /// [`Span::u32`].
    #[must_use]
    pub fn u64s(self, count: usize) -> Option<&'static [AtomicU64]> {
        let words = self.words(0, 8, count).filter(|_| count > 0)?;
        // SAFETY: as in `u32s`.
        Some(unsafe { core::slice::from_raw_parts(words.cast::<AtomicU64>(), count) })
    }

    /// Copies the first bytes into `dst`: as many as the shorter of the two has.
    ///
    /// # Errors
    /// [`Fault`] if a page is not there; `dst` then holds anything.
    #[inline]
    pub fn read(self, dst: &mut [u8]) -> Result<(), Fault> {
        let len = dst.len().min(self.len());
        // SAFETY: `dst` is exclusively ours and at least `len` long; the span's range is reserved
        // for spans (its invariant) and at least `len` long.
        let ok = unsafe {
            match len {
                64 => engine::copy_64(dst.as_mut_ptr(), self.as_ptr()),
                96 => engine::copy_96(dst.as_mut_ptr(), self.as_ptr()),
                _ => engine::copy(dst.as_mut_ptr(), self.as_ptr(), len),
            }
        };
        done(ok)
    }

    /// Copies the first bytes of `src` here: as many as the shorter of the two has.
    ///
    /// # Errors
    /// [`Fault`] if a page is not there or read-only; the span then holds anything.
    #[inline]
    pub fn write(self, src: &[u8]) -> Result<(), Fault> {
        let len = src.len().min(self.len());
        // SAFETY: as in `read`, the other way round; `src` is only read.
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
    /// [`Fault`] if a page is not there or read-only; the span then holds anything.
    pub fn fill(self, byte: u8) -> Result<(), Fault> {
        // SAFETY: the span's range is reserved for spans.
        done(unsafe { engine::fill(self.as_ptr(), self.len(), byte) })
    }

    /// Reads the word at `offset` once, as an atomic load with acquire ordering.
    ///
    /// # Errors
    /// [`Fault`] if the page is not there, or the word is not aligned or not inside.
    #[inline]
    pub fn load_u32(self, offset: usize) -> Result<u32, Fault> {
        let word = self.word(offset, 4).ok_or(Fault)?;
        // SAFETY: inside the span's range, aligned.
        unsafe { engine::load_u32(word) }.ok_or(Fault)
    }

    /// Reads the word at `offset` once, as an atomic load with acquire ordering.
    ///
    /// # Errors
    /// [`Fault`] if the page is not there, or the word is not aligned or not inside.
    #[inline]
    pub fn load_u64(self, offset: usize) -> Result<u64, Fault> {
        let word = self.word(offset, 8).ok_or(Fault)?;
        // SAFETY: inside the span's range, aligned.
        unsafe { engine::load_u64(word) }.ok_or(Fault)
    }

    /// Writes the word at `offset`, as an atomic store with release ordering.
    ///
    /// # Errors
    /// [`Fault`] if the page is not there or read-only, or the word is not aligned or not inside.
    #[inline]
    pub fn store_u32(self, offset: usize, value: u32) -> Result<(), Fault> {
        let word = self.word(offset, 4).ok_or(Fault)?;
        // SAFETY: inside the span's range, aligned.
        done(unsafe { engine::store_u32(word, value) })
    }

    /// Copies words from `offset` on into `dst`, at the cost of one access. In no order: a caller
    /// that wrote them has to have published them by a word that was read before.
    ///
    /// # Errors
    /// [`Fault`] if a page is not there, or the words are not aligned or not inside; `dst` then
    /// holds anything.
    #[inline]
    pub fn read_words(self, offset: usize, dst: &mut [u32]) -> Result<(), Fault> {
        let words = self.words(offset, 4, dst.len()).ok_or(Fault)?;
        // SAFETY: `dst` is exclusively ours; the words lie inside the span's range.
        done(unsafe { engine::copy(dst.as_mut_ptr().cast(), words, size_of_val(dst)) })
    }

    /// Copies `words` here, from `offset` on, at the cost of one access. In no order: a word that
    /// is written later has to publish them.
    ///
    /// # Errors
    /// [`Fault`] if a page is not there or read-only, or the words are not aligned or not inside;
    /// what lies there then is anything.
    #[inline]
    pub fn write_words(self, offset: usize, words: &[u32]) -> Result<(), Fault> {
        let to = self.words(offset, 4, words.len()).ok_or(Fault)?;
        // SAFETY: as in `read_words`, the other way round; `words` is only read.
        done(unsafe { engine::copy(to, words.as_ptr().cast(), size_of_val(words)) })
    }

    /// Writes `N` words from `offset` on, as atomic stores with release ordering: 1, 2 or 3 of
    /// them, at no more than the cost of one.
    ///
    /// # Errors
    /// [`Fault`] if the page is not there or read-only, or the words are not aligned or not inside.
    #[inline]
    pub fn store_words<const N: usize>(self, offset: usize, words: [u32; N]) -> Result<(), Fault> {
        const { assert!(1 <= N && N <= 3) };
        let at = self.words(offset, 4, N).ok_or(Fault)?;
        // SAFETY: inside the span's range, aligned.
        done(unsafe {
            match *words.as_slice() {
                [a] => engine::store_u32(at, a),
                [a, b] => engine::store_2(at, [a, b]),
                [a, b, c] => engine::store_3(at, [a, b, c]),
                _ => true,
            }
        })
    }

    /// Writes the word at `offset` and returns what it was, as one sequentially consistent step.
    ///
    /// # Errors
    /// [`Fault`] if the page is not there or read-only, or the word is not aligned or not inside.
    #[inline]
    pub fn swap_u32(self, offset: usize, value: u32) -> Result<u32, Fault> {
        let word = self.word(offset, 4).ok_or(Fault)?;
        // SAFETY: inside the span's range, aligned.
        unsafe { engine::swap_u32(word, value) }.ok_or(Fault)
    }

    /// Writes the word at `offset`, as an atomic store with release ordering.
    ///
    /// # Errors
    /// [`Fault`] if the page is not there or read-only, or the word is not aligned or not inside.
    #[inline]
    pub fn store_u64(self, offset: usize, value: u64) -> Result<(), Fault> {
        let word = self.word(offset, 8).ok_or(Fault)?;
        // SAFETY: inside the span's range, aligned.
        done(unsafe { engine::store_u64(word, value) })
    }

    /// Asks the processor to fetch every cache line of it for reading: [`Span::take`] as many bytes
    /// as will be read. Never faults.
    #[inline]
    pub fn prefetch(self) {
        self.each_line(engine::prefetch);
    }

    /// Asks the processor to fetch every cache line of it for writing: [`Span::take`] as many bytes
    /// as will be written. Never faults.
    #[inline]
    pub fn prefetch_write(self) {
        self.each_line(engine::prefetch_write);
    }

    /// Does something with the address of each of its cache lines, and of one if it is empty.
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

/// Copies the first bytes of `src` to `dst`: as many as the shorter of the two has. What
/// overlapping spans then hold is unspecified.
///
/// # Errors
/// [`Fault`] if a page is not there or not writable; `dst` then holds anything.
#[inline]
pub fn copy(dst: Span, src: Span) -> Result<(), Fault> {
    let len = dst.len().min(src.len());
    // SAFETY: both ranges are reserved for spans and at least `len` long.
    done(unsafe { engine::copy(dst.as_ptr(), src.as_ptr(), len) })
}

/// Adds the bytes of `src` to a running Internet checksum: the one's-complement sum of its
/// **big-endian** 2-byte words (RFC 1071), so that numbers in host order (a pseudo header's
/// length, say) may be added to `initial` as they are.
///
/// `src` starts at an even offset of what is summed; an odd last byte counts as the high half of
/// a word. The result may exceed 16 bits: the caller folds it at the end, and complements it.
///
/// # Errors
/// [`Fault`] if a page is not there.
#[inline]
pub fn ones_sum(src: Span, initial: u32) -> Result<u32, Fault> {
    // SAFETY: the range is reserved for spans; `best` names an engine that the processor has.
    let sum = unsafe { engine::sum::sum(engine::sum::best(), src.as_ptr(), src.len()) };
    Ok(add_ones(initial, sum.ok_or(Fault)?))
}

/// [`ones_sum`] over private bytes.
#[must_use]
#[inline]
pub fn ones_sum_bytes(src: &[u8], initial: u32) -> u32 {
    // SAFETY: the slice is readable for its length; `best` names an engine that the processor
    // has.
    let sum = unsafe { engine::sum::sum(engine::sum::best(), src.as_ptr(), src.len()) };
    add_ones(initial, sum.unwrap_or_default())
}

/// One's-complement addition of 32 bits.
#[inline]
fn add_ones(a: u32, b: u16) -> u32 {
    let (sum, carry) = a.overflowing_add(b.into());
    // After a carry `sum` is less than the largest number: this never wraps.
    sum.wrapping_add(u32::from(carry))
}

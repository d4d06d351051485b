//! The log of written pages, which a live migration reads.

use crate::ProtocolError;
use crate::system::VhostSystem;
use abi::PAGE;
use shmem::Span;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{Ordering, fence};

/// A bit for each page of guest physical memory: set when the page was written. The front end reads
/// and clears the bits while a migration runs.
#[derive(Clone, Copy, Debug)]
pub struct DirtyLog {
    mapped: Span,
    bits: Span,
}

impl DirtyLog {
    /// Returns the log in `bytes` bytes of `file` starting at `offset`.
    ///
    /// # Errors
    /// Returns an error if the log is empty, not aligned or larger than `bytes_max`, or the system
    /// did not map it.
    pub fn new(
        file: BorrowedFd<'_>,
        offset: u64,
        bytes: u64,
        bytes_max: u64,
        system: &mut dyn VhostSystem,
    ) -> Result<Self, ProtocolError> {
        let page = PAGE as u64;
        let start = offset - offset % page;
        let end = offset.checked_add(bytes);
        let whole = end.and_then(|end| end.checked_next_multiple_of(page));
        let whole = whole
            .map(|end| end - start)
            .filter(|whole| *whole <= bytes_max);
        let refused = ProtocolError::Log { offset, bytes };
        let whole = match whole {
            Some(whole) if bytes > 0 && offset.is_multiple_of(8) => whole,
            _ => return Err(refused),
        };
        let mapped = system.map(file, start, whole).map_err(ProtocolError::Map)?;
        // Bits are set in words of four bytes.
        let bits = mapped
            .skip((offset - start) as usize)
            .take((bytes & !3) as usize);
        Ok(Self { mapped, bits })
    }

    /// Unmaps the log.
    pub(crate) fn unmap(self, system: &mut dyn VhostSystem) {
        system.unmap(self.mapped);
    }

    /// Sets the bits of all pages of a range; returns whether the log covers all of them.
    pub(crate) fn mark(&self, gpa: u64, bytes: usize) -> bool {
        let Some(last) = bytes.checked_sub(1) else {
            return true;
        };
        // The front end clears a bit and then reads the page, so the write must be visible before
        // the bit is set.
        fence(Ordering::SeqCst);
        let first = gpa / PAGE as u64;
        let last = gpa.saturating_add(last as u64) / PAGE as u64;
        (first..=last).all(|page| {
            let word = usize::try_from(page / 32 * 4).ok();
            let word = word.filter(|word| *word < self.bits.len());
            word.is_some_and(|word| self.set(word, 1 << (page % 32)).is_ok())
        })
    }

    /// Sets a bit of the word at an offset. Other devices set bits of the same word, and the front
    /// end clears all by writing zero. Therefore a bit that was lost to a concurrent swap is set
    /// again. If a bit is set twice, the front end only sends a page again.
    fn set(&self, word: usize, bit: u32) -> Result<(), shmem::Fault> {
        let before = self.bits.load_u32(word)?;
        if before & bit != 0 {
            return Ok(());
        }
        let mut put = before | bit;
        loop {
            let missed = self.bits.swap_u32(word, put)? & !put;
            if missed == 0 {
                return Ok(());
            }
            put |= missed;
        }
    }
}

//! The words of a ring: in granted pages, or in the model checker.

use super::PAGES_MAX;
use abi::PAGE;
use shmem::Span;
use std::sync::atomic::Ordering;

/// The 32-bit words of the pages of one ring.
pub trait Words {
    /// How many pages there are: a power of two, at most [`PAGES_MAX`].
    fn pages(&self) -> usize;
    /// Reads the word at `offset` (bytes, a multiple of 4) of page `page`, once.
    fn load(&self, page: usize, offset: usize, order: Ordering) -> u32;
    /// Writes it.
    fn store(&self, page: usize, offset: usize, value: u32, order: Ordering);

    /// Reads a slot of `N` words, each once.
    fn slot<const N: usize>(&self, page: usize, offset: usize) -> [u32; N];
    /// Writes the first `N` words of a slot.
    fn set_slot<const N: usize>(&self, page: usize, offset: usize, words: [u32; N]);
}

/// Not the pages of a ring: not a power of two of them, or not whole aligned pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a ring needs 1, 2, 4, 8 or 16 whole pages")]
pub struct BadPages;

/// A ring in granted pages. They may be taken away at any moment: words that are gone read as 0
/// and take no writes, so that the ring stands still, or its indices make no sense any more.
#[derive(Clone, Copy, Debug)]
pub struct Pages {
    spans: [Span; PAGES_MAX],
    count: usize,
}

impl Pages {
    /// The ring in `pages`, in order.
    ///
    /// # Errors
    /// [`BadPages`].
    pub fn new(pages: &[Span]) -> Result<Self, BadPages> {
        if !pages.len().is_power_of_two() {
            return Err(BadPages);
        }
        let mut spans = [Span::EMPTY; PAGES_MAX];
        for (to, &from) in spans
            .get_mut(..pages.len())
            .ok_or(BadPages)?
            .iter_mut()
            .zip(pages)
        {
            if from.len() != PAGE || !from.addr().is_multiple_of(PAGE) {
                return Err(BadPages);
            }
            *to = from;
        }
        Ok(Self {
            spans,
            count: pages.len(),
        })
    }
}

impl Words for Pages {
    #[inline]
    fn pages(&self) -> usize {
        self.count
    }

    #[inline]
    fn load(&self, page: usize, offset: usize, _: Ordering) -> u32 {
        // Acquire: no weaker than any order that is asked for.
        let span = self.spans.get(page);
        span.map_or(0, |span| span.load_u32(offset).unwrap_or(0))
    }

    #[inline]
    fn store(&self, page: usize, offset: usize, value: u32, _: Ordering) {
        if let Some(span) = self.spans.get(page) {
            // Release. What is gone is no loss.
            let _ = span.store_u32(offset, value);
        }
    }

    #[inline]
    fn slot<const N: usize>(&self, page: usize, offset: usize) -> [u32; N] {
        let span = self.spans.get(page);
        span.map_or([0; N], |span| span.load_words(offset).unwrap_or([0; N]))
    }

    #[inline]
    fn set_slot<const N: usize>(&self, page: usize, offset: usize, words: [u32; N]) {
        if let Some(span) = self.spans.get(page) {
            let _ = span.store_words(offset, words);
        }
    }
}

//! The words of a ring: in granted pages, or in the model checker.

use super::format::{Format, HEADER_BYTES, PAGES_MAX, SLOTS_PER_PAGE};
use super::journal::Journal;
use abi::PAGE;
use shmem::Span;
use std::sync::atomic::Ordering;

/// Bytes of the control block of a ring in the native format.
pub const CONTROL_BYTES: usize = 256;
/// Bytes from one index of a control block to the next: each has a line of the cache.
const LINE: usize = 64;

/// The index words of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Index {
    /// Requests published; the front writes it.
    ReqProd,
    /// The request that the back wants to be notified of; the back writes it.
    ReqEvent,
    /// Responses published; the back writes it.
    RspProd,
    /// The response that the front wants to be notified of; the front writes it.
    RspEvent,
}

/// What the two ends of one ring share.
pub trait Words {
    /// How it lies in its pages.
    fn format(&self) -> Format;
    /// How many pages there are: a power of two, at most [`PAGES_MAX`].
    fn pages(&self) -> usize;
    /// Reads an index, once.
    fn index(&self, index: Index, order: Ordering) -> u32;
    /// Writes it.
    fn set_index(&self, index: Index, value: u32, order: Ordering);

    /// Copies slots out of page `page`: the first of them lies at `offset`, each other one `stride`
    /// bytes (a multiple of 4) behind the one before. An index has to cover them.
    fn read<const N: usize>(
        &self,
        page: usize,
        offset: usize,
        stride: usize,
        slots: &mut [[u32; N]],
    );
    /// Writes a slot at `offset` of page `page`; an index is to cover it.
    fn write<const N: usize>(&self, page: usize, offset: usize, slot: [u32; N]);
    /// Writes slots from `offset` of page `page` on, one right behind the other. An index is to
    /// cover them.
    fn write_run<const N: usize>(&self, page: usize, offset: usize, slots: &[[u32; N]]);

    /// Slots from `index` on were copied out, and may be written over from now on.
    fn note<const N: usize>(&self, _index: u32, _slots: &[[u32; N]]) {}
    /// What was last copied out of the slot of `index`, if that was the slot of this index and is
    /// known.
    fn noted<const N: usize>(&self, _index: u32) -> Option<[u32; N]> {
        None
    }
}

/// Not the pages of a ring: not a power of two of them, or not whole aligned pages, or no control
/// block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a ring needs 1, 2, 4, 8 or 16 whole pages, and a control block if it is a native one")]
pub struct BadPages;

/// A ring in granted pages. They may be taken away at any moment: words that are gone read as 0
/// and take no writes, so that the ring stands still, or its indices make no sense any more.
#[derive(Clone, Copy, Debug)]
pub struct Pages {
    format: Format,
    spans: [Span; PAGES_MAX],
    count: usize,
    /// By [`Index`].
    indices: [Span; 4],
    journal: Journal,
}

impl Pages {
    /// The ring in `pages`, in order; `control` is its control block if it has the native format.
    ///
    /// # Errors
    /// [`BadPages`].
    pub fn new(format: Format, pages: &[Span], control: Span) -> Result<Self, BadPages> {
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
        let (block, stride) = match format {
            Format::Xen => (spans[0].take(HEADER_BYTES), 4),
            Format::Native => (control, LINE),
        };
        let mut indices = [Span::EMPTY; 4];
        for (n, index) in indices.iter_mut().enumerate() {
            *index = block.sub(n * stride, 4).ok_or(BadPages)?;
            // Aligned: its words can be read at all.
            index.u32(0).ok_or(BadPages)?;
        }
        Ok(Self {
            format,
            spans,
            count: pages.len(),
            indices,
            journal: Journal::NONE,
        })
    }

    /// Keeps a journal from now on.
    pub(super) fn keep_journal(&mut self, journal: Journal) {
        self.journal = journal;
    }

    /// The number of the slot of an index.
    fn slot(&self, index: u32) -> u32 {
        index & (self.count as u32 * SLOTS_PER_PAGE).wrapping_sub(1)
    }

    #[inline]
    pub(super) fn word(&self, index: Index) -> Span {
        let [req_prod, req_event, rsp_prod, rsp_event] = self.indices;
        match index {
            Index::ReqProd => req_prod,
            Index::ReqEvent => req_event,
            Index::RspProd => rsp_prod,
            Index::RspEvent => rsp_event,
        }
    }
}

impl Words for Pages {
    #[inline]
    fn format(&self) -> Format {
        self.format
    }

    #[inline]
    fn pages(&self) -> usize {
        self.count
    }

    #[inline]
    fn index(&self, index: Index, _: Ordering) -> u32 {
        // Acquire: no weaker than any order that is asked for.
        self.word(index).load_u32(0).unwrap_or(0)
    }

    #[inline]
    fn set_index(&self, index: Index, value: u32, _: Ordering) {
        // Release. What is gone is no loss.
        let _ = self.word(index).store_u32(0, value);
    }

    fn read<const N: usize>(
        &self,
        page: usize,
        offset: usize,
        stride: usize,
        slots: &mut [[u32; N]],
    ) {
        let span = self.spans.get(page).copied().unwrap_or(Span::EMPTY);
        if stride == N * 4 {
            if span.read_words(offset, slots.as_flattened_mut()).is_err() {
                slots.fill([0; N]);
            }
            return;
        }
        for (n, slot) in slots.iter_mut().enumerate() {
            if span.read_words(offset + n * stride, slot).is_err() {
                *slot = [0; N];
            }
        }
    }

    #[inline]
    fn write<const N: usize>(&self, page: usize, offset: usize, slot: [u32; N]) {
        if let Some(span) = self.spans.get(page) {
            let _ = span.store_words(offset, slot);
        }
    }

    #[inline]
    fn write_run<const N: usize>(&self, page: usize, offset: usize, slots: &[[u32; N]]) {
        if let Some(span) = self.spans.get(page) {
            let _ = span.write_words(offset, slots.as_flattened());
        }
    }

    #[inline]
    fn note<const N: usize>(&self, index: u32, slots: &[[u32; N]]) {
        if !self.journal.is_kept() {
            return;
        }
        for (ahead, slot) in (0..).zip(slots) {
            let index = index.wrapping_add(ahead);
            self.journal.note(self.slot(index), index, slot);
        }
    }

    fn noted<const N: usize>(&self, index: u32) -> Option<[u32; N]> {
        self.journal.noted(self.slot(index), index)
    }
}

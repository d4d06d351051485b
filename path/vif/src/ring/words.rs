//! The words of a ring, in granted pages or in the model checker's memory.

use super::format::{Format, HEADER_BYTES, PAGES_MAX, SLOTS_PER_PAGE};
use super::journal::Journal;
use abi::PAGE;
use shmem::Span;
use std::sync::atomic::Ordering;

/// Bytes of the control block of a ring in the native format.
pub const CONTROL_BYTES: usize = 256;
/// Bytes between the indices of a control block, each of which has a separate cache line.
const LINE: usize = 64;

/// The index words of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingIndex {
    /// Requests published; the front writes it.
    ReqProd,
    /// Index of the request for which the back requests a notification. The back writes it.
    ReqEvent,
    /// Responses published; the back writes it.
    RspProd,
    /// Index of the response for which the front requests a notification. The front writes it.
    RspEvent,
}

/// Memory that the two ends of a ring share.
pub trait RingMemory {
    /// Returns the ring's layout.
    fn format(&self) -> Format;
    /// Returns the number of pages: a power of two, at most [`PAGES_MAX`].
    fn pages(&self) -> usize;
    /// Reads an index, once.
    fn index(&self, index: RingIndex, order: Ordering) -> u32;
    /// Writes an index.
    fn set_index(&self, index: RingIndex, value: u32, order: Ordering);

    /// Copies slots out of page `page`: the first from `offset`, each further one `stride` bytes (a
    /// multiple of 4) behind the previous one. An index must cover them.
    fn read<const N: usize>(
        &self,
        page: usize,
        offset: usize,
        stride: usize,
        slots: &mut [[u32; N]],
    );
    /// Writes a slot at `offset` of page `page`, which an index will cover.
    fn write<const N: usize>(&self, page: usize, offset: usize, slot: [u32; N]);
    /// Writes contiguous slots, starting at `offset` of page `page`, which an index will cover.
    fn write_run<const N: usize>(&self, page: usize, offset: usize, slots: &[[u32; N]]);

    /// Records the slots starting at `index` in the journal. They were copied out and may be
    /// overwritten.
    fn record_slots<const N: usize>(&self, _index: u32, _slots: &[[u32; N]]) {}
    /// Returns the last slot recorded at the position of `index` if it has this index.
    fn recorded_slot<const N: usize>(&self, _index: u32) -> Option<[u32; N]> {
        None
    }
}

/// Error for the pages of a ring: their number is not a power of two, they are not whole aligned
/// pages, or the control block is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a ring needs 1, 2, 4, 8 or 16 whole pages, and a control block in the native format")]
pub struct BadPages;

/// A ring in granted pages, which may be revoked at any moment. Revoked words read as 0 and ignore
/// writes, so the ring stalls or its indices become invalid.
#[derive(Clone, Copy, Debug)]
pub struct GrantedRingPages {
    format: Format,
    spans: [Span; PAGES_MAX],
    count: usize,
    /// By [`RingIndex`].
    indices: [Span; 4],
    journal: Journal,
}

impl GrantedRingPages {
    /// Opens the ring in `pages`, in order; `control_block` is its control block in the native
    /// format.
    ///
    /// # Errors
    /// Returns [`BadPages`].
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
            // Words can be read only if they are aligned.
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

    /// Records taken requests in `journal` from now on.
    pub(super) fn keep_journal(&mut self, journal: Journal) {
        self.journal = journal;
    }

    /// Returns the slot of an index.
    fn slot(&self, index: u32) -> u32 {
        index & (self.count as u32 * SLOTS_PER_PAGE).wrapping_sub(1)
    }

    #[inline]
    pub(super) fn word(&self, index: RingIndex) -> Span {
        let [req_prod, req_event, rsp_prod, rsp_event] = self.indices;
        match index {
            RingIndex::ReqProd => req_prod,
            RingIndex::ReqEvent => req_event,
            RingIndex::RspProd => rsp_prod,
            RingIndex::RspEvent => rsp_event,
        }
    }
}

impl RingMemory for GrantedRingPages {
    #[inline]
    fn format(&self) -> Format {
        self.format
    }

    #[inline]
    fn pages(&self) -> usize {
        self.count
    }

    #[inline]
    fn index(&self, index: RingIndex, _: Ordering) -> u32 {
        // Acquire: no weaker than any requested order.
        self.word(index).load_u32(0).unwrap_or(0)
    }

    #[inline]
    fn set_index(&self, index: RingIndex, value: u32, _: Ordering) {
        // Release. A write to revoked memory may be lost.
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
    fn record_slots<const N: usize>(&self, index: u32, slots: &[[u32; N]]) {
        if !self.journal.exists() {
            return;
        }
        for (ahead, slot) in (0..).zip(slots) {
            let index = index.wrapping_add(ahead);
            self.journal.record_request(self.slot(index), index, slot);
        }
    }

    fn recorded_slot<const N: usize>(&self, index: u32) -> Option<[u32; N]> {
        self.journal.recorded_request(self.slot(index), index)
    }
}

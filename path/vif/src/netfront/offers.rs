//! Transfer offers of receive buffers whose pages are exchanged (NETIF-26). The grant entry of a
//! posted buffer accepts one page transfer; afterwards the same slot holds another page.

use abi::classic::GrantEntry;
use abi::{DomId, GrantRef, Handle, Slot};
use shmem::{Area, Span};
use std::sync::atomic::{AtomicU64, Ordering};

/// Pages exchanged with the driver domain, which hold the receive buffers instead of the domain's
/// own frames.
#[derive(Clone, Copy, Debug)]
pub struct ExchangedPages {
    /// The pages: one for each receive page of the layout.
    pub pages: Area,
    /// Slot of the first page in the domain's window.
    pub first: Slot,
    /// Handle that the driver domain binds.
    pub handle: Handle,
    /// The domain's grant table.
    pub table: Span,
}

/// State of a returned buffer's page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OfferResult {
    /// Exchanged for another page.
    Exchanged,
    /// Unchanged; the driver domain cannot take it any more.
    Kept,
    /// An exchange is in progress, so the driver domain's claim about the page is false.
    Moving,
}

/// Grant entries of the receive buffers; buffer number *n* is the page at slot *first + n*.
#[derive(Debug)]
pub(super) struct Offers {
    exchange: ExchangedPages,
    backend: DomId,
}

impl Offers {
    pub(super) fn new(exchange: ExchangedPages, backend: DomId) -> Self {
        Self { exchange, backend }
    }

    fn entry(&self, gref: GrantRef) -> Option<&'static AtomicU64> {
        self.exchange.table.u64(gref.index() as usize * 8)
    }

    /// Offers a buffer's page: the driver domain may replace it once.
    pub(super) fn offer(&self, gref: GrantRef, buffer: u16) {
        let slot = Slot(self.exchange.first.0.wrapping_add(u32::from(buffer)));
        if let Some(entry) = self.entry(gref) {
            // Release: the domain that takes the page sees all earlier writes to it.
            let offer = GrantEntry::transfer(self.backend, slot);
            entry.store(offer.0, Ordering::Release);
        }
    }

    /// Ends a buffer's offer, and returns what has happened to its page.
    pub(super) fn end(&self, gref: GrantRef) -> OfferResult {
        let Some(entry) = self.entry(gref) else {
            return OfferResult::Kept;
        };
        // Acquire: the page's contents are visible once the mark is.
        let now = GrantEntry(entry.load(Ordering::Acquire));
        if now.is_transferred() {
            return OfferResult::Exchanged;
        }
        let over = now.with_flags(GrantEntry::TRANSFERRED).0;
        // The monitor also takes an offer by an atomic exchange, so exactly one of the two
        // succeeds.
        let ended = now.accepts()
            && entry
                .compare_exchange(now.0, over, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok();
        if ended {
            OfferResult::Kept
        } else {
            OfferResult::Moving
        }
    }
}

#[cfg(test)]
mod tests;

//! Receive buffers whose pages change hands (NETIF-26): a posted buffer accepts a page by its entry
//! of the grant table, once, and what comes back is another page at the same place.

use abi::classic::GrantEntry;
use abi::{DomId, GrantRef, Handle, Slot};
use shmem::{Area, Span};
use std::sync::atomic::{AtomicU64, Ordering};

/// Pages that change hands with the driver domain: receive buffers lie in them, not in the domain's
/// own frames.
#[derive(Clone, Copy, Debug)]
pub struct Exchange {
    /// The pages: as many as the layout has for receive buffers.
    pub pages: Area,
    /// The slot of the domain's window that the first one is at.
    pub first: Slot,
    /// What the driver domain binds.
    pub handle: Handle,
    /// The domain's grant table.
    pub table: Span,
}

/// What has become of the page of a buffer that came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It is another one now.
    Exchanged,
    /// It is the one that was there; the driver domain cannot take it any more.
    Kept,
    /// It is changing hands just now, whatever the driver domain says.
    Moving,
}

/// The entries of the receive buffers; buffer number *n* is the page at slot *first + n*.
#[derive(Debug)]
pub(super) struct Offers {
    exchange: Exchange,
    backend: DomId,
}

impl Offers {
    pub(super) fn new(exchange: Exchange, backend: DomId) -> Self {
        Self { exchange, backend }
    }

    fn entry(&self, gref: GrantRef) -> Option<&'static AtomicU64> {
        self.exchange.table.u64(gref.index() as usize * 8)
    }

    /// From now on the driver domain may put a page in the place of a buffer's, once.
    pub(super) fn make(&self, gref: GrantRef, buffer: u16) {
        let slot = Slot(self.exchange.first.0.wrapping_add(u32::from(buffer)));
        if let Some(entry) = self.entry(gref) {
            // Release: the domain that takes the page sees everything that was done with it.
            let offer = GrantEntry::transfer(self.backend, slot);
            entry.store(offer.0, Ordering::Release);
        }
    }

    /// Ends the offer of a buffer, if it was not taken.
    pub(super) fn end(&self, gref: GrantRef) -> Fate {
        let Some(entry) = self.entry(gref) else {
            return Fate::Kept;
        };
        // Acquire: with the mark, the page is seen.
        let now = GrantEntry(entry.load(Ordering::Acquire));
        if now.is_transferred() {
            return Fate::Exchanged;
        }
        let over = now.with_flags(GrantEntry::TRANSFERRED).0;
        // The monitor takes an offer by an exchange of its own: exactly one of the two comes first.
        let ended = now.accepts()
            && entry
                .compare_exchange(now.0, over, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok();
        if ended { Fate::Kept } else { Fate::Moving }
    }
}

#[cfg(test)]
mod tests;

//! Grant mechanism `flip`, the page exchange of Xen 2: this domain delivers a frame by transferring
//! the frame's page to the guest. In return, it gets a zeroed page of the guest for a later frame.
//! As in Xen 2, frames from guests are read through mappings ([`MappedGrants`]).
//!
//! A NIC receives frames into pages of the exchange ([`crate::exchange`]). A frame in a page of
//! this guest's exchange is delivered with that page. All other frames are copied into a page of
//! the exchange first: those from other guests, those that a NIC received into another guest's
//! page, and those that may have other destinations.

use crate::exchange::Exchanges;
use crate::mapping::{MappedGrants, MappingPeriod};
use crate::window;
use abi::classic::TransferOp;
use abi::hypercall::{BindOp, HypercallKind};
use abi::{GrantStatus, Handle, PAGE, Slot};
use driver::grants::{GranterWindow, copy_to, page_range};
use nic::Frame;
use runtime::call::OwnTable;
use runtime::ledger::Hop;
use shmem::{Area, Span};
use std::cell::RefCell;
use std::rc::Rc;
use vif::grants::{CopyOut, CopySource, GrantAccess, GrantMechanism};

/// The grant mechanism for one guest. Dropping it releases this domain's end of the exchange.
#[derive(Debug)]
pub(crate) struct FlipGrants {
    guest: GranterWindow,
    map: MappedGrants,
    exchange: OwnTable,
    exchanges: Rc<RefCell<Exchanges>>,
    /// The guest's MAC.
    mac: [u8; 6],
    /// First slot of the exchange.
    first: Slot,
    /// The filled pages of the batch.
    filled: Vec<FilledPage>,
    /// Transfers of the filled pages.
    ops: Vec<TransferOp>,
    status: Vec<GrantStatus>,
}

/// A page that is ready for its transfer.
#[derive(Clone, Copy, Debug)]
struct FilledPage {
    /// Range of the caller's copies in the page.
    copies: (usize, usize),
    /// Whether the page was taken for copies, and is returned after the transfer.
    is_taken: bool,
}

impl FlipGrants {
    /// Binds the guest's exchange: a handle, the first slot at which the monitor maps the pages and
    /// the number of pages, and the exchanges of all guests. `mac` is the guest's MAC.
    ///
    /// # Errors
    /// Returns the status with which the monitor rejects the binding.
    pub(crate) fn bind(
        guest: GranterWindow,
        mac: [u8; 6],
        (exchange, (first, pages), exchanges): (Handle, (Slot, u32), Rc<RefCell<Exchanges>>),
    ) -> Result<Self, GrantStatus> {
        guest.calls.borrow_mut().bind_table(&BindOp {
            granter: guest.domain,
            table: exchange,
            first,
            // An exchange has no sub-tables. If the guest names a grant table instead, the monitor
            // rejects the binding, because these slots are too few for sub-tables.
            tables: first,
            entries: pages,
        })?;
        let exchange = OwnTable::new(&guest.calls, exchange);
        let area = page_area(&guest, first, pages).ok_or(GrantStatus::BadSlot)?;
        exchanges.borrow_mut().add(first, area);
        Ok(Self {
            map: MappedGrants::new(guest.clone(), MappingPeriod::Batch),
            exchange,
            exchanges,
            mac,
            guest,
            first,
            filled: Vec::new(),
            ops: Vec::new(),
            status: Vec::new(),
        })
    }

    fn page(&self, slot: Slot) -> Span {
        self.guest.window.page(slot.0).unwrap_or(Span::EMPTY)
    }

    /// Returns the page of the exchange that already holds the frame of these copies, which are all
    /// for one page of the guest.
    fn received(&self, copies: &[CopyOut], frames: &[Frame]) -> Option<Slot> {
        let (header, rest) = match copies {
            [header, rest] => (header, rest),
            // A frame that its header fills is not worth a page.
            _ => return None,
        };
        let (CopySource::Header { frame, from: 0 }, CopySource::Span(span)) =
            (header.source, rest.source)
        else {
            return None;
        };
        // Only this guest gets a frame that is addressed to it.
        let destination = frames.get(frame as usize)?.header().get(..6)?;
        let continues = header.offset.checked_add(header.len) == Some(rest.offset);
        let slot = self.exchanges.borrow_mut().received(span, self.first)?;
        let place = span.addr().checked_sub(self.page(slot).addr());
        let is_in_place = place == Some(usize::from(rest.offset));
        let fits = usize::from(rest.offset) + span.len() <= PAGE;
        let is_own = destination == self.mac && continues && is_in_place && fits;
        is_own.then_some(slot)
    }

    /// Prepares a page of the exchange that holds the bytes of the copies `from .. to`, which are
    /// all for one page of the guest. Returns false if no page is free.
    fn fill(
        &mut self,
        copies: &mut [CopyOut],
        frames: &[Frame],
        (from, to): (usize, usize),
    ) -> bool {
        let copies = copies.get_mut(from..to).unwrap_or_default();
        let received = self.received(copies, frames);
        let taken = || self.exchanges.borrow_mut().take(self.first);
        let Some(slot) = received.or_else(taken) else {
            return false;
        };
        let page = self.page(slot);
        for op in &mut *copies {
            op.status = match (received, op.source) {
                // The NIC has stored these bytes.
                (Some(_), CopySource::Span(_)) => GrantStatus::Okay,
                _ => page_range(Some(page), op.offset, op.len)
                    .map_or_else(|status| status, |dst| copy_to(dst, op.source, frames)),
            };
        }
        let is_taken = received.is_none();
        match copies.first() {
            Some(op) if copies.iter().all(|op| op.status == GrantStatus::Okay) => {
                clear_outside(page, copies);
                self.filled.push(FilledPage {
                    copies: (from, to),
                    is_taken,
                });
                self.ops.push(TransferOp {
                    exchange: self.exchange.handle(),
                    slot,
                    gref: op.gref,
                });
            }
            _ if is_taken => self.exchanges.borrow_mut().put(slot),
            _ => {}
        }
        true
    }

    /// Transfers the filled pages to the guest.
    fn transfer(&mut self, copies: &mut [CopyOut]) {
        self.status.clear();
        if !self.ops.is_empty() {
            let (kind, ops) = (HypercallKind::GrantTransfer, &self.ops);
            window::call(&self.guest, |calls| {
                calls.batches(kind, ops, TransferOp::encode, &mut self.status);
            });
        }
        let transfers = self.filled.iter().zip(&self.ops).zip(&self.status);
        for ((filled, op), &status) in transfers {
            if status != GrantStatus::Okay {
                let (from, to) = filled.copies;
                let rejected = copies.get_mut(from..to).unwrap_or_default();
                rejected.iter_mut().for_each(|op| op.status = status);
            }
            if filled.is_taken {
                self.exchanges.borrow_mut().put(op.slot);
            }
        }
        self.filled.clear();
        self.ops.clear();
    }
}

impl Drop for FlipGrants {
    fn drop(&mut self) {
        self.exchanges.borrow_mut().remove(self.first);
    }
}

/// Returns the pages at `pages` slots of the window from `first`.
fn page_area(guest: &GranterWindow, first: Slot, pages: u32) -> Option<Area> {
    let bytes = |pages: u32| (pages as usize).checked_mul(PAGE);
    guest.window.part(bytes(first.0)?, bytes(pages)?)
}

/// Zeroes the bytes of a page that these copies, which do not overlap, have not written. An earlier
/// frame in the page may have been longer, and for another guest.
fn clear_outside(page: Span, copies: &[CopyOut]) {
    let mut end = 0;
    for op in copies {
        let (from, to) = (
            usize::from(op.offset),
            usize::from(op.offset) + usize::from(op.len),
        );
        if let Some(gap) = page.sub(end, from.saturating_sub(end)) {
            clear(gap);
        }
        end = end.max(to);
    }
    clear(page.skip(end));
}

/// Zeroes memory.
fn clear(span: Span) {
    // This fails only if the page is inaccessible, and then its bytes cannot leak.
    let _ = span.fill(0);
}

impl GrantMechanism for FlipGrants {
    fn read_begin(&mut self, accesses: &mut [GrantAccess]) {
        self.map.read_begin(accesses);
    }

    fn read_end(&mut self) {
        self.map.read_end();
    }

    fn write(&mut self, copies: &mut [CopyOut], frames: &[Frame]) {
        let before = self.guest.ledger.enter(Hop::Copy);
        let mut from = 0;
        while let Some(gref) = copies.get(from).map(|op| op.gref) {
            let rest = copies.iter().skip(from);
            let to = from + rest.take_while(|op| op.gref == gref).count();
            if !self.fill(copies, frames, (from, to)) {
                self.guest.ledger.enter(Hop::Grant);
                self.transfer(copies);
                self.guest.ledger.enter(Hop::Copy);
                self.fill(copies, frames, (from, to));
            }
            from = to;
        }
        self.guest.ledger.enter(Hop::Grant);
        self.transfer(copies);
        self.guest.ledger.enter(before);
    }
}

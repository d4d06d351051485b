//! Grant mechanism `flip`, page exchange as in Xen 2: a frame is delivered together with its page.
//! In return this domain gets the guest's old page, zeroed, for a later frame. Frames from guests
//! are mapped, as in Xen 2 ([`MappedGrants`]).
//!
//! A frame is first copied into a page of the exchange, because its buffer belongs to the NIC,
//! holds other frames as well, and may be for several guests. The copy costs little compared with
//! the change of two page tables.

use crate::mapping::{MappedGrants, MappingPeriod};
use crate::window;
use abi::classic::TransferOp;
use abi::hypercall::{Bind, HypercallKind};
use abi::{GrantStatus, Handle, Slot};
use driver::grants::{GranterWindow, copy_to, part};
use nic::Frame;
use runtime::call::OwnTable;
use runtime::ledger::Hop;
use shmem::Span;
use vif::grants::{CopyOut, GrantAccess, GrantMechanism};

/// The mechanism, for one guest. Dropping it ends its part in the exchange.
#[derive(Debug)]
pub(crate) struct FlipGrants {
    guest: GranterWindow,
    map: MappedGrants,
    exchange: OwnTable,
    /// First slot of the exchange, and its number of pages.
    first: Slot,
    pages: u32,
    /// Slot of the next page to transfer, relative to the first.
    next: u32,
    /// The current batch: the copies in each filled page, and the transfers.
    filled: Vec<(usize, usize)>,
    ops: Vec<TransferOp>,
    status: Vec<GrantStatus>,
}

impl FlipGrants {
    /// Binds the guest's exchange of `pages` pages, starting at slot `first`.
    ///
    /// # Errors
    /// The monitor's status.
    pub(crate) fn bind(
        guest: GranterWindow,
        exchange: Handle,
        first: Slot,
        pages: u32,
    ) -> Result<Self, GrantStatus> {
        guest.calls.borrow_mut().bind_table(&Bind {
            granter: guest.domain,
            table: exchange,
            first,
            // An exchange has no sub-tables. If the guest names a table instead, the monitor finds
            // no room for its sub-tables here.
            tables: first,
            entries: pages,
        })?;
        Ok(Self {
            map: MappedGrants::new(guest.clone(), MappingPeriod::Batch),
            exchange: OwnTable::new(&guest.calls, exchange),
            guest,
            first,
            pages,
            next: 0,
            filled: Vec::new(),
            ops: Vec::new(),
            status: Vec::new(),
        })
    }

    /// Returns a page of the exchange: zero except for its current contents.
    fn page(&self, slot: Slot) -> Span {
        self.guest.window.page(slot.0).unwrap_or(Span::EMPTY)
    }

    /// Fills a page with the copies `from .. to`, which are all for one page of the guest.
    fn fill(&mut self, copies: &mut [CopyOut], frames: &[Frame], (from, to): (usize, usize)) {
        let slot = Slot(self.first.0 + self.next);
        self.next = (self.next + 1) % self.pages;
        let page = self.page(slot);
        let copies = copies.get_mut(from..to).unwrap_or_default();
        for op in &mut *copies {
            op.status = part(Some(page), op.offset, op.len)
                .map_or_else(|status| status, |dst| copy_to(dst, op.source, frames));
        }
        match copies.first() {
            Some(op) if copies.iter().all(|op| op.status == GrantStatus::Okay) => {
                self.filled.push((from, to));
                self.ops.push(TransferOp {
                    exchange: self.exchange.handle(),
                    slot,
                    gref: op.gref,
                });
            }
            // No page may keep an incomplete frame.
            _ => clear(page),
        }
    }

    /// Transfers the filled pages.
    fn transfer(&mut self, copies: &mut [CopyOut]) {
        self.status.clear();
        if !self.ops.is_empty() {
            let (kind, ops) = (HypercallKind::GrantTransfer, &self.ops);
            window::call(&self.guest, |calls| {
                calls.batches(kind, ops, TransferOp::encode, &mut self.status);
            });
        }
        let given = self.filled.iter().zip(&self.ops).zip(&self.status);
        for ((&(from, to), op), &status) in given {
            if status != GrantStatus::Okay {
                clear(self.page(op.slot));
                let refused = copies.get_mut(from..to).unwrap_or_default();
                refused.iter_mut().for_each(|op| op.status = status);
            }
        }
        self.filled.clear();
        self.ops.clear();
    }
}

/// Zeroes a page again.
fn clear(page: Span) {
    // Clearing fails only if the page is inaccessible, and then it cannot leak.
    let _ = page.fill(0);
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
            // The number of pages limits the transfers per hypercall.
            if self.ops.len() == self.pages as usize {
                self.guest.ledger.enter(Hop::Grant);
                self.transfer(copies);
                self.guest.ledger.enter(Hop::Copy);
            }
            let rest = copies.iter().skip(from);
            let to = from + rest.take_while(|op| op.gref == gref).count();
            self.fill(copies, frames, (from, to));
            from = to;
        }
        self.guest.ledger.enter(Hop::Grant);
        self.transfer(copies);
        self.guest.ledger.enter(before);
    }
}

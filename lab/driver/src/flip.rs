//! Grant mechanism `flip`, the page exchange of Xen 2: this domain delivers a frame by transferring
//! the frame's page to the guest. In return, it gets a zeroed page of the guest for a later frame.
//! As in Xen 2, frames from guests are read through mappings ([`MappedGrants`]).
//!
//! A frame is first copied into a page of the exchange, because its buffer belongs to the NIC,
//! contains other frames, and may be for several guests. The copy costs little compared with the
//! change of two page tables.

use crate::mapping::{MappedGrants, MappingPeriod};
use crate::window;
use abi::classic::TransferOp;
use abi::hypercall::{BindOp, HypercallKind};
use abi::{GrantStatus, Handle, Slot};
use driver::grants::{GranterWindow, copy_to, page_range};
use nic::Frame;
use runtime::call::OwnTable;
use runtime::ledger::Hop;
use shmem::Span;
use vif::grants::{CopyOut, GrantAccess, GrantMechanism};

/// The grant mechanism for one guest. Dropping it releases this domain's end of the exchange.
#[derive(Debug)]
pub(crate) struct FlipGrants {
    guest: GranterWindow,
    map: MappedGrants,
    exchange: OwnTable,
    /// First slot of the exchange.
    first: Slot,
    /// Number of pages of the exchange.
    pages: u32,
    /// Slot of the next page to transfer, relative to the first slot.
    next: u32,
    /// Range of the caller's copies in each filled page of the batch.
    filled: Vec<(usize, usize)>,
    /// Transfers of the filled pages.
    ops: Vec<TransferOp>,
    status: Vec<GrantStatus>,
}

impl FlipGrants {
    /// Binds the guest's exchange of `pages` pages. The monitor maps them at the slots from
    /// `first`.
    ///
    /// # Errors
    /// Returns the status with which the monitor rejects the binding.
    pub(crate) fn bind(
        guest: GranterWindow,
        exchange: Handle,
        first: Slot,
        pages: u32,
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

    /// Returns the page at a slot of the exchange. It is zeroed, apart from the bytes copied into
    /// it.
    fn page(&self, slot: Slot) -> Span {
        self.guest.window.page(slot.0).unwrap_or(Span::EMPTY)
    }

    /// Executes the copies `from .. to`, which are all for one page of the guest, into a page of
    /// the exchange.
    fn fill(&mut self, copies: &mut [CopyOut], frames: &[Frame], (from, to): (usize, usize)) {
        let slot = Slot(self.first.0 + self.next);
        self.next = (self.next + 1) % self.pages;
        let page = self.page(slot);
        let copies = copies.get_mut(from..to).unwrap_or_default();
        for op in &mut *copies {
            op.status = page_range(Some(page), op.offset, op.len)
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
            // Bytes of an incomplete frame must not remain in the page.
            _ => clear(page),
        }
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
        for ((&(from, to), op), &status) in transfers {
            if status != GrantStatus::Okay {
                clear(self.page(op.slot));
                let rejected = copies.get_mut(from..to).unwrap_or_default();
                rejected.iter_mut().for_each(|op| op.status = status);
            }
        }
        self.filled.clear();
        self.ops.clear();
    }
}

/// Zeroes a page.
fn clear(page: Span) {
    // This fails only if the page is inaccessible, and then its bytes cannot leak.
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

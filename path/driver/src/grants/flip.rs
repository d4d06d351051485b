//! Pages change hands: what a guest gets comes with the page that holds it. The page that was in
//! its place, zeroed, becomes this domain's, for a frame to come. Xen 2 did so. It mapped what
//! guests sent, and so does this ([`Map`]).
//!
//! A frame is first copied into a page of the exchange. Its NIC's buffer belongs to the NIC, holds
//! other frames too, and may be for several guests. Beside two page tables that change, the copy
//! costs little.

use super::access::{Guest, copy_to, part};
use super::map::Map;
use abi::classic::Transfer;
use abi::hypercall::Bind;
use abi::{GrantStatus, Handle, Slot};
use nic::Frame;
use runtime::ledger::Hop;
use shmem::Span;
use vif::grants::{Access, CopyOut, Grants};

/// The mechanism, for one guest. Its part in the exchange ends with the value.
#[derive(Debug)]
pub struct Flip {
    guest: Guest,
    map: Map,
    exchange: Handle,
    /// The exchange's slots: the first, and how many.
    first: Slot,
    pages: u32,
    /// The slot whose page is given next, counted from the first.
    next: u32,
    /// The batch under way: which copies are in a page, and its transfer.
    filled: Vec<(usize, usize)>,
    ops: Vec<Transfer>,
    status: Vec<GrantStatus>,
}

impl Flip {
    /// Binds the guest's exchange of `pages` pages, from slot `first` on.
    ///
    /// # Errors
    /// What the monitor says.
    pub fn bind(
        guest: Guest,
        exchange: Handle,
        first: Slot,
        pages: u32,
    ) -> Result<Self, GrantStatus> {
        guest.calls.borrow_mut().bind_table(&Bind {
            granter: guest.domain,
            table: exchange,
            first,
            // An exchange has no sub-tables. If the guest names a table instead, the monitor
            // finds no room for it here.
            tables: first,
            entries: pages,
        })?;
        Ok(Self {
            map: Map::new(guest.clone()),
            guest,
            exchange,
            first,
            pages,
            next: 0,
            filled: Vec::new(),
            ops: Vec::new(),
            status: Vec::new(),
        })
    }

    /// A page of the exchange's: all zero but for what is in it now.
    fn page(&self, slot: Slot) -> Span {
        self.guest.window.page(slot.0).unwrap_or(Span::EMPTY)
    }

    /// Fills a page for the copies `from .. to`, all to one page of the guest's.
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
                self.ops.push(Transfer {
                    exchange: self.exchange,
                    slot,
                    gref: op.gref,
                });
            }
            // Half a frame stays in no page.
            _ => clear(page),
        }
    }

    /// Transfers the pages that are filled.
    fn transfer(&mut self, copies: &mut [CopyOut]) {
        self.status.clear();
        if !self.ops.is_empty() {
            self.guest
                .call(|calls| calls.transfer(&self.ops, &mut self.status));
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

/// Makes a page as it was when it came.
fn clear(page: Span) {
    // A page that is not there cannot be seen either.
    let _ = page.fill(0);
}

impl Drop for Flip {
    fn drop(&mut self) {
        // A guest that is gone has left this domain its part all the same.
        let _ = self.guest.calls.borrow_mut().end_table(self.exchange);
    }
}

impl Grants for Flip {
    fn read_begin(&mut self, accesses: &mut [Access]) {
        self.map.read_begin(accesses);
    }

    fn read_end(&mut self) {
        self.map.read_end();
    }

    fn write(&mut self, copies: &mut [CopyOut], frames: &[Frame]) {
        let before = self.guest.ledger.enter(Hop::Copy);
        let mut from = 0;
        while let Some(gref) = copies.get(from).map(|op| op.gref) {
            // As many pages at a time as there are to give.
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

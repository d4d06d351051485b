//! A netfront's tables of counted grants, which use hypercalls, and its exchanged pages. Entry *n*
//! is always page *n*, so that adjacent pages share one mapping.

use abi::counted::Revocation;
use abi::hypercall::{CreateGrantOp, RevokeOp};
use abi::{ConnId, DomId, GrantRef, GrantStatus, Handle, PAGE, Slot};
use runtime::call::{Calls, OwnTable};
use shmem::{Area, Span};
use std::cell::RefCell;
use std::rc::Rc;
use vif::netfront::{ExchangedPages, GrantError, GrantedPage, Granter};

/// The table of counted grants of one connection. Dropping it ends the table.
#[derive(Debug)]
pub struct CountedTable {
    calls: Rc<RefCell<Calls>>,
    handle: Handle,
    /// The frame that entry 0 grants.
    first_frame: u32,
}

impl CountedTable {
    /// Creates a table for connection `conn`, of `entries` entries, for frames starting at
    /// `first_frame`.
    ///
    /// # Errors
    /// Returns the status with which the monitor rejects the call.
    pub fn create(
        calls: &Rc<RefCell<Calls>>,
        conn: ConnId,
        entries: u32,
        first_frame: u32,
    ) -> Result<Self, GrantStatus> {
        let handle = calls.borrow_mut().create_table(conn, entries)?;
        Ok(Self {
            calls: Rc::clone(calls),
            handle,
            first_frame,
        })
    }
}

impl Granter for CountedTable {
    /// Ignores `to`: the grantee was named when the table was created.
    fn enter(
        &mut self,
        _: DomId,
        pages: &[GrantedPage],
        made: &mut Vec<Result<GrantRef, GrantError>>,
    ) {
        let ops: Vec<_> = pages
            .iter()
            .map(|page| CreateGrantOp {
                table: self.handle,
                index: page
                    .entry
                    .unwrap_or_else(|| page.frame.wrapping_sub(self.first_frame)),
                frame: page.frame,
                readonly: page.readonly,
                io: page.io,
            })
            .collect();
        let mut outcomes = Vec::with_capacity(ops.len());
        self.calls.borrow_mut().create_grants(&ops, &mut outcomes);
        made.extend(
            outcomes
                .into_iter()
                .map(|made| made.map_err(GrantError::Refused)),
        );
    }

    /// Revokes by force, even while the other end uses the page.
    fn revoke_pages(&mut self, grefs: &[GrantRef], left: &mut Vec<bool>) {
        let ops: Vec<_> = grefs
            .iter()
            .map(|&gref| RevokeOp {
                table: self.handle,
                gref,
                how: Revocation::Force,
            })
            .collect();
        let mut statuses = Vec::with_capacity(ops.len());
        self.calls.borrow_mut().revoke_grants(&ops, &mut statuses);
        left.extend(
            statuses
                .into_iter()
                .map(|status| status == GrantStatus::Okay),
        );
    }

    fn revoke_if_unused(&mut self, gref: GrantRef) -> bool {
        let op = RevokeOp {
            table: self.handle,
            gref,
            how: Revocation::Refuse,
        };
        let mut statuses = Vec::with_capacity(1);
        self.calls.borrow_mut().revoke_grants(&[op], &mut statuses);
        statuses.first() == Some(&GrantStatus::Okay)
    }

    /// Ends all grants, including those that the other end is using.
    fn end(&mut self, grefs: &mut Vec<GrantRef>) {
        if self.handle != Handle(0) {
            // Ending fails only if the table no longer exists.
            let _ = self.calls.borrow_mut().end_table(self.handle);
            self.handle = Handle(0);
        }
        grefs.clear();
    }

    fn table(&self) -> Handle {
        self.handle
    }
}

impl Drop for CountedTable {
    fn drop(&mut self) {
        self.end(&mut Vec::new());
    }
}

/// The exchanged pages of one connection. Dropping them ends this domain's part of the exchange.
#[derive(Debug)]
pub struct FlipPages {
    own: OwnTable,
    pages: Area,
    first: Slot,
}

impl FlipPages {
    /// Creates an exchange of `pages` pages for connection `conn`, at slots of this domain's window
    /// starting at `first`.
    ///
    /// # Errors
    /// Returns the status with which the monitor rejects the call.
    pub fn create(
        calls: &Rc<RefCell<Calls>>,
        conn: ConnId,
        (window, first, count): (Area, Slot, u32),
    ) -> Result<Self, GrantStatus> {
        let pages = window
            .part(first.0 as usize * PAGE, count as usize * PAGE)
            .ok_or(GrantStatus::BadSlot)?;
        let handle = calls.borrow_mut().create_exchange(conn, count, first)?;
        Ok(Self {
            own: OwnTable::new(calls, handle),
            pages,
            first,
        })
    }

    /// Returns the exchange for a netfront, whose offers are entries of `table`.
    #[must_use]
    pub fn exchange(&self, table: Span) -> ExchangedPages {
        ExchangedPages {
            pages: self.pages,
            first: self.first,
            handle: self.own.handle(),
            table,
        }
    }
}

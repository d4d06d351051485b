//! A netfront's pages, granted by the new mechanism: by hypercall, once, in the order in which
//! they lie, so that they are one mapping.

use crate::call::Calls;
use abi::hypercall::Create;
use abi::{ConnId, DomId, GrantRef, GrantStatus, Handle};
use std::cell::RefCell;
use std::rc::Rc;
use vif::netfront::{GrantError, GrantedPage, Granter};

/// The table of one connection. Ends with the value.
#[derive(Debug)]
pub struct NewTable {
    calls: Rc<RefCell<Calls>>,
    handle: Handle,
    /// Entries that were used.
    used: u32,
}

impl NewTable {
    /// A table for connection `conn`, of `entries` entries.
    ///
    /// # Errors
    /// What the monitor says.
    pub fn create(
        calls: &Rc<RefCell<Calls>>,
        conn: ConnId,
        entries: u32,
    ) -> Result<Self, GrantStatus> {
        let handle = calls.borrow_mut().create_table(conn, entries)?;
        Ok(Self {
            calls: Rc::clone(calls),
            handle,
            used: 0,
        })
    }
}

impl Granter for NewTable {
    /// Whom the table is for was said when it was made.
    fn grant(
        &mut self,
        _: DomId,
        pages: &[GrantedPage],
        grefs: &mut Vec<GrantRef>,
    ) -> Result<(), GrantError> {
        let ops: Vec<_> = (self.used..)
            .zip(pages)
            .map(|(index, page)| Create {
                table: self.handle,
                index,
                frame: page.frame,
                readonly: page.readonly,
            })
            .collect();
        self.used = self.used.saturating_add(pages.len() as u32);
        let mut made = Vec::with_capacity(ops.len());
        self.calls.borrow_mut().create_grants(&ops, &mut made);
        for gref in made {
            grefs.push(gref.map_err(GrantError::Refused)?);
        }
        Ok(())
    }

    /// All of them, whatever the other end does with them just now.
    fn end(&mut self, grefs: &mut Vec<GrantRef>) {
        if self.handle != Handle(0) {
            // Only a table that is not there cannot be ended.
            let _ = self.calls.borrow_mut().end_table(self.handle);
            self.handle = Handle(0);
        }
        grefs.clear();
    }

    fn table(&self) -> Handle {
        self.handle
    }
}

impl Drop for NewTable {
    fn drop(&mut self) {
        self.end(&mut Vec::new());
    }
}

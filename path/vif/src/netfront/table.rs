//! Granting of a netfront's pages, by its domain's grant table or by another mechanism.

use abi::classic::GrantEntry;
use abi::{DomId, GrantRef, GrantStatus, Handle, Slot};
use shmem::Span;
use std::sync::atomic::Ordering;

/// Error of making or ending a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrantError {
    /// Every entry is used.
    #[error("the grant table is full")]
    Full,
    /// The other domain maps the page right now; try again later.
    #[error("the grant is in use")]
    InUse,
    /// The reference is not in the table.
    #[error("the grant does not exist")]
    NoSuch,
    /// The monitor rejected the call.
    #[error("the monitor rejected the grant: {}", .0.name())]
    Refused(GrantStatus),
}

/// A page that a netfront grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantedPage {
    /// The domain's frame.
    pub frame: u32,
    /// Whether the grant is read-only.
    pub readonly: bool,
    /// Whether a device of the backend may access the page as well.
    pub io: bool,
    /// Whether the page is exchanged: `frame` is then its slot in the domain's window, and the
    /// reference accepts no page until the netfront offers it.
    pub exchanged: bool,
    /// Table entry to use, if the granter chooses entries; `None`: the frame's entry.
    pub entry: Option<u32>,
}

/// One grant mechanism, from the granter's side, for one netfront.
pub trait Granter {
    /// Grants `pages` to domain `to`; appends one result for each to `made`, in order.
    fn enter(
        &mut self,
        to: DomId,
        pages: &[GrantedPage],
        made: &mut Vec<Result<GrantRef, GrantError>>,
    );

    /// Revokes single pages; appends one success flag for each to `left`, in order. After success
    /// the other domain cannot access the page.
    fn revoke_pages(&mut self, grefs: &[GrantRef], left: &mut Vec<bool>);

    /// Revokes a page unless the other domain is using it, and returns whether it did. If not, the
    /// grant stays.
    fn revoke_if_unused(&mut self, gref: GrantRef) -> bool;

    /// Ends the netfront's grants and removes them from `grefs`; those in use stay in it.
    fn end(&mut self, grefs: &mut Vec<GrantRef>);

    /// Returns the table of counted grants that the references belong to; 0: the classic one.
    fn table(&self) -> Handle;

    /// Grants all of `pages` like [`Granter::enter`], or returns an error. Appends the references
    /// to `grefs`.
    ///
    /// # Errors
    /// Returns the first [`GrantError`]; `grefs` then holds the grants that were made.
    fn grant(
        &mut self,
        to: DomId,
        pages: &[GrantedPage],
        grefs: &mut Vec<GrantRef>,
    ) -> Result<(), GrantError> {
        let mut made = Vec::with_capacity(pages.len());
        self.enter(to, pages, &mut made);
        let mut outcome = Ok(());
        for gref in made {
            match gref {
                Ok(gref) => grefs.push(gref),
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        outcome
    }
}

/// Allocates entries of one domain's grant table. Entry 0 stays unused, so that a zero reference is
/// never valid.
#[derive(Debug)]
pub struct GrantTable {
    table: Span,
    free: Vec<u32>,
}

impl GrantTable {
    /// Opens the table in `table` (8 bytes per entry). Existing grants stay valid.
    #[must_use]
    pub fn new(table: Span) -> Self {
        let entries = (table.len() / 8).min(1 << GrantRef::INDEX_BITS) as u32;
        Self {
            table,
            free: (1..entries).rev().collect(),
        }
    }

    /// Returns the table.
    #[must_use]
    pub fn span(&self) -> Span {
        self.table
    }

    /// Returns the number of free entries.
    #[must_use]
    pub fn available(&self) -> usize {
        self.free.len()
    }

    /// Grants page `frame` of this domain to domain `to`.
    ///
    /// # Errors
    /// Returns [`GrantError::Full`].
    pub fn grant(&mut self, to: DomId, frame: u32, readonly: bool) -> Result<GrantRef, GrantError> {
        self.put(GrantEntry::access(to, frame, readonly))
    }

    fn put(&mut self, granted: GrantEntry) -> Result<GrantRef, GrantError> {
        let index = self.free.pop().ok_or(GrantError::Full)?;
        let entry = self
            .table
            .u64(index as usize * 8)
            .ok_or(GrantError::NoSuch)?;
        // Release: a peer that sees the grant sees the prepared page.
        entry.store(granted.0, Ordering::Release);
        Ok(GrantRef(index))
    }

    /// Ends a grant.
    ///
    /// # Errors
    /// Returns [`GrantError::InUse`]; the grant then stays.
    pub fn end(&mut self, gref: GrantRef) -> Result<(), GrantError> {
        let index = gref.index();
        let entry = self
            .table
            .u64(index as usize * 8)
            .ok_or(GrantError::NoSuch)?;
        let mut now = entry.load(Ordering::Relaxed);
        loop {
            let granted = GrantEntry(now);
            let is_over = granted.accepts() || granted.is_transferred();
            if !granted.permits() && granted.flags() & GrantEntry::ACCEPT_TRANSFER == 0 {
                return Err(GrantError::NoSuch);
            }
            if !is_over && (granted.in_use() || !granted.permits()) {
                return Err(GrantError::InUse);
            }
            // The monitor also sets the in-use flags by an atomic exchange, so exactly one of the
            // two succeeds.
            match entry.compare_exchange_weak(
                now,
                GrantEntry::INVALID.0,
                Ordering::AcqRel,
                Ordering::Relaxed,
            ) {
                Ok(_) => break,
                Err(other) => now = other,
            }
        }
        self.free.push(index);
        Ok(())
    }
}

impl Granter for GrantTable {
    fn enter(
        &mut self,
        to: DomId,
        pages: &[GrantedPage],
        made: &mut Vec<Result<GrantRef, GrantError>>,
    ) {
        made.extend(pages.iter().map(|page| match page.exchanged {
            true => {
                let nothing = GrantEntry::transfer(to, Slot(page.frame));
                self.put(nothing.with_flags(GrantEntry::TRANSFERRED))
            }
            false => self.grant(to, page.frame, page.readonly),
        }));
    }

    fn revoke_pages(&mut self, grefs: &[GrantRef], left: &mut Vec<bool>) {
        left.extend(grefs.iter().map(|&gref| Self::end(self, gref).is_ok()));
    }

    fn revoke_if_unused(&mut self, gref: GrantRef) -> bool {
        Self::end(self, gref).is_ok()
    }

    fn end(&mut self, grefs: &mut Vec<GrantRef>) {
        grefs.retain(|&gref| Self::end(self, gref) == Err(GrantError::InUse));
    }

    fn table(&self) -> Handle {
        Handle(0)
    }
}

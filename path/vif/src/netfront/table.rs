//! How a netfront's pages are granted: by its domain's own grant table, or however else.

use abi::classic::GrantEntry;
use abi::{DomId, GrantRef, GrantStatus, Handle, Slot};
use shmem::Span;
use std::sync::atomic::Ordering;

/// Why a grant was not made or not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrantError {
    /// Every entry is used.
    #[error("the grant table is full")]
    Full,
    /// The page is mapped by the other domain just now; try again later.
    #[error("the grant is in use")]
    InUse,
    /// No entry of the table.
    #[error("no such grant")]
    NoSuch,
    /// The monitor does not make it.
    #[error("the monitor refused: {}", .0.name())]
    Refused(GrantStatus),
}

/// A page that a netfront grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantedPage {
    /// The domain's frame.
    pub frame: u32,
    /// Not to be written.
    pub readonly: bool,
    /// It changes hands: `frame` is its slot of the domain's window, and the reference accepts
    /// nothing before it is offered.
    pub exchanged: bool,
    /// The entry that it takes, of a table whose entries the granter chooses; none: the one that
    /// its frame has.
    pub entry: Option<u32>,
}

/// One grant mechanism, from the granter's side, for one netfront.
pub trait Granter {
    /// Lets domain `to` use `pages`; one outcome for each, in order, is appended to `made`.
    fn enter(
        &mut self,
        to: DomId,
        pages: &[GrantedPage],
        made: &mut Vec<Result<GrantRef, GrantError>>,
    );

    /// Takes single pages back; whether it could is appended to `left`, one for each, in order.
    /// From then on the other domain cannot reach the page.
    fn leave(&mut self, grefs: &[GrantRef], left: &mut Vec<bool>);

    /// Takes a page back if the other domain does not use it now; whether it could. If not, the
    /// grant goes on.
    fn leave_idle(&mut self, gref: GrantRef) -> bool;

    /// Ends the netfront's grants and takes them out of `grefs`; those that are in use and cannot
    /// be ended now stay in it.
    fn end(&mut self, grefs: &mut Vec<GrantRef>);

    /// The table of the new mechanism that the references are of; 0: the classic one.
    fn table(&self) -> Handle;

    /// [`Granter::enter`], all or an error; the references are appended to `grefs`.
    ///
    /// # Errors
    /// The first [`GrantError`]; `grefs` has those that were made.
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

/// Gives out the entries of one domain's grant table. Entry 0 stays unused, so that a reference
/// of zeros is never one.
#[derive(Debug)]
pub struct GrantTable {
    table: Span,
    free: Vec<u32>,
}

impl GrantTable {
    /// The table in `table`, 8 bytes an entry; whatever it granted before stays granted.
    #[must_use]
    pub fn new(table: Span) -> Self {
        let entries = (table.len() / 8).min(1 << GrantRef::INDEX_BITS) as u32;
        Self {
            table,
            free: (1..entries).rev().collect(),
        }
    }

    /// The table.
    #[must_use]
    pub fn span(&self) -> Span {
        self.table
    }

    /// Entries that can be given out.
    #[must_use]
    pub fn available(&self) -> usize {
        self.free.len()
    }

    /// Lets domain `to` use page `frame` of this domain.
    ///
    /// # Errors
    /// [`GrantError::Full`].
    pub fn grant(&mut self, to: DomId, frame: u32, readonly: bool) -> Result<GrantRef, GrantError> {
        self.put(GrantEntry::access(to, frame, readonly))
    }

    fn put(&mut self, granted: GrantEntry) -> Result<GrantRef, GrantError> {
        let index = self.free.pop().ok_or(GrantError::Full)?;
        let entry = self
            .table
            .u64(index as usize * 8)
            .ok_or(GrantError::NoSuch)?;
        // Release: who uses the grant sees the page as it was prepared.
        entry.store(granted.0, Ordering::Release);
        Ok(GrantRef(index))
    }

    /// Ends a grant.
    ///
    /// # Errors
    /// [`GrantError::InUse`]: it then goes on.
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
            // The monitor sets the in-use flags with an exchange of its own: exactly one of the
            // two comes first.
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

    fn leave(&mut self, grefs: &[GrantRef], left: &mut Vec<bool>) {
        left.extend(grefs.iter().map(|&gref| Self::end(self, gref).is_ok()));
    }

    fn leave_idle(&mut self, gref: GrantRef) -> bool {
        Self::end(self, gref).is_ok()
    }

    fn end(&mut self, grefs: &mut Vec<GrantRef>) {
        grefs.retain(|&gref| Self::end(self, gref) == Err(GrantError::InUse));
    }

    fn table(&self) -> Handle {
        Handle(0)
    }
}

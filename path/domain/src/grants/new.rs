//! The new mechanism: the guest has its pages mapped, this domain counts its uses of them, and no
//! hypercall is made (`shmem::uses` has the protocol).

use super::{Guest, copy_to};
use crate::ledger::Hop;
use abi::hypercall::Bind;
use abi::ngm::{status_bytes, translation_bytes};
use abi::{GrantRef, GrantStatus, Handle, PAGE, Slot};
use nic::Frame;
use shmem::Span;
use shmem::uses::{self, Words};
use vif::grants::{Access, CopyOut, Grants};

/// Both sub-tables of one guest.
#[derive(Clone, Copy, Debug)]
struct Table {
    translation: Span,
    status: Span,
}

impl Table {
    #[inline]
    fn words(&self, gref: GrantRef) -> Option<Words> {
        Words::of(self.translation, self.status, gref.index())
    }

    /// Counts a use; whether the entry permits it. [`uses::settle`] and [`Table::holds`] follow.
    #[inline]
    fn claim(&self, gref: GrantRef, write: bool) -> bool {
        self.words(gref)
            .is_some_and(|words| uses::claim(&words, gref, write))
    }

    #[inline]
    fn holds(&self, gref: GrantRef, write: bool) -> bool {
        self.words(gref)
            .is_some_and(|words| uses::holds(&words, gref, write))
    }

    #[inline]
    fn release(&self, gref: GrantRef) {
        if let Some(words) = self.words(gref) {
            uses::release(&words);
        }
    }
}

/// The mechanism, for one guest. Whatever it holds ends with the value.
///
/// Without `COUNTED` nothing is checked and nothing is counted: a page that is not granted
/// faults, and one that is can only be taken back by force.
#[derive(Debug)]
pub struct New<const COUNTED: bool> {
    guest: Guest,
    handle: Handle,
    table: Table,
    /// Uses that last as long as the connection: the rings'.
    kept: Vec<GrantRef>,
    /// Uses of the batch that is being read.
    reading: Vec<GrantRef>,
    /// Uses of the batch that is being written; empty in between.
    writing: Vec<GrantRef>,
    /// Uses of pages that a device may write now.
    posted: Vec<GrantRef>,
}

impl<const COUNTED: bool> New<COUNTED> {
    /// Binds the guest's table `handle`: its pages to the guest's slots, its sub-tables from
    /// slot `tables` on.
    ///
    /// # Errors
    /// What the monitor says.
    pub fn bind(guest: Guest, handle: Handle, tables: Slot) -> Result<Self, GrantStatus> {
        let entries = guest.slots;
        let (translation, status) = (translation_bytes(entries), status_bytes(entries));
        let part = |offset, bytes| {
            let at = (tables.0 as usize).checked_mul(PAGE)?.checked_add(offset)?;
            guest.window.at(at, bytes)
        };
        let table = Table {
            translation: part(0, translation).ok_or(GrantStatus::BadSlot)?,
            status: part(translation, status).ok_or(GrantStatus::BadSlot)?,
        };
        guest.calls.borrow_mut().bind_table(&Bind {
            granter: guest.domain,
            table: handle,
            first: guest.first,
            tables,
            entries,
        })?;
        Ok(Self {
            guest,
            handle,
            table,
            kept: Vec::new(),
            reading: Vec::new(),
            writing: Vec::new(),
            posted: Vec::new(),
        })
    }

    /// A page that is in use as long as this exists.
    ///
    /// # Errors
    /// `BadRef`: it is not granted, or not for writing.
    pub fn keep(&mut self, gref: GrantRef) -> Result<Span, GrantStatus> {
        let page = self
            .page(gref)
            .and_then(|page| page.sub(0, PAGE))
            .ok_or(GrantStatus::BadRef)?;
        if !self.table.claim(gref, true) {
            return Err(GrantStatus::BadRef);
        }
        self.kept.push(gref);
        uses::settle();
        if self.table.holds(gref, true) {
            Ok(page)
        } else {
            Err(GrantStatus::BadRef)
        }
    }

    /// Counts a use; whether it may go on, if it still may after [`New::settle`].
    #[inline]
    fn claim(&self, gref: GrantRef, write: bool) -> bool {
        !COUNTED || self.table.claim(gref, write)
    }

    #[inline]
    fn settle() {
        if COUNTED {
            uses::settle();
        }
    }

    /// Where entry `gref` shows its page.
    #[inline]
    fn page(&self, gref: GrantRef) -> Option<Span> {
        let index = gref.index();
        if index >= self.guest.slots {
            return None;
        }
        let slot = self.guest.first.0.checked_add(index)?;
        self.guest.window.page(slot)
    }

    /// The bytes that an access that holds gives.
    #[inline]
    fn open(
        &self,
        gref: GrantRef,
        offset: u16,
        len: u16,
        write: bool,
    ) -> Result<Span, GrantStatus> {
        if COUNTED && !self.table.holds(gref, write) {
            return Err(GrantStatus::BadRef);
        }
        let page = self.page(gref).ok_or(GrantStatus::BadRef)?;
        page.sub(usize::from(offset), usize::from(len))
            .ok_or(GrantStatus::BadCopyArg)
    }
}

/// Which list of uses is meant: what is read or what is posted.
type Uses<T> = fn(&mut T) -> &mut Vec<GrantRef>;

impl<const COUNTED: bool> New<COUNTED> {
    fn begin(&mut self, accesses: &mut [Access], write: bool, uses: Uses<Self>) {
        let before = self.guest.ledger.enter(Hop::Grant);
        for access in &mut *accesses {
            // What was not counted is not used, even if it is granted by the time of the re-check.
            access.result = if self.claim(access.gref, write) {
                uses(self).extend(COUNTED.then_some(access.gref));
                Ok(Span::EMPTY)
            } else {
                Err(GrantStatus::BadRef)
            };
        }
        Self::settle();
        for access in accesses.iter_mut().filter(|access| access.result.is_ok()) {
            access.result = self.open(access.gref, access.offset, access.len, write);
        }
        self.guest.ledger.enter(before);
    }

    fn end(&mut self, uses: Uses<Self>) {
        let before = self.guest.ledger.enter(Hop::Grant);
        while let Some(gref) = uses(self).pop() {
            self.table.release(gref);
        }
        self.guest.ledger.enter(before);
    }
}

impl<const COUNTED: bool> Drop for New<COUNTED> {
    fn drop(&mut self) {
        let held = self.kept.drain(..).chain(self.reading.drain(..));
        for gref in held.chain(self.posted.drain(..)) {
            self.table.release(gref);
        }
        // A guest that is gone has ended the table already.
        let _ = self.guest.calls.borrow_mut().end_table(self.handle);
    }
}

impl<const COUNTED: bool> Grants for New<COUNTED> {
    fn read_begin(&mut self, accesses: &mut [Access]) {
        self.begin(accesses, false, |own| &mut own.reading);
    }

    fn read_end(&mut self) {
        self.end(|own| &mut own.reading);
    }

    fn post_begin(&mut self, accesses: &mut [Access]) {
        self.begin(accesses, true, |own| &mut own.posted);
    }

    fn post_end(&mut self) {
        self.end(|own| &mut own.posted);
    }

    fn write(&mut self, copies: &mut [CopyOut], frames: &[Frame]) {
        let before = self.guest.ledger.enter(Hop::Grant);
        let mut last = None;
        for op in &mut *copies {
            // Header and payload of a frame go to one page: one use.
            if last == Some(op.gref) {
                continue;
            }
            if self.claim(op.gref, true) {
                self.writing.extend(COUNTED.then_some(op.gref));
                last = Some(op.gref);
            } else {
                op.status = GrantStatus::BadRef;
            }
        }
        Self::settle();
        self.guest.ledger.enter(Hop::Copy);
        let counted = |op: &&mut CopyOut| op.status != GrantStatus::BadRef;
        for op in copies.iter_mut().filter(counted) {
            op.status = match self.open(op.gref, op.offset, op.len, true) {
                Ok(dst) => copy_to(dst, op.source, frames),
                Err(status) => status,
            };
        }
        self.guest.ledger.enter(Hop::Grant);
        for gref in self.writing.drain(..) {
            self.table.release(gref);
        }
        self.guest.ledger.enter(before);
    }
}

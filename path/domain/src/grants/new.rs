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
    /// Counts a use, if the entry permits it: its words. [`uses::settle`] and [`uses::holds`] follow.
    #[inline]
    fn claim(&self, gref: GrantRef, write: bool) -> Option<Words> {
        Words::of(self.translation, self.status, gref.index())
            .filter(|words| uses::claim(words, gref, write))
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
    kept: Vec<Words>,
    /// Uses of the batch that is being read.
    reading: Vec<Words>,
    /// Uses of the batch that is being written; empty in between.
    writing: Vec<Words>,
    /// Uses of pages that a device may write now.
    posted: Vec<Words>,
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
        let words = self.table.claim(gref, true).ok_or(GrantStatus::BadRef)?;
        self.kept.push(words);
        uses::settle();
        if uses::holds(&words, gref, true) {
            Ok(page)
        } else {
            Err(GrantStatus::BadRef)
        }
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
    fn open(&self, gref: GrantRef, offset: u16, len: u16) -> Result<Span, GrantStatus> {
        let page = self.page(gref).ok_or(GrantStatus::BadRef)?;
        page.sub(usize::from(offset), usize::from(len))
            .ok_or(GrantStatus::BadCopyArg)
    }

    /// Begins uses that last, and notes them in `uses`.
    fn begin(&self, accesses: &mut [Access], write: bool, uses: &mut Vec<Words>) {
        let before = self.guest.ledger.enter(Hop::Grant);
        let first = uses.len();
        if COUNTED {
            for access in &mut *accesses {
                // What was not counted is not used, even if it is granted by the time of the
                // re-check.
                access.result = match self.table.claim(access.gref, write) {
                    Some(words) => {
                        uses.push(words);
                        Ok(Span::EMPTY)
                    }
                    None => Err(GrantStatus::BadRef),
                };
            }
        }
        Self::settle();
        let mut claimed = uses.iter().skip(first);
        for access in accesses.iter_mut() {
            let holds = !COUNTED
                || access.result.is_ok()
                    && claimed
                        .next()
                        .is_some_and(|words| uses::holds(words, access.gref, write));
            access.result = match holds {
                true => self.open(access.gref, access.offset, access.len),
                false => Err(GrantStatus::BadRef),
            };
        }
        self.guest.ledger.enter(before);
    }

    fn end(&self, uses: &mut Vec<Words>) {
        let before = self.guest.ledger.enter(Hop::Grant);
        release(uses);
        self.guest.ledger.enter(before);
    }
}

/// Ends uses, and forgets them.
fn release(uses: &mut Vec<Words>) {
    for words in uses.drain(..) {
        uses::release(&words);
    }
}

impl<const COUNTED: bool> Drop for New<COUNTED> {
    fn drop(&mut self) {
        for uses in [&mut self.kept, &mut self.reading, &mut self.posted] {
            release(uses);
        }
        // A guest that is gone has ended the table already.
        let _ = self.guest.calls.borrow_mut().end_table(self.handle);
    }
}

impl<const COUNTED: bool> Grants for New<COUNTED> {
    fn read_begin(&mut self, accesses: &mut [Access]) {
        let mut reading = std::mem::take(&mut self.reading);
        self.begin(accesses, false, &mut reading);
        self.reading = reading;
    }

    fn read_end(&mut self) {
        let mut reading = std::mem::take(&mut self.reading);
        self.end(&mut reading);
        self.reading = reading;
    }

    fn post_begin(&mut self, accesses: &mut [Access]) {
        let mut posted = std::mem::take(&mut self.posted);
        self.begin(accesses, true, &mut posted);
        self.posted = posted;
    }

    fn post_end(&mut self) {
        let mut posted = std::mem::take(&mut self.posted);
        self.end(&mut posted);
        self.posted = posted;
    }

    fn write(&mut self, copies: &mut [CopyOut], frames: &[Frame]) {
        let before = self.guest.ledger.enter(Hop::Grant);
        let mut writing = std::mem::take(&mut self.writing);
        if COUNTED {
            let mut last = None;
            for op in &mut *copies {
                // Header and payload of a frame go to one page: one use.
                if last == Some(op.gref) {
                    continue;
                }
                match self.table.claim(op.gref, true) {
                    Some(words) => {
                        writing.push(words);
                        last = Some(op.gref);
                    }
                    None => op.status = GrantStatus::BadRef,
                }
            }
        }
        Self::settle();
        self.guest.ledger.enter(Hop::Copy);
        let mut claimed = writing.iter();
        let mut last = None;
        let mut holds = !COUNTED;
        let counted = |op: &&mut CopyOut| op.status != GrantStatus::BadRef;
        for op in copies.iter_mut().filter(counted) {
            if COUNTED && last != Some(op.gref) {
                last = Some(op.gref);
                let words = claimed.next();
                holds = words.is_some_and(|words| uses::holds(words, op.gref, true));
            }
            op.status = match holds {
                true => self
                    .open(op.gref, op.offset, op.len)
                    .map_or_else(|status| status, |dst| copy_to(dst, op.source, frames)),
                false => GrantStatus::BadRef,
            };
        }
        self.guest.ledger.enter(Hop::Grant);
        release(&mut writing);
        self.writing = writing;
        self.guest.ledger.enter(before);
    }
}

//! The new mechanism: the guest has its pages mapped, this domain counts its uses of them, and no
//! hypercall is made (`shmem::uses` has the protocol).

use super::{Guest, copy_singles, copy_to, fetch_start};
use crate::ledger::Hop;
use abi::hypercall::Bind;
use abi::ngm::{Translation, status_bytes, translation_bytes};
use abi::{GrantRef, GrantStatus, Handle, PAGE, Slot};
use nic::frame::HOT;
use nic::{Frame, Single};
use shmem::Span;
use shmem::uses::{self, Entries, EntryWords, Words};
use std::sync::atomic::Ordering;
use vif::grants::{Access, CopyOut, Grants};

/// What one guest grants, by both sub-tables. Without `COUNTED` they are not looked at.
#[derive(Debug)]
struct Table<const COUNTED: bool> {
    guest: Guest,
    entries: Entries,
    /// The guest's part of the window, entry by entry.
    pages: Span,
}

impl<const COUNTED: bool> Table<COUNTED> {
    /// The words of an entry.
    #[inline]
    fn words(&self, gref: GrantRef) -> Option<Words> {
        self.entries.words(gref.index())
    }

    /// Counts a use, if the entry permits it: its words. [`uses::settle`] and [`uses::holds`] follow.
    #[inline]
    fn claim(&self, gref: GrantRef, write: bool) -> Option<Words> {
        self.words(gref)
            .filter(|words| uses::claim(words, gref, write))
    }

    #[inline]
    fn settle() {
        if COUNTED {
            uses::settle();
        }
    }

    /// The bytes of an access, where its entry shows its page.
    #[inline]
    fn place(&self, access: &Access) -> Result<Span, GrantStatus> {
        self.part(access.gref, access.offset, access.len)
    }

    /// `len` bytes from `offset` on of the page that entry `gref` shows.
    #[inline]
    fn part(&self, gref: GrantRef, offset: u16, len: u16) -> Result<Span, GrantStatus> {
        if usize::from(offset) + usize::from(len) > PAGE {
            return Err(GrantStatus::BadCopyArg);
        }
        let at = gref.index() as usize * PAGE + usize::from(offset);
        self.pages.sub(at, len.into()).ok_or(GrantStatus::BadRef)
    }

    /// Makes every access of a batch usable or says why not, and notes in `uses` what was counted for it;
    /// `fetch` asks for the memory of each. Neighbours in one page, as both halves of it are, count once.
    #[inline(always)]
    fn begin(
        &self,
        accesses: &mut [Access],
        write: bool,
        uses: &mut Vec<Use>,
        fetch: impl Fn(Span),
    ) {
        let first = uses.len();
        let mut counted = None;
        for access in &mut *accesses {
            access.result = self.place(access);
            // A page that is taken away before the re-check is asked for in vain.
            if let Ok(span) = access.result {
                fetch(span);
            }
            if COUNTED && access.result.is_ok() && counted != Some(access.gref) {
                // What was not counted is not used, even if it is granted by the time of the
                // re-check.
                match self.claim(access.gref, write) {
                    Some(words) => {
                        let gref = access.gref;
                        uses.push(Use { words, gref });
                        counted = Some(gref);
                    }
                    None => access.result = Err(GrantStatus::BadRef),
                }
            }
        }
        Self::settle();
        let new = uses.get(first..).unwrap_or(&[]);
        if new.iter().any(|claimed| !claimed.holds(write)) {
            refuse(accesses, new, write);
        }
    }

    fn at_grant<T>(&self, act: impl FnOnce() -> T) -> T {
        self.guest.ledger.at(Hop::Grant, act)
    }
}

/// The mechanism, for one guest. Whatever it holds ends with the value.
///
/// Without `COUNTED` nothing is checked and nothing is counted: a page that is not granted
/// faults, and one that is can only be taken back by force.
#[derive(Debug)]
pub struct New<const COUNTED: bool> {
    handle: Handle,
    table: Table<COUNTED>,
    /// Uses that last as long as the connection: the rings'.
    kept: Vec<Use>,
    /// Uses of the batch that is being read.
    reading: Vec<Use>,
    /// Uses of the batch that is being written; empty in between.
    writing: Vec<Use>,
    /// Uses of pages that a device may write now.
    posted: Vec<Use>,
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
        let sub_table = |offset, bytes| {
            let at = (tables.0 as usize).checked_mul(PAGE)?.checked_add(offset)?;
            guest.window.at(at, bytes)
        };
        let translation_span = sub_table(0, translation).ok_or(GrantStatus::BadSlot)?;
        let status_span = sub_table(translation, status).ok_or(GrantStatus::BadSlot)?;
        let words = Entries::of(translation_span, status_span, entries);
        let words = words.ok_or(GrantStatus::BadSlot)?;
        let first = guest.first.0 as usize * PAGE;
        let pages = guest.window.at(first, entries as usize * PAGE);
        let pages = pages.ok_or(GrantStatus::BadSlot)?;
        guest.calls.borrow_mut().bind_table(&Bind {
            granter: guest.domain,
            table: handle,
            first: guest.first,
            tables,
            entries,
        })?;
        Ok(Self {
            handle,
            table: Table {
                guest,
                entries: words,
                pages,
            },
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
        let page = self.table.part(gref, 0, PAGE as u16)?;
        let words = self.table.claim(gref, true).ok_or(GrantStatus::BadRef)?;
        self.kept.push(Use { words, gref });
        uses::settle();
        if uses::holds(&words, gref, true) {
            Ok(page)
        } else {
            Err(GrantStatus::BadRef)
        }
    }
}

/// A use that is counted.
#[derive(Clone, Copy, Debug)]
struct Use {
    words: Words,
    gref: GrantRef,
}

impl Use {
    /// Whether it may go on.
    #[inline]
    fn holds(&self, write: bool) -> bool {
        uses::holds(&self.words, self.gref, write)
    }
}

/// Takes away from accesses what they have by uses that do not hold; `claimed` are those of the accesses, in
/// their order, where neighbours have one.
#[cold]
fn refuse(accesses: &mut [Access], claimed: &[Use], write: bool) {
    let mut claimed = claimed.iter();
    let (mut looked, mut holds) = (None, false);
    for access in accesses.iter_mut().filter(|access| access.result.is_ok()) {
        if looked != Some(access.gref) {
            looked = Some(access.gref);
            holds = claimed.next().is_some_and(|claimed| claimed.holds(write));
        }
        if !holds {
            access.result = Err(GrantStatus::BadRef);
        }
    }
}

/// Ends uses, and forgets them.
fn release(uses: &mut Vec<Use>) {
    for used in uses.drain(..) {
        uses::release(&used.words);
    }
}

impl<const COUNTED: bool> Drop for New<COUNTED> {
    fn drop(&mut self) {
        for uses in [&mut self.kept, &mut self.reading, &mut self.posted] {
            release(uses);
        }
        // A guest that is gone has ended the table already.
        let _ = self.table.guest.calls.borrow_mut().end_table(self.handle);
    }
}

impl<const COUNTED: bool> Grants for New<COUNTED> {
    fn read_begin(&mut self, accesses: &mut [Access]) {
        let Self { table, reading, .. } = self;
        let fetch = |span: Span| span.take(HOT).prefetch();
        table.at_grant(|| table.begin(accesses, false, reading, fetch));
    }

    fn read_end(&mut self) {
        let Self { table, reading, .. } = self;
        table.at_grant(|| release(reading));
    }

    fn post_begin(&mut self, accesses: &mut [Access]) {
        let Self { table, posted, .. } = self;
        table.at_grant(|| table.begin(accesses, true, posted, |_| ()));
    }

    fn post_end(&mut self) {
        let Self { table, posted, .. } = self;
        table.at_grant(|| release(posted));
    }

    fn in_reach(&self) -> bool {
        true
    }

    fn write_singles(&mut self, accesses: &mut [Access], singles: &[Single], pick: &[u32]) {
        let Self { table, writing, .. } = self;
        let ledger = &table.guest.ledger;
        let before = ledger.enter(Hop::Grant);
        table.begin(accesses, true, writing, |span| fetch_start(Some(span)));
        ledger.enter(Hop::Copy);
        copy_singles(accesses, singles, pick);
        ledger.enter(Hop::Grant);
        release(writing);
        ledger.enter(before);
    }

    fn hold(&mut self, accesses: &mut [Access], frames: &mut Vec<u32>) {
        // What was claimed and does not hold is given up at once.
        for access in &mut *accesses {
            access.result = self.table.place(access);
            if COUNTED && access.result.is_ok() && self.table.claim(access.gref, true).is_none() {
                access.result = Err(GrantStatus::BadRef);
            }
        }
        Table::<COUNTED>::settle();
        for access in accesses {
            let words = self.table.words(access.gref);
            let entry = words.map_or(0, |words| words.translation(Ordering::Acquire));
            let entry = Translation(entry);
            frames.push(entry.frame());
            if COUNTED && access.result.is_ok() && !entry.permits(access.gref, true) {
                access.result = Err(GrantStatus::BadRef);
                self.let_go(access.gref);
            }
        }
    }

    fn let_go(&mut self, gref: GrantRef) {
        if COUNTED && let Some(words) = self.table.words(gref) {
            uses::release(&words);
        }
    }

    fn write(&mut self, copies: &mut [CopyOut], frames: &[Frame]) {
        let Self { table, writing, .. } = self;
        let ledger = &table.guest.ledger;
        let before = ledger.enter(Hop::Grant);
        let mut last = None;
        for op in &mut *copies {
            // Header and payload of a frame go to one page: one use.
            if last == Some(op.gref) {
                continue;
            }
            if COUNTED {
                match table.claim(op.gref, true) {
                    Some(words) => writing.push(Use {
                        words,
                        gref: op.gref,
                    }),
                    None => {
                        op.status = GrantStatus::BadRef;
                        continue;
                    }
                }
            }
            last = Some(op.gref);
            fetch_start(table.part(op.gref, op.offset, op.len).ok());
        }
        Table::<COUNTED>::settle();
        ledger.enter(Hop::Copy);
        let mut claimed = writing.iter();
        let mut last = None;
        let mut holds = !COUNTED;
        let counted = |op: &&mut CopyOut| op.status != GrantStatus::BadRef;
        for op in copies.iter_mut().filter(counted) {
            if COUNTED && last != Some(op.gref) {
                last = Some(op.gref);
                holds = claimed.next().is_some_and(|claimed| claimed.holds(true));
            }
            op.status = match holds {
                true => table
                    .part(op.gref, op.offset, op.len)
                    .map_or_else(|status| status, |dst| copy_to(dst, op.source, frames)),
                false => GrantStatus::BadRef,
            };
        }
        ledger.enter(Hop::Grant);
        release(writing);
        ledger.enter(before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shmem::Area;

    #[test]
    fn who_lost_its_use_loses_its_accesses_and_nobody_else_does() {
        let pages = Area::anonymous(2 * PAGE).unwrap();
        let (translation, status) = (pages.page(0).unwrap(), pages.page(1).unwrap());
        let entries = Entries::of(translation, status, 8).unwrap();
        let grant = |gref: u32| {
            let entry = Translation::valid(gref, 0, false).0;
            translation.store_u64(gref as usize * 8, entry).unwrap();
        };
        (1..4).for_each(grant);
        let use_of = |gref| {
            let words = entries.words(gref).unwrap();
            let gref = GrantRef(gref);
            assert!(uses::claim(&words, gref, false));
            Use { words, gref }
        };
        let claimed = [1, 2, 1, 3].map(use_of);
        let access = |gref| Access {
            gref: GrantRef(gref),
            offset: 0,
            len: 60,
            result: if gref == 7 {
                Err(GrantStatus::BadRef)
            } else {
                Ok(translation.take(60))
            },
        };
        let mut accesses = [1, 1, 7, 2, 2, 1, 7, 1, 3].map(access);
        let revoked = Translation::valid(2, 0, false).revoking().0;
        translation.store_u64(2 * 8, revoked).unwrap();
        assert!(claimed.iter().any(|claimed| !claimed.holds(false)));
        refuse(&mut accesses, &claimed, false);
        let left = accesses.map(|access| access.result.is_ok());
        assert_eq!(
            left,
            [true, true, false, false, false, true, false, true, true]
        );
    }
}

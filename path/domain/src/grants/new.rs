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
use std::sync::atomic::{AtomicU32, Ordering};
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

    /// Counts a use, if the entry permits it. [`uses::settle`] and a look at what was announced follow.
    #[inline]
    fn claim(&self, gref: GrantRef, write: bool) -> Option<Use> {
        let words = self.words(gref)?;
        uses::claim(&words, gref, write).then_some(words.status)
    }

    /// Whether a use that was claimed may go on.
    #[inline]
    fn holds(&self, gref: GrantRef, write: bool) -> bool {
        self.words(gref)
            .is_some_and(|words| uses::holds(&words, gref, write))
    }

    /// A batch begins: [`Table::settle`] takes this.
    #[inline]
    fn announced(&self) -> u64 {
        match COUNTED {
            true => uses::announced(&self.entries.announcements),
            false => 0,
        }
    }

    /// Whether every use may go on that was claimed since [`Table::announced`] said `before`.
    #[inline]
    fn settle(&self, before: u64) -> bool {
        if !COUNTED {
            return true;
        }
        uses::settle();
        uses::undisturbed(&self.entries.announcements, before)
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
        let page = self.pages.page(gref.index());
        page.and_then(|page| page.sub(offset.into(), len.into()))
            .ok_or(GrantStatus::BadRef)
    }

    /// Makes every access of a batch usable or says why not, and notes in `uses` what was counted for it;
    /// `fetch` asks for the memory of each. Neighbours in one page, as both halves of it are, count once.
    #[inline(always)]
    fn begin(&self, accesses: &mut [Access], write: bool, uses: &mut Uses, fetch: impl Fn(Span)) {
        let before = self.announced();
        let places = uses.places(if COUNTED { accesses.len() } else { 0 });
        let mut places = places.iter_mut();
        let mut counted = None;
        for access in &mut *accesses {
            access.result = self.place(access);
            // A page that is taken away in this moment is asked for in vain.
            if let Ok(span) = access.result {
                fetch(span);
            }
            let place = places.next();
            if COUNTED && access.result.is_ok() && counted != Some(access.gref) {
                // What was not counted is not used, even if it is granted by the time of the
                // re-check.
                let claimed = place.and_then(|place| {
                    *place = self.claim(access.gref, write);
                    *place
                });
                match claimed {
                    Some(_) => counted = Some(access.gref),
                    None => access.result = Err(GrantStatus::BadRef),
                }
            }
        }
        if !self.settle(before) {
            self.recheck(accesses, write);
        }
    }

    /// Takes away from accesses what they have by uses that do not hold.
    #[cold]
    fn recheck(&self, accesses: &mut [Access], write: bool) {
        for access in accesses.iter_mut().filter(|access| access.result.is_ok()) {
            if !self.holds(access.gref, write) {
                access.result = Err(GrantStatus::BadRef);
            }
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
    kept: Uses,
    /// Uses of the batch that is being read.
    reading: Uses,
    /// Uses of the batch that is being written; empty in between.
    writing: Uses,
    /// Uses of pages that a device may write now.
    posted: Uses,
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
            kept: Uses::default(),
            reading: Uses::default(),
            writing: Uses::default(),
            posted: Uses::default(),
        })
    }

    /// A page that is in use as long as this exists.
    ///
    /// # Errors
    /// `BadRef`: it is not granted, or not for writing.
    pub fn keep(&mut self, gref: GrantRef) -> Result<Span, GrantStatus> {
        let page = self.table.part(gref, 0, PAGE as u16)?;
        let before = self.table.announced();
        let claimed = self.table.claim(gref, true).ok_or(GrantStatus::BadRef)?;
        self.kept.0.push(Some(claimed));
        if self.table.settle(before) || self.table.holds(gref, true) {
            Ok(page)
        } else {
            Err(GrantStatus::BadRef)
        }
    }
}

/// A use that is counted.
type Use = &'static AtomicU32;

/// Uses that end together; some places are of accesses that have none of their own.
#[derive(Debug, Default)]
struct Uses(Vec<Option<Use>>);

impl Uses {
    /// Places for so many more.
    #[inline]
    fn places(&mut self, count: usize) -> &mut [Option<Use>] {
        let first = self.0.len();
        self.0.resize(first + count, None);
        self.0.get_mut(first..).unwrap_or_default()
    }

    /// Ends them, and forgets them.
    #[inline]
    fn release(&mut self) {
        for status in self.0.drain(..).flatten() {
            uses::release(&status);
        }
    }
}

impl<const COUNTED: bool> Drop for New<COUNTED> {
    fn drop(&mut self) {
        for uses in [&mut self.kept, &mut self.reading, &mut self.posted] {
            uses.release();
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
        table.at_grant(|| reading.release());
    }

    fn post_begin(&mut self, accesses: &mut [Access]) {
        let Self { table, posted, .. } = self;
        table.at_grant(|| table.begin(accesses, true, posted, |_| ()));
    }

    fn post_end(&mut self) {
        let Self { table, posted, .. } = self;
        table.at_grant(|| posted.release());
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
        writing.release();
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
        if COUNTED {
            uses::settle();
        }
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
            uses::release(&words.status);
        }
    }

    fn write(&mut self, copies: &mut [CopyOut], frames: &[Frame]) {
        let Self { table, writing, .. } = self;
        let ledger = &table.guest.ledger;
        let before = ledger.enter(Hop::Grant);
        let announced = table.announced();
        let mut last = None;
        for op in &mut *copies {
            // Header and payload of a frame go to one page: one use.
            if last != Some(op.gref) {
                if COUNTED {
                    let Some(claimed) = table.claim(op.gref, true) else {
                        op.status = GrantStatus::BadRef;
                        continue;
                    };
                    writing.0.push(Some(claimed));
                }
                last = Some(op.gref);
                fetch_start(table.part(op.gref, op.offset, op.len).ok());
            }
        }
        let undisturbed = table.settle(announced);
        ledger.enter(Hop::Copy);
        let counted = |op: &&mut CopyOut| op.status != GrantStatus::BadRef;
        for op in copies.iter_mut().filter(counted) {
            op.status = match undisturbed || table.holds(op.gref, true) {
                true => table
                    .part(op.gref, op.offset, op.len)
                    .map_or_else(|status| status, |dst| copy_to(dst, op.source, frames)),
                false => GrantStatus::BadRef,
            };
        }
        ledger.enter(Hop::Grant);
        writing.release();
        ledger.enter(before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::Calls;
    use crate::ledger::Ledger;
    use abi::DomId;
    use shmem::Area;
    use std::cell::{Cell, RefCell};
    use std::rc::Rc;

    const ENTRIES: u32 = 8;

    /// A table whose entries 1, 2 and 3 are granted, and both sub-tables.
    fn table() -> (Table<true>, Span, Span) {
        let area = Area::anonymous((ENTRIES as usize + 3) * PAGE).unwrap();
        let page = |n| area.page(ENTRIES + n).unwrap();
        let (translation, status) = (page(0), page(1));
        for gref in 1..4 {
            let entry = Translation::valid(gref, 0, false).0;
            translation.store_u64(gref as usize * 8, entry).unwrap();
        }
        let guest = Guest {
            calls: Rc::new(RefCell::new(Calls::over(page(2)))),
            domain: DomId(5),
            window: area,
            first: Slot(0),
            slots: ENTRIES,
            ledger: Rc::new(Ledger::new(false)),
        };
        let table = Table {
            guest,
            entries: Entries::of(translation, status, ENTRIES).unwrap(),
            pages: area.span().take(ENTRIES as usize * PAGE),
        };
        (table, translation, status)
    }

    fn access(gref: u32) -> Access {
        Access {
            gref: GrantRef(gref),
            offset: 0,
            len: 60,
            result: Err(GrantStatus::GeneralError),
        }
    }

    #[test]
    fn who_lost_its_use_loses_its_accesses_and_nobody_else_does() {
        let (table, translation, status) = table();
        let mut accesses = [1, 1, 7, 2, 2, 1, 7, 1, 3].map(access);
        let mut uses = Uses::default();
        let looked = Cell::new(0);
        // The monitor announces a revocation after the last claim but one.
        let fetch = |_: Span| {
            looked.set(looked.get() + 1);
            if looked.get() == accesses.len() {
                let words = table.words(GrantRef(2)).unwrap();
                uses::announce(&words, Translation::valid(2, 0, false));
                uses::tell(&table.entries.announcements);
            }
        };
        let mut begun = accesses;
        table.begin(&mut begun, false, &mut uses, fetch);
        accesses = begun;
        let left = accesses.map(|access| access.result.is_ok());
        assert_eq!(
            left,
            [true, true, false, false, false, true, false, true, true]
        );
        let uses_of = |gref: usize| status.load_u32(gref * 4).unwrap();
        assert_eq!([1, 2, 3, 7].map(uses_of), [2, 1, 1, 0]);
        uses.release();
        assert_eq!([1, 2, 3, 7].map(uses_of), [0; 4]);
        // What was announced before a batch is not claimed by it.
        table.begin(&mut accesses, false, &mut uses, |_| ());
        assert_eq!(accesses.map(|access| access.result.is_ok()), left);
        assert_eq!([1, 2, 3, 7].map(uses_of), [1, 0, 1, 0]);
        // Another's revocation disturbs nobody.
        let revoked = Translation::valid(3, 0, false).revoking().0;
        translation.store_u64(3 * 8, revoked).unwrap();
        uses::tell(&table.entries.announcements);
        assert!(table.holds(GrantRef(1), true) && !table.holds(GrantRef(3), false));
    }
}

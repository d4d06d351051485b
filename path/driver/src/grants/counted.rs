//! Counted grants: the guest has its pages mapped, this domain counts its uses of them, and no
//! hypercall is made (`shmem::uses` has the protocol). Without `COUNTED` they are unchecked grants:
//! no use is counted or checked, which shows what counting costs.

use super::access::{Guest, copy_small_frames, copy_to, fetch_start};
use abi::counted::{Translation, status_bytes, translation_bytes};
use abi::hypercall::Bind;
use abi::{GrantRef, GrantStatus, Handle, PAGE, Slot};
use nic::frame::HOT;
use nic::{Frame, SmallFrame};
use runtime::ledger::Hop;
use shmem::Span;
use shmem::uses::{self, Entries, Words};
use std::sync::atomic::{AtomicU32, Ordering};
use vif::grants::{Access, CopyOut, Grants};

/// What one guest grants, by both sub-tables. Without `COUNTED` batches do not look at them.
#[derive(Debug)]
struct GrantTable<const COUNTED: bool> {
    guest: Guest,
    entries: Entries,
    /// The guest's part of the window, entry by entry.
    pages: Span,
}

impl<const COUNTED: bool> GrantTable<COUNTED> {
    /// The words of an entry.
    #[inline]
    fn words(&self, gref: GrantRef) -> Option<Words> {
        self.entries.words(gref.index())
    }

    /// Counts a use, if the entry permits it. [`GrantTable::undisturbed`] follows.
    #[inline]
    fn claim(&self, gref: GrantRef, write: bool) -> Option<Use> {
        let words = self.words(gref)?;
        uses::claim(words.translation, words.status, gref, write).then_some(words.status)
    }

    /// Whether a use that was claimed may go on.
    #[inline]
    fn holds(&self, gref: GrantRef, write: bool) -> bool {
        self.words(gref)
            .is_some_and(|words| uses::holds(words.translation, gref, write))
    }

    /// A batch begins: [`GrantTable::undisturbed`] takes this.
    #[inline]
    fn announced(&self) -> u64 {
        match COUNTED {
            true => uses::announced(self.entries.announcements),
            false => 0,
        }
    }

    /// Whether every use may go on that was claimed since [`GrantTable::announced`] said `before`.
    #[inline]
    fn undisturbed(&self, before: u64) -> bool {
        if !COUNTED {
            return true;
        }
        uses::full_fence();
        uses::undisturbed(self.entries.announcements, before)
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

    /// Makes every access of a batch usable or says why not, and notes in `uses` what was counted
    /// for it. `fetch` asks for the memory of each. Neighbours in one page, as both halves of it
    /// are, count once.
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
            if COUNTED {
                // A use that was not counted does not happen, even if the page is granted by the
                // time of the re-check.
                let Some(place) = places.next() else {
                    access.result = Err(GrantStatus::BadRef);
                    continue;
                };
                if access.result.is_ok() && counted != Some(access.gref) {
                    *place = self.claim(access.gref, write);
                    match place {
                        Some(_) => counted = Some(access.gref),
                        None => access.result = Err(GrantStatus::BadRef),
                    }
                }
            }
        }
        if !self.undisturbed(before) {
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

    /// Makes the page of every copy of a batch usable, or its status `BadRef`, and notes in `uses`
    /// what was counted for it. `fetch` asks for the memory of each.
    #[inline(always)]
    fn begin_copies(&self, copies: &mut [CopyOut], uses: &mut Uses, fetch: impl Fn(Span)) {
        let before = self.announced();
        let mut last = None;
        for op in &mut *copies {
            // Header and payload of a frame go to one page: one use.
            if last != Some(op.gref) {
                if COUNTED {
                    let Some(claimed) = self.claim(op.gref, true) else {
                        op.status = GrantStatus::BadRef;
                        continue;
                    };
                    uses.0.push(Some(claimed));
                }
                last = Some(op.gref);
                if let Ok(span) = self.part(op.gref, op.offset, op.len) {
                    fetch(span);
                }
            }
        }
        if !self.undisturbed(before) {
            self.recheck_copies(copies);
        }
    }

    /// The same for copies.
    #[cold]
    fn recheck_copies(&self, copies: &mut [CopyOut]) {
        for op in copies.iter_mut().filter(|op| !self.holds(op.gref, true)) {
            op.status = GrantStatus::BadRef;
        }
    }

    fn at_grant<T>(&self, act: impl FnOnce() -> T) -> T {
        self.guest.ledger.at(Hop::Grant, act)
    }
}

/// The mechanism, for one guest. Every use that it holds ends with the value.
///
/// Without `COUNTED` nothing is checked, and nothing is counted but the pages that are kept. A page
/// that is not granted faults then, and one that is granted can only be taken back by force.
#[derive(Debug)]
pub struct Counted<const COUNTED: bool> {
    handle: Handle,
    table: GrantTable<COUNTED>,
    /// Uses that last as long as the connection: the rings'.
    kept: Uses,
    /// Uses of the batch that is being read.
    reading: Uses,
    /// Uses of the batch that is being written; empty in between.
    writing: Uses,
    /// Uses of pages that a device may write now.
    posted: Uses,
}

impl<const COUNTED: bool> Counted<COUNTED> {
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
            table: GrantTable {
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
        self.keep_page(gref, |_| ())
    }

    /// [`Counted::keep`]; `claimed` learns of the page when its use is counted.
    fn keep_page(
        &mut self,
        gref: GrantRef,
        claimed: impl FnOnce(Span),
    ) -> Result<Span, GrantStatus> {
        let page = self.table.part(gref, 0, PAGE as u16)?;
        let status = self.table.claim(gref, true).ok_or(GrantStatus::BadRef)?;
        self.kept.0.push(Some(status));
        claimed(page);
        // Unchecked grants pass this fence too: these are a dozen pages of a connection.
        uses::full_fence();
        match self.table.holds(gref, true) {
            true => Ok(page),
            false => Err(GrantStatus::BadRef),
        }
    }

    /// The first half of [`Grants::hold`]: counts a use for each access that is permitted.
    fn claim_each(&self, accesses: &mut [Access]) {
        for access in accesses {
            access.result = self.table.place(access);
            if COUNTED && access.result.is_ok() && self.table.claim(access.gref, true).is_none() {
                access.result = Err(GrantStatus::BadRef);
            }
        }
    }

    /// The second half: what was claimed and does not hold is given up at once.
    fn hold_claimed(&mut self, accesses: &mut [Access], frames: &mut Vec<u32>) {
        if COUNTED {
            uses::full_fence();
        }
        for access in accesses {
            let words = self.table.words(access.gref);
            let entry = words.map_or(0, |words| words.translation.load(Ordering::Acquire));
            let entry = Translation(entry);
            frames.push(entry.frame());
            if COUNTED && access.result.is_ok() && !entry.permits(access.gref, true) {
                access.result = Err(GrantStatus::BadRef);
                self.hold_end(access.gref);
            }
        }
    }

    /// [`Grants::write`]; `fetch` asks for the memory of each page.
    #[inline]
    fn copy_out(&mut self, copies: &mut [CopyOut], frames: &[Frame], fetch: impl Fn(Span)) {
        let Self { table, writing, .. } = self;
        let ledger = &table.guest.ledger;
        let before = ledger.enter(Hop::Grant);
        table.begin_copies(copies, writing, fetch);
        ledger.enter(Hop::Copy);
        let counted = |op: &&mut CopyOut| op.status != GrantStatus::BadRef;
        for op in copies.iter_mut().filter(counted) {
            op.status = table
                .part(op.gref, op.offset, op.len)
                .map_or_else(|status| status, |dst| copy_to(dst, op.source, frames));
        }
        ledger.enter(Hop::Grant);
        writing.release();
        ledger.enter(before);
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
            uses::release(status);
        }
    }
}

impl<const COUNTED: bool> Drop for Counted<COUNTED> {
    fn drop(&mut self) {
        for uses in [&mut self.kept, &mut self.reading, &mut self.posted] {
            uses.release();
        }
        // A guest that is gone has ended the table already.
        let _ = self.table.guest.calls.borrow_mut().end_table(self.handle);
    }
}

impl<const COUNTED: bool> Grants for Counted<COUNTED> {
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

    fn write_small_frames(&mut self, accesses: &mut [Access], small: &[SmallFrame], pick: &[u32]) {
        let Self { table, writing, .. } = self;
        let ledger = &table.guest.ledger;
        let before = ledger.enter(Hop::Grant);
        table.begin(accesses, true, writing, fetch_start);
        ledger.enter(Hop::Copy);
        copy_small_frames(accesses, small, pick);
        ledger.enter(Hop::Grant);
        writing.release();
        ledger.enter(before);
    }

    fn hold(&mut self, accesses: &mut [Access], frames: &mut Vec<u32>) {
        self.claim_each(accesses);
        self.hold_claimed(accesses, frames);
    }

    fn hold_end(&mut self, gref: GrantRef) {
        if COUNTED && let Some(words) = self.table.words(gref) {
            uses::release(words.status);
        }
    }

    fn write(&mut self, copies: &mut [CopyOut], frames: &[Frame]) {
        self.copy_out(copies, frames, fetch_start);
    }
}

#[cfg(test)]
mod tests;

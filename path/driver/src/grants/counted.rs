//! Counted grants: the monitor maps the guest's pages once, and this domain counts its uses of them
//! without a hypercall (`shmem::grant_use` has the protocol). Without `COUNTED`, these are
//! unchecked grants, which neither count nor check uses: the difference in speed is the cost of
//! counting.

use super::access::{GranterWindow, copy_small_frames, copy_to, prefetch_destination};
use abi::counted::{Translation, status_bytes, translation_bytes};
use abi::hypercall::BindOp;
use abi::{GrantRef, GrantStatus, Handle, PAGE, Slot};
use nic::frame::SNAPSHOT_MIN;
use nic::{Frame, SmallBatch};
use runtime::call::OwnTable;
use runtime::ledger::Hop;
use shmem::Span;
use shmem::grant_use::{self, EntryWords, TableWords};
use std::sync::atomic::{AtomicU32, Ordering};
use vif::grants::{CopyOut, GrantAccess, GrantMechanism};

/// The grants of one guest, with the translation and the status sub-table. Without `COUNTED`,
/// batches do not read the sub-tables.
#[derive(Debug)]
struct GrantTable<const COUNTED: bool> {
    guest: GranterWindow,
    entries: TableWords,
    /// The guest's part of the window: one page per entry.
    pages: Span,
}

impl<const COUNTED: bool> GrantTable<COUNTED> {
    /// Returns the words of an entry in both sub-tables.
    #[inline]
    fn words(&self, gref: GrantRef) -> Option<EntryWords> {
        self.entries.words(gref.index())
    }

    /// Counts a use if the entry permits it. The caller must then call [`GrantTable::undisturbed`].
    #[inline]
    fn claim(&self, gref: GrantRef, write: bool) -> Option<Use> {
        let words = self.words(gref)?;
        grant_use::claim(words.translation, words.status, gref, write).then_some(words.status)
    }

    /// Returns whether the entry still permits a claimed use.
    #[inline]
    fn permits(&self, gref: GrantRef, write: bool) -> bool {
        self.words(gref)
            .is_some_and(|words| grant_use::still_permits(words.translation, gref, write))
    }

    /// Begins a batch. Returns the number of announced revocations, for
    /// [`GrantTable::undisturbed`].
    #[inline]
    fn announced(&self) -> u64 {
        match COUNTED {
            true => grant_use::announced(self.entries.announcements),
            false => 0,
        }
    }

    /// Returns whether the monitor has announced no revocation since [`GrantTable::announced`]
    /// returned `before`.
    #[inline]
    fn undisturbed(&self, before: u64) -> bool {
        if !COUNTED {
            return true;
        }
        grant_use::full_fence();
        grant_use::is_unchanged(self.entries.announcements, before)
    }

    /// Returns the range of an access, in the page of its entry.
    #[inline]
    fn place(&self, access: &GrantAccess) -> Result<Span, GrantStatus> {
        self.part(access.gref, access.offset, access.len)
    }

    /// Returns the range of `len` bytes at `offset` in the page of entry `gref`.
    #[inline]
    fn part(&self, gref: GrantRef, offset: u16, len: u16) -> Result<Span, GrantStatus> {
        if usize::from(offset) + usize::from(len) > PAGE {
            return Err(GrantStatus::BadCopyArg);
        }
        let page = self.pages.page(gref.index());
        page.and_then(|page| page.sub(offset.into(), len.into()))
            .ok_or(GrantStatus::BadRef)
    }

    /// Sets the result of each access of a batch to its range or to an error, and adds the counted
    /// uses to `uses`. `fetch` prefetches each range. Consecutive accesses to the same page, for
    /// instance to both halves, share one use.
    #[inline(always)]
    fn begin(
        &self,
        accesses: &mut [GrantAccess],
        write: bool,
        uses: &mut Uses,
        fetch: impl Fn(Span),
    ) {
        let before = self.announced();
        let places = uses.places(if COUNTED { accesses.len() } else { 0 });
        let mut places = places.iter_mut();
        let mut counted = None;
        for access in &mut *accesses {
            access.result = self.place(access);
            // Prefetching a page that is being revoked is harmless.
            if let Ok(span) = access.result {
                fetch(span);
            }
            if COUNTED {
                // An access whose use was not counted remains rejected, even if the page is granted
                // again before the re-check.
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

    /// Rejects accesses whose uses are no longer permitted.
    #[cold]
    fn recheck(&self, accesses: &mut [GrantAccess], write: bool) {
        for access in accesses.iter_mut().filter(|access| access.result.is_ok()) {
            if !self.permits(access.gref, write) {
                access.result = Err(GrantStatus::BadRef);
            }
        }
    }

    /// Claims the page of each copy of a batch, or sets the status of the copy to `BadRef`. Adds
    /// the counted uses to `uses`. `fetch` prefetches each range.
    #[inline(always)]
    fn begin_copies(&self, copies: &mut [CopyOut], uses: &mut Uses, fetch: impl Fn(Span)) {
        let before = self.announced();
        let mut last = None;
        for op in &mut *copies {
            // The header and the payload of a frame in the same page count as one use.
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

    /// Rejects copies whose uses are no longer permitted.
    #[cold]
    fn recheck_copies(&self, copies: &mut [CopyOut]) {
        for op in copies.iter_mut().filter(|op| !self.permits(op.gref, true)) {
            op.status = GrantStatus::BadRef;
        }
    }

    fn at_grant<T>(&self, act: impl FnOnce() -> T) -> T {
        self.guest.ledger.charge_to(Hop::Grant, act)
    }
}

/// The grant mechanism for one guest. Dropping it ends all of its uses.
///
/// Without `COUNTED`, the mechanism checks nothing, and counts only the uses of
/// [kept](CountedGrants::pin) pages. An access to an ungranted page then faults, and the monitor
/// can revoke a granted page only by force.
#[derive(Debug)]
pub struct CountedGrants<const COUNTED: bool> {
    table: GrantTable<COUNTED>,
    /// Uses of the rings' pages, which last as long as the connection.
    kept: Uses,
    /// Uses of the batch being read.
    reading: Uses,
    /// Uses of the batch being written; empty between batches.
    writing: Uses,
    /// Uses of pages that a device may write now.
    posted: Uses,
    /// The table's binding. Dropped last, after all uses have ended.
    _own: OwnTable,
}

impl<const COUNTED: bool> CountedGrants<COUNTED> {
    /// Binds the guest's table `handle`: the monitor maps the granted pages at the guest's slots,
    /// and the sub-tables at the slots from `tables`.
    ///
    /// # Errors
    /// Returns the status with which the monitor rejects the binding, or `BadSlot` if the slots are
    /// outside the window.
    pub fn bind(guest: GranterWindow, handle: Handle, tables: Slot) -> Result<Self, GrantStatus> {
        let entries = guest.slots;
        let (translation, status) = (translation_bytes(entries), status_bytes(entries));
        let sub_table = |offset, bytes| {
            let at = (tables.0 as usize).checked_mul(PAGE)?.checked_add(offset)?;
            guest.window.at(at, bytes)
        };
        let translation_span = sub_table(0, translation).ok_or(GrantStatus::BadSlot)?;
        let status_span = sub_table(translation, status).ok_or(GrantStatus::BadSlot)?;
        let words = TableWords::of(translation_span, status_span, entries);
        let words = words.ok_or(GrantStatus::BadSlot)?;
        let first = guest.first.0 as usize * PAGE;
        let pages = guest.window.at(first, entries as usize * PAGE);
        let pages = pages.ok_or(GrantStatus::BadSlot)?;
        guest.calls.borrow_mut().bind_table(&BindOp {
            granter: guest.domain,
            table: handle,
            first: guest.first,
            tables,
            entries,
        })?;
        Ok(Self {
            _own: OwnTable::new(&guest.calls, handle),
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

    /// Returns a page that remains in use as long as the mechanism exists.
    ///
    /// # Errors
    /// Returns `BadRef` if the page is not granted, or is granted read-only.
    pub fn pin(&mut self, gref: GrantRef) -> Result<Span, GrantStatus> {
        self.keep_page(gref, |_| ())
    }

    /// Like [`CountedGrants::pin`], but calls `claimed` between counting the use and checking the
    /// entry again.
    fn keep_page(
        &mut self,
        gref: GrantRef,
        claimed: impl FnOnce(Span),
    ) -> Result<Span, GrantStatus> {
        let page = self.table.part(gref, 0, PAGE as u16)?;
        let status = self.table.claim(gref, true).ok_or(GrantStatus::BadRef)?;
        self.kept.0.push(Some(status));
        claimed(page);
        // Unchecked grants also execute this fence. It costs little, because a connection has only
        // a dozen of these pages.
        grant_use::full_fence();
        match self.table.permits(gref, true) {
            true => Ok(page),
            false => Err(GrantStatus::BadRef),
        }
    }

    /// First half of [`GrantMechanism::hold`]: counts a use for each permitted access.
    fn claim_each(&self, accesses: &mut [GrantAccess]) {
        for access in accesses {
            access.result = self.table.place(access);
            if COUNTED && access.result.is_ok() && self.table.claim(access.gref, true).is_none() {
                access.result = Err(GrantStatus::BadRef);
            }
        }
    }

    /// Second half of [`GrantMechanism::hold`]: releases claimed uses that are no longer permitted.
    fn hold_claimed(&mut self, accesses: &mut [GrantAccess], frames: &mut Vec<u32>) {
        if COUNTED {
            grant_use::full_fence();
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

    /// Like [`GrantMechanism::write`]; `fetch` prefetches the destination of each copy.
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

/// The status word in which a use is counted.
type Use = &'static AtomicU32;

/// Uses that end together, with one entry per access. An access that shares the use of the previous
/// access has the entry `None`.
#[derive(Debug, Default)]
struct Uses(Vec<Option<Use>>);

impl Uses {
    /// Adds `count` empty entries, and returns them.
    #[inline]
    fn places(&mut self, count: usize) -> &mut [Option<Use>] {
        let first = self.0.len();
        self.0.resize(first + count, None);
        self.0.get_mut(first..).unwrap_or_default()
    }

    /// Ends all uses and clears the list.
    #[inline]
    fn release(&mut self) {
        for status in self.0.drain(..).flatten() {
            grant_use::release(status);
        }
    }
}

impl<const COUNTED: bool> Drop for CountedGrants<COUNTED> {
    fn drop(&mut self) {
        for uses in [&mut self.kept, &mut self.reading, &mut self.posted] {
            uses.release();
        }
    }
}

impl<const COUNTED: bool> GrantMechanism for CountedGrants<COUNTED> {
    fn read_begin(&mut self, accesses: &mut [GrantAccess]) {
        let Self { table, reading, .. } = self;
        let fetch = |span: Span| span.take(SNAPSHOT_MIN).prefetch();
        table.at_grant(|| table.begin(accesses, false, reading, fetch));
    }

    fn read_end(&mut self) {
        let Self { table, reading, .. } = self;
        table.at_grant(|| reading.release());
    }

    fn post_begin(&mut self, accesses: &mut [GrantAccess]) {
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

    fn write_small_frames(
        &mut self,
        accesses: &mut [GrantAccess],
        small: &SmallBatch,
        pick: &[u32],
        prefetch: bool,
    ) {
        let Self { table, writing, .. } = self;
        let ledger = &table.guest.ledger;
        let before = ledger.enter(Hop::Grant);
        table.begin(accesses, true, writing, prefetch_destination);
        ledger.enter(Hop::Copy);
        copy_small_frames(accesses, small, pick, prefetch);
        ledger.enter(Hop::Grant);
        writing.release();
        ledger.enter(before);
    }

    fn can_hold(&self) -> bool {
        true
    }

    fn revocations(&self) -> u64 {
        self.table.announced()
    }

    fn hold(&mut self, accesses: &mut [GrantAccess], frames: &mut Vec<u32>) {
        self.claim_each(accesses);
        self.hold_claimed(accesses, frames);
    }

    fn hold_end(&mut self, gref: GrantRef) {
        if COUNTED && let Some(words) = self.table.words(gref) {
            grant_use::release(words.status);
        }
    }

    fn write(&mut self, copies: &mut [CopyOut], frames: &[Frame]) {
        self.copy_out(copies, frames, prefetch_destination);
    }
}

#[cfg(test)]
mod tests;

//! Every domain's grant table, its entries in use, and the slots of its window.

use crate::device::{self, DeviceMap};
use crate::memory::Memory;
use abi::grant::GrantEntry;
use abi::layout::info;
use abi::{DomId, GrantRef, GrantStatus, Handle, Slot};
use shmem::Span;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How often an entry that its domain keeps rewriting is read again.
const ENTRY_TRIES: u32 = 8;

/// The grant tables behind their lock.
#[derive(Debug, Default)]
pub struct Grants(Mutex<Tables>);

impl Grants {
    /// Locks the tables. Only bookkeeping happens under this lock.
    pub fn lock(&self) -> MutexGuard<'_, Tables> {
        // A panic in here ends the process (`panic = abort`); in tests the state is still sound,
        // for every step leaves it so.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a pin is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A mapping in the user's window: lasts until it is unmapped.
    Map,
    /// A copy: lasts for a batch.
    Copy,
}

/// A use of a grant that is accounted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pin {
    pub(crate) granter: DomId,
    pub(crate) index: u32,
    pub(crate) frame: u32,
    pub(crate) write: bool,
}

/// An entry in use, as it was when the first use began.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Active {
    pub(crate) frame: u32,
    pub(crate) user: u16,
    pub(crate) readonly: bool,
    pub(crate) maps_read: u32,
    pub(crate) maps_write: u32,
    pub(crate) copies_read: u32,
    pub(crate) copies_write: u32,
}

impl Active {
    pub(crate) fn in_use(&self) -> bool {
        (self.maps_read | self.maps_write | self.copies_read | self.copies_write) != 0
    }

    pub(crate) fn written(&self) -> bool {
        (self.maps_write | self.copies_write) != 0
    }

    fn count(&mut self, purpose: Purpose, write: bool) -> &mut u32 {
        match (purpose, write) {
            (Purpose::Map, false) => &mut self.maps_read,
            (Purpose::Map, true) => &mut self.maps_write,
            (Purpose::Copy, false) => &mut self.copies_read,
            (Purpose::Copy, true) => &mut self.copies_write,
        }
    }
}

/// What a slot of a window holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum WindowSlot {
    /// Nothing.
    #[default]
    Free,
    /// A page that is just being mapped or unmapped: pinned, and nobody else's business.
    Busy(Pin),
    /// A page.
    Mapped(Pin),
    /// Whatever a table of the new mechanism shows there.
    Table(Handle),
    /// A page of the device of this number.
    Device(u64),
}

/// One domain's account.
#[derive(Debug)]
pub(crate) struct Account {
    pub(crate) memory: Arc<Memory>,
    /// No new use of its grants once it is dead.
    pub(crate) alive: bool,
    /// Its own uses of others' grants have all ended; set once, after its death.
    pub(crate) cleared: bool,
    pub(crate) active: Vec<Active>,
    /// Entries of `active` in use.
    pub(crate) pinned: u32,
    /// Address spaces that hold a descriptor of its frames.
    pub(crate) holders: u32,
    pub(crate) window: Vec<WindowSlot>,
    /// Slots of `window` that are not free.
    pub(crate) taken: u32,
    /// Pins of its copies under way.
    pub(crate) copying: u32,
}

impl Account {
    /// The stored form of an entry.
    pub(crate) fn entry(&self, index: u32) -> Option<&'static AtomicU64> {
        if index >= self.memory.grant_entries() {
            return None;
        }
        entry_of(self.memory.info().span(), index)
    }

    /// A slot of the window, if it exists.
    pub(crate) fn slot(&mut self, slot: u32) -> Option<&mut WindowSlot> {
        self.window.get_mut(slot as usize)
    }

    fn over(&self) -> bool {
        self.cleared && self.pinned == 0 && self.holders == 0
    }
}

/// The stored form of entry `index` of the table in an information region.
pub(crate) fn entry_of(info_region: Span, index: u32) -> Option<&'static AtomicU64> {
    info_region.u64(info::GRANT_TABLE.checked_add((index as usize).checked_mul(8)?)?)
}

/// All domains' accounts.
#[derive(Debug, Default)]
pub struct Tables {
    /// By domain id; ids are never reused.
    accounts: Vec<Option<Account>>,
}

impl Tables {
    /// Opens a domain's account.
    pub fn insert(&mut self, id: DomId, memory: Arc<Memory>, window_slots: u32) {
        let at = usize::from(id.0);
        if self.accounts.len() <= at {
            self.accounts.resize_with(at + 1, || None);
        }
        let active = vec![Active::default(); memory.grant_entries() as usize];
        if let Some(place) = self.accounts.get_mut(at) {
            *place = Some(Account {
                memory,
                alive: true,
                cleared: false,
                active,
                pinned: 0,
                holders: 0,
                window: vec![WindowSlot::Free; window_slots as usize],
                taken: 0,
                copying: 0,
            });
        }
    }

    pub(crate) fn account(&self, id: DomId) -> Option<&Account> {
        self.accounts.get(usize::from(id.0))?.as_ref()
    }

    /// The account of a domain whose grants may be used.
    pub(crate) fn alive(&self, id: DomId) -> Option<&Account> {
        self.account(id).filter(|account| account.alive)
    }

    pub(crate) fn account_mut(&mut self, id: DomId) -> Option<&mut Account> {
        self.accounts.get_mut(usize::from(id.0))?.as_mut()
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = (DomId, &Account)> {
        self.accounts
            .iter()
            .enumerate()
            .filter_map(|(id, account)| Some((DomId(id as u16), account.as_ref()?)))
    }

    /// Whether a domain's account is still open.
    #[must_use]
    pub fn knows(&self, id: DomId) -> bool {
        self.account(id).is_some()
    }

    /// Begins a use of a grant: checks it, marks the entry, and returns what was granted.
    pub(crate) fn pin(
        &mut self,
        user: DomId,
        granter: DomId,
        gref: GrantRef,
        write: bool,
        purpose: Purpose,
    ) -> Result<Pin, GrantStatus> {
        let account = self
            .account_mut(granter)
            .filter(|a| a.alive)
            .ok_or(GrantStatus::BadDomain)?;
        let index = gref.index();
        let entry = account.entry(index).ok_or(GrantStatus::BadRef)?;
        if gref.generation() != 0 {
            return Err(GrantStatus::BadRef);
        }
        let frame_count = account.memory.frame_count();
        let active = account
            .active
            .get_mut(index as usize)
            .ok_or(GrantStatus::BadRef)?;
        let fresh = !active.in_use();
        if fresh {
            let captured = capture(entry, user, write, frame_count)?;
            *active = Active {
                frame: captured.frame(),
                user: user.0,
                readonly: captured.readonly(),
                ..Active::default()
            };
        } else {
            if active.user != user.0 {
                return Err(GrantStatus::BadRef);
            }
            if write && active.readonly {
                return Err(GrantStatus::PermissionDenied);
            }
            if write && !active.written() {
                entry.fetch_or(u64::from(GrantEntry::WRITING), Ordering::AcqRel);
            }
        }
        let count = active.count(purpose, write);
        *count = count.checked_add(1).ok_or(GrantStatus::NoSpace)?;
        let frame = active.frame;
        if fresh {
            account.pinned += 1;
        }
        Ok(Pin {
            granter,
            index,
            frame,
            write,
        })
    }

    /// Ends a use of a grant; the last one clears the entry's in-use flags, and takes the account
    /// of a dead granter with it.
    pub(crate) fn unpin(&mut self, pin: Pin, purpose: Purpose) {
        let Some(account) = self.account_mut(pin.granter) else {
            return;
        };
        let entry = account.entry(pin.index);
        let Some(active) = account.active.get_mut(pin.index as usize) else {
            return;
        };
        let count = active.count(purpose, pin.write);
        // Every pin is ended once (the window's slots and the copies' lists see to that); the
        // audit would show it if not.
        *count = count.saturating_sub(1);
        let ended = if !active.in_use() {
            account.pinned = account.pinned.saturating_sub(1);
            GrantEntry::READING | GrantEntry::WRITING
        } else if !active.written() {
            GrantEntry::WRITING
        } else {
            0
        };
        if let Some(entry) = entry.filter(|_| ended != 0) {
            // Release: who sees the flags gone may take the page for something else, and must
            // not see our accesses afterwards.
            entry.fetch_and(!u64::from(ended), Ordering::AcqRel);
        }
        self.close_if_over(pin.granter);
    }

    /// The page behind a pin.
    pub(crate) fn page(&self, pin: Pin) -> Option<Span> {
        self.account(pin.granter)?.memory.frame(pin.frame)
    }

    /// Hands out a granter's memory to an address space that is about to map it.
    pub(crate) fn hold(&mut self, granter: DomId) -> Option<Arc<Memory>> {
        let account = self.account_mut(granter)?;
        account.holders += 1;
        Some(Arc::clone(&account.memory))
    }

    /// An address space has given up its descriptor of a granter's memory.
    pub(crate) fn let_go(&mut self, granter: DomId) {
        if let Some(account) = self.account_mut(granter) {
            account.holders = account.holders.saturating_sub(1);
        }
        self.close_if_over(granter);
    }

    /// Takes free slots of a domain's window for what they are to hold, a table or a device; all or none.
    /// Whether it could.
    pub(crate) fn reserve(&mut self, id: DomId, holds: WindowSlot, ranges: &[Range<u32>]) -> bool {
        let Some(account) = self.account_mut(id) else {
            return false;
        };
        for (n, range) in ranges.iter().enumerate() {
            let free = range
                .clone()
                .all(|slot| account.slot(slot).copied() == Some(WindowSlot::Free));
            if !free {
                self.unreserve(id, ranges.get(..n).unwrap_or_default());
                return false;
            }
            for slot in range.clone() {
                if let Some(place) = account.slot(slot) {
                    *place = holds;
                }
            }
        }
        true
    }

    /// Gives slots back that a table or a device had.
    pub(crate) fn unreserve(&mut self, id: DomId, ranges: &[Range<u32>]) {
        let Some(account) = self.account_mut(id) else {
            return;
        };
        for slot in ranges.iter().cloned().flatten() {
            if let Some(place @ (WindowSlot::Table(_) | WindowSlot::Device(_))) = account.slot(slot)
            {
                *place = WindowSlot::Free;
            }
        }
    }

    /// Takes the slots that show a device of a domain's. Whether all of them are there and free.
    pub fn reserve_device(&mut self, id: DomId, number: u64, pages: &[DeviceMap]) -> bool {
        let ends = |part: &DeviceMap| part.slot.0.checked_add(part.pages).is_some();
        pages.iter().all(ends)
            && self.reserve(id, WindowSlot::Device(number), &device::slots(pages))
    }

    /// Gives them back.
    pub fn unreserve_device(&mut self, id: DomId, pages: &[DeviceMap]) {
        self.unreserve(id, &device::slots(pages));
    }

    /// A domain is dead or about to be: nobody gets a new use of its grants.
    pub fn end(&mut self, id: DomId) {
        if let Some(account) = self.account_mut(id) {
            account.alive = false;
        }
    }

    /// Releases up to `budget` slots of a dead domain's window, from `from` on; returns where to
    /// go on, or none when all are free. Its process is gone: nothing can touch the pages.
    pub(crate) fn release(&mut self, id: DomId, from: u32, budget: u32) -> Option<u32> {
        let end = from.saturating_add(budget);
        for slot in from..end {
            let place = self.account_mut(id)?.slot(slot)?;
            match std::mem::take(place) {
                WindowSlot::Free | WindowSlot::Table(_) | WindowSlot::Device(_) => {}
                WindowSlot::Busy(pin) | WindowSlot::Mapped(pin) => {
                    if let Some(account) = self.account_mut(id) {
                        account.taken = account.taken.saturating_sub(1);
                    }
                    self.unpin(pin, Purpose::Map);
                }
            }
        }
        Some(end)
    }

    /// All of a dead domain's uses have ended: its account goes as soon as nobody uses its
    /// grants.
    pub(crate) fn clear(&mut self, id: DomId) {
        if let Some(account) = self.account_mut(id) {
            account.alive = false;
            account.cleared = true;
        }
        self.close_if_over(id);
    }

    fn close_if_over(&mut self, id: DomId) {
        if self.account(id).is_some_and(Account::over)
            && let Some(place) = self.accounts.get_mut(usize::from(id.0))
        {
            *place = None;
        }
    }
}

/// Reads an entry, checks that `user` may use it so, and marks it as in use, all in one step as
/// seen from the domain that owns it.
fn capture(
    entry: &AtomicU64,
    user: DomId,
    write: bool,
    frame_count: u32,
) -> Result<GrantEntry, GrantStatus> {
    const IN_USE: u16 = GrantEntry::READING | GrantEntry::WRITING;
    let mark = GrantEntry::READING | if write { GrantEntry::WRITING } else { 0 };
    let mut now = GrantEntry(entry.load(Ordering::Acquire));
    for _ in 0..ENTRY_TRIES {
        // Any other flag means another type of grant (transfer, transitive, sub-page): not
        // offered.
        let kind = now.flags() & !(IN_USE | GrantEntry::READONLY);
        if kind != GrantEntry::PERMIT_ACCESS || now.domain() != user {
            return Err(GrantStatus::BadRef);
        }
        if write && now.readonly() {
            return Err(GrantStatus::PermissionDenied);
        }
        if now.frame() >= frame_count {
            return Err(GrantStatus::AddressTooBig);
        }
        let marked = now.with_flags(now.flags() & !IN_USE | mark);
        match entry.compare_exchange(now.0, marked.0, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return Ok(marked),
            Err(other) => now = GrantEntry(other),
        }
    }
    Err(GrantStatus::Again)
}

/// Reads an entry that accepts a page of `from`'s and uses it up, in one step as seen from the domain
/// that owns it; the slot for the page.
pub(crate) fn commit(entry: &AtomicU64, from: DomId) -> Result<Slot, GrantStatus> {
    let mut now = GrantEntry(entry.load(Ordering::Acquire));
    for _ in 0..ENTRY_TRIES {
        if !now.accepts() || now.domain() != from {
            return Err(GrantStatus::BadRef);
        }
        let marked = now.with_flags(now.flags() | GrantEntry::COMMITTED);
        match entry.compare_exchange(now.0, marked.0, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => return Ok(Slot(marked.frame())),
            Err(other) => now = GrantEntry(other),
        }
    }
    Err(GrantStatus::Again)
}

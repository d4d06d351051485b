//! The I/O page table of a device in a separate domain. It is a table of counted grants, which only
//! the monitor changes. I/O page *n* is entry *n* of the table.
//!
//! The monitor maps a granted page into the window of the device's domain, and unmaps it when the
//! grant is revoked. The device counts each access as a use of its pages, without a hypercall. So
//! the monitor never unmaps a page during an access, except by a forced revocation (clauses N-7 to
//! N-12 of `specs/grants.md`).

use super::addr::IoAddr;
use super::table::{IoFault, IoMemory, pages};
use abi::GrantRef;
use abi::counted::Translation;
use shmem::Span;
use shmem::grant_use::{self, EntryWords, TableWords};
use smallvec::SmallVec;
use std::sync::atomic::Ordering;

/// The pages that a driver domain has granted to the device.
#[derive(Clone, Copy, Debug)]
pub struct GrantedMemory {
    entries: TableWords,
    /// Memory of the granted pages, in the order of the entries.
    pages: Span,
    /// I/O address of the first guest page, and memory of the guests' pages.
    guests: (u64, Span),
}

/// A counted use of a page: the words of its entry, and the grant reference that was used.
type Use = (EntryWords, GrantRef);

impl GrantedMemory {
    /// Creates the memory from the sub-tables of a bound table and two parts of the window: `pages`
    /// for the table's pages, and `guests` for the pages that guests have granted for I/O. `guests`
    /// begins at I/O address `guests_at`, after the table's pages. An access to a page of `guests`
    /// that is not mapped returns a [`shmem::Fault`].
    #[must_use]
    pub fn new(entries: TableWords, pages: Span, (guests_at, guests): (IoAddr, Span)) -> Self {
        Self {
            entries,
            pages,
            guests: (guests_at.bits(), guests),
        }
    }

    /// Returns the memory of a range of guests' pages. The driver, not the device, counts their
    /// uses.
    fn of_guests(&self, address: IoAddr, len: usize) -> Option<Span> {
        let (first, guests) = self.guests;
        let offset = address.bits().checked_sub(first)?;
        guests.sub(usize::try_from(offset).ok()?, len)
    }

    /// Counts a use of each page of a range, and records it in `claimed`. Returns false if a page
    /// is not granted.
    fn claim(&self, address: IoAddr, len: usize, claimed: &mut SmallVec<[Use; 2]>) -> bool {
        let Some(pages) = pages(address, len) else {
            return false;
        };
        for page in pages {
            let index = u32::try_from(page).ok();
            let words = index.and_then(|index| Some((index, self.entries.words(index)?)));
            let Some((index, words)) = words else {
                return false;
            };
            let entry = Translation(words.translation.load(Ordering::Relaxed));
            let gref = entry.reference(index);
            if !grant_use::claim(words.translation, words.status, gref, true) {
                return false;
            }
            claimed.push((words, gref));
        }
        grant_use::full_fence();
        let mut claimed = claimed.iter();
        claimed.all(|(words, gref)| grant_use::still_permits(words.translation, *gref, true))
    }
}

impl IoMemory for GrantedMemory {
    fn access<T>(
        &self,
        address: IoAddr,
        len: usize,
        act: impl FnOnce(Span) -> T,
    ) -> Result<T, IoFault> {
        let fault = IoFault { address, len };
        if let Some(span) = self.of_guests(address, len).filter(|_| len > 0) {
            return Ok(act(span));
        }
        let offset = usize::try_from(address.bits()).map_err(|_| fault)?;
        let span = self.pages.sub(offset, len).filter(|_| len > 0);
        let span = span.ok_or(fault)?;
        let mut claimed = SmallVec::new();
        let is_granted = self.claim(address, len, &mut claimed);
        let done = is_granted.then(|| act(span));
        for (words, _) in claimed {
            grant_use::release(words.status);
        }
        done.ok_or(fault)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::PAGE;
    use shmem::Area;

    const ENTRIES: u32 = 4;

    /// Returns granted memory with valid entries 1 and 2, the words of the entries, and the pages.
    fn granted() -> (GrantedMemory, TableWords, Span) {
        let area = Area::anonymous((ENTRIES as usize + 2) * PAGE).unwrap();
        let sub_table = |page| area.page(ENTRIES + page).unwrap();
        let entries = TableWords::of(sub_table(0), sub_table(1), ENTRIES).unwrap();
        for index in [1, 2] {
            let words = entries.words(index).unwrap();
            let entry = Translation::valid(index + 10, 7, false);
            words.translation.store(entry.0, Ordering::Relaxed);
        }
        let pages = area.span().take(ENTRIES as usize * PAGE);
        let none = (IoAddr::of_page(ENTRIES), Span::EMPTY);
        (GrantedMemory::new(entries, pages, none), entries, pages)
    }

    fn used(entries: TableWords) -> [u32; ENTRIES as usize] {
        let status = |index| entries.words(index).unwrap().status;
        [0, 1, 2, 3].map(|index| status(index).load(Ordering::Relaxed))
    }

    /// D-2, D-3.
    #[test]
    fn access_counts_a_use_of_each_page() {
        let (memory, entries, pages) = granted();
        let across = IoAddr::of_page(1).add(PAGE - 2).unwrap();
        let span = memory.access(across, 4, |span| {
            assert_eq!(used(entries), [0, 1, 1, 0]);
            span
        });
        assert_eq!(span, Ok(pages.sub(2 * PAGE - 2, 4).unwrap()));
        assert_eq!(used(entries), [0; 4]);
    }

    /// D-4.
    #[test]
    fn ungranted_pages_fault_and_stay_unused() {
        let (memory, entries, _) = granted();
        let inside = IoAddr::of_page(1);
        for (address, len) in [
            (IoAddr::of_page(0), 1),
            (IoAddr::of_page(0), PAGE + 1),
            (inside, 2 * PAGE + 1),
            (inside, 0),
            (inside, usize::MAX),
            (IoAddr::of_page(ENTRIES), 1),
            (IoAddr::from_bits(u64::MAX), 1),
        ] {
            let accessed = memory.access(address, len, |_| panic!("{address} is accessible"));
            assert_eq!(accessed, Err(IoFault { address, len }));
            assert_eq!(used(entries), [0; 4]);
        }
    }

    /// D-32: guests' pages have the I/O addresses that follow the table. Memory after them is
    /// inaccessible.
    #[test]
    fn guests_pages_follow_the_table() {
        let (memory, entries, pages) = granted();
        let guests = Area::anonymous(2 * PAGE).unwrap().span();
        let first = IoAddr::of_page(ENTRIES + 5);
        let memory = GrantedMemory::new(entries, memory.pages, (first, guests));
        let access = |address: IoAddr, len| memory.access(address, len, |span| span);
        assert_eq!(access(first, 2 * PAGE), Ok(guests));
        let second = first.add(PAGE + 8).unwrap();
        assert_eq!(access(second, 4), Ok(guests.sub(PAGE + 8, 4).unwrap()));
        assert_eq!(used(entries), [0; 4], "the driver counts their uses");
        let before = IoAddr::from_bits(first.bits() - 1);
        for (address, len) in [(first, 0), (first, 2 * PAGE + 1), (before, 1), (before, 2)] {
            assert_eq!(access(address, len), Err(IoFault { address, len }));
        }
        assert_eq!(access(IoAddr::of_page(1), PAGE), Ok(pages.page(1).unwrap()));
    }

    /// D-4: a page is accessible after it was granted again, but not while it is being revoked, or
    /// if it is read-only.
    #[test]
    fn revoked_page_faults() {
        let (memory, entries, _) = granted();
        let words = entries.words(1).unwrap();
        let entry = Translation(words.translation.load(Ordering::Relaxed));
        let reads = || memory.access(IoAddr::of_page(1), 1, |_| ()).is_ok();
        let set = |entry: Translation| {
            words.translation.store(entry.0, Ordering::Relaxed);
            reads()
        };
        assert!(set(entry));
        assert!(!set(entry.revoking()));
        assert!(!set(Translation::INVALID));
        assert!(!set(Translation::valid(11, 8, true)));
        assert!(set(Translation::valid(12, 8, false)));
    }
}

//! Entries of a classic grant table: capture and consumption of entries, and the record of an entry
//! in use.
//!
//! A domain can rewrite its entries at any time. Therefore the monitor relies only on its private
//! record ([`Active`]), which it captures at the first use by one compare-and-swap.

use abi::classic::GrantEntry;
use abi::layout::info;
use abi::{DomId, GrantStatus, Slot};
use monitor::memory::SharedDomainMemory;
use std::sync::atomic::{AtomicU64, Ordering};

/// Maximum number of attempts to capture an entry that its domain rewrites concurrently.
const ENTRY_TRIES: u32 = 8;

/// Purpose for which a page is pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PinPurpose {
    /// A mapping in the user's window. It ends when the page is unmapped.
    Map,
    /// A copy. It ends with its batch.
    Copy,
}

/// A counted use of a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PinnedGrant {
    pub(crate) granter: DomId,
    pub(crate) index: u32,
    pub(crate) frame: u32,
    pub(crate) write: bool,
}

/// An entry in use, with its contents at the start of the first use, and the number of uses of each
/// kind.
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

    pub(crate) fn count(&mut self, purpose: PinPurpose, write: bool) -> &mut u32 {
        match (purpose, write) {
            (PinPurpose::Map, false) => &mut self.maps_read,
            (PinPurpose::Map, true) => &mut self.maps_write,
            (PinPurpose::Copy, false) => &mut self.copies_read,
            (PinPurpose::Copy, true) => &mut self.copies_write,
        }
    }
}

/// Returns an entry of a domain's table, or `None` if the index is out of range.
pub(crate) fn of(memory: &SharedDomainMemory, index: u32) -> Option<&'static AtomicU64> {
    let at = (index < memory.grant_entries).then(|| info::GRANT_TABLE + index as usize * 8)?;
    memory.info.span().u64(at)
}

/// Reads an entry, checks that `user` may use it, and marks it as in use. For the granter, this is
/// one atomic step.
pub(crate) fn capture(
    entry: &AtomicU64,
    user: DomId,
    write: bool,
    frame_count: u32,
) -> Result<GrantEntry, GrantStatus> {
    const IN_USE: u16 = GrantEntry::READING | GrantEntry::WRITING;
    let mark = GrantEntry::READING | if write { GrantEntry::WRITING } else { 0 };
    let mut now = GrantEntry(entry.load(Ordering::Acquire));
    for _ in 0..ENTRY_TRIES {
        // Other flags denote unsupported types of grants (transfer, transitive, sub-page).
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

/// Reads an entry that accepts a page from `from`, and consumes it. For the granter, this is one
/// atomic step. Returns the slot that the entry specifies for the page.
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

//! One table of counted grants: its sub-tables, and the monitor's state of each entry.

use super::device_pages::DevicePages;
use super::entries::{CountedEntries, CountedEntry, CurrentGrant};
use crate::memory::SharedDomainMemory;
use abi::counted::{Translation, status_bytes, table_slots, translation_bytes};
use abi::{ConnId, DomId, GrantRef, Handle, PAGE, Slot};
use sandbox::PageMap;
use shmem::Region;
use shmem::grant_use::{self, EntryWords};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The slots of a table in its user's window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UserSlots {
    /// The slot of entry 0's page.
    pub(super) first: u32,
    /// The first slot of the sub-tables.
    pub(super) tables: u32,
}

/// The mutable state of a table.
#[derive(Debug)]
pub(super) struct TableState {
    pub(super) bound: Option<UserSlots>,
    /// Whether the granter's half has ended; the table then has no grants.
    pub(super) granter_done: bool,
    /// Whether the user's half has ended.
    pub(super) user_done: bool,
    /// The user's device that may access pages granted for I/O.
    pub(super) shared: Option<DevicePages>,
    pub(super) entries: CountedEntries,
}

/// One table.
#[derive(Debug)]
pub(super) struct GrantTableState {
    pub(super) handle: Handle,
    pub(super) granter: DomId,
    pub(super) user: DomId,
    /// The granter's number of the connection that the table belongs to.
    pub(super) conn: ConnId,
    pub(super) entries: u32,
    /// The maximum number of the user's mappings that its pages may take.
    pub(super) pieces_max: u32,
    /// The granter's memory.
    pub(super) memory: Arc<SharedDomainMemory>,
    /// Both sub-tables, one after the other.
    pub(super) region: Region,
    pub(super) region_readonly: OwnedFd,
    /// The counter of announcements, which lies in `region`.
    pub(super) announcements: &'static AtomicU64,
    /// Held by the worker that changes the user's mappings, until the change is complete.
    op: Mutex<()>,
    /// Held for bookkeeping only.
    state: Mutex<TableState>,
}

impl GrantTableState {
    /// Creates a table that has no grants and is not bound.
    ///
    /// # Errors
    /// Returns an error if the kernel has no memory or no descriptors left, or the region is too
    /// small for the counter of announcements.
    pub(super) fn create(
        handle: Handle,
        (granter, conn): (DomId, ConnId),
        user: DomId,
        (entries, pieces_max): (u32, u32),
        memory: Arc<SharedDomainMemory>,
    ) -> io::Result<Self> {
        let bytes = translation_bytes(entries) + status_bytes(entries);
        let region = Region::create(&format!("grants-{handle}"), bytes)?;
        let announcements = grant_use::announcements(region.span(), entries);
        Ok(Self {
            handle,
            granter,
            user,
            conn,
            entries,
            pieces_max,
            memory,
            region_readonly: region.readonly_fd()?,
            announcements: announcements.ok_or(io::ErrorKind::InvalidInput)?,
            region,
            op: Mutex::default(),
            state: Mutex::new(TableState {
                bound: None,
                granter_done: false,
                user_done: false,
                shared: None,
                entries: CountedEntries::new(entries),
            }),
        })
    }

    pub(super) fn op(&self) -> MutexGuard<'_, ()> {
        self.op.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn state(&self) -> MutexGuard<'_, TableState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the words of an entry, if it exists.
    pub(super) fn words(&self, index: u32) -> Option<EntryWords> {
        let span = self.region.span();
        let status = span.skip(translation_bytes(self.entries));
        (index < self.entries).then(|| EntryWords::of(span, status, index))?
    }

    /// Publishes an entry's translation word to the user.
    pub(super) fn publish(&self, index: u32, translation: Translation) {
        if let Some(words) = self.words(index) {
            words.translation.store(translation.0, Ordering::Release);
        }
    }

    /// Returns the memory number of the sub-tables in the user's address space.
    pub(super) fn own_memory(&self) -> u32 {
        self.handle.memory()
    }

    /// Returns the memory number of the granter's frames in the user's address space, for this
    /// table.
    pub(super) fn frames_memory(&self) -> u32 {
        self.own_memory().wrapping_add(1)
    }

    /// Returns the mapping of an entry that has a grant, where entry 0 is at slot `first`.
    pub(super) fn page(&self, first: u32, index: u32, granted: CurrentGrant) -> PageMap {
        PageMap {
            slot: Slot(first + index),
            memory: self.frames_memory(),
            frame: granted.frame,
            writable: !granted.readonly,
        }
    }

    /// Returns the mappings of the sub-tables: only the status sub-table is writable.
    pub(super) fn own_pages(&self, bound: UserSlots) -> impl Iterator<Item = PageMap> + use<> {
        let readonly = (translation_bytes(self.entries) / PAGE) as u32;
        let memory = self.own_memory();
        (0..table_slots(self.entries)).map(move |page| PageMap {
            slot: Slot(bound.tables + page),
            memory,
            frame: page,
            writable: page >= readonly,
        })
    }

    /// Returns the reference to an entry at its current generation.
    pub(super) fn reference(index: u32, entry: &CountedEntry) -> GrantRef {
        GrantRef::new(index, entry.generation)
    }
}

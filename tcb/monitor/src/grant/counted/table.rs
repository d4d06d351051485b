//! One table of counted grants: its sub-tables, and what the monitor knows of each entry.

use super::entries::{Entries, Entry, Granted};
use crate::memory::Memory;
use abi::counted::{Translation, status_bytes, table_slots, translation_bytes};
use abi::{ConnId, DomId, GrantRef, Handle, PAGE, Slot};
use sandbox::PageMap;
use shmem::Region;
use shmem::uses::{self, Words};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Where a user has a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bound {
    /// Entry 0's page.
    pub(super) first: u32,
    /// The sub-tables' first page.
    pub(super) tables: u32,
}

/// What changes.
#[derive(Debug)]
pub(super) struct TableState {
    pub(super) bound: Option<Bound>,
    /// The granter has no use for it any more: nothing is granted, and nothing will be.
    pub(super) granter_done: bool,
    /// The user has none.
    pub(super) user_done: bool,
    pub(super) entries: Entries,
}

/// One table.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) handle: Handle,
    pub(super) granter: DomId,
    pub(super) user: DomId,
    /// The granter's connection that it was made for.
    pub(super) conn: ConnId,
    pub(super) entries: u32,
    /// Mappings of the user's that its pages may take.
    pub(super) pieces_max: u32,
    /// The granter's memory.
    pub(super) memory: Arc<Memory>,
    /// Both sub-tables, one after the other.
    pub(super) region: Region,
    pub(super) region_readonly: OwnedFd,
    /// The count of announcements, there as long as `region` is.
    pub(super) announcements: &'static AtomicU64,
    /// Held by the worker that changes what the user can reach, for as long as that takes.
    op: Mutex<()>,
    /// Held for bookkeeping alone.
    state: Mutex<TableState>,
}

impl Table {
    /// A table that grants nothing and is not bound.
    ///
    /// # Errors
    /// The kernel has no memory or no descriptors left, or the count of announcements has no place.
    pub(super) fn create(
        handle: Handle,
        (granter, conn): (DomId, ConnId),
        user: DomId,
        (entries, pieces_max): (u32, u32),
        memory: Arc<Memory>,
    ) -> io::Result<Self> {
        let bytes = translation_bytes(entries) + status_bytes(entries);
        let region = Region::create(&format!("grants-{handle}"), bytes)?;
        let announcements = uses::announcements(region.span(), entries);
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
                entries: Entries::new(entries),
            }),
        })
    }

    pub(super) fn op(&self) -> MutexGuard<'_, ()> {
        self.op.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn state(&self) -> MutexGuard<'_, TableState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The words of an entry, if it exists.
    pub(super) fn words(&self, index: u32) -> Option<Words> {
        let span = self.region.span();
        let status = span.skip(translation_bytes(self.entries));
        (index < self.entries).then(|| Words::of(span, status, index))?
    }

    /// What the user finds of an entry from now on.
    pub(super) fn show(&self, index: u32, translation: Translation) {
        if let Some(words) = self.words(index) {
            words.translation.store(translation.0, Ordering::Release);
        }
    }

    /// The number under which the user's address space knows the sub-tables.
    pub(super) fn own_memory(&self) -> u32 {
        self.handle.memory()
    }

    /// The number under which it knows the granter's frames, for this table.
    pub(super) fn frames_memory(&self) -> u32 {
        self.own_memory().wrapping_add(1)
    }

    /// How an entry that grants something is mapped.
    pub(super) fn page(&self, bound: Bound, index: u32, granted: Granted) -> PageMap {
        PageMap {
            slot: Slot(bound.first + index),
            memory: self.frames_memory(),
            frame: granted.frame,
            writable: !granted.readonly,
        }
    }

    /// How the sub-tables are mapped: only the status can be written.
    pub(super) fn own_pages(&self, bound: Bound) -> impl Iterator<Item = PageMap> + use<> {
        let readonly = (translation_bytes(self.entries) / PAGE) as u32;
        let memory = self.own_memory();
        (0..table_slots(self.entries)).map(move |page| PageMap {
            slot: Slot(bound.tables + page),
            memory,
            frame: page,
            writable: page >= readonly,
        })
    }

    /// The reference to an entry as it is now.
    pub(super) fn reference(index: u32, entry: &Entry) -> GrantRef {
        GrantRef::new(index, entry.generation)
    }
}

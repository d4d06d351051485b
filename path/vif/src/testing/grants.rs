//! A grant mechanism without a monitor: reads the guest's table and accesses the guest's pages
//! directly, with the monitor's checks.

use crate::grants::{CopyOut, CopySource, GrantAccess, GrantMechanism};
use abi::classic::GrantEntry;
use abi::{DomId, GrantRef, GrantStatus, PAGE, Slot};
use nic::SmallBatch;
use shmem::{Area, Span};
use std::sync::atomic::Ordering;

/// Grants of one guest, for tests.
#[derive(Clone, Copy, Debug)]
pub struct FakeGrants {
    table: Span,
    frames: Area,
    domain: DomId,
    /// Exchanged pages and the slot of the first, if any.
    pub exchange: Option<(Area, Slot)>,
    /// Whether accesses have begun and not ended.
    pub reading: bool,
    /// Whether pages are accessible to a device.
    pub posting: bool,
    /// Pages that a device holds across turns.
    pub held: u64,
    /// Whether pages can be held across turns.
    pub can_hold: bool,
    /// Revocations that the guest has announced.
    pub revocations: u64,
    /// Accesses made usable.
    pub reads: u64,
    /// Copies executed.
    pub writes: u64,
    /// Copies of small frames that prefetched their destination.
    pub prefetches: u64,
    /// Number of copies that still succeed; all further ones fail.
    pub writes_left: u64,
}

impl FakeGrants {
    /// Creates the mechanism for the grants that `table` makes of `frames` to `domain`.
    #[must_use]
    pub fn new(table: Span, frames: Area, domain: DomId) -> Self {
        Self {
            table,
            frames,
            domain,
            exchange: None,
            reading: false,
            posting: false,
            held: 0,
            can_hold: true,
            revocations: 0,
            reads: 0,
            writes: 0,
            prefetches: 0,
            writes_left: u64::MAX,
        }
    }

    /// Returns the page that replaces a grant's page, as the monitor would place it.
    fn accepted(&self, gref: GrantRef) -> Option<Span> {
        let (pages, first) = self.exchange?;
        let word = self.table.u64(gref.index() as usize * 8)?;
        let entry = GrantEntry(word.load(Ordering::Acquire));
        let at = entry.frame().checked_sub(first.0);
        let page = at.and_then(|at| pages.page(at));
        let page = page.filter(|_| entry.accepts() && entry.domain() == self.domain)?;
        page.fill(0).ok()?;
        let done = entry.with_flags(GrantEntry::TRANSFERRED);
        word.store(done.0, Ordering::Release);
        Some(page)
    }

    /// Returns the bytes to which a grant gives access.
    fn open(
        &self,
        gref: GrantRef,
        offset: u16,
        len: u16,
        write: bool,
    ) -> Result<Span, GrantStatus> {
        assert!(
            usize::from(offset) + usize::from(len) <= PAGE,
            "a netback passes no range that crosses a page"
        );
        let word = self
            .table
            .u64(gref.index() as usize * 8)
            .ok_or(GrantStatus::BadRef)?;
        let entry = GrantEntry(word.load(Ordering::Acquire));
        if !entry.permits() || entry.domain() != self.domain {
            return Err(GrantStatus::BadRef);
        }
        if write && entry.readonly() {
            return Err(GrantStatus::PermissionDenied);
        }
        let page = self
            .frames
            .page(entry.frame())
            .ok_or(GrantStatus::BadPage)?;
        page.sub(usize::from(offset), usize::from(len))
            .ok_or(GrantStatus::BadCopyArg)
    }
}

impl GrantMechanism for FakeGrants {
    fn read_begin(&mut self, accesses: &mut [GrantAccess]) {
        assert!(!self.reading, "the batch before this one has ended");
        self.reading = true;
        for access in accesses {
            access.result = self.open(access.gref, access.offset, access.len, false);
            self.reads += u64::from(access.result.is_ok());
        }
    }

    fn read_end(&mut self) {
        assert!(self.reading, "a batch has begun");
        self.reading = false;
    }

    fn in_reach(&self) -> bool {
        self.exchange.is_none()
    }

    fn write_small_frames(
        &mut self,
        accesses: &mut [GrantAccess],
        small_frames: &SmallBatch,
        pick: &[u32],
        prefetch: bool,
    ) {
        assert_eq!(accesses.len(), pick.len(), "a place for each");
        for (access, index) in accesses.iter_mut().zip(pick) {
            assert!(access.result.is_err(), "a result starts as an error");
            if access.len == 0 || self.writes_left == 0 {
                continue;
            }
            let to = self.open(access.gref, access.offset, access.len, true);
            access.result = to.and_then(|to| {
                let copied = small_frames.copy_to(*index as usize, to, prefetch);
                copied.map(|()| to).map_err(|_| GrantStatus::BadPage)
            });
            self.writes += 1;
            self.prefetches += u64::from(prefetch);
            self.writes_left -= 1;
        }
    }

    fn post_begin(&mut self, accesses: &mut [GrantAccess]) {
        self.posting = true;
        for access in accesses {
            access.result = self.open(access.gref, access.offset, access.len, true);
        }
    }

    fn post_end(&mut self) {
        assert!(self.posting, "something was posted");
        self.posting = false;
    }

    fn can_hold(&self) -> bool {
        self.can_hold
    }

    fn revocations(&self) -> u64 {
        self.revocations
    }

    fn hold(&mut self, accesses: &mut [GrantAccess], frames: &mut Vec<u32>) {
        for access in accesses {
            access.result = self.open(access.gref, access.offset, access.len, true);
            let page = access
                .result
                .map_or(0, |span| (span.addr() - self.frames.span().addr()) / PAGE);
            frames.push(page as u32);
            self.held += u64::from(access.result.is_ok());
        }
    }

    fn hold_end(&mut self, _: GrantRef) {
        assert_ne!(self.held, 0, "something is held");
        self.held -= 1;
    }

    fn write(&mut self, copies: &mut [CopyOut], frames: &[nic::Frame]) {
        let mut given = None;
        for copy in copies {
            assert_eq!(
                copy.status,
                GrantStatus::GeneralError,
                "a status starts as an error"
            );
            if self.writes_left == 0 {
                continue;
            }
            // A page is transferred once for all copies to it; it starts zeroed.
            given = given
                .filter(|(gref, _)| *gref == copy.gref)
                .or_else(|| Some((copy.gref, self.accepted(copy.gref)?)));
            let opened = match given {
                Some((_, page)) => page
                    .sub(usize::from(copy.offset), usize::from(copy.len))
                    .ok_or(GrantStatus::BadCopyArg),
                None => self.open(copy.gref, copy.offset, copy.len, true),
            };
            let to = match opened {
                Ok(to) => to,
                Err(status) => {
                    copy.status = status;
                    continue;
                }
            };
            let len = usize::from(copy.len);
            let done = match copy.source {
                CopySource::Span(from) => {
                    assert_eq!(from.len(), len, "a source is as long as its copy");
                    shmem::copy(to, from)
                }
                CopySource::Header { frame, from } => {
                    let header = frames[frame as usize].header();
                    to.write(&header[usize::from(from)..usize::from(from) + len])
                }
            };
            copy.status = if done.is_ok() {
                GrantStatus::Okay
            } else {
                GrantStatus::BadPage
            };
            self.writes += 1;
            self.writes_left -= 1;
        }
    }
}

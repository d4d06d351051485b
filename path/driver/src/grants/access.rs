//! Common parts of all grant mechanisms, including those of other programs: ranges in a guest's
//! pages, and copies to mapped pages.

use abi::{DomId, GrantStatus, Slot};
use nic::frame::SNAPSHOT_MIN;
use nic::{Frame, SmallBatch};
use runtime::call::Calls;
use runtime::ledger::{Hop, Ledger};
use shmem::{Area, Span};
use std::cell::RefCell;
use std::rc::Rc;
use vif::grants::{CopySource, GrantAccess};

/// Parameters that every mechanism needs: the granter, and its part of the window.
#[derive(Clone, Debug)]
pub struct GranterWindow {
    /// This domain's hypercalls.
    pub calls: Rc<RefCell<Calls>>,
    /// The guest that grants.
    pub domain: DomId,
    /// This domain's grant window.
    pub window: Area,
    /// First slot of this guest's grants.
    pub first: Slot,
    /// Number of slots for this guest's grants. Entries of its table beyond this number are
    /// unusable.
    pub slots: u32,
    /// This domain's ledger.
    pub ledger: Rc<Ledger>,
}

/// Returns a range within `page`, or an error if the page is inaccessible or too short.
#[inline]
pub fn page_range(page: Option<Span>, offset: u16, len: u16) -> Result<Span, GrantStatus> {
    let page = page.ok_or(GrantStatus::BadRef)?;
    page.sub(usize::from(offset), usize::from(len))
        .ok_or(GrantStatus::BadCopyArg)
}

/// Prefetches the start of a copy's destination. The processor's prefetcher fetches the rest.
#[inline]
pub fn prefetch_destination(dst: Span) {
    dst.take(SNAPSHOT_MIN).prefetch_write();
}

/// Copies one piece to a page that is mapped at `dst`.
#[inline]
pub fn copy_to(dst: Span, source: CopySource, frames: &[Frame]) -> GrantStatus {
    let copied = match source {
        CopySource::Span(span) if span.len() == dst.len() => shmem::copy(dst, span),
        CopySource::Header { frame, from } => {
            let from = usize::from(from);
            let bytes = frames
                .get(frame as usize)
                .and_then(|frame| frame.header().get(from..from + dst.len()));
            match bytes {
                Some(bytes) => dst.write(bytes),
                None => return GrantStatus::BadCopyArg,
            }
        }
        CopySource::Span(_) => return GrantStatus::BadCopyArg,
    };
    if copied.is_ok() {
        GrantStatus::Okay
    } else {
        GrantStatus::BadPage
    }
}

/// Copies each small frame to the range of its access, if the access is usable. Prefetches the
/// start of each range first, because the caller has not, and with `prefetch` the whole range.
pub fn fetch_and_copy_small_frames(
    ledger: &Ledger,
    accesses: &mut [GrantAccess],
    small: &SmallBatch,
    pick: &[u32],
    prefetch: bool,
) {
    ledger.charge_to(Hop::Copy, || {
        let places = accesses.iter().filter_map(|access| access.result.ok());
        places.for_each(prefetch_destination);
        copy_small_frames(accesses, small, pick, prefetch);
    });
}

/// Copies each small frame to the range of its access, if the access is usable.
#[inline]
pub(super) fn copy_small_frames(
    accesses: &mut [GrantAccess],
    small: &SmallBatch,
    pick: &[u32],
    prefetch: bool,
) {
    for (access, index) in accesses.iter_mut().zip(pick) {
        let Ok(to) = access.result else {
            continue;
        };
        if small.copy_to(*index as usize, to, prefetch).is_err() {
            access.result = Err(GrantStatus::BadPage);
        }
    }
}

//! How a mechanism gets at a guest's pages, and copies to where they appear: what all of them
//! share.

use abi::{DomId, GrantRef, GrantStatus, PAGE, Slot};
use nic::frame::HOT;
use nic::{Frame, SmallFrame};
use runtime::call::Calls;
use runtime::ledger::{Hop, Ledger};
use shmem::{Area, Span};
use std::cell::RefCell;
use std::rc::Rc;
use vif::grants::{Access, CopyOut, Source};

/// What every mechanism needs: whose grants, and where they may appear.
#[derive(Clone, Debug)]
pub struct Guest {
    /// The hypercalls of this domain.
    pub calls: Rc<RefCell<Calls>>,
    /// The guest.
    pub domain: DomId,
    /// The grant window of this domain.
    pub window: Area,
    /// The first slot for this guest's grants.
    pub first: Slot,
    /// Slots for this guest's grants: higher indices cannot be used.
    pub slots: u32,
    /// The ledger of this domain.
    pub ledger: Rc<Ledger>,
}

impl Guest {
    /// The slot of a reference, if it has one.
    pub(super) fn slot(&self, gref: GrantRef) -> Option<Slot> {
        let index = gref.index();
        (index < self.slots && gref.generation() == 0)
            .then(|| self.first.0.checked_add(index).map(Slot))
            .flatten()
    }

    /// Makes hypercalls: what the monitor needs for them is not this domain's time.
    pub(super) fn call<T>(&self, call: impl FnOnce(&mut Calls) -> T) -> T {
        self.ledger.call(|| call(&mut self.calls.borrow_mut()))
    }

    /// Where an access goes whose page is mapped at `slot`, or why it has none.
    pub(super) fn place(
        &self,
        access: &Access,
        slot: Result<Slot, GrantStatus>,
    ) -> Result<Span, GrantStatus> {
        self.span(slot?, access.offset, access.len)
            .ok_or(GrantStatus::BadCopyArg)
    }

    /// The bytes of a slot.
    pub(super) fn span(&self, slot: Slot, offset: u16, len: u16) -> Option<Span> {
        let at = (slot.0 as usize)
            .checked_mul(PAGE)?
            .checked_add(usize::from(offset))?;
        self.window.at(at, usize::from(len))
    }
}

/// The bytes of an access, in the page that its reference shows, if it does.
#[inline]
pub fn part(page: Option<Span>, offset: u16, len: u16) -> Result<Span, GrantStatus> {
    let page = page.ok_or(GrantStatus::BadRef)?;
    page.sub(usize::from(offset), usize::from(len))
        .ok_or(GrantStatus::BadCopyArg)
}

/// Asks the processor for where a copy starts: by the time of the copy it is there. What is behind
/// it the processor sees coming by itself.
#[inline]
pub fn fetch_start(dst: Span) {
    dst.take(HOT).prefetch_write();
}

/// Copies one piece to a page that is mapped at `dst`.
#[inline]
pub fn copy_to(dst: Span, source: Source, frames: &[Frame]) -> GrantStatus {
    let copied = match source {
        Source::Span(span) if span.len() == dst.len() => shmem::copy(dst, span),
        Source::Header { frame, from } => {
            let from = usize::from(from);
            let bytes = frames
                .get(frame as usize)
                .and_then(|frame| frame.header().get(from..from + dst.len()));
            match bytes {
                Some(bytes) => dst.write(bytes),
                None => return GrantStatus::BadCopyArg,
            }
        }
        Source::Span(_) => return GrantStatus::BadCopyArg,
    };
    if copied.is_ok() {
        GrantStatus::Okay
    } else {
        GrantStatus::BadPage
    }
}

/// Copies each small frame to where its access is, if it is; none of these places was asked for
/// before.
pub fn fetch_and_copy_small_frames(
    ledger: &Ledger,
    accesses: &mut [Access],
    small: &[SmallFrame],
    pick: &[u32],
) {
    ledger.at(Hop::Copy, || {
        let places = accesses.iter().filter_map(|access| access.result.ok());
        places.for_each(fetch_start);
        copy_small_frames(accesses, small, pick);
    });
}

/// Copies each small frame to where its access is, if it is.
#[inline]
pub(super) fn copy_small_frames(accesses: &mut [Access], small: &[SmallFrame], pick: &[u32]) {
    for (access, index) in accesses.iter_mut().zip(pick) {
        let Ok(to) = access.result else {
            continue;
        };
        let copied = small.get(*index as usize).map(|frame| frame.copy_to(to));
        if copied != Some(Ok(())) {
            access.result = Err(GrantStatus::BadPage);
        }
    }
}

/// Copies a batch whose pages are mapped; `slot` says where, or why not.
pub(super) fn copy_mapped(
    guest: &Guest,
    copies: &mut [CopyOut],
    frames: &[Frame],
    slot: impl Fn(GrantRef) -> Result<Slot, GrantStatus>,
) {
    for op in &*copies {
        let dst = slot(op.gref)
            .ok()
            .and_then(|slot| guest.span(slot, op.offset, op.len));
        dst.into_iter().for_each(fetch_start);
    }
    for op in copies {
        op.status = match slot(op.gref) {
            Ok(slot) => match guest.span(slot, op.offset, op.len) {
                Some(dst) => copy_to(dst, op.source, frames),
                None => GrantStatus::BadCopyArg,
            },
            Err(status) => status,
        };
    }
}

//! Helpers of the mechanisms: ranges in a guest's part of the window, hypercalls, and copies to
//! mapped pages.

use abi::{GrantRef, GrantStatus, PAGE, Slot};
use driver::grants::{GranterWindow, copy_to, prefetch_destination};
use nic::Frame;
use runtime::call::Calls;
use shmem::Span;
use vif::grants::{CopyOut, GrantAccess};

/// Returns the slot of a grant reference, or `None` if the reference is invalid or exceeds the
/// guest's part.
pub(crate) fn slot(guest: &GranterWindow, gref: GrantRef) -> Option<Slot> {
    let index = gref.index();
    (index < guest.slots && gref.generation() == 0)
        .then(|| guest.first.0.checked_add(index).map(Slot))
        .flatten()
}

/// Makes hypercalls by `call`. The ledger does not charge the monitor's time to this domain.
pub(crate) fn call<T>(guest: &GranterWindow, call: impl FnOnce(&mut Calls) -> T) -> T {
    guest.ledger.call(|| call(&mut guest.calls.borrow_mut()))
}

/// Returns the range of an access in the page mapped at `slot`, or an error.
pub(crate) fn place(
    guest: &GranterWindow,
    access: &GrantAccess,
    slot: Result<Slot, GrantStatus>,
) -> Result<Span, GrantStatus> {
    span(guest, slot?, access.offset, access.len).ok_or(GrantStatus::BadCopyArg)
}

/// Returns the range of `len` bytes at `offset` in the page at `slot`.
pub(crate) fn span(guest: &GranterWindow, slot: Slot, offset: u16, len: u16) -> Option<Span> {
    let at = (slot.0 as usize)
        .checked_mul(PAGE)?
        .checked_add(usize::from(offset))?;
    guest.window.at(at, usize::from(len))
}

/// Executes a batch of copies to mapped pages. `slot` returns the slot of a page, or an error.
pub(crate) fn copy_mapped(
    guest: &GranterWindow,
    copies: &mut [CopyOut],
    frames: &[Frame],
    slot: impl Fn(GrantRef) -> Result<Slot, GrantStatus>,
) {
    for op in &*copies {
        let dst = slot(op.gref)
            .ok()
            .and_then(|slot| span(guest, slot, op.offset, op.len));
        dst.into_iter().for_each(prefetch_destination);
    }
    for op in copies {
        op.status = match slot(op.gref) {
            Ok(slot) => match span(guest, slot, op.offset, op.len) {
                Some(dst) => copy_to(dst, op.source, frames),
                None => GrantStatus::BadCopyArg,
            },
            Err(status) => status,
        };
    }
}

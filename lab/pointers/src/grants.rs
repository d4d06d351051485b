//! Grants without a mechanism: guest and driver domain are threads of one process, and a reference
//! is the number of a page. Measurements of this path without isolation are the baseline for the
//! cost of isolation.

use abi::{DomId, GrantRef, Handle};
use driver::grants::{copy_to, fetch_and_copy_small_frames, page_range, prefetch_destination};
use nic::{Frame, SmallBatch};
use runtime::ledger::{Hop, Ledger};
use shmem::{Area, Span};
use std::rc::Rc;
use vif::grants::{CopyOut, GrantAccess, GrantMechanism};
use vif::netfront::{GrantError, GrantedPage, Granter};

/// The guest's end. Reference `n` is its page `n - 1`, because a reference is never 0.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Numbers;

impl Granter for Numbers {
    fn enter(
        &mut self,
        _: DomId,
        pages: &[GrantedPage],
        made: &mut Vec<Result<GrantRef, GrantError>>,
    ) {
        made.extend(pages.iter().map(|page| Ok(GrantRef(page.frame + 1))));
    }

    /// Does nothing, because a pointer cannot be revoked.
    fn revoke_pages(&mut self, grefs: &[GrantRef], left: &mut Vec<bool>) {
        left.extend(grefs.iter().map(|_| false));
    }

    fn revoke_if_unused(&mut self, _: GrantRef) -> bool {
        false
    }

    fn end(&mut self, grefs: &mut Vec<GrantRef>) {
        grefs.clear();
    }

    fn table(&self) -> Handle {
        Handle(0)
    }
}

/// The driver domain's end.
#[derive(Clone, Debug)]
pub(crate) struct Pointers {
    frames: Area,
    ledger: Rc<Ledger>,
}

impl Pointers {
    /// Creates the end for a guest whose memory is `frames`.
    #[must_use]
    pub(crate) fn new(frames: Area, ledger: Rc<Ledger>) -> Self {
        Self { frames, ledger }
    }

    /// Returns the page of a reference.
    #[must_use]
    #[inline]
    pub(crate) fn page(&self, gref: GrantRef) -> Option<Span> {
        self.frames.page(gref.index().checked_sub(1)?)
    }

    fn open(&self, accesses: &mut [GrantAccess]) {
        let before = self.ledger.enter(Hop::Grant);
        for access in accesses {
            access.result = page_range(self.page(access.gref), access.offset, access.len);
        }
        self.ledger.enter(before);
    }
}

impl GrantMechanism for Pointers {
    fn read_begin(&mut self, accesses: &mut [GrantAccess]) {
        self.open(accesses);
        accesses.iter().for_each(GrantAccess::prefetch);
    }

    fn read_end(&mut self) {}

    fn post_begin(&mut self, accesses: &mut [GrantAccess]) {
        self.open(accesses);
    }

    fn in_reach(&self) -> bool {
        true
    }

    fn write_small_frames(
        &mut self,
        accesses: &mut [GrantAccess],
        small_frames: &SmallBatch,
        pick: &[u32],
        prefetch: bool,
    ) {
        self.open(accesses);
        fetch_and_copy_small_frames(&self.ledger, accesses, small_frames, pick, prefetch);
    }

    fn write(&mut self, copies: &mut [CopyOut], frames: &[Frame]) {
        let before = self.ledger.enter(Hop::Copy);
        for op in &*copies {
            let dst = page_range(self.page(op.gref), op.offset, op.len);
            dst.into_iter().for_each(prefetch_destination);
        }
        for op in copies {
            op.status = match page_range(self.page(op.gref), op.offset, op.len) {
                Ok(dst) => copy_to(dst, op.source, frames),
                Err(status) => status,
            };
        }
        self.ledger.enter(before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::PAGE;

    #[test]
    fn a_reference_resolves_to_its_page() {
        let frames = Area::anonymous(4 * PAGE).unwrap();
        let pages: Vec<GrantedPage> = (0..4)
            .map(|frame| GrantedPage {
                frame,
                readonly: false,
                io: false,
                exchanged: false,
                entry: None,
            })
            .collect();
        let mut grefs = Vec::new();
        Numbers.grant(DomId(0), &pages, &mut grefs).unwrap();
        let pointers = Pointers::new(frames, Rc::new(Ledger::new(false)));
        for (frame, gref) in (0..).zip(&grefs) {
            assert_ne!(gref.0, 0);
            assert_eq!(pointers.page(*gref), frames.page(frame));
        }
        assert_eq!(pointers.page(GrantRef(0)), None);
        assert_eq!(pointers.page(GrantRef(5)), None);
        assert!(page_range(pointers.page(grefs[3]), 4000, 96).is_ok());
        assert!(page_range(pointers.page(grefs[3]), 4000, 97).is_err());
    }
}

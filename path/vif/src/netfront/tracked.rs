//! Pages outside the pool that may hold payload of frames, with their grants and requests in
//! flight.

use super::pool::RequestLocation;
use super::table::{GrantError, GrantedPage, Granter};
use super::track::{PageGrants, TrackTable};
use abi::{DomId, GrantRef, PAGE};
use nic::{BufferId, Piece};
use shmem::Area;
use smallvec::SmallVec;

/// Pages outside the pool that may hold payload of frames.
#[derive(Clone, Copy, Debug)]
pub struct ExternalPages {
    /// The pages.
    pub memory: Area,
    /// Domain frame number of the first page.
    pub first_frame: u32,
    /// First entry for these pages, if the granter chooses entries.
    pub first_entry: u32,
    /// Maximum number of simultaneously granted pages. [`ExternalPages::entries`] returns the
    /// required table size.
    pub entries: u32,
}

impl ExternalPages {
    /// Returns the number of entries of a table for at least `wanted` pages.
    #[must_use]
    pub fn entries(wanted: u32) -> u32 {
        TrackTable::new(wanted).len() as u32
    }
}

/// Pages outside the pool, with their grants and requests in flight.
#[derive(Debug)]
pub(super) struct TrackedPages {
    pages: ExternalPages,
    backend: DomId,
    pub(super) table: TrackTable,
    /// First request id; lower ids are the pool's buffers.
    base: u16,
    /// Entry that each request in flight uses, by the request's id minus `base`.
    in_flight: Vec<Option<u16>>,
    free: Vec<u16>,
}

impl TrackedPages {
    /// Creates the state for request ids starting at `base`, up to `most` in flight.
    pub(super) fn new(pages: ExternalPages, backend: DomId, base: usize, most: u32) -> Self {
        let base = base.min(usize::from(u16::MAX)) as u16;
        let most = most.min(u32::from(u16::MAX - base)) as u16;
        Self {
            table: TrackTable::new(pages.entries),
            pages,
            backend,
            base,
            in_flight: vec![None; usize::from(most)],
            free: (0..most).rev().collect(),
        }
    }

    /// Returns the page that holds a piece, and the offset within it.
    pub(super) fn find(&self, piece: &Piece) -> Option<(u32, u16)> {
        let within = piece.span.addr();
        let at = within.checked_sub(self.pages.memory.span().addr())?;
        let (page, offset) = ((at / PAGE) as u32, at % PAGE);
        let bytes = piece.span.len();
        let inside = (1..=PAGE - offset).contains(&bytes);
        (piece.buffer == BufferId::NONE && inside && self.pages.memory.page(page).is_some())
            .then_some((page, offset as u16))
    }

    /// Grants the outside pages of `pieces`; `None` if one cannot be granted.
    pub(super) fn take(
        &mut self,
        pieces: &[Piece],
        granter: &mut dyn Granter,
    ) -> Option<SmallVec<[PageUse; 18]>> {
        let mut uses = SmallVec::new();
        for piece in pieces {
            let Some((page, offset)) = self.find(piece) else {
                continue;
            };
            let mut pages = ByGranter {
                granter,
                backend: self.backend,
                outside: &self.pages,
            };
            let Some((entry, gref)) = self.table.take(page, &mut pages) else {
                self.put(&uses);
                return None;
            };
            uses.push(PageUse {
                entry,
                gref,
                offset,
            });
        }
        if uses.len() > self.free.len() {
            self.put(&uses);
            return None;
        }
        Some(uses)
    }

    fn put(&mut self, uses: &[PageUse]) {
        uses.iter().for_each(|own| self.table.put(own.entry));
    }

    /// Allocates a request id. Requires that one is free.
    pub(super) fn allocate_request(&mut self, own: &PageUse) -> Option<RequestLocation> {
        let number = self.free.pop()?;
        *self.in_flight.get_mut(usize::from(number))? = Some(own.entry);
        Some(RequestLocation {
            gref: own.gref,
            offset: own.offset,
            id: self.base + number,
        })
    }

    /// Ends a request that the driver domain has answered; returns false if its id is not in
    /// flight.
    pub(super) fn complete_request(&mut self, id: u16) -> bool {
        let Some(number) = id.checked_sub(self.base) else {
            return false;
        };
        let own = self.in_flight.get_mut(usize::from(number));
        let Some(entry) = own.and_then(Option::take) else {
            return false;
        };
        self.table.put(entry);
        self.free.push(number);
        true
    }

    /// Returns whether no request of an outside page is in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.free.len() == self.in_flight.len()
    }

    /// Removes the grants of all pages, none of which may be used any more.
    pub(super) fn take_grants(&mut self) -> Vec<GrantRef> {
        self.table.take_grants()
    }
}

/// A use of a page.
pub(super) struct PageUse {
    entry: u16,
    gref: GrantRef,
    offset: u16,
}

struct ByGranter<'a> {
    granter: &'a mut dyn Granter,
    backend: DomId,
    outside: &'a ExternalPages,
}

impl PageGrants for ByGranter<'_> {
    fn grant(&mut self, entry: u32, page: u32) -> Result<GrantRef, GrantError> {
        let page = GrantedPage {
            frame: self.outside.first_frame + page,
            readonly: true,
            io: false,
            exchanged: false,
            entry: Some(self.outside.first_entry + entry),
        };
        let mut made = Vec::with_capacity(1);
        self.granter.enter(self.backend, &[page], &mut made);
        made.pop().unwrap_or(Err(GrantError::Full))
    }

    fn revoke(&mut self, gref: GrantRef) -> bool {
        self.granter.revoke_if_unused(gref)
    }
}

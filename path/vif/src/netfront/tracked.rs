//! Pages outside the pool that frames may lie in, and what of them is granted and in flight.

use super::pool::Located;
use super::table::{GrantError, GrantedPage, Granter};
use super::track::{PageGrants, TrackTable};
use abi::{DomId, GrantRef, PAGE};
use nic::{BufferId, Piece};
use shmem::Area;
use smallvec::SmallVec;

/// Pages outside the pool that frames may lie in.
#[derive(Clone, Copy, Debug)]
pub struct Outside {
    /// The pages.
    pub memory: Area,
    /// The domain's frame that the first of them is.
    pub first_frame: u32,
    /// Of a table whose entries the granter chooses, the first of those for them.
    pub first_entry: u32,
    /// How many of them may be granted at once; [`Outside::entries`] says what that takes.
    pub entries: u32,
}

impl Outside {
    /// The entries of a table that is to have at least so many.
    #[must_use]
    pub fn entries(wanted: u32) -> u32 {
        TrackTable::new(wanted).len() as u32
    }
}

/// Pages outside the pool, and what of them is granted and in flight.
#[derive(Debug)]
pub(super) struct Tracked {
    outside: Outside,
    backend: DomId,
    pub(super) table: TrackTable,
    /// The first number of a request: those below are the pool's buffers.
    base: u16,
    /// By number from `base` on, the entry that a request in flight uses.
    in_flight: Vec<Option<u16>>,
    free: Vec<u16>,
}

impl Tracked {
    /// For requests that are numbered from `base` on, of which `most` may be in flight.
    pub(super) fn new(outside: Outside, backend: DomId, base: usize, most: u32) -> Self {
        let base = base.min(usize::from(u16::MAX)) as u16;
        let most = most.min(u32::from(u16::MAX - base)) as u16;
        Self {
            table: TrackTable::new(outside.entries),
            outside,
            backend,
            base,
            in_flight: vec![None; usize::from(most)],
            free: (0..most).rev().collect(),
        }
    }

    /// Which page a piece lies in and where there, if it lies in one.
    pub(super) fn find(&self, piece: &Piece) -> Option<(u32, u16)> {
        let within = piece.span.addr();
        let at = within.checked_sub(self.outside.memory.span().addr())?;
        let (page, offset) = ((at / PAGE) as u32, at % PAGE);
        let bytes = piece.span.len();
        let inside = (1..=PAGE - offset).contains(&bytes);
        (piece.buffer == BufferId::NONE && inside && self.outside.memory.page(page).is_some())
            .then_some((page, offset as u16))
    }

    /// Makes the pages of `pieces` usable, of those that lie in any; none, if one cannot be.
    pub(super) fn take(
        &mut self,
        pieces: &[Piece],
        granter: &mut dyn Granter,
    ) -> Option<SmallVec<[Use; 18]>> {
        let mut uses = SmallVec::new();
        for piece in pieces {
            let Some((page, offset)) = self.find(piece) else {
                continue;
            };
            let mut pages = ByGranter {
                granter,
                backend: self.backend,
                outside: &self.outside,
            };
            let Some((entry, gref)) = self.table.take(page, &mut pages) else {
                self.put(&uses);
                return None;
            };
            uses.push(Use {
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

    fn put(&mut self, uses: &[Use]) {
        uses.iter().for_each(|own| self.table.put(own.entry));
    }

    /// A number for a request; there is one.
    pub(super) fn launch(&mut self, own: &Use) -> Option<Located> {
        let number = self.free.pop()?;
        *self.in_flight.get_mut(usize::from(number))? = Some(own.entry);
        Some(Located {
            gref: own.gref,
            offset: own.offset,
            id: self.base + number,
        })
    }

    /// The driver domain has answered a request; whether there was one.
    pub(super) fn land(&mut self, id: u16) -> bool {
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

    /// Whether no request of such a page is in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.free.len() == self.in_flight.len()
    }

    /// The grants of all pages, none of which may be used any more.
    pub(super) fn take_grants(&mut self) -> Vec<GrantRef> {
        self.table.take_grants()
    }
}

/// A use of a page.
pub(super) struct Use {
    entry: u16,
    gref: GrantRef,
    offset: u16,
}

struct ByGranter<'a> {
    granter: &'a mut dyn Granter,
    backend: DomId,
    outside: &'a Outside,
}

impl PageGrants for ByGranter<'_> {
    fn grant(&mut self, entry: u32, page: u32) -> Result<GrantRef, GrantError> {
        let page = GrantedPage {
            frame: self.outside.first_frame + page,
            readonly: true,
            exchanged: false,
            entry: Some(self.outside.first_entry + entry),
        };
        let mut made = Vec::with_capacity(1);
        self.granter.enter(self.backend, &[page], &mut made);
        made.pop().unwrap_or(Err(GrantError::Full))
    }

    fn revoke(&mut self, gref: GrantRef) -> bool {
        self.granter.leave_idle(gref)
    }
}

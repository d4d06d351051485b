//! One exchange: its pages, and the assignment of the pages to its two ends.

use abi::{ConnId, DomId, Handle, PAGE, Slot};
use monitor::space::PageMap;
use shmem::Region;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// One end of an exchange.
#[derive(Debug)]
pub(crate) struct ExchangeEnd {
    pub(crate) domain: DomId,
    /// Slots of the end's pages; empty if the end has not bound its pages yet or has released them.
    pub(crate) slots: Range<u32>,
    /// Whether the end has released the exchange.
    pub(crate) is_released: bool,
    /// The end's pages, in the order of its slots.
    pages: Vec<u32>,
}

impl ExchangeEnd {
    fn new(domain: DomId, pages: Range<u32>) -> Self {
        Self {
            domain,
            slots: 0..0,
            is_released: false,
            pages: pages.collect(),
        }
    }

    pub(crate) fn page(&mut self, slot: Slot) -> Option<&mut u32> {
        let place = slot.0.checked_sub(self.slots.start);
        let place = place.filter(|_| self.slots.contains(&slot.0))?;
        self.pages.get_mut(place as usize)
    }
}

#[derive(Debug)]
pub(crate) struct ExchangeState {
    pub(crate) granter: ExchangeEnd,
    pub(crate) user: ExchangeEnd,
}

impl ExchangeState {
    /// Returns the end of a domain, unless the domain has released the exchange.
    pub(crate) fn end(&mut self, of: DomId) -> Option<&mut ExchangeEnd> {
        let ends = [&mut self.granter, &mut self.user];
        ends.into_iter()
            .find(|end| end.domain == of && !end.is_released)
    }
}

/// An exchange: pages that the two ends of one connection exchange.
#[derive(Debug)]
pub(crate) struct Exchange {
    pub(crate) handle: Handle,
    pub(crate) granter: DomId,
    /// The granter's connection.
    pub(crate) conn: ConnId,
    /// Number of pages of each end.
    pub(crate) count: u32,
    pub(crate) region: Region,
    pub(crate) region_readonly: OwnedFd,
    /// Locked while agents change address spaces.
    op: Mutex<()>,
    /// Locked only for bookkeeping.
    state: Mutex<ExchangeState>,
}

impl Exchange {
    pub(crate) fn create(
        handle: Handle,
        (granter, conn): (DomId, ConnId),
        user: DomId,
        count: u32,
    ) -> io::Result<Self> {
        let region = Region::create(&format!("exchange-{handle}"), 2 * count as usize * PAGE)?;
        Ok(Self {
            handle,
            granter,
            conn,
            count,
            region_readonly: region.readonly_fd()?,
            region,
            op: Mutex::default(),
            state: Mutex::new(ExchangeState {
                granter: ExchangeEnd::new(granter, 0..count),
                user: ExchangeEnd::new(user, count..2 * count),
            }),
        })
    }

    pub(crate) fn op(&self) -> MutexGuard<'_, ()> {
        self.op.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, ExchangeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the mappings of the pages at these slots of an end.
    pub(crate) fn maps(
        &self,
        end: &mut ExchangeEnd,
        slots: impl Iterator<Item = Slot>,
    ) -> Vec<PageMap> {
        let map = |slot| {
            Some(PageMap {
                slot,
                memory: self.handle.memory(),
                frame: *end.page(slot)?,
                writable: true,
            })
        };
        slots.filter_map(map).collect()
    }

    /// Returns the number of pages of each end, and the number of pages that belong to neither end
    /// or to both ends.
    pub(crate) fn audit(&self) -> ([(DomId, u32); 2], u64) {
        let state = self.state();
        let owned = [&state.granter, &state.user].map(|end| (end.domain, end.slots.len() as u32));
        let mut pages = [&*state.granter.pages, &state.user.pages].concat();
        pages.sort_unstable();
        pages.dedup();
        (
            owned,
            u64::from(2 * self.count).abs_diff(pages.len() as u64),
        )
    }
}

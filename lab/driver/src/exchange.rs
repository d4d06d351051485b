//! The driver domain's pages of all exchanges. A NIC receives frames into them ([`NicPages`]), and
//! frames from other sources are copied into them.
//!
//! A buffer is a slot of an exchange: when its page is transferred, the buffer continues with the
//! page that the guest gave up. Each exchange belongs to one guest, but a NIC chooses the page
//! before the frame's destination is known. It takes pages of the guest to which its last frame was
//! sent; a frame to another guest is copied.

use abi::{PAGE, Slot};
use driver::nics::buffers::FIRST_PAGE;
use nic::{Buffer, BufferId, Buffers, Pool};
use shmem::{Area, Span};
use std::cell::RefCell;
use std::rc::Rc;

/// The pages of all exchanges.
#[derive(Debug, Default)]
pub(crate) struct Exchanges {
    guests: Vec<GuestPages>,
    /// For each NIC, the first slot of the exchange whose pages it receives into.
    nics: Vec<Option<Slot>>,
}

/// The driver domain's pages of one guest's exchange.
#[derive(Debug)]
struct GuestPages {
    first: Slot,
    pages: Area,
    pool: Pool,
    /// Index of the NIC that took each page last.
    taken_by: Vec<usize>,
}

impl GuestPages {
    /// Returns the index of the page that contains the start of `span`.
    fn index_at(&self, span: Span) -> Option<usize> {
        let offset = span.addr().checked_sub(self.pages.span().addr())?;
        (offset < self.pages.len()).then_some(offset / PAGE)
    }

    /// Returns the index of the page of a buffer.
    fn index_of(&self, id: BufferId) -> Option<usize> {
        let slot = id.0.checked_sub(FIRST_PAGE)?.checked_sub(self.first.0)?;
        ((slot as usize) < self.taken_by.len()).then_some(slot as usize)
    }
}

impl Exchanges {
    /// Adds the exchange whose pages, `pages`, begin at slot `first`.
    pub(crate) fn add(&mut self, first: Slot, pages: Area) {
        self.guests.push(GuestPages {
            first,
            pages,
            pool: Pool::new(pages, PAGE).numbered_from(FIRST_PAGE + first.0),
            taken_by: vec![0; pages.len() / PAGE],
        });
    }

    /// Removes the exchange that begins at slot `first`. Buffers in it cease to exist.
    pub(crate) fn remove(&mut self, first: Slot) {
        self.guests.retain(|guest| guest.first != first);
        for preferred in &mut self.nics {
            *preferred = preferred.filter(|preferred| *preferred != first);
        }
    }

    /// Takes a page of the exchange that begins at slot `first`.
    pub(crate) fn take(&mut self, first: Slot) -> Option<Slot> {
        let guest = self.guests.iter_mut().find(|guest| guest.first == first)?;
        let buffer = guest.pool.take()?;
        Some(Slot(buffer.id.0 - FIRST_PAGE))
    }

    /// Returns a page that [`Exchanges::take`] returned.
    pub(crate) fn put(&mut self, slot: Slot) {
        self.put_buffer(BufferId(FIRST_PAGE + slot.0));
    }

    /// Returns the slot of the page into which a NIC received `span`, a part of a frame for the
    /// guest whose exchange begins at slot `own`. Returns `None` if this exchange does not contain
    /// the page.
    pub(crate) fn received(&mut self, span: Span, own: Slot) -> Option<Slot> {
        let find = |guest| Some((guest, GuestPages::index_at(guest, span)?));
        let (guest, index) = self.guests.iter().find_map(find)?;
        if guest.first == own {
            return Some(Slot(own.0 + index as u32));
        }
        // The NIC's next frames are probably for this guest, too.
        if let Some(preferred) = self.nics.get_mut(*guest.taken_by.get(index)?) {
            *preferred = Some(own);
        }
        None
    }

    fn add_nic(&mut self) -> usize {
        self.nics.push(None);
        self.nics.len() - 1
    }

    fn take_for(&mut self, nic: usize) -> Option<Buffer> {
        let Self { guests, nics } = self;
        let preferred = nics.get_mut(nic)?;
        if preferred.is_none() {
            *preferred = guests.first().map(|guest| guest.first);
        }
        let guest = guests
            .iter_mut()
            .find(|guest| Some(guest.first) == *preferred)?;
        // Half of the pages remain for frames from other sources.
        if guest.pool.available() <= guest.pool.capacity() / 2 {
            return None;
        }
        let buffer = guest.pool.take()?;
        if let Some(index) = guest.index_of(buffer.id)
            && let Some(taken_by) = guest.taken_by.get_mut(index)
        {
            *taken_by = nic;
        }
        Some(buffer)
    }

    fn pool_of(&mut self, id: BufferId) -> Option<&mut Pool> {
        let mut guests = self.guests.iter_mut();
        let guest = guests.find(|guest| guest.index_of(id).is_some())?;
        Some(&mut guest.pool)
    }

    fn put_buffer(&mut self, id: BufferId) {
        if let Some(pool) = self.pool_of(id) {
            pool.put(id);
        }
    }
}

/// The pages of all exchanges, as receive buffers of one NIC.
#[derive(Debug)]
pub(crate) struct NicPages {
    exchanges: Rc<RefCell<Exchanges>>,
    nic: usize,
}

impl NicPages {
    /// Creates the receive buffers of another NIC.
    pub(crate) fn new(exchanges: Rc<RefCell<Exchanges>>) -> Self {
        let nic = exchanges.borrow_mut().add_nic();
        Self { exchanges, nic }
    }
}

impl Buffers for NicPages {
    fn take(&mut self) -> Option<Buffer> {
        self.exchanges.borrow_mut().take_for(self.nic)
    }

    fn take_large(&mut self) -> Option<Buffer> {
        None
    }

    fn put(&mut self, id: BufferId) {
        self.exchanges.borrow_mut().put_buffer(id);
    }

    fn add_owner(&mut self, id: BufferId) -> bool {
        let mut exchanges = self.exchanges.borrow_mut();
        exchanges.pool_of(id).is_some_and(|pool| pool.add_owner(id))
    }
}
